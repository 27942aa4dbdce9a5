"""Invokes a function's handler locally with a session's messages, as Lambda would, and deletes the processed ones.

The handler runs in this process and thread, so that a debugger stops in it. Failed messages are redelivered after the
queue's visibility timeout, as with Lambda.
"""

import base64
import importlib
import json
import os
import signal
import sys
import time
import traceback
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from typing import Any

from sluice.aws.connections import Connection, build_program_variables, remove_aws_variables
from sluice.aws.queues import ConsumedQueue, delete_batch
from sluice.cli.splitting.heartbeats import run_heartbeat_process
from sluice.cli.terminal import SIGNAL_EXIT_BASE, print_note
from sluice.errors import BadConfiguration, CallFailed, QueueGone
from sluice.operator.functions import DeployedFunction
from sluice.operator.queues import queue_arn
from sluice.operator.sessions import OpenSession

# A long poll of a queue takes only this number of seconds, because the session's other queues wait meanwhile.
POLL_S = 1
RETRY_AFTER_S = 5.0

Record = Mapping[str, Any]
Handler = Callable[[Any, "LambdaContext"], object]


class BadHandler(BadConfiguration):
    """Raised if the Lambda handler doesn't exist in its module, or its name is malformed."""


class BadResponse(Exception):
    """Raised if a Lambda handler's response is malformed. The whole batch then fails, as in Lambda."""


@dataclass(slots=True, kw_only=True)
class LambdaContext:
    """A Lambda handler's context argument. The time-out isn't enforced, because a debugger may stop in the handler."""

    function_name: str
    invoked_function_arn: str
    memory_limit_in_mb: str
    timeout_s: int
    function_version: str = "$LATEST"
    aws_request_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    log_group_name: str = ""
    log_stream_name: str = ""
    identity: None = None
    client_context: None = None
    _began_s: float = field(default_factory=time.monotonic)

    def get_remaining_time_in_millis(self) -> int:
        """Return the milliseconds until the function's time-out, at least 0."""
        return max(0, int((self._began_s + self.timeout_s - time.monotonic()) * 1_000))


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalFunction:
    """A deployed Lambda function's settings, with the handler from the local version of its code."""

    deployed_function: DeployedFunction
    handler: Handler

    @classmethod
    def load(cls, connection: Connection, name: str, handler: str | None) -> "LocalFunction":
        """Set the function's environment variables, then import its handler, preferably from the working directory.

        `handler` defaults to the deployed function's. The handler's own AWS calls go to the connection's site. Raises
        `BadHandler`, and any error of the import.
        """
        deployed = DeployedFunction.fetch(connection, name)
        environment = {**remove_aws_variables(os.environ), **deployed.variables, **build_program_variables(connection)}
        os.environ.clear()
        os.environ.update(environment)
        path = handler or deployed.handler or ""
        module, _, attribute = path.replace("/", ".").rpartition(".")  # Lambda accepts `folder/module.function`.
        if not module:
            raise BadHandler(f"--handler: {path!r} is not MODULE.FUNCTION")
        sys.path.insert(0, os.getcwd())  # noqa: PTH109 - sys.path takes text
        function = getattr(importlib.import_module(module), attribute, None)
        if not callable(function):
            raise BadHandler(f"--handler: module {module} has no function {attribute}")
        return cls(deployed_function=deployed, handler=function)

    def invoke(self, records: Sequence[Record]) -> Sequence[Record]:
        """Call the handler with a batch of one queue's records, and return the records that it processed.

        An error or a malformed response fails the whole batch. In a FIFO queue, a failed message makes all later
        messages of its group fail, even if the response doesn't list them.
        """
        context = LambdaContext(
            function_name=self.deployed_function.name,
            invoked_function_arn=self.deployed_function.arn,
            memory_limit_in_mb=str(self.deployed_function.memory_mb),
            timeout_s=self.deployed_function.timeout_s,
        )
        try:
            # As in Lambda, event and response are converted to JSON and back. Values that JSON can't have are errors.
            response = self.handler(json.loads(json.dumps({"Records": records})), context)
            failed_ids = parse_batch_response(
                json.loads(json.dumps(response)), {record["messageId"] for record in records}
            )
        except Exception:  # noqa: BLE001 - any error of the handler fails the batch
            traceback.print_exc()
            return []
        done, stopped = list[Record](), set[str]()
        for record in records:
            group = record["attributes"].get("MessageGroupId") if record["eventSourceARN"].endswith(".fifo") else None
            if record["messageId"] not in failed_ids and group not in stopped:
                done.append(record)
            elif group is not None:
                stopped.add(group)
        return done


def parse_batch_response(response: object, message_ids: Collection[str]) -> Collection[str]:
    """Return the ids of the failed messages from a handler's response; empty if it isn't a partial batch response.

    Raises `BadResponse` in the cases in which Lambda fails the whole batch:
    https://docs.aws.amazon.com/lambda/latest/dg/services-sqs-errorhandling.html
    """
    failures = response.get("batchItemFailures") if isinstance(response, dict) else None
    if failures is None:
        return ()
    failed: list[Any] = [failure.get("itemIdentifier") if isinstance(failure, dict) else None for failure in failures]
    unknown = [message_id for message_id in failed if message_id not in message_ids]
    if unknown:
        raise BadResponse(f"batchItemFailures: {unknown[0]!r} is not a messageId of the batch")
    return failed


def invoke_repeatedly(
    function: LocalFunction, queues: Sequence["EventQueue"], session: OpenSession, *, batch_size: int
) -> int:
    """Invoke the function with messages of the queues in turn until the session ends. Returns the exit code."""
    try:
        for queue in cycle(queues):
            if session.ended.is_set():
                break
            try:
                records = queue.receive(most=batch_size, wait_s=POLL_S)
                done = function.invoke(records) if records else []
                if len(done) < len(records):
                    print_note(f"{len(records) - len(done)} of {len(records)} messages failed and will be redelivered")
                if done:
                    queue.delete(done)
            except QueueGone:
                session.send_heartbeat()  # This finds out whether the session expired, perhaps while the machine slept.
                if not session.ended.is_set():
                    raise
            except CallFailed as error:
                print_note(f"{error}; trying again")
                session.ended.wait(RETRY_AFTER_S)
    except KeyboardInterrupt:
        return SIGNAL_EXIT_BASE + signal.SIGINT
    return 0


@dataclass(frozen=True, slots=True)
class EventQueue:
    """A queue that is polled as by a Lambda event source mapping. Methods raise `QueueGone` or `CallFailed`."""

    queue: ConsumedQueue
    arn: str
    region: str

    @classmethod
    def open(cls, connection: Connection, url: str) -> "EventQueue":
        """Create the object for a queue in the connection's region by the queue's URL."""
        return cls(ConsumedQueue(connection.client("sqs"), url), queue_arn(connection, url), connection.region)

    def receive(self, *, most: int, wait_s: int) -> Sequence[Record]:
        """Wait at most `wait_s` seconds for messages. Returns up to `most` (at most ten) as Lambda event records."""
        received = self.queue.receive_raw(most=most, wait_s=wait_s)
        return [build_record(message, arn=self.arn, region=self.region) for message in received]

    def delete(self, records: Sequence[Record]) -> None:
        """Delete the messages of up to ten processed records from the queue."""
        handles = [record["receiptHandle"] for record in records]
        delete_batch(self.queue.client, self.queue.url, handles, queue=self.queue.url)


def build_record(received: Mapping[str, Any], *, arn: str, region: str) -> Record:
    """Convert a message from SQS's `ReceiveMessage` to a record of a Lambda event.

    https://docs.aws.amazon.com/lambda/latest/dg/with-sqs.html
    """
    hashes = {"md5OfMessageAttributes": received.get("MD5OfMessageAttributes")}
    return {
        "messageId": received["MessageId"],
        "receiptHandle": received["ReceiptHandle"],
        "body": received["Body"],
        "attributes": dict(received.get("Attributes") or {}),
        "messageAttributes": {
            name: _build_attribute_document(value) for name, value in (received.get("MessageAttributes") or {}).items()
        },
        "md5OfBody": received["MD5OfBody"],
        **{name: value for name, value in hashes.items() if value is not None},
        "eventSource": "aws:sqs",
        "eventSourceARN": arn,
        "awsRegion": region,
    }


def _build_attribute_document(value: Mapping[str, Any]) -> dict[str, Any]:
    empty_lists: dict[str, Any] = {"stringListValues": [], "binaryListValues": [], "dataType": value["DataType"]}
    if "BinaryValue" in value:
        return {"binaryValue": base64.b64encode(value["BinaryValue"]).decode(), **empty_lists}
    return {"stringValue": value["StringValue"], **empty_lists}


def load_handler(
    connection: Connection, function: str, handler: str | None, batch_size: int
) -> Callable[[OpenSession], int]:
    """Load a Lambda function's handler, and return a function that invokes the handler with a session's messages."""
    # Heartbeats use the environment from before the handler was loaded, because the handler's credentials may expire.
    caller = dict(os.environ)
    loaded = LocalFunction.load(connection, function, handler)

    def serve_session(opened: OpenSession) -> int:
        queues = [EventQueue.open(connection, opened.queue_url(queue.queue_id)) for queue in opened.view.queues]
        print_note("ready; stop with ctrl-C, and messages that you haven't read return to the consumer")
        with run_heartbeat_process(opened.client, opened.view.session_id, environment=caller):
            return invoke_repeatedly(loaded, queues, opened, batch_size=batch_size)

    return serve_session
