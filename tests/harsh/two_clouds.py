"""The simulation's models and the embedded cloud's handlers beside each other, on one clock: the same calls to both.

Neither has faults here, and none is asked over HTTP.
"""

import base64
import json
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import ministack.core.responses
import ministack.services.dynamodb
import ministack.services.sqs

from tests.simulation.kernel.faults import CALM, Kind
from tests.simulation.kernel.scheduler import START_S
from tests.simulation.kernel.world import HOME, World
from tests.simulation.models.errors import ServiceError

TARGETS = {"sqs": "AmazonSQS", "dynamodb": "DynamoDB_20120810"}
# Drawn by each cloud for itself: compared by when they first come.
DRAWN = frozenset({"MessageId", "ReceiptHandle", "QueueUrl"})
# Not in both: digests that SDKs check, who sent a message, what a call cost.
LEFT_OUT = frozenset({"MD5OfMessageBody", "MD5OfBody", "MD5OfMessageAttributes", "SenderId", "Message"})
MAY_BE_LEFT_OUT = frozenset({"Successful", "Failed", "Attributes"})  # where there is nothing in it


class Differs(AssertionError):
    """The two clouds answered a call differently."""


class StillWorld(World):
    """A world without faults, but that SQS keeps a message which is deleted by the handle of an earlier receive.

    It "might not be deleted", and the embedded cloud never does.
    https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_DeleteMessage.html
    """

    deletes_messages = False

    def happens(self, kind: Kind, probability: float | None = None) -> bool:
        return self.deletes_messages and kind is Kind.STALE


class TwoClouds:
    """One service of both. A value that each draws for itself is given and returned as the model's."""

    def __init__(self, service: str, world: StillWorld) -> None:
        self.service = service
        self.world = world
        self.embedded_of: dict[str, str] = {}  # the embedded cloud's value, by the model's
        self.model_of: dict[str, str] = {}

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self.world.scheduler.now += seconds

    def make_table(self, name: str) -> None:
        """Make a table with keys `pk` and `sk` on both."""
        self.world.dynamodb.make_table(name)
        kinds = {"pk": "HASH", "sk": "RANGE"}
        made = {
            "TableName": name,
            "KeySchema": [{"AttributeName": key, "KeyType": kind} for key, kind in kinds.items()],
            "AttributeDefinitions": [{"AttributeName": key, "AttributeType": "S"} for key in kinds],
            "BillingMode": "PAY_PER_REQUEST",
        }
        self.embedded("create_table", **made)

    def call(self, operation: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Make a call on both. Returns what both answer. Raises `Differs`."""
        ours = _without_what_differs(self._modelled(operation, dict(parameters)))
        theirs = _without_what_differs(self.embedded(operation, **_mapped(dict(parameters), self.embedded_of)))
        self._pair(ours, theirs)
        theirs = _mapped(theirs, self.model_of)
        if ours != theirs:
            at_s = self.world.now - START_S
            text = f"{operation} {parameters} after {at_s} s\n   models: {ours}\n embedded: {theirs}"
            raise Differs(text)
        return ours

    def embedded(self, operation: str, **parameters: Any) -> Any:
        """Make a call on the embedded cloud alone; an error's code is `Error` in what it answers."""
        action = "".join(part.capitalize() for part in operation.split("_"))
        headers = {"x-amz-target": f"{TARGETS[self.service]}.{action}"}
        service = getattr(ministack.services, self.service)
        asked = service.handle_request("POST", "/", headers, json.dumps(parameters, default=_in_base64).encode(), {})
        status, answer_headers, body = _done(asked)
        answer = json.loads(body)
        if status < 400:
            return answer
        code = answer_headers.get("x-amzn-query-error", "").partition(";")[0] or answer["__type"].rpartition("#")[2]
        reasons = {name: answer[name] for name in ("CancellationReasons", "Item") if name in answer}
        return {"Error": code, **reasons}

    def _modelled(self, operation: str, parameters: dict[str, Any]) -> Any:
        self.world.deletes_messages = operation.startswith("delete_message")
        try:
            return getattr(self.world.models[self.service], operation)(**parameters)
        except ServiceError as error:
            reasons = {name: error.more[name] for name in ("CancellationReasons", "Item") if name in error.more}
            return {"Error": error.code, **reasons}

    def _pair(self, ours: Any, theirs: Any, name: str = "") -> None:
        """Note what each has drawn where both have something."""
        if isinstance(ours, dict) and isinstance(theirs, dict):
            for key in ours.keys() & theirs.keys():
                self._pair(ours[key], theirs[key], key)
        elif isinstance(ours, list) and isinstance(theirs, list):
            for one, other in zip(ours, theirs, strict=False):
                self._pair(one, other, name)
        elif name in DRAWN and ours not in self.embedded_of and theirs not in self.model_of:
            self.embedded_of[ours], self.model_of[theirs] = theirs, ours


@contextmanager
def two_clouds(service: str) -> Iterator[TwoClouds]:
    """Both, without anything in them, while the embedded one has the model's clock."""
    world = StillWorld(0, CALM)
    module = getattr(ministack.services, service)
    module.time = _Clock(lambda: world.now)
    try:
        with ministack.core.responses.request_scope(HOME.account, HOME.region):
            _empty(module)
            yield TwoClouds(service, world)
            _empty(module)
    finally:
        module.time = time


class _Clock:
    """The module `time`, but another time of day."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.time = now

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


def _empty(module: Any) -> None:
    for name in ("_queues", "_queue_name_to_url", "_tables", "_txn_idempotency", "_stream_records"):
        if hasattr(module, name):
            getattr(module, name).clear()


def _done(asked: Coroutine[Any, Any, Any]) -> Any:
    """Run to the end what never waits."""
    try:
        asked.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("it waits for something")


def _in_base64(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _mapped(value: Any, values: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {name: _mapped(content, values) for name, content in value.items()}
    if isinstance(value, list | tuple):
        return [_mapped(content, values) for content in value]
    return values.get(value, value) if isinstance(value, str) else value


def _without_what_differs(answer: Any) -> Any:
    """Leave out what only one has, and lists without anything: an answer may have them or not."""
    if isinstance(answer, list):
        return [_without_what_differs(each) for each in answer]
    if not isinstance(answer, dict):
        return answer
    if "SequenceNumber" in answer:  # one counts for a queue, the other for all
        answer = {**answer, "SequenceNumber": "some"}
    kept = {name: _without_what_differs(value) for name, value in answer.items() if name not in LEFT_OUT}
    return {name: value for name, value in kept.items() if value or name not in MAY_BE_LEFT_OUT}
