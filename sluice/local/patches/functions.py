"""Patches of ministack's Lambda: event source mappings of queues, execution environments, the Extensions API."""

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import tempfile
import time
import zipfile
from collections.abc import Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import accumulate
from pathlib import Path
from threading import Thread, Timer
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import ministack.core.concurrency
import ministack.core.lambda_runtime
import ministack.services.cloudformation.provisioners
import ministack.services.lambda_svc
import ministack.services.sqs

from sluice.building.project import move_into_place
from sluice.local.origins import LOOPBACK, check_origin

# Lambda gives environments with internal extensions half a second to end. The emulator waits longer, on a busy machine.
SHUTDOWN_S = 10.0
PER_REQUEST = 10  # maximum number of messages that one request to SQS receives or deletes
IDLE_GAP_S = 0.005  # seconds between looks at an empty queue, to save CPU time
PAYLOAD_BYTES = 6_000_000  # Lambda's limit for the event of an invocation
RECORD_BYTES = 1_000  # maximum bytes of a record without its body and attributes


def patch(python: Path) -> None:
    """Apply all patches of this module except `fill_batches`, once. `python` is the interpreter that runs functions."""
    refuse_second_mappings()
    poll_at_once()
    show_mappings_as_deployed()
    run_functions_with(python)
    isolate_environment_failures()
    end_whole_environments()
    unpack_archives_once()


def refuse_second_mappings() -> None:
    """Refuse a second event source mapping between the same queue and function.

    ministack creates the second mapping. AWS answers with `ResourceConflictException`.
    https://docs.aws.amazon.com/lambda/latest/api/API_CreateEventSourceMapping.html
    """
    functions = ministack.services.lambda_svc
    create = functions._create_esm  # noqa: SLF001 - no public hook

    def create_unless_exists(data: dict[str, Any]) -> Any:
        requested = data.get("EventSourceArn"), data.get("FunctionName", "").rsplit(":", 1)[-1]
        for mapping in functions._esms.values():  # noqa: SLF001 - see above
            if (mapping["EventSourceArn"], mapping["FunctionName"]) == requested:
                text = f"An event source mapping with these arguments exists already: {mapping['UUID']}"
                return functions.error_response_json("ResourceConflictException", text, 409)
        return create(data)

    functions._create_esm = create_unless_exists  # noqa: SLF001 - see above


def poll_at_once() -> None:
    """Look for a queue's messages as soon as they are sent.

    ministack pauses for 50 ms if a queue is empty, so the messages that a function sends wait up to 50 ms for the next
    function. AWS's pollers wait in long polls, which a message ends at once.
    https://docs.aws.amazon.com/lambda/latest/dg/services-sqs-scaling.html
    """
    functions = ministack.services.lambda_svc
    assert functions._ESM_IDLE_WAKE_GAP_SECONDS > IDLE_GAP_S  # noqa: S101, SLF001 - no public hook
    functions._ESM_IDLE_WAKE_GAP_SECONDS = IDLE_GAP_S  # noqa: SLF001 - see above


def show_mappings_as_deployed() -> None:
    """Show a mapping that CloudFormation created with `Enabled: false` as `Disabled`.

    ministack shows every mapping of CloudFormation as `Enabled`. AWS shows the mapping's actual state.
    https://docs.aws.amazon.com/lambda/latest/api/API_GetEventSourceMapping.html
    """
    handlers = ministack.services.cloudformation.provisioners._RESOURCE_HANDLERS  # noqa: SLF001 - no public hook
    table, mappings = handlers["AWS::Lambda::EventSourceMapping"], ministack.services.lambda_svc._esms  # noqa: SLF001
    create = table["create"]

    def create_with_state(*arguments: Any) -> Any:
        made = create(*arguments)
        mapping = mappings[made[0]]
        mapping["State"] = "Enabled" if mapping["Enabled"] else "Disabled"
        return made

    table["create"] = create_with_state


def run_functions_with(python: Path) -> None:
    """Run functions with the interpreter `python`.

    ministack runs functions with its own interpreter, which has other packages and perhaps another version. AWS runs
    them with the interpreter of the function's runtime.
    https://docs.aws.amazon.com/lambda/latest/dg/lambda-runtimes.html
    """
    runtime = ministack.core.lambda_runtime
    detect = runtime._detect_runtime_binary  # noqa: SLF001 - the one place where ministack chooses an interpreter

    def detect_python(name: str) -> tuple[str, str]:
        binary, worker = detect(name)
        return (str(python), worker) if name.startswith("python") else (binary, worker)

    runtime._detect_runtime_binary = detect_python  # noqa: SLF001 - see above


def isolate_environment_failures() -> None:
    """If an execution environment doesn't start, fail only its invocation.

    ministack doesn't catch the error, which ends all environments of the function. On AWS environments are independent.
    https://docs.aws.amazon.com/lambda/latest/dg/lambda-runtime-environment.html
    """
    worker = ministack.core.lambda_runtime.Worker
    invoke = worker.invoke

    def invoke_alone(self: Any, *arguments: Any, **named: Any) -> dict[str, Any]:
        try:
            return invoke(self, *arguments, **named)  # type: ignore[no-any-return]  # ministack has no types
        except Exception as error:  # noqa: BLE001 - raised, it would end all environments of the function
            self.kill()
            return {"status": "error", "error": str(error)}

    worker.invoke = invoke_alone


def end_whole_environments() -> None:
    """End all processes of an environment, at a time-out and whenever ministack ends an environment.

    ministack ends only the process that it started, and child processes survive. On AWS a time-out resets the
    environment as a shutdown does, and no process survives. An environment that has registered an extension first gets
    SIGTERM and half a second. Here each environment is a process group of its own.
    https://docs.aws.amazon.com/lambda/latest/dg/lambda-runtime-environment.html
    """
    runtime = ministack.core.lambda_runtime
    extensions = ExtensionsApi()
    collect = runtime._collect  # noqa: SLF001 - the one place where ministack waits for a process that it has ended

    def end(process: Any) -> None:
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            if extensions.has_registered(process.extension_token):
                os.killpg(process.pid, signal.SIGCONT)  # A frozen process can't handle SIGTERM.
                process.terminate()
            else:
                os.killpg(process.pid, signal.SIGKILL)

    def collect_whole(process: Any, deadline: float) -> None:
        collect(process, deadline)
        if process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)

    runtime.subprocess = _ProcessGroups(extensions)
    runtime._signal = end  # noqa: SLF001 - the one place where ministack asks a process to end
    runtime._collect = collect_whole  # noqa: SLF001 - see above
    runtime._REAP_GRACE = SHUTDOWN_S  # noqa: SLF001 - see above


def unpack_archives_once() -> None:
    """Unpack each archive of code or layers once, and link the files into the folders of all environments.

    ministack unpacks the archives for each environment, which takes most of a cold start. On AWS environments share
    cached blocks of the code, which they can't write to.
    https://docs.aws.amazon.com/lambda/latest/dg/configuration-layers.html
    """
    folder = Path(tempfile.mkdtemp(prefix="unpacked-"))

    class LinkedArchive(zipfile.ZipFile):
        def extractall(self, path: Any = None, *_: Any) -> None:
            unpacked = folder / hashlib.sha256(Path(str(self.filename)).read_bytes()).hexdigest()
            if not unpacked.exists():
                with tempfile.TemporaryDirectory(dir=folder, ignore_cleanup_errors=True) as parent:
                    super().extractall(Path(parent) / "new")
                    move_into_place(Path(parent) / "new", unpacked)
            Path(path).rmdir()
            Path(path).symlink_to(unpacked)

    ministack.core.lambda_runtime.zipfile = SimpleNamespace(**{**vars(zipfile), "ZipFile": LinkedArchive})


class ExtensionsApi:
    """Serves Lambda's Extensions API on a loopback port, for internal extensions that receive no events.

    ministack has no such API. Each environment's `AWS_LAMBDA_RUNTIME_API` has a token in the path, by which one server
    distinguishes all environments. Unknown tokens and browsers are refused. The server runs until the process ends.
    https://docs.aws.amazon.com/lambda/latest/dg/runtimes-extensions-api.html
    """

    def __init__(self) -> None:
        registered, started = self._registered, self._started = set[str](), set[str]()

        class Handler(BaseHTTPRequestHandler):
            def parse_request(self) -> bool:
                """Parse the request, and return whether to serve it. If False, a refusal has been sent."""
                if not super().parse_request():
                    return False
                headers = {name.lower(): value for name, value in self.headers.items()}
                refusal = check_origin(self.command, headers)
                if refusal is None and self.path[1:].partition("/")[0] not in started:
                    refusal = HTTPStatus.NOT_FOUND, "no such environment"
                if refusal is not None:
                    self.send_error(*refusal)
                return refusal is None

            def do_POST(self) -> None:
                token, _, path = self.path[1:].partition("/")
                if path != "2020-01-01/extension/register":
                    self.send_error(HTTPStatus.NOT_FOUND)
                    return
                registered.add(token)
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                self.send_response(HTTPStatus.OK)
                self.send_header("Lambda-Extension-Identifier", token)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def do_GET(self) -> None:
                """Hold an extension's request for the next event until the environment ends: there are no events."""
                self.connection.recv(1)

            def log_message(self, *_: object) -> None:
                """Suppress the server's log of requests."""

        self._server = ThreadingHTTPServer((LOOPBACK, 0), Handler)
        Thread(target=self._server.serve_forever, daemon=True).start()

    def address(self, token: str) -> str:
        """Admit an environment by its token, and return its `AWS_LAMBDA_RUNTIME_API`."""
        self._started.add(token)
        return f"{LOOPBACK}:{self._server.server_port}/{token}"

    def has_registered(self, token: str) -> bool:
        """Return whether an extension has registered in this environment."""
        return token in self._registered


class _ProcessGroups:
    """Replaces module `subprocess`: each started process leads a process group and can reach the Extensions API."""

    def __init__(self, extensions: ExtensionsApi) -> None:
        self._extensions = extensions

    def __getattr__(self, name: str) -> Any:
        return self._start if name == "Popen" else getattr(subprocess, name)

    def _start(self, *arguments: Any, env: Mapping[str, str], **named: Any) -> Any:
        token = uuid4().hex
        variables = {"AWS_LAMBDA_RUNTIME_API": self._extensions.address(token), **env}
        start: Any = subprocess.Popen
        process = start(*arguments, env=variables, process_group=0, **named)
        process.extension_token = token
        return process


def fill_batches() -> None:
    """Wait for a full batch of a queue during the mapping's batching window, which begins with the first message.

    ministack stores `MaximumBatchingWindowInSeconds` and invokes at once. AWS waits until the window ends, the batch is
    full, or the batch has 6 MB, and receives ten messages per request.
    https://docs.aws.amazon.com/lambda/latest/dg/services-sqs-configure.html
    """
    sqs, functions = ministack.services.sqs, ministack.services.lambda_svc
    wake, lock, mappings = ministack.core.concurrency.esm_wake, sqs._queues_lock, functions._esms  # noqa: SLF001 - no public hook
    queue_of, receive = sqs._get_q, sqs._receive_messages_for_esm  # noqa: SLF001 - see above
    wait_began: dict[str, float] = {}  # when the wait for a batch began, by queue ARN

    def receive_full(queue_url: str, max_number: int) -> list[dict[str, Any]]:
        arn = queue_of(queue_url)["attributes"]["QueueArn"]
        of_queue = (mapping for mapping in mappings.values() if mapping["EventSourceArn"] == arn)
        window_s = max((mapping.get("MaximumBatchingWindowInSeconds") or 0 for mapping in of_queue), default=0)
        if not window_s:
            return receive(queue_url, max_number)  # type: ignore[no-any-return]  # ministack has no types
        with lock:
            now = time.time()
            waiting = [message for message in queue_of(queue_url)["messages"] if message.get("visible_at", 0) <= now]
        if not waiting:
            wait_began.pop(arn, None)
            return []
        if len(waiting) < max_number and is_window_open(arn, window_s):
            return []
        wait_began.pop(arn, None)
        sizes = (len(json.dumps([message["body"], message.get("message_attributes")])) for message in waiting)
        fitting = sum(size <= PAYLOAD_BYTES for size in accumulate(size + RECORD_BYTES for size in sizes))
        batch_size = min(max_number, max(1, fitting))
        batch: list[dict[str, Any]] = []
        while len(batch) < batch_size and (part := receive(queue_url, min(PER_REQUEST, batch_size - len(batch)))):
            batch += part
        return batch

    def is_window_open(arn: str, window_s: float) -> bool:
        if arn not in wait_began:
            wait_began[arn] = time.monotonic()
            look = Timer(window_s, wake.set)
            look.daemon = True  # A stopped cloud doesn't wait for the timer.
            look.start()
        return time.monotonic() - wait_began[arn] < window_s

    sqs._receive_messages_for_esm = receive_full  # noqa: SLF001 - see above
