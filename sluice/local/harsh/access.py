"""Changes of access keys, roles and policies that take effect with a delay."""

import re
import time
from collections.abc import Callable
from typing import Any

import ministack.core.iam_evaluator
import ministack.core.responses
import ministack.services.iam
import ministack.services.lambda_svc
import ministack.services.sqs

from sluice.local.harsh.behaviours import Behaviours

ACCESS_KEY_ID = re.compile(rb"<AccessKeyId>(\w+)</AccessKeyId>")
# Actions that change permissions, grouped by the parameter that names the role or user.
POLICY_CHANGES = {
    "RoleName": ("CreateRole", "PutRolePolicy", "DeleteRolePolicy", "AttachRolePolicy", "DetachRolePolicy"),
    "UserName": ("PutUserPolicy", "DeleteUserPolicy", "AttachUserPolicy", "DetachUserPolicy"),
}
POLICY_ACTIONS = frozenset({"SetQueueAttributes", "AddPermission", "RemovePermission"})
UNKNOWN_KEY = "The security token included in the request is invalid."
NO_ROLE = "The role defined for the function cannot be assumed by Lambda."


def change_access_slowly(behaviours: Behaviours) -> Callable[[str], bool]:
    """Delay the effect of new access keys, new roles, and changed policies of roles and users.

    On AWS, "a change that you make in IAM … takes time to become visible". Until then a new key is unknown, Lambda
    can't assume a new role, and old policies apply. Changes by CloudFormation take effect at once.

    Returns a function that takes the name of a role in the request's account, and returns whether a change is pending.
    https://docs.aws.amazon.com/IAM/latest/UserGuide/troubleshoot.html
    """
    iam, evaluator, functions = ministack.services.iam, ministack.core.iam_evaluator, ministack.services.lambda_svc
    handlers, authenticate = iam._IAM_HANDLERS, evaluator.authenticate  # noqa: SLF001 - no public hook
    create_at_once = functions._create_function  # noqa: SLF001 - see above
    effective_times: dict[tuple[str, ...], float] = {}

    def compute_effective_time() -> float:
        return time.monotonic() + behaviours.scale_delay(behaviours.access_changes_s)

    def is_new(*name_parts: str) -> bool:
        return time.monotonic() < effective_times.get(name_parts, 0)

    make_key, make_role = handlers["CreateAccessKey"], handlers["CreateRole"]

    def make_key_slowly(parameters: Any) -> Any:
        response = make_key(parameters)
        for key in ACCESS_KEY_ID.findall(response[2]):
            effective_times["key", key.decode()] = compute_effective_time()
        return response

    def make_role_slowly(parameters: Any) -> Any:
        response = make_role(parameters)
        effective_times["role", _get_account(), iam._p(parameters, "RoleName")] = compute_effective_time()  # noqa: SLF001 - see above
        return response

    def authenticate_later(access_key: str, account: str) -> Any:
        return (
            evaluator.AuthError("InvalidClientTokenId", UNKNOWN_KEY)
            if is_new("key", access_key)
            else authenticate(access_key, account)
        )

    def create_function_later(data: dict[str, Any]) -> Any:
        if is_new("role", _get_account(), str(data.get("Role", "")).rsplit("/", 1)[-1]):
            return functions.error_response_json("InvalidParameterValueException", NO_ROLE, 400)
        return create_at_once(data)

    handlers |= {"CreateAccessKey": make_key_slowly, "CreateRole": make_role_slowly}
    evaluator.authenticate, functions._create_function = authenticate_later, create_function_later  # noqa: SLF001 - see above
    _delay_policies("UserName", "_gather_user_policies", compute_effective_time)
    return _delay_policies("RoleName", "_gather_role_policies", compute_effective_time)


def change_queue_policies_slowly(behaviours: Behaviours) -> None:
    """Delay the effect of a changed queue policy. Requests that read the policy get the new policy at once.

    A change of a queue's attributes "can take up to 60 seconds for most of the attributes to propagate".
    https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_SetQueueAttributes.html
    """
    sqs = ministack.services.sqs
    dispatch, enforce, policy_of = sqs._dispatch, sqs._enforce_queue_policy, sqs.queue_policy_for_arn  # noqa: SLF001
    old_policies: dict[str, tuple[float, str]] = {}  # the end of an old policy, and the policy, by queue ARN

    def get_effective_policy(arn: str, policy: str) -> str:
        until, old = old_policies.get(arn, (0.0, ""))
        return old if time.monotonic() < until else policy

    async def dispatch_delayed(action: str, data: dict[str, Any], queue_url: str) -> Any:
        held = None
        if action in POLICY_ACTIONS:
            queue = sqs._get_q(data.get("QueueUrl") or queue_url)  # noqa: SLF001 - no public hook
            arn, policy = queue["attributes"]["QueueArn"], queue["attributes"].get("Policy") or ""
            held = arn, policy, get_effective_policy(arn, policy)
        result = await dispatch(action, data, queue_url)
        if held is not None and (queue["attributes"].get("Policy") or "") != held[1]:
            old_policies[held[0]] = time.monotonic() + behaviours.scale_delay(behaviours.queue_policy_acts_s), held[2]
        return result

    def enforce_delayed(queue: dict[str, Any], action: str) -> None:
        attributes = queue["attributes"]
        policy = get_effective_policy(attributes["QueueArn"], attributes.get("Policy") or "")
        enforce({**queue, "attributes": {**attributes, "Policy": policy}}, action)

    def find_policy(arn: str) -> tuple[str, str] | None:
        policy: tuple[str, str] | None = policy_of(arn)
        return policy and (get_effective_policy(arn, policy[0]), policy[1])

    sqs._dispatch, sqs._enforce_queue_policy = dispatch_delayed, enforce_delayed  # noqa: SLF001
    sqs.queue_policy_for_arn = find_policy


def _delay_policies(parameter: str, gather_name: str, compute_end: Callable[[], float]) -> Callable[[str], bool]:
    """Delay the effect of changed policies. Returns a function from a name to whether a change is pending."""
    handlers, evaluator = ministack.services.iam._IAM_HANDLERS, ministack.core.iam_evaluator  # noqa: SLF001 - no public hook
    gather_policies = getattr(evaluator, gather_name)
    earlier_policies: dict[tuple[str, str], tuple[float, list[Any]]] = {}

    def gather_delayed(name: str, account: str) -> list[Any]:
        until, old = earlier_policies.get((account, name), (0.0, []))
        return old if time.monotonic() < until else gather_policies(name, account)

    def delay_change(handler: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def change_later(parameters: Any) -> Any:
            name, account = ministack.services.iam._p(parameters, parameter), _get_account()  # noqa: SLF001 - see above
            old = gather_delayed(name, account)
            response = handler(parameters)
            earlier_policies[account, name] = compute_end(), old
            return response

        return change_later

    def is_change_pending(name: str) -> bool:
        until, old = earlier_policies.get((_get_account(), name), (0.0, []))
        return time.monotonic() < until and old != gather_policies(name, _get_account())

    handlers |= {action: delay_change(handlers[action]) for action in POLICY_CHANGES[parameter]}
    setattr(evaluator, gather_name, gather_delayed)
    return is_change_pending


def _get_account() -> str:
    account: str = ministack.core.responses.get_account_id()
    return account
