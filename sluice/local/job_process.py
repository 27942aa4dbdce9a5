"""A job's process: `python -m sluice.local.job_process RECORD COMMAND…`, by `sluice.local.jobs`.

It passes on what asks it to end, and writes the job's exit code beside its record: the one who started it is gone.
"""

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

SUFFIX = ".exit"


def main(record: str, *command: str) -> None:
    """Run the command until it ends."""
    job = subprocess.Popen(command)  # noqa: S603 - our own arguments

    def pass_on(number: int, _: Any) -> None:
        job.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, pass_on)
    code = job.wait()
    ended = Path(record).with_suffix(SUFFIX)
    ended.with_suffix(".new").write_text(str(code))
    ended.with_suffix(".new").replace(ended)


if __name__ == "__main__":
    main(*sys.argv[1:])
