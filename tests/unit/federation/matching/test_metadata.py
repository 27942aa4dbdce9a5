"""The `x-qpid` attribute: what goes in comes out, and what can't be read is the sender's fault."""

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice import ulids
from sluice.errors import Malformed, SenderFault, TooLarge
from sluice.federation.matching.metadata import ATTRIBUTE, Metadata, open_attributes, seal_attributes
from sluice.message import MAX_ATTRIBUTES, MAX_MESSAGE_BYTES, Value, message_size
from sluice.ulids import derive_ulid

ULID = "01JD0000000000000000000000"
TEXT = st.text(
    st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="\ufffe\uffff"), min_size=1, max_size=20
)
ATTRIBUTES = st.dictionaries(
    st.from_regex(r"[a-z][a-z0-9_-]{0,9}(\.[a-z0-9]{1,5})?", fullmatch=True).filter(lambda name: name != ATTRIBUTE),
    st.one_of(
        st.builds(Value, st.sampled_from(["String", "String.json", "String.ä"]), TEXT),
        st.builds(Value, st.sampled_from(["Number", "Number.int"]), st.sampled_from(["0", "-1", "2.50", "1e5", "007"])),
        st.builds(Value, st.sampled_from(["Binary", "Binary.png"]), st.binary(min_size=1, max_size=20)),
    ),
    max_size=12,
)
TYPED = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    TEXT,
    st.binary(max_size=9),
)
TAGS = st.from_regex(r"[A-Za-z0-9_-]{1,32}", fullmatch=True)
MS = st.none() | st.integers(0, 1 << 53)
METADATA = st.builds(
    Metadata,
    exchange=st.none() | TEXT,
    key=st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=30),
    trace=st.lists(TAGS, max_size=8).map(tuple),
    message_id=st.none() | TAGS.map(lambda tag: f"{tag}.{ULID}"),
    published_at_ms=MS,
    stamped_at_ms=MS,
    ttl_ms=MS,
    headers=st.dictionaries(TEXT, TYPED, max_size=4),
)


@given(ATTRIBUTES, METADATA)
def test_attributes_and_metadata_come_out_as_they_went_in(attributes: dict[str, Value], metadata: Metadata) -> None:
    sealed = seal_attributes("body", attributes, metadata)
    written = sealed[ATTRIBUTE].text or ""
    assert written == json.dumps(json.loads(written), separators=(",", ":"))  # whoever wrote it
    assert len(sealed) <= MAX_ATTRIBUTES
    opened = open_attributes(sealed)
    assert opened.attributes == attributes
    assert opened.metadata == metadata
    assert {name: type(value) for name, value in metadata.headers.items()} == {
        name: type(value) for name, value in (opened.metadata or Metadata()).headers.items()
    }


@given(ATTRIBUTES, METADATA)
def test_the_attribute_is_text_that_sqs_takes(attributes: dict[str, Value], metadata: Metadata) -> None:
    text = seal_attributes("", attributes, metadata)[ATTRIBUTE].text
    assert text is not None
    assert text.isascii()
    assert text.isprintable()


def test_nine_attributes_stay_outside_and_of_ten_the_smallest_goes_inside() -> None:
    nine = {f"a{number}": Value("String", "x" * (9 - number)) for number in range(9)}
    assert seal_attributes("", nine, Metadata()).keys() == {*nine, ATTRIBUTE}
    ten = {**nine, "b": Value("Binary", b"\x00\xff")}
    sealed = seal_attributes("", ten, Metadata())
    assert sealed.keys() == {*(ten.keys() - {"a8"}), ATTRIBUTE}
    assert open_attributes(sealed).attributes == ten


def test_a_message_without_metadata_is_opened_as_it_is() -> None:
    attributes = {"a": Value("String", "x")}
    opened = open_attributes(attributes)
    assert opened.attributes == attributes
    assert opened.metadata is None


def test_null_is_missing_and_what_a_newer_site_says_besides_is_skipped() -> None:
    said = dict.fromkeys(["exchange", "trace", "id", "ttl", "headers", "overflow"]) | {"key": "k", "newer": {"a": [1]}}
    attributes = {ATTRIBUTE: Value("String", json.dumps(said)), "a": Value("String", "x")}
    opened = open_attributes(attributes)
    assert (opened.attributes, opened.metadata) == ({"a": Value("String", "x")}, Metadata(key="k"))


def test_empty_metadata_is_an_empty_object() -> None:
    assert seal_attributes("", {}, Metadata()) == {ATTRIBUTE: Value("String", "{}")}


def test_metadata_that_makes_a_message_too_large_is_refused_with_the_size() -> None:
    room = MAX_MESSAGE_BYTES - message_size("", {ATTRIBUTE: Value("String", "{}")})
    assert message_size("x" * room, seal_attributes("x" * room, {}, Metadata())) == MAX_MESSAGE_BYTES
    with pytest.raises(TooLarge) as refused:
        seal_attributes("x" * (room + 1), {}, Metadata())
    assert isinstance(refused.value, SenderFault)
    assert refused.value.size == MAX_MESSAGE_BYTES + 1


@given(st.text(max_size=40), st.integers(0, (1 << 48) - 1), st.integers(0, (1 << 48) - 1))
def test_a_ulid_is_the_same_for_the_same_message_and_sorts_by_time(sqs_id: str, one_ms: int, other_ms: int) -> None:
    one, other = derive_ulid(sqs_id, sent_at_ms=one_ms), derive_ulid(sqs_id, sent_at_ms=other_ms)
    assert re.fullmatch(ulids.ULID, one)
    assert (one < other) == (one_ms < other_ms)
    assert one == derive_ulid(sqs_id, sent_at_ms=one_ms) != derive_ulid(sqs_id + "x", sent_at_ms=one_ms)


def test_a_messages_ulid_stays_what_it_was() -> None:
    """Its time is the first ten characters, as the specification of ULIDs has it, the rest is of SQS's id."""
    assert (
        derive_ulid("5fea7756-0ea4-451a-a703-a558b933e274", sent_at_ms=1_469_918_176_385)
        == "01ARYZ6S41BQW7Y8W1KWWW9E3Y"
    )


def test_a_ttl_shrinks_and_never_below_nothing() -> None:
    metadata = Metadata(ttl_ms=1_000, stamped_at_ms=5_000)
    assert [metadata.compute_ttl_ms(now) for now in (4_000, 5_000, 5_400, 6_000, 9_000)] == [
        1_000,
        1_000,
        600,
        0,
        0,
    ]
    assert Metadata(stamped_at_ms=5_000).compute_ttl_ms(9_000) is None
    assert Metadata(ttl_ms=7).compute_ttl_ms(9_000) == 7


BAD: list[Any] = [
    [],
    "text",
    1,
    None,
    {"exchange": 1},
    {"key": True},
    {"key": "k" * 257},
    {"key": "\ud800"},
    {"trace": "A"},
    {"trace": [1]},
    {"trace": ["a b"]},
    {"trace": ["A" * 33]},
    {"trace": [""]},
    {"trace": ["A\n"]},
    {"trace": ["A"] * 65},
    {"id": "A"},
    {"id": f".{ULID}"},
    {"id": f"A.{ULID}0"},
    {"published": -1},
    {"published": 1.5},
    {"published": True},
    {"stamped": 1 << 54},
    {"ttl": "5"},
    {"headers": []},
    {"headers": {"a": []}},
    {"headers": {"a": {"base64": "?"}}},
    {"headers": {"a": {"base64": 1}}},
    {"headers": {"a": "\udfff"}},
    {"headers": {"\udfff": 1}},
    {"headers": {str(number): 1 for number in range(257)}},
    {"overflow": {"a": "x"}},
    {"overflow": {"a": ["String"]}},
    {"overflow": {"a": ["String", ""]}},
    {"overflow": {"a": ["String", "\x00"]}},
    {"overflow": {"a": ["String", "\ud800"]}},
    {"overflow": {"a": ["String", 1]}},
    {"overflow": {"a": ["Text", "x"]}},
    {"overflow": {"a": ["String.", "x"]}},
    {"overflow": {"a": [1, "x"]}},
    {"overflow": {"a": ["Number", "one"]}},
    {"overflow": {"a": ["Binary", "x"]}},
    {"overflow": {"a": ["Binary", {"base64": ""}]}},
    {"overflow": {"a..b": ["String", "x"]}},
    {"overflow": {"AWS.a": ["String", "x"]}},
    {"overflow": {"Amazon.a": ["String", "x"]}},
    {"overflow": {"a" * 257: ["String", "x"]}},
    {"overflow": {ATTRIBUTE: ["String", "x"]}},
    {"overflow": {"there": ["String", "x"]}},
    {"overflow": {str(number): ["String", "x"] for number in range(257)}},
]


@pytest.mark.parametrize("document", BAD, ids=lambda document: json.dumps(document)[:40])
def test_metadata_that_says_nonsense_is_the_senders_fault(document: object) -> None:
    attributes = {ATTRIBUTE: Value("String", json.dumps(document)), "there": Value("String", "x")}
    with pytest.raises(Malformed, match=ATTRIBUTE):
        open_attributes(attributes)


@pytest.mark.parametrize(
    "value",
    [
        Value("String", ""),
        Value("String", "{"),
        Value("String", '{"a": NaN}'),
        Value("String", '{"headers": {"a": 1e999}}'),
        Value("String", '{"ttl": ' + "9" * 5_000 + "}"),
        Value("String", "[" * 100_000),
        Value("Binary", b"{}"),
        Value("Number", "1"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_metadata_that_is_no_json_is_the_senders_fault(value: Value) -> None:
    with pytest.raises(Malformed):
        open_attributes({ATTRIBUTE: value})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)
FIELDS = st.sampled_from(["exchange", "key", "trace", "id", "published", "stamped", "ttl", "headers", "overflow"])


@given(st.dictionaries(FIELDS, JSON))
def test_whatever_an_object_holds_it_is_read_or_malformed(document: dict[str, object]) -> None:
    try:
        opened = open_attributes({ATTRIBUTE: Value("String", json.dumps(document))})
    except Malformed:
        return
    assert opened.metadata is not None
    seal_attributes("", opened.attributes, opened.metadata)
