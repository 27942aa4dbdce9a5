"""Templates as the schemas of their resources say, by cfn-lint, whose package has the schemas of its day."""

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

import pytest
from cfnlint.config import ConfigMixIn
from cfnlint.decode.decode import decode_str
from cfnlint.runner import Runner

from tests.templates.assembly import REGION
from tests.templates.changed_sets import CHANGED, SITE
from tests.templates.conftest import Assemblies
from tests.templates.parameter_sets import DEFAULTS, MANY, SETS, ParameterSet

IGNORED: Mapping[str, str] = {
    "W3005": "CDK has a function depend on its role beside referring to it; that says a thing twice and harms nothing.",
}


@cache
def runner() -> Runner:
    """Reads its rules once, which takes as long as two templates."""
    return Runner(ConfigMixIn(regions=[REGION]))


@cache
def found_in(text: str) -> list[tuple[str, str]]:
    """What is wrong with a template: the rule, then place and words. Sets have templates in common."""
    parsed, unreadable = decode_str(text)
    assert not unreadable
    return [
        (match.rule.id, f"{'/'.join(map(str, match.path))}: {match.message}")
        for match in runner().validate_template(parsed)
    ]


# MAXIMUM has what MANY has, with longer names.
@pytest.mark.parametrize(
    "given", [*(each for each in SETS if each is not MANY), SITE, *CHANGED], ids=lambda given: given.name
)
def test_templates_are_as_the_schemas_of_their_resources_say(assemblies: Assemblies, given: ParameterSet) -> None:
    faults = [
        (stack, rule, said)
        for stack, template in assemblies(given).stacks.items()
        for rule, said in found_in(json.dumps(template))
        if rule not in IGNORED
    ]
    assert faults == []


def of_queue(**properties: object) -> Mapping[str, Any]:
    return {"Resources": {"Queue": {"Type": "AWS::SQS::Queue", "Properties": properties}}}


@pytest.mark.parametrize(
    ("properties", "rule"),
    [
        ({"VisibilityTimeout": 43_201}, "E3034"),  # over the limit
        ({"VisibilityTimeOut": 60}, "E3002"),  # no such property
        ({"QueueName": {"Ref": "Nowhere"}}, "E1020"),
    ],
)
def test_what_is_wrong_with_a_template_is_found(properties: dict[str, object], rule: str) -> None:
    assert [found for found, _ in found_in(json.dumps(of_queue(**properties)))] == [rule]


def test_what_is_ignored_still_has_something_to_say(assemblies: Assemblies) -> None:
    template = assemblies(DEFAULTS).stacks["SluiceRendezvous"]
    assert {rule for rule, _ in found_in(json.dumps(template))} == set(IGNORED)
