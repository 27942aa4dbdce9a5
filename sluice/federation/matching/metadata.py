"""What a message carries from site to site, in its one reserved attribute: `x-qpid`, a JSON object. Pure.

    {"exchange": "amq.topic", "key": "a.b", "trace": ["SITE1"], "id": "SITE1.01J…", "published": ms, "stamped": ms,
     "ttl": ms, "headers": {name: value}, "overflow": {name: [data type, text or {"base64": …}]},
     "to": ["SITE2"], "turns": 1}

Every field may be missing. `ttl` is what was left when the message was `stamped`. `headers` are those that SQS has no
type for. `overflow` holds the user's attributes that find no room beside `x-qpid`. `to` are the sites that a copy on a
dynamic bridge is for, `turns` how many such bridges it has crossed. The JSON is ASCII, so whatever it quotes is text
that SQS takes. Attributes come out as they went in, with type and value, byte for byte.

A message carries the tags of the sites, or bridges, that it has left, oldest first: that decides whether it may go over
a bridge. A tag is compared whole. On dynamic bridges each copy is *addressed*: it says which sites it is for, and the
copies that a site sends on share those out among them. So no trace has to stop it, and a copy that finds the way turned
back goes back.
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
from sluice.federation.matching.typed_values import Base64, Headers, StoredValue, of_stored, to_json
from sluice.message import (
    MAX_ATTRIBUTES,
    MAX_MESSAGE_BYTES,
    NOT_TEXT,
    Attributes,
    Message,
    Outgoing,
    Value,
    is_attribute_name,
    size_of,
)
from sluice.ulids import ULID, ulid_of

ATTRIBUTE = "x-qpid"
# Attributes of a producer that knows nothing of it.
EXCHANGE_ATTRIBUTE = "exchange"
KEY_ATTRIBUTE = "routing-key"
MAX_USER_ATTRIBUTES = MAX_ATTRIBUTES - 1  # that stay attributes on the way
MAX_OVERFLOW = 256
MAX_HEADERS = 256
MAX_MS = 1 << 53  # of time and of TTL: what any reader of JSON keeps exactly
HASH_CHARACTERS = 16  # of what tells a message's copies apart
DEFAULT_MAX_HOPS = 8
MAX_TRACE_TAGS = 64  # no site may ask for more hops than that
MAX_TAG_CHARACTERS = 32
MAX_ORIGINS = 1_000  # sites that can be reached by one bridge
MAX_TURNS = 1_000  # bridges that an addressed copy crosses, however often ways turn meanwhile
TAG = f"[A-Za-z0-9_-]{{1,{MAX_TAG_CHARACTERS}}}"
_TAG = re.compile(TAG)

Tag = Annotated[str, Meta(pattern=rf"\A{TAG}\Z")]
Trace = tuple[str, ...]
Sites = frozenset[str]

_NUMBER = re.compile(r"[+-]?(\d{1,128}(\.\d{0,128})?|\.\d{1,128})([eE][+-]?\d{1,10})?")

# Made once: `json.dumps` makes its own anew for each message that asks for anything unusual. It isn't msgspec's, which
# leaves text as it is: then sites would write bytes that others don't.
_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)
_PLAIN = msgspec.json.Encoder()  # of ASCII and integers it writes the same, in a tenth of the time


class DropReason(StrEnum):
    """Why a message isn't sent on. Every drop is counted under its reason."""

    LOOP = "loop"
    HOPS = "hops"
    TTL = "ttl"
    UNROUTABLE = "unroutable"
    FILTERED = "filtered"


class Crossing(Struct, frozen=True, kw_only=True):
    """What a bridge asks of a message's trace: `peer` is the tag of the site behind it, `tag` what it appends.

    `origins` are the sites that a dynamic bridge leads to; no other bridge has any.
    """

    peer: str
    tag: str
    excludes: frozenset[str] = frozenset()
    max_hops: int = DEFAULT_MAX_HOPS
    origins: Sites | UnsetType = UNSET


def is_tag(text: str) -> bool:
    """Whether the text can be a site's tag."""
    return _TAG.fullmatch(text) is not None


def held_back(trace: Trace, crossing: Crossing, *, addressed: bool = False) -> DropReason | None:
    """Why a message with this trace isn't put on the bridge; None where it may cross.

    An addressed copy may go back to where it was: it is for others. Who they are says how far it goes.
    """
    if not crossing.excludes.isdisjoint(trace):
        return DropReason.LOOP
    if addressed:
        return None
    if crossing.peer in trace:
        return DropReason.LOOP
    return DropReason.HOPS if len(trace) >= crossing.max_hops else None


def crossed(trace: Trace, crossing: Crossing, *, addressed: bool = False) -> Trace:
    """Append the bridge's tag: the trace on the other side. An addressed copy's has no tag twice, nor the peer's."""
    if addressed:
        trace = tuple(tag for tag in trace if tag not in {crossing.peer, crossing.tag})
    return (*trace, crossing.tag)


class Metadata(msgspec.Struct, frozen=True, kw_only=True):
    """What `x-qpid` says. `message_id` is `<tag>.<ulid>` of the first exchange; the times are ms since 1970.

    `to` is None where it is for whoever wants it.
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

    def ttl_left_ms(self, now_ms: int) -> int | None:
        """Count what is left of the TTL, 0 at least; None where the message lives on."""
        if self.ttl_ms is None:
            return None
        since = now_ms if self.stamped_at_ms is None else self.stamped_at_ms
        return max(self.ttl_ms - max(now_ms - since, 0), 0)

    def expired(self, now_ms: int) -> DropReason | None:
        """Say why the message is dropped where nothing is left of its TTL."""
        return DropReason.TTL if self.ttl_left_ms(now_ms) == 0 else None


class Opened(msgspec.Struct, frozen=True, kw_only=True):
    """A message's attributes, taken apart: the user's, all of them, and the metadata where there is some."""

    attributes: Attributes
    metadata: Metadata | None


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """A message as it was received: at which site, and when.

    `ulid` is for a message without an id. It must be the same each time that the message is received, as `ulid_of` is.
    """

    message: Message
    site: str
    ulid: str
    now_ms: int

    @classmethod
    def of(cls, message: Message, *, site: str, now_ms: int) -> "Receipt":
        """Take a message in."""
        sent_at_ms = now_ms if message.sent_at_ms is None else message.sent_at_ms
        return cls(message=message, site=site, ulid=ulid_of(message.message_id, sent_at_ms=sent_at_ms), now_ms=now_ms)


class Drop(msgspec.Struct, frozen=True, kw_only=True):
    """A message that isn't sent on: to the bridge queue `queue`, or to no queue at all where that is None."""

    reason: DropReason
    message_id: str
    queue: str | None = None


def stamp(believed: Metadata, attributes: Attributes, receipt: Receipt) -> tuple[Metadata, str]:
    """Complete the metadata, and give the message's id. What an exchange has sent is so already."""
    if believed.message_id is not None and None not in {believed.key, believed.published_at_ms, believed.stamped_at_ms}:
        return believed, believed.message_id
    message_id = believed.message_id or f"{receipt.site}.{receipt.ulid}"
    sent_at_ms = receipt.message.sent_at_ms
    first_seen_ms = receipt.now_ms if sent_at_ms is None else sent_at_ms
    published_at_ms = first_seen_ms if believed.published_at_ms is None else believed.published_at_ms
    complete = replace(
        believed,
        key=attribute_text(attributes, KEY_ATTRIBUTE) if believed.key is None else believed.key,
        message_id=message_id,
        published_at_ms=published_at_ms,
        stamped_at_ms=published_at_ms if believed.stamped_at_ms is None else believed.stamped_at_ms,
    )
    return complete, message_id


def attribute_text(attributes: Attributes, name: str) -> str:
    """Read what a producer that knows nothing of `x-qpid` says in an attribute of its own; "" where there is none."""
    attribute = attributes.get(name)
    if attribute is None:
        return ""
    if attribute.text is None:
        raise Malformed(f"{name} is no text")
    if len(attribute.text) > MAX_KEY_CHARACTERS:
        raise Malformed(f"{name} of {len(attribute.text)} characters, more than {MAX_KEY_CHARACTERS}")
    return attribute.text


def make_outgoing(message: Message, attributes: Attributes, message_id: str, *, fifo: bool, known_as: str) -> Outgoing:
    """Make what is sent of a message to a queue, which knows it by `known_as` where it is a FIFO queue."""
    # From a standard queue no order was promised: each message is a group of its own, and none waits for another.
    return Outgoing(
        body=message.body,
        attributes=attributes,
        group_id=message.group_id or (message_id if fifo else None),
        deduplication_id=known_as if fifo else None,
        trace_header=message.trace_header,
    )


def deduplication_id(metadata: Metadata) -> str:
    """Give the id by which FIFO queues know a copy on its way from site to site.

    By several ways a message comes to one exchange once, and to each of several exchanges; by each of several keys that
    routes give it, too. Copies for different sites are none of each other's, and one that has come back isn't the one
    that went.
    """
    said = f"{metadata.exchange}\0{metadata.key}"
    if metadata.to is not None:
        said = f"{said} {sorted(metadata.to)} {metadata.turns}"
    return f"{metadata.message_id}.{mark_of(said)}"


@lru_cache  # a route has one destination, and few addresses
def mark_of(said: str) -> str:
    """Hash where a copy goes."""
    return hashlib.sha256(said.encode()).hexdigest()[:HASH_CHARACTERS]


def seal(body: str, attributes: Attributes, metadata: Metadata) -> Attributes:
    """Make the attributes to send: the user's, as far as there is room, and `x-qpid`.

    Those without room go inside, the smallest, as inside they take a third more.

    Raises `TooLarge` where SQS would take the message without metadata, perhaps, but not with it, and `ValueError` or
    `TypeError` for headers that JSON hasn't.
    """
    outside = dict(attributes)
    if len(attributes) > MAX_USER_ATTRIBUTES:
        by_size = sorted(attributes, key=lambda name: (size_of("", {"": attributes[name]}), name))
        overflow = {name: _packed(outside.pop(name)) for name in by_size[: len(attributes) - MAX_USER_ATTRIBUTES]}
    else:
        overflow = {}
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
    size = size_of(body, sealed)
    if size > MAX_MESSAGE_BYTES:
        raise TooLarge(size, MAX_MESSAGE_BYTES)
    return sealed


def _packed(value: Value) -> list[Any]:
    content = value.content
    packed = {"base64": base64.b64encode(content).decode()} if isinstance(content, bytes) else content
    return [value.data_type, packed]


Ms = Annotated[int, Meta(ge=0, le=MAX_MS)]
MessageId = Annotated[str, Meta(pattern=rf"\A{TAG}\.{ULID}\Z")]
DataType = Annotated[str, Meta(pattern=r"\A(String|Number|Binary)(\.[^\x00-\x1f\x7f\ud800-\udfff]{1,249})?\Z")]


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """`x-qpid` as JSON has it. Others write it too: null is missing, and a field that isn't known is skipped."""

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


def open_attributes(attributes: Attributes) -> Opened:
    """Take a message's attributes apart. Raises `Malformed` for an `x-qpid` that can't be read.

    What it says is a claim: whether to believe it is the caller's to decide.
    """
    sealed = attributes.get(ATTRIBUTE)
    if sealed is None:
        return Opened(attributes=attributes, metadata=None)
    if sealed.text is None or not sealed.data_type.startswith("String"):
        raise Malformed(f"{ATTRIBUTE}: is no String")
    said = decode(sealed.text, Said, of=ATTRIBUTE)
    user = {name: value for name, value in attributes.items() if name != ATTRIBUTE}
    for name, (data_type, content) in (said.overflow or {}).items():
        if name in user:
            raise Malformed(f"{ATTRIBUTE}: overflow repeats the attribute {name}")
        user[name] = _unpacked(name, data_type, content)
    metadata = Metadata(
        exchange=said.exchange,
        key=said.key,
        trace=said.trace or (),
        message_id=said.id,
        published_at_ms=said.published,
        stamped_at_ms=said.stamped,
        ttl_ms=said.ttl,
        headers=of_stored(said.headers) if said.headers else {},
        to=said.to,
        turns=said.turns or 0,
    )
    return Opened(attributes=user, metadata=metadata)


def _unpacked(name: str, data_type: str, packed: str | Base64) -> Value:
    """Make an attribute that SQS will take: one that it wouldn't could never be delivered."""
    content = packed.base64 if isinstance(packed, Base64) else packed
    is_binary = data_type.startswith("Binary")
    if name == ATTRIBUTE or not is_attribute_name(name) or not content or is_binary is not isinstance(content, bytes):
        raise Malformed(f"{ATTRIBUTE}: overflow has an attribute that SQS doesn't take")
    if isinstance(content, str) and NOT_TEXT.search(content):
        raise Malformed(f"{ATTRIBUTE}: overflow has no text for SQS")
    if isinstance(content, str) and data_type.startswith("Number") and not _NUMBER.fullmatch(content.strip()):
        raise Malformed(f"{ATTRIBUTE}: overflow has a Number that is none")
    return Value(data_type, content)
