"""The stored state of one exchange's dynamic routes at a site. Pure."""

from collections.abc import Callable, Mapping
from enum import StrEnum
from fnmatch import fnmatchcase

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from sluice.codec import Format, Struct
from sluice.federation.dynamic.ops import NO_ADVERTISEMENTS, AdvertisedRoute, BindingAdvertisements, DynamicOp, Version
from sluice.federation.links.registry import format_served_name
from sluice.federation.matching.metadata import DEFAULT_MAX_HOPS


class IgnoredReason(StrEnum):
    """The reason why an op was ignored."""

    UNKNOWN_BRIDGE = "unknown_bridge"
    EPOCH = "epoch"
    REPLAYED = "replayed"
    GAP = "gap"
    LOOP = "loop"
    LIMIT = "limit"
    MALFORMED = "malformed"


class PulledRoute(Struct, frozen=True, kw_only=True, rename={"last_request": "heard"}):
    """A bridge over which this site, its destination, pulls messages from `peer` over `link`.

    `epoch` grows each time that the bridge is created. `sequence` counts the ops that were sent, and `number` the
    hellos that were sent. `last_request` is the version of the peer's last request for a snapshot.
    """

    bridge: str
    link: str
    peer: str
    max_hops: int
    epoch: int
    up: bool = True
    sequence: int = 1
    number: int = 0
    last_request: Version = (0, 0)


class PartialSnapshot(Struct, frozen=True, kw_only=True):
    """A snapshot of which some parts haven't arrived yet. A missing part is None."""

    version: Version
    parts: tuple[str | None, ...]


class ServedRoute(Struct, frozen=True, kw_only=True, rename={"advertised_routes": "reaches", "is_requested": "asked"}):
    """A bridge over which `peer` pulls messages from this site, its source. `tag` is added to messages' traces.

    `version` is the epoch and sequence of the last applied op, `hello` the epoch and number of the last hello. `number`
    counts requests for snapshots. `advertised_routes` expire once the link has been down for `expires_ms`. `leads` are
    the patterns of the sites to which the peer may lead, by its rule, besides itself. If `leads` is unset, the peer may
    lead to all sites.
    """

    bridge: str
    link: str
    peer: str
    tag: str
    epoch: int
    max_hops: int = DEFAULT_MAX_HOPS
    up: bool = True
    down_since_ms: int | None = None
    expires_ms: int | None = None
    number: int = 0
    advertised_routes: Mapping[str, AdvertisedRoute] = {}
    version: Version = (0, 0)
    hello: Version = (0, 0)
    is_requested: bool = False
    partial: PartialSnapshot | None = None
    leads: tuple[str, ...] | UnsetType = UNSET

    def may_lead_to(self, origin: str) -> bool:
        """Whether the rule for this peer permits that routes over the peer lead to the site `origin`."""
        leads = ("*",) if self.leads is UNSET else self.leads
        return origin == self.peer or any(fnmatchcase(origin, pattern) for pattern in leads)

    @property
    def name(self) -> str:
        """The bridge's local name."""
        return format_served_name(self.bridge, self.peer)


class FormerRoute(Struct, frozen=True, kw_only=True, rename={"bindings": "wants", "heartbeats": "beats"}):
    """The last path to an origin to which no path is advertised any longer, kept for some heartbeats."""

    bridge: str
    bindings: BindingAdvertisements
    heartbeats: int = 0


class DynamicRoutes(Struct, frozen=True, kw_only=True):
    """One exchange's dynamic routes at the site `here`.

    `local` has the bindings of the site's own queues. `pulls` has the bridges over which this site pulls, by name.
    `served` has the bridges over which peers pull from this site, by local name. `former` has the last paths of lost
    origins, by origin.
    """

    here: str
    exchange: str
    local: BindingAdvertisements = NO_ADVERTISEMENTS
    pulls: Mapping[str, PulledRoute] = {}
    served: Mapping[str, ServedRoute] = {}
    former: Mapping[str, FormerRoute] = {}

    def with_pull(self, pull: PulledRoute) -> "DynamicRoutes":
        """Return these routes with a pulled route added or replaced."""
        return replace(self, pulls={**self.pulls, pull.bridge: pull})

    def with_served(self, served: ServedRoute) -> "DynamicRoutes":
        """Return these routes with a served route added or replaced."""
        return replace(self, served={**self.served, served.name: served})


RoutesByExchange = dict[str, DynamicRoutes]
ROUTES = Format(kind="dynamic routes", version=1, type=RoutesByExchange)


class OutgoingOp(msgspec.Struct, frozen=True):
    """An op to send over a link. Ops of one link and exchange are sent in order."""

    link: str
    op: DynamicOp


class DynamicStep(msgspec.Struct, frozen=True):
    """The result of an event: the new state, the ops to send, and the reason if the event was ignored.

    If `sends_hello` is true, hellos are sent after all other ops.
    """

    routes: DynamicRoutes
    outgoing_ops: tuple[OutgoingOp, ...] = ()
    ignored: IgnoredReason | None = None
    sends_hello: bool = False

    def then(self, later: "DynamicStep") -> "DynamicStep":
        """Return the combination of this step and the next step."""
        return DynamicStep(later.routes, (*self.outgoing_ops, *later.outgoing_ops), self.ignored or later.ignored)


DynamicEvent = Callable[[DynamicRoutes], DynamicStep]
