"""What a proxy posts, and what it gets back."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.errors import Malformed
from sluice.rendezvous.protocol.ends import End
from sluice.rendezvous.protocol.matching import Nat
from sluice.rendezvous.protocol.messages import (
    RelayPattern,
    parse_answer,
    parse_poll,
    write_poll_reply,
)

POLL = {
    "Sid": "sid",
    "Version": "1.3",
    "Type": "standalone",
    "NAT": "unrestricted",
    "Clients": 8,
    "AcceptedRelayPattern": "^snowflake$",
}
ANSWER_TEXT = json.dumps({"type": "answer", "sdp": "v=0\r\na=candidate:1\r\n"})
ANSWER = {"Version": "1.3", "Sid": "sid", "Answer": ANSWER_TEXT}


def body(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields).encode()


def test_a_poll_says_who_and_what() -> None:
    poll = parse_poll(body(POLL))
    assert (poll.sid, poll.type, poll.nat, poll.clients) == ("sid", "standalone", Nat.UNRESTRICTED, 8)
    assert poll.relay_pattern == RelayPattern("snowflake", exact=True)


def test_the_oldest_poll_has_a_sid_and_a_version_only() -> None:
    poll = parse_poll(body({"Sid": "s", "Version": "1.0"}))
    assert (poll.type, poll.nat, poll.clients, poll.relay_pattern) == ("unknown", Nat.UNKNOWN, 0, None)


@pytest.mark.parametrize(("clients", "counted"), [(-1, 0), (0, 0), (3, 3), (2**63 - 1, 2**63 - 1), (-(2**63), 0)])
def test_clients_are_of_64_bits_and_negative_ones_are_none(clients: int, counted: int) -> None:
    assert parse_poll(body(POLL | {"Clients": clients})).clients == counted


@pytest.mark.parametrize("kind", ["standalone", "webext", "badge", "iptproxy", "bloco"])
def test_known_types_keep_their_name(kind: str) -> None:
    assert parse_poll(body(POLL | {"Type": kind})).type == kind


@pytest.mark.parametrize(
    "poll",
    [
        b"",
        b"{",
        b"[]",
        b"\xff\xfe",
        body(POLL | {"Version": "2.0"}),
        body(POLL | {"Version": ""}),
        body(POLL | {"Version": 1.3}),
        body(POLL | {"Sid": ""}),
        body({"Version": "1.3"}),
        body(POLL | {"NAT": 1}),
        body(POLL | {"Clients": "8"}),
        body(POLL | {"Clients": True}),
        body(POLL | {"Clients": 2**63}),
        body(POLL | {"Clients": -(2**63) - 1}),
        body(POLL | {"Clients": 8.0}),
        body(POLL).replace(b": 8,", b": 1e1,"),
        body(POLL).replace(b": 8,", b": 08,"),
        b"\xef\xbb\xbf" + body(POLL),
        body(POLL | {"Sid": "s" * 100_000}),
    ],
)
def test_a_bad_poll_is_malformed(poll: bytes) -> None:
    with pytest.raises(Malformed):
        parse_poll(poll)


def test_a_null_pattern_is_no_pattern_whatever_an_earlier_one_says() -> None:
    posted = b'{"Sid": "s", "Version": "1.3", "AcceptedRelayPattern": "$", "acceptedrelaypattern": null}'
    assert parse_poll(posted).relay_pattern is None


@given(st.binary(max_size=200))
def test_any_bytes_are_a_poll_or_malformed(data: bytes) -> None:
    for parse in (parse_poll, parse_answer):
        for posted in (data, data + b"a=candidate"):
            try:
                parse(posted)
            except Malformed:
                continue


def test_an_answer_is_kept_verbatim() -> None:
    assert parse_answer(body(ANSWER)).answer == ANSWER_TEXT


@pytest.mark.parametrize(
    "answer",
    [
        ANSWER | {"Answer": json.dumps({"type": "answer", "sdp": "v=0"})},
        ANSWER | {"Answer": "a=candidate"},
        ANSWER | {"Answer": ""},
        ANSWER | {"Sid": ""},
        ANSWER | {"Version": "2.0"},
        ANSWER | {"Answer": json.dumps({"type": "hi", "sdp": "a=candidate"})},
    ],
)
def test_a_bad_answer_is_malformed(answer: dict[str, Any]) -> None:
    with pytest.raises(Malformed):
        parse_answer(body(answer))


def test_a_reply_has_all_keys_in_the_protocols_order() -> None:
    reply = write_poll_reply(End.POLL_MATCHED, next_poll_ms=20_001, offer="o", nat="unknown", relay="wss://r/")
    assert reply == ('{"Status":"client match","Offer":"o","NAT":"unknown","NextPoll":20001,"RelayURL":"wss://r/"}')
    assert json.loads(write_poll_reply(End.POLL_IDLE, next_poll_ms=20_001)) == {
        "Status": "no match", "Offer": "", "NAT": "", "NextPoll": 20001, "RelayURL": "",
    }  # fmt: skip


def test_a_pattern_covers_what_ends_with_it() -> None:
    allowed = RelayPattern.parse("snowflake.torproject.net$")
    assert RelayPattern.parse("torproject.net$").covers(allowed)
