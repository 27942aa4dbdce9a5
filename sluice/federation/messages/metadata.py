"""What a message carries from site to site, in its one reserved attribute: `x-qpid`, a JSON object. Pure.

    {"exchange": "amq.topic", "key": "a.b", "trace": ["SITE1"], "id": "SITE1.01J…", "published": ms, "stamped": ms,
     "ttl": ms, "headers": {name: value}, "overflow": {name: [data type, text or {"base64": …}]},
     "to": ["SITE2"], "turns": 1}

Every field may be missing. `ttl` is what was left when the message was `stamped`. `headers` are those that SQS has no
type for. `overflow` holds the user's attributes that find no room beside `x-qpid`. `to` are the sites that a copy on a
dynamic bridge is for, `turns` how many such bridges it has crossed. The JSON is ASCII, so whatever it quotes is text
that SQS takes. Attributes come out as they went in, with type and value, byte for byte.
"""

import base64
import json
import re
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from sluice.codec import decode
from sluice.errors import Malformed, TooLarge
from sluice.federation.matching.indexes import Key
from sluice.federation.matching.tracing import (
    MAX_ORIGINS,
    MAX_TRACE_TAGS,
    MAX_TURNS,
    TAG,
    DropReason,
    Sites,
    Tag,
    Trace,
    is_tag,
)
from sluice.federation.matching.typed_values import Base64, Headers, StoredValue, of_stored, to_json
from sluice.message import MAX_ATTRIBUTES, MAX_MESSAGE_BYTES, NOT_TEXT, Attributes, Value, is_attribute_name, size_of
from sluice.ulids import ULID, is_ulid

ATTRIBUTE = "x-qpid"
# Attributes of a producer that knows nothing of it.
EXCHANGE_ATTRIBUTE = "exchange"
KEY_ATTRIBUTE = "routing-key"
MAX_USER_ATTRIBUTES = MAX_ATTRIBUTES - 1  # that stay attributes on the way
MAX_OVERFLOW = 256
MAX_HEADERS = 256
MAX_MS = 1 << 53  # of time and of TTL: what any reader of JSON keeps exactly

_NUMBER = re.compile(r"[+-]?(\d{1,128}(\.\d{0,128})?|\.\d{1,128})([eE][+-]?\d{1,10})?")

# Made once: `json.dumps` makes its own anew for each message that asks for anything unusual. It isn't msgspec's, which
# leaves text as it is: then sites would write bytes that others don't.
_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)
_PLAIN = msgspec.json.Encoder()  # of ASCII and integers it writes the same, in a tenth of the time


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


def message_id_of(site: str, ulid: str) -> str:
    """Make the id of a message first published at the site. Raises `ValueError` for what is no tag or no ULID."""
    if not is_tag(site) or not is_ulid(ulid):
        raise ValueError(f"no tag and ULID: {site!r}, {ulid!r}")
    return f"{site}.{ulid}"


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
