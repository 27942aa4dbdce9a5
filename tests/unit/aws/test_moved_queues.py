"""A queue that is looked at or moved, through a client: what SQS fails of a batch by its own fault is asked again."""

from collections.abc import Iterator

import pytest

from sluice.aws.queues import ConsumedQueue
from tests.sqs.clients import client_of
from tests.sqs.queues import Queue
from tests.sqs.server import State, running

NAME = "left"
CALL = "ChangeMessageVisibilityBatch"


@pytest.fixture
def sqs() -> Iterator[State]:
    with running() as state:
        state.queues[NAME] = Queue(NAME)
        yield state


@pytest.fixture
def left(sqs: State) -> ConsumedQueue:
    client = client_of(sqs)
    for number in range(3):
        client.send_message(QueueUrl=sqs.queue_url(NAME), MessageBody=str(number))
    return ConsumedQueue(client, sqs.queue_url(NAME), wait_s=0)


def test_what_isnt_shown_at_first_is_shown_with_the_next_call(sqs: State, left: ConsumedQueue) -> None:
    sqs.script.add({"action": CALL, "how": "partial"})
    left.release(left.receive(most=10))
    assert {message.body for message in left.receive(most=10)} == {"0", "1", "2"}
    assert sqs.calls[CALL] == 2


def test_what_is_never_shown_comes_by_itself_later(sqs: State, left: ConsumedQueue) -> None:
    sqs.script.add({"action": CALL, "how": "partial", "count": 10})
    left.release(left.receive(most=10))
    assert sqs.calls[CALL] == 3
