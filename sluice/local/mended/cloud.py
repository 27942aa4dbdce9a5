"""Patches of Lambda, IAM, SSM and of the server itself; nothing of them reaches our stacks.

Each patch says what AWS does. ministack's version is pinned, and every patch checks that what it replaces is there.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import accumulate
from pathlib import Path
from threading import Timer
from typing import Any
from uuid import uuid4

import ministack.app
import ministack.core.concurrency
import ministack.core.iam_actions
import ministack.core.iam_evaluator
import ministack.core.lambda_runtime
import ministack.core.responses
import ministack.services.cloudformation.provisioners
import ministack.services.lambda_svc
import ministack.services.sqs

from sluice.local.mended.extensions import ExtensionsApi
from sluice.local.requests import BY_CALL, BY_TRIGGER, RequestLog, action_and_queue

# AWS has no permission of these names: a batch needs the permission of what it batches.
# https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/sqs-api-permissions-reference.html
BATCH_ACTIONS = {
    "sqs:SendMessageBatch": "sqs:SendMessage",
    "sqs:DeleteMessageBatch": "sqs:DeleteMessage",
    "sqs:ChangeMessageVisibilityBatch": "sqs:ChangeMessageVisibility",
}

VARIABLE = re.compile(r"\$\{(aws:[A-Za-z/-]+)\}")
FUNCTION_KEY = "lambda:FunctionArn"
# By operation, of its fields; of what they name by ARN, the last part.
ECS_RESOURCES = {
    "DescribeServices": "service/{cluster}/{services}",
    "UpdateService": "service/{cluster}/{service}",
    "RegisterTaskDefinition": "task-definition/{family}:1",
    "DescribeTasks": "task/{cluster}/{tasks}",
    "DescribeTaskDefinition": "*",
    "DeregisterTaskDefinition": "*",
    "ListTasks": "*",
}
# Lambda grants an environment with an internal extension half a second. Here everything shares the processors.
SHUTDOWN_S = 10.0
PER_REQUEST = 10  # messages that a request to SQS receives or deletes
PAYLOAD_BYTES = 6_000_000  # that AWS hands a function at most
STATE_READS = 100
RECORD_BYTES = 1_000  # of a record beside its body and attributes, at most


def authorize_batches_as_aws_does() -> None:
    """Check a batch action as the single one."""
    actions = ministack.core.iam_actions
    extract = actions.extract_iam_action

    def extract_real(*arguments: Any, **named: Any) -> str | None:
        action: str | None = extract(*arguments, **named)
        return action and BATCH_ACTIONS.get(action, action)

    actions.extract_iam_action = extract_real


def read_policy_variables() -> None:
    """Let a policy's conditions name keys of the request, `${aws:PrincipalAccount}`: their values stand there then.

    https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_variables.html
    """
    evaluator = ministack.core.iam_evaluator
    met, key_of = evaluator._conditions_met, evaluator._resolve_condition_key  # noqa: SLF001 - no public hook

    def met_with_variables(conditions: Any, context: Any) -> Any:
        def said(value: Any) -> Any:
            if isinstance(value, list):
                return [said(each) for each in value]
            if not isinstance(value, str):
                return value
            # A key that the request hasn't stays as it is written: nothing is equal to that.
            return VARIABLE.sub(lambda match: str(key_of(match[1], context) or match[0]), value)

        filled = {
            operator: {key: said(value) for key, value in keys.items()} if isinstance(keys, dict) else keys
            for operator, keys in (conditions or {}).items()
        }
        return met(filled, context)

    evaluator._conditions_met = met_with_variables  # noqa: SLF001


def take_loopback_as_secure() -> None:
    """Policies that deny plain HTTP stay as they are, and requests over loopback count as TLS."""
    pin = ministack.app.pin_request_origin

    def pin_secure(source_ip: str, secure_transport: bool) -> Any:  # noqa: ARG001, FBT001 - ministack's own signature
        return pin(source_ip, True)  # noqa: FBT003 - ministack's own signature

    ministack.app.pin_request_origin = pin_secure


def know_mappings_functions() -> None:
    """Have the condition key `lambda:FunctionArn` for event source mappings: the function that they are of.

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


def name_what_ecs_is_asked_for() -> None:
    """Check what ECS is asked for on the service, revision or tasks concerned, and not on their cluster.

    https://docs.aws.amazon.com/service-authorization/latest/reference/list_amazonelasticcontainerservice.html
    """
    actions, responses = ministack.core.iam_actions, ministack.core.responses
    extract, tags = actions.extract_resource_arn, actions.request_tag_context

    def arn(resource: str) -> str:
        if resource.startswith("arn:"):
            return resource
        return f"arn:aws:ecs:{responses.get_region()}:{responses.get_account_id()}:{resource}"

    def extract_real(service: str, method: str, path: str, headers: dict[str, str], body: bytes, *more: Any) -> str:
        operation = headers.get("x-amz-target", "").rpartition(".")[2]
        if service != "ecs" or operation not in ECS_RESOURCES:
            return str(extract(service, method, path, headers, body, *more))
        asked = json.loads(body)
        said = {name: str(value[0] if isinstance(value, list) else value) for name, value in asked.items() if value}
        last = {name: value.rsplit("/", 1)[-1] for name, value in said.items()}
        resource = ECS_RESOURCES[operation].format(**{"cluster": "default"} | last)
        return resource if resource == "*" else arn(resource)

    def tags_and_cluster(service: str, iam_action: str, body: bytes, params: Any) -> dict[str, Any]:
        context: dict[str, Any] = tags(service, iam_action, body, params)
        if iam_action == "ecs:ListTasks":
            context["ecs:cluster"] = arn(f"cluster/{json.loads(body or b'{}').get('cluster', 'default')}")
        return context

    actions.extract_resource_arn, actions.request_tag_context = extract_real, tags_and_cluster


def name_the_parameters_that_are_asked_for() -> None:
    """Check GetParameters on the first parameter that it names; ministack checks it on all there are.

    AWS checks it on each: https://docs.aws.amazon.com/service-authorization/latest/reference/list_awssystemsmanager.html
    """
    actions, responses = ministack.core.iam_actions, ministack.core.responses
    extract = actions.extract_resource_arn

    def extract_real(service: str, method: str, path: str, headers: dict[str, str], body: bytes, *more: Any) -> str:
        operation = headers.get("x-amz-target", "").rpartition(".")[2]
        names = json.loads(body).get("Names") if (service, operation) == ("ssm", "GetParameters") else None
        if not names:
            return str(extract(service, method, path, headers, body, *more))
        here = f"{responses.get_region()}:{responses.get_account_id()}"
        return f"arn:aws:ssm:{here}:parameter/{str(names[0]).removeprefix('/')}"

    actions.extract_resource_arn = extract_real


def refuse_second_mappings() -> None:
    """Let a queue and a function have one event source mapping between them."""
    functions = ministack.services.lambda_svc
    create = functions._create_esm  # noqa: SLF001 - no public hook

    def create_one(data: dict[str, Any]) -> Any:
        wanted = data.get("EventSourceArn"), data.get("FunctionName", "").rsplit(":", 1)[-1]
        for mapping in functions._esms.values():  # noqa: SLF001 - see above
            if (mapping["EventSourceArn"], mapping["FunctionName"]) == wanted:
                text = f"An event source mapping with these arguments exists already: {mapping['UUID']}"
                return functions.error_response_json("ResourceConflictException", text, 409)
        return create(data)

    functions._create_esm = create_one  # noqa: SLF001 - see above


def show_deployed_mappings_as_they_are() -> None:
    """Let an event source mapping that is deployed switched off say so."""
    handlers = ministack.services.cloudformation.provisioners._RESOURCE_HANDLERS  # noqa: SLF001 - no public hook
    table, mappings = handlers["AWS::Lambda::EventSourceMapping"], ministack.services.lambda_svc._esms  # noqa: SLF001
    create = table["create"]

    def create_shown(*arguments: Any) -> Any:
        made = create(*arguments)
        mapping = mappings[made[0]]
        mapping["State"] = "Enabled" if mapping["Enabled"] else "Disabled"
        return made

    table["create"] = create_shown


def name_by_region() -> None:
    """Let generated names differ from region to region: what is global, as roles and users are, is there for each."""
    provisioners, responses = ministack.services.cloudformation.provisioners, ministack.core.responses
    physical, seed = provisioners._physical_name, provisioners._NAME_SEED  # noqa: SLF001 - no public hook

    def physical_by_region(stack_name: str, logical_id: str, *, seeded: bool = True, **named: Any) -> str:
        own = seed.get() if seeded else ""
        token = seed.set(f"{responses.get_account_id()}/{responses.get_region()}/{own}")
        try:
            name: str = physical(stack_name, logical_id, **named)
        finally:
            seed.reset(token)
        return name

    provisioners._physical_name = physical_by_region  # noqa: SLF001 - see above


def run_functions_with(python: Path) -> None:
    """Functions run with `python`, not with the interpreter that runs the cloud."""
    runtime = ministack.core.lambda_runtime
    detect = runtime._detect_runtime_binary  # noqa: SLF001 - the one place where ministack chooses an interpreter

    def detect_ours(name: str) -> tuple[str, str]:
        binary, worker = detect(name)
        return (str(python), worker) if name.startswith("python") else (binary, worker)

    runtime._detect_runtime_binary = detect_ours  # noqa: SLF001 - see above


def let_environments_fail_alone() -> None:
    """Let an execution environment that doesn't start fail its own invocation; those beside it run on.

    https://docs.aws.amazon.com/lambda/latest/dg/lambda-runtime-environment.html
    """
    worker = ministack.core.lambda_runtime.Worker
    invoke = worker.invoke

    def invoke_alone(self: Any, *arguments: Any, **named: Any) -> dict[str, Any]:
        try:
            return invoke(self, *arguments, **named)  # type: ignore[no-any-return]  # ministack has no types
        except Exception as error:  # noqa: BLE001 - raised, it would end all environments of the function
            self.kill()
            return {"status": "error", "error": str(error)}

    worker.invoke = invoke_alone


def end_environments_whole() -> None:
    """End an environment with all its processes, at once: at a time-out, and wherever ministack ends one.

    ministack ends the one process that it has started; that one's children live on, with nobody who could end them.
    Here each environment is a process group of its own. On AWS a time-out resets the environment, as a shutdown does,
    and nothing that ran in it goes on. One that has registered an extension gets SIGTERM, and half a second.
    https://docs.aws.amazon.com/lambda/latest/dg/lambda-runtime-environment.html
    """
    runtime = ministack.core.lambda_runtime
    extensions = ExtensionsApi()
    collect = runtime._collect  # noqa: SLF001 - the one place where ministack waits for a process that it has ended

    def end(process: Any) -> None:
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            if extensions.has_registered(process.extension_token):
                os.killpg(process.pid, signal.SIGCONT)  # it may be frozen
                process.terminate()
            else:
                os.killpg(process.pid, signal.SIGKILL)

    def collect_whole(process: Any, deadline: float) -> None:
        collect(process, deadline)
        if process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)

    runtime.subprocess = _Grouped(extensions)
    runtime._signal = end  # noqa: SLF001 - the one place where ministack asks a process to end
    runtime._collect = collect_whole  # noqa: SLF001 - see above
    runtime._REAP_GRACE = SHUTDOWN_S  # noqa: SLF001 - see above


class _Grouped:
    """The module `subprocess`, but a process that it starts leads a process group and has an Extensions API."""

    def __init__(self, extensions: ExtensionsApi) -> None:
        self._extensions = extensions

    def __getattr__(self, name: str) -> Any:
        return self._start if name == "Popen" else getattr(subprocess, name)

    def _start(self, *arguments: Any, env: Mapping[str, str], **named: Any) -> Any:
        token = uuid4().hex
        variables = {"AWS_LAMBDA_RUNTIME_API": self._extensions.address(token), **env}
        start: Any = subprocess.Popen
        process = start(*arguments, env=variables, process_group=0, **named)
        process.extension_token = token
        return process


def keep_state_whole(end: Callable[[], None]) -> None:
    """Keep each service's state though triggers go on at work, and be done as soon as it is kept.

    ministack reads a state once, and goes without it where that changes meanwhile: all queues would be lost. And it
    ends when the last invocation has, which nobody can hear any more.
    """
    app = ministack.app
    save = app.save_all

    def read(get_state: Callable[[], Any]) -> Any:
        for _ in range(STATE_READS):
            with contextlib.suppress(RuntimeError):  # "changed size during iteration"
                return get_state()
        return get_state()

    def save_whole(services: dict[str, Callable[[], Any]]) -> None:
        save({name: partial(read, get_state) for name, get_state in services.items()})
        end()

    app.save_all = save_whole


def log_requests(log: RequestLog) -> None:
    """Note every SQS request, and what the triggers do where AWS's would make one."""
    sqs = ministack.services.sqs
    handle = sqs.handle_request

    async def handle_logged(
        method: str, path: str, headers: dict[str, str], body: bytes, query: dict[str, Any]
    ) -> tuple[int, Any, Any]:
        response: tuple[int, Any, Any] = await handle(method, path, headers, body, query)
        action, queue = action_and_queue(headers, body, query)
        log.note(action=action, queue=queue or path.rsplit("/", 1)[-1], by=BY_CALL, status=response[0])
        return response

    sqs.handle_request = handle_logged
    receive, delete = sqs._receive_messages_for_esm, sqs._delete_messages_for_esm  # noqa: SLF001 - no public hook

    def receive_logged(queue_url: str, max_number: int) -> list[dict[str, Any]]:
        messages: list[dict[str, Any]] = receive(queue_url, max_number)
        if messages:
            log.note(action="ReceiveMessage", queue=queue_url.rsplit("/", 1)[-1], by=BY_TRIGGER)
        return messages

    def delete_logged(queue_url: str, receipt_handles: set[str]) -> None:
        delete(queue_url, receipt_handles)
        for _ in range(0, len(receipt_handles), PER_REQUEST):
            log.note(action="DeleteMessageBatch", queue=queue_url.rsplit("/", 1)[-1], by=BY_TRIGGER)

    sqs._receive_messages_for_esm, sqs._delete_messages_for_esm = receive_logged, delete_logged  # noqa: SLF001


def fill_batches() -> None:
    """Let a trigger wait for a full batch as long as its batching window says, from the first message on.

    It takes ten messages a request, and no more than a function is handed.

    https://docs.aws.amazon.com/lambda/latest/dg/services-sqs-configure.html
    """
    sqs, functions = ministack.services.sqs, ministack.services.lambda_svc
    wake, lock, mappings = ministack.core.concurrency.esm_wake, sqs._queues_lock, functions._esms  # noqa: SLF001 - no public hook
    queue_of, receive = sqs._get_q, sqs._receive_messages_for_esm  # noqa: SLF001 - see above
    began: dict[str, float] = {}  # by the queue's ARN, while a batch is waited for

    def receive_full(queue_url: str, max_number: int) -> list[dict[str, Any]]:
        arn = queue_of(queue_url)["attributes"]["QueueArn"]
        of_queue = (each for each in mappings.values() if each["EventSourceArn"] == arn)
        window_s = max((each.get("MaximumBatchingWindowInSeconds") or 0 for each in of_queue), default=0)
        if not window_s:
            return receive(queue_url, max_number)  # type: ignore[no-any-return]  # ministack has no types
        with lock:
            now = time.time()
            waiting = [each for each in queue_of(queue_url)["messages"] if each.get("visible_at", 0) <= now]
        if not waiting:
            began.pop(arn, None)
            return []
        if len(waiting) < max_number and waits(arn, window_s):
            return []
        began.pop(arn, None)
        wanted = min(max_number, _fitting(waiting))
        batch: list[dict[str, Any]] = []
        while len(batch) < wanted and (part := receive(queue_url, min(PER_REQUEST, wanted - len(batch)))):
            batch += part
        return batch

    def waits(arn: str, window_s: float) -> bool:
        if arn not in began:
            began[arn] = time.monotonic()
            look = Timer(window_s, wake.set)
            look.daemon = True  # a cloud that is stopped doesn't wait for it
            look.start()
        return time.monotonic() - began[arn] < window_s

    sqs._receive_messages_for_esm = receive_full  # noqa: SLF001 - see above


def _fitting(messages: Iterable[dict[str, Any]]) -> int:
    """How many of the first a function can be handed, at least one."""
    sizes = (len(json.dumps([message["body"], message.get("message_attributes")])) for message in messages)
    return max(1, sum(size <= PAYLOAD_BYTES for size in accumulate(size + RECORD_BYTES for size in sizes)))
