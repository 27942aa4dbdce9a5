"""Runs a callback before Lambda ends an execution environment.

Lambda sends SIGTERM to a function's process only if the function has an extension, and SIGKILL 500 ms later. An
internal extension that is registered for no events is enough; it costs one local request at the cold start.
https://docs.aws.amazon.com/lambda/latest/dg/lambda-runtime-environment.html#runtimes-lifecycle-shutdown
https://docs.aws.amazon.com/lambda/latest/dg/runtimes-extensions-api.html
"""

import os
import signal
import sys
from collections.abc import Callable
from http import HTTPStatus
from threading import Thread

import urllib3
from aws_lambda_powertools.logging import Logger

API_VARIABLE = "AWS_LAMBDA_RUNTIME_API"  # Lambda sets this variable to host and port of its Extensions API.
EXTENSION = "sluice-shutdown"  # The name must be unique within a function.
TERMINATION = frozenset({signal.SIGTERM})

logger = Logger()


def call_at_shutdown(callback: Callable[[], None]) -> None:
    """Call `callback` when Lambda shuts this environment down; after 500 ms Lambda kills the process.

    Lambda accepts registrations only while the handler's module is imported. Outside Lambda nothing is registered. The
    callback isn't called if the process crashes, or if Lambda kills it at a timeout.
    """
    api = os.environ.get(API_VARIABLE)
    if not api:
        return
    # This pool is separate, because the timeouts of AWS's clients don't suit a request that stays open until shutdown.
    pool = urllib3.PoolManager(retries=False)
    address = f"http://{api}/2020-01-01/extension"
    headers = {"Lambda-Extension-Name": EXTENSION, "Content-Type": "application/json"}
    registered = pool.request("POST", f"{address}/register", body=b'{"events": []}', headers=headers)
    if registered.status != HTTPStatus.OK:
        logger.warning("ShutdownNotRegistered", reason=registered.data.decode(errors="replace"))
        return
    identifier = {"Lambda-Extension-Identifier": registered.headers["Lambda-Extension-Identifier"]}

    def wait_for_next_event() -> None:
        """Request the extension's next event, to tell Lambda that the extension is ready. There is no response."""
        pool.request("GET", f"{address}/event/next", headers=identifier)

    def wait_for_shutdown() -> None:
        signal.sigwait(TERMINATION)
        try:
            callback()
        except Exception as error:
            logger.warning("ShutdownFailed", exc_info=error)
        sys.stdout.flush()
        os._exit(0)  # Exit here, because Lambda's runtime in the main thread waits for an invocation that never comes.

    # A signal handler would run in the main thread, which may hold a lock that the callback needs, or run C code.
    # So the signal is blocked for this thread and for all threads that start from now on.
    signal.pthread_sigmask(signal.SIG_BLOCK, TERMINATION)
    Thread(target=wait_for_shutdown, daemon=True).start()
    Thread(target=wait_for_next_event, daemon=True).start()
