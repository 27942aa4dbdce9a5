"""Runs dynamic routes: turns changes of registry and bindings into queue bindings and ops for peers.

All results follow from stored state, so any invocation can continue after a crash. If ops weren't sent, the peer
requests a snapshot after the next heartbeat.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET, Raw
from msgspec.structs import replace

from sluice.codec import encode
from sluice.errors import Malformed, PeerRefused, PeerUnreachable
from sluice.federation.dynamic import ops, steps
from sluice.federation.dynamic.paths import choose_bridges_in_use, collect_advertised_bindings, find_origins, list_paths
from sluice.federation.dynamic.state import (
    ROUTES,
    DynamicEvent,
    DynamicRoutes,
    IgnoredReason,
    OutgoingOp,
    PulledRoute,
    RoutesByExchange,
    ServedRoute,
)
from sluice.federation.exchange_store import replace_bindings
from sluice.federation.link_service import LinkService, to_link_update
from sluice.federation.links.messages import DynamicMessage, encode_control
from sluice.federation.links.registry import SERVED_MARK, BridgeRecord, Registry, make_destination
from sluice.federation.links.states import Intent
from sluice.federation.links.transitions import update_link
from sluice.federation.matching.bindings import Binding, Destination, SiteBindings
from sluice.federation.matching.exchanges import ExchangeType
from sluice.federation.matching.typed_values import from_stored
from sluice.federation.operations import PathsView
from sluice.federation.stored import DocumentStore

if TYPE_CHECKING:  # Adapters are passed in as arguments, so their classes are only imported for type checking.
    from sluice.aws.documents import DynamoDocument

MAX_AHEAD_MS = 15 * 60_000  # A peer's clock, which sets the epochs of its bridges, may be ahead by this time.


class DynamicRouteService(msgspec.Struct, frozen=True, kw_only=True):
    """Runs dynamic routes during one invocation."""

    link_service: LinkService
    document: "DynamoDocument"
    ignored: Counter[str] = msgspec.field(default_factory=Counter)  # number of ignored ops, by reason

    def receive(self, message: DynamicMessage, *, sender_id: str) -> None:
        """Process a peer's op. Malformed ops are only counted. Raises `BadRoute` if the sender isn't a known peer."""
        self.link_service.verify_sender(message.sender, sender_id=sender_id)
        try:
            op = ops.decode_op(bytes(message.op))
        except Malformed:
            # A newer release may have sent this op. If it matters, later digests differ, and a snapshot is requested.
            self.ignored[IgnoredReason.MALFORMED] += 1
            return
        if op.epoch > self.link_service.now_ms() + MAX_AHEAD_MS:
            self.ignored[IgnoredReason.EPOCH] += 1  # a future epoch would hide the peer's later bridges
            return
        type_ = find_exchange_type(self.link_service.exchanges.bindings(), op.exchange)
        self.sync(events={op.exchange: [steps.receive_op(message.sender.tag, op, type_)]})

    def sync(self, *, events: Mapping[str, Sequence[DynamicEvent]] | None = None, is_heartbeat: bool = False) -> None:
        """Update dynamic routes after changes of registry and bindings. Without changes this costs two small reads.

        Raises `TooBusy`, and the errors of the link service.
        """
        registry, bound = self.link_service.registry(), self.link_service.exchanges.bindings()
        states, outgoing_ops = self._apply_events(registry, bound, events or {}, is_heartbeat=is_heartbeat)
        for exchange, routes in states.items():
            queues = self._choose_bindings(registry, routes, find_exchange_type(bound, exchange))
            self.link_service.exchanges.change(replace_bindings(*queues))
        unreachable_links: set[str] = set()  # links over which sending failed; their peers request missing ops later
        for sending in outgoing_ops:
            record = registry.links.get(sending.link)
            if record is None or sending.link in unreachable_links:
                continue
            message = DynamicMessage(link=sending.link, sender=self.link_service.here, op=Raw(encode(sending.op)))
            try:
                self.link_service.peers.send_control_message(record.link, record.endpoint, encode_control(message))
            except (PeerUnreachable, PeerRefused) as error:
                unreachable_links.add(sending.link)
                self.link_service.save_changes([update_link(sending.link, to_link_update(error))])

    @property
    def routes(self) -> DocumentStore[RoutesByExchange]:
        """The stored state of dynamic routes, by exchange."""
        return DocumentStore(self.document, ROUTES, dict)

    def paths(self) -> PathsView:
        """Return all paths of dynamic routes, active and on standby. Raises `BadSnapshot`."""
        return PathsView(paths=tuple(path for routes in self.routes.value().values() for path in list_paths(routes)))

    def _apply_events(
        self,
        registry: Registry,
        bound: SiteBindings,
        peer_events: Mapping[str, Sequence[DynamicEvent]],
        *,
        is_heartbeat: bool,
    ) -> tuple[RoutesByExchange, list[OutgoingOp]]:
        records = [record for record in registry.bridges.values() if record.bridge.dynamic and not record.closing]
        ignored_counts: Counter[str] = Counter()
        outgoing_ops: list[OutgoingOp] = []
        exchange_names: set[str] = set()

        def change(before: RoutesByExchange) -> RoutesByExchange:
            ignored_counts.clear()
            outgoing_ops.clear()
            exchange_names.update(before)
            after = dict(before)
            for exchange in sorted({record.bridge.src for record in records} | before.keys() | peer_events.keys()):
                routes = before.get(exchange) or DynamicRoutes(here=registry.here, exchange=exchange)
                of_exchange = [record for record in records if record.bridge.src == exchange]
                events = [
                    *self._derive_events(
                        registry, of_exchange, routes, _collect_local_bindings(registry, bound, exchange)
                    ),
                    *peer_events.get(exchange, ()),
                    *([steps.handle_heartbeat(self.link_service.now_ms())] if is_heartbeat else []),
                ]
                for event in events:
                    taken = steps.step(routes, event)
                    routes = taken.routes
                    outgoing_ops.extend(taken.outgoing_ops)
                    if taken.ignored is not None:
                        ignored_counts[taken.ignored] += 1
                after[exchange] = routes
            return {name: routes for name, routes in after.items() if routes.pulls or routes.served}

        after = self.routes.change(change)
        self.ignored.update(ignored_counts)
        # If an exchange has lost its last route, that route's bridge queue may still have to be unbound.
        return {name: DynamicRoutes(here=registry.here, exchange=name) for name in exchange_names} | after, outgoing_ops

    def _derive_events(
        self,
        registry: Registry,
        records: Sequence[BridgeRecord],
        routes: DynamicRoutes,
        local: ops.BindingAdvertisements,
    ) -> Iterator[DynamicEvent]:
        """Yield the events for changes of registry and bindings since the last run."""
        now_ms = self.link_service.now_ms()
        pulls = {record.bridge.name: record for record in records if not record.bridge.src_is_local}
        # A bridge is still served while its queue is being recreated, because its advertised bindings are known.
        served = {
            record.bridge.name: record
            for record in records
            if record.bridge.src_is_local and (record.queue is not None or record.bridge.name in routes.served)
        }
        yield from (steps.remove_pull(name) for name in routes.pulls.keys() - pulls.keys())
        yield from (steps.remove_served(name) for name in routes.served.keys() - served.keys())
        yield steps.set_local_bindings(local)
        for name in pulls.keys() - routes.pulls.keys():
            bridge, link = pulls[name].bridge, registry.links[pulls[name].bridge.link]
            pull = PulledRoute(
                bridge=name,
                link=bridge.link,
                peer=link.link.peer,
                max_hops=bridge.max_hops,
                epoch=now_ms,
                up=link.carries,
            )
            yield steps.add_pull(pull)
        for name in served.keys() - routes.served.keys():
            bridge, link = served[name].bridge, registry.links[served[name].bridge.link]
            added = ServedRoute(
                bridge=name.removesuffix(SERVED_MARK + link.link.peer),
                link=bridge.link,
                peer=link.link.peer,
                tag=bridge.tag or registry.here,
                epoch=now_ms,
                up=link.carries,
                expires_ms=None if bridge.expires_s is None else bridge.expires_s * 1000,
                max_hops=bridge.max_hops,
            )
            yield steps.add_served(added)
        peers = self.link_service.known_peers.value() if served else {}
        for name, record in served.items():
            peer = peers.get(registry.links[record.bridge.link].link.peer)
            yield steps.set_leads(name, () if peer is None else peer.leads)
        for record in (*pulls.values(), *served.values()):
            link = registry.links[record.bridge.link]
            yield steps.set_link_up(record.bridge.link, up=link.carries, now_ms=now_ms)

    def _choose_bindings(
        self, registry: Registry, routes: DynamicRoutes, type_: ExchangeType
    ) -> Iterator[tuple[Destination, Sequence[Binding]]]:
        """Yield the queue of each route, with exactly the bindings that are advertised over the route.

        All of these bindings are replaced in one change, so each site is reached over exactly one queue even while a
        path changes.
        """
        bridges = choose_bridges_in_use(routes)
        for name, record in registry.bridges.items():
            if not record.bridge.dynamic or record.bridge.src != routes.exchange or record.queue is None:
                continue
            drains = record.intent is Intent.DRAINING or registry.links[record.bridge.link].status.draining
            is_wanted = name in routes.served and not (record.closing or drains)
            destination = make_destination(registry, record, url=self.link_service.provisioner.queues.url(record.queue))
            if is_wanted and destination.crossing is not None:
                leading = replace(destination.crossing, origins=find_origins(bridges, name))
                destination = replace(destination, crossing=leading)
            advertisements = collect_advertised_bindings(routes, name, bridges) if is_wanted else ops.NO_ADVERTISEMENTS
            yield (
                destination,
                ops.build_bindings(advertisements, exchange=routes.exchange, type_=type_, queue=record.queue),
            )


def find_exchange_type(bound: SiteBindings, exchange: str) -> ExchangeType:
    """Return the type of an exchange. A missing exchange counts as a topic exchange, which accepts any key."""
    return next((candidate.type for candidate in bound.exchanges if candidate.name == exchange), ExchangeType.TOPIC)


def _collect_local_bindings(registry: Registry, bound: SiteBindings, exchange: str) -> ops.BindingAdvertisements:
    """Return the exchange's bindings of all queues, except queues of dynamic routes."""
    dynamic = {record.queue for record in registry.bridges.values() if record.bridge.dynamic}
    advertisements: set[ops.BindingAdvertisement] = set()
    for queue, keys in bound.get_keys_by_queue(exchange).items():
        destination = bound.destination(queue)
        crossing = None if destination is None else destination.crossing
        # While a dynamic route's queue is being recreated, only its crossing shows that the route is dynamic.
        if queue not in dynamic and (crossing is None or crossing.origins is UNSET):
            advertisements |= {
                ops.BindingAdvertisement.from_binding(key, from_stored(value)) for key, value in keys.items()
            }
    return frozenset(advertisements)
