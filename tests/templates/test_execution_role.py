"""That the execution role that the guide lists may make all resources, also those that the embedded cloud lacks."""

import pytest
from ministack.core.iam_evaluator import EvalContext, evaluate, parse_policy_document

from sluice.operator.permissions import EXECUTION_ROLE, build_policy
from tests.harsh.acting_cloud import EVENTS, needed
from tests.templates.assembly import ACCOUNT, REGION, physical_name
from tests.templates.conftest import Assemblies
from tests.templates.parameter_sets import SETS, ParameterSet

NAMED = ("AWS::IAM::", "AWS::Lambda::")  # types whose properties say whose role, user or code they take


@pytest.mark.parametrize("given", SETS, ids=lambda given: given.name)
def test_the_role_may_make_change_and_delete_every_resource(assemblies: Assemblies, given: ParameterSet) -> None:
    stage = given.parameters.get("sluice.stage")
    policy = build_policy(
        [EXECUTION_ROLE], partition="aws", region=REGION, account=ACCOUNT, stage=None if stage is None else str(stage)
    )
    allowed, assembly, refused = [parse_policy_document(dict(policy))], assemblies(given), set()
    for resource in assembly.resources():
        properties = assembly.plain(resource.stack, resource.properties) if resource.type.startswith(NAMED) else {}
        for event in EVENTS.values():
            for action, arn in needed(resource.type, event, physical_name(resource), properties, ACCOUNT):
                context = EvalContext(
                    principal_arn="",
                    principal_type="AssumedRole",
                    principal_account=ACCOUNT,
                    action=action,
                    resource_arn=arn,
                    region=REGION,
                )
                if evaluate(context, allowed).decision != "Allow":
                    refused.add((resource.id, action, arn))
    assert not refused
