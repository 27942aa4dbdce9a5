"""A function's handler, run here on a session's messages as Lambda would run it; what it has done is deleted.

It runs in this process and thread, so that a debugger stops in it. What failed comes again after the visibility
time-out of its queue, as with Lambda.
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

from sluice.aws.connections import Connection, program_variables, undirected
from sluice.aws.queues import ConsumedQueue, delete_batch
from sluice.cli.terminal import SIGNALLED, note
from sluice.errors import BadConfiguration, CallFailed, QueueGone
from sluice.operator.functions import DeployedFunction
from sluice.operator.queues import arn_of
from sluice.operator.sessions import OpenSession

POLL_S = 1  # of each queue: for so long the others wait, and the session's end is noticed that late
AGAIN_AFTER_S = 5.0  # a call that failed

Record = Mapping[str, Any]
Handler = Callable[[Any, "Context"], object]


class BadHandler(BadConfiguration):
    """There is no such handler."""


class BadResponse(Exception):
    """A response for which Lambda takes the whole batch for failed."""


@dataclass(slots=True, kw_only=True)
class Context:
    """What a handler gets beside the event. Its time is counted, but never up: a debugger may stop in it."""

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
        """Tell what is left of the function's time-out."""
        return max(0, int((self._began_s + self.timeout_s - time.monotonic()) * 1_000))


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalFunction:
    """A deployed function's settings, and its code as it is here."""

    deployed: DeployedFunction
    handler: Handler

    @classmethod
    def load(cls, connection: Connection, name: str, handler: str | None) -> "LocalFunction":
        """Take on the function's variables, and only then import its code, from the working directory first.

        Without a handler it is the deployed one's. The code's own calls go where the connection leads. Raises
        `BadHandler`, and whatever the import raises.
        """
        deployed = DeployedFunction.of(connection, name)
        led = {**undirected(os.environ), **deployed.variables, **program_variables(connection)}
        os.environ.clear()
        os.environ.update(led)
        where = handler or deployed.handler or ""
        module, _, attribute = where.replace("/", ".").rpartition(".")  # Lambda's may name a folder
        if not module:
            raise BadHandler(f"--handler: {where!r} is not MODULE.FUNCTION")
        sys.path.insert(0, os.getcwd())  # noqa: PTH109 - sys.path takes text
        found = getattr(importlib.import_module(module), attribute, None)
        if not callable(found):
            raise BadHandler(f"--handler: module {module} has no function {attribute}")
        return cls(deployed=deployed, handler=found)

    def invoke(self, records: Sequence[Record]) -> Sequence[Record]:
        """Call the handler with these records of one queue; those that are done.

        An error, and a response that isn't understood, fail the whole batch. Of a FIFO queue what follows a failed
        message in its group isn't done either, whatever the response says.
        """
        context = Context(
            function_name=self.deployed.name,
            invoked_function_arn=self.deployed.arn,
            memory_limit_in_mb=str(self.deployed.memory_mb),
            timeout_s=self.deployed.timeout_s,
        )
        try:
            # A copy, as it comes over the wire; and what JSON can't say Lambda takes for an error too.
            response = self.handler(json.loads(json.dumps({"Records": records})), context)
            failed = failed_of(json.loads(json.dumps(response)), {record["messageId"] for record in records})
        except Exception:  # noqa: BLE001 - the handler's own, for which the batch has failed
            traceback.print_exc()
            return []
        done, stopped = list[Record](), set[str]()
        for record in records:
            group = record["attributes"].get("MessageGroupId") if record["eventSourceARN"].endswith(".fifo") else None
            if record["messageId"] not in failed and group not in stopped:
                done.append(record)
            elif group is not None:
                stopped.add(group)
        return done


def failed_of(response: object, ids: Collection[str]) -> Collection[str]:
    """Read a partial batch response: the ids of what has failed, none where nothing is said.

    Raises `BadResponse` for what Lambda takes for a failure of all:
    https://docs.aws.amazon.com/lambda/latest/dg/services-sqs-errorhandling.html
    """
    failures = response.get("batchItemFailures") if isinstance(response, dict) else None
    if failures is None:
        return ()
    failed: list[Any] = [each.get("itemIdentifier") if isinstance(each, dict) else None for each in failures]
    unknown = [each for each in failed if each not in ids]
    if unknown:
        raise BadResponse(f"batchItemFailures: {unknown[0]!r} is no messageId of the batch")
    return failed


def serve(function: LocalFunction, queues: Sequence["EventQueue"], opened: OpenSession, *, most: int) -> int:
    """Have the function called with each queue's messages in turn, until the session ends, or ctrl-C; the exit code."""
    try:
        for queue in cycle(queues):
            if opened.ended.is_set():
                break
            try:
                records = queue.receive(most=most, wait_s=POLL_S)
                done = function.invoke(records) if records else []
                if len(done) < len(records):
                    note(f"{len(records) - len(done)} of {len(records)} messages failed; they come again")
                if done:
                    queue.delete(done)
            except QueueGone:
                opened.beat()  # after a machine has slept the session is over, and its queues are gone
                if not opened.ended.is_set():
                    raise
            except CallFailed as error:
                note(f"{error}; trying again")
                opened.ended.wait(AGAIN_AFTER_S)
    except KeyboardInterrupt:
        return SIGNALLED + signal.SIGINT
    return 0


# Events


@dataclass(frozen=True, slots=True)
class EventQueue:
    """A queue that is read as Lambda reads it for a function. Raises `QueueGone` or `CallFailed`."""

    queue: ConsumedQueue
    arn: str
    region: str

    @classmethod
    def of(cls, connection: Connection, url: str) -> "EventQueue":
        """Of the connection's region; a queue's URL ends in its account and name."""
        return cls(ConsumedQueue(connection.client("sqs"), url), arn_of(connection, url), connection.region)

    def receive(self, *, most: int, wait_s: int) -> Sequence[Record]:
        """Up to `most` messages, ten at most, as Lambda gives them to a function; none after `wait_s`."""
        received = self.queue.receive_raw(most=most, wait_s=wait_s)
        return [record_of(message, arn=self.arn, region=self.region) for message in received]

    def delete(self, records: Sequence[Record]) -> None:
        """Delete what is done, ten at most."""
        handles = [record["receiptHandle"] for record in records]
        delete_batch(self.queue.client, self.queue.url, handles, queue=self.queue.url)


def record_of(received: Mapping[str, Any], *, arn: str, region: str) -> Record:
    """Spell a message that `ReceiveMessage` gave as Lambda does.

    https://docs.aws.amazon.com/lambda/latest/dg/with-sqs.html
    """
    hashes = {"md5OfMessageAttributes": received.get("MD5OfMessageAttributes")}
    return {
        "messageId": received["MessageId"],
        "receiptHandle": received["ReceiptHandle"],
        "body": received["Body"],
        "attributes": dict(received.get("Attributes") or {}),
        "messageAttributes": {
            name: _attribute(value) for name, value in (received.get("MessageAttributes") or {}).items()
        },
        "md5OfBody": received["MD5OfBody"],
        **{name: value for name, value in hashes.items() if value is not None},
        "eventSource": "aws:sqs",
        "eventSourceARN": arn,
        "awsRegion": region,
    }


def _attribute(value: Mapping[str, Any]) -> dict[str, Any]:
    spelled: dict[str, Any] = {"stringListValues": [], "binaryListValues": [], "dataType": value["DataType"]}
    if "BinaryValue" in value:
        return {"binaryValue": base64.b64encode(value["BinaryValue"]).decode(), **spelled}
    return {"stringValue": value["StringValue"], **spelled}
