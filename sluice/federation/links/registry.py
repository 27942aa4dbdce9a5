"""A site's links and bridges with their progress. Pure.

A bridge's source site forwards its messages. So every hello lists the bridges that the link pulls, and the peer creates
a pushing bridge for each. At the peer, these bridges belong to a *served* link, which isn't declared there. The peer
closes bridges that a hello no longer lists.
"""

from collections.abc import Mapping

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from sluice.codec import Format, Struct
from sluice.federation.links.links import Address, Bridge, Endpoint, Link, RouteKind, build_crossing
from sluice.federation.links.states import CARRYING, Intent, LinkState, LinkStatus
from sluice.federation.matching.bindings import Destination
from sluice.federation.matching.metadata import Crossing

NOT_YET = "not yet: "  # prefix of errors that end within a minute, once AWS has applied a change
SERVED_MARK = "@"  # separates name and peer's tag in the names of links and bridges that a peer requested


class LinkRecord(Struct, frozen=True, kw_only=True):
    """A link with its status. `address` and `exchanges` (types by name) come from the peer's answer.

    `hello_due` is true if a hello has to be sent. `remote` has the states of pulled bridges, as the peer reported them.
    """

    link: Link
    status: LinkStatus = LinkStatus()
    served: bool = False
    declared: bool = False
    address: Address | None = None
    exchanges: Mapping[str, str] = {}
    hello_due: bool = False
    remote: Mapping[str, str] = {}

    @property
    def carries(self) -> bool:
        """Whether messages can be forwarded over the link now."""
        return self.status.state in CARRYING

    @property
    def endpoint(self) -> Endpoint:
        """The peer's endpoint that this link uses now."""
        return self.link.endpoints[self.status.endpoint % len(self.link.endpoints)]


class BridgeRecord(Struct, frozen=True, kw_only=True, rename={"intent": "wanted"}):
    """A bridge with its progress. A bridge that pulls has no resources at this site.

    `queue` is the name of the bridge's queue, and `mapping` is the id of its event source mapping. `on` and `bound`
    tell whether the mapping was last enabled, and the queue last bound. `changed` is true if the resources were created
    with other options.
    """

    bridge: Bridge
    served: bool = False
    declared: bool = False
    queue: str | None = None
    mapping: str | None = None
    on: bool = False
    bound: bool = False
    intent: Intent = Intent.OPEN
    empty_since_ms: int | None = None
    error: str | None = None
    changed: bool | UnsetType = UNSET

    def with_options(self, bridge: Bridge) -> "BridgeRecord":
        """Return the record with new options. If the bridge has resources, the record is marked as changed."""
        has_things = self.bridge.src_is_local and (self.queue is not None or self.bound)
        return replace(self, bridge=bridge, changed=True if has_things else UNSET)

    @property
    def closing(self) -> bool:
        """Whether the bridge is closing."""
        return self.intent is Intent.CLOSED

    @property
    def makes_queue(self) -> bool:
        """Whether the site creates the bridge's queue, and deletes the queue with the bridge."""
        return self.bridge.src_is_local and not self.bridge.src_is_queue


class Registry(Struct, frozen=True, kw_only=True):
    """All links and bridges of the site with the tag `here`, by name."""

    here: str
    links: Mapping[str, LinkRecord] = {}
    bridges: Mapping[str, BridgeRecord] = {}

    def list_bridges(self, link: str) -> list[BridgeRecord]:
        """Return a link's bridges, ordered by name."""
        return [record for _, record in sorted(self.bridges.items()) if record.bridge.link == link]

    def list_readers(self, queue: str) -> list[BridgeRecord]:
        """Return the bridges that forward the queue's messages, by name. Several queue routes may read one queue."""
        return [
            record for _, record in sorted(self.bridges.items()) if record.queue == queue and record.bridge.src_is_local
        ]

    def may_forward(self, record: BridgeRecord) -> bool:
        """Whether the bridge may forward messages now."""
        link = self.links[record.bridge.link]
        return link.carries and link.address is not None and record.intent in {Intent.OPEN, Intent.DRAINING}

    def with_link(self, record: LinkRecord) -> "Registry":
        """Return a registry with this link added or replaced."""
        return replace(self, links={**self.links, record.link.name: record})

    def with_bridge(self, record: BridgeRecord) -> "Registry":
        """Return a registry with this bridge added or replaced."""
        return replace(self, bridges={**self.bridges, record.bridge.name: record})


REGISTRY = Format(kind="links", version=1, type=Registry)


def format_served_name(name: str, peer: str) -> str:
    """Return the local name of a link or bridge that a peer requested."""
    return f"{name}{SERVED_MARK}{peer}"


def describe_state(record: BridgeRecord, link: LinkRecord) -> str:
    """Describe a bridge's state: its own state, or the state of its link if the bridge has none of its own."""
    if record.error is not None:
        state = LinkState.CONNECTING if record.error.startswith(NOT_YET) else LinkState.FAILED
        return f"{state}: {record.error}"
    if record.closing:
        return LinkState.CLOSING.value
    if record.intent is Intent.PAUSED:
        return LinkState.PAUSED.value
    if not record.bridge.src_is_local:
        return link.remote.get(record.bridge.name, LinkState.WAITING.value)
    is_set_up = record.on and not record.changed and (record.bound or record.bridge.kind is not RouteKind.STATIC)
    return LinkState.CONNECTING.value if link.carries and not is_set_up else link.status.state.value


def list_down_routes(registry: Registry) -> list[str]:
    """Return the bridges that should be operational but aren't, as this site or the peer reports."""
    resting = {LinkState.OPERATIONAL, LinkState.PAUSED, LinkState.CLOSING}
    return sorted(
        name
        for name, record in registry.bridges.items()
        if (link := registry.links.get(record.bridge.link)) is not None and describe_state(record, link) not in resting
    )


class Forward(msgspec.Struct, frozen=True, kw_only=True):
    """The data that the bridge function needs to forward messages over a bridge."""

    bridge: Bridge
    link: Link
    crossing: Crossing
    peer: Address
    endpoint: Endpoint


def find_forwards(registry: Registry, queue: str) -> list[Forward]:
    """Return the bridges that can forward the queue's messages now, because their peers are connected."""
    reading = registry.list_readers(queue)
    # If no open bridge forwards the queue, a closing bridge forwards the remaining messages.
    sending = [record for record in reading if registry.may_forward(record)] or [
        record for record in reading if record.closing
    ]
    links = [registry.links[record.bridge.link] for record in sending]
    return [
        Forward(
            bridge=record.bridge,
            link=link.link,
            crossing=build_crossing(record.bridge, link.link, here=registry.here),
            peer=link.address,
            endpoint=link.endpoint,
        )
        for record, link in zip(sending, links, strict=True)
        if link.address is not None
    ]


def make_destination(registry: Registry, record: BridgeRecord, *, url: str) -> Destination:
    """Return a bridge's queue as a destination of bindings."""
    link = registry.links[record.bridge.link].link
    return Destination(
        queue=record.queue or "", url=url, crossing=build_crossing(record.bridge, link, here=registry.here)
    )


def collect_pulls(registry: Registry, link: str) -> tuple[tuple[Bridge, ...], frozenset[str]]:
    """Return the pulled bridges for a link's hello, and the names of the paused bridges among them.

    On a draining link no bridge is paused, because the peer drains the link. A failed dynamic route isn't pulled.
    """
    status = registry.links[link].status
    is_paused = status.state is LinkState.PAUSED and not status.draining
    pulls = [
        record
        for record in registry.list_bridges(link)
        if not record.bridge.src_is_local and not record.closing and not (record.bridge.dynamic and record.error)
    ]
    paused = frozenset(record.bridge.name for record in pulls if is_paused or record.intent is Intent.PAUSED)
    return tuple(record.bridge for record in pulls), paused


def find_feeding_queues(registry: Registry) -> frozenset[str]:
    """Return the queues that queue routes read. Their messages are forwarded to a peer."""
    return frozenset(
        record.queue
        for record in registry.bridges.values()
        if record.bridge.kind is RouteKind.QUEUE and record.bridge.src_is_local and record.queue is not None
    )
