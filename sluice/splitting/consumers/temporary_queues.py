"""Temporary queues: their names, and the attributes and tags that they copy from their originals. Pure.

A session's queue is named `sluice-tmp-<deployment's tag><session's id>-<original>`, the deployed consumer's
`sluice-tmp-<tag><random>-main-<original>`. By the tag, a sweep recognizes the deployment's queues. At a stage, the
stage's name precedes the queue's name, and the tag.
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
MAX_NAME = 80  # SQS's limit of characters in a queue's name
TAG_CHARACTERS = 6
TOKEN_CHARACTERS = 12
MAX_TAGS = 50  # SQS's limit of tags per queue
RESERVED_TAG = "aws:"  # prefix that only AWS may use, for example CloudFormation
USER_TAG = "sluice-user"  # the tag with the `aws:userid` of the session's owner, for IAM policies
SESSION_TAG = "sluice-session"  # the tag with the session's id
NAME_TAG = "sluice-name"  # the tag with the session's name
# The attributes that are copied. Omitted are DelaySeconds (the message was delayed already), MaximumMessageSize (the
# session's attribute may make a message larger), RedriveAllowPolicy, and read-only attributes.
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
    """Return the name of a temporary queue for the split queue `original`, which is shortened if necessary.

    `is_main`: for the deployed consumer instead of a session. Raises ValueError for an invalid `token` or `deployment`.
    """
    if not _TOKEN.fullmatch(token):
        raise ValueError(f"a token is {TOKEN_CHARACTERS} of a-z0-9, not {token!r}")
    suffix = FIFO_SUFFIX if original.endswith(FIFO_SUFFIX) else ""
    head = f"{name_prefix(deployment)}{token}-{MAIN if is_main else ''}"
    return head + original.removesuffix(FIFO_SUFFIX)[: MAX_NAME - len(head) - len(suffix)] + suffix


def name_prefix(deployment: str) -> str:
    """Return the prefix of all names of this deployment's temporary queues. Raises ValueError for an invalid tag."""
    stage, hyphen, tag = deployment.rpartition("-")
    if not _TAG.fullmatch(tag) or (hyphen and not is_stage(stage)):
        raise ValueError(f"a deployment's tag is {TAG_CHARACTERS} of a-z0-9, after its stage, not {deployment!r}")
    return add_stage_prefix(PREFIX, stage or None) + tag


def temporary_attributes(
    original: Mapping[str, str], *, original_name: str, name: str, of_session: bool
) -> dict[str, str]:
    """Select the attributes to create the queue `name` with, from the attributes of its original.

    A session's queue has no redrive policy: when the session ends, the deployed consumer gets the messages that the
    session's consumer failed at, and copies should not become dead letters.
    """
    copied = {key: original[key] for key in COPIED if original.get(key)}
    copied["MaximumMessageSize"] = str(MAX_MESSAGE_BYTES)
    if not original_name.endswith(FIFO_SUFFIX):
        # CreateQueue refuses `FifoQueue` for a standard queue, even `false`.
        copied.pop("FifoQueue", None)
    if of_session:
        copied.pop("RedrivePolicy", None)
    if "KmsMasterKeyId" in copied:
        copied.pop("SqsManagedSseEnabled", None)  # SQS accepts only one kind of encryption
    else:
        copied.pop("KmsDataKeyReusePeriodSeconds", None)
    if "Policy" in copied:
        copied["Policy"] = rename_in_policy(copied["Policy"], original_name=original_name, name=name)
    return copied


def rename_in_policy(policy: str, *, original_name: str, name: str) -> str:
    """Replace `original_name` by `name` in the queue ARNs of the statements' resources, and nothing else.

    A policy that isn't JSON, which SQS wouldn't accept, is returned unchanged.
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


def temporary_tags(
    original: Mapping[str, str],
    *,
    configured: Mapping[str, str],
    user_id: str | None = None,
    session_id: str | None = None,
    name: str | None = None,
) -> dict[str, str]:
    """Merge the original's tags and the configured ones, which take precedence, even if SQS's limit is exceeded.

    The tags of the session are given, or else missing, whatever the original or the configuration has.
    """
    inherited = {key: value for key, value in original.items() if not key.startswith(RESERVED_TAG)}
    merged = dict(configured) | {key: value for key, value in sorted(inherited.items()) if key not in configured}
    own_tags = {USER_TAG: user_id, SESSION_TAG: session_id, NAME_TAG: name}
    own = {key: value for key, value in own_tags.items() if value}
    return dict(list((own | {key: value for key, value in merged.items() if key not in own_tags}).items())[:MAX_TAGS])
