"""Queues of several regions and accounts, each called where it is and as whom it is called as."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sluice_spark.errors import InvalidOption
from sluice_spark.log.staging import StagedLog
from sluice_spark.log.store import FileStore
from sluice_spark.options import Options
from sluice_spark.source.receiver import Receiver
from sluice_spark.sqs import access
from sluice_spark.sqs.access import Endpoint, Identity, Place, Places
from sluice_spark.sqs.client import SqsClient

from tests.spark.clients import KEY
from tests.sqs.queues import Queue
from tests.sqs.server import running

HERE = "https://sqs.eu-west-1.amazonaws.com/111111111111/orders"
THERE = "https://sqs.us-east-1.amazonaws.com/222222222222/orders"
NOBODY = Identity()


@pytest.fixture
def other() -> Iterator[Any]:
    with running() as state:
        state.queues["q"] = Queue("q")
        yield state


def places(*queue_urls: str, identity: Identity = NOBODY, region: str | None = None) -> list[Place]:
    found = Places(region=region, endpoint=None, identity=identity)
    return [found(queue_url) for queue_url in queue_urls]


def test_a_queue_is_called_at_its_own_region() -> None:
    assert [place.endpoint.region for place in places(HERE, THERE)] == ["eu-west-1", "us-east-1"]


def test_a_queue_is_called_as_the_role_of_its_account(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str | None] = []
    monkeypatch.setattr(access, "build_credentials_source", lambda identity, **_: asked.append(identity.role_arn))
    roles = tuple(f"arn:aws:iam::{account}:role/reader" for account in ("222222222222", "111111111111"))
    places(HERE, THERE, f"{HERE}-too", identity=Identity(role_arns=roles))
    assert asked == [roles[1], roles[0]]
    with pytest.raises(InvalidOption, match="roleArn"):
        places("http://127.0.0.1:1/333333333333/q", identity=Identity(role_arns=roles))


def test_queues_of_one_place_have_one_client() -> None:
    assert len(set(places(HERE, f"{HERE}-too"))) == 1
    assert len(set(places(HERE, "http://127.0.0.1:1/1/q", region="eu-west-1"))) == 1


def test_one_source_empties_queues_of_two_places(tmp_path: Path, sqs: Any, other: Any) -> None:
    for state, name in ((sqs, "here"), (other, "there")):
        state.queues["q"].fill((f"{name} {number}" for number in range(50)), time.time())
    by_queue = {
        state.queue_url("q"): Place(Endpoint(url=state.url + "/", region=region), lambda: KEY)
        for state, region in ((sqs, "eu-west-1"), (other, "us-east-1"))
    }
    options = Options(queue_urls=tuple(by_queue), connections=4, wait_s=1)
    staged = StagedLog(FileStore(tmp_path))
    staged.take_over(staged.find_oldest_position())
    client = SqsClient(by_queue.__getitem__, connections=4)
    receiver = Receiver(staged, lambda: client, options, until_empty=True)
    receiver.start(staged.log.end)
    receiver.join(30)
    receiver.check()
    assert staged.log.offset(staged.log.end).totals.messages == 100
    for state in (sqs, other):
        assert set(state.queues["q"].counts(time.time()).values()) == {0}
        assert state.calls["DeleteMessageBatch"]
    asked = sqs.calls + other.calls
    assert client.requests["ReceiveMessage"] == asked["ReceiveMessage"]
