"""What sites tell each other about dynamic routes, and its JSON. Pure.

A dynamic bridge has a destination, which pulls, and a source, which serves it. The destination tells what it wants, the
source for whom it sends over the bridge:

    {"op": "H", "from": "destination", …, "sequence": n, "digest": text,
     "excludes": [tag, …], "ready": {origin: [tag, …]}, "heard": [epoch, number]}
    {"op": "B" or "U", …, "sequence": n, "origin": tag, "path": [tag, …], "hops": n, "outages": n,
     "binding": {"key": text, "arguments": {…}} or null}
    {"op": "S", …, "sequence": n, "part": n, "parts": n, "data": base64}
    {"op": "H", "from": "source", …, "number": n, "senders": {origin: [tag, …]},
     "asks": false}
    {"op": "R", …, "number": n}

all with `exchange`, `bridge` (the destination's name for it) and `epoch`. A `B` without a binding says by which path
the origin is reached, a `U` without one that it isn't any more. `hops` are those that are left, the bridge's own
included.
"""

import base64
import hashlib
import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sluice.errors import Malformed
from sluice.federation.matching.bindings import MAX_ARGUMENTS, MAX_KEY_CHARACTERS, Binding
from sluice.federation.matching.exchanges import ExchangeType
from sluice.federation.matching.tracing import MAX_TRACE_TAGS, is_tag
from sluice.federation.matching.typed_values import Headers, decode_bytes, of_json, to_json

MAX_NAME_CHARACTERS = 512  # of a bridge or an exchange
MAX_NUMBER = 1 << 62
MAX_ORIGINS = 1_000  # sites that can be known by one bridge
MAX_TAGS = 4_096  # in a list of tags
MAX_PARTS = 64
PART_BYTES = 240 * 1024  # of base64: with the rest of the message within SQS's former limit
FULL_PART_BYTES = 1_000 * 1024  # the most that a message holds
FEW_PARTS = 10  # more than that, and the parts are made larger
MAX_SNAPSHOT_BYTES = 64 * 1024 * 1024  # of JSON: no hostile snapshot takes all of a function's memory
HASH_CHARACTERS = 32

Tags = frozenset[str]


class Want(NamedTuple):
    """A binding as other sites know it: its key, and its arguments as JSON with sorted names; "" for none."""

    key: str
    arguments: str = ""

    @classmethod
    def of(cls, key: str, arguments: Headers | None = None) -> "Want":
        """Equal for the same key and arguments, and only for those: 1 is neither 1.0 nor true."""
        return cls(key, _canonical(arguments) if arguments else "")

    @property
    def headers(self) -> dict[str, Any]:
        """The arguments with their types."""
        return of_json(json.loads(self.arguments)) if self.arguments else {}


def _canonical(arguments: Headers) -> str:
    return json.dumps(to_json(arguments), sort_keys=True, separators=(",", ":"))


Wants = frozenset[Want]
NO_WANTS: Wants = frozenset()


def bindings_for(wants: Iterable[Want], *, exchange: str, type_: ExchangeType, queue: str) -> tuple[Binding, ...]:
    """The bindings of a bridge queue that match what the wants match, in order of keys; no two have one id.

    A queue has one binding by a key: so where arguments decide, the key is a hash of both; else they are left out.
    """
    if type_ is ExchangeType.HEADERS:
        return tuple(
            Binding(exchange=exchange, queue=queue, key=_hash(want), arguments=want.headers) for want in sorted(wants)
        )
    keys = sorted({want.key for want in wants})
    return tuple(Binding(exchange=exchange, queue=queue, key=key) for key in keys)


def _hash(want: Want) -> str:
    return hashlib.sha256(json.dumps(want).encode()).hexdigest()[:HASH_CHARACTERS]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """How an origin is reached through a site, and what it wants.

    `path` are the sites on the way, the origin first, that site last; `hops_left` how many more sites may pass it on,
    the next one included; `outages` how many links on the way are known to be down.
    """

    path: tuple[str, ...]
    hops_left: int
    outages: int = 0
    wants: Wants = NO_WANTS


Reaches = Mapping[str, Reach]  # by origin


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """H of the destination.

    `sequence` is the last op's. `excludes` are the tags whose messages come by another bridge, `ready` by origin those
    whose messages nobody excludes on the way to it, as of the source's hello `heard`, an epoch and a number.
    """

    exchange: str
    bridge: str
    epoch: int
    number: int
    sequence: int
    digest: str
    excludes: Tags = frozenset()
    ready: Mapping[str, Tags] = field(default_factory=dict)
    heard: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bind:
    """B: the origin is reached by this path, and wants this, where `want` isn't None."""

    exchange: str
    bridge: str
    epoch: int
    sequence: int
    origin: str
    path: tuple[str, ...]
    hops_left: int
    outages: int
    want: Want | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Unbind:
    """U: the origin doesn't want this any more; where `want` is None, it isn't reached any more."""

    exchange: str
    bridge: str
    epoch: int
    sequence: int
    origin: str
    want: Want | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotPart:
    """S: a part, counted from 0, of all that the destination wants after the op `sequence`."""

    exchange: str
    bridge: str
    epoch: int
    sequence: int
    part: int
    parts: int
    data: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """H of the source: by origin, the tags of the sites whose messages for that origin go over the bridge.

    The destination answers one that `asks` with a hello of its own.
    """

    exchange: str
    bridge: str
    epoch: int
    number: int
    senders: Mapping[str, Tags]
    asks: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AskSnapshot:
    """R: the source asks for a snapshot."""

    exchange: str
    bridge: str
    epoch: int
    number: int


Op = Wanted | Bind | Unbind | SnapshotPart | Carried | AskSnapshot


# Digests and snapshots


def digest_of(reaches: Reaches) -> str:
    """Equal for equal reaches, in whatever order they came."""
    return hashlib.sha256(_text_of(reaches)).hexdigest()[:HASH_CHARACTERS]


def _text_of(reaches: Reaches) -> bytes:
    document = [
        [origin, reach.path, reach.hops_left, reach.outages, [_plain_want(want) for want in sorted(reach.wants)]]
        for origin, reach in sorted(reaches.items())
    ]
    return json.dumps(document, separators=(",", ":")).encode()


def _plain_want(want: Want) -> list[str]:
    return [want.key, want.arguments] if want.arguments else [want.key]


def snapshot_parts(reaches: Reaches) -> list[str]:
    """The reaches as compressed JSON in base64, in at most ten parts unless those were too large for a message."""
    text = base64.b64encode(zlib.compress(_text_of(reaches), 9)).decode()
    size = min(max(PART_BYTES, -(-len(text) // FEW_PARTS)), FULL_PART_BYTES)
    return [text[start : start + size] for start in range(0, len(text), size)]


def read_snapshot(parts: Iterable[str]) -> dict[str, Reach]:
    """What `snapshot_parts` wrote. Raises `Malformed`."""
    compressed = decode_bytes("".join(parts))
    inflate = zlib.decompressobj()
    try:
        text = inflate.decompress(compressed, MAX_SNAPSHOT_BYTES)
        if not inflate.eof:
            raise Malformed("a snapshot that is cut short, or too large")
        return _reaches(json.loads(text))
    except (zlib.error, ValueError, TypeError, RecursionError) as error:
        raise Malformed(f"a snapshot that can't be read: {error}") from None


def _reaches(listed: Any) -> dict[str, Reach]:
    if not isinstance(listed, list) or len(listed) > MAX_ORIGINS:
        raise Malformed(f"a snapshot is a list of at most {MAX_ORIGINS} origins")
    found = {}
    for origin, path, hops_left, outages, wants in listed:
        reach = Reach(
            path=_path(path, origin),
            hops_left=_number(hops_left, "hops", least=1),
            outages=_number(outages, "outages"),
            wants=frozenset(_want_of(*want) for want in wants),
        )
        found[origin] = reach
    return found


def _want_of(key: object, arguments: object = "") -> Want:
    if arguments == "":
        return _checked_want(key, {})
    if not isinstance(arguments, str):
        raise Malformed("arguments are no JSON text")
    return _checked_want(key, json.loads(arguments))


def _checked_want(key: object, arguments: object) -> Want:
    if not isinstance(key, str) or len(key) > MAX_KEY_CHARACTERS:
        raise Malformed(f"a key is a text of at most {MAX_KEY_CHARACTERS} characters")
    if not isinstance(arguments, dict) or len(arguments) > MAX_ARGUMENTS:
        raise Malformed(f"arguments are an object of at most {MAX_ARGUMENTS} names")
    return Want.of(key, of_json(arguments))


# JSON


def encode_op(op: Op) -> str:
    """An op as a JSON object."""
    common = {"exchange": op.exchange, "bridge": op.bridge, "epoch": op.epoch}
    return json.dumps(common | _said(op), separators=(",", ":"))


def _said(op: Op) -> dict[str, Any]:
    match op:
        case Wanted():
            versions = {"number": op.number, "sequence": op.sequence, "digest": op.digest}
            passing = {"excludes": sorted(op.excludes), "ready": _plain_tags(op.ready), "heard": list(op.heard)}
            return {"op": "H", "from": "destination", **versions, **passing}
        case Carried():
            senders = _plain_tags(op.senders)
            return {"op": "H", "from": "source", "number": op.number, "senders": senders, "asks": op.asks}
        case Bind():
            way = {"path": list(op.path), "hops": op.hops_left, "outages": op.outages}
            return {"op": "B", "sequence": op.sequence, "origin": op.origin, **way, "binding": _binding(op.want)}
        case Unbind():
            return {"op": "U", "sequence": op.sequence, "origin": op.origin, "binding": _binding(op.want)}
        case SnapshotPart():
            return {"op": "S", "sequence": op.sequence, "part": op.part, "parts": op.parts, "data": op.data}
        case AskSnapshot():
            return {"op": "R", "number": op.number}


def _plain_tags(by_origin: Mapping[str, Tags]) -> dict[str, list[str]]:
    return {origin: sorted(tags) for origin, tags in sorted(by_origin.items())}


def _binding(want: Want | None) -> dict[str, Any] | None:
    return None if want is None else {"key": want.key, "arguments": json.loads(want.arguments or "{}")}


def decode_op(text: str) -> Op:
    """Reads what `encode_op` wrote. Raises `Malformed`."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Malformed(str(error)) from None
    return op_of(document)


def op_of(document: object) -> Op:
    """Reads an op's JSON object. Raises `Malformed`."""
    if not isinstance(document, dict):
        raise Malformed("an op is a JSON object")
    kind, by = document.get("op"), document.get("from")
    read = _READ.get((kind, by) if isinstance(kind, str) and isinstance(by, str | None) else ("", None))
    if read is None:
        raise Malformed(f"no such op: {kind!r}")
    common = {
        "exchange": _name(document, "exchange"),
        "bridge": _name(document, "bridge"),
        "epoch": _number(document.get("epoch"), "epoch"),
    }
    return read(document, common)


def _read_wanted(document: dict[str, Any], common: dict[str, Any]) -> Op:
    return Wanted(
        **common,
        number=_number(document.get("number"), "number"),
        sequence=_number(document.get("sequence"), "sequence"),
        digest=_name(document, "digest"),
        excludes=_tags(document.get("excludes"), "excludes"),
        ready=_tags_by_origin(document.get("ready"), "ready"),
        heard=_heard(document.get("heard")),
    )


def _heard(listed: object) -> tuple[int, int]:
    if not isinstance(listed, list) or len(listed) != len(("epoch", "number")):
        raise Malformed("heard is a list of an epoch and a number")
    return _number(listed[0], "heard"), _number(listed[1], "heard")


def _read_carried(document: dict[str, Any], common: dict[str, Any]) -> Op:
    senders = _tags_by_origin(document.get("senders"), "senders")
    number, asks = _number(document.get("number"), "number"), document.get("asks") is True
    return Carried(**common, number=number, senders=senders, asks=asks)


def _read_bind(document: dict[str, Any], common: dict[str, Any]) -> Op:
    origin = _tag(document.get("origin"), "origin")
    return Bind(
        **common,
        sequence=_number(document.get("sequence"), "sequence"),
        origin=origin,
        path=_path(document.get("path"), origin),
        hops_left=_number(document.get("hops"), "hops", least=1),
        outages=_number(document.get("outages"), "outages"),
        want=_want(document.get("binding")),
    )


def _read_unbind(document: dict[str, Any], common: dict[str, Any]) -> Op:
    return Unbind(
        **common,
        sequence=_number(document.get("sequence"), "sequence"),
        origin=_tag(document.get("origin"), "origin"),
        want=_want(document.get("binding")),
    )


def _read_part(document: dict[str, Any], common: dict[str, Any]) -> Op:
    parts = _number(document.get("parts"), "parts", least=1, most=MAX_PARTS)
    data = document.get("data")
    if not isinstance(data, str) or len(data) > FULL_PART_BYTES:
        raise Malformed(f"data is a text of at most {FULL_PART_BYTES} characters")
    return SnapshotPart(
        **common,
        sequence=_number(document.get("sequence"), "sequence"),
        part=_number(document.get("part"), "part", most=parts - 1),
        parts=parts,
        data=data,
    )


def _read_ask(document: dict[str, Any], common: dict[str, Any]) -> Op:
    return AskSnapshot(**common, number=_number(document.get("number"), "number"))


_READ = {
    ("H", "destination"): _read_wanted,
    ("H", "source"): _read_carried,
    ("B", None): _read_bind,
    ("U", None): _read_unbind,
    ("S", None): _read_part,
    ("R", None): _read_ask,
}


def _name(document: Mapping[str, Any], called: str) -> str:
    value = document.get(called)
    if not isinstance(value, str) or not 0 < len(value) <= MAX_NAME_CHARACTERS:
        raise Malformed(f"{called} is a text of 1 to {MAX_NAME_CHARACTERS} characters")
    return value


def _number(value: object, called: str, *, least: int = 0, most: int = MAX_NUMBER) -> int:
    # True is an int to Python, not to JSON.
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise Malformed(f"{called} is a number from {least} to {most}")
    return value


def _tag(value: object, called: str) -> str:
    if not isinstance(value, str) or not is_tag(value):
        raise Malformed(f"{called} is no tag")
    return value


def _tags(listed: object, called: str) -> Tags:
    if not isinstance(listed, list) or len(listed) > MAX_TAGS:
        raise Malformed(f"{called} is a list of at most {MAX_TAGS} tags")
    return frozenset(_tag(each, called) for each in listed)


def _tags_by_origin(document: object, called: str) -> dict[str, Tags]:
    if not isinstance(document, dict) or len(document) > MAX_ORIGINS:
        raise Malformed(f"{called} is an object of at most {MAX_ORIGINS} origins")
    return {_tag(origin, "an origin"): _tags(tags, called) for origin, tags in document.items()}


def _path(listed: object, origin: object) -> tuple[str, ...]:
    if not isinstance(listed, list) or not 0 < len(listed) <= MAX_TRACE_TAGS:
        raise Malformed(f"a path is a list of 1 to {MAX_TRACE_TAGS} tags")
    path = tuple(_tag(each, "path") for each in listed)
    if path[0] != origin or len(set(path)) != len(path):
        raise Malformed("a path begins at its origin, and has no site twice")
    return path


def _want(document: object) -> Want | None:
    if document is None:
        return None
    if not isinstance(document, dict):
        raise Malformed("a binding is an object")
    return _checked_want(document.get("key"), document.get("arguments", {}))
