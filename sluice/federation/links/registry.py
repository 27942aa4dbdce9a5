"""A site's links and bridges, how far each has come, and what others read of that. Pure.

The forwarder runs at the source. So a bridge that pulls is *asked for*: with every hello the peer is told all that is
pulled over the link, and makes bridges of its own for that, which push. They belong to a link of the peer's that is
`served`: nobody declared it there. Whatever a hello no longer has is closed.
"""

from collections.abc import Mapping

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from sluice.codec import Format, Struct
from sluice.federation.links.links import Address, Bridge, Endpoint, Link, RouteKind, crossing
from sluice.federation.links.states import CARRYING, Intent, LinkState, LinkStatus
from sluice.federation.matching.bindings import Destination
from sluice.federation.matching.metadata import Crossing

NOT_YET = "not yet: "  # so the error begins of what AWS will do in a minute at most
SERVED_MARK = "@"  # in the names of links and bridges that a peer asked for: `<name>@<peer's tag>`


class LinkRecord(Struct, frozen=True, kw_only=True):
    """A link and how it is. `address` is the peer's once it has answered, `exchanges` its exchanges with their types.

    `hello_due` is when the peer is to be told something; `remote` is what the peer says of the bridges that are pulled.
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
        """Whether messages go over it now."""
        return self.status.state in CARRYING

    @property
    def is_ending(self) -> bool:
        """Whether it is about to go."""
        return self.status.state is LinkState.CLOSING

    @property
    def endpoint(self) -> Endpoint:
        """The one in use."""
        return self.link.endpoints[self.status.endpoint % len(self.link.endpoints)]


class BridgeRecord(Struct, frozen=True, kw_only=True):
    """A bridge and how far it has come. Of one that pulls only the declaration is here.

    `queue` is the name of the queue that it reads, `mapping` the event source mapping's id; `on` is whether that is
    known to be enabled, `bound` whether the queue is known to be bound. `changed` where it has other options than those
    that these were made with.
    """

    bridge: Bridge
    served: bool = False
    declared: bool = False
    queue: str | None = None
    mapping: str | None = None
    on: bool = False
    bound: bool = False
    wanted: Intent = Intent.OPEN
    empty_since_ms: int | None = None
    error: str | None = None
    changed: bool | UnsetType = UNSET

    def becoming(self, bridge: Bridge) -> "BridgeRecord":
        """Return the record of a bridge that is changed where it stands."""
        has_things = self.bridge.src_is_local and (self.queue is not None or self.bound)
        return replace(self, bridge=bridge, changed=True if has_things else UNSET)

    @property
    def closing(self) -> bool:
        """Whether it is about to go."""
        return self.wanted is Intent.CLOSED

    @property
    def makes_queue(self) -> bool:
        """Whether its queue is made here, and goes with it."""
        return self.bridge.src_is_local and not self.bridge.src_is_queue


class Registry(Struct, frozen=True, kw_only=True):
    """All links and bridges of the site with the tag `here`, by name."""

    here: str
    links: Mapping[str, LinkRecord] = {}
    bridges: Mapping[str, BridgeRecord] = {}

    def bridges_of(self, link: str) -> list[BridgeRecord]:
        """In order of names."""
        return [record for _, record in sorted(self.bridges.items()) if record.bridge.link == link]

    def bridges_reading(self, queue: str) -> list[BridgeRecord]:
        """Return the bridges that push what is in the queue, in order of names: several queue routes may share one."""
        return [each for _, each in sorted(self.bridges.items()) if each.queue == queue and each.bridge.src_is_local]

    def may_flow(self, record: BridgeRecord) -> bool:
        """Whether what the bridge reads may go over now."""
        link = self.links[record.bridge.link]
        return link.carries and link.address is not None and record.wanted in {Intent.OPEN, Intent.DRAINING}

    def with_link(self, record: LinkRecord) -> "Registry":
        """With the link as it is now."""
        return replace(self, links={**self.links, record.link.name: record})

    def with_bridge(self, record: BridgeRecord) -> "Registry":
        """With the bridge as it is now."""
        return replace(self, bridges={**self.bridges, record.bridge.name: record})


REGISTRY = Format(kind="links", version=1, type=Registry)


def served_name(name: str, peer: str) -> str:
    """Return the name of what a peer asked for: of a link or a bridge that it calls `name`."""
    return f"{name}{SERVED_MARK}{peer}"


def state_of(record: BridgeRecord, link: LinkRecord) -> str:
    """Say a bridge's state in words: its link's, unless it has one of its own."""
    if record.error is not None:
        state = LinkState.CONNECTING if record.error.startswith(NOT_YET) else LinkState.FAILED
        return f"{state}: {record.error}"
    if record.closing:
        return LinkState.CLOSING.value
    if record.wanted is Intent.PAUSED:
        return LinkState.PAUSED.value
    if not record.bridge.src_is_local:
        return link.remote.get(record.bridge.name, LinkState.WAITING.value)
    is_set_up = record.on and not record.changed and (record.bound or record.bridge.kind is not RouteKind.STATIC)
    return LinkState.CONNECTING.value if link.carries and not is_set_up else link.status.state.value


def routes_down(registry: Registry) -> list[str]:
    """Return the names of the bridges that should carry messages and don't, whichever end says so."""
    resting = {LinkState.OPERATIONAL, LinkState.PAUSED, LinkState.CLOSING}
    return sorted(
        name
        for name, record in registry.bridges.items()
        if (link := registry.links.get(record.bridge.link)) is not None and state_of(record, link) not in resting
    )


class Forward(msgspec.Struct, frozen=True, kw_only=True):
    """What the bridge function has to know of the bridge that reads a queue."""

    bridge: Bridge
    link: Link
    crossing: Crossing
    peer: Address
    endpoint: Endpoint


def forwards_of(registry: Registry, queue: str) -> list[Forward]:
    """Return the bridges that push what is in the queue and can: none where there is none, or no peer is there."""
    reading = registry.bridges_reading(queue)
    # A bridge that closes sends what it holds, as long as nobody else does.
    sending = [each for each in reading if registry.may_flow(each)] or [each for each in reading if each.closing]
    links = [registry.links[each.bridge.link] for each in sending]
    return [
        Forward(
            bridge=each.bridge,
            link=link.link,
            crossing=crossing(each.bridge, link.link, here=registry.here),
            peer=link.address,
            endpoint=link.endpoint,
        )
        for each, link in zip(sending, links, strict=True)
        if link.address is not None
    ]


def bridge_destination(registry: Registry, record: BridgeRecord, *, url: str) -> Destination:
    """Return the bridge queue, which is there, as exchanges see it."""
    link = registry.links[record.bridge.link].link
    return Destination(queue=record.queue or "", url=url, crossing=crossing(record.bridge, link, here=registry.here))


def pulls_over(registry: Registry, link: str) -> tuple[tuple[Bridge, ...], frozenset[str]]:
    """Find what the link's hello asks for, and the names of what is paused of it.

    That is all where the link is, unless it drains, which the peer's does. A dynamic route that fails asks for nothing.
    """
    status = registry.links[link].status
    is_paused = status.state is LinkState.PAUSED and not status.draining
    pulls = [
        each
        for each in registry.bridges_of(link)
        if not each.bridge.src_is_local and not each.closing and not (each.bridge.dynamic and each.error)
    ]
    paused = frozenset(each.bridge.name for each in pulls if is_paused or each.wanted is Intent.PAUSED)
    return tuple(each.bridge for each in pulls), paused


def fed_queues(registry: Registry) -> frozenset[str]:
    """Queues that queue routes read: what is bound to them goes on."""
    return frozenset(
        each.queue
        for each in registry.bridges.values()
        if each.bridge.kind is RouteKind.QUEUE and each.bridge.src_is_local and each.queue is not None
    )
