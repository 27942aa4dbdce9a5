"""The parent process of a local job: `python -m sluice.local.job_process RECORD COMMAND…`, see `sluice.local.jobs`.

Forwards SIGTERM and SIGINT to the job. Writes the job's exit code next to the record: the starter has ended.
"""

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

SUFFIX = ".exit"


def main(record: str, *command: str) -> None:
    """Run a job's command until the job ends, and write its exit code."""
    job = subprocess.Popen(command)  # noqa: S603 - our own arguments

    def forward_signal(signal_number: int, _: Any) -> None:
        job.send_signal(signal_number)

    for signal_number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signal_number, forward_signal)
    code = job.wait()
    ended = Path(record).with_suffix(SUFFIX)
    ended.with_suffix(".new").write_text(str(code))
    ended.with_suffix(".new").replace(ended)


if __name__ == "__main__":
    main(*sys.argv[1:])
