"""Patches of ministack's authorization of requests."""

import json
import re
from typing import Any

import ministack.app
import ministack.core.iam_actions
import ministack.core.iam_evaluator
import ministack.core.responses
import ministack.services.lambda_svc

BATCH_ACTIONS = {
    "sqs:SendMessageBatch": "sqs:SendMessage",
    "sqs:DeleteMessageBatch": "sqs:DeleteMessage",
    "sqs:ChangeMessageVisibilityBatch": "sqs:ChangeMessageVisibility",
}
VARIABLE = re.compile(r"\$\{(aws:[A-Za-z/-]+)\}")
FUNCTION_KEY = "lambda:FunctionArn"
# Formats of resource ARNs by operation, with the names of request fields. A field that is an ARN gives its last part.
ECS_RESOURCES = {
    "DescribeServices": "service/{cluster}/{services}",
    "UpdateService": "service/{cluster}/{service}",
    "RegisterTaskDefinition": "task-definition/{family}:1",
    "DescribeTasks": "task/{cluster}/{tasks}",
    "DescribeTaskDefinition": "*",
    "DeregisterTaskDefinition": "*",
    "ListTasks": "*",
}


def patch() -> None:
    """Apply all patches of this module, once."""
    authorize_batches_as_aws_does()
    read_policy_variables()
    take_loopback_as_secure()
    add_function_condition_key()
    check_named_resources()


def authorize_batches_as_aws_does() -> None:
    """Authorize a batch action like the action on a single message.

    For a batch ministack requires a permission such as `sqs:SendMessageBatch`. AWS requires the permission of the
    single action.
    https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/sqs-api-permissions-reference.html
    """
    actions = ministack.core.iam_actions
    extract = actions.extract_iam_action

    def extract_single_action(*arguments: Any, **named: Any) -> str | None:
        action: str | None = extract(*arguments, **named)
        return action and BATCH_ACTIONS.get(action, action)

    actions.extract_iam_action = extract_single_action


def read_policy_variables() -> None:
    """Replace variables such as `${aws:PrincipalAccount}` in a policy's conditions by the request's values.

    ministack compares the variable's name as text. AWS replaces it; a variable without a value matches nothing.
    https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_variables.html
    """
    evaluator = ministack.core.iam_evaluator
    met, key_of = evaluator._conditions_met, evaluator._resolve_condition_key  # noqa: SLF001 - no public hook

    def meet_conditions(conditions: Any, context: Any) -> Any:
        def substitute(value: Any) -> Any:
            if isinstance(value, list):
                return [substitute(item) for item in value]
            if not isinstance(value, str):
                return value
            # A variable without a value in the request stays as text, which equals no value.
            return VARIABLE.sub(lambda match: str(key_of(match[1], context) or match[0]), value)

        filled = {
            operator: {key: substitute(value) for key, value in keys.items()} if isinstance(keys, dict) else keys
            for operator, keys in (conditions or {}).items()
        }
        return met(filled, context)

    evaluator._conditions_met = meet_conditions  # noqa: SLF001


def take_loopback_as_secure() -> None:
    """Evaluate `aws:SecureTransport` as true for requests over loopback.

    ministack serves plain HTTP, and evaluates the key as false. Requests to AWS use TLS, which policies require.
    https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_condition-keys.html#condition-keys-securetransport
    """
    pin = ministack.app.pin_request_origin

    def pin_secure(source_ip: str, secure_transport: bool) -> Any:  # noqa: ARG001, FBT001 - ministack's own signature
        return pin(source_ip, True)  # noqa: FBT003 - ministack's own signature

    ministack.app.pin_request_origin = pin_secure


def add_function_condition_key() -> None:
    """Add the condition key `lambda:FunctionArn`, the mapping's function, to requests about event source mappings.

    ministack lacks the key, so statements that limit a role to mappings of certain functions match nothing.
    https://docs.aws.amazon.com/service-authorization/latest/reference/list_awslambda.html
    """
    actions, evaluator = ministack.core.iam_actions, ministack.core.iam_evaluator
    tags, enforce = actions.request_tag_context, evaluator.enforce

    def tags_and_function(service: str, iam_action: str, body: bytes, params: Any) -> dict[str, Any]:
        context: dict[str, Any] = tags(service, iam_action, body, params)
        if iam_action == "lambda:CreateEventSourceMapping":
            name = json.loads(body)["FunctionName"]
            context[FUNCTION_KEY] = ministack.services.lambda_svc._func_arn(name)  # noqa: SLF001 - what ministack makes of it
        return context

    def enforce_with_function(access_key: str, iam_action: str, service: str, region: str, **named: Any) -> Any:
        mapping = ministack.services.lambda_svc._esms.get(named.get("resource_arn", "").rsplit(":", 1)[-1])  # noqa: SLF001
        if service == "lambda" and mapping is not None:
            named["service_context"] = {**(named.get("service_context") or {}), FUNCTION_KEY: mapping["FunctionArn"]}
        return enforce(access_key, iam_action, service, region, **named)

    actions.request_tag_context, evaluator.enforce = tags_and_function, enforce_with_function


def check_named_resources() -> None:
    """Authorize an ECS request by its service, task or revision, and `GetParameters` by its first parameter.

    An invocation of an alias is authorized by the alias, and a simulation by the role whose policies are simulated.

    ministack authorizes ECS requests by the cluster, `GetParameters` by `*`, and invocations by the function. AWS
    authorizes as the patch does, checks every parameter, and gives `ListTasks` the condition key `ecs:cluster`.
    https://docs.aws.amazon.com/service-authorization/latest/reference/list_amazonelasticcontainerservice.html
    https://docs.aws.amazon.com/service-authorization/latest/reference/list_awssystemsmanager.html
    https://docs.aws.amazon.com/lambda/latest/dg/lambda-api-permissions-ref.html
    """
    actions, responses = ministack.core.iam_actions, ministack.core.responses
    extract, tags = actions.extract_resource_arn, actions.request_tag_context

    def arn(resource: str, service: str = "ecs") -> str:
        if resource.startswith("arn:"):
            return resource
        return f"arn:aws:{service}:{responses.get_region()}:{responses.get_account_id()}:{resource}"

    def extract_real(service: str, method: str, path: str, headers: dict[str, str], body: bytes, *more: Any) -> str:
        operation = headers.get("x-amz-target", "").rpartition(".")[2]
        if (service, operation) == ("ssm", "GetParameters") and (names := json.loads(body).get("Names")):
            return arn(f"parameter/{str(names[0]).removeprefix('/')}", service)
        if service != "ecs" or operation not in ECS_RESOURCES:
            simulated = ministack.services.lambda_svc._qp_first(more[0], "PolicySourceArn") if service == "iam" else ""  # noqa: SLF001 - no public hook
            resource = simulated or str(extract(service, method, path, headers, body, *more))
            is_invocation = service == "lambda" and path.endswith("/invocations")
            qualifier = ministack.services.lambda_svc._qp_first(more[0], "Qualifier") if is_invocation else ""  # noqa: SLF001 - no public hook
            return f"{resource}:{qualifier}" if qualifier else resource
        fields = json.loads(body)
        identifiers = {
            name: str(value[0] if isinstance(value, list) else value) for name, value in fields.items() if value
        }
        last = {name: value.rsplit("/", 1)[-1] for name, value in identifiers.items()}
        resource = ECS_RESOURCES[operation].format(**{"cluster": "default"} | last)
        return resource if resource == "*" else arn(resource)

    def tags_and_cluster(service: str, iam_action: str, body: bytes, params: Any) -> dict[str, Any]:
        context: dict[str, Any] = tags(service, iam_action, body, params)
        if iam_action == "ecs:ListTasks":
            context["ecs:cluster"] = arn(f"cluster/{json.loads(body or b'{}').get('cluster', 'default')}")
        return context

    actions.extract_resource_arn, actions.request_tag_context = extract_real, tags_and_cluster
