"""The cloud's process: `python -m sluice.local.server RUNTIME_PYTHON REQUEST_LOG HARSH [PARENT]`.

`sluice.local.cloud` starts this process. HARSH is the text of `Behaviours`, or empty.
"""

import os
import sys
import threading
import time
from pathlib import Path

import ministack.app

from sluice.local.harsh.behaviours import Behaviours
from sluice.local.harsh.hardening import harden
from sluice.local.patches import access, cloud, functions, iam, metrics, sqs, streams
from sluice.local.patches.expiry import expire_items
from sluice.local.processes import end_session
from sluice.local.requests import RequestLog

LOOK_EVERY_S = 1.0


def main(runtime_python: str, request_log: str, harsh: str = "", parent: str = "") -> None:
    """Serve until a signal arrives, or until the process with id `parent` ends."""

    def end_with_parent() -> None:
        """Wait until the parent process has ended for any reason, then end this process and its functions."""
        while os.getppid() == int(parent):
            time.sleep(LOOK_EVERY_S)
        end_session(os.getpid())

    if parent:
        threading.Thread(target=end_with_parent, daemon=True).start()
    access.patch(os.environ["AWS_SECRET_ACCESS_KEY"])
    iam.patch()
    cloud.name_by_region()
    cloud.name_log_groups_like_other_resources()
    functions.patch(Path(runtime_python))
    sqs.patch()
    streams.patch()
    cloud.save_changing_state(lambda: end_session(os.getpid()))
    metrics.patch(RequestLog(Path(request_log)))
    functions.fill_batches()
    if harsh:
        harden(Behaviours.parse(harsh))
    else:
        expire_items()
    sys.argv[1:] = []  # ministack would read the arguments, too.
    ministack.app.main()


if __name__ == "__main__":
    main(*sys.argv[1:])
