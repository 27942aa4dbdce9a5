"""Dynamic routes of one exchange at one site: what is known of them, how that is stored, and what may follow. Pure."""

from collections.abc import Callable, Mapping
from enum import StrEnum

import msgspec
from msgspec.structs import replace

from sluice.codec import Format, Struct
from sluice.federation.dynamic.ops import NO_WANTS, AdvertisedRoute, DynamicOp, Version, Wants
from sluice.federation.links.registry import served_name
from sluice.federation.matching.metadata import DEFAULT_MAX_HOPS


class Ignored(StrEnum):
    """Why an op changed nothing."""

    UNKNOWN_BRIDGE = "unknown_bridge"
    EPOCH = "epoch"
    REPLAYED = "replayed"
    GAP = "gap"
    LOOP = "loop"
    LIMIT = "limit"
    MALFORMED = "malformed"


class Pull(Struct, frozen=True, kw_only=True):
    """A bridge that pulls from `peer` over `link`. Here is its destination, which tells what is wanted.

    `epoch` is larger each time that the bridge is made; `sequence` counts its ops, `number` its hellos. `heard` is the
    last time that the peer asked.
    """

    bridge: str
    link: str
    peer: str
    max_hops: int
    epoch: int
    up: bool = True
    sequence: int = 1
    number: int = 0
    heard: Version = (0, 0)


class Partial(Struct, frozen=True, kw_only=True):
    """A snapshot that isn't complete yet: its parts, None for one that hasn't come."""

    version: Version
    parts: tuple[str | None, ...]


class Served(Struct, frozen=True, kw_only=True):
    """A bridge that `peer` pulls by over `link`. Here is its source. `tag` is what messages get on the way.

    `version` is the epoch and the sequence of the last op that `reaches` has, `hello` the epoch and the number of the
    last hello heard; `number` counts what was asked. What came over it is forgotten when the link has been down for
    `expires_ms`, if there is such a limit.
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
    reaches: Mapping[str, AdvertisedRoute] = {}
    version: Version = (0, 0)
    hello: Version = (0, 0)
    asked: bool = False
    partial: Partial | None = None

    @property
    def name(self) -> str:
        """As this site knows it."""
        return served_name(self.bridge, self.peer)


class Former(Struct, frozen=True, kw_only=True):
    """The last way to an origin to which nobody tells of a way any more, and what it wanted; for so many heartbeats."""

    bridge: str
    wants: Wants
    beats: int = 0


class DynamicRoutes(Struct, frozen=True, kw_only=True):
    """One exchange's at the site `here`. `local` is what the site's own queues want, dynamic bridges' left out.

    `pulls` are by their names, `served` by the names that they have here, `former` by origin.
    """

    here: str
    exchange: str
    local: Wants = NO_WANTS
    pulls: Mapping[str, Pull] = {}
    served: Mapping[str, Served] = {}
    former: Mapping[str, Former] = {}

    def with_pull(self, pull: Pull) -> "DynamicRoutes":
        """With the bridge as it is now."""
        return replace(self, pulls={**self.pulls, pull.bridge: pull})

    def with_served(self, served: Served) -> "DynamicRoutes":
        """With the bridge as it is now."""
        return replace(self, served={**self.served, served.name: served})


RoutesByExchange = dict[str, DynamicRoutes]
ROUTES = Format(kind="dynamic routes", version=1, type=RoutesByExchange)


# What follows


class Sending(msgspec.Struct, frozen=True):
    """An op for the peer that a link goes to. Ops of one link and exchange go in their order."""

    link: str
    op: DynamicOp


class DynamicStep(msgspec.Struct, frozen=True):
    """The state after an event, what is to be told, and why the event was ignored, if it was.

    Where it `greets`, hellos are said last.
    """

    routes: DynamicRoutes
    sendings: tuple[Sending, ...] = ()
    ignored: Ignored | None = None
    greets: bool = False

    def then(self, after: "DynamicStep") -> "DynamicStep":
        """Both, `after` having gone on from this one's state."""
        return DynamicStep(after.routes, (*self.sendings, *after.sendings), self.ignored or after.ignored)


DynamicEvent = Callable[[DynamicRoutes], DynamicStep]
