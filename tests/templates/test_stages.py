"""That sites of one account and region have no name in common, and may touch nothing of each other's."""

import re
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from itertools import permutations
from typing import Any

import pytest

from sluice.federation.bridge_provisioner import BRIDGE_QUEUE_PREFIX
from sluice.rendezvous.mailbox import PREFIX as MAILBOX_PREFIX
from sluice.rendezvous.protocol.messages import ANSWER_QUEUE_PREFIX
from sluice.splitting.consumers.temporary_queues import PREFIX as TEMPORARY_PREFIX
from sluice.stages import add_stage_prefix
from tests.templates.assembly import ARNS, Assembly, physical_name
from tests.templates.conftest import Assemblies
from tests.templates.parameter_sets import DEFAULTS, STAGED, ParameterSet
from tests.templates.test_limits import listed

# One begins as the other does, and as a site without a stage doesn't.
BESIDE = ParameterSet(name="beside", parameters={**STAGED.parameters, "sluice.stage": "stagin"})
STAGES: Mapping[str, str | None] = {DEFAULTS.name: None, STAGED.name: "staging", BESIDE.name: "stagin"}
MADE_AT_RUN_TIME = (
    *(f"{prefix}0123456789ab" for prefix in (ANSWER_QUEUE_PREFIX, BRIDGE_QUEUE_PREFIX, MAILBOX_PREFIX)),
    f"{TEMPORARY_PREFIX}abcdef0123456789ab-orders",
    "sluice-queue-orders",
)
OF_ONE_USER = "AWS::IAM::Policy"  # whose name it has to itself
OF_ONE_FUNCTION = "AWS::Lambda::Alias"
EVERYTHING = "*"
OF_ALL = ("arn:aws:logs:", "arn:aws:s3:::cdk-")  # DescribeLogGroups takes no less; one bucket has all stacks' assets


def statements(assembly: Assembly) -> Iterator[Mapping[str, Any]]:
    for resource in assembly.resources("AWS::IAM::Role", "AWS::IAM::Policy", "AWS::IAM::ManagedPolicy"):
        written = [policy["PolicyDocument"] for policy in resource.properties.get("Policies", [resource.properties])]
        for document in assembly.plain(resource.stack, written):
            yield from document["Statement"]


def resources(assembly: Assembly) -> set[str]:
    """What roles and users may touch, but for what they may of everything."""
    found = {str(each) for one in statements(assembly) for each in listed(one["Resource"])}
    return {arn for arn in found if arn != EVERYTHING and not (arn.startswith(OF_ALL) and "SluiceState" not in arn)}


def physical_arns(assembly: Assembly, stage: str | None) -> set[str]:
    """All that a site has: what its stacks make, and what its functions do."""
    made = {ARNS[resource.type] + physical_name(resource) for resource in assembly.resources(*ARNS)}
    return made | {f"{ARNS['AWS::SQS::Queue']}{add_stage_prefix(name, stage)}" for name in MADE_AT_RUN_TIME}


def test_what_is_named_is_named_after_the_stage(assemblies: Assemblies) -> None:
    assembly = assemblies(STAGED)
    assert all(stack.startswith("staging-Sluice") for stack in assembly.stacks)
    named = {
        (resource.id, assembly.text(resource.stack, resource.properties[name]))
        for resource in assembly.resources()
        for name in (f"{resource.type.rpartition(':')[2]}Name", "Name", "AlarmName")
        if name in resource.properties and resource.type not in {OF_ONE_USER, OF_ONE_FUNCTION}
    }
    assert named  # what CloudFormation names, it names after its stack
    assert {(id_, name) for id_, name in named if not name.startswith(("staging-", "/staging-"))} == set()


def test_what_functions_are_told_of_names_is_the_stages(assemblies: Assemblies) -> None:
    assembly = assemblies(STAGED)
    told = {
        function.id[:-8]: assembly.plain(function.stack, function.properties["Environment"]["Variables"])
        for function in assembly.resources("AWS::Lambda::Function")
    }
    assert {name: each["POWERTOOLS_METRICS_NAMESPACE"] for name, each in told.items()} == dict.fromkeys(
        told, "staging-Sluice"
    )
    makers = ("Broker", "Proxy", "Sweeper", "Control")
    assert {name: told[name]["STAGE"] for name in makers} == dict.fromkeys(makers, "staging")
    assert '"stage":"staging"' in told["Links"]["HERE"]
    assert '"metrics":"staging-Sluice/Spark"' in told["Jobs"]["LANDING"]
    assert told["Exchange"]["SITE"] == "staging-123456789012apsoutheast1"
    assert len(told["Exchange"]["SITE"]) <= 32


def test_alarms_and_what_is_drawn_are_of_the_stages_metrics(assemblies: Assemblies) -> None:
    assembly = assemblies(STAGED)
    shown = str([assembly.plain(resource.stack, resource.properties) for resource in assembly.resources(*OBSERVED)])
    assert "staging-Sluice/Spark" in shown
    assert re.findall(r"(?<!staging-)\bSluice(?:/Spark)?[\"',]", shown.replace("display_name", "")) == []


OBSERVED = ("AWS::CloudWatch::Alarm", "AWS::CloudWatch::CompositeAlarm", "AWS::CloudWatch::Dashboard")


@pytest.mark.parametrize(
    ("one", "other"), list(permutations([DEFAULTS, STAGED, BESIDE], 2)), ids=lambda given: given.name
)
def test_one_may_touch_nothing_of_the_others(assemblies: Assemblies, one: ParameterSet, other: ParameterSet) -> None:
    theirs = physical_arns(assemblies(other), STAGES[other.name])
    assert theirs.isdisjoint(physical_arns(assemblies(one), STAGES[one.name]))
    allowed = resources(assemblies(one))
    assert len(allowed) > 30
    assert {(arn, their) for arn in allowed for their in theirs if fnmatchcase(their, arn)} == set()


def test_a_site_may_touch_what_it_makes_at_run_time(assemblies: Assemblies) -> None:
    """Or the tests above would hold for whatever its functions may not do either."""
    for given in (DEFAULTS, STAGED):
        allowed = resources(assemblies(given))
        for name in MADE_AT_RUN_TIME:
            arn = ARNS["AWS::SQS::Queue"] + add_stage_prefix(name, STAGES[given.name])
            assert any(fnmatchcase(arn, each) for each in allowed), arn
