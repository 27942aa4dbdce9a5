"""What of a batch comes again, and how soon."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from sluice.aws.dead_letters import DeadLetters
from sluice.aws.queues import ReceivedQueues
from sluice.aws.records import Batch, Reporter
from sluice.errors import CallFailed, HeldBack, Malformed
from sluice.message import Message

SOURCE = "arn:aws:sqs:eu-central-1:123456789012:links.fifo"


class Buried(DeadLetters):
    """Dead letters that nobody reads."""

    def send(self, letter: Any) -> None: ...


def message(name: str, *, receives: int = 1) -> Message:
    system = {"ApproximateReceiveCount": str(receives), "MessageGroupId": "g"}
    return Message(message_id=name, body=name, system=system, receipt_handle=f"handle-{name}")


class Shown(ReceivedQueues):
    """Notes what is shown again, and when."""

    def __init__(self) -> None:
        super().__init__(client=None, sample_queue_url="")  # type: ignore[arg-type]
        object.__setattr__(self, "asked", [])

    def change_visibility(self, arn: str, delays_s: Mapping[str, int]) -> None:
        self.asked.append((arn, dict(delays_s)))  # type: ignore[attr-defined]


class Refusing(ReceivedQueues):
    """SQS is throttled."""

    def change_visibility(self, arn: str, delays_s: Mapping[str, int]) -> None:
        raise CallFailed("ChangeMessageVisibilityBatch", "RequestThrottled", "")


class ThrottledOnce(Shown):
    """SQS is throttled at the first request."""

    def change_visibility(self, arn: str, delays_s: Mapping[str, int]) -> None:
        super().change_visibility(arn, delays_s)
        if len(self.asked) == 1:  # type: ignore[attr-defined]
            raise CallFailed("ChangeMessageVisibilityBatch", "RequestThrottled", "")


def reporter(received: ReceivedQueues | None, **more: Any) -> Reporter:
    letters = Buried(client=None, url="")  # type: ignore[arg-type]
    return Reporter(dead_letters=letters, executor=ThreadPoolExecutor(1), received=received, **more)


def test_what_fails_for_the_first_time_comes_soon_and_what_waits_for_it() -> None:
    """Dead letters don't come again, and what failed before waits: an outage outlasts three hurried receives."""
    shown = Shown()
    batch = Batch(SOURCE, (message("first"), message("behind"), message("bad"), message("again", receives=2)))
    refused = CallFailed("GetItem", "ProvisionedThroughputExceededException", "")
    failures = {0: refused, 1: HeldBack("its group"), 2: Malformed("no JSON"), 3: refused}
    answer = reporter(shown).report(batch, failures)
    assert [each["itemIdentifier"] for each in answer["batchItemFailures"]] == ["first", "behind", "again"]
    assert shown.asked == [(SOURCE, {"handle-first": 5, "handle-behind": 5})]  # type: ignore[attr-defined]


def test_one_throttle_is_no_wait_for_the_visibility_timeout() -> None:
    shown = ThrottledOnce()
    reporter(shown).report(Batch(SOURCE, (message("waits"),)), {}, redelivered_s={0: 5})
    assert shown.asked == [(SOURCE, {"handle-waits": 5})] * 2  # type: ignore[attr-defined]


def test_what_outlasts_its_waits_has_its_time_out() -> None:
    shown = Shown()
    batch = Batch(SOURCE, tuple(message(str(receives), receives=receives) for receives in (1, 2, 3)))
    reporter(shown, redelivery_delays_s=(5, 20)).report(batch, dict.fromkeys(range(3), HeldBack("an outage")))
    assert shown.asked == [(SOURCE, {"handle-1": 5, "handle-2": 20})]  # type: ignore[attr-defined]


def test_a_large_batch_is_shown_by_tens() -> None:
    shown = Shown()
    batch = Batch(SOURCE, tuple(message(str(number)) for number in range(25)))
    reporter(shown).report(batch, dict.fromkeys(range(25), HeldBack("an outage")))
    assert [len(waits) for _, waits in shown.asked] == [10, 10, 5]  # type: ignore[attr-defined]


@pytest.mark.parametrize("received", [None, Refusing(client=None, sample_queue_url="")])  # type: ignore[arg-type]
@pytest.mark.parametrize("receives", [1, 2])
def test_what_cant_be_hastened_comes_when_its_time_is_out(received: ReceivedQueues | None, receives: int) -> None:
    batch = Batch(SOURCE, (message("first", receives=receives),))
    answer = reporter(received).report(batch, {0: OSError("gone")})
    assert [each["itemIdentifier"] for each in answer["batchItemFailures"]] == ["first"]
