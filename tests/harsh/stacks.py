"""Small stacks, deployed by CloudFormation's API."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from botocore.exceptions import ClientError

from sluice.aws.connections import Connection
from tests.harsh.conftest import eventually


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """What a stack holds."""

    resources: Mapping[str, Any]

    def text(self) -> str:
        return json.dumps({"Resources": self.resources})


def deploy(account: Connection, stack: str, template: Template) -> str:
    """Creates the stack, or updates it where it is there; its status at the end."""
    cloudformation = account.client("cloudformation")
    try:
        cloudformation.create_stack(StackName=stack, TemplateBody=template.text())
    except cloudformation.exceptions.AlreadyExistsException:
        cloudformation.update_stack(StackName=stack, TemplateBody=template.text())
    return eventually(lambda: ended(account, stack))


def ended(account: Connection, stack: str) -> str | None:
    """A stack's status, None while it is under way."""
    try:
        [found] = account.client("cloudformation").describe_stacks(StackName=stack)["Stacks"]
    except ClientError:
        return "DELETE_COMPLETE"
    status: str = found["StackStatus"]
    return None if status.endswith("_IN_PROGRESS") else status


def reasons(account: Connection, stack: str) -> list[str]:
    """Why what failed did."""
    events = account.client("cloudformation").describe_stack_events(StackName=stack)["StackEvents"]
    return [event.get("ResourceStatusReason", "") for event in events if event["ResourceStatus"].endswith("_FAILED")]
