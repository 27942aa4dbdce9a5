"""A site in an account with rules of its own: a KMS key and a network of the operator's, a permissions boundary.

cdk-nag's packs for such accounts look at it, too; `docs/deploy.md` has what they find, with the reasons.
"""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import cdk_nag
import pytest
from aws_cdk import Validations
from aws_cdk.cx_api import CloudAssembly

from app import add_stacks
from sluice.errors import BadParameter
from sluice.parameters import Parameters
from stacks import create_reproducible_app
from tests.stacks.conftest import CONTEXT, PROJECT, Resource, Templates, read_synthesized

KEY_ARN = "arn:aws:kms:eu-central-1:123456789012:key/0f0e0d0c-1111-2222-3333-444455556666"
# Where each type of resource has its key.
KEYS: Mapping[str, tuple[str, ...]] = {
    "AWS::SQS::Queue": ("KmsMasterKeyId",),
    "AWS::SNS::Topic": ("KmsMasterKeyId",),
    "AWS::Logs::LogGroup": ("KmsKeyId",),
    "AWS::Lambda::Function": ("KmsKeyArn",),
    "AWS::DynamoDB::Table": ("SSESpecification", "KMSMasterKeyId"),
    "AWS::S3::Bucket": ("BucketEncryption", "ServerSideEncryptionConfiguration"),
}
BOUNDARY = "developer-boundary"


HARDENED: Mapping[str, object] = {
    "sluice.kms_key_arn": KEY_ARN,
    "sluice.log_retention_days": "365",
    "sluice.operations.alarm_email": "alarms@example.com",
    "sluice.operations.tracing": True,
    "sluice.rendezvous.proxy_max_concurrency": 300,
    "sluice.rendezvous.client_max_concurrency": 50,
    "sluice.pipeline.subnet_ids": ["subnet-01234567"],
    "sluice.pipeline.security_group_ids": ["sg-01234567"],
    "sluice.pipeline.own_way_to_sqs": True,
    "@aws-cdk/core:permissionsBoundary": {"name": BOUNDARY},
}
PACKS = (cdk_nag.NIST80053R5Checks, cdk_nag.HIPAASecurityChecks, cdk_nag.PCIDSS321Checks)


@pytest.fixture(scope="module")
def assembly(layer: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a synth that the packs look at. They refuse it, after the templates are written."""
    folder = tmp_path_factory.mktemp("governed")
    made = create_reproducible_app({**CONTEXT, **HARDENED}, outdir=str(folder))
    add_stacks(made)
    Validations.of(made).add_plugins(*(pack(made) for pack in PACKS))
    with pytest.raises(RuntimeError, match="IAMNoInlinePolicy"):
        made.synth()
    return folder


@pytest.fixture(scope="module")
def governed(assembly: Path) -> Templates:
    return read_synthesized(CloudAssembly(str(assembly)), None)


def test_the_packs_find_what_the_table_gives_a_reason_for_and_nothing_else(assembly: Path) -> None:
    section = (PROJECT / "docs" / "deploy.md").read_text().partition("### Governed accounts")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.*?) \| .+ \|$", section, re.MULTILINE)
    explained = [rule for row in rows for rule in re.findall("`([A-Za-z0-9]+)`", row)]
    reports = json.loads((assembly / "validation-report.json").read_text())["pluginReports"]
    found = {report["pluginName"]: {violation["ruleName"] for violation in report["violations"]} for report in reports}
    assert len(found) == len(PACKS)
    rules = {rule.rpartition("-")[2] for named in found.values() for rule in named}
    assert (sorted(rules), len(explained)) == (sorted(explained), len(rules))


def resources(templates: Templates, *types: str) -> Iterator[tuple[str, Resource]]:
    for stack in ("state", "rendezvous", "splitting", "federation", "pipeline", "operations"):
        for id_, resource in getattr(templates, stack)["Resources"].items():
            if resource["Type"] in types:
                yield f"{stack}/{id_}", resource


def test_all_that_holds_messages_or_logs_is_encrypted_with_the_key(governed: Templates) -> None:
    found = set()
    for place, resource in resources(governed, *KEYS):
        value: Any = resource["Properties"]
        for step in KEYS[resource["Type"]]:
            value = value[step]
        assert KEY_ARN in json.dumps(value), place
        assert not resource["Properties"].get("SqsManagedSseEnabled"), place
        found.add(resource["Type"])
    assert found == set(KEYS)


def test_whoever_works_with_it_may_use_the_key(governed: Templates) -> None:
    roles = dict(resources(governed, "AWS::IAM::Role"))
    ours = {place: role for place, role in roles.items() if "Policies" in role["Properties"]}
    assert len(ours) >= 10
    for place, role in ours.items():
        statements = [
            statement
            for policy in role["Properties"]["Policies"]
            for statement in policy["PolicyDocument"]["Statement"]
            if statement["Resource"] == KEY_ARN
        ]
        assert {action for statement in statements for action in statement["Action"]} >= {
            "kms:Decrypt",
            "kms:GenerateDataKey",
        }, place
    (client,) = (policy for place, policy in resources(governed, "AWS::IAM::Policy") if "ClientPolicy" in place)
    assert KEY_ARN in json.dumps(client)


def test_queues_that_are_created_at_run_time_have_it_too(governed: Templates) -> None:
    (links,) = (
        function for place, function in resources(governed, "AWS::Lambda::Function") if place.startswith("federation/L")
    )
    assert KEY_ARN in json.dumps(links["Properties"]["Environment"])


def test_every_role_and_user_has_the_boundary(governed: Templates) -> None:
    made = dict(resources(governed, "AWS::IAM::Role", "AWS::IAM::User"))
    assert made
    for place, resource in made.items():
        assert BOUNDARY in json.dumps(resource["Properties"]["PermissionsBoundary"]), place


def test_senders_of_other_accounts_cannot_use_the_key_so_they_assume_a_role() -> None:
    peers = {"sluice.kms_key_arn": KEY_ARN, "sluice.federation.peer_accounts": ["210987654321"]}
    with pytest.raises(BadParameter, match=r"federation\.access.*role"):
        Parameters.from_context({**CONTEXT, **peers})
    Parameters.from_context({**CONTEXT, **peers, "sluice.federation.access": "role"})
