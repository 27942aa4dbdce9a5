"""What a replayed message carries: as SQS takes it, and known again."""

import json
from typing import Any

import pytest
from sluice_jobs.replaying import ID_ATTRIBUTE, replayed

ORIGIN = "SITE1.01ARZ3NDEKTSV4RRFFQ69G5FAV"


def text(value: str) -> dict[str, Any]:
    return {"type": "String", "string": value, "binary": None}


def row(**more: Any) -> dict[str, Any]:
    given = {"message_id": "m-1", "attributes": {}, "message_group_id": None, "routing_key": "a.b", "origin_id": ORIGIN}
    return given | more


def metadata(attributes: Any) -> Any:
    return json.loads(attributes["x-qpid"]["string"])


def test_what_belongs_to_the_message_is_kept_and_what_to_its_way_is_not() -> None:
    sealed = {"exchange": "old", "key": "a.b", "trace": ["SITE1"], "id": ORIGIN, "published": 1, "stamped": 1, "ttl": 5}
    sealed |= {"headers": {"h": {"base64": "AA=="}}, "overflow": {"o": ["String", "v"]}}
    made = replayed(row(attributes={"x-qpid": text(json.dumps(sealed)), "c": text("red")}), "new")
    assert metadata(made.attributes) == {
        "exchange": "new",
        "key": "a.b",
        "headers": sealed["headers"],
        "overflow": sealed["overflow"],
        "id": ORIGIN,
    }
    assert made.attributes["c"] == text("red")
    assert made.attributes[ID_ATTRIBUTE] == text(ORIGIN)


def test_a_message_that_no_exchange_has_seen_is_known_by_sqss_id() -> None:
    made = replayed(row(origin_id=None, routing_key=None), "new")
    assert made.attributes[ID_ATTRIBUTE] == text("m-1")
    assert metadata(made.attributes) == {"exchange": "new", "key": ""}


@pytest.mark.parametrize("count", [8, 9, 10])
def test_ten_attributes_are_all_that_sqs_takes_and_none_is_lost(count: int) -> None:
    binary = {"type": "Binary", "string": None, "binary": b"\0"}
    given = {f"a{number}": binary if number == 0 else text(str(number)) for number in range(count)}
    made = replayed(row(attributes=given), "new")
    inside = metadata(made.attributes).get("overflow", {})
    assert len(made.attributes) <= 10
    assert {*made.attributes, *inside} == {*given, ID_ATTRIBUTE, "x-qpid"}
    if count == 10:
        assert inside == {ID_ATTRIBUTE: ["String", ORIGIN], "a0": ["Binary", {"base64": "AA=="}]}


def test_a_replay_again_has_the_same_deduplication_id_and_another_exchange_another() -> None:
    once, again, elsewhere = replayed(row(), "new"), replayed(row(message_id="m-2"), "new"), replayed(row(), "other")
    assert once.deduplication_id == again.deduplication_id != elsewhere.deduplication_id


def test_a_group_is_kept_and_else_one_of_exchange_and_key() -> None:
    assert replayed(row(message_group_id="g"), "new").group_id == "g"
    one, other = replayed(row(), "new"), replayed(row(routing_key="c"), "new")
    assert one.group_id != other.group_id


def test_metadata_that_cant_be_read_are_replaced() -> None:
    made = replayed(row(attributes={"x-qpid": text("{")}, origin_id=None), "new")
    assert metadata(made.attributes) == {"exchange": "new", "key": "a.b"}


def test_a_sites_exchange_can_read_it() -> None:
    open_attributes = pytest.importorskip("sluice.federation.metadata").open_attributes
    value = pytest.importorskip("sluice.message").Value
    made = replayed(row(attributes={f"a{number}": text("v") for number in range(10)}), "new")
    opened = open_attributes({name: value(each["type"], each["string"]) for name, each in made.attributes.items()})
    assert (opened.metadata.exchange, opened.metadata.key) == ("new", "a.b")
    assert opened.attributes[ID_ATTRIBUTE].content == ORIGIN
    assert len(opened.attributes) == 11
