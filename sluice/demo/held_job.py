"""A job that begins before it is told what to do: `python -m sluice.demo.held_job`, with Spark's Python.

Its session is open by the time that it is let go with one line, the arguments of `sluice_job.py` as a list in JSON.
"""

import json
import sys

from sluice_jobs import land, statistics  # noqa: F401 - the job would import its own once it is let go
from sluice_jobs.main import main
from sluice_jobs.session import job_session


def run_when_let_go() -> int:
    """Run the job and return its exit code; 0 too where whoever would have let it go has ended."""
    # Most of a first query's time goes by until what plans and compiles it is loaded.
    job_session("sluice demo").range(1).collect()
    told = sys.stdin.readline()
    return main(json.loads(told)) if told else 0


if __name__ == "__main__":
    sys.exit(run_when_let_go())
