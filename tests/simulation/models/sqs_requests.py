"""What SQS refuses of a request before anything is done: sizes, counts, and what a kind of queue doesn't take.

https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/quotas-messages.html
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from tests.simulation.kernel.scheduler import Unsupported
from tests.simulation.models.errors import ServiceError
from tests.simulation.models.queues import Queue

MAX_BYTES = 1_048_576
MAX_ENTRIES = 10
MAX_ATTRIBUTES = 10
MAX_DELAY_S = 900
REFUSED_TEXT = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
SEND = {
    "MessageBody",
    "MessageAttributes",
    "MessageSystemAttributes",
    "MessageGroupId",
    "MessageDeduplicationId",
    "DelaySeconds",
}


def check_entries(entries: Sequence[Mapping[str, Any]]) -> None:
    """Refuse a batch for what it is. Raises `ServiceError`."""
    if not entries:
        raise ServiceError("AWS.SimpleQueueService.EmptyBatchRequest", "There should be at least one entry")
    if len(entries) > MAX_ENTRIES:
        raise ServiceError("AWS.SimpleQueueService.TooManyEntriesInBatchRequest", "Maximum number of entries is 10")
    if len({entry["Id"] for entry in entries}) < len(entries):
        raise ServiceError("AWS.SimpleQueueService.BatchEntryIdsNotDistinct", "Two or more entries have the same Id")


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
    if queue.fifo and not entry.get("MessageGroupId"):
        raise ServiceError("MissingParameter", "The request must contain the parameter MessageGroupId.")
    if not queue.fifo and entry.get("MessageDeduplicationId") is not None:
        raise ServiceError("InvalidParameterValue", "A parameter that isn't valid for this queue")
    if queue.fifo and entry.get("DelaySeconds") is not None:
        raise ServiceError("InvalidParameterValue", "A parameter that isn't valid for this queue")
    if not 0 <= float(entry.get("DelaySeconds", 0)) <= MAX_DELAY_S:
        raise ServiceError("InvalidParameterValue", "Value for parameter DelaySeconds is invalid")


def size_of(entry: Mapping[str, Any]) -> int:
    """Count a message's bytes, as SQS does."""
    size = len(entry["MessageBody"].encode())
    for name, value in entry.get("MessageAttributes", {}).items():
        content = value.get("StringValue", value.get("BinaryValue", b""))
        size += len(name) + len(value["DataType"])
        size += len(content) if isinstance(content, bytes) else len(content.encode())
    return size
