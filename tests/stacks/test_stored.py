"""What functions are told beside their variables: in parts that fit, under names that change with it."""

import json
from typing import Any

import pytest
from aws_cdk import App, Stack, aws_sqs

from sluice.constructs.stored import MOST, PARAMETER_BYTES, store_text
from sluice.errors import BadParameter


def stored(text: str) -> dict[str, Any]:
    """The values by name, as a template of one stack has them."""
    app = App()
    stack = Stack(app, "Site")
    names = store_text(stack, "Site", "links", text)
    template = app.synth().get_stack_by_name("Site").template.get("Resources", {})
    assert [stack.resolve(name) for name in names] == [{"Ref": id_} for id_ in template]
    return {each["Properties"]["Name"]: each["Properties"]["Value"] for each in template.values()}


def test_a_text_is_cut_by_its_bytes_and_put_together_again() -> None:
    text = json.dumps({"names": ["ä😀" * 2_000]}, ensure_ascii=False)
    made = stored(text)
    assert "".join(made.values()) == text
    assert len(made) == len(text.encode()) // PARAMETER_BYTES + 1
    assert max(len(value.encode()) for value in made.values()) <= PARAMETER_BYTES


def test_a_token_is_in_one_part_with_room_for_what_it_becomes() -> None:
    app = App()
    stack = Stack(app, "Site")
    queues = [aws_sqs.Queue(stack, f"Q{number}").queue_arn for number in range(60)]
    store_text(stack, "Site", "links", json.dumps(queues))
    template = app.synth().get_stack_by_name("Site").template["Resources"]
    made = [each["Properties"] for each in template.values() if each["Type"] == "AWS::SSM::Parameter"]
    parts = [each["Value"]["Fn::Join"][1] for each in made]
    tokens = [sum(isinstance(piece, dict) for piece in part) for part in parts]
    assert sum(tokens) == 60
    literal = [sum(len(piece) for piece in part if isinstance(piece, str)) for part in parts]
    assert all(number * 160 + size <= PARAMETER_BYTES for number, size in zip(tokens, literal, strict=True))


def test_other_content_has_other_names_and_equal_content_the_same() -> None:
    assert stored('{"a":1}').keys() == stored('{"a":1}').keys() != stored('{"a":2}').keys()


def test_nothing_is_taken_for_a_reference_to_another_parameter() -> None:
    [value] = stored('{"key":"{{ssm:secret}} {{{x}}}"}').values()
    assert "{{" not in value
    assert json.loads(value) == {"key": "{{ssm:secret}} {{{x}}}"}


def test_a_site_that_is_too_large_for_one_call_is_refused() -> None:
    assert len(stored("x" * MOST * PARAMETER_BYTES)) == MOST
    with pytest.raises(BadParameter, match="function links: its settings"):
        stored("x" * (MOST * PARAMETER_BYTES + 1))


def test_where_nothing_is_told_nothing_is_made() -> None:
    assert stored("") == {}
