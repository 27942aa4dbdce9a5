"""Temporary queues: their names, and the attributes and tags that they copy from their originals. Pure.

A session's queue is named `sluice-tmp-<deployment's tag><session's id>-<original>`, the deployed consumer's
`sluice-tmp-<tag><random>-main-<original>`. A sweep recognizes the deployment's queues by the tag. In a deployment with
a stage, the stage's name precedes the queue's name and the tag.
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
MAX_NAME = 80  # SQS limits a queue's name to this many characters.
TAG_CHARACTERS = 6
TOKEN_CHARACTERS = 12
MAX_TAGS = 50  # SQS limits a queue to this many tags.
RESERVED_TAG = "aws:"  # Only AWS, for example CloudFormation, can set tags with this prefix.
USER_TAG = "sluice-user"  # The value of this tag is the `aws:userid` of the session's owner, for IAM policies.
SESSION_TAG = "sluice-session"  # The value of this tag is the session's id.
NAME_TAG = "sluice-name"  # The value of this tag is the session's name.
# A temporary queue copies these attributes. Not copied are DelaySeconds (the message was delayed before),
# MaximumMessageSize (the session's attribute may make a message larger), RedriveAllowPolicy and read-only ones.
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
    """Return the name of a temporary queue for the split queue `original`, whose name is shortened if necessary.

    `is_main`: the queue is for the deployed consumer, not a session. Raises ValueError for a bad `token` or
    `deployment`.
    """
    if not _TOKEN.fullmatch(token):
        raise ValueError(f"a token is {TOKEN_CHARACTERS} of a-z0-9, not {token!r}")
    suffix = FIFO_SUFFIX if original.endswith(FIFO_SUFFIX) else ""
    head = f"{build_name_prefix(deployment)}{token}-{MAIN if is_main else ''}"
    return head + original.removesuffix(FIFO_SUFFIX)[: MAX_NAME - len(head) - len(suffix)] + suffix


def build_name_prefix(deployment: str) -> str:
    """Return the prefix of the names of this deployment's temporary queues. Raises ValueError for an invalid tag."""
    stage, hyphen, tag = deployment.rpartition("-")
    if not _TAG.fullmatch(tag) or (hyphen and not is_stage(stage)):
        raise ValueError(f"a deployment's tag is {TAG_CHARACTERS} of a-z0-9, after its stage, not {deployment!r}")
    return add_stage_prefix(PREFIX, stage or None) + tag


def select_attributes(
    original: Mapping[str, str], *, original_name: str, name: str, of_session: bool
) -> dict[str, str]:
    """Select the attributes with which to create the queue `name`, from the attributes of its original.

    A session's queue has no redrive policy: when the session ends, the deployed consumer gets the messages that the
    session's consumer failed at, and copies should not become dead letters.
    """
    copied = {key: original[key] for key in COPIED if original.get(key)}
    copied["MaximumMessageSize"] = str(MAX_MESSAGE_BYTES)
    if not original_name.endswith(FIFO_SUFFIX):
        # CreateQueue refuses the attribute `FifoQueue` for a standard queue, even if its value is `false`.
        copied.pop("FifoQueue", None)
    if of_session:
        copied.pop("RedrivePolicy", None)
    if "KmsMasterKeyId" in copied:
        copied.pop("SqsManagedSseEnabled", None)  # SQS accepts only one kind of encryption.
    else:
        copied.pop("KmsDataKeyReusePeriodSeconds", None)
    if "Policy" in copied:
        copied["Policy"] = rename_in_policy(copied["Policy"], original_name=original_name, name=name)
    return copied


def rename_in_policy(policy: str, *, original_name: str, name: str) -> str:
    """Replace `original_name` by `name` in the queue ARNs of a policy's resources. The rest stays unchanged.

    SQS wouldn't accept a policy that isn't JSON; such a policy is returned unchanged.
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


def merge_tags(
    original: Mapping[str, str],
    *,
    configured: Mapping[str, str],
    user_id: str | None = None,
    session_id: str | None = None,
    name: str | None = None,
) -> dict[str, str]:
    """Merge the original's tags and the configured ones, which take precedence also when SQS's limit leaves some out.

    The session's tags have only the given values, whatever the original or the configuration sets.
    """
    inherited = {key: value for key, value in original.items() if not key.startswith(RESERVED_TAG)}
    merged = dict(configured) | {key: value for key, value in sorted(inherited.items()) if key not in configured}
    own_tags = {USER_TAG: user_id, SESSION_TAG: session_id, NAME_TAG: name}
    own = {key: value for key, value in own_tags.items() if value}
    return dict(list((own | {key: value for key, value in merged.items() if key not in own_tags}).items())[:MAX_TAGS])
