"""The same over moto, with the functions put together as they are deployed: nothing in between is a fake of ours."""

import json

import pytest

from functions.broker import handler as broker
from functions.client import handler as client
from functions.proxy import handler as proxy
from sluice.rendezvous.protocol.messages import ANSWER_QUEUE_PREFIX
from tests.functions.conftest import CONTEXT, Surroundings
from tests.functions.conftest import surroundings as surroundings  # noqa: PLC0414 - pytest finds it here
from tests.hostile.limits import ADDRESSES, addresses_in, logged
from tests.hostile.rendezvous_entries import request

CANDIDATES = "".join(f"a=candidate:1 1 udp 1 {address} 1 typ host\n" for address in ADDRESSES)
DESCRIPTION = json.dumps({"type": "offer", "sdp": CANDIDATES})
HOSTILE = ["1.0\n" + "[" * 10_000, "\u20ac" * 1_000, '1.0\n{"offer": "\\ud800"}', '1.0\n{"nat": 1e999999}']


@pytest.fixture(autouse=True)
def _forgotten() -> None:
    for function in (broker, client, proxy):
        function.dependencies.cache_clear()


def test_every_client_of_a_batch_with_hostile_offers_has_a_reply(surroundings: Surroundings) -> None:
    bodies = [*HOSTILE, "1.0\n" + json.dumps({"offer": DESCRIPTION})]
    for place, body in enumerate(bodies):
        surroundings.send(surroundings.offers_url, body, {"ClientID": f"c{place}"})
    event = surroundings.event(surroundings.offers_url)
    [waits] = [record["messageId"] for record in event["Records"] if record["body"] == bodies[-1]]
    with logged() as log:
        assert broker.handler(event, CONTEXT) == {"batchItemFailures": [{"itemIdentifier": waits}]}
    assert addresses_in(log.text) == []
    base = surroundings.offers_url.rpartition("/")[0]
    for place in range(len(HOSTILE)):  # the last one waits for a proxy
        [reply] = surroundings.messages(f"{base}/{ANSWER_QUEUE_PREFIX}c{place}")
        assert json.loads(reply["Body"]).keys() == {"error"}
    assert surroundings.messages(surroundings.dead_letters_url) == []


def test_hostile_requests_have_their_status_and_leave_no_address(surroundings: Surroundings) -> None:
    statuses = []
    with logged() as log:
        for function, path, body in (
            (proxy, "/proxy", b"[" * 10_000),
            (proxy, "/proxy", b'{"Sid": "192.0.2.77", "Version": "2", "NAT": "203.0.113.77"}'),
            (proxy, "/answer", b"a=candidate " + ADDRESSES[3].encode()),
            (client, "/client", DESCRIPTION.encode()),
            (client, "/client", b"1.0\n" + DESCRIPTION.encode()),
        ):
            statuses.append(function.handler(request("POST", path, body), CONTEXT)["statusCode"])
    assert statuses == [400, 400, 400, 503, 200]
    assert addresses_in(log.text) == []
