"""The cloud's process: `python -m sluice.local.server RUNTIME_PYTHON REQUEST_LOG [PARENT]`, by `sluice.local.cloud`."""

import os
import signal
import sys
import threading
import time
from pathlib import Path

import ministack.app

from sluice.local import patches
from sluice.local.requests import RequestLog

LOOK_EVERY_S = 1.0


def main(runtime_python: str, request_log: str, parent: str = "") -> None:
    """Serve until it is ended by a signal, or by the end of `parent` where that pid is given."""
    if parent:
        threading.Thread(target=_end_with, args=(int(parent),), daemon=True).start()
    patches.authorize_batches_as_aws_does()
    patches.take_loopback_as_secure()
    patches.know_mappings_functions()
    patches.refuse_second_mappings()
    patches.name_by_region()
    patches.keep_traces_of_batches()
    patches.run_functions_with(Path(runtime_python))
    patches.let_environments_fail_alone()
    patches.log_requests(RequestLog(Path(request_log)))
    patches.fill_batches()
    sys.argv[1:] = []  # ministack reads them too
    ministack.app.main()


def _end_with(parent: int) -> None:
    """End this process and the functions it runs when the parent has ended, however that came."""
    while os.getppid() == parent:
        time.sleep(LOOK_EVERY_S)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main(*sys.argv[1:])
