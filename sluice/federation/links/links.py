"""Links to peer sites, and bridges (routes) over them: what they are, and which are refused. Pure.

A link and its bridges are declared at one site, `here`. A bridge pulls from the peer unless it is `src_is_local`: then
it pushes to the peer. Whatever the way, the forwarder is the source's.
"""

from collections.abc import Iterable
from enum import StrEnum

import msgspec
from msgspec import UNSET, UnsetType

from sluice.codec import Struct
from sluice.errors import BadRoute
from sluice.federation.matching.indexes import MAX_KEY_CHARACTERS
from sluice.federation.matching.metadata import DEFAULT_MAX_HOPS, MAX_TRACE_TAGS, Crossing, is_tag
from sluice.splitting.filters.values import Filter

MAX_ENDPOINTS = 8
MAX_EXCLUDES = 64
MAX_RATE = 10_000  # no function sends more in a second
MAX_SYNC = 10_000  # an event source mapping's largest batch
LEAST_RETENTION_S, MAX_RETENTION_S = 60, 14 * 24 * 60 * 60  # SQS's
MAX_CREDIT = 120_000  # SQS's messages in flight


class Endpoint(Struct, frozen=True, kw_only=True):
    """One way to reach the peer: its control queue, and `sqs_url` if SQS isn't at its default endpoint.

    A VPC's interface endpoint and the public endpoint are two endpoints of one site.
    """

    region: str
    account: str
    control_queue_url: str
    sqs_url: str | None = None


class Address(Struct, frozen=True, kw_only=True):
    """A site's address, as the site reports it.

    `role_arn` is a role that its peers may assume, with `external_id`; `sqs_url` is its SQS endpoint, if not the
    default. `stage` prefixes its queues' names if several sites share an account and region.
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
        """The site's control queue and endpoint."""
        return Endpoint(
            region=self.region, account=self.account, control_queue_url=self.control_queue_url, sqs_url=self.sqs_url
        )


class Introduction(Address, frozen=True, kw_only=True):
    """An address that operators exchange. `senders` are the ids of the site's functions' roles."""

    senders: tuple[str, ...] = ()


class Link(Struct, frozen=True, kw_only=True):
    """A link to the site with the tag `peer`. `endpoints` are tried in turn.

    Access is by `role_arn`, with `external_id` if the role requires one, or by the peer's resource policies if it is
    None; there is no secret. A link that isn't `durable` is removed with its last bridge.
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
    """The kind of a bridge's source."""

    QUEUE = "queue"
    STATIC = "static"
    DYNAMIC = "dynamic"


class BridgeDeclaration(Struct, frozen=True, kw_only=True):
    """A route as somebody wants it, from `src` to the exchange `dest`, before it has a name and a link.

    `src` is a queue where `src_is_queue`, else an exchange, to which a bridge queue is bound by `key`: a FIFO queue
    where `fifo`, which keeps order, and lets a message that comes by several ways within five minutes arrive once.
    `tag` None is the source site's. `sync` is the batch
    that is acknowledged at once, `credit` the messages under way, 0 for no limit. `expires_s` is for dynamic routes:
    how long what is wanted over a link that is down is kept, None for ever. `dest_key` is the key that messages have at
    the destination, where not their own. `retention_s` is how long the queue that is made keeps a message, where not as
    long as SQS does. `filter` is what a message must have to go over. `rate` is how many
    messages go over in a second, at most.

    What a release has added isn't written where it isn't asked for: so a peer of an older one reads the rest.
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
    sync: int = 10
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
        """The kind of the bridge's source."""
        if self.src_is_queue:
            return RouteKind.QUEUE
        return RouteKind.DYNAMIC if self.dynamic else RouteKind.STATIC


class Bridge(BridgeDeclaration, frozen=True, kw_only=True):
    """A route over a link."""

    name: str
    link: str

    @property
    def way(self) -> tuple[str, bool, bool, bool, str, str, str]:
        """The values that no two bridges may share: they would forward every message twice."""
        return self.link, self.src_is_local, self.src_is_queue, self.dynamic, self.src, self.dest, self.key

    def can_become(self, other: "Bridge") -> bool:
        """Whether the bridge can be changed into the other in place, keeping its ends and queue.

        What was advertised for a dynamic route has to stay the same as well.
        """
        changes_advertisement = self.dynamic and (self.tag, self.max_hops, self.expires_s) != (
            other.tag,
            other.max_hops,
            other.expires_s,
        )
        return (self.name, self.way, self.fifo) == (other.name, other.way, other.fifo) and not changes_advertisement


class MappingScaling(msgspec.Struct, frozen=True, kw_only=True):
    """A mapping's largest batch and its number of concurrent functions; None for no limit."""

    batch_size: int
    max_concurrency: int | None = None


def find_site_tags(bridge: Bridge, link: Link, *, here: str) -> tuple[str, str]:
    """Return the tags of the sites that the bridge goes from and to."""
    return (here, link.peer) if bridge.src_is_local else (link.peer, here)


def build_crossing(bridge: Bridge, link: Link, *, here: str) -> Crossing:
    """Return the bridge's rules for traces; a dynamic bridge's origins are filled in later."""
    source, dest = find_site_tags(bridge, link, here=here)
    return Crossing(
        peer=dest,
        tag=bridge.tag or source,
        excludes=bridge.excludes,
        max_hops=bridge.max_hops,
        origins=frozenset() if bridge.dynamic else UNSET,
    )


def check_link(link: Link, *, here: str, existing: Iterable[Link]) -> None:
    """Check a link against the site's `existing` ones. Raises `BadRoute` if it is invalid."""
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
        # Several links to one peer are fine; two peers with one tag would take each other's messages for their own.
        shares_one = any(end.control_queue_url in urls for end in other.endpoints)
        if (link.peer == other.peer) != shares_one:
            raise BadRoute(
                f"{link.name}: {link.peer} and {other.peer} of {other.name}: one tag is one site, and one site one tag"
            )


def check_bridge(bridge: Bridge, *, links: Iterable[Link], existing: Iterable[Bridge]) -> None:
    """Check a bridge against the site's `existing` ones. Raises `BadRoute` if it is invalid or a duplicate."""
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
        if bridge.way == other.way:
            raise BadRoute(f"{bridge.name}: duplicate route: it is {other.name}'s")
        if bridge.name == other.name:
            raise BadRoute(f"{bridge.name}: there is a bridge of this name")
