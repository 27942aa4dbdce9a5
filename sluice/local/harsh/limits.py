"""Enforces AWS's limits on names, tags, policies, messages and environment variables, which ministack doesn't check."""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import ministack.services.cloudformation.provisioners
import ministack.services.lambda_svc
import ministack.services.sqs

from sluice.aws_rules import find_dead_letter_fault, find_mapping_fault

# https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/quotas-queues.html
QUEUE_NAME = re.compile(r"[A-Za-z0-9_-]{1,80}")
FIFO_NAME = re.compile(r"(?=.{6,80}$)[A-Za-z0-9_-]+\.fifo")
TAGS = 50
TAG_KEY = re.compile(r"(?!aws:)[\w\s.:/=+@-]{1,128}")
TAG_VALUE = re.compile(r"(?!aws:)[\w\s.:/=+@-]{0,256}")
# https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_SetQueueAttributes.html
QUEUE_ATTRIBUTES = frozenset(
    {
        "DelaySeconds",
        "MaximumMessageSize",
        "MessageRetentionPeriod",
        "Policy",
        "ReceiveMessageWaitTimeSeconds",
        "VisibilityTimeout",
        "RedrivePolicy",
        "RedriveAllowPolicy",
        "KmsMasterKeyId",
        "KmsDataKeyReusePeriodSeconds",
        "SqsManagedSseEnabled",
        "FifoQueue",
        "ContentBasedDeduplication",
        "DeduplicationScope",
        "FifoThroughputLimit",
    }
)
# https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/quotas-policies.html
POLICY_BYTES, POLICY_STATEMENTS, POLICY_PRINCIPALS, POLICY_CONDITIONS, STATEMENT_ACTIONS = 8192, 20, 50, 10, 7
# https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/quotas-messages.html
MESSAGE_BYTES = 1_048_576  # maximum bytes of a message or batch, attributes included
ATTRIBUTES = 10
# https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/sqs-message-metadata.html
ATTRIBUTE_NAME = re.compile(r"(?!\.)(?!.*\.\.)(?!.*\.$)(?!(?i:aws|amazon)\.)[A-Za-z0-9_.-]{1,256}")
ATTRIBUTE_TYPE = re.compile(r"(?=.{1,256}$)(?:String|Number|Binary)(?:\..*)?")
# https://docs.aws.amazon.com/lambda/latest/dg/gettingstarted-limits.html
ENVIRONMENT_BYTES = 4096
NOTHING_STORED: Mapping[str, Mapping[str, Any]] = {}


def enforce_queue_limits() -> None:
    """Refuse the names, tags, attributes, policies and messages that SQS refuses. Each limit above names its AWS page.

    Policies in CloudFormation templates are checked, too.
    """
    sqs, provisioners = ministack.services.sqs, ministack.services.cloudformation.provisioners
    dispatch, send = sqs._dispatch, sqs._act_send_message  # noqa: SLF001 - no public hook
    handler, document = sqs._HANDLERS["SendMessage"], provisioners._policy_document_json  # noqa: SLF001 - see above

    async def dispatch_limited(action: str, data: dict[str, Any], queue_url: str) -> Any:
        _raise_first(_find_request_faults(action, data))
        _raise_first(_find_dead_letter_faults(data, queue_url))
        return await dispatch(action, data, queue_url)

    def send_limited(sending: Any, data: dict[str, Any], queue_url: str) -> Any:
        _raise_first(_find_message_faults(data))
        return sending(data, queue_url)

    def document_limited(properties: dict[str, Any]) -> str:
        text: str = document(properties)
        if "Queues" in properties:
            _raise_first(_find_policy_faults(text))
        return text

    sqs._dispatch, sqs._act_send_message = dispatch_limited, partial(send_limited, send)  # noqa: SLF001 - see above
    sqs._HANDLERS["SendMessage"] = partial(send_limited, handler)  # noqa: SLF001 - see above
    provisioners._policy_document_json = document_limited  # noqa: SLF001 - see above


def enforce_function_limits() -> None:
    """Refuse a function whose environment variables exceed 4 KB, whether an API call or CloudFormation creates it.

    https://docs.aws.amazon.com/lambda/latest/dg/configuration-envvars.html
    """
    _limit_resources("AWS::Lambda::Function", ("_create_function", "_update_config"), _find_environment_refusal)


def enforce_mapping_limits() -> None:
    """Refuse a queue's event source mapping if `find_mapping_fault` finds a fault, also in CloudFormation."""
    mappings = ministack.services.lambda_svc._esms  # noqa: SLF001 - no public hook
    _limit_resources("AWS::Lambda::EventSourceMapping", ("_create_esm", "_update_esm"), _find_mapping_refusal, mappings)


def _limit_resources(
    type_: str,
    calls: tuple[str, str],
    find_refusal: Callable[[Mapping[str, Any]], tuple[str, str, int] | None],
    stored: Mapping[str, Mapping[str, Any]] = NOTHING_STORED,
) -> None:
    """Refuse to create or update resources of a type: in Lambda's API calls, and in CloudFormation's provisioner.

    An update is judged by the new properties, on top of the stored properties if there are any.
    """
    functions, provisioners = ministack.services.lambda_svc, ministack.services.cloudformation.provisioners
    create, update = (getattr(functions, name) for name in calls)
    table = provisioners._RESOURCE_HANDLERS[type_]  # noqa: SLF001 - no public hook
    provision, reprovision = table["create"], table["update"]

    def call_or_refuse(properties: Mapping[str, Any], call: Callable[..., Any], *arguments: Any) -> Any:
        refusal = find_refusal(properties)
        return functions.error_response_json(*refusal) if refusal else call(*arguments)

    def call_or_raise(properties: Mapping[str, Any], call: Callable[..., Any], *arguments: Any) -> Any:
        if refusal := find_refusal(properties):
            raise ValueError(refusal[1])
        return call(*arguments)

    def create_limited(data: dict[str, Any]) -> Any:
        return call_or_refuse(data, create, data)

    def update_limited(name: str, data: dict[str, Any]) -> Any:
        return call_or_refuse({**(stored.get(name) or {}), **data}, update, name, data)

    def provision_limited(logical_id: str, properties: dict[str, Any], *rest: Any) -> Any:
        return call_or_raise(properties, provision, logical_id, properties, *rest)

    def reprovision_limited(physical_id: str, old: Any, properties: dict[str, Any], *rest: Any) -> Any:
        return call_or_raise(properties, reprovision, physical_id, old, properties, *rest)

    for name, limited in zip(calls, (create_limited, update_limited), strict=True):
        setattr(functions, name, limited)
    table["create"], table["update"] = provision_limited, reprovision_limited


Refusal = tuple[str, str]  # SQS's error code and message


def _raise_first(faults: Iterable[Refusal]) -> None:
    for code, text in faults:
        raise ministack.services.sqs._Err(code, text)  # noqa: SLF001 - what its dispatcher answers with


def _find_request_faults(action: str, data: Mapping[str, Any]) -> Iterable[Refusal]:
    attributes: Mapping[str, str] = data.get("Attributes") or {}
    if action == "CreateQueue":
        name = str(data.get("QueueName", ""))
        if not (QUEUE_NAME.fullmatch(name) or FIFO_NAME.fullmatch(name)):
            text = "Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length"
            yield "InvalidParameterValue", text
        yield from _find_tag_faults(data.get("tags") or data.get("Tags") or {})
    if action in {"CreateQueue", "SetQueueAttributes"}:
        for name in attributes.keys() - QUEUE_ATTRIBUTES:
            yield "InvalidAttributeName", f"Unknown Attribute {name}."
        if attributes.get("Policy"):
            yield from _find_policy_faults(attributes["Policy"])
    if action == "TagQueue":
        yield from _find_tag_faults(data.get("Tags") or {})
    if action == "SendMessageBatch":
        size = sum(map(_measure_message, data.get("Entries") or []))
        if size > MESSAGE_BYTES:
            text = f"Batch requests cannot be longer than {MESSAGE_BYTES} bytes. You have sent {size} bytes."
            yield "BatchRequestTooLong", text


def _find_dead_letter_faults(data: Mapping[str, Any], queue_url: str) -> Iterable[Refusal]:
    """Yield an error if the dead-letter queue doesn't allow this source queue. SQS's error text is not documented."""
    policy, sqs = (data.get("Attributes") or {}).get("RedrivePolicy"), ministack.services.sqs
    target = json.loads(policy).get("deadLetterTargetArn", "") if policy else ""
    dead_letter = sqs._queue_by_arn(target)  # noqa: SLF001 - no public look-up
    if dead_letter is None:
        return
    name = data.get("QueueName") or queue_url.rpartition("/")[2]
    fault = find_dead_letter_fault(dead_letter["attributes"], ":".join([*target.split(":")[:5], name]))
    if fault is not None:
        yield (
            "InvalidParameterValue",
            f"Value {policy} for parameter RedrivePolicy is invalid. Reason: {target}: {fault}.",
        )


def _find_tag_faults(tags: Mapping[str, str]) -> Iterable[Refusal]:
    if len(tags) > TAGS:
        yield "InvalidParameterValue", f"Too many tags: {len(tags)}, at most {TAGS}."
    for key, value in tags.items():
        if not (TAG_KEY.fullmatch(key) and TAG_VALUE.fullmatch(str(value))):
            yield "InvalidParameterValue", f"Tag {key!r} has a key or a value that isn't valid."


def _find_policy_faults(text: str) -> Iterable[Refusal]:
    """Yield errors of a queue policy. Most quotas are for all its statements; the quota of actions is per statement."""
    wrong = "InvalidAttributeValue", "Invalid value for the parameter Policy."
    try:
        policy = json.loads(text)
    except ValueError:
        policy = None
    if not isinstance(policy, dict) or len(text.encode()) > POLICY_BYTES:
        yield wrong
        return
    statements = _as_list(policy.get("Statement", []))
    principals = 0
    for principal in filter(None, (statement.get("Principal") for statement in statements)):
        listed = principal.values() if isinstance(principal, dict) else [principal]
        principals += sum(len(_as_list(values)) for values in listed)
    conditions = sum(len(keys) for statement in statements for keys in statement.get("Condition", {}).values())
    actions = max((len(_as_list(statement.get("Action", []))) for statement in statements), default=0)
    counts = (len(statements), principals, conditions, actions)
    limits = (POLICY_STATEMENTS, POLICY_PRINCIPALS, POLICY_CONDITIONS, STATEMENT_ACTIONS)
    if any(count > limit for count, limit in zip(counts, limits, strict=True)):
        yield "OverLimit", f"The policy has {counts} statements, principals, conditions, actions: {limits} at most."


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _find_message_faults(data: Mapping[str, Any]) -> Iterable[Refusal]:
    attributes: Mapping[str, Mapping[str, Any]] = data.get("MessageAttributes") or {}
    if len(attributes) > ATTRIBUTES:
        text = f"Number of message attributes [{len(attributes)}] exceeds the allowed maximum [{ATTRIBUTES}]."
        yield "InvalidParameterValue", text
    for name, attribute in attributes.items():
        kind = str(attribute.get("DataType", ""))
        if not ATTRIBUTE_NAME.fullmatch(name):
            yield "InvalidParameterValue", f"Message (user) attribute name {name!r} isn't valid."
        if not ATTRIBUTE_TYPE.fullmatch(kind):
            text = f"The message attribute {name!r} has an invalid type: Binary, Number and String begin a valid one."
            yield "InvalidParameterValue", text
        value = attribute.get("BinaryValue") if kind.startswith("Binary") else attribute.get("StringValue")
        if not value:
            text = f"Message (user) attribute {name!r} must contain a non-empty value of type {kind!r}."
            yield "InvalidParameterValue", text
        elif not kind.startswith("Binary") and ministack.services.sqs._INVALID_SQS_CHARS_RE.search(str(value)):  # noqa: SLF001
            yield "InvalidMessageContents", f"Message (user) attribute {name!r} has characters outside the allowed set."
    if _measure_message(data) > MESSAGE_BYTES:
        yield "InvalidParameterValue", f"Message must be shorter than {MESSAGE_BYTES} bytes."


def _measure_message(message: Mapping[str, Any]) -> int:
    """Count the bytes of the message body, and of each attribute's name, type and value, as SQS does."""
    size = len(str(message.get("MessageBody", "")).encode("utf-8", "surrogatepass"))
    for name, attribute in (message.get("MessageAttributes") or {}).items():
        value = str(attribute.get("StringValue") or "").encode("utf-8", "surrogatepass")
        binary = len(str(attribute.get("BinaryValue") or "")) * 3 // 4  # The value is Base64 text here.
        size += len(name) + len(str(attribute.get("DataType", ""))) + len(value) + binary
    return size


def _find_mapping_refusal(properties: Mapping[str, Any]) -> tuple[str, str, int] | None:
    """Apply the rules for event source mappings of queues. Mappings of other sources have other rules."""
    source = str(properties.get("EventSourceArn", ""))
    fault = find_mapping_fault(properties, fifo=source.endswith(".fifo")) if ":sqs:" in source else None
    return None if fault is None else ("InvalidParameterValueException", fault, 400)


def _find_environment_refusal(properties: Mapping[str, Any]) -> tuple[str, str, int] | None:
    """Return Lambda's error if the environment variables exceed the limit as JSON; None otherwise."""
    variables = (properties.get("Environment") or {}).get("Variables") or {}
    measured = json.dumps(variables, separators=(",", ":"), ensure_ascii=False)
    if len(measured.encode()) <= ENVIRONMENT_BYTES:
        return None
    text = (
        "Lambda was unable to configure your environment variables because the environment variables you have provided "
        f"exceeded the 4KB limit. String measured: {measured}"
    )
    return "InvalidParameterValueException", text, 400
