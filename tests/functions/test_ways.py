"""A warm message passes few files and few calls: who reads a handler's way has that much to hold in mind.

What is more than a ceiling is looked at: one thought in two files, or a wrapper of a wrapper.
"""

import json
from dataclasses import replace
from typing import Any

import pytest

from functions.broker import handler as broker
from sluice.aws.clients import dynamodb_client, now_ms, sqs_client
from sluice.aws.rendezvous.stores import DynamoProxyPools
from sluice.rendezvous.protocol.matching import Pool, WaitingProxy
from tests.functions.conftest import CONTEXT, Surroundings
from tests.functions.ways import Inline, way_of

OFFER = "1.0\n" + json.dumps({"offer": json.dumps({"type": "offer", "sdp": "v=0"})})


def test_a_warm_offers_way(surroundings: Surroundings, monkeypatch: pytest.MonkeyPatch) -> None:
    """An offer that finds its proxy: the second of its environment."""
    broker.parts.cache_clear()
    parts = broker.parts()
    broker.parts.cache_clear()
    parts = replace(parts, reporter=replace(parts.reporter, executor=Inline()))
    monkeypatch.setattr(broker, "parts", lambda: parts)
    mailbox = surroundings.sqs.create_queue(QueueName="mailbox")["QueueUrl"]
    pools = DynamoProxyPools(surroundings.dynamodb, "t")

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
    for client in (sqs_client(), dynamodb_client()):
        client.meta.events.register("before-call.*", lambda model, **_: requests.append(model.name))
    way = way_of(lambda: broker.handler(second, CONTEXT))
    assert requests == ["PutItem", "CreateQueue", "Query", "TransactWriteItems", "SendMessage", "UpdateItem"]
    assert len(surroundings.messages(mailbox)) == 2
    assert len(way.files) <= 12, sorted(way.files)
    assert len(way.deepest) <= 10, way.deepest


# The exchange's way belongs here too, with 10 files and 8 calls, and the splitter's with 11 and 9.
