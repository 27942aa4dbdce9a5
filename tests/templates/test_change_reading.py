"""That a change is read as CloudFormation does it, on templates written by hand."""

from collections.abc import Mapping
from typing import Any

import pytest

from tests.templates.assembly import Assembly
from tests.templates.changes import Change

SUFFIX = "00000000"  # in place of the one that CDK adds
STANDARD: Mapping[str, Any] = {"Type": "AWS::SQS::Queue"}
NAMES = ("Source0", "Main0", "Source1", "Main1")
FOUR = dict.fromkeys(NAMES, STANDARD)


def deployed(queues: Mapping[str, Any], *split: str, described: str = "") -> Assembly:
    """A stack with queues, whose names are in its document, and one that splits them: who, by place."""
    ids = {f"{name}{SUFFIX}": queue for name, queue in queues.items()}
    entries = [part for id_ in ids for part in (f";{id_}=", {"Fn::GetAtt": [id_, "QueueName"]})]
    document = {"Name": "/State/names/0", "Value": {"Fn::Join": ["", [*entries, ";"]]}}
    state = {"Resources": {**ids, "Names": {"Type": "AWS::SSM::Parameter", "Properties": document}}}
    read = {"Type": "AWS::SSM::Parameter::Value<String>", "Default": "/State/names/0", "Description": described}
    function = {"Type": "AWS::Lambda::Function", "Properties": {"Environment": {"Variables": told(*split)}}}
    splitting = {"Parameters": {"Document": read}, "Resources": {f"Splitter{SUFFIX}": function}}
    return Assembly({"State": state, "Splitting": splitting})


def found_in_document(id_: str) -> Mapping[str, Any]:
    after = {"Fn::Select": [1, {"Fn::Split": [f";{id_}=", {"Ref": "Document"}]}]}
    return {"Fn::Select": [0, {"Fn::Split": [";", after]}]}


def told(*split: str) -> Mapping[str, Any]:
    parts: list[object] = ["["]
    for place, queue_id in enumerate(split):
        source, main = (found_in_document(f"{role}{place}{SUFFIX}") for role in ("Source", "Main"))
        parts += ["," if place else "", f'{{"queue_id":"{queue_id}","source":"', source, '","main":"', main, '"}']
    queues = {"Fn::Join": ["", [*parts, "]"]]}
    return {"TABLE": "t", "DEAD_LETTERS_URL": "d", "CONTROL_QUEUE_URL": "c", "SPLIT_QUEUES": queues}


def with_properties(name: str, **properties: object) -> Mapping[str, Any]:
    return {**FOUR, name: {**STANDARD, "Properties": properties}}


def test_what_goes_to_somebody_else_is_seen() -> None:
    change = Change(deployed(FOUR, "orders", "parcels"), deployed(FOUR, "parcels", "orders"))
    assert change.contents == {
        "source of orders": "source of parcels",
        "main of orders": "main of parcels",
        "source of parcels": "source of orders",
        "main of parcels": "main of orders",
    }
    assert change.unheard_of == {}


def test_what_goes_from_its_stack_is_lost_or_left_behind_as_the_stack_said() -> None:
    kept = {"DeletionPolicy": "Retain", "UpdateReplacePolicy": "Retain"}
    before = deployed({**FOUR, "Main1": {**STANDARD, **kept}}, "orders", "parcels")
    change = Change(before, deployed({name: FOUR[name] for name in NAMES[:2]}, "orders"))
    assert change.contents == {"source of parcels": "lost", "main of parcels": "left behind"}


def test_what_comes_is_new_and_changes_nothing_else() -> None:
    before = deployed({name: FOUR[name] for name in NAMES[:2]}, "orders")
    change = Change(before, deployed(FOUR, "orders", "parcels"))
    assert change.contents == {"source of parcels": "new", "main of parcels": "new"}
    assert change.unheard_of == {}


@pytest.mark.parametrize(
    ("described", "unheard_of"),
    [("", {}), ("a value that CDK reads once [cdk:skip]", {"source of orders": ["Splitting"]})],
)
def test_a_property_that_cannot_be_changed_takes_another_queue(
    described: str, unheard_of: Mapping[str, list[str]]
) -> None:
    before, after = (
        deployed(with_properties("Source0", QueueName=name), "orders", "parcels", described=described)
        for name in ("one", "other")
    )
    change = Change(before, after)
    assert change.contents == {"source of orders": "lost"}
    assert change.unheard_of == unheard_of


def test_a_property_that_can_be_changed_changes_nothing_that_is_stored() -> None:
    before = deployed(with_properties("Source0", VisibilityTimeout=30), "orders", "parcels")
    change = Change(before, deployed(with_properties("Source0", VisibilityTimeout=60), "orders", "parcels"))
    assert (change.contents, change.unheard_of) == ({}, {})


def test_who_is_deployed_again_hears_of_what_is_replaced() -> None:
    before = deployed(with_properties("Source0", QueueName="one"), "orders", "parcels")
    change = Change(before, deployed(with_properties("Source0", QueueName="other"), "orders"))
    assert change.contents == {"source of orders": "lost", "source of parcels": "Source1", "main of parcels": "Main1"}
    assert change.unheard_of == {}
