"""Declarations of links to peer sites and of bridges (routes) over links, and their validation. Pure.

A link and its bridges are declared at one site, `here`. A bridge pulls messages from the peer or, if `src_is_local`,
pushes them to the peer. In both directions, the source site forwards the messages.
"""

from collections.abc import Iterable
from enum import StrEnum

import msgspec
from msgspec import UNSET, UnsetType

from sluice.codec import Struct
from sluice.errors import BadRoute
from sluice.federation.matching.exchanges import ExchangeType
from sluice.federation.matching.indexes import MAX_KEY_CHARACTERS
from sluice.federation.matching.metadata import DEFAULT_MAX_HOPS, MAX_TRACE_TAGS, Crossing, is_tag
from sluice.splitting.filters.values import Filter

ALL_KEYS = "#"  # this topic pattern matches all keys
MAX_ENDPOINTS = 8
MAX_EXCLUDES = 64
MAX_RATE = 10_000  # limit of a rate in messages per second; the bridge function can't send more
DEFAULT_SYNC = 10
MAX_SYNC = 10_000  # Lambda's limit of messages in a batch
LEAST_RETENTION_S, MAX_RETENTION_S = 60, 14 * 24 * 60 * 60  # SQS's limits of a retention, in seconds
MAX_CREDIT = 120_000  # SQS's limit of messages in flight


class Endpoint(Struct, frozen=True, kw_only=True):
    """One way to reach a peer: its control queue, and `sqs_url` unless SQS is at its default endpoint.

    A VPC's interface endpoint and SQS's public endpoint are two endpoints of one site.
    """

    region: str
    account: str
    control_queue_url: str
    sqs_url: str | None = None


class Address(Struct, frozen=True, kw_only=True):
    """A site's address, as the site reports it.

    `role_arn` is a role that the site's peers may assume, with `external_id`. `sqs_url` is the site's SQS endpoint, if
    not the default. `stage` prefixes the names of the site's queues if several sites share an account and region.
    """

    tag: str
    region: str
    account: str
    control_queue_url: str
    ingress_url: str
    fifo_ingress_url: str
    role_arn: str | None = None
    external_id: str | None = None
    sqs_url: str | None = None
    stage: str | UnsetType = UNSET

    @property
    def endpoint(self) -> Endpoint:
        """The endpoint with the site's own control queue."""
        return Endpoint(
            region=self.region, account=self.account, control_queue_url=self.control_queue_url, sqs_url=self.sqs_url
        )


class Introduction(Address, frozen=True, kw_only=True):
    """An address that operators pass to other sites. `senders` are the ids of the roles of the site's functions."""

    senders: tuple[str, ...] = ()


class Link(Struct, frozen=True, kw_only=True):
    """A link to the site with the tag `peer`. `endpoints` are tried in turn.

    Access is by the role `role_arn`, with `external_id` if the role requires one. If `role_arn` is None, the peer's
    resource policies grant access. A link has no secret. A link that isn't `durable` is removed with its last bridge.
    """

    name: str
    peer: str
    endpoints: tuple[Endpoint, ...]
    role_arn: str | None = None
    external_id: str | None = None
    durable: bool = True

    @classmethod
    def to_peer(cls, peer: Address, *, name: str) -> "Link":
        """Return the link to a site with this address."""
        return cls(
            name=name, peer=peer.tag, endpoints=(peer.endpoint,), role_arn=peer.role_arn, external_id=peer.external_id
        )


class RouteKind(StrEnum):
    """The kind of a route: from a queue, or a static or dynamic route from an exchange."""

    QUEUE = "queue"
    STATIC = "static"
    DYNAMIC = "dynamic"


class BridgeDeclaration(Struct, frozen=True, kw_only=True):
    """A route from `src` to the exchange `dest`, before the route has a name and a link.

    `src` is a queue if `src_is_queue`. Otherwise it is an exchange, to which a bridge queue is bound by `key`. A `fifo`
    bridge queue keeps messages in order, and drops duplicates within five minutes. `tag` is added to traces; None
    selects the source site's tag. `sync` is the largest batch, and `credit` the limit of messages in flight; 0 means no
    limit. While its link is down, a dynamic route keeps advertised bindings for `expires_s` seconds, or for ever if
    `expires_s` is None. `dest_key` replaces the messages' keys at the destination. `retention_s` is the bridge queue's
    retention, by default SQS's longest. `filter` selects the messages to forward, and `rate` limits them per second.
    Unset fields of later releases are omitted on the wire, so peers of earlier releases can read the rest.
    """

    src: str
    dest: str
    key: str = ""
    tag: str | None = None
    excludes: frozenset[str] = frozenset()
    src_is_queue: bool = False
    src_is_local: bool = False
    dynamic: bool = False
    durable: bool = True
    sync: int = DEFAULT_SYNC
    credit: int = 0
    max_hops: int = DEFAULT_MAX_HOPS
    fifo: bool = True
    expires_s: int | None = None
    dest_key: str | UnsetType = UNSET
    retention_s: int | UnsetType = UNSET
    filter: Filter | UnsetType = UNSET
    rate: int | UnsetType = UNSET

    @property
    def kind(self) -> RouteKind:
        """The kind of the route."""
        if self.src_is_queue:
            return RouteKind.QUEUE
        return RouteKind.DYNAMIC if self.dynamic else RouteKind.STATIC


class Bridge(BridgeDeclaration, frozen=True, kw_only=True):
    """A route with a name, over a link."""

    name: str
    link: str

    @property
    def identity(self) -> tuple[str, bool, bool, bool, str, str, str]:
        """The values that no two bridges may share, because two such bridges would forward every message twice."""
        return self.link, self.src_is_local, self.src_is_queue, self.dynamic, self.src, self.dest, self.key

    def can_become(self, other: "Bridge") -> bool:
        """Whether the bridge can be changed into the other bridge in place, with its ends and its queue unchanged.

        For a dynamic route, the properties that are advertised have to be unchanged, too.
        """
        fixed = ("name", "identity", "fifo", *(("tag", "max_hops", "expires_s") if self.dynamic else ()))
        return all(getattr(self, name) == getattr(other, name) for name in fixed)


class MappingScaling(msgspec.Struct, frozen=True, kw_only=True):
    """An event source mapping's largest batch, and its largest number of concurrent functions; None is no limit."""

    batch_size: int
    max_concurrency: int | None = None


def find_site_tags(bridge: Bridge, link: Link, *, here: str) -> tuple[str, str]:
    """Return the tags of the bridge's source site and destination site."""
    return (here, link.peer) if bridge.src_is_local else (link.peer, here)


def build_crossing(bridge: Bridge, link: Link, *, here: str) -> Crossing:
    """Return the bridge's rules for traces. The origins of a dynamic bridge are set later."""
    source, dest = find_site_tags(bridge, link, here=here)
    return Crossing(
        peer=dest,
        tag=bridge.tag or source,
        excludes=bridge.excludes,
        max_hops=bridge.max_hops,
        origins=frozenset() if bridge.dynamic else UNSET,
    )


def check_link(link: Link, *, here: str, existing: Iterable[Link]) -> None:
    """Check a link against the site's `existing` links. Raises `BadRoute` if the link is invalid."""
    if not is_tag(link.peer):
        raise BadRoute(f"{link.peer!r} is no site's tag")
    if link.peer == here:
        raise BadRoute(f"{link.name}: a site isn't linked to itself")
    if not 1 <= len(link.endpoints) <= MAX_ENDPOINTS:
        raise BadRoute(f"{link.name}: {len(link.endpoints)} endpoints, not 1 to {MAX_ENDPOINTS}")
    if link.external_id is not None and link.role_arn is None:
        raise BadRoute(f"{link.name}: an external id is for a role, and there is none")
    urls = {end.control_queue_url for end in link.endpoints}
    for other in existing:
        if link.name == other.name:
            raise BadRoute(f"{link.name}: there is a link of this name")
        # A peer may have several links. But if two peers had the same tag, traces couldn't tell them apart.
        shares_one = any(end.control_queue_url in urls for end in other.endpoints)
        if (link.peer == other.peer) != shares_one:
            raise BadRoute(
                f"{link.name}: {link.peer} and {other.peer} of {other.name}: one tag is one site, and one site one tag"
            )


def find_key_problem(route: BridgeDeclaration, exchange_type: ExchangeType | None) -> str | None:
    """Return why a route can't have its key; None if it can. Exchanges of some types ignore keys."""
    is_ignored = exchange_type is not None and not exchange_type.follows_keys
    if route.kind is not RouteKind.STATIC or not is_ignored or route.key in {"", ALL_KEYS}:
        return None
    return f"{route.src} is a {exchange_type} exchange, which ignores keys: leave out the key {route.key!r}"


def check_bridge(bridge: Bridge, *, links: Iterable[Link], existing: Iterable[Bridge]) -> None:
    """Check a bridge against the site's `existing` ones. Raises `BadRoute` for an invalid or duplicate bridge."""
    tags = [*sorted(bridge.excludes), *([] if bridge.tag is None else [bridge.tag])]
    wrong_tag = next((tag for tag in tags if not is_tag(tag)), None)
    sync, credit, expires_s = bridge.sync, bridge.credit, bridge.expires_s
    dest_key, has_filter = bridge.dest_key, bridge.filter is not UNSET
    refused = {
        f"no such link: {bridge.link}": bridge.link not in {link.name for link in links},
        "a dynamic route is pulled: only the destination knows its bindings": bridge.dynamic and bridge.src_is_local,
        "a queue has no bindings to follow: a queue route isn't dynamic": bridge.dynamic and bridge.src_is_queue,
        "a dynamic route is between exchanges of one name": bridge.dynamic and bridge.src != bridge.dest,
        "only a static exchange route has a key": bridge.kind is not RouteKind.STATIC and bridge.key != "",
        f"{wrong_tag!r} is no tag": wrong_tag is not None,
        f"{len(bridge.excludes)} excludes, more than {MAX_EXCLUDES}": len(bridge.excludes) > MAX_EXCLUDES,
        f"a key of {len(bridge.key)} characters, more than {MAX_KEY_CHARACTERS}": len(bridge.key) > MAX_KEY_CHARACTERS,
        "what a dynamic route carries keeps its key: it is bound by that": bridge.dynamic and dest_key is not UNSET,
        f"a key at the destination has 1 to {MAX_KEY_CHARACTERS} characters": dest_key is not UNSET
        and not 1 <= len(dest_key) <= MAX_KEY_CHARACTERS,
        f"a queue keeps messages for {LEAST_RETENTION_S} to {MAX_RETENTION_S} s": bridge.retention_s is not UNSET
        and not LEAST_RETENTION_S <= bridge.retention_s <= MAX_RETENTION_S,
        "how long a queue route's queue keeps messages is its own": bridge.src_is_queue
        and bridge.retention_s is not UNSET,
        "a queue route has no filter: what doesn't match would have to stay, and SQS can't keep it": has_filter
        and bridge.src_is_queue,
        "a dynamic route has no filter: what is wanted decides what goes over it": has_filter and bridge.dynamic,
        "the filter is empty: nothing would go over": bridge.filter is not UNSET and bridge.filter.matches_nothing,
        f"a rate is 1 to {MAX_RATE} messages a second": bridge.rate is not UNSET and not 1 <= bridge.rate <= MAX_RATE,
        f"max hops {bridge.max_hops}, not 1 to {MAX_TRACE_TAGS}": not 1 <= bridge.max_hops <= MAX_TRACE_TAGS,
        f"sync {sync}, not 1 to {MAX_SYNC}": not 1 <= sync <= MAX_SYNC,
        f"credit {credit}, not 0 to {MAX_CREDIT}": not 0 <= credit <= MAX_CREDIT,
        f"expires {expires_s}: seconds, of a dynamic route": expires_s is not None
        and (expires_s < 1 or not bridge.dynamic),
        f"credit {credit} never fills a batch of sync {sync}": 0 < credit < sync,
    }
    for reason, is_so in refused.items():
        if is_so:
            raise BadRoute(f"{bridge.name}: {reason}")
    for other in existing:
        if bridge.identity == other.identity:
            raise BadRoute(f"{bridge.name}: duplicate route: it is {other.name}'s")
        if bridge.name == other.name:
            raise BadRoute(f"{bridge.name}: there is a bridge of this name")
