"""The registry and what sites tell each other, as JSON and back. Pure. Formats are numbered: an older program stops.

Control messages, each a JSON object with `op`, `link` (a name of the asker's) and `from` (an address):

    {"op": "hello", …, "served": false, "draining": false, "pulls": [bridge, …]}
    {"op": "answer", …, "exchanges": {name: type}, "bridges": {name: state}}
    {"op": "refused", …, "reason": text}
    {"op": "parting", …}
    {"op": "dynamic", …, "body": an op of `dynamic_ops`, as text}
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, TypeVar

from sluice.documents import json_object
from sluice.errors import BadSnapshot, Malformed
from sluice.federation.links.links import Bridge, Endpoint, Link
from sluice.federation.links.registry import Address, BridgeRecord, LinkRecord, Registry
from sluice.federation.links.states import State, Status

FORMAT = 1
MAX_PULLS = 1_000

_T = TypeVar("_T")


def encode_registry(registry: Registry) -> bytes:
    """Equal registries give equal bytes."""
    document = {
        "format": FORMAT,
        "here": registry.here,
        "links": [_plain(record) for record in registry.links.values()],
        "bridges": [_plain(record) for record in registry.bridges.values()],
    }
    return json.dumps(document, default=_set, sort_keys=True, separators=(",", ":")).encode()


def decode_registry(text: bytes) -> Registry:
    """Raises `BadSnapshot`."""
    try:
        document = json.loads(text)
        if document["format"] != FORMAT:
            raise BadSnapshot(f"the registry has format {document['format']}, not {FORMAT}")
        links = [_link_record(each) for each in document["links"]]
        bridges = [BridgeRecord(**each | {"bridge": bridge_of(each["bridge"])}) for each in document["bridges"]]
    except (ValueError, KeyError, TypeError) as error:
        raise BadSnapshot(f"the registry of links can't be read: {error!r}") from error
    return Registry(
        here=document["here"],
        links={each.link.name: each for each in links},
        bridges={each.bridge.name: each for each in bridges},
    )


def _plain(value: Any) -> dict[str, Any]:
    return asdict(value)


def _set(value: object) -> list[Any]:
    if isinstance(value, frozenset):
        return sorted(value)
    raise TypeError(f"no JSON for {value!r}")


def _link_record(document: Mapping[str, Any]) -> LinkRecord:
    status = document["status"]
    address = document["address"]
    return LinkRecord(
        **dict(document)
        | {
            "link": link_of(document["link"]),
            "status": Status(**status | {"state": State(status["state"])}),
            "address": None if address is None else Address(**address),
        }
    )


def plain_bridge(bridge: Bridge) -> dict[str, Any]:
    """A bridge as a JSON object."""
    return asdict(bridge) | {"excludes": sorted(bridge.excludes)}


def bridge_of(document: Mapping[str, Any]) -> Bridge:
    """Raises `Malformed` for what is no bridge; whether it may be is `links`' to say."""
    excludes = document.get("excludes", [])
    if not isinstance(excludes, list) or not all(isinstance(each, str) for each in excludes):
        raise Malformed("excludes are no list of tags")
    return _typed(Bridge, dict(document) | {"excludes": frozenset(excludes)})


def link_of(document: Mapping[str, Any]) -> Link:
    """See `bridge_of`."""
    endpoints = document.get("endpoints")
    if not isinstance(endpoints, list) or not all(isinstance(each, Mapping) for each in endpoints):
        raise Malformed("endpoints are no list of objects")
    return _typed(Link, dict(document) | {"endpoints": tuple(_typed(Endpoint, each) for each in endpoints)})


def address_of(document: object) -> Address:
    """See `bridge_of`."""
    if not isinstance(document, Mapping):
        raise Malformed("from is no object")
    return _typed(Address, document)


_JSON_TYPES: Mapping[str, tuple[type, ...]] = {
    "str": (str,),
    "str | None": (str, type(None)),
    "bool": (bool,),
    "int": (int,),
    "int | None": (int, type(None)),
    "float | None": (int, float, type(None)),
}


def _typed(type_: Callable[..., _T], document: Mapping[str, Any]) -> _T:
    """The dataclass with these fields, each of its own type."""
    known = {each.name: each for each in fields(type_)}  # type: ignore[arg-type]  # it is a dataclass
    name = getattr(type_, "__name__", "").lower()
    for key, value in document.items():
        if key not in known:
            raise Malformed(f"a {name} has no field {key}")
        wanted = _JSON_TYPES.get(_spelled(known[key].type))
        # True is an int to Python, not to JSON.
        if wanted and (not isinstance(value, wanted) or (isinstance(value, bool) and bool not in wanted)):
            raise Malformed(f"{name}.{key} is {value!r}")
    try:
        return type_(**document)
    except TypeError as error:
        raise Malformed(f"{name}: {error}") from None


def _spelled(annotation: Any) -> str:
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)


# Control messages


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """Over a link: who asks, and what is pulled over it. `served` where nobody declared the link at the asker."""

    link: str
    sender: Address
    served: bool = False
    draining: bool = False
    pulls: tuple[Bridge, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """To a hello. `exchanges` are names with types, `bridges` names of pulled bridges with their state."""

    link: str
    sender: Address
    exchanges: Mapping[str, str]
    bridges: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """To a hello that isn't taken."""

    link: str
    sender: Address
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Parting:
    """The asker's link is closed."""

    link: str
    sender: Address


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamicOp:
    """Of the protocol of dynamic routes; `body` is `dynamic_ops`' to read."""

    link: str
    sender: Address
    body: str


Control = Hello | Answer | Refusal | Parting


def encode_control(control: Control | DynamicOp) -> str:
    """A control message's body."""
    common = {"link": control.link, "from": asdict(control.sender)}
    match control:
        case Hello():
            pulls = [plain_bridge(each) for each in control.pulls]
            said = {"op": "hello", "served": control.served, "draining": control.draining, "pulls": pulls}
        case Answer():
            said = {"op": "answer", "exchanges": dict(control.exchanges), "bridges": dict(control.bridges)}
        case Refusal():
            said = {"op": "refused", "reason": control.reason}
        case Parting():
            said = {"op": "parting"}
        case DynamicOp():
            said = {"op": "dynamic", "body": control.body}
    return json.dumps(common | said)


def decode_control(body: str) -> Control | DynamicOp:
    """Raises `Malformed`."""
    document = json_object(body, of="a control message")
    link, sender = _text(document, "link"), address_of(document.get("from"))
    match document.get("op"):
        case "hello":
            return Hello(
                link=link,
                sender=sender,
                served=document.get("served") is True,
                draining=document.get("draining") is True,
                pulls=_pulls(document.get("pulls")),
            )
        case "answer":
            exchanges, bridges = _texts(document, "exchanges"), _texts(document, "bridges")
            return Answer(link=link, sender=sender, exchanges=exchanges, bridges=bridges)
        case "refused":
            return Refusal(link=link, sender=sender, reason=_text(document, "reason"))
        case "parting":
            return Parting(link=link, sender=sender)
        case "dynamic":
            return DynamicOp(link=link, sender=sender, body=_text(document, "body"))
        case other:
            raise Malformed(f"no such op: {other!r}")


def _pulls(listed: object) -> tuple[Bridge, ...]:
    if not isinstance(listed, list) or len(listed) > MAX_PULLS or not all(isinstance(each, dict) for each in listed):
        raise Malformed(f"pulls is no list of at most {MAX_PULLS} bridges")
    return tuple(bridge_of(each) for each in listed)


def _text(document: Mapping[str, Any], name: str) -> str:
    value = document.get(name)
    if not isinstance(value, str):
        raise Malformed(f"{name} is no text")
    return value


def _texts(document: Mapping[str, Any], name: str) -> dict[str, str]:
    value = document.get(name)
    if not isinstance(value, dict) or not all(isinstance(each, str) for each in value.values()):
        raise Malformed(f"{name} is no object of texts")
    return value
