"""Whatever clients, volunteers and publishers send to the rendezvous: the reply that is specified, and no more."""

import json
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.errors import CallFailed
from sluice.message import Value
from tests.hostile.events import record
from tests.hostile.hostile_values import addresses, any_texts, attributes, documents, in_base64, spelled
from tests.hostile.hostile_values import bent as bent_with
from tests.hostile.hostile_values import sqs_texts as plain_texts
from tests.hostile.limits import ADDRESSES, MIB, addresses_in, logged, told, within
from tests.hostile.rendezvous_entries import (
    CLIENT,
    OFFERS,
    SID,
    Rendezvous,
    amp,
    answer,
    answered,
    counted,
    offer,
    poll,
    request,
)
from tests.many_cases import some_of

CANDIDATES = "\r\n".join(
    f"a=candidate:{number} 1 udp {number} {address} 5000 typ host" for number, address in enumerate(ADDRESSES)
)
DESCRIPTION = {"type": "offer", "sdp": f"v=0\r\no=- 1 2 IN IP4 {ADDRESSES[0]}\r\n{CANDIDATES}\r\n"}
POLL = {
    "Sid": ADDRESSES[1],
    "Version": "1.3",
    "Type": "standalone",
    "NAT": "unknown",
    "Clients": 0,
    "AcceptedRelayPattern": "$",
}
EVENT = {
    "kind": "poll",
    "id": "01J00000000000000000000000",
    "site": "S",
    "outcome": "idle",
    "at": "2026-01-01T00:00:00Z",
    "trace": None,
    "nat": "unknown",
    "country": "DE",
    "proxy_type": "badge",
    "clients": 0,
    "relay_extension": True,
    "waited_ms": 0,
    "address": "0" * 32,
}
GREATEST = MIB - 100
HTTP_MEGABYTES = 64

sqs_texts = st.one_of(plain_texts, addresses)


def bent(well: Any) -> st.SearchStrategy[Any]:
    """Also with an address where something else should be."""
    return bent_with(well, st.one_of(documents, addresses, st.lists(addresses, max_size=2)))


descriptions = st.one_of(
    bent(DESCRIPTION).map(json.dumps),
    spelled(bent(DESCRIPTION)),
    st.builds(lambda text: json.dumps({"type": "offer", "sdp": f"{CANDIDATES}\n{text}"}), any_texts),
)


def offers() -> st.SearchStrategy[str]:
    """A version, a newline, and what should be `{offer, nat, fingerprint}`."""
    fields = st.builds(lambda text: {"offer": text, "nat": "unknown", "fingerprint": ""}, descriptions)
    bodies = st.one_of(spelled(fields), spelled(fields.flatmap(bent)), spelled(documents))
    return st.one_of(
        st.builds(str.__add__, st.sampled_from(["1.0\n", "1.0\n", "1.0", "2.0\n", "", "{"]), bodies),
        sqs_texts.filter(bool),
    )


@given(offers())
def test_an_offer_gets_a_reply_or_a_proxy(body: str) -> None:
    assert told(offer, body).startswith(("reply: {", "letter: {"))


@given(attributes("ClientID"))
def test_an_offer_without_a_name_to_reply_to_is_dropped_and_any_other_answered(given_: Any) -> None:
    named = given_.get("ClientID", Value("String", ""))
    text = "" if named.text is None else named.text
    is_name = 1 <= len(text) <= 63 and all(each.isascii() and (each.isalnum() or each in "_-") for each in text)
    said = told(lambda given: offer("1.0\n{}", given), given_)
    assert said == ('reply: {"error":"no supplied offer"}' if is_name else "dropped")


@given(st.one_of(bent(POLL).map(json.dumps), spelled(bent(POLL)), spelled(documents)).map(str.encode) | st.binary())
def test_a_poll_is_held_or_a_bad_request(body: bytes) -> None:
    assert told(poll, body).startswith(('200 {"Status":', "400"))


@given(st.one_of(descriptions, any_texts), st.sampled_from([SID, ADDRESSES[2]]))
def test_an_answer_is_passed_on_or_a_bad_request(text: str, sid: str) -> None:
    said = told(answer, json.dumps({"Sid": sid, "Version": "1.3", "Answer": f"{text}"}).encode())
    assert said.startswith(('200 {"Status":"success"}, and the client has it', '200 {"Status":"client gone"}', "400"))


@given(st.one_of(offers().map(lambda body: f"0/{in_base64(body.encode(errors='replace'))}"), sqs_texts))
def test_an_amp_cache_gets_a_page_with_a_reply(path: str) -> None:
    assert json.loads(told(amp, path)).keys() in ({"error"}, {"answer"})


@given(
    st.sampled_from(["GET", "POST", "PUT", "OPTIONS", "HEAD", "", "\u20ac"]),
    st.sampled_from(["/proxy", "/answer", "/client", "/debug", "/amp/client/", "/amp/client/0/"]) | sqs_texts,
    st.binary(max_size=50),
    st.dictionaries(sqs_texts, sqs_texts, max_size=3),
)
def test_a_request_has_a_status_of_the_protocol(method: str, path: str, body: bytes, headers: dict[str, str]) -> None:
    asked = request(method, path, body, headers=headers)
    status = told(lambda each: answered(each, proxies=0), asked).split()[0]
    assert status in {"200", "400", "404", "503", "504"}


@given(st.one_of(spelled(bent(EVENT)), sqs_texts.filter(bool)))
def test_an_event_is_counted_or_not_read(body: str) -> None:
    assert counted(body).startswith(("counted: ", "not read: "))


@pytest.mark.parametrize(
    "fill", some_of([" ", "[", "{}", '{"a":', "1,", '"\\u0041"', "a=candidate:1 1 udp 1 1 1 typ host\\n"], every=3)
)
def test_an_offer_of_a_mebibyte_takes_bounded_memory(fill: str) -> None:
    filled = fill * (GREATEST // len(fill))
    for body in (f"1.0\n{filled}", f'1.0\n{{"x": [{filled}]}}', "1.0\n" + json.dumps({"offer": filled})):
        said = within(HTTP_MEGABYTES, partial(told, offer, body[:GREATEST]))
        assert said.startswith(("reply: ", "letter: "))


def test_an_offer_of_the_greatest_description_that_is_taken_reaches_a_proxy_byte_for_byte() -> None:
    sdp = "".join(chr(code) for code in range(0x20, 0x4000) if not 0x7F <= code < 0xA0)
    text = json.dumps({"type": "offer", "sdp": sdp}, ensure_ascii=False)
    site = Rendezvous()
    body = "1.0\n" + json.dumps({"offer": text}, ensure_ascii=False)
    assert site.take(OFFERS, record(body, CLIENT, queue=OFFERS)) == []
    [letter] = [json.loads(each) for bodies in site.queues.queues.values() for each in bodies]
    assert letter["offer"] == text


def test_a_hostile_offer_fails_alone() -> None:
    site = Rendezvous(proxies=2)
    well = "1.0\n" + json.dumps({"offer": json.dumps(DESCRIPTION)})
    bodies = [well, "1.0\n" + "[" * 100_000, "\u20ac" * 1_000, well]
    records = [
        record(body, {"ClientID": Value("String", f"c{place}")}, queue=OFFERS, place=place)
        for place, body in enumerate(bodies)
    ]
    with logged() as log:
        assert site.take(OFFERS, *records) == []
    assert addresses_in(log.text) == []
    assert len(site.pools.proxies) == 0  # both good ones have theirs


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
