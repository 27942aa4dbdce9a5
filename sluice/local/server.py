"""The cloud's process: `python -m sluice.local.server RUNTIME_PYTHON REQUEST_LOG`. Started by `sluice.local.cloud`."""

import sys
from pathlib import Path

import ministack.app

from sluice.local import mends
from sluice.local.requests import RequestLog


def main(runtime_python: str, request_log: str) -> None:
    """Serves until it is ended by a signal."""
    mends.authorize_batches_as_aws_does()
    mends.take_loopback_as_secure()
    mends.run_functions_with(Path(runtime_python))
    mends.log_requests(RequestLog(Path(request_log)))
    sys.argv[1:] = []  # ministack reads them too
    ministack.app.main()


if __name__ == "__main__":
    main(*sys.argv[1:])
