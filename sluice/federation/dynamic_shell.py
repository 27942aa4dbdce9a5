"""Carries dynamic routes: what the registry and the bindings have become goes in, bindings and ops to peers come out.

All of it follows from what is stored: whoever comes by, after whatever crash, goes on where the last one stopped. What
was to be told and wasn't is asked for after the next heartbeat.
"""

import base64
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from sluice.errors import BadSnapshot, Malformed
from sluice.federation.codec import DynamicOp, encode_control
from sluice.federation.dynamic.codec import decode_routes, encode_routes
from sluice.federation.dynamic.ops import Want, bindings_for, decode_op, encode_op
from sluice.federation.dynamic.paths import (
    DynamicRoutes,
    Event,
    Heard,
    Heartbeat,
    Ignored,
    LinkTurned,
    Pull,
    PullAdded,
    PullRemoved,
    Sending,
    Served,
    ServedAdded,
    ServedRemoved,
    Surveyed,
    Way,
    excludes_of,
    step,
    wants_of,
    ways_of,
)
from sluice.federation.exchange_store import TooBusy, bound_exactly
from sluice.federation.links.registry import SERVED_MARK, BridgeRecord, LinkHappened, Registry, bridge_destination
from sluice.federation.links.states import Refused, Unreachable
from sluice.federation.matching.bindings import Bindings
from sluice.federation.matching.exchanges import ExchangeType
from sluice.federation.ports import Document, PeerRefused, PeerUnreachable
from sluice.federation.registrar import Registrar

MAX_RACES = 50

States = Mapping[str, DynamicRoutes]  # by exchange


def decode_states(content: bytes | None) -> dict[str, DynamicRoutes]:
    """Of all exchanges with dynamic routes. Raises `BadSnapshot`."""
    if content is None:
        return {}
    try:
        return {name: decode_routes(base64.b64decode(stored)) for name, stored in json.loads(content).items()}
    except (ValueError, AttributeError) as error:
        raise BadSnapshot(f"the state of dynamic routes can't be read: {error!r}") from error


def encode_states(states: States) -> bytes:
    """Equal states give equal bytes."""
    stored = {name: base64.b64encode(encode_routes(routes)).decode() for name, routes in sorted(states.items())}
    return json.dumps(stored).encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class Dynamics:
    """One invocation's."""

    registrar: Registrar
    document: Document
    ignored: Counter[str] = field(default_factory=Counter)  # ops that changed nothing, by reason

    def hear(self, control: DynamicOp) -> None:
        """Takes in what a peer says; what can't be read is counted. Raises `BadRoute` for who may not say anything."""
        self.registrar.check_sender(control.sender)
        try:
            op = decode_op(control.body)
        except Malformed:
            self.ignored[Ignored.MALFORMED] += 1  # of a newer version, perhaps: heartbeats tell what it would have
            return
        self.sync(heard={op.exchange: [Heard(control.sender.tag, op)]})

    def sync(self, *, heard: Mapping[str, Sequence[Heard]] | None = None, heartbeat: bool = False) -> None:
        """Brings everything in step with the registry and the bindings; where it is so already, two small reads."""
        registry, bindings = self.registrar.registry(), self.registrar.exchanges.bindings()
        states, sendings = self._taken(registry, bindings, heard or {}, heartbeat=heartbeat)
        for exchange, routes in states.items():
            self._bind(registry, bindings, exchange, routes)
        self._send(registry, sendings)

    def ways(self) -> Mapping[str, list[Way]]:
        """Who wants what, by which way, active or standing by: by exchange."""
        content, _ = self.document.load()
        return {exchange: ways_of(routes) for exchange, routes in decode_states(content).items()}

    def _taken(
        self, registry: Registry, bound: Bindings, heard: Mapping[str, Sequence[Heard]], *, heartbeat: bool
    ) -> tuple[States, list[Sending]]:
        for _ in range(MAX_RACES):
            content, version = self.document.load()
            before = decode_states(content)
            ignored: Counter[str] = Counter()
            after, sendings = dict(before), list[Sending]()
            for exchange in sorted({each.bridge.src for each in _dynamic(registry)} | before.keys() | heard.keys()):
                routes = before.get(exchange) or DynamicRoutes(here=registry.here, exchange=exchange)
                for event in self._events(registry, bound, routes, heard.get(exchange, ()), heartbeat=heartbeat):
                    taken = step(routes, event)
                    routes = taken.routes
                    sendings += taken.sendings
                    if taken.ignored is not None:
                        ignored[taken.ignored] += 1
                after[exchange] = routes
            after = {name: routes for name, routes in after.items() if routes.pulls or routes.served}
            if after == before or self.document.save(encode_states(after), after=version):
                self.ignored.update(ignored)
                # Of an exchange whose last route is gone there is a queue to be unbound, perhaps.
                names = before.keys() | after.keys()
                return {name: after.get(name, _nothing(registry, name)) for name in names}, sendings
        raise TooBusy(f"lost {MAX_RACES} races to write the state of dynamic routes")

    def _events(
        self,
        registry: Registry,
        bound: Bindings,
        routes: DynamicRoutes,
        heard: Sequence[Heard],
        *,
        heartbeat: bool,
    ) -> Iterator[Event]:
        exchange, now_ms = routes.exchange, self.registrar.now_ms()
        pulls = {each.bridge.name: each for each in _dynamic(registry) if _pulls(each, exchange)}
        served = {each.bridge.name: each for each in _dynamic(registry) if _serves(each, exchange)}
        yield from (PullRemoved(name) for name in routes.pulls.keys() - pulls.keys())
        yield from (ServedRemoved(name) for name in routes.served.keys() - served.keys())
        yield Surveyed(_local(registry, bound, exchange))
        for name in pulls.keys() - routes.pulls.keys():
            yield PullAdded(self._pull(registry, pulls[name]))
        for name in served.keys() - routes.served.keys():
            yield ServedAdded(self._served(registry, served[name]))
        for record in (*pulls.values(), *served.values()):
            link = registry.links[record.bridge.link]
            yield LinkTurned(record.bridge.link, up=link.carries, now_ms=now_ms)
        yield from heard
        if heartbeat:
            yield Heartbeat(now_ms)

    def _pull(self, registry: Registry, record: BridgeRecord) -> Pull:
        bridge, link = record.bridge, registry.links[record.bridge.link]
        return Pull(
            bridge=bridge.name,
            link=bridge.link,
            peer=link.link.peer,
            max_hops=bridge.max_hops,
            epoch=self.registrar.now_ms(),
            up=link.carries,
        )

    def _served(self, registry: Registry, record: BridgeRecord) -> Served:
        bridge, link = record.bridge, registry.links[record.bridge.link]
        return Served(
            bridge=bridge.name.removesuffix(SERVED_MARK + link.link.peer),
            link=bridge.link,
            peer=link.link.peer,
            tag=bridge.tag or registry.here,
            epoch=self.registrar.now_ms(),
            up=link.carries,
            expires_ms=None if bridge.expires_s is None else bridge.expires_s * 1000,
            max_hops=bridge.max_hops,
        )

    def _bind(self, registry: Registry, bound: Bindings, exchange: str, routes: DynamicRoutes) -> None:
        """Lets each route's queue be bound by what is wanted over it, and by nothing else."""
        type_ = next((each.type for each in bound.exchanges if each.name == exchange), ExchangeType.TOPIC)
        for record in registry.bridges.values():
            if not record.bridge.dynamic or record.bridge.src != exchange or record.queue is None:
                continue
            name, queue = record.bridge.name, record.queue
            takes_in = not (record.closing or record.draining or registry.links[record.bridge.link].status.draining)
            is_wanted = name in routes.served and takes_in
            wants = wants_of(routes, name) if is_wanted else frozenset[Want]()
            destination = bridge_destination(registry, record, url=self.registrar.queues.url(queue))
            if is_wanted and destination.crossing is not None:
                excludes = destination.crossing.excludes | excludes_of(routes, name)
                destination = replace(destination, crossing=replace(destination.crossing, excludes=excludes))
            bindings = bindings_for(wants, exchange=exchange, type_=type_, queue=queue)
            self.registrar.exchanges.change(bound_exactly(destination, bindings))

    def _send(self, registry: Registry, sendings: Sequence[Sending]) -> None:
        """Tells the peers; what can't be told now is asked for later."""
        silent: set[str] = set()
        for sending in sendings:
            record = registry.links.get(sending.link)
            if record is None or sending.link in silent:
                continue
            control = DynamicOp(link=sending.link, sender=self.registrar.here, body=encode_op(sending.op))
            endpoint = record.link.endpoints[record.status.endpoint % len(record.link.endpoints)]
            try:
                self.registrar.peers.tell(record.link, endpoint, encode_control(control))
            except PeerUnreachable as error:
                silent.add(sending.link)
                self.registrar.take_in([LinkHappened(sending.link, Unreachable(str(error)))])
            except PeerRefused as error:
                silent.add(sending.link)
                self.registrar.take_in([LinkHappened(sending.link, Refused(str(error)))])


def _dynamic(registry: Registry) -> list[BridgeRecord]:
    return [record for record in registry.bridges.values() if record.bridge.dynamic and not record.closing]


def _pulls(record: BridgeRecord, exchange: str) -> bool:
    return not record.bridge.src_is_local and record.bridge.src == exchange


def _serves(record: BridgeRecord, exchange: str) -> bool:
    return record.bridge.src_is_local and record.bridge.src == exchange and record.queue is not None


def _nothing(registry: Registry, exchange: str) -> DynamicRoutes:
    return DynamicRoutes(here=registry.here, exchange=exchange)


def _local(registry: Registry, bound: Bindings, exchange: str) -> frozenset[tuple[str, Want]]:
    """What the site's own queues want, those of other kinds of routes among them."""
    dynamic = {record.queue for record in registry.bridges.values() if record.bridge.dynamic}
    return frozenset(
        (binding.queue, Want.of(binding.key, binding.arguments))
        for binding in bound.of(exchange)
        if binding.queue not in dynamic
    )
