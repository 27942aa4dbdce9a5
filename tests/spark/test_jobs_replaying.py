"""What a replayed message carries: as SQS takes it, and known again."""

import json
from typing import Any

import pytest
from sluice_jobs.replayed_rows import ID_ATTRIBUTE, ReplayedMessage, build_replayed_message

from sluice.federation.matching.metadata import Metadata, OpenedAttributes, open_attributes
from sluice.message import Value

ORIGIN = "SITE1.01ARZ3NDEKTSV4RRFFQ69G5FAV"


def text(value: str) -> dict[str, Any]:
    return {"type": "String", "string": value, "binary": None}


def row(**more: Any) -> dict[str, Any]:
    given = {"message_id": "m-1", "body": "b", "message_group_id": None, "routing_key": "a.b"}
    return {**given, "attributes": {}, "origin_id": ORIGIN, **more}


def metadata(attributes: Any) -> Any:
    return json.loads(attributes["x-qpid"]["string"])


def opened(made: ReplayedMessage) -> OpenedAttributes:
    """As a site's exchange reads it."""
    return open_attributes(
        {
            name: Value(each["type"], each["string"] if each["binary"] is None else each["binary"])
            for name, each in made.attributes.items()
        }
    )


def test_what_belongs_to_the_message_is_kept_and_what_to_its_way_is_not() -> None:
    sealed = {"exchange": "old", "key": "a.b", "trace": ["SITE1"], "id": ORIGIN, "published": 1, "stamped": 1, "ttl": 5}
    sealed |= {"headers": {"h": {"base64": "AA=="}}, "overflow": {"o": ["String", "v"]}}
    made = build_replayed_message(row(attributes={"x-qpid": text(json.dumps(sealed)), "c": text("red")}), "new")
    assert metadata(made.attributes) == {"exchange": "new", "key": "a.b", "headers": sealed["headers"], "id": ORIGIN}
    assert made.attributes["c"] == text("red")
    assert made.attributes[ID_ATTRIBUTE] == text(ORIGIN)
    assert opened(made) == OpenedAttributes(
        attributes={"c": Value("String", "red"), "o": Value("String", "v"), ID_ATTRIBUTE: Value("String", ORIGIN)},
        metadata=Metadata(exchange="new", key="a.b", message_id=ORIGIN, headers={"h": b"\0"}),
    )


def test_a_message_that_no_exchange_has_seen_is_known_by_sqss_id() -> None:
    made = build_replayed_message(row(origin_id=None, routing_key=None), "new")
    assert made.attributes[ID_ATTRIBUTE] == text("m-1")
    assert metadata(made.attributes) == {"exchange": "new", "key": ""}


@pytest.mark.parametrize("count", [8, 9, 10])
def test_ten_attributes_are_all_that_sqs_takes_and_none_is_lost(count: int) -> None:
    binary = {"type": "Binary", "string": None, "binary": b"\0"}
    given = {f"a{number}": binary if number == 0 else text(str(number)) for number in range(count)}
    made = build_replayed_message(row(attributes=given), "new")
    inside = metadata(made.attributes).get("overflow", {})
    assert len(made.attributes) <= 10
    assert {*made.attributes, *inside} == {*given, ID_ATTRIBUTE, "x-qpid"}
    if count == 10:
        assert inside == {"a0": ["Binary", {"base64": "AA=="}], "a1": ["String", "1"]}
    assert opened(made).attributes == {
        **{f"a{number}": Value("String", str(number)) for number in range(1, count)},
        "a0": Value("Binary", b"\0"),
        ID_ATTRIBUTE: Value("String", ORIGIN),
    }


def test_a_replay_again_has_the_same_deduplication_id_and_another_exchange_another() -> None:
    once, again, elsewhere = (
        build_replayed_message(row(), "new"),
        build_replayed_message(row(message_id="m-2"), "new"),
        build_replayed_message(row(), "other"),
    )
    assert once.deduplication_id == again.deduplication_id != elsewhere.deduplication_id


def test_a_group_is_kept_and_else_one_of_exchange_and_key() -> None:
    assert build_replayed_message(row(message_group_id="g"), "new").group_id == "g"
    one, other = build_replayed_message(row(), "new"), build_replayed_message(row(routing_key="c"), "new")
    assert one.group_id != other.group_id


def test_metadata_that_cant_be_read_are_replaced() -> None:
    made = build_replayed_message(row(attributes={"x-qpid": text("{")}, origin_id=None), "new")
    assert metadata(made.attributes) == {"exchange": "new", "key": "a.b"}


def test_a_sites_exchange_can_read_it() -> None:
    made = opened(build_replayed_message(row(attributes={f"a{number}": text("v") for number in range(10)}), "new"))
    assert made.metadata == Metadata(exchange="new", key="a.b")
    assert made.attributes[ID_ATTRIBUTE].content == ORIGIN
    assert len(made.attributes) == 11
