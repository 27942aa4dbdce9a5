"""A warm message passes few files and few calls: who reads a handler's way has that much to hold in mind.

What is more than a ceiling is looked at: one thought in two files, or a wrapper of a wrapper.
"""

import json
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

from functions.broker import handler as broker
from functions.exchange import handler as exchange
from functions.links import handler as links
from functions.splitter import handler as splitter
from sluice.aws.clients import now_ms, quick_dynamodb_client, quick_sqs_client
from sluice.aws.rendezvous.offers import DynamoProxyPools
from sluice.rendezvous.protocol.matching import Pool, WaitingProxy
from tests.functions.conftest import CONTEXT, Surroundings
from tests.functions.test_federation_handlers import federation  # noqa: F401 - a fixture
from tests.functions.test_splitting_handlers import splitting, url_of  # noqa: F401 - a fixture
from tests.functions.ways import Inline, way_of

OFFER = "1.0\n" + json.dumps({"offer": json.dumps({"type": "offer", "sdp": "v=0"})})


def test_a_warm_offers_way(surroundings: Surroundings, monkeypatch: pytest.MonkeyPatch) -> None:
    """An offer that finds its proxy: the second of its environment."""
    broker.dependencies.cache_clear()
    made, reporter = broker.dependencies()
    broker.dependencies.cache_clear()
    inline = Inline()
    made = replace(made, site=replace(made.site, executor=inline))
    monkeypatch.setattr(broker, "dependencies", lambda: (made, replace(reporter, executor=inline)))
    mailbox = surroundings.sqs.create_queue(QueueName="mailbox")["QueueUrl"]
    pools = DynamoProxyPools(surroundings.dynamodb, "t", lambda: 0.5)

    def event(client_id: str) -> dict[str, Any]:
        pools.enter(
            WaitingProxy(
                poll_id=f"poll-{client_id}",
                sid=client_id,
                pool=Pool.UNRESTRICTED,
                clients=0,
                polled_at_ms=now_ms(),
                mailbox=mailbox,
            )
        )
        surroundings.send(surroundings.offers_url, OFFER, {"ClientID": client_id})
        return surroundings.event(surroundings.offers_url)

    broker.handler(event("first"), CONTEXT)
    second, requests = event("second"), []
    for client in (quick_sqs_client(), quick_dynamodb_client()):
        client.meta.events.register("before-call.*", lambda model, **_: requests.append(model.name))
    way = way_of(lambda: broker.handler(second, CONTEXT))
    assert requests[:5] == ["PutItem", "CreateQueue", "Query", "SendMessage", "PutItem"]
    assert sorted(requests[5:]) == ["DeleteItem", "SendMessage"]  # side by side
    assert len(surroundings.messages(mailbox)) == 2
    assert len(way.files) <= 12, sorted(way.files)
    assert len(way.deepest) <= 9, way.deepest


def test_a_warm_messages_way_through_the_splitter(splitting: Surroundings) -> None:  # noqa: F811 - the fixture
    """A message that no session takes: the second of its environment."""
    splitting.send(splitting.offers_url, "first", {"client": "b"})
    splitter.handler(splitting.event(splitting.offers_url), CONTEXT)
    splitting.send(splitting.offers_url, "second", {"client": "b"})
    second = splitting.event(splitting.offers_url)
    way = way_of(lambda: splitter.handler(second, CONTEXT))
    assert [message["Body"] for message in splitting.messages(url_of(splitting, "main"))] == ["first", "second"]
    assert len(way.files) <= 11, sorted(way.files)
    assert len(way.deepest) <= 7, way.deepest


def test_a_warm_messages_way_through_the_exchange(federation: Surroundings) -> None:  # noqa: F811 - the fixture
    """A message that one queue is bound for: the second of its environment."""
    links.handler({"op": "bind", "exchange": "amq.direct", "queue": "plain", "key": "a"}, CONTEXT)
    for body in ("first", "second"):
        federation.send(url_of(federation, "ingress"), body, {"exchange": "amq.direct", "routing-key": "a"})
        event = federation.event(url_of(federation, "ingress"))
        way = way_of(partial(exchange.handler, event, CONTEXT))
    assert [message["Body"] for message in federation.messages(url_of(federation, "plain"))] == ["first", "second"]
    assert len(way.files) <= 12, sorted(way.files)
    assert len(way.deepest) <= 6, way.deepest
