"""Links to peer sites, and bridges (routes) over them: what they are, and which are refused. Pure.

A link and its bridges are declared at one site, `here`. A bridge pulls from the peer unless it is `src_is_local`: then
it pushes to the peer. Whatever the way, the forwarder is the source's.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from sluice.errors import BadRoute
from sluice.federation.matching.bindings import MAX_KEY_CHARACTERS
from sluice.federation.matching.tracing import DEFAULT_MAX_HOPS, MAX_TRACE_TAGS, Crossing, is_tag

MAX_ENDPOINTS = 8
MAX_EXCLUDES = 64
MAX_SYNC = 10_000  # an event source mapping's largest batch
MAX_CREDIT = 120_000  # SQS's messages in flight


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One way to reach the peer: its control queue, and `sqs_url` where SQS isn't reached at its usual address.

    So a VPC's interface endpoint and the public one are two endpoints of one site.
    """

    region: str
    account: str
    control_queue_url: str
    sqs_url: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A link to the site with the tag `peer`. `endpoints` are tried in turn.

    Access is by `role_arn`, with `external_id` where the role asks for one, or by the peer's resource policies where
    that is None; there is no secret. A link that isn't `durable` goes with the last of its bridges.
    """

    name: str
    peer: str
    endpoints: tuple[Endpoint, ...]
    role_arn: str | None = None
    external_id: str | None = None
    durable: bool = True


class RouteKind(StrEnum):
    """Where a bridge has its messages from."""

    QUEUE = "queue"
    STATIC = "static"
    DYNAMIC = "dynamic"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bridge:
    """A route over a link, from `src` to the exchange `dest`.

    `src` is a queue where `src_is_queue`, else an exchange, to which a bridge queue is bound by `key`; `queue` is an
    existing queue to take for that; else one is made, a FIFO queue where `fifo`: that keeps order, and lets a message
    that comes by several ways arrive once. `tag` None is the source site's. `sync` is the batch that is acknowledged at
    once, `credit` the messages under way, 0 for no limit. `expires_s` is for dynamic routes: how long what is wanted
    over a link that is down is kept, None for ever.
    """

    name: str
    link: str
    src: str
    dest: str
    key: str = ""
    tag: str | None = None
    excludes: frozenset[str] = frozenset()
    src_is_queue: bool = False
    src_is_local: bool = False
    dynamic: bool = False
    durable: bool = True
    sync: int = 10
    credit: int = 0
    queue: str | None = None
    max_hops: int = DEFAULT_MAX_HOPS
    fifo: bool = True
    expires_s: int | None = None
    paused: bool = False

    @property
    def kind(self) -> RouteKind:
        """Where it has its messages from."""
        if self.src_is_queue:
            return RouteKind.QUEUE
        return RouteKind.DYNAMIC if self.dynamic else RouteKind.STATIC

    @property
    def way(self) -> tuple[str, bool, bool, bool, str, str, str]:
        """What no two bridges share: they would carry every message twice."""
        return self.link, self.src_is_local, self.src_is_queue, self.dynamic, self.src, self.dest, self.key


def ends(bridge: Bridge, link: Link, *, here: str) -> tuple[str, str]:
    """The tags of the sites that the bridge goes from and to."""
    return (here, link.peer) if bridge.src_is_local else (link.peer, here)


def crossing(bridge: Bridge, link: Link, *, here: str) -> Crossing:
    """What the bridge asks of a message's trace."""
    source, dest = ends(bridge, link, here=here)
    return Crossing(peer=dest, tag=bridge.tag or source, excludes=bridge.excludes, max_hops=bridge.max_hops)


def check_link(link: Link, *, here: str, existing: Iterable[Link]) -> None:
    """Raises `BadRoute` for a link that can't be. `existing` are the site's others."""
    if not is_tag(link.peer):
        raise BadRoute(f"{link.peer!r} is no site's tag")
    if link.peer == here:
        raise BadRoute(f"{link.name}: a site isn't linked to itself")
    if not 1 <= len(link.endpoints) <= MAX_ENDPOINTS:
        raise BadRoute(f"{link.name}: {len(link.endpoints)} endpoints, not 1 to {MAX_ENDPOINTS}")
    if link.external_id is not None and link.role_arn is None:
        raise BadRoute(f"{link.name}: an external id is for a role, and there is none")
    for other in existing:
        _check_beside(link, other)


def _check_beside(link: Link, other: Link) -> None:
    if link.name == other.name:
        raise BadRoute(f"{link.name}: there is a link of this name")
    # Several links to one peer are fine; two peers with one tag would take each other's messages for their own.
    if (link.peer == other.peer) != _share_an_endpoint(link, other):
        raise BadRoute(
            f"{link.name}: {link.peer} and {other.peer} of {other.name}: one tag is one site, and one site one tag"
        )


def _share_an_endpoint(link: Link, other: Link) -> bool:
    return not {end.control_queue_url for end in link.endpoints}.isdisjoint(
        end.control_queue_url for end in other.endpoints
    )


def check_bridge(bridge: Bridge, *, links: Iterable[Link], existing: Iterable[Bridge]) -> None:
    """Raises `BadRoute` for a bridge that can't be, or is there already. `existing` are the site's others."""
    if bridge.link not in {link.name for link in links}:
        raise BadRoute(f"{bridge.name}: no such link: {bridge.link}")
    _check_kind(bridge)
    _check_tags(bridge)
    _check_limits(bridge)
    for other in existing:
        if bridge.way == other.way:
            raise BadRoute(f"{bridge.name}: duplicate route: it is {other.name}'s")
        if bridge.name == other.name:
            raise BadRoute(f"{bridge.name}: there is a bridge of this name")


def _check_kind(bridge: Bridge) -> None:
    if bridge.dynamic and bridge.src_is_local:
        raise BadRoute(f"{bridge.name}: a dynamic route is pulled: only the destination knows its bindings")
    if bridge.dynamic and bridge.src_is_queue:
        raise BadRoute(f"{bridge.name}: a queue has no bindings to follow: a queue route isn't dynamic")
    if bridge.dynamic and bridge.src != bridge.dest:
        raise BadRoute(f"{bridge.name}: a dynamic route is between exchanges of one name")
    if bridge.src_is_queue and bridge.queue is not None:
        raise BadRoute(f"{bridge.name}: a queue route has its queue: an existing one is for an exchange's")
    if (bridge.src_is_queue or bridge.dynamic) and bridge.key:
        raise BadRoute(f"{bridge.name}: only a static exchange route has a key")


def _check_tags(bridge: Bridge) -> None:
    wrong = [tag for tag in (*sorted(bridge.excludes), bridge.tag) if tag is not None and not is_tag(tag)]
    if wrong:
        raise BadRoute(f"{bridge.name}: {wrong[0]!r} is no tag")
    if len(bridge.excludes) > MAX_EXCLUDES:
        raise BadRoute(f"{bridge.name}: {len(bridge.excludes)} excludes, more than {MAX_EXCLUDES}")


def _check_limits(bridge: Bridge) -> None:
    if len(bridge.key) > MAX_KEY_CHARACTERS:
        raise BadRoute(f"{bridge.name}: a key of {len(bridge.key)} characters, more than {MAX_KEY_CHARACTERS}")
    if not 1 <= bridge.max_hops <= MAX_TRACE_TAGS:
        raise BadRoute(f"{bridge.name}: max hops {bridge.max_hops}, not 1 to {MAX_TRACE_TAGS}")
    if not 1 <= bridge.sync <= MAX_SYNC:
        raise BadRoute(f"{bridge.name}: sync {bridge.sync}, not 1 to {MAX_SYNC}")
    if not 0 <= bridge.credit <= MAX_CREDIT:
        raise BadRoute(f"{bridge.name}: credit {bridge.credit}, not 0 to {MAX_CREDIT}")
    if bridge.expires_s is not None and (bridge.expires_s < 1 or not bridge.dynamic):
        raise BadRoute(f"{bridge.name}: expires {bridge.expires_s}: seconds, of a dynamic route")
    if 0 < bridge.credit < bridge.sync:
        raise BadRoute(f"{bridge.name}: credit {bridge.credit} never fills a batch of sync {bridge.sync}")
