"""Faults of the rendezvous that hostile input shows: each is expected to fail until it is mended."""

import json
from typing import Any

import pytest

from sluice.aws.rendezvous.stores import DynamoOfferStore, DynamoProxyPools
from sluice.errors import CallFailed
from sluice.rendezvous.protocol.matching import HOLD_MS, Pool
from tests.hostile.events import record
from tests.hostile.limits import ADDRESSES, addresses_in, logged
from tests.hostile.rendezvous_entries import CLIENT, OFFERS, Rendezvous, request
from tests.hostile.splitting_entries import Table

DESCRIPTION = json.dumps({"type": "offer", "sdp": f"a=candidate:1 1 udp 1 {ADDRESSES[0]} 1 typ host"})
OFFER = "1.0\n" + json.dumps({"offer": DESCRIPTION})
LEFTOVERS = 50


@pytest.mark.xfail(strict=True, reason="fifty leftovers in a pool deny every client")
def test_a_proxy_that_waits_is_found_behind_any_number_of_dead_ones() -> None:
    """They polled a minute ago, and whoever held their polls died: nobody takes them out but TTL, hours later."""
    site = Rendezvous(proxies=0)
    for number in range(LEFTOVERS):
        site.enter(f"dead{number:02}", sid=f"dead{number}", polled_at_ms=site.clock.ms - 6 * HOLD_MS)
    site.enter("alive", sid="alive", clients=1)
    assert site.take(OFFERS, record(OFFER, CLIENT, queue=OFFERS)) == []
    [letter] = [json.loads(body) for bodies in site.queues.queues.values() for body in bodies]
    assert letter.get("for") == "alive", letter


def test_the_log_of_a_request_that_failed_has_nothing_of_the_offer() -> None:
    site = Rendezvous()

    def refuse(*_: Any, **__: Any) -> Any:
        raise CallFailed("PutItem", "ThrottlingException", "by script")

    site.offers.record = refuse  # type: ignore[method-assign]  # a table that is throttled
    path = "MS4wCnsib2ZmZXIiOiAie1widHlwZVwiOiBcIm9mZmVyXCIsIFwic2RwXCI6IFwiMTkyLjAuMi43N1wifSJ9"
    with logged() as log:
        assert site.ask(request("GET", f"/amp/client/0/{path}"))["statusCode"] == 503
    assert addresses_in(log.text) == []
    assert path not in log.text  # which is the offer in base64
    assert "RequestFailed" in log.text
    assert "CallFailed PutItem ThrottlingException" in log.text
    assert "'/amp/client/'" in log.text


@pytest.mark.xfail(strict=True, reason="one entry of a pool that can't be read fails every offer")
@pytest.mark.parametrize(
    "profile",
    ["{}", "no JSON", '{"nat": "symmetric"}', '{"nat": "unknown", "of_a_newer_version": 1}'],
)
def test_an_entry_of_a_pool_that_cannot_be_read_is_passed_over(profile: str) -> None:
    def item(poll_id: str, text: str) -> dict[str, Any]:
        return {
            "sk": {"S": f"000000#1700000000000#{poll_id}"},
            "sid": {"S": "s"},
            "mailbox": {"S": "m"},
            "profile": {"S": text},
        }

    pool = [item("odd", profile), item("well", '{"nat": "unknown"}')]
    client: Any = Table({f"waiting#{Pool.UNRESTRICTED}": pool})
    client.query = lambda **query: client.paginate(**query)[0]
    waiting = DynamoProxyPools(client, "t").waiting(Pool.UNRESTRICTED, limit=50)
    assert [proxy.poll_id for proxy in waiting] == ["well"]


@pytest.mark.xfail(strict=True, reason="one offer in the table that can't be read keeps all others from timing out")
@pytest.mark.parametrize("odd", [{"state": {"S": "pondered"}}, {"sk": {"S": "no time"}}, {"method": {"S": "pigeon"}}])
def test_an_offer_in_the_table_that_cannot_be_read_is_passed_over(odd: dict[str, Any]) -> None:
    well = {"sk": {"S": "1700000000000#c"}, "method": {"S": "sqs"}, "state": {"S": "matched"}}
    client: Any = Table({"offers#0": [well | odd, well]})
    found = DynamoOfferStore(client, "t").matched(since_ms=0, until_ms=2**41)
    assert [offer.client_id for offer in found] == ["c"]
