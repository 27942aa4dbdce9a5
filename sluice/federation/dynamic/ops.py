"""Ops: the control messages about dynamic routes. Pure.

The site at a dynamic bridge's destination pulls its messages, and the site at its source serves them. The destination
advertises its bindings, one per op. The source requests a snapshot if an op is missing. The field `bridge` is the
bridge's name at its destination.
"""

import base64
import binascii
import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, cast

from msgspec import Meta

from sluice.codec import Format, Struct, decode, encode
from sluice.documents import read_json
from sluice.errors import BadBinding, BadSnapshot, Malformed
from sluice.federation.matching.bindings import Binding
from sluice.federation.matching.exchanges import ExchangeType
from sluice.federation.matching.indexes import MAX_ARGUMENTS, MAX_KEY_CHARACTERS
from sluice.federation.matching.metadata import MAX_ORIGINS, MAX_TAG_CHARACTERS, MAX_TRACE_TAGS
from sluice.federation.matching.typed_values import Headers, from_json, to_json

MAX_NAME_CHARACTERS = 512  # maximum length of the name of a bridge or an exchange
MAX_NUMBER = 1 << 62
MAX_PARTS = 64
PART_BYTES = 240 * 1024  # size in bytes of a snapshot's part, as base64 text, within SQS's former message limit
FULL_PART_BYTES = 1_000 * 1024  # size in bytes of the largest part that fits into an SQS message
FEW_PARTS = 10  # a snapshot that needs more parts gets larger parts
MAX_SNAPSHOT_BYTES = 64 * 1024 * 1024  # limit of decoded JSON, so that hostile snapshots can't exhaust memory
HASH_CHARACTERS = 32

Name = Annotated[str, Meta(min_length=1, max_length=MAX_NAME_CHARACTERS)]
Number = Annotated[int, Meta(ge=0, le=MAX_NUMBER)]
Version = tuple[Number, Number]  # an epoch, and the number of an op or message within the epoch
Hops = Annotated[int, Meta(ge=1, le=MAX_NUMBER)]
Tag = Annotated[str, Meta(pattern=rf"\A[A-Za-z0-9_-]{{1,{MAX_TAG_CHARACTERS}}}\Z")]
Path = Annotated[tuple[Tag, ...], Meta(min_length=1, max_length=MAX_TRACE_TAGS)]


class BindingAdvertisement(Struct, frozen=True, kw_only=False, array_like=True, order=True, gc=False):
    """The key and arguments of an advertised binding. Arguments are JSON with sorted names, or "" if there are none."""

    key: Annotated[str, Meta(max_length=MAX_KEY_CHARACTERS)]
    arguments: str = ""

    @classmethod
    def from_binding(cls, key: str, arguments: Headers | None = None) -> "BindingAdvertisement":
        """Build an advertisement. Advertisements are equal only if their keys and typed arguments are equal."""
        return cls(key, json.dumps(to_json(arguments), sort_keys=True, separators=(",", ":")) if arguments else "")

    @property
    def headers(self) -> dict[str, Any]:
        """The arguments of the binding, with their types."""
        return from_json(json.loads(self.arguments)) if self.arguments else {}

    def check(self) -> None:
        """Check the arguments' encoding. Raises ValueError if `from_binding` would encode them differently."""
        if not self.arguments:
            return
        try:
            arguments = read_json(self.arguments)
            if not isinstance(arguments, dict) or len(arguments) > MAX_ARGUMENTS:
                raise ValueError(f"arguments are an object of at most {MAX_ARGUMENTS} names")
            if BindingAdvertisement.from_binding(self.key, from_json(arguments)) != self:
                raise ValueError("arguments aren't in order")
        except Malformed as error:
            raise ValueError(f"arguments: {error}") from None


BindingAdvertisements = frozenset[BindingAdvertisement]
NO_ADVERTISEMENTS: BindingAdvertisements = frozenset()


def build_bindings(
    advertisements: Iterable[BindingAdvertisement], *, exchange: str, type_: ExchangeType, queue: str
) -> tuple[Binding, ...]:
    """Return the bindings of a bridge queue that stand for the advertised bindings, ordered by key, with unique ids.

    A queue has at most one binding per key. So if the exchange compares arguments, a hash of key and arguments replaces
    the key. Otherwise the arguments are left out.
    """
    if type_.index_class.follows_arguments:
        return tuple(
            Binding(exchange=exchange, queue=queue, key=compute_digest(binding), arguments=binding.headers)
            for binding in sorted(advertisements)
        )
    return tuple(
        Binding(exchange=exchange, queue=queue, key=key)
        for key in sorted({advertisement.key for advertisement in advertisements})
    )


def is_bindable(advertisement: BindingAdvertisement, type_: ExchangeType) -> bool:
    """Whether the advertised binding is valid for an exchange of this type."""
    if not type_.index_class.follows_arguments:
        return True  # exchanges of this type ignore arguments
    try:
        Binding(exchange="", queue="", key=advertisement.key, arguments=advertisement.headers).check(type_)
    except BadBinding:
        return False
    return True


class AdvertisedRoute(Struct, frozen=True, kw_only=True, array_like=True):
    """A route to an origin, and the origin's bindings.

    `path` lists the sites from the origin to the advertising site. `hops_left` is the number of hops that a message may
    still take, including the next hop. `outages` counts the links on the path that are down.
    """

    path: Path
    hops_left: Hops
    outages: Number = 0
    bindings: BindingAdvertisements = NO_ADVERTISEMENTS

    def __post_init__(self) -> None:
        if len(set(self.path)) != len(self.path):
            raise ValueError("a path has no site twice")


AdvertisedRoutes = Annotated[dict[Tag, AdvertisedRoute], Meta(max_length=MAX_ORIGINS)]  # routes by their origins' tags


class _Op(Struct, frozen=True, kw_only=True, tag_field="op"):
    """A message between two sites about a dynamic route. `epoch` grows each time that the bridge is created."""

    exchange: Name
    bridge: Name
    epoch: Number


class RouteHello(_Op, frozen=True, kw_only=True, tag="wanted"):
    """A hello from the destination, with its last op's `sequence` and a digest of its advertised routes."""

    number: Number
    sequence: Number
    digest: Name


class Bind(_Op, frozen=True, kw_only=True, tag="bind", rename={"binding": "want"}):
    """Advertises a path to an origin and, unless `binding` is None, one binding of that origin."""

    sequence: Number
    origin: Tag
    path: Path
    hops_left: Hops
    outages: Number
    binding: BindingAdvertisement | None

    def __post_init__(self) -> None:
        if self.path[0] != self.origin or len(set(self.path)) != len(self.path):
            raise ValueError("a path begins at its origin, and has no site twice")
        if self.binding is not None:
            self.binding.check()


class Unbind(_Op, frozen=True, kw_only=True, tag="unbind", rename={"binding": "want"}):
    """Withdraws one binding of an origin or, if `binding` is None, all routes to that origin."""

    sequence: Number
    origin: Tag
    binding: BindingAdvertisement | None

    def __post_init__(self) -> None:
        if self.binding is not None:
            self.binding.check()


class SnapshotPart(_Op, frozen=True, kw_only=True, tag="snapshot"):
    """A part of a snapshot of the advertised routes after the op `sequence`. Parts are numbered from 0."""

    sequence: Number
    part: Number
    parts: Annotated[int, Meta(ge=1, le=MAX_PARTS)]
    data: Annotated[str, Meta(max_length=FULL_PART_BYTES)]

    def __post_init__(self) -> None:
        if self.part >= self.parts:
            raise ValueError(f"part {self.part} of {self.parts}")


class RequestSnapshot(_Op, frozen=True, kw_only=True, tag="ask"):
    """Asks the bridge's destination for a snapshot of its advertised routes."""

    number: Number


DynamicOp = RouteHello | Bind | Unbind | SnapshotPart | RequestSnapshot


def decode_op(op_json: str | bytes) -> DynamicOp:
    """Decode a control message about dynamic routes. Raises `Malformed`, which names the invalid place."""
    # Type checkers don't accept a union as a type argument.
    return decode(op_json, cast("type[DynamicOp]", DynamicOp), of="an op")


_SNAPSHOT = Format(kind="wants", version=1, type=AdvertisedRoutes, max_bytes=MAX_SNAPSHOT_BYTES)


def compute_digest(advertised_routes_or_binding: Mapping[str, AdvertisedRoute] | BindingAdvertisement) -> str:
    """Return a hash of a binding, or of advertised routes in any order."""
    return hashlib.sha256(encode(advertised_routes_or_binding)).hexdigest()[:HASH_CHARACTERS]


def encode_snapshot(advertised_routes: dict[str, AdvertisedRoute]) -> list[str]:
    """Encode routes as parts of compressed base64: at most ten, unless such a part exceeds an SQS message."""
    text = base64.b64encode(_SNAPSHOT.pack(advertised_routes)).decode()
    size = min(max(PART_BYTES, -(-len(text) // FEW_PARTS)), FULL_PART_BYTES)
    return [text[start : start + size] for start in range(0, len(text), size)]


def read_snapshot(parts: Iterable[str]) -> dict[str, AdvertisedRoute]:
    """Decode the parts of a snapshot that `encode_snapshot` encoded. Raises `Malformed`."""
    try:
        advertised_routes = _SNAPSHOT.unpack(base64.b64decode("".join(parts), validate=True))
        for origin, advertised_route in advertised_routes.items():
            if advertised_route.path[0] != origin:
                raise Malformed(f"a path to {origin} begins at its origin")
            for advertisement in advertised_route.bindings:
                advertisement.check()
    except (BadSnapshot, binascii.Error, ValueError) as error:
        raise Malformed(f"a snapshot that can't be read: {error}") from None
    return advertised_routes
