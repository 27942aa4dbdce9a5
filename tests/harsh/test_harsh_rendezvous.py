"""What of the rendezvous doesn't stand a harsh cloud yet: without these two no offer has an answer.

So the suites that run on one except these queues, `EXCEPTED` in `tests/conftest.py`: it goes with the marks here.
"""

import random
import time
from typing import Any

import pytest

from sluice.aws.clients import new_id, now_ms
from sluice.aws.queues import SqsQueues
from sluice.errors import QueueGone
from sluice.rendezvous.broker import Broker, Matchmaker, OfferMessage, OfferMetric, TickArmer
from sluice.rendezvous.mailbox import Mailbox
from tests.fakes import FakeMailboxStore, FakeOfferStore, FakePools, recorder_of
from tests.harsh.conftest import DELAY_S, WITHIN_S


@pytest.fixture
def queues(sqs: Any, queue: str) -> SqsQueues:
    """As the functions have them."""
    return SqsQueues(sqs, queue)


@pytest.mark.xfail(
    strict=True,
    raises=QueueGone,
    reason="A queue used within a second of its creation fails: a client gets no reply before its offer comes again",
)
def test_a_client_hears_though_its_answer_queue_was_just_made(queues: SqsQueues) -> None:
    pools = FakePools()
    offers = FakeOfferStore(pools)
    broker = Broker(
        offers=offers,
        queues=queues,
        armer=TickArmer(lambda _, __: None, now_ms),
        bridges={},
        now_ms=now_ms,
        recorder=recorder_of(now_ms),
    )
    matchmaker = Matchmaker(offers=offers, pools=pools, queues=queues, now_ms=now_ms, random=random.Random(1).random)
    offer = OfferMessage(client_id=new_id(), body="no version", sent_at_ms=now_ms())
    assert broker.serve(offer, matchmaker) is OfferMetric.REFUSED


@pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="A queue used within a second of its creation fails for good: each poll makes a new mailbox, and loses it",
)
def test_a_proxy_function_polls_the_mailbox_that_it_has_made(queues: SqsQueues) -> None:
    mailbox = Mailbox(queues, FakeMailboxStore(), now_ms, new_id)
    made = set[str]()
    deadline = time.monotonic() + WITHIN_S
    while len(made) < 2 and time.monotonic() < deadline:
        made.add(mailbox.url())
        try:
            mailbox.wait_for("a poll", until_ms=now_ms())
        except QueueGone:
            time.sleep(DELAY_S / 4)
        else:
            break
    assert len(made) == 1
