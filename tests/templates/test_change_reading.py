"""That a change is read as CloudFormation does it, on templates written by hand."""

from collections.abc import Mapping
from typing import Any

from tests.templates.assembly import Assembly
from tests.templates.changes import Change

SUFFIX = "00000000"  # in place of the one that CDK adds
STANDARD: Mapping[str, Any] = {"Type": "AWS::SQS::Queue"}
NAMES = ("Source0", "Main0", "Source1", "Main1")
FOUR = dict.fromkeys(NAMES, STANDARD)


def deployed(queues: Mapping[str, Any], *split: str) -> Assembly:
    """A stack with queues, whose names are its outputs, and one that splits them: who, by place."""
    outputs = {name: {"Value": {"Fn::GetAtt": [f"{name}{SUFFIX}", "QueueName"]}} for name in queues}
    state = {"Resources": {f"{name}{SUFFIX}": queue for name, queue in queues.items()}, "Outputs": outputs}
    function = {"Type": "AWS::Lambda::Function", "Properties": {"Environment": {"Variables": told(*split)}}}
    return Assembly({"State": state, "Splitting": {"Resources": {f"Splitter{SUFFIX}": function}}})


def told(*split: str) -> Mapping[str, Any]:
    parts: list[object] = ["["]
    for place, queue_id in enumerate(split):
        source, main = (
            {"Fn::GetStackOutput": {"StackName": "State", "OutputName": f"{role}{place}"}}
            for role in ("Source", "Main")
        )
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


def test_a_property_that_cannot_be_changed_takes_another_queue() -> None:
    before = deployed(with_properties("Source0", QueueName="one"), "orders", "parcels")
    change = Change(before, deployed(with_properties("Source0", QueueName="other"), "orders", "parcels"))
    assert change.contents == {"source of orders": "lost"}
    assert change.unheard_of == {"source of orders": ["Splitting"]}


def test_a_property_that_can_be_changed_changes_nothing_that_is_stored() -> None:
    before = deployed(with_properties("Source0", VisibilityTimeout=30), "orders", "parcels")
    change = Change(before, deployed(with_properties("Source0", VisibilityTimeout=60), "orders", "parcels"))
    assert (change.contents, change.unheard_of) == ({}, {})


def test_who_is_deployed_again_hears_of_what_is_replaced() -> None:
    before = deployed(with_properties("Source0", QueueName="one"), "orders", "parcels")
    change = Change(before, deployed(with_properties("Source0", QueueName="other"), "orders"))
    assert change.contents == {"source of orders": "lost", "source of parcels": "Source1", "main of parcels": "Main1"}
    assert change.unheard_of == {}
