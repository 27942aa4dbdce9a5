"""The table of what commands need in IAM: it has every command, and its policies are IAM's."""

import json
from typing import Any

import pytest

from docs import tables
from sluice.operations import READER
from sluice.operator.permissions import EXECUTION_ROLE, FREE, ROWS, NoSuchCommand, build_policy
from tests.templates.iam_reference import Statement, faults
from tests.unit.cli.test_grammar import COMMANDS

MANAGED_POLICY_CHARACTERS = 6_144  # https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_iam-quotas.html
NAMES = [name for row in ROWS for name in row.commands]
ACCOUNT = "123456789012"


def policy(*commands: str, stage: str | None = None) -> Any:
    return build_policy(commands, partition="aws", region="eu-central-1", account=ACCOUNT, stage=stage)


def resources(*commands: str, action: str, stage: str | None = None) -> set[str]:
    statements = policy(*commands, stage=stage)["Statement"]
    return {resource for statement in statements if action in statement["Action"] for resource in statement["Resource"]}


def test_every_command_is_in_the_table_once() -> None:
    assert len(NAMES) == len(set(NAMES))
    assert {name.partition(" --")[0] for name in NAMES} | set(FREE) == COMMANDS.keys()
    assert not set(NAMES) & set(FREE)
    for name in NAMES:
        command, _, option = name.partition(" --")
        assert not option or any(f"--{option}" in param.opts for param in COMMANDS[command].params)


def test_the_documents_table_has_every_command() -> None:
    table = tables.render_permissions()
    assert all(f"`{name}`" in table for name in NAMES)


@pytest.mark.parametrize("stage", [None, "dev"])
def test_iam_knows_what_the_policies_say(stage: str | None) -> None:
    # The reference names only functions, where Lambda's guide has aliases, too:
    # https://docs.aws.amazon.com/lambda/latest/dg/lambda-api-permissions-ref.html
    found = [
        fault
        for each in [*policy(stage=stage)["Statement"], *policy(EXECUTION_ROLE, stage=stage)["Statement"]]
        for fault in faults(
            Statement(
                actions=each["Action"],
                resources=[resource.removesuffix(f":{READER}") for resource in each["Resource"]],
            )
        )
    ]
    assert found == []


def test_the_policy_of_all_commands_fits_into_a_managed_policy() -> None:
    assert len(json.dumps(policy(stage="longest"), separators=(",", ":"))) < MANAGED_POLICY_CHARACTERS


def test_who_reads_may_invoke_the_readers_alias_only() -> None:
    alias = f"arn:aws:lambda:eu-central-1:{ACCOUNT}:function:dev-SluiceSplitting-Control*:reader"
    assert resources("split status", action="lambda:InvokeFunction", stage="dev") == {alias}
    writes = resources("split stop", action="lambda:InvokeFunction", stage="dev")
    assert writes == {alias.removesuffix(":reader")}


def test_a_group_is_all_its_commands_and_a_command_without_options_is_itself() -> None:
    assert not resources("binding add", action="sqs:CreateQueue")
    assert resources("binding", action="sqs:CreateQueue") == resources("binding add --create", action="sqs:CreateQueue")
    assert policy("split import")["Statement"] == []


def test_an_unknown_command_is_refused() -> None:
    with pytest.raises(NoSuchCommand, match="no such command: splt; there are binding add"):
        policy("splt")
