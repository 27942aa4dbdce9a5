"""What SQS refuses of a request before anything is done: sizes, counts, and what a kind of queue doesn't take.

https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/quotas-messages.html
"""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from tests.simulation.kernel.scheduler import Unsupported
from tests.simulation.models.errors import ServiceError
from tests.simulation.models.queues import Queue

MAX_BYTES = 1_048_576
MAX_ENTRIES = 10
MAX_ATTRIBUTES = 10
MAX_DELAY_S = 900
MAX_WAIT_S = 20
MAX_VISIBILITY_S = 43_200
NAME = re.compile(r"[A-Za-z0-9_-]{1,75}(\.fifo)?|[A-Za-z0-9_-]{1,80}")
ENTRY_ID = re.compile(r"[A-Za-z0-9_-]{1,80}")
FIFO_ID = re.compile(r"[!-~]{1,128}")  # of a group, and for deduplication
REFUSED_TEXT = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
SEND = {
    "MessageBody",
    "MessageAttributes",
    "MessageSystemAttributes",
    "MessageGroupId",
    "MessageDeduplicationId",
    "DelaySeconds",
}
# https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_SetQueueAttributes.html
NUMBERS = {
    "VisibilityTimeout": (0, MAX_VISIBILITY_S),
    "MaximumMessageSize": (1024, MAX_BYTES),
    "MessageRetentionPeriod": (60, 1_209_600),
    "DelaySeconds": (0, MAX_DELAY_S),
    "ReceiveMessageWaitTimeSeconds": (0, MAX_WAIT_S),
    "KmsDataKeyReusePeriodSeconds": (60, 86_400),
}
SETTABLE = NUMBERS.keys() | {
    "RedrivePolicy",
    "RedriveAllowPolicy",
    "Policy",
    "KmsMasterKeyId",
    "SqsManagedSseEnabled",
    "FifoQueue",
    "ContentBasedDeduplication",
    "DeduplicationScope",
    "FifoThroughputLimit",
}


def check_name(name: str, attributes: Mapping[str, str]) -> None:
    """Refuse a queue's name. Raises `ServiceError`."""
    if not NAME.fullmatch(name) or len(name) > 80:
        raise ServiceError("InvalidParameterValue", "Can only include alphanumeric characters, hyphens, or underscores")
    if name.endswith(".fifo") != (attributes.get("FifoQueue") == "true") or attributes.get("FifoQueue") == "false":
        raise ServiceError("InvalidParameterValue", "The name of a FIFO queue can only end with .fifo")


def check_attributes(attributes: Mapping[str, str]) -> None:
    """Refuse a queue's attributes. Raises `ServiceError`."""
    if attributes.keys() - SETTABLE:
        raise ServiceError("InvalidAttributeName", f"Unknown Attribute {min(attributes.keys() - SETTABLE)}.")
    for name, (least, most) in NUMBERS.items():
        given = attributes.get(name, str(least))
        if not re.fullmatch(r"-?\d+", given) or not least <= int(given) <= most:
            raise ServiceError("InvalidAttributeValue", f"Invalid value for the parameter {name}.")


def check_receive(limit: int, wait_s: float, visibility_s: float | None) -> None:
    """Refuse a receive. Raises `ServiceError`."""
    if not 1 <= limit <= MAX_ENTRIES:
        raise ServiceError("InvalidParameterValue", "Value for parameter MaxNumberOfMessages is invalid")
    if not 0 <= wait_s <= MAX_WAIT_S:
        raise ServiceError("InvalidParameterValue", "Value for parameter WaitTimeSeconds is invalid")
    if visibility_s is not None:
        check_visibility(visibility_s)


def check_visibility(timeout_s: float) -> None:
    """Refuse a visibility timeout. Raises `ServiceError`."""
    if not 0 <= timeout_s <= MAX_VISIBILITY_S:
        raise ServiceError("InvalidParameterValue", "Value for parameter VisibilityTimeout is invalid")


def check_entries(entries: Sequence[Mapping[str, Any]]) -> None:
    """Refuse a batch for what it is. Raises `ServiceError`."""
    if not entries:
        raise ServiceError("AWS.SimpleQueueService.EmptyBatchRequest", "There should be at least one entry")
    if len(entries) > MAX_ENTRIES:
        raise ServiceError("AWS.SimpleQueueService.TooManyEntriesInBatchRequest", "Maximum number of entries is 10")
    seen: set[str] = set()
    for entry in entries:
        if not ENTRY_ID.fullmatch(entry["Id"]):
            raise ServiceError("AWS.SimpleQueueService.InvalidBatchEntryId", "A batch entry id can only contain …")
        if entry["Id"] in seen:
            raise ServiceError("AWS.SimpleQueueService.BatchEntryIdsNotDistinct", "Two entries have the same Id")
        seen.add(entry["Id"])


def check_message(queue: Queue, entry: Mapping[str, Any]) -> None:
    """Refuse a message for what it is. Raises `ServiceError`."""
    if entry.keys() - SEND:
        raise Unsupported(f"SendMessage with {sorted(entry.keys() - SEND)}")
    body = entry["MessageBody"]
    if not body:
        raise ServiceError("MissingParameter", "The request must contain the parameter MessageBody.")
    if REFUSED_TEXT.search(body):
        raise ServiceError("InvalidMessageContents", "Invalid characters found")
    if len(entry.get("MessageAttributes", {})) > MAX_ATTRIBUTES:
        raise ServiceError("InvalidParameterValue", "Number of message attributes exceeds the allowed maximum [10].")
    if not 0 <= float(entry.get("DelaySeconds", 0)) <= (0 if queue.fifo else MAX_DELAY_S):
        raise ServiceError("InvalidParameterValue", "Value for parameter DelaySeconds is invalid")
    if not queue.fifo and entry.get("MessageDeduplicationId") is not None:
        raise ServiceError("InvalidParameterValue", "A parameter that isn't valid for this queue")
    for name in ("MessageGroupId", "MessageDeduplicationId"):
        if entry.get(name) is not None and not FIFO_ID.fullmatch(entry[name]):
            raise ServiceError("InvalidParameterValue", f"{name} can only include alphanumeric and punctuation …")
    if queue.fifo and not entry.get("MessageGroupId"):
        raise ServiceError("MissingParameter", "The request must contain the parameter MessageGroupId.")


def asked_for(answer: dict[str, Any], system: Collection[str], names: Collection[str]) -> dict[str, Any]:
    """Give of a received message the attributes that are asked for; all where `All` is, and by a prefix with `.*`."""
    kept = {name: value for name, value in answer.items() if name not in {"Attributes", "MessageAttributes"}}
    attributes = {name: text for name, text in answer["Attributes"].items() if "All" in system or name in system}
    prefixes = tuple(name[:-2] for name in names if name.endswith(".*"))
    given = {
        name: value
        for name, value in answer.get("MessageAttributes", {}).items()
        if "All" in names or name in names or name.startswith(prefixes)
    }
    return kept | ({"Attributes": attributes} if attributes else {}) | ({"MessageAttributes": given} if given else {})


def size_of(entry: Mapping[str, Any]) -> int:
    """Count a message's bytes, as SQS does."""
    size = len(entry["MessageBody"].encode())
    for name, value in entry.get("MessageAttributes", {}).items():
        content = value.get("StringValue", value.get("BinaryValue", b""))
        size += len(name) + len(value["DataType"])
        size += len(content) if isinstance(content, bytes) else len(content.encode())
    return size
