"""An embedded cloud whose CloudFormation has just the rights of the role that a deployment passes to it.

What a type of resource needs, its own schema says: AWS's, as cfn-lint has it. ministack asks no policy.
"""

import contextvars
import functools
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import ministack.core.iam_evaluator as evaluator
import ministack.core.responses
import ministack.services.cloudformation.handlers as cloudformation
import ministack.services.iam
import ministack.services.ssm
from cfnlint.schema import PROVIDER_SCHEMA_MANAGER
from ministack.services.cloudformation import stacks

from sluice.local import server

REGION = "us-east-1"  # whose schemas are read
SERVICES = {"emrserverless": "emr-serverless"}  # where a type's service isn't its name
# Of other services, these are called for resources as ours are; the rest are for properties that none of them has.
CODE, PASS, LINK = "s3:GetObject", "iam:PassRole", "iam:CreateServiceLinkedRole"
LINKED = {"AWS::EMRServerless::Application": "ops.emr-serverless.amazonaws.com/AWSServiceRoleForAmazonEMRServerless"}
ASSETS = {"AWS::Lambda::Function": "Code", "AWS::Lambda::LayerVersion": "Content"}
IAM_KINDS = {"Role": "role", "User": "user", "Policy": "policy", "Group": "group"}

EVENTS = {"_provision_resource": "create", "_update_resource": "update", "_delete_resource": "delete"}
ARGUMENTS = {"create": (1, 2), "update": (2, 3), "delete": (1, 2)}  # places of a resource's properties, and its stack

_role: contextvars.ContextVar[str] = contextvars.ContextVar("role", default="")
_role_of: dict[tuple[str, str, str], str] = {}  # by account, region and stack


def needed(type_: str, event: str, id_: str, properties: Mapping[str, Any], account: str) -> Iterator[tuple[str, str]]:
    """The actions that a resource is made, changed or deleted with, each with what it is about."""
    schema = PROVIDER_SCHEMA_MANAGER.get_resource_schema(REGION, type_).schema
    service = type_.split("::")[1].lower()
    for action in schema["handlers"].get(event, {}).get("permissions", ()):
        if action == PASS:
            yield from ((action, arn) for arn in _role_arns(properties))
        elif action == LINK and type_ in LINKED:
            yield action, f"arn:aws:iam::{account}:role/aws-service-role/{LINKED[type_]}"
        elif action == CODE and type_ in ASSETS:
            code = properties.get(ASSETS[type_], {})
            yield action, f"arn:aws:s3:::{code.get('S3Bucket')}/{code.get('S3Key')}"
        elif action.startswith("iam:") and service == "iam":
            yield from ((action, arn) for arn in _iam_arns(type_, action, id_, properties, account))
        elif action.startswith(f"{SERVICES.get(service, service)}:"):
            yield action, f"arn:aws:{service}:{REGION}:{account}:{id_}"


def _role_arns(value: Any) -> Iterator[str]:
    match value:
        case str() if value.startswith("arn:aws:iam:") and ":role/" in value:
            yield value
        case dict():
            for member in value.values():
                yield from _role_arns(member)
        case list():
            for member in value:
                yield from _role_arns(member)


def _iam_arns(type_: str, action: str, id_: str, properties: Mapping[str, Any], account: str) -> Iterator[str]:
    """A policy's type also names the actions on those who get it: its users, roles and groups."""
    own = IAM_KINDS[type_.removeprefix("AWS::IAM::").removeprefix("Managed")]
    # The last kind that an action names has its rights: AddUserToGroup those of the group.
    *_, about = (own, *(kind for name, kind in IAM_KINDS.items() if name in action.removesuffix("Policy")))
    path = properties.get("Path", "/")
    if about == own:
        yield id_ if id_.startswith("arn:") else f"arn:aws:iam::{account}:{own}{path}{id_}"
    else:
        yield from (f"arn:aws:iam::{account}:{about}/{name}" for name in properties.get(f"{about.capitalize()}s", ()))


def patch() -> None:
    """Make all patches of this file, once."""
    _remember_roles()
    _check_look_ups()
    for name, event in EVENTS.items():
        setattr(stacks, name, _check(getattr(stacks, name), event))


def _remember_roles() -> None:
    create = cloudformation._ACTION_HANDLERS["CreateChangeSet"]

    def create_as_role(params: Mapping[str, Any]) -> Any:
        given = params.get("RoleARN", "")
        role = given[0] if isinstance(given, list) else given
        stack = params["StackName"]
        _role_of[(*_place(), stack[0] if isinstance(stack, list) else stack)] = role
        token = _role.set(role)
        try:
            return create(params)
        finally:
            _role.reset(token)

    cloudformation._ACTION_HANDLERS["CreateChangeSet"] = create_as_role


def _check_look_ups() -> None:
    resolve = ministack.services.ssm.resolve_parameter_value

    def resolve_as_role(name: str, *arguments: Any, **named: Any) -> Any:
        account, region = _place()
        if _role.get():
            _authorize(_role.get(), "ssm:GetParameters", f"arn:aws:ssm:{region}:{account}:parameter{name}")
        return resolve(name, *arguments, **named)

    ministack.services.ssm.resolve_parameter_value = resolve_as_role


def _check(do: Callable[..., Any], event: str) -> Callable[..., Any]:
    """Refuse afterwards, as only then a resource's name is known."""

    @functools.wraps(do)
    def do_as_role(type_: str, *arguments: Any, **named: Any) -> Any:
        done = do(type_, *arguments, **named)
        id_ = arguments[0] if event == "delete" else done[0]
        properties, stack = (arguments[place] for place in ARGUMENTS[event])
        account, _ = _place()
        role = _role_of.get((*_place(), stack), "")
        for action, arn in needed(type_, event, id_, properties, account) if role else ():
            _authorize(role, action, arn)
        return done

    return do_as_role


def _authorize(role: str, action: str, arn: str) -> None:
    account, region = _place()
    name = role.rsplit("/", 1)[1]
    context = evaluator.EvalContext(
        principal_arn=role,
        principal_type="AssumedRole",
        principal_account=account,
        action=action,
        resource_arn=arn,
        region=region,
    )
    policies = evaluator._gather_role_policies(name, account)
    limits = evaluator._permissions_boundary(ministack.services.iam._roles, name, account)
    if evaluator.evaluate(context, policies, *limits).decision != "Allow":
        raise ValueError(f"AccessDenied. {role} is not authorized to perform {action} on {arn}")


def _place() -> tuple[str, str]:
    return ministack.core.responses.get_account_id(), ministack.core.responses.get_region()


if __name__ == "__main__":
    patch()
    server.main(*sys.argv[1:])
