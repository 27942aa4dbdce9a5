"""Queues of several regions and accounts, each called where it is and as whom it is called as."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sluice_spark.errors import InvalidOption
from sluice_spark.log.staging import StagedLog
from sluice_spark.log.store import FileStore
from sluice_spark.source.intake import Intake
from sluice_spark.source.receiver import Receiver
from sluice_spark.sqs.access import Endpoint, Identity
from sluice_spark.sqs.client import SqsClient
from sluice_spark.sqs.clients import Place, RoutedClient, clients_of
from sluice_spark.sqs.signing import Credentials

from tests.sqs.queues import Queue
from tests.sqs.server import running

HERE = "https://sqs.eu-west-1.amazonaws.com/111111111111/orders"
THERE = "https://sqs.us-east-1.amazonaws.com/222222222222/orders"
KEY = Credentials(access_key="A", secret_key="s")


@pytest.fixture
def other() -> Iterator[Any]:
    with running() as state:
        state.queues["q"] = Queue("q")
        yield state


def made(*queue_urls: str, **more: Any) -> SqsClient:
    given: dict[str, Any] = {"region": None, "endpoint": None, "identity": Identity(), "connections": 2, **more}
    return clients_of(queue_urls, **given)()


def places(client: SqsClient) -> dict[str, tuple[str, str | None]]:
    assert isinstance(client, RoutedClient)
    return {url: (place.endpoint.region, place.identity.role_arn) for url, place in client.places.items()}


def test_a_queue_is_called_at_its_own_region() -> None:
    assert places(made(HERE, THERE)) == {HERE: ("eu-west-1", None), THERE: ("us-east-1", None)}


def test_a_queue_is_called_as_the_role_of_its_account() -> None:
    roles = tuple(f"arn:aws:iam::{account}:role/reader" for account in ("222222222222", "111111111111"))
    found = places(made(HERE, THERE, identity=Identity(role_arns=roles)))
    assert found == {HERE: ("eu-west-1", roles[1]), THERE: ("us-east-1", roles[0])}
    with pytest.raises(InvalidOption, match="roleArn"):
        made("http://127.0.0.1:1/333333333333/q", identity=Identity(role_arns=roles))


def test_queues_of_one_place_have_one_client() -> None:
    assert not isinstance(made(HERE, f"{HERE}-too"), RoutedClient)
    assert not isinstance(made(HERE, "http://127.0.0.1:1/1/q", region="eu-west-1"), RoutedClient)


def test_one_source_empties_queues_of_two_places(tmp_path: Path, sqs: Any, other: Any) -> None:
    for state, name in ((sqs, "here"), (other, "there")):
        state.queues["q"].fill((f"{name} {number}" for number in range(50)), time.time())
    by_queue = {
        state.queue_url("q"): Place(endpoint=Endpoint(url=state.url + "/", region=region), identity=Identity())
        for state, region in ((sqs, "eu-west-1"), (other, "us-east-1"))
    }
    keys = {place: lambda: KEY for place in by_queue.values()}
    intake = Intake(queue_urls=tuple(by_queue), connections=4, wait_s=1, until_empty=True)
    staged = StagedLog(FileStore(tmp_path))
    staged.take_over(staged.oldest())
    receiver = Receiver(staged, lambda: RoutedClient(by_queue, keys, connections=4), intake)
    receiver.start(staged.log.end)
    receiver.join(30)
    receiver.check()
    assert staged.log.offset(staged.log.end).totals.messages == 100
    for state in (sqs, other):
        assert set(state.queues["q"].counts(time.time()).values()) == {0}
        assert state.calls["DeleteMessageBatch"]
    asked = sqs.calls + other.calls
    assert receiver.requests["ReceiveMessage"] == asked["ReceiveMessage"]
