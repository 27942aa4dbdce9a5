"""The same over moto, with the functions put together as they are deployed: nothing in between is a fake of ours."""

import itertools
import json
import time
from typing import Any

import pytest
from botocore.awsrequest import AWSResponse
from botocore.compat import HTTPHeaders
from moto.core.botocore_stubber import MockRawResponse

from functions.broker import handler as broker
from functions.client import handler as client
from functions.proxy import handler as proxy
from sluice.aws.clients import dynamodb_client, long_polling_sqs_client, quick_dynamodb_client, quick_sqs_client
from sluice.rendezvous.protocol.messages import ANSWER_QUEUE_PREFIX
from tests.functions.conftest import CONTEXT, Surroundings, clear_clients
from tests.functions.conftest import surroundings as surroundings  # noqa: PLC0414 - pytest finds it here
from tests.hostile.hostile_values import in_base64
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


SECRET = "a-part-of-the-description"
OFFERED = json.dumps({"type": "offer", "sdp": f"v=0\r\n{CANDIDATES}a=ice-pwd:{SECRET}\r\n"})
OFFER = "1.0\n" + json.dumps({"offer": OFFERED})
POLL = b'{"Sid": "192.0.2.77", "Version": "1.3", "Clients": 0, "AcceptedRelayPattern": "$"}'
ANSWER = json.dumps({"Version": "1.3", "Sid": "192.0.2.77", "Answer": OFFERED.replace('"offer"', '"answer"')}).encode()


@pytest.mark.parametrize("entry", ["broker", "client", "amp", "proxy", "answer"])
def test_whichever_call_fails_the_log_has_no_address_and_no_description(
    surroundings: Surroundings, monkeypatch: pytest.MonkeyPatch, entry: str
) -> None:
    begun_s, asked, failing = time.time(), itertools.count(), -1
    # Time goes on with each look at the clock, so that no test waits as long as a client does.
    monkeypatch.setattr("sluice.aws.rendezvous.dependencies.now_ms", lambda: int(begun_s * 1000) + 500 * next(asked))
    monkeypatch.setattr("sluice.aws.rendezvous.dependencies.time.sleep", lambda _: None)
    calls: list[str] = []

    def refuse(request: Any, event_name: str, **_: Any) -> AWSResponse | None:
        calls.append(event_name)
        if len(calls) - 1 != failing:
            return None
        # As much as an error may say: the request itself.
        text = json.dumps({"__type": "com.amazonaws.x#ValidationException", "message": repr(request.body)})
        return AWSResponse(request.url, 400, HTTPHeaders(), MockRawResponse(text))

    def serve() -> str:
        for function in (broker, client, proxy):
            function.dependencies.cache_clear()
        clear_clients()
        for made in (quick_sqs_client, long_polling_sqs_client, dynamodb_client, quick_dynamodb_client):
            made().meta.events.register_first("before-send.*", refuse)  # type: ignore[arg-type]
        calls.clear()
        with logged() as log:
            if entry == "broker":
                surroundings.send(surroundings.offers_url, OFFER, {"ClientID": f"c{failing}"})
                broker.handler(surroundings.event(surroundings.offers_url), CONTEXT)
            elif entry == "amp":
                client.handler(request("GET", f"/amp/client/0/{in_base64(OFFER.encode())}"), CONTEXT)
            elif entry == "client":
                client.handler(request("POST", "/client", OFFER.encode()), CONTEXT)
            else:
                path, body = ("/proxy", POLL) if entry == "proxy" else ("/answer", ANSWER)
                proxy.handler(request("POST", path, body), CONTEXT)
        return log.text

    serve()
    assert calls, "nothing can fail"
    for place in range(len(calls)):
        failing = place
        text = serve()
        assert addresses_in(text) == []
        assert SECRET not in text
        assert in_base64(OFFER.encode())[:200] not in text
