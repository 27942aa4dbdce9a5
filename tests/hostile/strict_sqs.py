"""SQS as strict as AWS is: what it refuses of a message, and a client that refuses it.

https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_SendMessage.html and
https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/sqs-message-metadata.html, word for word:
this is an oracle, and shares nothing with `sluice.message`.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from botocore.exceptions import ClientError

MAX_BYTES = 1_048_576
MAX_ATTRIBUTES = 10
MAX_NAME = 256
NAME_CHARACTERS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-.")
TYPES = ("String", "Number", "Binary")


def takes(character: str) -> bool:
    """`#x9 | #xA | #xD | #x20 to #xD7FF | #xE000 to #xFFFD | #x10000 to #x10FFFF`."""
    code = ord(character)
    return code in {0x9, 0xA, 0xD} or 0x20 <= code <= 0xD7FF or 0xE000 <= code <= 0xFFFD or 0x10000 <= code <= 0x10FFFF


def refusal(fields: Mapping[str, Any]) -> str | None:
    """Why SQS refuses the message that `SendMessage` is given so; None where it takes it."""
    body = fields["MessageBody"]
    if not body or not all(map(takes, body)):
        return "InvalidMessageContents: of the body"
    attributes = fields.get("MessageAttributes", {})
    if len(attributes) > MAX_ATTRIBUTES:
        return f"InvalidParameterValue: {len(attributes)} attributes"
    size = len(body.encode())
    for name, value in attributes.items():
        fault = _fault(name, value)
        if fault is not None:
            return f"InvalidParameterValue: attribute {name[:40]!r}: {fault}"
        content = value.get("StringValue", value.get("BinaryValue"))
        size += len(name.encode()) + len(value["DataType"].encode())
        size += len(content.encode() if isinstance(content, str) else content)
    return None if size <= MAX_BYTES else f"InvalidParameterValue: {size} bytes"


def _fault(name: str, value: Mapping[str, Any]) -> str | None:
    type_ = value["DataType"]
    key = "BinaryValue" if type_.startswith("Binary") else "StringValue"
    content = value.get(key)
    faults = {
        "its name": not 1 <= len(name) <= MAX_NAME
        or not NAME_CHARACTERS.issuperset(name)
        or name.lower().startswith(("aws.", "amazon."))
        or name.startswith(".")
        or name.endswith(".")
        or ".." in name,
        "its type": type_.partition(".")[0] not in TYPES or len(type_) > MAX_NAME,
        "its value is empty, or of another type": not content,
        "its characters": isinstance(content, str) and not all(map(takes, content)),
        "no number": type_.startswith("Number") and not _is_number(content),
    }
    return next((fault for fault, is_so in faults.items() if is_so), None)


def _is_number(content: Any) -> bool:
    try:
        float(content)
    except ValueError:
        return False
    return True


@dataclass
class StrictClient:
    """As much of an SQS client as sends: what SQS takes is in `taken` by queue URL, the rest is refused."""

    taken: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)

    def send_message(self, *, QueueUrl: str, **fields: Any) -> dict[str, str]:  # noqa: N803 - the API's own
        cause = refusal(fields)
        if cause is not None:
            self.refused.append(cause)
            code, _, text = cause.partition(": ")
            raise ClientError({"Error": {"Code": code, "Message": text}}, "SendMessage")
        self.taken.append((QueueUrl, fields))
        return {"MessageId": str(len(self.taken))}

    def send_batch(self, url: str, entries: Sequence[dict[str, Any]]) -> Mapping[str, str]:
        """As the ports of rooms have it: the ids of what is refused, with the reason."""
        found: dict[str, str] = {}
        for entry in entries:
            cause = refusal(entry)
            if cause is None:
                self.taken.append((url, entry))
            else:
                self.refused.append(cause)
                found[entry["Id"]] = cause
        return found

    def bodies(self, url: str) -> list[str]:
        return [fields["MessageBody"] for queue, fields in self.taken if queue == url]

    def reasons(self, url: str) -> list[str]:
        """Those of dead letters; nothing where a message leaves no room for it."""
        letters = [fields["MessageAttributes"] for queue, fields in self.taken if queue == url]
        return [letter["sluice-reason"]["StringValue"] if "sluice-reason" in letter else "" for letter in letters]


def as_json(said: object) -> str:
    """One line, as Lambda writes what a function returns: what JSON hasn't fails here."""
    return json.dumps(said, allow_nan=False)
