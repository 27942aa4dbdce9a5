"""A site's dynamic routes as bytes and back: a mark, the format's number, compressed JSON. Pure."""

import json
import zlib
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from sluice.errors import BadSnapshot
from sluice.federation.dynamic.ops import Reach, Tags, Want
from sluice.federation.dynamic.paths import DynamicRoutes, Partial, Pull, Served

MARK = b"SLDR"
FORMAT = 1
MAX_BYTES = 256 * 1024 * 1024  # of JSON


def encode_routes(routes: DynamicRoutes) -> bytes:
    """Equal routes give equal bytes."""
    document = {
        "here": routes.here,
        "exchange": routes.exchange,
        "local": [[*want, sorted(queues)] for want, queues in sorted(routes.local.items())],
        "pulls": [_plain_pull(pull) for _, pull in sorted(routes.pulls.items())],
        "served": [_plain_served(served) for _, served in sorted(routes.served.items())],
        "active": dict(routes.active),
    }
    return MARK + bytes([FORMAT]) + zlib.compress(json.dumps(document, sort_keys=True, separators=(",", ":")).encode())


def _plain_pull(pull: Pull) -> dict[str, Any]:
    return _shallow(pull) | {"senders": _plain_tags(pull.senders)}


def _plain_served(served: Served) -> dict[str, Any]:
    return _shallow(served) | {
        "excludes": sorted(served.excludes),
        "ready": _plain_tags(served.ready),
        "reaches": {origin: _plain_reach(reach) for origin, reach in served.reaches.items()},
        "partial": None if served.partial is None else asdict(served.partial),
    }


def _plain_tags(by_origin: Mapping[str, Tags]) -> dict[str, list[str]]:
    return {origin: sorted(tags) for origin, tags in by_origin.items()}


def _plain_reach(reach: Reach) -> list[Any]:
    return [reach.path, reach.hops_left, reach.outages, sorted(reach.wants)]


def _shallow(value: Pull | Served) -> dict[str, Any]:
    """`asdict` would copy every binding."""
    return {each.name: getattr(value, each.name) for each in fields(value)}


def decode_routes(stored: bytes) -> DynamicRoutes:
    """Raises `BadSnapshot`."""
    if stored[: len(MARK)] != MARK:
        raise BadSnapshot("no dynamic routes")
    if stored[len(MARK) : len(MARK) + 1] != bytes([FORMAT]):
        raise BadSnapshot(f"dynamic routes of format {stored[len(MARK) :][:1].hex()}, not {FORMAT:02x}")
    inflate = zlib.decompressobj()
    try:
        text = inflate.decompress(stored[len(MARK) + 1 :], MAX_BYTES)
        if not inflate.eof:
            raise BadSnapshot("dynamic routes that are cut short, or too large")
        return _routes(json.loads(text))
    except (zlib.error, LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise BadSnapshot(f"dynamic routes that can't be read: {type(error).__name__}: {error}") from None


def _routes(document: Mapping[str, Any]) -> DynamicRoutes:
    pulls = [_pull(each) for each in document["pulls"]]
    served = [_served(each) for each in document["served"]]
    return DynamicRoutes(
        here=document["here"],
        exchange=document["exchange"],
        local={Want(key, arguments): frozenset(queues) for key, arguments, queues in document["local"]},
        pulls={each.bridge: each for each in pulls},
        served={each.name: each for each in served},
        active={str(origin): str(name) for origin, name in document["active"].items()},
    )


def _pull(document: dict[str, Any]) -> Pull:
    return Pull(**document | {"senders": _tags(document["senders"]), "heard": _version(document["heard"])})


def _served(document: dict[str, Any]) -> Served:
    changes = {
        "version": _version(document["version"]),
        "hello": _version(document["hello"]),
        "excludes": frozenset(document["excludes"]),
        "ready": _tags(document["ready"]),
        "reaches": {origin: _reach(*reach) for origin, reach in document["reaches"].items()},
        "partial": None if document["partial"] is None else _partial(document["partial"]),
    }
    return Served(**document | changes)


def _tags(by_origin: dict[str, list[str]]) -> dict[str, Tags]:
    return {origin: frozenset(tags) for origin, tags in by_origin.items()}


def _partial(document: dict[str, Any]) -> Partial:
    data = {int(part): text for part, text in document["data"].items()}
    return Partial(version=_version(document["version"]), parts=document["parts"], data=data)


def _reach(path: list[str], hops_left: int, outages: int, wants: list[list[str]]) -> Reach:
    bound = frozenset(Want(key, arguments) for key, arguments in wants)
    return Reach(path=tuple(path), hops_left=hops_left, outages=outages, wants=bound)


def _version(listed: list[int]) -> tuple[int, int]:
    epoch, number = listed
    return int(epoch), int(number)
