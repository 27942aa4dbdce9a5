"""What a client posts, row by row of the protocol's table."""

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.errors import OfferRefused
from sluice.rendezvous.protocol.matching import Nat
from sluice.rendezvous.protocol.messages import (
    DEFAULT_FINGERPRINT,
    Bridge,
    Offer,
    decode_utf8,
    index_by_fingerprint,
    is_client_id,
    parse_bridges,
    parse_offer,
    read_object,
    write_answer_reply,
    write_error_reply,
)

DESCRIPTION = json.dumps({"type": "offer", "sdp": "v=0\r\n"})
SECOND = "ab" * 32
MALFORMED = "malformed session description: "
BRIDGES = index_by_fingerprint(
    parse_bridges(
        "\n".join(
            json.dumps({"displayName": name, "webSocketAddress": f"wss://{name}.example/", "fingerprint": fingerprint})
            for name, fingerprint in (("default", DEFAULT_FINGERPRINT), ("second", SECOND))
        )
    )
)


def parse(body: str) -> Offer:
    return parse_offer(body, bridges=BRIDGES)


def offer(**fields: Any) -> str:
    return "1.0\n" + json.dumps({"offer": DESCRIPTION} | fields)


def refusal(body: str) -> str:
    with pytest.raises(OfferRefused) as refused:
        parse(body)
    return refused.value.reply


def test_an_offer_with_nothing_else_is_of_unknown_nat_and_for_the_default_bridge() -> None:
    parsed = parse(offer())
    assert (parsed.offer, parsed.nat) == (DESCRIPTION, Nat.UNKNOWN)
    assert parsed.bridge.display_name == "default"


def test_an_empty_nat_and_fingerprint_are_as_good_as_none() -> None:
    parsed = parse(offer(nat="", fingerprint=""))
    assert (parsed.nat, parsed.bridge.display_name) == (Nat.UNKNOWN, "default")


@pytest.mark.parametrize("nat", list(Nat))
def test_every_nat_is_read(nat: Nat) -> None:
    assert parse(offer(nat=nat)).nat is nat


def test_a_fingerprint_of_32_bytes_finds_its_bridge_whatever_its_case() -> None:
    assert parse(offer(fingerprint=SECOND.upper())).bridge.display_name == "second"


def test_keys_match_without_regard_to_case_and_unknown_ones_are_ignored() -> None:
    parsed = parse("1.0\n  " + json.dumps({"OFFER": DESCRIPTION, "Nat": "restricted", "colour": [1]}))
    assert (parsed.offer, parsed.nat) == (DESCRIPTION, Nat.RESTRICTED)


def test_null_is_an_absent_field() -> None:
    assert parse(offer(nat=None, fingerprint=None)).nat is Nat.UNKNOWN


def test_null_leaves_what_an_earlier_key_said() -> None:
    parsed = parse(f'1.0\n{{"offer": {json.dumps(DESCRIPTION)}, "OFFER": null, "NAT": "x", "nat": "restricted"}}')
    assert (parsed.offer, parsed.nat) == (DESCRIPTION, Nat.RESTRICTED)


def test_a_wrong_type_is_refused_also_where_a_later_equal_key_is_right() -> None:
    assert refusal(f'1.0\n{{"offer": 5, "offer": {json.dumps(DESCRIPTION)}}}').endswith("into field offer")


def test_keys_fold_by_characters_as_in_go() -> None:
    key, long_s = "\ufb01ngerprint", '{"type": "offer", "\u017fdp": ""}'
    assert parse(offer(**{key: "x"})).bridge.display_name == "default"  # no key of ours
    assert refusal(offer(offer=long_s)) == f"{MALFORMED}cannot deserialize SessionDescription without sdp field"
    assert read_object('{"\u017fID": "s"}', {"Sid": str}) == {"Sid": "s"}


@pytest.mark.parametrize(
    ("body", "reply"),
    [
        ("", "unsupported message version"),
        ("1.0", "unsupported message version"),
        ("1.1\n{}", "unsupported message version"),
        (" 1.0\n{}", "unsupported message version"),
        ("1.0\r\n{}", "unsupported message version"),
        ("1.0\n{}", "no supplied offer"),
        ("1.0\nnull", "no supplied offer"),
        (offer(offer=""), "no supplied offer"),
        (offer(offer="hello"), f"{MALFORMED}Expecting value: line 1 column 1 (char 0)"),
        (offer(offer="[]"), f"{MALFORMED}cannot read a JSON array as an object"),
        (offer(offer='{"sdp": "v=0"}'), f"{MALFORMED}cannot deserialize SessionDescription without type field"),
        (offer(offer='{"type": "hi"}'), f"{MALFORMED}cannot deserialize SessionDescription without sdp field"),
        (offer(offer='{"type": 1, "sdp": 1}'), f"{MALFORMED}invalid SDP type"),
        (offer(offer='{"type": "hi", "sdp": 1}'), f"{MALFORMED}invalid SDP"),
        (offer(offer='{"type": "hi", "sdp": ""}'), f"{MALFORMED}Unknown SDP type"),
        (offer(fingerprint="xyz"), "cannot decode fingerprint"),
        (offer(fingerprint="ab" * 19), "cannot decode fingerprint"),
        (offer(fingerprint=" ".join(["ab"] * 20)), "cannot decode fingerprint"),
        (offer(fingerprint="cd" * 20), "bridge with requested fingerprint is unknown to the broker"),
    ],
)
def test_each_fault_has_its_reply(body: str, reply: str) -> None:
    assert refusal(body) == reply


@pytest.mark.parametrize("body", ["1.0\n{", "1.0\n", "1.0\n{} {}", "1.0\n[]", "1.0\nNaN", '1.0\n{"nat": NaN}'])
def test_what_is_no_json_object_gets_the_decoders_words(body: str) -> None:
    assert refusal(body) not in {"no supplied offer", "unsupported message version", ""}


def test_a_field_of_another_type_is_named() -> None:
    assert refusal(offer(nat=5)) == "cannot read a JSON number into field nat"
    assert refusal(offer(offer={})) == "cannot read a JSON object into field offer"


def test_faults_are_found_in_the_protocols_order() -> None:
    assert refusal(offer(offer="", fingerprint="x", nat="x")) == "no supplied offer"
    assert refusal(offer(offer="x", fingerprint="x", nat="x")).startswith("malformed session description")
    assert refusal(offer(fingerprint="x", nat="x")) == "cannot decode fingerprint"
    assert refusal(offer(fingerprint="cd" * 20, nat="x")).startswith("bridge with requested fingerprint")


def test_json_nested_beyond_reason_is_refused() -> None:
    assert refusal("1.0\n" + "[" * 100_000) == "exceeded max depth"


def test_an_offer_larger_than_over_http_is_refused() -> None:
    description = json.dumps({"type": "offer", "sdp": "x" * 100_000})
    assert refusal(offer(offer=description)) == f"{MALFORMED}larger than 100000 bytes"


def test_lone_surrogates_are_replaced_as_they_cannot_be_sent() -> None:
    body = '1.0\n{"offer": "{\\"type\\": \\"offer\\", \\"sdp\\": \\"\\ud800\\"}"}'
    parse(body).offer.encode()


@given(st.text())
def test_whatever_is_posted_is_parsed_or_refused(text: str) -> None:
    for body in (text, "1.0\n" + text, offer(offer=text), offer(nat=text), offer(fingerprint=text)):
        try:
            parse(body)
        except OfferRefused as refused:
            write_error_reply(refused.reply).encode()


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_whatever_json_a_field_holds_is_parsed_or_refused(value: object) -> None:
    for field in ("offer", "nat", "fingerprint"):
        with contextlib.suppress(OfferRefused):
            parse(offer(**{field: value}))


@pytest.mark.parametrize(
    ("client_id", "valid"),
    [
        ("0123456789abcdef", True),
        ("A-_z", True),
        ("x" * 63, True),
        ("", False),
        ("x" * 64, False),
        ("a/b", False),
        ("é", False),
        ("a\n", False),
    ],
)
def test_a_client_id_goes_into_a_queues_name(client_id: str, valid: bool) -> None:
    assert is_client_id(client_id) is valid


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("why", "why"),
        ('{"type":"answer"}', r"{\"type\":\"answer\"}"),
        ("<a&b>", r"\u003ca\u0026b\u003e"),
        ("\u2028\u2029", r"\u2028\u2029"),
        ("\r\n\t\b\f\0\x1f\x7f", "\\r\\n\\t\\b\\f\\u0000\\u001f\x7f"),
        ("\\/", r"\\/"),
        ("é€\U0001f469", "é€\U0001f469"),
        ("\ud800", "\ufffd"),
        ("\ufffe\uffff\ufffd", "\\ufffe\\uffff\ufffd"),  # the first two as SQS takes them
    ],
)
def test_replies_are_written_as_go_writes_them(text: str, written: str) -> None:
    assert write_answer_reply(text) == f'{{"answer":"{written}"}}'
    assert write_error_reply(text) == f'{{"error":"{written}"}}'


@given(st.text())
def test_whatever_is_replied_can_be_read_again(text: str) -> None:
    assert json.loads(write_error_reply(text)) == {"error": text}


@pytest.mark.parametrize(
    ("posted", "read"),
    [
        (b"\xff", "\ufffd"),
        (b"\xe2\x82", "\ufffd\ufffd"),  # Python's own replacement would be one
        (b"\xed\xa0\x80", "\ufffd\ufffd\ufffd"),
        (b"\xc0\x80x", "\ufffd\ufffdx"),
        ("é".encode(), "é"),
    ],
)
def test_each_byte_that_is_no_utf_8_is_replaced(posted: bytes, read: str) -> None:
    assert decode_utf8(posted) == read


def test_a_bridge_is_what_its_line_says() -> None:
    assert BRIDGES[bytes.fromhex(SECOND)] == Bridge(
        display_name="second", websocket_address="wss://second.example/", fingerprint=bytes.fromhex(SECOND)
    )
