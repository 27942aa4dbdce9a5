"""Temporary queues: what their names say, and what they take over from their originals. Pure: randomness comes in.

`sluice-tmp-<random>-<original>` for a session, `sluice-tmp-<random>-main-<original>` for the deployed consumer. The
random part begins with the deployment's tag, so that a sweep knows this deployment's queues by their names alone. At a
stage its name stands before all of it, and before the tag.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from sluice.message import MAX_MESSAGE_BYTES
from sluice.stages import add_stage_prefix, is_stage

PREFIX = "sluice-tmp-"
MAIN = "main-"
FIFO_SUFFIX = ".fifo"
MAX_NAME = 80  # characters, of SQS
TAG_CHARACTERS = 6
TOKEN_CHARACTERS = 12
MAX_TAGS = 50  # of SQS
RESERVED_TAG = "aws:"  # nobody but AWS may set these, CloudFormation's for one
# Not here: DelaySeconds (the delay was already served), MaximumMessageSize (with a session's mark a message may be more
# than the original takes), RedriveAllowPolicy, and what SQS reports but doesn't take.
COPIED = (
    "VisibilityTimeout",
    "MessageRetentionPeriod",
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

_TAG = re.compile(rf"[a-z0-9]{{{TAG_CHARACTERS}}}")
_TOKEN = re.compile(rf"[a-z0-9]{{{TOKEN_CHARACTERS}}}")


def temporary_queue_name(original: str, *, deployment: str, token: str, is_main: bool = False) -> str:
    """Name a session's queue for the split queue `original`, which is shortened where it is too long.

    `is_main`: the queue that the deployed consumer reads while `original` is split. Raises ValueError for a `token` or
    a `deployment` that no name can have.
    """
    if not _TOKEN.fullmatch(token):
        raise ValueError(f"a token is {TOKEN_CHARACTERS} of a-z0-9, not {token!r}")
    suffix = FIFO_SUFFIX if original.endswith(FIFO_SUFFIX) else ""
    head = f"{name_prefix(deployment)}{token}-{MAIN if is_main else ''}"
    return head + original.removesuffix(FIFO_SUFFIX)[: MAX_NAME - len(head) - len(suffix)] + suffix


def is_ours(name: str, *, deployment: str) -> bool:
    """Whether a queue of this name is a temporary one of this deployment."""
    return name.startswith(name_prefix(deployment))


def name_prefix(deployment: str) -> str:
    """Give what all names of this deployment's temporary queues begin with. Raises ValueError for no such tag."""
    stage, hyphen, tag = deployment.rpartition("-")
    if not _TAG.fullmatch(tag) or (hyphen and not is_stage(stage)):
        raise ValueError(f"a deployment's tag is {TAG_CHARACTERS} of a-z0-9, after its stage, not {deployment!r}")
    return add_stage_prefix(PREFIX, stage or None) + tag


def temporary_attributes(
    original: Mapping[str, str], *, original_name: str, name: str, of_session: bool
) -> dict[str, str]:
    """Choose the attributes to create the queue `name` with, from what `GetQueueAttributes` says of its original.

    A session's queue has no redrive policy: what its consumer fails at goes to the deployed one when the session ends,
    and copies are no dead letters.
    """
    copied = {key: original[key] for key in COPIED if original.get(key)}
    copied["MaximumMessageSize"] = str(MAX_MESSAGE_BYTES)
    if not original_name.endswith(FIFO_SUFFIX):
        # CreateQueue refuses even `false` for a standard queue.
        copied.pop("FifoQueue", None)
    if of_session:
        copied.pop("RedrivePolicy", None)
    if "KmsMasterKeyId" in copied:
        copied.pop("SqsManagedSseEnabled", None)  # one kind of encryption at a time
    else:
        copied.pop("KmsDataKeyReusePeriodSeconds", None)
    if "Policy" in copied:
        copied["Policy"] = rename_in_policy(copied["Policy"], original_name=original_name, name=name)
    return copied


def rename_in_policy(policy: str, *, original_name: str, name: str) -> str:
    """Put `name` for `original_name` into the queue ARNs of the statements' resources; nothing else changes.

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
                statement[key] = _rename_resource(statement[key], original_name, name)
    return json.dumps(document)


def _rename_resource(resource: Any, original_name: str, name: str) -> Any:
    if isinstance(resource, list):
        return [_rename_resource(one, original_name, name) for one in resource]
    if not isinstance(resource, str):
        return resource
    arn = resource.split(":")
    is_the_queue = arn[0] == "arn" and arn[2:3] == ["sqs"] and arn[5:] == [original_name]
    return ":".join([*arn[:5], name]) if is_the_queue else resource


def temporary_tags(original: Mapping[str, str], *, configured: Mapping[str, str]) -> dict[str, str]:
    """Join the original's tags and the configured ones, which win, also where there are more than a queue can have."""
    inherited = {key: value for key, value in original.items() if not key.startswith(RESERVED_TAG)}
    merged = dict(configured) | {key: value for key, value in sorted(inherited.items()) if key not in configured}
    return dict(list(merged.items())[:MAX_TAGS])
