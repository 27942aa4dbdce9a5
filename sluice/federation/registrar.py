"""Looks after a site's links and bridges: takes events into the registry, and does what falls due.

One invocation's. What it does may be done by another at the same time, or was done by one that died: all of it is safe
to do again, and what has become of it comes back as an event.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import singledispatchmethod

from msgspec.structs import replace

from sluice.errors import BadBinding, BadConfiguration, BadRoute, CallFailed, QueueGone
from sluice.federation.exchange_store import (
    ExchangeStore,
    TooBusy,
    feeding,
    with_binding,
    without_binding,
    without_queue,
)
from sluice.federation.links.due import (
    EMPTY_FOR_MS,
    BuryLeftovers,
    CountQueue,
    DueAction,
    MakeMapping,
    MakeQueue,
    SendHello,
    SendParting,
    SetBinding,
    SwitchMapping,
    TearDown,
    due,
)
from sluice.federation.links.links import Address, Bridge, Link, RouteKind
from sluice.federation.links.messages import (
    Hello,
    HelloAnswer,
    HelloRefusal,
    LinkMessage,
    Parting,
    encode_control,
)
from sluice.federation.links.registry import (
    REGISTRY,
    SERVED_MARK,
    BridgeRecord,
    LinkRecord,
    Registry,
    bridge_destination,
    fed_queues,
    pulls_over,
    served_name,
    state_of,
)
from sluice.federation.links.states import AccessRefused, LinkEvent, LinkState, TimePassed, Unreachable
from sluice.federation.links.transitions import (
    BridgeGone,
    Counted,
    Done,
    Greeted,
    HelloAnswered,
    HelloSent,
    LinkTold,
    Parted,
    RegistryEvent,
    apply,
)
from sluice.federation.matching.bindings import Binding
from sluice.federation.matching.exchanges import ExchangeType
from sluice.federation.matching.typed_values import Headers
from sluice.federation.ports import (
    DeadLetters,
    Document,
    MappingGone,
    Mappings,
    NowMs,
    PeerRefused,
    Peers,
    PeerUnreachable,
    SiteQueues,
)
from sluice.message import DeadLetter

BRIDGE_QUEUE_PREFIX = "sluice-bridge-"
FIFO_SUFFIX = ".fifo"
FIFO_BATCH = 10
NAME_CHARACTERS = 24  # of a hash, in a bridge queue's name
MAX_ROUNDS = 8
MAX_RACES = 50
SOON_MS = 2_000  # while a bridge or a link closes or drains
# A headers exchange's binding that takes everything.
EVERYTHING: Headers = {"x-match": "all"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Registrar:
    """One invocation's. Raises `BadRoute`, `BadBinding`, or `CallFailed` for what AWS refuses."""

    here: Address
    document: Document
    exchanges: ExchangeStore
    queues: SiteQueues
    mappings: Mappings
    peers: Peers
    dead_letters: DeadLetters
    bridge_queue_attributes: Callable[[bool], Mapping[str, str]]  # of a FIFO queue, or of a standard one
    peer_accounts: frozenset[str]
    readable: Callable[[str], str]  # the name that SQS knows a queue by; raises `BadBinding` for one out of bounds
    last_forwards: Callable[[], Mapping[str, int]]  # by bridge: ms since 1970
    now_ms: NowMs
    jitter: Callable[[], float]
    may_go_on: Callable[[], bool]
    empty_for_ms: int = EMPTY_FOR_MS

    def registry(self) -> Registry:
        """As it stands."""
        return self._load()[0]

    def _load(self) -> tuple[Registry, int]:
        content, version = self.document.load()
        return (Registry(here=self.here.tag) if content is None else REGISTRY.unpack(content)), version

    def advance(self, events: Sequence[RegistryEvent] = (), *, ticks: bool = True) -> Registry:
        """Takes events in and does what is due, until nothing more can be done now; the registry then."""
        registry = self.take_in(events)
        if ticks:
            registry = self.take_in(list(self._ticks(registry)))
        done: set[tuple[DueAction, object]] = set()
        for _ in range(MAX_ROUNDS):
            followed = [event for action in self._undone(registry, done) for event in self._done(action, registry)]
            if not followed:
                return registry
            registry = self.take_in(followed)
        return registry

    def _undone(self, registry: Registry, done: set[tuple[DueAction, object]]) -> Iterator[DueAction]:
        """Each action once in a state of its bridge or link: what isn't settled by doing it again must wait."""
        for action in due(registry, now_ms=self.now_ms(), empty_for_ms=self.empty_for_ms):
            if isinstance(action, SendHello | SendParting):
                state: object = registry.links[action.link].status.state
            else:
                state = registry.bridges[action.bridge].mapping
            if (action, state) not in done and self.may_go_on():
                done.add((action, state))
                yield action

    def take_in(self, events: Sequence[RegistryEvent]) -> Registry:
        """Writes the registry after the events, all or none of them."""
        for _ in range(MAX_RACES):
            before, version = self._load()
            after = before
            for event in events:
                after = apply(after, event, now_ms=self.now_ms(), jitter=self.jitter())
            if after == before or self.document.save(REGISTRY.pack(after), after=version):
                return after
        raise TooBusy(f"lost {MAX_RACES} races to write the registry of links")

    def _ticks(self, registry: Registry) -> Iterator[RegistryEvent]:
        forwards = self.last_forwards()
        for name, record in registry.links.items():
            last = max((forwards.get(each.bridge.name, 0) for each in registry.bridges_of(name)), default=0)
            if last > (record.status.last_forward_ms or 0):
                yield LinkTold(name, LinkEvent.FORWARDED)
            yield LinkTold(name, TimePassed(queued=self._queued(registry, record)))

    def _queued(self, registry: Registry, record: LinkRecord) -> int:
        """What is left in the queues of a link that drains; nobody asks of any other."""
        if not record.status.draining:
            return 0
        queues = [each.queue for each in registry.bridges_of(record.link.name) if each.queue is not None]
        bound = [each for each in registry.bridges_of(record.link.name) if each.bound]
        return len(bound) + sum(self._count(queue) for queue in queues)

    def _count(self, queue: str) -> int:
        try:
            return self.queues.count(queue)
        except QueueGone:
            return 0

    def check_mappings(self) -> None:
        """Notes mappings that somebody else has switched, or AWS has, as when a queue was away for a while."""
        events: list[RegistryEvent] = []
        for record in self.registry().bridges.values():
            if record.mapping is None:
                continue
            try:
                on = self.mappings.is_on(record.mapping)
            except MappingGone:
                events.append(Done(bridge=record.bridge.name, mapping="", on=False))
            else:
                if on != record.on:
                    events.append(Done(bridge=record.bridge.name, on=on))
        self.take_in(events)

    def next_tick_ms(self, registry: Registry) -> int | None:
        """When somebody should look again, ms since 1970; None where the schedule will do."""
        now_ms = self.now_ms()
        times = [
            record.status.due_at_ms
            for record in registry.links.values()
            if record.status.state in {LinkState.WAITING, LinkState.FAILED, LinkState.CONNECTING}
        ]
        in_hurry = any(each.closing or each.draining for each in registry.bridges.values()) or any(
            record.status.draining and record.carries for record in registry.links.values()
        )
        if in_hurry:
            times.append(now_ms + SOON_MS)
        return max(min(times), now_ms) if times else None

    # What peers say

    def hear(self, control: LinkMessage) -> Registry:
        """Takes in what a peer says, and answers. Raises `BadRoute` for a site that may not say anything."""
        sender = control.sender
        if sender.account == self.here.account:  # what lets other accounts in isn't for its own
            sender = replace(sender, role_arn=None, external_id=None)
            control = replace(control, sender=sender)
        self.check_sender(sender)
        match control:
            case Hello():
                return self._greet(control)
            case HelloAnswer():
                answered = HelloAnswered(
                    link=control.link, peer=sender, exchanges=control.exchanges, bridges=control.bridges
                )
                return self.advance([answered], ticks=False)
            case HelloRefusal():
                return self.advance([LinkTold(control.link, AccessRefused(control.reason))], ticks=False)
            case Parting():
                return self.advance([Parted(control.link, sender.tag)], ticks=False)

    def check_sender(self, sender: Address) -> None:
        """Raises `BadRoute` for a site that may not say anything."""
        if sender.account not in self.peer_accounts:
            raise BadRoute(f"{sender.tag}: account {sender.account} is not one of this site's peers")

    def _greet(self, hello: Hello) -> Registry:
        if hello.served:
            return self._greet_server(hello)
        peer = hello.sender
        name = served_name(hello.link, peer.tag)
        greeted = Greeted(link=hello.link, peer=peer, pulls=hello.pulls, draining=hello.draining)
        try:
            registry = self.advance([greeted], ticks=False)
        except BadRoute as error:
            self._reply(peer, HelloRefusal(link=hello.link, sender=self.here, reason=str(error)))
            return self.registry()
        record = registry.links.get(name)
        if record is None:
            return registry  # a parting has come in between
        bridges = {
            each.bridge.name.removesuffix(SERVED_MARK + peer.tag): state_of(each, record)
            for each in registry.bridges_of(name)
        }
        answer = HelloAnswer(link=hello.link, sender=self.here, exchanges=self._exchange_types(), bridges=bridges)
        return self._tell_or_note(name, record.link, answer)

    def _greet_server(self, hello: Hello) -> Registry:
        """From a site where our own link is served: whether the two still know of each other."""
        registry = self.registry()
        ours = hello.link.removesuffix(SERVED_MARK + self.here.tag)
        if ours in registry.links:
            answer = HelloAnswer(link=hello.link, sender=self.here, exchanges=self._exchange_types(), bridges={})
            self._reply(hello.sender, answer)
        else:
            self._reply(hello.sender, Parting(link=ours, sender=self.here))
        return registry

    def _reply(self, peer: Address, control: LinkMessage) -> None:
        """To a site that no link here goes to. One that can't be told asks again: its hello is no dead letter."""
        with suppress(PeerUnreachable, PeerRefused):
            self._tell(Link.to(peer, name=peer.tag), control)

    def _exchange_types(self) -> Mapping[str, str]:
        return {exchange.name: exchange.type.value for exchange in self.exchanges.bindings().exchanges}

    def _tell(self, link: Link, control: LinkMessage) -> None:
        self.peers.tell(link, link.endpoints[0], encode_control(control))

    def _tell_or_note(self, name: str, link: Link, control: LinkMessage) -> Registry:
        """Whether the peer can be told is the evidence that a served link has."""
        try:
            self._tell(link, control)
        except PeerUnreachable as error:
            return self.advance([LinkTold(name, Unreachable(str(error)))], ticks=False)
        except PeerRefused as error:
            return self.advance([LinkTold(name, AccessRefused(str(error)))], ticks=False)
        return self.registry()

    # What is due

    def _done(self, action: DueAction, registry: Registry) -> list[RegistryEvent]:
        try:
            return list(self._do(action, registry))
        except (CallFailed, BadConfiguration, QueueGone) as error:
            if isinstance(action, SendHello | SendParting):
                raise
            return [Done(bridge=action.bridge, error=str(error))]

    @singledispatchmethod
    def _do(self, action: DueAction, registry: Registry) -> Iterable[RegistryEvent]:  # noqa: ARG002 - every action takes it
        raise TypeError(f"no action: {action!r}")

    @_do.register
    def _(self, action: SendHello, registry: Registry) -> Iterable[RegistryEvent]:
        record = registry.links[action.link]
        hello = Hello(
            link=action.link,
            sender=self.here,
            served=record.served,
            draining=record.status.draining,
            pulls=pulls_over(registry, action.link),
        )
        yield HelloSent(action.link)
        try:
            self.peers.tell(record.link, record.endpoint, encode_control(hello))
        except PeerUnreachable as error:
            yield LinkTold(action.link, Unreachable(str(error)))
        except PeerRefused as error:
            yield LinkTold(action.link, AccessRefused(str(error)))

    @_do.register
    def _(self, action: SendParting, registry: Registry) -> Iterable[RegistryEvent]:
        record = registry.links[action.link]
        if not record.served:
            try:
                self._tell(record.link, Parting(link=action.link, sender=self.here))
            except PeerUnreachable:
                return  # told once it can be
            except PeerRefused:
                pass  # it will never be told
        yield LinkTold(action.link, LinkEvent.TORN_DOWN)

    @_do.register
    def _(self, action: MakeQueue, registry: Registry) -> Iterable[RegistryEvent]:
        bridge = registry.bridges[action.bridge].bridge
        existing = bridge.src if bridge.kind is RouteKind.QUEUE else bridge.queue
        if existing is not None:
            queue = self.readable(existing)
            self.queues.count(queue)  # it has to be there
            self.exchanges.change(feeding(fed_queues(registry) | {queue}))
            yield Done(bridge=action.bridge, queue=queue)
            return
        name = self.queue_name(bridge)
        tags = {"sluice:site": self.here.tag, "sluice:bridge": bridge.name}
        self.queues.create(name, self.bridge_queue_attributes(bridge.fifo), tags)
        yield Done(bridge=action.bridge, queue=name)

    def queue_name(self, bridge: Bridge) -> str:
        """The name of the queue that is made for a bridge: known before it is there."""
        return bridge_queue_name(self.here.tag, bridge)

    @_do.register
    def _(self, action: SetBinding, registry: Registry) -> Iterable[RegistryEvent]:
        record = registry.bridges[action.bridge]
        if action.bound:
            destination = bridge_destination(registry, record, url=self.queues.url(record.queue or ""))
            self.exchanges.change(with_binding(self._binding(record), destination))
        else:
            self._unbind(record.bridge, record.queue or "")
        yield Done(bridge=action.bridge, bound=action.bound)

    def _binding(self, record: BridgeRecord) -> Binding:
        types = self._exchange_types()
        if record.bridge.src not in types:
            raise BadBinding(f"no such exchange: {record.bridge.src}")
        bridge, takes_all = record.bridge, types[record.bridge.src] == ExchangeType.HEADERS
        arguments = EVERYTHING if takes_all else {}
        return Binding(exchange=bridge.src, queue=record.queue or "", key=bridge.key, arguments=arguments)

    @_do.register
    def _(self, action: MakeMapping, registry: Registry) -> Iterable[RegistryEvent]:
        record = registry.bridges[action.bridge]
        bridge = record.bridge
        batch_size = min(bridge.sync, max(1, bridge.credit // 2)) if bridge.credit else bridge.sync
        if (record.queue or "").endswith(FIFO_SUFFIX):
            batch_size = min(batch_size, FIFO_BATCH)
        mapping = self.mappings.create(
            record.queue or "",
            batch_size=batch_size,
            max_concurrency=max(2, bridge.credit // batch_size) if bridge.credit else None,
            on=action.on,
        )
        yield Done(bridge=action.bridge, mapping=mapping, on=action.on)

    @_do.register
    def _(self, action: SwitchMapping, registry: Registry) -> Iterable[RegistryEvent]:
        try:
            self.mappings.switch(registry.bridges[action.bridge].mapping or "", on=action.on)
        except MappingGone:
            yield Done(bridge=action.bridge, mapping="", on=False)
        else:
            yield Done(bridge=action.bridge, on=action.on)

    @_do.register
    def _(self, action: CountQueue, registry: Registry) -> Iterable[RegistryEvent]:
        yield Counted(action.bridge, self._count(registry.bridges[action.bridge].queue or ""))

    @_do.register
    def _(self, action: BuryLeftovers, registry: Registry) -> Iterable[RegistryEvent]:
        record = registry.bridges[action.bridge]
        yield Counted(action.bridge, self._torn_down(record, registry))

    @_do.register
    def _(self, action: TearDown, registry: Registry) -> Iterable[RegistryEvent]:
        record = registry.bridges[action.bridge]
        if record.bridge.src_is_local:
            if self._torn_down(record, registry):
                yield Counted(action.bridge, 1)  # it isn't empty after all
                return
            if record.makes_queue:
                self.queues.delete(self.queue_name(record.bridge))
        yield BridgeGone(action.bridge)

    def _torn_down(self, record: BridgeRecord, registry: Registry) -> int:
        """Takes away all but the queue, known to be there or not; how many messages are left in that."""
        bridge = record.bridge
        queue = self.queue_name(bridge) if record.makes_queue else record.queue
        if queue is None:
            return 0
        if not bridge.src_is_queue:
            self._unbind(bridge, queue)
        if not _is_shared(registry, record, queue):
            self.mappings.delete(queue)
        if not record.makes_queue:
            return 0
        return self._count(queue) if self._emptied(queue, f"the route {bridge.name} is gone") else 1

    def _unbind(self, bridge: Bridge, queue: str) -> None:
        """Takes the bridge's binding away; of its own queue there is no other, of an existing one there may be."""
        id_ = bridge.src, queue, bridge.key
        self.exchanges.change(without_queue(queue) if bridge.dynamic else without_binding(id_, missing_ok=True))

    def _emptied(self, queue: str, reason: str) -> bool:
        """Lets what is left become dead letters; False where the time ran out."""
        try:
            while messages := self.queues.receive_batch(queue):
                if not self.may_go_on():
                    return False
                for message in messages:
                    self.dead_letters.bury(DeadLetter(message=message, reason=reason, source=self.queues.arn(queue)))
                self.queues.delete_batch(queue, messages)
        except QueueGone:
            return True
        return True


def bridge_queue_name(tag: str, bridge: Bridge) -> str:
    """The queue that is made for a bridge whose messages come from the site with this tag."""
    digest = hashlib.sha256(f"{tag}/{bridge.name}".encode()).hexdigest()[:NAME_CHARACTERS]
    return BRIDGE_QUEUE_PREFIX + digest + (FIFO_SUFFIX if bridge.fifo else "")


def _is_shared(registry: Registry, record: BridgeRecord, queue: str) -> bool:
    """Whether another route goes on to read the queue, through the one mapping that a queue and a function have."""
    others = registry.bridges_reading(queue)
    return any(each.bridge.name != record.bridge.name and not each.closing for each in others)
