"""Section `federation`: a site's name, peers, queues and ingresses, and what it declares."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from sluice.errors import BadParameter, BadRoute
from sluice.federation.declared import Declared
from sluice.federation.matching.tracing import is_tag
from stacks.sections.rendezvous import EVENTS_EXCHANGE
from stacks.sections.values import (
    MEMORY_MB,
    ROOT,
    Parse,
    existing_arn,
    flag,
    listed,
    matching,
    number,
    object_of,
    objects,
    one_of,
    optional,
    parsed,
    queue_id,
    text,
)

DECLARED_DEFAULT = {"exchanges": [{"name": EVENTS_EXCHANGE, "type": "topic"}]}
DECLARED = Declared.of(DECLARED_DEFAULT)
DECLARED_SECTIONS = ("exchanges", "bindings", "links", "routes")
DECLARED_MAX_BYTES = 2_000
MAX_BOUND_QUEUES = 15  # of all of them the names must go into a function's environment of 4 KB
MAX_INGRESSES = 8
ACCOUNT = re.compile(r"\d{12}")
EXTERNAL_ID = re.compile(r"[A-Za-z0-9+=,.@:/_-]{2,128}")
SQS_URL = re.compile(r"https?://[A-Za-z0-9.:-]{1,253}/?")
QUEUE_PATTERN = re.compile(r"[A-Za-z0-9_*?-]{1,80}(\.fifo)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundQueueParameters:
    """One queue that exchanges are bound to and queue routes read. It is made, or adopted by its ARN."""

    name: str
    fifo: bool = False
    existing_arn: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class IngressParameters:
    """An ingress queue of one exchange's own, for producers that can't say which exchange they mean."""

    exchange: str
    fifo: bool = False


class Access(StrEnum):
    """How peers in other accounts may send here."""

    POLICY = "policy"  # the queues' own policies let the accounts in
    ROLE = "role"  # a role that they assume, with the external id


@dataclass(frozen=True, slots=True, kw_only=True)
class FederationParameters:
    """Section `federation`."""

    tag: str | None = None  # the site's; else its region and account
    peer_accounts: tuple[str, ...] = ()  # beside the site's own
    access: Access = Access.POLICY
    external_id: str = "sluice"
    sqs_url: str | None = None  # where peers reach the site's SQS, if not at its usual address
    queues: tuple[BoundQueueParameters, ...] = ()
    queue_names: tuple[str, ...] = ("sluice-queue-*",)  # of other queues that may be bound or read, with wildcards
    ingresses: tuple[IngressParameters, ...] = ()
    declared: Declared = DECLARED  # exchanges, bindings, links and routes
    trust_publishers: bool = False  # to say where a message has been
    counts_settle_s: int = 60  # after which SQS's counts are right: how long a route's queue is to be empty to go
    batch_size: int = 100  # of standard queues; FIFO queues have ten at most
    batching_window_s: int = 1  # of standard queues; how long a batch may wait to be filled
    max_concurrency: int = 10  # exchange functions of one ingress side by side
    exchange_memory_mb: int = 512
    bridge_memory_mb: int = 512
    links_memory_mb: int = 256


def _tag(value: object) -> str | None:
    if value is None:
        return None
    tag = text(value)
    if not is_tag(tag):
        raise ValueError(f"{tag!r} is not 1 to 32 letters, digits, hyphens and underscores")
    return tag


BOUND_QUEUE = object_of(
    BoundQueueParameters, {"name": queue_id, "fifo": flag, "existing_arn": existing_arn}, required="name"
)
INGRESS = object_of(IngressParameters, {"exchange": text, "fifo": flag}, required="exchange")
KEY = f"{ROOT}.federation"
PARSERS: Mapping[str, Parse] = {
    "tag": _tag,
    "peer_accounts": listed(matching(ACCOUNT, "an account's twelve digits"), most=50),
    "access": one_of(Access),
    "external_id": matching(EXTERNAL_ID, "an external id"),
    "sqs_url": optional(matching(SQS_URL, "an http or https URL")),
    "queues": listed(BOUND_QUEUE, most=MAX_BOUND_QUEUES),
    "queue_names": listed(matching(QUEUE_PATTERN, "a queue's name with wildcards"), most=20),
    "ingresses": listed(INGRESS, most=MAX_INGRESSES),
    **dict.fromkeys(DECLARED_SECTIONS, objects),
    "trust_publishers": flag,
    "counts_settle_s": number(0, 600),
    "batch_size": number(1, 10_000),
    "batching_window_s": number(0, 300),
    "max_concurrency": number(2, 1_000),
    "exchange_memory_mb": MEMORY_MB,
    "bridge_memory_mb": MEMORY_MB,
    "links_memory_mb": MEMORY_MB,
}


def read(given: Mapping[str, object]) -> FederationParameters:
    """From all that is given, by dotted key. Raises `BadParameter`."""
    values = parsed(given, KEY, PARSERS)
    sections = {name: values.pop(name) for name in DECLARED_SECTIONS if name in values}
    try:
        declared = Declared.of(DECLARED_DEFAULT | sections)
    except BadRoute as error:
        raise BadParameter(KEY, str(error)) from error
    size = len(declared.to_json().encode())
    if size > DECLARED_MAX_BYTES:
        raise BadParameter(
            KEY,
            f"exchanges, bindings, links and routes have {size} bytes as JSON; a function's environment holds "
            f"{DECLARED_MAX_BYTES}: make the rest with `sluice`",
        )
    return FederationParameters(**values, declared=declared)
