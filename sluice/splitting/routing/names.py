"""Names of temporary queues: what they say, and which are ours. Pure: the random part comes in.

`sluice-tmp-<random>-<original>` for a session, `sluice-tmp-<random>-main-<original>` for the deployed consumer. The
random part begins with the deployment's tag, so that a sweep knows this deployment's queues by their names alone.
"""

import re

PREFIX = "sluice-tmp-"
MAIN = "main-"
FIFO_SUFFIX = ".fifo"
MAX_NAME = 80  # characters, of SQS
TAG_CHARACTERS = 6
TOKEN_CHARACTERS = 12

_TAG = re.compile(rf"[a-z0-9]{{{TAG_CHARACTERS}}}")
_TOKEN = re.compile(rf"[a-z0-9]{{{TOKEN_CHARACTERS}}}")


def session_queue_name(original: str, *, deployment: str, token: str) -> str:
    """The name of a session's queue for the split queue `original`, which is shortened where it is too long."""
    return _name(deployment, token, "", original)


def main_queue_name(original: str, *, deployment: str, token: str) -> str:
    """The name of the queue that the deployed consumer reads while `original` is split."""
    return _name(deployment, token, MAIN, original)


def is_ours(name: str, *, deployment: str) -> bool:
    """Whether a queue of this name is a temporary one of this deployment."""
    return name.startswith(prefix_of(deployment))


def prefix_of(deployment: str) -> str:
    """What all names of this deployment's temporary queues begin with."""
    if not _TAG.fullmatch(deployment):
        raise ValueError(f"a deployment's tag is {TAG_CHARACTERS} of a-z0-9, not {deployment!r}")
    return PREFIX + deployment


def _name(deployment: str, token: str, role: str, original: str) -> str:
    if not _TOKEN.fullmatch(token):
        raise ValueError(f"a token is {TOKEN_CHARACTERS} of a-z0-9, not {token!r}")
    suffix = FIFO_SUFFIX if original.endswith(FIFO_SUFFIX) else ""
    head = f"{prefix_of(deployment)}{token}-{role}"
    return head + original.removesuffix(FIFO_SUFFIX)[: MAX_NAME - len(head) - len(suffix)] + suffix
