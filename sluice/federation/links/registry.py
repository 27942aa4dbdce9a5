"""A site's links and bridges, how far each has come, and what is to be done next. Pure: time and jitter come in.

`apply` takes an event into the registry; `due` says what to do. What is due follows from the state alone, and each
action may be done twice: so whoever comes by, after whatever crash, goes on where the last one stopped.

The forwarder runs at the source. So a bridge that pulls is *asked for*: with every hello the peer is told all that is
pulled over the link, and makes bridges of its own for that, which push. They belong to a link of the peer's that is
`served`: nobody declared it there. Whatever a hello no longer has is closed.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from sluice.errors import BadRoute
from sluice.federation.links import states as link_states
from sluice.federation.links.links import Bridge, Endpoint, Link, RouteKind, check_bridge, check_link, crossing
from sluice.federation.links.states import CARRYING, Happening, State, Status
from sluice.federation.matching.bindings import Binding, Destination
from sluice.federation.matching.tracing import Crossing, is_tag
from sluice.federation.matching.typed_values import Headers

_V = TypeVar("_V")

SERVED_MARK = "@"  # in the names of links and bridges that a peer asked for: `<name>@<peer's tag>`
EMPTY_FOR_MS = 60_000  # SQS's counts are right within a minute of the last change
_UNREACHED = frozenset({State.WAITING, State.CONNECTING, State.FAILED})
_HEARING = CARRYING | {State.CONNECTING, State.PAUSED}  # the peer may be told something


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where a site is, as it says of itself.

    `role_arn` is a role that its peers may assume, with `external_id`; `sqs_url` where they reach its SQS, if not at
    the usual address.
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

    @property
    def endpoint(self) -> Endpoint:
        """Its control queue, and the way there."""
        return Endpoint(
            region=self.region, account=self.account, control_queue_url=self.control_queue_url, sqs_url=self.sqs_url
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkRecord:
    """A link and how it is. `address` is the peer's once it has answered, `exchanges` its exchanges with their types.

    `hello_due` is when the peer is to be told something; `remote` is what the peer says of the bridges that are pulled.
    """

    link: Link
    status: Status = field(default_factory=Status)
    served: bool = False
    declared: bool = False
    address: Address | None = None
    exchanges: Mapping[str, str] = field(default_factory=dict)
    hello_due: bool = False
    remote: Mapping[str, str] = field(default_factory=dict)

    @property
    def carries(self) -> bool:
        """Whether messages go over it now."""
        return self.status.state in CARRYING


@dataclass(frozen=True, slots=True, kw_only=True)
class BridgeRecord:
    """A bridge and how far it has come. Of one that pulls only the declaration is here.

    `queue` is the name of the queue that it reads, `mapping` the event source mapping's id; `on` is whether that is
    known to be enabled, `bound` whether the queue is known to be bound.
    """

    bridge: Bridge
    served: bool = False
    declared: bool = False
    queue: str | None = None
    mapping: str | None = None
    on: bool = False
    bound: bool = False
    closing: bool = False
    draining: bool = False
    empty_since_ms: int | None = None
    error: str | None = None

    @property
    def makes_queue(self) -> bool:
        """Whether its queue is made here, and goes with it."""
        return self.bridge.src_is_local and self.bridge.queue is None and not self.bridge.src_is_queue


@dataclass(frozen=True, slots=True, kw_only=True)
class Registry:
    """All links and bridges of the site with the tag `here`, by name."""

    here: str
    links: Mapping[str, LinkRecord] = field(default_factory=dict)
    bridges: Mapping[str, BridgeRecord] = field(default_factory=dict)

    def bridges_of(self, link: str) -> list[BridgeRecord]:
        """In order of names."""
        return [record for _, record in sorted(self.bridges.items()) if record.bridge.link == link]

    def bridges_reading(self, queue: str) -> list[BridgeRecord]:
        """The bridges that push what is in the queue, in order of names: several queue routes may share one."""
        return [each for _, each in sorted(self.bridges.items()) if each.queue == queue and each.bridge.src_is_local]


# Events


@dataclass(frozen=True, slots=True)
class LinkAdded:
    """An operator's, or the configuration's."""

    link: Link
    declared: bool = False


@dataclass(frozen=True, slots=True)
class BridgeAdded:
    """An operator's, or the configuration's."""

    bridge: Bridge
    declared: bool = False


@dataclass(frozen=True, slots=True)
class BridgeClosed:
    """A bridge is to go; what it holds goes over first, if the link carries."""

    name: str


@dataclass(frozen=True, slots=True)
class BridgeTold:
    """An operator pauses a bridge, lets it drain, or lets it go on."""

    name: str
    what: Happening


@dataclass(frozen=True, slots=True)
class LinkHappened:
    """What happened to a link."""

    link: str
    event: link_states.Event


@dataclass(frozen=True, slots=True, kw_only=True)
class Greeted:
    """A peer's hello over a link of its own: who it is, and all that it pulls."""

    link: str
    peer: Address
    pulls: tuple[Bridge, ...] = ()
    draining: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """A peer's answer to a hello: who it is, what exchanges it has, how its bridges for us are."""

    link: str
    peer: Address
    exchanges: Mapping[str, str]
    bridges: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Parted:
    """A peer has closed its link."""

    link: str
    peer: str


@dataclass(frozen=True, slots=True)
class HelloSent:
    """A link's hello is on its way."""

    link: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """What has become of a bridge's things; None leaves what is known as it is."""

    bridge: str
    queue: str | None = None
    mapping: str | None = None
    on: bool | None = None
    bound: bool | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class BridgeGone:
    """Nothing of the bridge is left."""

    name: str


@dataclass(frozen=True, slots=True)
class Counted:
    """How many messages a closing or draining bridge's queue has."""

    bridge: str
    messages: int


Event = (
    LinkAdded | BridgeAdded | BridgeClosed | BridgeTold | LinkHappened | Greeted | Answered | Parted | HelloSent | Done
    | BridgeGone | Counted
)  # fmt: skip


# Actions


@dataclass(frozen=True, slots=True)
class SendHello:
    """Say hello over the link. Answer with `HelloSent`, or with `LinkHappened` where that fails."""

    link: str


@dataclass(frozen=True, slots=True)
class SendParting:
    """Tell the peer that the link is closed. Answer with `LinkHappened` of TORN_DOWN, told or not."""

    link: str


@dataclass(frozen=True, slots=True)
class MakeQueue:
    """Make the bridge's queue, or look at the existing one. Answer with `Done`."""

    bridge: str


@dataclass(frozen=True, slots=True)
class SetBinding:
    """Bind the bridge's queue, or unbind it. Answer with `Done`."""

    bridge: str
    bound: bool


@dataclass(frozen=True, slots=True)
class MakeMapping:
    """Let the bridge function read the queue. Answer with `Done`."""

    bridge: str
    on: bool


@dataclass(frozen=True, slots=True)
class SwitchMapping:
    """Answer with `Done`."""

    bridge: str
    on: bool


@dataclass(frozen=True, slots=True)
class CountQueue:
    """Answer with `Counted`."""

    bridge: str


@dataclass(frozen=True, slots=True)
class BuryLeftovers:
    """Delete the mapping; what is in the queue is dead. Answer with `Done` and `Counted`."""

    bridge: str


@dataclass(frozen=True, slots=True)
class TearDown:
    """Delete the mapping, and the queue if we made it; what is still in that is dead. Answer with `BridgeGone`."""

    bridge: str


Action = (
    SendHello | SendParting | MakeQueue | SetBinding | MakeMapping | SwitchMapping | CountQueue | BuryLeftovers
    | TearDown
)  # fmt: skip


def apply(registry: Registry, event: Event, *, now_ms: int, jitter: float) -> Registry:
    """The registry after the event. Events that come late or twice change nothing. Raises `BadRoute`."""
    return _settled(_applied(registry, event, _Now(now_ms, jitter)))


def tick(registry: Registry, *, now_ms: int, jitter: float) -> Registry:
    """The registry after time has gone by, for links that have nothing queued that is old."""
    for name in registry.links:
        registry = apply(registry, LinkHappened(name, link_states.Tick()), now_ms=now_ms, jitter=jitter)
    return registry


@dataclass(frozen=True, slots=True)
class _Now:
    ms: int
    jitter: float


def _applied(registry: Registry, event: Event, now: _Now) -> Registry:  # noqa: PLR0911, C901 - one line an event
    match event:
        case LinkAdded():
            return _link_added(registry, event)
        case BridgeAdded():
            return _bridge_added(registry, event)
        case BridgeClosed():
            return _changed(registry, event.name, closing=True)
        case BridgeTold():
            return _told(registry, event)
        case LinkHappened():
            return _happened(registry, event, now)
        case Greeted():
            return _greeted(registry, event, now)
        case Answered():
            return _answered(registry, event, now)
        case Parted():
            return _happened(registry, LinkHappened(served_name(event.link, event.peer), Happening.CLOSE), now)
        case HelloSent():
            return _with_link(registry, event.link, hello_due=False)
        case Done():
            return _done(registry, event)
        case BridgeGone():
            return _bridge_gone(registry, event, now)
        case Counted():
            return _counted(registry, event, now)


def _bridge_gone(registry: Registry, event: BridgeGone, now: _Now) -> Registry:
    record = registry.bridges.get(event.name)
    if record is None:
        return registry
    registry, link = replace(registry, bridges=_without(registry.bridges, event.name)), record.bridge.link
    if link in registry.links and not registry.links[link].link.durable and not registry.bridges_of(link):
        return _happened(registry, LinkHappened(link, Happening.CLOSE), now)
    return registry


def served_name(name: str, peer: str) -> str:
    """The name of what a peer asked for: of a link or a bridge that it calls `name`."""
    return f"{name}{SERVED_MARK}{peer}"


def _link_added(registry: Registry, event: LinkAdded) -> Registry:
    link = event.link
    existing = registry.links.get(link.name)
    if existing is not None and existing.link == link:
        return registry
    if SERVED_MARK in link.name:
        raise BadRoute(f"{link.name}: {SERVED_MARK} is for links that a peer asked for")
    # A peer's link to here and ours to it are two links between the same sites, as they should be.
    check_link(link, here=registry.here, existing=[each.link for each in registry.links.values()])
    return replace(registry, links={**registry.links, link.name: LinkRecord(link=link, declared=event.declared)})


def _bridge_added(registry: Registry, event: BridgeAdded) -> Registry:
    bridge = event.bridge
    existing = registry.bridges.get(bridge.name)
    if existing is not None and existing.bridge == bridge and not existing.closing:
        return registry
    if SERVED_MARK in bridge.name:
        raise BadRoute(f"{bridge.name}: {SERVED_MARK} is for routes that a peer asked for")
    links = [each.link for each in registry.links.values() if not each.served and not _is_ending(each)]
    check_bridge(bridge, links=links, existing=[each.bridge for each in registry.bridges.values()])
    record = BridgeRecord(bridge=bridge, declared=event.declared)
    return _announced(replace(registry, bridges={**registry.bridges, bridge.name: record}), bridge)


def _is_ending(record: LinkRecord) -> bool:
    return record.status.state in {State.CLOSING, State.CLOSED}


def _announced(registry: Registry, bridge: Bridge) -> Registry:
    """The peer is to hear of a change of what is pulled."""
    return registry if bridge.src_is_local else _with_link(registry, bridge.link, hello_due=True)


def _told(registry: Registry, event: BridgeTold) -> Registry:
    record = registry.bridges.get(event.name)
    if record is None:
        return registry
    bridge = replace(record.bridge, paused=event.what is Happening.PAUSE)
    draining = event.what is Happening.DRAIN
    changed = _changed(registry, event.name, bridge=bridge, draining=draining, empty_since_ms=None)
    return _announced(changed, bridge)


def _happened(registry: Registry, event: LinkHappened, now: _Now) -> Registry:
    record = registry.links.get(event.link)
    if record is None:
        return registry
    step = link_states.step(
        record.status, event.event, endpoints=len(record.link.endpoints), now_ms=now.ms, jitter=now.jitter
    )
    changed = _with_link(
        registry, event.link, status=step.status, hello_due=record.hello_due or _is_to_be_told(record, step)
    )
    if _is_ending(record) and isinstance(event.event, link_states.Unreachable | link_states.Refused):
        return _given_up(changed, event.link, event.event.error)
    return changed


def _is_to_be_told(record: LinkRecord, step: link_states.Step) -> bool:
    """Whether the peer is to hear of it. Of a served link the peer's own heartbeats are enough, while they come."""
    if link_states.Action.CONNECT in step.actions:
        return True
    before, after = record.status, step.status
    if record.served:
        # Its parting may have been lost: whoever has been silent is asked.
        return link_states.Action.HEARTBEAT in step.actions and after.state in {State.STALLED, State.PAUSED}
    holds = after.draining != before.draining or (after.state is State.PAUSED) != (before.state is State.PAUSED)
    return holds or link_states.Action.HEARTBEAT in step.actions


def _given_up(registry: Registry, link: str, error: str) -> Registry:
    """The bridges of a link that closes wait no longer for the peer: what they hold becomes dead letters."""
    for each in registry.bridges_of(link):
        registry = _changed(registry, each.bridge.name, on=False, error=error)
    return registry


def _greeted(registry: Registry, event: Greeted, now: _Now) -> Registry:
    _check_tag(registry, event.peer)
    name = served_name(event.link, event.peer.tag)
    link = _served_link(name, event.peer)
    known = registry.links.get(name)
    record = LinkRecord(link=link, served=True, address=event.peer)
    if known is not None and not _is_ending(known):
        record = replace(known, link=link, address=event.peer)
    _check_pulls(event.pulls)
    registry = _reached(replace(registry, links={**registry.links, name: record}), name, now)
    wanted = {each.name: each for each in (_served_bridge(pull, link, event.peer.tag) for pull in event.pulls)}
    for each in registry.bridges_of(name):
        if each.bridge.name not in wanted:
            registry = _changed(registry, each.bridge.name, closing=True)
    for bridge in wanted.values():
        registry = _served(registry, bridge)
    if registry.links[name].status.draining != event.draining:
        told = Happening.DRAIN if event.draining else Happening.RESUME
        registry = _happened(registry, LinkHappened(name, told), now)
    return registry


def _check_pulls(pulls: tuple[Bridge, ...]) -> None:
    """What is asked for is checked here, too: the peer's checks are its own."""
    asked = [replace(pull, link=_ANY_LINK.name) for pull in pulls]
    for pull in asked:
        if pull.src_is_local:
            raise BadRoute(f"{pull.name}: it isn't pulled")
        check_bridge(pull, links=[_ANY_LINK], existing=())
    if len({pull.name for pull in asked}) < len(asked) or len({pull.way for pull in asked}) < len(asked):
        raise BadRoute("a duplicate route is asked for")


_ANY_LINK = Link(name="", peer="", endpoints=())


def _check_tag(registry: Registry, peer: Address) -> None:
    if not is_tag(peer.tag):
        raise BadRoute(f"{peer.tag!r} is no site's tag")
    if peer.tag == registry.here:
        raise BadRoute(f"{peer.tag}: a site isn't linked to itself, and no two sites have one tag")
    for record in registry.links.values():
        known = record.address
        if known is not None and known.tag == peer.tag and known.control_queue_url != peer.control_queue_url:
            raise BadRoute(f"{peer.tag}: two sites have this tag: {known.control_queue_url}, {peer.control_queue_url}")


def _served_link(name: str, peer: Address) -> Link:
    return Link(
        name=name, peer=peer.tag, endpoints=(peer.endpoint,), role_arn=peer.role_arn, external_id=peer.external_id
    )


def _served_bridge(pull: Bridge, link: Link, peer: str) -> Bridge:
    """The bridge that pushes here what the peer pulls."""
    return replace(pull, name=served_name(pull.name, peer), link=link.name, src_is_local=True)


def _served(registry: Registry, bridge: Bridge) -> Registry:
    known = registry.bridges.get(bridge.name)
    if known is None:
        return replace(registry, bridges={**registry.bridges, bridge.name: BridgeRecord(bridge=bridge, served=True)})
    if known.bridge == bridge or known.closing:
        return registry  # one that is closing is made anew with the next hello after it is gone
    if replace(known.bridge, paused=bridge.paused) == bridge:
        return _changed(registry, bridge.name, bridge=bridge)
    return _changed(registry, bridge.name, closing=True)


def _reached(registry: Registry, link: str, now: _Now) -> Registry:
    """The peer is there: it has sent us something."""
    registry = _happened(registry, LinkHappened(link, Happening.RETRY), now)
    answered = _happened(registry, LinkHappened(link, Happening.ANSWERED), now)
    return _with_link(answered, link, hello_due=False)  # it gets an answer


def _answered(registry: Registry, event: Answered, now: _Now) -> Registry:
    record = registry.links.get(event.link)
    if record is None:
        return registry
    if event.peer.tag != record.link.peer:
        error = f"the site there has the tag {event.peer.tag}, not {record.link.peer}"
        return _happened(registry, LinkHappened(event.link, link_states.Refused(error)), now)
    registry = _with_link(
        registry, event.link, address=event.peer, exchanges=dict(event.exchanges), remote=dict(event.bridges)
    )
    return _happened(registry, LinkHappened(event.link, Happening.ANSWERED), now)


def _done(registry: Registry, event: Done) -> Registry:
    record = registry.bridges.get(event.bridge)
    if record is None:
        return registry
    return _changed(
        registry,
        event.bridge,
        queue=record.queue if event.queue is None else event.queue,
        mapping=record.mapping if event.mapping is None else event.mapping or None,
        on=record.on if event.on is None else event.on,
        bound=record.bound if event.bound is None else event.bound,
        error=event.error,
    )


def _counted(registry: Registry, event: Counted, now: _Now) -> Registry:
    record = registry.bridges.get(event.bridge)
    if record is None:
        return registry
    since = record.empty_since_ms if record.empty_since_ms is not None else now.ms
    return _changed(registry, event.bridge, empty_since_ms=None if event.messages else since)


def _settled(registry: Registry) -> Registry:
    """What follows by itself: a link that closes takes its bridges along, and goes once they are gone."""
    for name, record in registry.links.items():
        if record.status.state is State.CLOSED and not registry.bridges_of(name):
            registry = replace(registry, links=_without(registry.links, name))
        elif _is_ending(record):
            for each in registry.bridges_of(name):
                registry = _changed(registry, each.bridge.name, closing=True)
    return registry


# What is due


def due(registry: Registry, *, now_ms: int, empty_for_ms: int = EMPTY_FOR_MS) -> Iterator[Action]:
    """Everything to be done in this state, all of it safe to do again."""
    for name, record in registry.links.items():
        if record.status.state is State.CLOSING:
            if not registry.bridges_of(name):
                yield SendParting(name)
        elif record.hello_due and record.status.state in _HEARING:
            yield SendHello(name)
    for bridge in registry.bridges.values():
        yield from _due_of_bridge(registry, bridge, now_ms=now_ms, empty_for_ms=empty_for_ms)


def _due_of_bridge(registry: Registry, record: BridgeRecord, *, now_ms: int, empty_for_ms: int) -> Iterator[Action]:
    name = record.bridge.name
    if record.closing:
        yield from _due_of_closing(registry, record, now_ms=now_ms, empty_for_ms=empty_for_ms)
    elif not record.bridge.src_is_local:
        return
    elif record.queue is None:
        yield MakeQueue(name)
    else:
        yield from _due_of_open(registry, record)


def _due_of_open(registry: Registry, record: BridgeRecord) -> Iterator[Action]:
    name, link = record.bridge.name, registry.links[record.bridge.link]
    takes_in = not (record.draining or link.status.draining)
    # What a dynamic route's queue is bound by, its peer says.
    if record.bridge.kind is RouteKind.STATIC and record.bound != takes_in:
        yield SetBinding(name, takes_in)
    on = any(_may_flow(registry, each) for each in registry.bridges_reading(record.queue or ""))
    if record.mapping is None:
        yield MakeMapping(name, on)
    elif record.on != on:
        yield SwitchMapping(name, on)
    if record.draining and not record.bridge.paused:
        yield CountQueue(name)


def _due_of_closing(registry: Registry, record: BridgeRecord, *, now_ms: int, empty_for_ms: int) -> Iterator[Action]:
    name, link = record.bridge.name, registry.links.get(record.bridge.link)
    if record.bound:
        yield SetBinding(name, bound=False)
        return
    is_cut_off = link is not None and link.status.state in _UNREACHED
    if is_cut_off and record.makes_queue and record.on and record.mapping:
        yield SwitchMapping(name, on=False)  # what can't be sent isn't waited for
        return
    # Exchanges may still have the binding, and functions what they have received: with the queue it would go. And what
    # isn't known to be there may be: whoever made it has died before saying so, or is about to say so.
    waits = record.bridge.src_is_local and (record.makes_queue or record.mapping is None)
    is_empty = record.empty_since_ms is not None and now_ms - record.empty_since_ms >= empty_for_ms
    if is_empty or not waits:
        yield TearDown(name)
    else:
        yield CountQueue(name) if record.on and record.makes_queue else BuryLeftovers(name)


# What others read


def state_of(record: BridgeRecord, link: LinkRecord) -> str:
    """A bridge's state in words: its link's, unless it has one of its own."""
    if record.error is not None:
        return f"{State.FAILED}: {record.error}"
    if record.closing:
        return State.CLOSING.value
    if record.bridge.paused:
        return State.PAUSED.value
    if not record.bridge.src_is_local:
        return link.remote.get(record.bridge.name, State.WAITING.value)
    is_set_up = record.on and (record.bound or record.bridge.kind is not RouteKind.STATIC)
    return State.CONNECTING.value if link.carries and not is_set_up else link.status.state.value


def routes_down(registry: Registry) -> list[str]:
    """The names of the bridges that should carry messages and don't, whichever end says so."""
    return sorted(name for name, record in registry.bridges.items() if _is_down(record, registry))


def _is_down(record: BridgeRecord, registry: Registry) -> bool:
    link = registry.links.get(record.bridge.link)
    state = State.CLOSING.value if link is None else state_of(record, link)
    return state not in {State.OPERATIONAL, State.PAUSED, State.CLOSING, State.CLOSED}


@dataclass(frozen=True, slots=True, kw_only=True)
class Forward:
    """What the bridge function has to know of the bridge that reads a queue."""

    bridge: Bridge
    link: Link
    crossing: Crossing
    peer: Address
    endpoint: Endpoint


def forwards_of(registry: Registry, queue: str) -> list[Forward]:
    """The bridges that push what is in the queue and can: none where there is none, or no peer is there."""
    reading = registry.bridges_reading(queue)
    flowing = [each for each in reading if _may_flow(registry, each)]
    # A bridge that closes sends what it holds, as long as nobody else does.
    ending = [each for each in reading if each.closing and registry.links[each.bridge.link].address is not None]
    return [_forward(registry, each) for each in flowing or ending]


def _may_flow(registry: Registry, record: BridgeRecord) -> bool:
    link = registry.links[record.bridge.link]
    return link.carries and link.address is not None and not record.bridge.paused and not record.closing


def _forward(registry: Registry, record: BridgeRecord) -> Forward:
    link = registry.links[record.bridge.link]
    if link.address is None:
        raise ValueError(f"{link.link.name} has no peer yet")
    return Forward(
        bridge=record.bridge,
        link=link.link,
        crossing=crossing(record.bridge, link.link, here=registry.here),
        peer=link.address,
        endpoint=link.link.endpoints[link.status.endpoint % len(link.link.endpoints)],
    )


def bridge_binding(record: BridgeRecord, *, arguments: Headers) -> Binding:
    """The binding of an exchange route's bridge queue. `arguments` are those that the exchange's type asks for."""
    if record.queue is None:
        raise ValueError(f"{record.bridge.name} has no queue yet")
    return Binding(exchange=record.bridge.src, queue=record.queue, key=record.bridge.key, arguments=arguments)


def bridge_destination(registry: Registry, record: BridgeRecord, *, url: str) -> Destination:
    """The bridge queue as exchanges see it."""
    if record.queue is None:
        raise ValueError(f"{record.bridge.name} has no queue yet")
    link = registry.links[record.bridge.link].link
    return Destination(queue=record.queue, url=url, crossing=crossing(record.bridge, link, here=registry.here))


def pulls_over(registry: Registry, link: str) -> tuple[Bridge, ...]:
    """What the link's hello asks for; all of it paused where the link is, but for one that drains: the peer's does."""
    status = registry.links[link].status
    paused = status.state is State.PAUSED and not status.draining
    return tuple(
        replace(each.bridge, paused=each.bridge.paused or paused)
        for each in registry.bridges_of(link)
        if not each.bridge.src_is_local and not each.closing
    )


def fed_queues(registry: Registry) -> frozenset[str]:
    """Queues that queue routes read: what is bound to them goes on."""
    return frozenset(
        each.queue
        for each in registry.bridges.values()
        if each.bridge.kind is RouteKind.QUEUE and each.bridge.src_is_local and each.queue is not None
    )


def _with_link(registry: Registry, name: str, **changes: object) -> Registry:
    record = registry.links.get(name)
    if record is None:
        return registry
    changed = replace(record, **changes)  # type: ignore[arg-type]  # fields of the record, each with its own type
    return replace(registry, links={**registry.links, name: changed})


def _changed(registry: Registry, name: str, **changes: object) -> Registry:
    record = registry.bridges.get(name)
    if record is None:
        return registry
    changed = replace(record, **changes)  # type: ignore[arg-type]  # fields of the record, each with its own type
    changed_registry = replace(registry, bridges={**registry.bridges, name: changed})
    is_new_end = changed.closing and not record.closing
    return _announced(changed_registry, changed.bridge) if is_new_end else changed_registry


def _without(mapping: Mapping[str, _V], name: str) -> dict[str, _V]:
    return {key: value for key, value in mapping.items() if key != name}
