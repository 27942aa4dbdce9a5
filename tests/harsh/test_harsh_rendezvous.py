"""What the rendezvous stands of a harsh cloud: queues that have just been made and aren't found yet."""

import time
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any

import pytest
from msgspec.structs import replace

from sluice.aws.clients import new_id, now_ms
from sluice.aws.queues import SqsQueues
from sluice.rendezvous.broker import Broker, RendezvousDependencies
from sluice.rendezvous.mailbox import Mailbox
from sluice.rendezvous.protocol.ends import End
from tests.fakes import FakeMailboxStore, Meeting
from tests.functions.ways import Inline
from tests.unit.rendezvous.test_broker import sent


@pytest.fixture
def queues(sqs: Any, queue: str) -> SqsQueues:
    """As the functions have them."""
    return SqsQueues(sqs, queue)


def site(queues: SqsQueues, executor: Executor) -> RendezvousDependencies:
    """A site whose queues are the cloud's, on its clock."""
    return replace(Meeting().dependencies(), queues=queues, executor=executor, now_ms=now_ms, sleep=time.sleep)


def test_a_client_hears_though_its_answer_queue_was_just_made(queues: SqsQueues) -> None:
    with ThreadPoolExecutor(4) as executor:
        broker = Broker(site=site(queues, executor), bridges={})
        offer = sent("no version", client_id=new_id(), sent_at_ms=now_ms())
        assert broker.serve([offer], executor=executor) == [End.OFFER_REFUSED]


def test_a_proxy_function_polls_the_mailbox_that_it_has_made(queues: SqsQueues) -> None:
    mailboxes: Any = FakeMailboxStore()
    mailbox = Mailbox(replace(site(queues, Inline()), new_id=new_id), mailboxes)
    made = mailbox.get_url()
    assert mailbox.receive_for("a poll", until_ms=now_ms() + 2_000) is None
    assert mailbox.get_url() == made
    assert len(mailboxes.notes) == 1
