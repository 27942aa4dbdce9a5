"""Dead letters that are looked at: each once, whatever SQS delivers twice, and all are there for the next."""

from collections.abc import Iterator
from typing import Any

import pytest

from sluice.operator.dead_letters import peek_dead_letters
from tests.sqs.clients import client_of
from tests.sqs.queues import Queue
from tests.sqs.server import State, running

NAME = "dead"
BODIES = [str(number) for number in range(12)]


@pytest.fixture
def sqs(monkeypatch: pytest.MonkeyPatch) -> Iterator[State]:
    monkeypatch.setattr("sluice.operator.dead_letters.WAIT_S", 0)  # this server has all of its messages
    with running() as state:
        state.queues[NAME] = Queue(NAME)
        yield state


@pytest.fixture
def client(sqs: State) -> Any:
    client = client_of(sqs)
    for body in BODIES:
        client.send_message(QueueUrl=sqs.queue_url(NAME), MessageBody=body)
    return client


def deliver(sqs: State, *numbers: int) -> None:
    """Has the queue deliver its messages in this order, and those named twice also twice."""
    waiting = sqs.queues[NAME].waiting
    stored = list(waiting)
    waiting.clear()
    waiting.extend(stored[number] for number in numbers)


def looked(sqs: State, client: Any, most: int = 100) -> list[str]:
    return [letter.message.body for letter in peek_dead_letters(client, sqs.queue_url(NAME), most=most)]


def test_a_letter_that_one_answer_has_twice_is_one(sqs: State, client: Any) -> None:
    deliver(sqs, 0, 1, 0, 2)
    assert looked(sqs, client) == ["0", "1", "2"]


def test_an_answer_of_copies_alone_is_not_the_end(sqs: State, client: Any) -> None:
    deliver(sqs, *range(10), *range(10), 10, 11)
    assert looked(sqs, client) == BODIES
    assert sorted(looked(sqs, client)) == sorted(BODIES)


@pytest.mark.parametrize("most", [1, 3, 10, 11])
def test_copies_take_no_place_of_others(sqs: State, client: Any, most: int) -> None:
    deliver(sqs, 0, 0, *range(1, 12))
    assert looked(sqs, client, most) == BODIES[:most]


def test_a_queue_that_delivers_the_same_for_ever_has_an_end(
    sqs: State, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice.operator.dead_letters.HIDDEN_S", 0)
    assert looked(sqs, client) == BODIES
    assert sqs.calls["ReceiveMessage"] <= 2 * 100 / 10 + 1
