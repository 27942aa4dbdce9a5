"""Encodes and decodes a message's metadata in its one reserved attribute: `x-qpid`, a JSON object. Pure.

    {"exchange": "amq.topic", "key": "a.b", "trace": ["SITE1"], "id": "SITE1.01J…", "published": ms, "stamped": ms,
     "ttl": ms, "headers": {name: value}, "overflow": {name: [data type, text or {"base64": …}]},
     "to": ["SITE2"], "turns": 1}

Every field may be missing. `ttl` is the time that was left when the message was `stamped`. `headers` are those of types
that SQS lacks. `overflow` holds user attributes for which SQS has no room besides `x-qpid`. `to` are the sites that a
copy on a dynamic bridge is for, and `turns` counts the dynamic bridges that the copy has crossed. The JSON is ASCII, so
SQS accepts it. User attributes are restored with type and value, byte for byte.

A message's trace has the tags of the sites, or bridges, that the message has left, oldest first. The trace decides
whether the message may cross a bridge. Tags are compared as a whole. On dynamic bridges each copy is *addressed*: the
copy lists the sites that it is for, and the copies that a site sends divide these sites among them. So a trace needn't
stop an addressed copy, which may even go back after a path has changed.
"""

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from enum import StrEnum
from functools import lru_cache
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType
from msgspec.structs import replace

from sluice.codec import Struct, decode
from sluice.errors import Malformed, TooLarge
from sluice.federation.matching.indexes import MAX_KEY_CHARACTERS, Key
from sluice.federation.matching.typed_values import Base64, Headers, StoredValue, from_stored, to_json
from sluice.message import (
    MAX_ATTRIBUTES,
    MAX_MESSAGE_BYTES,
    NOT_TEXT,
    Attributes,
    Message,
    Outgoing,
    Value,
    is_attribute_name,
    message_size,
)
from sluice.ulids import ULID, derive_ulid

ATTRIBUTE = "x-qpid"
# Producers that don't write `x-qpid` name exchange and key in these attributes.
EXCHANGE_ATTRIBUTE = "exchange"
KEY_ATTRIBUTE = "routing-key"
MAX_USER_ATTRIBUTES = MAX_ATTRIBUTES - 1  # A message has at most this many user attributes besides `x-qpid`.
MAX_OVERFLOW = 256
MAX_HEADERS = 256
MAX_MS = 1 << 53  # limit of times and TTLs in ms: all JSON readers are exact below it
BODY_HASH_CHARACTERS = 32
HASH_CHARACTERS = 16  # length of the hash that distinguishes the copies of a message
DEFAULT_MAX_HOPS = 8
MAX_TRACE_TAGS = 64  # maximum number of tags in a trace, and the largest hop limit
MAX_TAG_CHARACTERS = 32
MAX_ORIGINS = 1_000  # maximum number of sites to which one bridge leads
MAX_TURNS = 1_000  # An addressed copy may cross at most this many bridges, even if paths keep changing.
TAG = f"[A-Za-z0-9_-]{{1,{MAX_TAG_CHARACTERS}}}"
_TAG = re.compile(TAG)

Tag = Annotated[str, Meta(pattern=rf"\A{TAG}\Z")]
Trace = tuple[str, ...]
Sites = frozenset[str]

_NUMBER = re.compile(r"[+-]?(\d{1,128}(\.\d{0,128})?|\.\d{1,128})([eE][+-]?\d{1,10})?")

# This encoder is created once, because `json.dumps` would create an encoder at each call with options.
# For non-ASCII text, msgspec isn't used: it doesn't escape such text, so its bytes would differ from other sites'.
_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)
_PLAIN = msgspec.json.Encoder()  # writes the same bytes for ASCII and integers, ten times as fast


class DropReason(StrEnum):
    """The reason why a message is dropped. A metric counts the messages for each reason."""

    LOOP = "loop"
    HOPS = "hops"
    TTL = "ttl"
    UNROUTABLE = "unroutable"
    FILTERED = "filtered"


class Crossing(Struct, frozen=True, kw_only=True):
    """A bridge's rules for traces. `peer` is the tag of the site behind the bridge; `tag` is appended to traces.

    `origins` are the sites to which a dynamic bridge leads. Other bridges have no `origins`.
    """

    peer: str
    tag: str
    excludes: frozenset[str] = frozenset()
    max_hops: int = DEFAULT_MAX_HOPS
    origins: Sites | UnsetType = UNSET


def is_tag(candidate: str) -> bool:
    """Whether the text can be a site's tag."""
    return _TAG.fullmatch(candidate) is not None


def find_drop_reason(trace: Trace, crossing: Crossing, *, addressed: bool = False) -> DropReason | None:
    """Return why a message with this trace may not cross the bridge; None if the message may cross.

    An addressed copy may return to a site that it has left, because the copy is for other sites.
    """
    if not crossing.excludes.isdisjoint(trace):
        return DropReason.LOOP
    if addressed:
        return None
    if crossing.peer in trace:
        return DropReason.LOOP
    return DropReason.HOPS if len(trace) >= crossing.max_hops else None


def append_tag(trace: Trace, crossing: Crossing, *, addressed: bool = False) -> Trace:
    """Append the bridge's tag to a trace. An addressed copy's trace has each tag once, without the peer's."""
    if addressed:
        trace = tuple(tag for tag in trace if tag not in {crossing.peer, crossing.tag})
    return (*trace, crossing.tag)


class Metadata(msgspec.Struct, frozen=True, kw_only=True):
    """The decoded attribute `x-qpid`. Times are in ms since the epoch.

    `message_id` is `<tag>.<ulid>`, with the tag of the first exchange's site. `to` has the sites to which the message
    is addressed, None for all sites.
    """

    exchange: str | None = None
    key: str | None = None
    trace: Trace = ()
    message_id: str | None = None
    published_at_ms: int | None = None
    stamped_at_ms: int | None = None
    ttl_ms: int | None = None
    headers: Headers = {}
    to: Sites | None = None
    turns: int = 0

    def compute_ttl_ms(self, now_ms: int) -> int | None:
        """Return the remaining time to live in ms, at least 0; None if the message has no time to live."""
        if self.ttl_ms is None:
            return None
        since = now_ms if self.stamped_at_ms is None else self.stamped_at_ms
        return max(self.ttl_ms - max(now_ms - since, 0), 0)

    def check_expiry(self, now_ms: int) -> DropReason | None:
        """Return the reason to drop an expired message; None if the message hasn't expired."""
        return DropReason.TTL if self.compute_ttl_ms(now_ms) == 0 else None


class OpenedAttributes(msgspec.Struct, frozen=True, kw_only=True):
    """A message's user attributes, and its metadata if it has any."""

    attributes: Attributes
    metadata: Metadata | None


class ReceivedMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A received message, with the receiving site and the time of the receive.

    `ulid` is for a message that has no id yet. It is the same each time that this message is received.
    """

    message: Message
    site: str
    ulid: str
    now_ms: int

    @classmethod
    def from_message(cls, message: Message, *, site: str, now_ms: int) -> "ReceivedMessage":
        """Describe a message that a site has received. The ULID is derived from the message's SQS id and send time."""
        sent_at_ms = now_ms if message.sent_at_ms is None else message.sent_at_ms
        return cls(
            message=message, site=site, ulid=derive_ulid(message.message_id, sent_at_ms=sent_at_ms), now_ms=now_ms
        )


class Drop(msgspec.Struct, frozen=True, kw_only=True):
    """A dropped message. `queue` is the bridge queue for the message; None if no queue was selected."""

    reason: DropReason
    message_id: str
    queue: str | None = None


def fill_in_metadata(metadata: Metadata, attributes: Attributes, received: ReceivedMessage) -> tuple[Metadata, str]:
    """Return metadata with missing fields filled in, and the message's id. Metadata from an exchange is complete."""
    if metadata.message_id is not None and None not in {metadata.key, metadata.published_at_ms, metadata.stamped_at_ms}:
        return metadata, metadata.message_id
    message_id = metadata.message_id or f"{received.site}.{received.ulid}"
    sent_at_ms = received.message.sent_at_ms
    first_seen_ms = received.now_ms if sent_at_ms is None else sent_at_ms
    published_at_ms = first_seen_ms if metadata.published_at_ms is None else metadata.published_at_ms
    complete = replace(
        metadata,
        key=get_attribute_text(attributes, KEY_ATTRIBUTE) if metadata.key is None else metadata.key,
        message_id=message_id,
        published_at_ms=published_at_ms,
        stamped_at_ms=published_at_ms if metadata.stamped_at_ms is None else metadata.stamped_at_ms,
    )
    return complete, message_id


def get_attribute_text(attributes: Attributes, name: str) -> str:
    """Return the text of a producer's own attribute; "" if the attribute is missing. Raises `Malformed`."""
    attribute = attributes.get(name)
    if attribute is None:
        return ""
    if attribute.text is None:
        raise Malformed(f"{name} is no text")
    if len(attribute.text) > MAX_KEY_CHARACTERS:
        raise Malformed(f"{name} of {len(attribute.text)} characters, more than {MAX_KEY_CHARACTERS}")
    return attribute.text


def make_outgoing(
    message: Message, attributes: Attributes, metadata: Metadata, *, fifo: bool, crosses: bool
) -> Outgoing:
    """Build the outgoing message. It `crosses` a bridge, unless it has arrived in its final queue."""
    # Messages of a standard queue have no order, so each is a message group of its own, and none waits for another.
    return Outgoing(
        body=message.body,
        attributes=attributes,
        group_id=message.group_id or (metadata.message_id if fifo else None),
        deduplication_id=build_deduplication_id(metadata, message.body, crosses=crosses) if fifo else None,
        trace_header=message.trace_header,
    )


def build_deduplication_id(metadata: Metadata, body: str, *, crosses: bool) -> str:
    """Return a copy's deduplication id, in a final queue or on its way between sites.

    The id covers the body, because a peer can know the id of another peer's message. A message that takes several paths
    arrives once per exchange and key. Copies for different sites have different ids, and so have copies that have
    crossed different numbers of bridges.
    """
    content = f"{metadata.message_id}.{hash_body(body)}"
    if not crosses:
        return content
    said = f"{metadata.exchange}\0{metadata.key}"
    if metadata.to is not None:
        said = f"{said} {sorted(metadata.to)} {metadata.turns}"
    return f"{content}.{hash_destination(said)}"


@lru_cache(maxsize=4)  # The cache is small, because the copies of a message follow each other.
def hash_body(body: str) -> str:
    """Hash a message's body."""
    return hashlib.sha256(body.encode("utf-8", "surrogatepass")).hexdigest()[:BODY_HASH_CHARACTERS]


@lru_cache  # The cache stays small, because each route has one destination.
def hash_destination(destination: str) -> str:
    """Hash a copy's destination."""
    return hashlib.sha256(destination.encode()).hexdigest()[:HASH_CHARACTERS]


def seal_attributes(body: str, attributes: Attributes, metadata: Metadata) -> Attributes:
    """Return the attributes to send: the user's, as far as there is room, and `x-qpid`.

    If there are too many attributes, the smallest ones are stored inside `x-qpid`, where they take a third more bytes.
    Raises `TooLarge` if the message exceeds SQS's limit with metadata, and `ValueError` or `TypeError` for headers
    without a JSON form.
    """
    outside, overflow = dict(attributes), dict[str, list[Any]]()
    if len(attributes) > MAX_USER_ATTRIBUTES:
        by_size = sorted(attributes, key=lambda name: (message_size("", {"": attributes[name]}), name))
        for name in by_size[: len(attributes) - MAX_USER_ATTRIBUTES]:
            value = outside.pop(name)
            content = value.content
            packed = {"base64": base64.b64encode(content).decode()} if isinstance(content, bytes) else content
            overflow[name] = [value.data_type, packed]
    document = {
        "exchange": metadata.exchange,
        "key": metadata.key,
        "trace": metadata.trace or None,
        "id": metadata.message_id,
        "published": metadata.published_at_ms,
        "stamped": metadata.stamped_at_ms,
        "ttl": metadata.ttl_ms,
        "headers": to_json(metadata.headers) or None,
        "overflow": overflow or None,
        "to": None if metadata.to is None else sorted(metadata.to),
        "turns": metadata.turns or None,
    }
    said = {name: value for name, value in document.items() if value is not None}
    named = f"{metadata.exchange}{metadata.key}"
    is_plain = not (metadata.headers or overflow) and named.isascii() and named.isprintable()
    written = _PLAIN.encode(said).decode() if is_plain else _ENCODER.encode(said)
    sealed = {**outside, ATTRIBUTE: Value("String", written)}
    size = message_size(body, sealed)
    if size > MAX_MESSAGE_BYTES:
        raise TooLarge(size, MAX_MESSAGE_BYTES)
    return sealed


Ms = Annotated[int, Meta(ge=0, le=MAX_MS)]
MessageId = Annotated[str, Meta(pattern=rf"\A{TAG}\.{ULID}\Z")]
DataType = Annotated[str, Meta(pattern=r"\A(String|Number|Binary)(\.[^\x00-\x1f\x7f\ud800-\udfff]{1,249})?\Z")]


class WireMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """The JSON of `x-qpid`, which other programs also write. Null means missing, and unknown fields are skipped."""

    exchange: Key | None = None
    key: Key | None = None
    trace: Annotated[tuple[Tag, ...], Meta(max_length=MAX_TRACE_TAGS)] | None = None
    id: MessageId | None = None
    published: Ms | None = None
    stamped: Ms | None = None
    ttl: Ms | None = None
    headers: Annotated[Mapping[str, StoredValue], Meta(max_length=MAX_HEADERS)] | None = None
    overflow: Annotated[Mapping[str, tuple[DataType, str | Base64]], Meta(max_length=MAX_OVERFLOW)] | None = None
    to: Annotated[frozenset[Tag], Meta(max_length=MAX_ORIGINS)] | None = None
    turns: Annotated[int, Meta(ge=0, le=MAX_TURNS)] | None = None


def open_attributes(attributes: Attributes) -> OpenedAttributes:
    """Separate a message's user attributes and metadata. Raises `Malformed` for an invalid `x-qpid`.

    Metadata is only a claim of the sender. The caller decides whether to trust this claim.
    """
    sealed = attributes.get(ATTRIBUTE)
    if sealed is None:
        return OpenedAttributes(attributes=attributes, metadata=None)
    if sealed.text is None or not sealed.data_type.startswith("String"):
        raise Malformed(f"{ATTRIBUTE}: is no String")
    said = decode(sealed.text, WireMetadata, of=ATTRIBUTE)
    user = {name: value for name, value in attributes.items() if name != ATTRIBUTE}
    for name, (data_type, content) in (said.overflow or {}).items():
        if name in user:
            raise Malformed(f"{ATTRIBUTE}: overflow repeats the attribute {name}")
        user[name] = _unpack_attribute(name, data_type, content)
    metadata = Metadata(
        exchange=said.exchange,
        key=said.key,
        trace=said.trace or (),
        message_id=said.id,
        published_at_ms=said.published,
        stamped_at_ms=said.stamped,
        ttl_ms=said.ttl,
        headers=from_stored(said.headers) if said.headers else {},
        to=said.to,
        turns=said.turns or 0,
    )
    return OpenedAttributes(attributes=user, metadata=metadata)


def _unpack_attribute(name: str, data_type: str, packed: str | Base64) -> Value:
    """Decode a user attribute from `x-qpid`, and check that SQS would accept it. Raises `Malformed`."""
    content = packed.base64 if isinstance(packed, Base64) else packed
    is_binary = data_type.startswith("Binary")
    if name == ATTRIBUTE or not is_attribute_name(name) or not content or is_binary is not isinstance(content, bytes):
        raise Malformed(f"{ATTRIBUTE}: overflow has an attribute that SQS doesn't take")
    if isinstance(content, str) and NOT_TEXT.search(content):
        raise Malformed(f"{ATTRIBUTE}: overflow has no text for SQS")
    if isinstance(content, str) and data_type.startswith("Number") and not _NUMBER.fullmatch(content.strip()):
        raise Malformed(f"{ATTRIBUTE}: overflow has a Number that is none")
    return Value(data_type, content)
