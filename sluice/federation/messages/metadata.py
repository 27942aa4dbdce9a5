"""What a message carries from site to site, in its one reserved attribute: `x-qpid`, a JSON object. Pure.

    {"exchange": "amq.topic", "key": "a.b", "trace": ["SITE1"], "id": "SITE1.01J…", "published": ms, "stamped": ms,
     "ttl": ms, "headers": {name: value}, "overflow": {name: [data type, text or {"base64": …}]}}

Every field may be missing. `ttl` is what was left when the message was `stamped`. `headers` are those that SQS has no
type for. `overflow` holds the user's attributes that find no room beside `x-qpid`. The JSON is ASCII, so whatever it
quotes is text that SQS takes. Attributes come out as they went in, with type and value, byte for byte.
"""

import base64
import json
import re
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeVar

from sluice.errors import Malformed, TooLarge
from sluice.federation.matching.bindings import MAX_KEY_CHARACTERS
from sluice.federation.matching.tracing import MAX_TRACE_TAGS, Trace, is_tag
from sluice.federation.matching.typed_values import Headers, decode_bytes, of_json, to_json
from sluice.federation.messages.ulids import is_ulid
from sluice.message import MAX_ATTRIBUTES, MAX_MESSAGE_BYTES, Attributes, Value, size_of

ATTRIBUTE = "x-qpid"
# Attributes of a producer that knows nothing of it.
EXCHANGE_ATTRIBUTE = "exchange"
KEY_ATTRIBUTE = "routing-key"
MAX_USER_ATTRIBUTES = MAX_ATTRIBUTES - 1  # that stay attributes on the way
MAX_OVERFLOW = 256
MAX_HEADERS = 256
MAX_MS = 1 << 53  # of time and of TTL: what any reader of JSON keeps exactly

_ATTRIBUTE_NAME = re.compile(r"(?!(?i:aws|amazon)\.)[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*")
_MAX_NAME_CHARACTERS = 256
_DATA_TYPE = re.compile(r"(String|Number|Binary)(\.[^\x00-\x1f\x7f\ud800-\udfff]{1,249})?")
_NUMBER = re.compile(r"[+-]?(\d{1,128}(\.\d{0,128})?|\.\d{1,128})([eE][+-]?\d{1,10})?")
# What SQS refuses in a text (SendMessage, "MessageBody").
_NOT_TEXT = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def _not_json(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


# Made once: `json.dumps` and `json.loads` make theirs anew for each message that asks for anything unusual.
_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)
_DECODER = json.JSONDecoder(parse_constant=_not_json)


@dataclass(frozen=True, slots=True, kw_only=True)
class Metadata:
    """What `x-qpid` says. `message_id` is `<tag>.<ulid>` of the first exchange; the times are ms since 1970."""

    exchange: str | None = None
    key: str | None = None
    trace: Trace = ()
    message_id: str | None = None
    published_at_ms: int | None = None
    stamped_at_ms: int | None = None
    ttl_ms: int | None = None
    headers: Headers = field(default_factory=dict)

    def ttl_left_ms(self, now_ms: int) -> int | None:
        """What is left of the TTL, 0 at least; None where the message lives on."""
        if self.ttl_ms is None:
            return None
        since = now_ms if self.stamped_at_ms is None else self.stamped_at_ms
        return max(self.ttl_ms - max(now_ms - since, 0), 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A message's attributes, taken apart: the user's, all of them, and the metadata where there is some."""

    attributes: Attributes
    metadata: Metadata | None


def message_id_of(site: str, ulid: str) -> str:
    """The id of a message that is first published at the site. Raises `ValueError` for what is no tag or no ULID."""
    if not is_tag(site) or not is_ulid(ulid):
        raise ValueError(f"no tag and ULID: {site!r}, {ulid!r}")
    return f"{site}.{ulid}"


def seal(body: str, attributes: Attributes, metadata: Metadata) -> Attributes:
    """The attributes to send: the user's, as far as there is room, and `x-qpid`.

    Raises `TooLarge` where SQS would take the message without metadata, perhaps, but not with it.
    """
    inside = _overflow(attributes)
    outside = {name: value for name, value in attributes.items() if name not in inside}
    sealed = {**outside, ATTRIBUTE: Value("String", _ENCODER.encode(_document(metadata, inside)))}
    size = size_of(body, sealed)
    if size > MAX_MESSAGE_BYTES:
        raise TooLarge(size, MAX_MESSAGE_BYTES)
    return sealed


def _overflow(attributes: Attributes) -> Attributes:
    """The attributes that go inside: as few as will do, the smallest, as inside they take a third more."""
    excess = len(attributes) - MAX_USER_ATTRIBUTES
    if excess <= 0:
        return {}
    smallest = sorted(attributes, key=lambda name: (attributes[name].size, name))[:excess]
    return {name: attributes[name] for name in smallest}


def _document(metadata: Metadata, overflow: Attributes) -> dict[str, Any]:
    fields = {
        "exchange": metadata.exchange,
        "key": metadata.key,
        "trace": list(metadata.trace) or None,
        "id": metadata.message_id,
        "published": metadata.published_at_ms,
        "stamped": metadata.stamped_at_ms,
        "ttl": metadata.ttl_ms,
        "headers": to_json(metadata.headers) or None,
        "overflow": {name: _packed(value) for name, value in overflow.items()} or None,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _packed(value: Value) -> list[Any]:
    content = value.content
    packed = {"base64": base64.b64encode(content).decode()} if isinstance(content, bytes) else content
    return [value.data_type, packed]


def open_attributes(attributes: Attributes) -> Opened:
    """Takes a message's attributes apart. Raises `Malformed` for an `x-qpid` that can't be read.

    What it says is a claim: whether to believe it is the caller's to decide.
    """
    sealed = attributes.get(ATTRIBUTE)
    if sealed is None:
        return Opened(attributes=attributes, metadata=None)
    outside = {name: value for name, value in attributes.items() if name != ATTRIBUTE}
    try:
        return _opened(outside, _decoded(sealed))
    except Malformed as error:
        raise Malformed(f"{ATTRIBUTE}: {error}") from None


def _opened(outside: Attributes, document: dict[str, Any]) -> Opened:
    inside = _unpacked(_field(document, "overflow", dict, {}))
    if outside.keys() & inside.keys():
        raise Malformed("overflow repeats an attribute")
    return Opened(attributes={**outside, **inside}, metadata=_metadata(document))


def _decoded(sealed: Value) -> dict[str, Any]:
    if sealed.text is None or not sealed.data_type.startswith("String"):
        raise Malformed("is no String")
    try:
        document = _DECODER.decode(sealed.text)
    except RecursionError:
        raise Malformed("nested too deep") from None
    except ValueError as error:
        raise Malformed(f"{error}") from None
    if not isinstance(document, dict):
        raise Malformed("is no JSON object")
    return document


def _metadata(document: dict[str, Any]) -> Metadata:
    return Metadata(
        exchange=_text(document, "exchange"),
        key=_text(document, "key"),
        trace=_trace(_field(document, "trace", list, [])),
        message_id=_message_id(_text(document, "id")),
        published_at_ms=_ms(document, "published"),
        stamped_at_ms=_ms(document, "stamped"),
        ttl_ms=_ms(document, "ttl"),
        headers=_headers(_field(document, "headers", dict, {})),
    )


_T = TypeVar("_T")
_U = TypeVar("_U")


def _field(document: dict[str, Any], name: str, wanted: type[_T], absent: _U) -> _T | _U:
    value = document.get(name)
    if value is None:
        return absent
    # bool is an int to Python, not to JSON.
    if not isinstance(value, wanted) or isinstance(value, bool):
        raise Malformed(f"{name} is no {wanted.__name__}")
    return value


def _text(document: dict[str, Any], name: str) -> str | None:
    text = _field(document, name, str, None)
    if text is not None:
        if len(text) > MAX_KEY_CHARACTERS:
            raise Malformed(f"{name} of {len(text)} characters, more than {MAX_KEY_CHARACTERS}")
        _check_unicode(name, text)
    return text


def _check_unicode(name: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise Malformed(f"{name} is no Unicode text") from None


def _ms(document: dict[str, Any], name: str) -> int | None:
    value = _field(document, name, int, None)
    if value is not None and not 0 <= value <= MAX_MS:
        raise Malformed(f"{name} out of range")
    return value


def _trace(tags: list[Any]) -> Trace:
    if len(tags) > MAX_TRACE_TAGS:
        raise Malformed(f"a trace of {len(tags)} tags, more than {MAX_TRACE_TAGS}")
    if not all(isinstance(tag, str) and is_tag(tag) for tag in tags):
        raise Malformed("trace has what is no tag")
    return tuple(tags)


def _message_id(text: str | None) -> str | None:
    if text is None:
        return None
    tag, _, ulid = text.partition(".")
    if not is_tag(tag) or not is_ulid(ulid):
        raise Malformed("id is no <tag>.<ulid>")
    return text


def _headers(document: dict[str, Any]) -> Headers:
    if len(document) > MAX_HEADERS:
        raise Malformed(f"{len(document)} headers, more than {MAX_HEADERS}")
    headers = of_json(document)
    for name, value in headers.items():
        _check_unicode("a header's name", name)
        if isinstance(value, str):
            _check_unicode("a header", value)
    return headers


def _unpacked(document: dict[str, Any]) -> dict[str, Value]:
    if len(document) > MAX_OVERFLOW:
        raise Malformed(f"overflow of {len(document)} attributes, more than {MAX_OVERFLOW}")
    return {name: _attribute(name, packed) for name, packed in document.items()}


def _attribute(name: str, packed: object) -> Value:
    """An attribute that SQS will take: one that it wouldn't could never be delivered."""
    if not isinstance(packed, list) or len(packed) != len(("data type", "content")):
        raise Malformed("overflow has what is no attribute")
    data_type, content = packed
    kind = _DATA_TYPE.fullmatch(data_type) if isinstance(data_type, str) else None
    if kind is None or not _is_attribute_name(name):
        raise Malformed("overflow has an attribute that SQS doesn't take")
    if kind[1] == "Binary":
        encoded = content.get("base64") if isinstance(content, dict) else None
        return Value(data_type, _not_empty(decode_bytes(encoded)))
    if not isinstance(content, str) or _NOT_TEXT.search(content):
        raise Malformed("overflow has no text for SQS")
    if kind[1] == "Number" and not _NUMBER.fullmatch(content.strip()):
        raise Malformed("overflow has a Number that is none")
    return Value(data_type, _not_empty(content))


def _is_attribute_name(name: str) -> bool:
    return name != ATTRIBUTE and len(name) <= _MAX_NAME_CHARACTERS and _ATTRIBUTE_NAME.fullmatch(name) is not None


_C = TypeVar("_C", str, bytes)


def _not_empty(content: _C) -> _C:
    if not content:
        raise Malformed("overflow has an empty attribute")
    return content
