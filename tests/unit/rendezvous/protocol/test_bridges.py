"""Bridge lists and relay patterns."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.errors import BadBridgeList
from sluice.rendezvous.protocol.messages import RelayPattern, parse_bridges

GOOD = {"displayName": "d", "webSocketAddress": "wss://a.example/", "fingerprint": "AB" * 20}


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("{", "Expecting property name"),
        ("[]", "not a JSON object"),
        (json.dumps(GOOD | {"colour": "red"}), "unknown field 'colour'"),
        (json.dumps({"displayName": "d", "fingerprint": "AB" * 20}), "missing field 'webSocketAddress'"),
        (json.dumps(GOOD | {"displayName": 1}), "field 'displayName' is not a string"),
        (json.dumps(GOOD | {"fingerprint": "xy"}), "is not hex"),
        (json.dumps(GOOD | {"fingerprint": "ab"}), "fingerprint has 1 bytes, not 20 or 32"),
        (json.dumps(GOOD | {"webSocketAddress": "https://a"}), "is not a ws:// or wss:// address"),
        (json.dumps(GOOD), "is listed twice"),
    ],
)
def test_one_bad_line_rejects_the_list_and_is_named(line: str, cause: str) -> None:
    with pytest.raises(BadBridgeList, match="bridge list, line 3: ") as bad:
        parse_bridges(json.dumps(GOOD) + "\n\n" + line)
    assert cause in bad.value.cause


def test_a_list_without_bridges_is_rejected() -> None:
    with pytest.raises(BadBridgeList):
        parse_bridges("\n \n")


@pytest.mark.parametrize(
    ("proxy", "broker", "covers"),
    [
        ("snowflake.torproject.net$", "snowflake.torproject.net$", True),
        ("torproject.net", "snowflake.torproject.net$", True),
        ("", "snowflake.torproject.net$", True),
        ("$", "^snowflake.torproject.net$", True),
        ("snowflake.torproject.net$", "torproject.net$", False),
        ("^snowflake.torproject.net$", "^snowflake.torproject.net$", True),
        ("^snowflake.torproject.net$", "snowflake.torproject.net$", False),
        ("^a.net", "^b.net", False),
    ],
)
def test_a_proxys_pattern_must_cover_the_brokers(proxy: str, broker: str, covers: bool) -> None:
    assert RelayPattern.parse(proxy).covers(RelayPattern.parse(broker)) is covers


HOSTS = st.text("ab.", max_size=4)


@given(st.tuples(HOSTS, st.booleans()), st.tuples(HOSTS, st.booleans()), HOSTS)
def test_a_covering_pattern_matches_whatever_the_covered_one_matches(
    ours: tuple[str, bool], theirs: tuple[str, bool], host: str
) -> None:
    wide, narrow = RelayPattern(*ours), RelayPattern(*theirs)
    if wide.covers(narrow) and matches(narrow, host):
        assert matches(wide, host)


def matches(pattern: RelayPattern, host: str) -> bool:
    return host == pattern.suffix if pattern.exact else host.endswith(pattern.suffix)
