"""Events as Lambda gives them, handlers with parts of the tests' own, and what became of one message in words."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sluice.aws.dead_letters import DeadLetters
from sluice.aws.records import Reporter
from sluice.message import Value
from tests.functions.ways import Inline
from tests.hostile.strict_sqs import StrictClient

DEAD = "https://sqs.test/000000000000/dead"
NOW_MS = 1_700_000_000_000
Given = Mapping[str, Value]


def record(
    body: str,
    attributes: Given | None = None,
    *,
    queue: str,
    place: int = 0,
    receives: int = 1,
    group: str | None = None,
    sender_id: str = "AIDA",
) -> dict[str, Any]:
    """One message of a queue."""
    system = {"ApproximateReceiveCount": str(receives), "SentTimestamp": str(NOW_MS), "SenderId": sender_id}
    return {
        "messageId": f"m{place}",
        "receiptHandle": f"handle {place}",
        "body": body,
        "attributes": system | ({} if group is None else {"MessageGroupId": group}),
        "messageAttributes": {name: value.to_lambda() for name, value in (attributes or {}).items()},
        "eventSource": "aws:sqs",
        "eventSourceARN": f"arn:aws:sqs:eu-central-1:123456789012:{queue}",
        "awsRegion": "eu-central-1",
    }


def event(*records: dict[str, Any]) -> dict[str, Any]:
    """A batch."""
    return {"Records": list(records)}


@contextlib.contextmanager
def put_together(handler: Any, dependencies: object) -> Iterator[None]:
    """Let a handler have these dependencies, in place of what it would make from its environment's settings."""
    made, handler.dependencies = handler.dependencies, lambda: dependencies
    try:
        yield
    finally:
        handler.dependencies = made


def reporter(client: StrictClient) -> Reporter:
    """Production's, with dead letters that go to a strict SQS."""
    sqs: Any = client
    return Reporter(dead_letters=DeadLetters(sqs, DEAD), executor=Inline())


def became(response: Mapping[str, Any], client: StrictClient) -> Sequence[str]:
    """What of a batch is a dead letter, by its reason, or comes again."""
    again = [f"comes again: {failure['itemIdentifier']}" for failure in response["batchItemFailures"]]
    return [*(f"dead letter: {reason}" for reason in client.reasons(DEAD)), *again]
