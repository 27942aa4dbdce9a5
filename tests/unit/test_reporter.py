"""What of a batch comes again, and how soon."""

from collections.abc import Sequence
from typing import Any

import pytest

from sluice.aws.dead_letters import DeadLetters
from sluice.aws.records import Batch, Reporter
from sluice.errors import CallFailed, HeldBack, Malformed
from sluice.message import Message
from tests.functions.ways import Inline

SOURCE = "arn:aws:sqs:eu-central-1:123456789012:links.fifo"


class Buried(DeadLetters):
    """Dead letters that nobody reads."""

    def bury(self, letter: Any) -> None: ...


def message(name: str, *, receives: int = 1) -> Message:
    system = {"ApproximateReceiveCount": str(receives), "MessageGroupId": "g"}
    return Message(message_id=name, body=name, system=system, receipt_handle=f"handle-{name}")


def reporter(hasten: Any) -> Reporter:
    return Reporter(dead_letters=Buried(client=None, url=""), executor=Inline(), hasten=hasten)  # type: ignore[arg-type]


def test_what_fails_for_the_first_time_comes_soon_and_what_waits_for_it() -> None:
    """Dead letters don't come again, and what failed before waits: an outage outlasts three hurried receives."""
    hastened: list[tuple[str, list[str]]] = []

    def hasten(queue: str, messages: Sequence[Message]) -> None:
        hastened.append((queue, [each.message_id for each in messages]))

    batch = Batch(SOURCE, (message("first"), message("behind"), message("bad"), message("again", receives=2)))
    refused = CallFailed("GetItem", "ProvisionedThroughputExceededException", "")
    failures = {0: refused, 1: HeldBack("its group"), 2: Malformed("no JSON"), 3: refused}
    answer = reporter(hasten).report(batch, failures)
    assert [each["itemIdentifier"] for each in answer["batchItemFailures"]] == ["first", "behind", "again"]
    assert hastened == [("links.fifo", ["first", "behind"])]


def test_what_cant_be_hastened_comes_when_its_time_is_out() -> None:
    def refuse(queue: str, messages: Sequence[Message]) -> None:
        raise CallFailed("ChangeMessageVisibilityBatch", "RequestThrottled", "")

    answer = reporter(refuse).report(Batch(SOURCE, (message("first"),)), {0: OSError("gone")})
    assert [each["itemIdentifier"] for each in answer["batchItemFailures"]] == ["first"]


@pytest.mark.parametrize("receives", [1, 2])
def test_where_nothing_is_hastened_all_comes_again_in_its_time(receives: int) -> None:
    answer = reporter(None).report(Batch(SOURCE, (message("first", receives=receives),)), {0: OSError("gone")})
    assert [each["itemIdentifier"] for each in answer["batchItemFailures"]] == ["first"]
