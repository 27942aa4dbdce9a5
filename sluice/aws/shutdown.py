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

API_VARIABLE = "AWS_LAMBDA_RUNTIME_API"  # Lambda sets it to host and port of its Extensions API
EXTENSION = "sluice-shutdown"  # unique within a function
TERMINATION = frozenset({signal.SIGTERM})

logger = Logger()


def call_at_shutdown(callback: Callable[[], None]) -> None:
    """Call `callback` when Lambda shuts this environment down. Then the process ends, killed after 500 ms.

    Lambda takes registrations only while the handler's module is imported. Outside Lambda nothing is registered.
    A process that crashes, or that Lambda kills at a time-out, isn't called.
    """
    api = os.environ.get(API_VARIABLE)
    if not api:
        return
    # Its own pool: the time-outs of AWS's clients don't fit a request that is never answered.
    pool = urllib3.PoolManager(retries=False)
    address = f"http://{api}/2020-01-01/extension"
    headers = {"Lambda-Extension-Name": EXTENSION, "Content-Type": "application/json"}
    registered = pool.request("POST", f"{address}/register", body=b'{"events": []}', headers=headers)
    if registered.status != HTTPStatus.OK:
        logger.warning("ShutdownNotRegistered", reason=registered.data.decode(errors="replace"))
        return
    identifier = {"Lambda-Extension-Identifier": registered.headers["Lambda-Extension-Identifier"]}

    def wait_for_ever() -> None:
        """Ask for the next event, which tells Lambda that the extension is ready. There is none."""
        pool.request("GET", f"{address}/event/next", headers=identifier)

    def wait_for_shutdown() -> None:
        signal.sigwait(TERMINATION)
        try:
            callback()
        except Exception as error:
            logger.warning("ShutdownFailed", exc_info=error)
        sys.stdout.flush()
        os._exit(0)  # the runtime's thread waits for an invocation that never comes

    # A handler would run in the main thread, which the runtime may hold in compiled code and which may hold a lock
    # that the callback needs. Threads that are started from now on inherit that the signal isn't theirs.
    signal.pthread_sigmask(signal.SIG_BLOCK, TERMINATION)
    Thread(target=wait_for_shutdown, daemon=True).start()
    Thread(target=wait_for_ever, daemon=True).start()
