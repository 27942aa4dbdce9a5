"""What a site has stored of its bindings, and what messages in queues carry, as files: read, and written the same.

A test that fails here says that a format has changed. Bindings have a version, which goes up then, and the file of the
old one stays. `x-qpid` has none: others write it too, so what is written only grows, and a message may wait for weeks.
"""

import zlib
from pathlib import Path

import pytest

from sluice.codec import decode, encode
from sluice.errors import BadSnapshot
from sluice.federation.matching.bindings import (
    CHANGE,
    Bindings,
    BindingsChange,
    Destination,
    SiteBindings,
    apply_changes,
    build_replica,
    encode_page,
)
from sluice.federation.matching.exchanges import STANDARD_EXCHANGES, Exchange, ExchangeType
from sluice.federation.matching.metadata import ATTRIBUTE, Crossing, Metadata, open_attributes, seal_attributes
from sluice.federation.matching.typed_values import Base64
from sluice.message import Attributes, Value

STORED = Path(__file__).parents[2] / "stored" / "federation"

BINDINGS = Bindings(
    version=7,
    exchanges=(*STANDARD_EXCHANGES, Exchange(name="events", type=ExchangeType.TOPIC, alternate="amq.fanout")),
    queues=(
        Destination(queue="orders", url="https://sqs.us-east-1.amazonaws.com/000000000001/orders", feeds_route=True),
        Destination(
            queue="bridge.fifo",
            url="https://sqs.us-east-1.amazonaws.com/000000000001/bridge.fifo",
            crossing=Crossing(peer="WEST", tag="EAST", excludes=frozenset({"SOUTH", "NORTH"}), max_hops=3),
        ),
    ),
    bound={
        "events": {"bridge.fifo": {"a.*.#": {}, "é": {}}, "orders": {"": {}}},
        "amq.match": {
            "orders": {
                "typed": {
                    "x-match": "any",
                    "integer": 2,
                    "large": 123456789012345678901234567890,
                    "float": 2.0,
                    "tiny": 1e-300,
                    "true": True,
                    "text": "2",
                    "bytes": Base64(base64=b"\x00\xff"),
                    "void": None,
                }
            }
        },
    },
)
PLAIN = {"a": Value("String", "x")}
MANY = {f"a{number}": Value("Number", str(10**12 + number)) for number in range(11)}
DYNAMIC = Destination(
    queue="dynamic.fifo",
    url="https://sqs.us-east-1.amazonaws.com/000000000001/dynamic.fifo",
    crossing=Crossing(peer="WEST", tag="EAST", origins=frozenset({"WEST", "FAR"})),
)
MESSAGES: dict[str, tuple[Attributes, Metadata]] = {
    "stamped": (
        PLAIN,
        Metadata(
            exchange="amq.topic",
            key="eu.orders.é",
            trace=("WEST", "EAST"),
            message_id="WEST.01JD0000000000000000000000",
            published_at_ms=1_700_000_000_001,
            stamped_at_ms=1_700_000_000_002,
            ttl_ms=60_000,
        ),
    ),
    "headers": (
        {},
        Metadata(
            exchange="amq.match",
            key="",
            headers={"true": True, "void": None, "empty": "", "bytes": b"", "large": 10**40, "float": 1e300},
        ),
    ),
    "addressed": (PLAIN, Metadata(key="k", to=frozenset({"WEST", "FAR"}), turns=2)),
    "overflow": ({**MANY, "a0": Value("Binary.png", b"\x00"), "a1": Value("String.json", "é")}, Metadata(key="k")),
}


CHANGE_OF_ALL = BindingsChange(
    exchanges=BINDINGS.exchanges[-1:],
    queues=BINDINGS.queues,
    unbound={"amq.direct": {"gone": {"é": {"n": 1}}}},
    bound=BINDINGS.bound,
    forgotten=("gone",),
    gone_exchanges=("old",),
)


def file(name: str) -> str:
    return (STORED / f"{name}.json").read_text(encoding="utf-8").removesuffix("\n")


def test_bindings_are_read_and_written_as_they_were() -> None:
    # Compressed bytes are the compressor's; what they say is the format.
    read = build_replica(zlib.compress(file("bindings").encode()), SiteBindings)
    # To Python 2 and 2.0 are equal, in words they aren't.
    assert sorted(map(repr, read)) == sorted(map(repr, build_replica(encode_page(BINDINGS), SiteBindings)))
    assert (read.snapshot(), encode_page(read.snapshot())) == (BINDINGS, encode_page(BINDINGS))
    assert zlib.decompress(encode_page(BINDINGS)).decode() == file("bindings")


def test_a_change_of_bindings_is_read_and_written_as_it_was() -> None:
    read = CHANGE.unpack(zlib.compress(file("bindings_change").encode()))
    assert (read, encode(read)) == (CHANGE_OF_ALL, encode(CHANGE.unpack(CHANGE.pack(CHANGE_OF_ALL))))
    assert zlib.decompress(CHANGE.pack(CHANGE_OF_ALL)).decode() == file("bindings_change")


def test_what_a_dynamic_bridge_leads_to_is_read_and_written_as_it_was() -> None:
    assert decode(file("bindings_dynamic"), Destination, of="a queue") == DYNAMIC
    assert encode(DYNAMIC).decode() == file("bindings_dynamic")


def test_another_version_of_a_change_stops_the_reader_and_names_both() -> None:
    later = file("bindings_change").replace('"version":1', '"version":2', 1)
    with pytest.raises(BadSnapshot, match="bindings change of version 2: this program reads bindings change of 1"):
        apply_changes(build_replica(None, SiteBindings), [zlib.compress(later.encode())])


def test_another_version_of_bindings_stops_the_reader_and_names_both() -> None:
    later = file("bindings").replace('"version":1', '"version":2', 1)
    with pytest.raises(BadSnapshot, match="bindings of version 2: this program reads bindings of 1"):
        build_replica(zlib.compress(later.encode()), SiteBindings)


@pytest.mark.parametrize("name", MESSAGES)
def test_a_message_that_waits_is_read_and_written_as_it_was(name: str) -> None:
    attributes, metadata = MESSAGES[name]
    sealed = seal_attributes("body", attributes, metadata)
    assert sealed[ATTRIBUTE] == Value("String", file(f"x_qpid_{name}"))
    opened = open_attributes({**sealed, ATTRIBUTE: Value("String", file(f"x_qpid_{name}"))})
    assert (opened.attributes, opened.metadata) == (attributes, metadata)


def test_a_message_of_another_hand_is_read_as_it_was() -> None:
    """With blanks and escapes, null for what is missing, and fields of a newer site."""
    opened = open_attributes({**PLAIN, ATTRIBUTE: Value("String", file("x_qpid_foreign"))})
    assert opened.attributes == {**PLAIN, "b": Value("Number.int", " 7 ")}
    assert opened.metadata == Metadata(
        exchange="amq.topic", key="é/\U0001f600", trace=("WEST",), headers={"n": 1, "f": 1.0}
    )
