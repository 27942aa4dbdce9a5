"""What a temporary queue takes over from its original: attributes, policy, tags. Pure."""

import json
from collections.abc import Mapping
from typing import Any

from sluice.splitting.routing.names import FIFO_SUFFIX

MAX_TAGS = 50  # of SQS
RESERVED_TAG = "aws:"  # nobody but AWS may set these, CloudFormation's for one
# Not here: DelaySeconds (the delay was already served), RedriveAllowPolicy, and what SQS reports but doesn't take.
COPIED = (
    "VisibilityTimeout",
    "MessageRetentionPeriod",
    "MaximumMessageSize",
    "ReceiveMessageWaitTimeSeconds",
    "KmsMasterKeyId",
    "KmsDataKeyReusePeriodSeconds",
    "SqsManagedSseEnabled",
    "FifoQueue",
    "ContentBasedDeduplication",
    "DeduplicationScope",
    "FifoThroughputLimit",
    "RedrivePolicy",
    "Policy",
)


def temporary_attributes(original: Mapping[str, str], *, original_name: str, name: str) -> dict[str, str]:
    """The attributes to create the queue `name` with, from what `GetQueueAttributes` says of its original."""
    copied = {key: original[key] for key in COPIED if original.get(key)}
    if not original_name.endswith(FIFO_SUFFIX):
        # CreateQueue refuses even `false` for a standard queue.
        copied.pop("FifoQueue", None)
    if "KmsMasterKeyId" in copied:
        copied.pop("SqsManagedSseEnabled", None)  # one kind of encryption at a time
    else:
        copied.pop("KmsDataKeyReusePeriodSeconds", None)
    if "Policy" in copied:
        copied["Policy"] = renamed_policy(copied["Policy"], original_name=original_name, name=name)
    return copied


def renamed_policy(policy: str, *, original_name: str, name: str) -> str:
    """The policy with `name` for `original_name` in the queue ARNs of its statements' resources; nothing else changes.

    A policy that isn't JSON, which SQS doesn't let through, is returned as it is.
    """
    try:
        document = json.loads(policy)
    except ValueError:
        return policy
    statements = document.get("Statement", []) if isinstance(document, dict) else []
    for statement in statements if isinstance(statements, list) else [statements]:
        for key in ("Resource", "NotResource"):
            if isinstance(statement, dict) and key in statement:
                statement[key] = _renamed(statement[key], original_name, name)
    return json.dumps(document)


def _renamed(resource: Any, original_name: str, name: str) -> Any:
    if isinstance(resource, list):
        return [_renamed(one, original_name, name) for one in resource]
    if not isinstance(resource, str):
        return resource
    arn = resource.split(":")
    is_the_queue = arn[0] == "arn" and arn[2:3] == ["sqs"] and arn[5:] == [original_name]
    return ":".join([*arn[:5], name]) if is_the_queue else resource


def temporary_tags(original: Mapping[str, str], *, configured: Mapping[str, str]) -> dict[str, str]:
    """The original's tags and the configured ones, which win, also where there are more than a queue can have."""
    inherited = {key: value for key, value in original.items() if not key.startswith(RESERVED_TAG)}
    merged = dict(configured) | {key: value for key, value in sorted(inherited.items()) if key not in configured}
    return dict(list(merged.items())[:MAX_TAGS])
