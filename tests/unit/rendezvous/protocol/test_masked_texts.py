"""What is shown of a dead letter has no address in it, however it is spelled, and no session description."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.rendezvous.protocol.addresses import mask_addresses

SDP = "v=0\r\no=- 1 2 IN IP4 0.0.0.0\r\na=candidate:1 1 udp 1 203.0.113.7 5000 typ host\r\n"


@given(
    address=st.one_of(st.ip_addresses(v=4).map(str), st.ip_addresses(v=6).map(str)),
    before=st.sampled_from(["", "from ", '{"ip":"', "[", "(", "at 12:34:56 ", "10:00:", "ad:"]),
    after=st.sampled_from(["", " said", '"}', "]", ",", ". Then"]),
)
def test_no_address_is_left(address: str, before: str, after: str) -> None:
    assert address not in mask_addresses(f"{before}{address}{after}")


@pytest.mark.parametrize(
    "text",
    [
        "ad:2001:db8:0:0:0:0:0:1",
        "2001:db8:1:2:3:4:5:6:5000",
        "[2001:db8::1]:80",
        "203.0.113.7:80",
        "::ffff:203.0.113.7",
    ],
)
def test_not_beside_a_word_or_a_port_either(text: str) -> None:
    left = mask_addresses(text)
    assert "[address]" in left
    assert "db8" not in left
    assert "203" not in left


@pytest.mark.parametrize("wraps", [0, 1, 2, 3])
def test_of_a_session_description_there_is_its_length(wraps: int) -> None:
    text = SDP
    for _ in range(wraps):
        text = json.dumps({"offer": text})
    assert mask_addresses(text) == f"[a session description in {len(text)} characters]"


@pytest.mark.parametrize(
    "text",
    [
        "at 12:34:56, 1.2.3 of 10.000",
        "arn:aws:sqs:eu-central-1:123456789012:orders",
        "arn:aws:iam::123456789012:role/orders",
        "KeyError: 'id'",
        '{"at": "2026-11-20T10:00:00Z", "version": "1.2.3"}',
    ],
)
def test_what_is_no_address_is_shown_as_it_is(text: str) -> None:
    assert mask_addresses(text) == text


@pytest.mark.parametrize("part", ["a", "ab:", ":", "1.", "a:a:a:a:a:a:a:a:a:a "])
def test_a_mebibyte_of_what_looks_like_the_middle_of_an_address_is_read_once(part: str) -> None:
    """Tried anew at each of its characters it would take hours; the suite's own limit is minutes."""
    text = (part * 1_048_576)[:1_048_576] + " of 2001:db8::1"
    assert mask_addresses(text).endswith(" of [address]")


@pytest.mark.parametrize("most", range(12, 40))
def test_half_an_address_is_cut_off_with_the_other_half(most: int) -> None:
    text = mask_addresses("comes from 203.0.113.77 and 2001:db8::1:2:3", most=most)
    assert "203." not in text
    assert "2001" not in text
    assert len(text) <= most or text.endswith("[address]")


def test_a_description_is_only_its_length_also_where_the_cut_is_before_it() -> None:
    text = "hello " * 100 + SDP
    assert mask_addresses(text, most=20) == f"[a session description in {len(text)} characters]"
