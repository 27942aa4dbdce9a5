"""What the rendezvous stands of a harsh cloud: queues that have just been made and aren't found yet."""

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from sluice.aws.clients import new_id, now_ms
from sluice.aws.queues import SqsQueues
from sluice.rendezvous.broker import Broker, OfferMessage, OfferMetric
from sluice.rendezvous.mailbox import Mailbox
from sluice.rendezvous.persistence import Persistence
from tests.fakes import FakeMailboxStore, FakeOfferStore, Meeting, recorder_of


@pytest.fixture
def queues(sqs: Any, queue: str) -> SqsQueues:
    """As the functions have them."""
    return SqsQueues(sqs, queue)


def test_a_client_hears_though_its_answer_queue_was_just_made(queues: SqsQueues) -> None:
    with ThreadPoolExecutor(4) as executor:
        broker = Broker(
            offers=FakeOfferStore(),
            queues=queues,
            bridges={},
            recorder=recorder_of(now_ms),
            persistence=Persistence(now_ms, time.sleep),
            executor=executor,
            now_ms=now_ms,
            new_id=new_id,
        )
        offer = OfferMessage(client_id=new_id(), body="no version", sent_at_ms=now_ms())
        assert broker.serve([offer], Meeting().matchmaker(), executor=executor) == [OfferMetric.REFUSED]


def test_a_proxy_function_polls_the_mailbox_that_it_has_made(queues: SqsQueues) -> None:
    mailboxes = FakeMailboxStore()
    mailbox = Mailbox(queues, mailboxes, now_ms, new_id, time.sleep)
    made = mailbox.url()
    assert mailbox.wait_for("a poll", until_ms=now_ms() + 2_000) is None
    assert mailbox.url() == made
    assert len(mailboxes.notes) == 1
