"""Carries dynamic routes: what the registry and the bindings have become goes in, bindings and ops to peers come out.

All of it follows from what is stored: whoever comes by, after whatever crash, goes on where the last one stopped. What
was to be told and wasn't is asked for after the next heartbeat.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET, Raw
from msgspec.structs import replace

from sluice.codec import encode
from sluice.errors import Malformed, PeerRefused, PeerUnreachable
from sluice.federation.dynamic.ops import NO_WANTS, BindingAdvertisement, Wants, bindings_for, decode_op
from sluice.federation.dynamic.paths import origins_of, wants_of, ways_in_use, ways_of
from sluice.federation.dynamic.state import (
    ROUTES,
    DynamicEvent,
    DynamicRoutes,
    Ignored,
    Pull,
    RoutesByExchange,
    Sending,
    Served,
)
from sluice.federation.dynamic.steps import (
    add_pull,
    add_served,
    beat,
    hear,
    remove_pull,
    remove_served,
    step,
    survey,
    turn_link,
)
from sluice.federation.exchange_store import Change, all_of, bound_exactly
from sluice.federation.links.messages import DynamicMessage, encode_control
from sluice.federation.links.registry import SERVED_MARK, BridgeRecord, Registry, bridge_destination
from sluice.federation.links.states import Intent
from sluice.federation.links.transitions import tell_link
from sluice.federation.matching.bindings import Destination, SiteBindings
from sluice.federation.matching.exchanges import ExchangeType
from sluice.federation.matching.typed_values import of_stored
from sluice.federation.operations import WaysView
from sluice.federation.registrar import LinkService, news_of
from sluice.federation.stored import Stored

if TYPE_CHECKING:  # at run time the shell is given its adapters, and imports none
    from sluice.aws.documents import DynamoDocument


class Dynamics(msgspec.Struct, frozen=True, kw_only=True):
    """One invocation's."""

    registrar: LinkService
    document: "DynamoDocument"
    ignored: Counter[str] = msgspec.field(default_factory=Counter)  # ops that changed nothing, by reason

    def hear(self, message: DynamicMessage, *, sender_id: str) -> None:
        """Take in what a peer says; what can't be read is counted. Raises `BadRoute` for who may not say anything."""
        self.registrar.checked_sender(message.sender, sender_id=sender_id)
        try:
            op = decode_op(bytes(message.said))
        except Malformed:
            self.ignored[Ignored.MALFORMED] += 1  # of a newer version, perhaps: heartbeats tell what it would have
            return
        type_ = exchange_type(self.registrar.exchanges.bindings(), op.exchange)
        self.sync(heard={op.exchange: [hear(message.sender.tag, op, type_)]})

    def sync(self, *, heard: Mapping[str, Sequence[DynamicEvent]] | None = None, heartbeat: bool = False) -> None:
        """Brings everything in step with the registry and the bindings; where it is so already, two small reads.

        Raises `TooBusy`, and what the registrar raises.
        """
        registry, bound = self.registrar.registry(), self.registrar.exchanges.bindings()
        states, sendings = self._taken(registry, bound, heard or {}, heartbeat=heartbeat)
        for exchange, routes in states.items():
            binding = self._binding(registry, routes, exchange_type(bound, exchange))
            self.registrar.exchanges.change(all_of(tuple(binding)))
        self._send(registry, sendings)

    @property
    def routes(self) -> Stored[RoutesByExchange]:
        """The state of dynamic routes, by exchange."""
        return Stored(self.document, ROUTES, dict)

    def ways(self) -> WaysView:
        """Return who wants what, by which way, active or standing by. Raises `BadSnapshot`."""
        return WaysView(ways=tuple(way for routes in self.routes.value().values() for way in ways_of(routes)))

    def _taken(
        self, registry: Registry, bound: SiteBindings, heard: Mapping[str, Sequence[DynamicEvent]], *, heartbeat: bool
    ) -> tuple[RoutesByExchange, list[Sending]]:
        records = [each for each in registry.bridges.values() if each.bridge.dynamic and not each.closing]
        ignored: Counter[str] = Counter()
        sendings: list[Sending] = []
        names: set[str] = set()

        def change(before: RoutesByExchange) -> RoutesByExchange:
            ignored.clear()
            sendings.clear()
            names.update(before)
            after = dict(before)
            for exchange in sorted({each.bridge.src for each in records} | before.keys() | heard.keys()):
                routes = before.get(exchange) or DynamicRoutes(here=registry.here, exchange=exchange)
                of_exchange = [each for each in records if each.bridge.src == exchange]
                events = [
                    *self._changes(registry, of_exchange, routes, _local(registry, bound, exchange)),
                    *heard.get(exchange, ()),
                    *([beat(self.registrar.now_ms())] if heartbeat else []),
                ]
                for event in events:
                    taken = step(routes, event)
                    routes = taken.routes
                    sendings.extend(taken.sendings)
                    if taken.ignored is not None:
                        ignored[taken.ignored] += 1
                after[exchange] = routes
            return {name: routes for name, routes in after.items() if routes.pulls or routes.served}

        after = self.routes.change(change)
        self.ignored.update(ignored)
        # Of an exchange whose last route is gone there is a queue to be unbound, perhaps.
        return {name: DynamicRoutes(here=registry.here, exchange=name) for name in names} | after, sendings

    def _changes(
        self, registry: Registry, records: Sequence[BridgeRecord], routes: DynamicRoutes, local: Wants
    ) -> Iterator[DynamicEvent]:
        """Find what has changed in the registry and among the bindings since the routes were in step with them."""
        now_ms = self.registrar.now_ms()
        pulls = {each.bridge.name: each for each in records if not each.bridge.src_is_local}
        # One whose queue is being made anew is served all the same: what is wanted over it is known already.
        served = {
            each.bridge.name: each
            for each in records
            if each.bridge.src_is_local and (each.queue is not None or each.bridge.name in routes.served)
        }
        yield from (remove_pull(name) for name in routes.pulls.keys() - pulls.keys())
        yield from (remove_served(name) for name in routes.served.keys() - served.keys())
        yield survey(local)
        for name in pulls.keys() - routes.pulls.keys():
            bridge, link = pulls[name].bridge, registry.links[pulls[name].bridge.link]
            pull = Pull(
                bridge=name,
                link=bridge.link,
                peer=link.link.peer,
                max_hops=bridge.max_hops,
                epoch=now_ms,
                up=link.carries,
            )
            yield add_pull(pull)
        for name in served.keys() - routes.served.keys():
            bridge, link = served[name].bridge, registry.links[served[name].bridge.link]
            added = Served(
                bridge=name.removesuffix(SERVED_MARK + link.link.peer),
                link=bridge.link,
                peer=link.link.peer,
                tag=bridge.tag or registry.here,
                epoch=now_ms,
                up=link.carries,
                expires_ms=None if bridge.expires_s is None else bridge.expires_s * 1000,
                max_hops=bridge.max_hops,
            )
            yield add_served(added)
        for record in (*pulls.values(), *served.values()):
            link = registry.links[record.bridge.link]
            yield turn_link(record.bridge.link, up=link.carries, now_ms=now_ms)

    def _binding(self, registry: Registry, routes: DynamicRoutes, type_: ExchangeType) -> Iterator[Change]:
        """Let each route's queue be bound by what is wanted over it, and by nothing else.

        All at once: a site whose way changes is at no moment reached by both, or by none.
        """
        ways = ways_in_use(routes)
        for name, record in registry.bridges.items():
            if not record.bridge.dynamic or record.bridge.src != routes.exchange or record.queue is None:
                continue
            drains = record.wanted is Intent.DRAINING or registry.links[record.bridge.link].status.draining
            is_wanted = name in routes.served and not (record.closing or drains)
            destination = bridge_destination(registry, record, url=self.registrar.works.queues.url(record.queue))
            if is_wanted and destination.crossing is not None:
                leading = replace(destination.crossing, origins=origins_of(ways, name))
                destination = replace(destination, crossing=leading)
            wants = wants_of(routes, name, ways) if is_wanted else NO_WANTS
            yield bound_exactly(
                destination, bindings_for(wants, exchange=routes.exchange, type_=type_, queue=record.queue)
            )

    def _send(self, registry: Registry, sendings: Sequence[Sending]) -> None:
        """Tells the peers; what can't be told now is asked for later."""
        silent: set[str] = set()
        for sending in sendings:
            record = registry.links.get(sending.link)
            if record is None or sending.link in silent:
                continue
            message = DynamicMessage(link=sending.link, sender=self.registrar.here, said=Raw(encode(sending.op)))
            try:
                self.registrar.peers.tell(record.link, record.endpoint, encode_control(message))
            except (PeerUnreachable, PeerRefused) as error:
                silent.add(sending.link)
                self.registrar.take_in([tell_link(sending.link, news_of(error))])


def exchange_type(bound: SiteBindings, exchange: str) -> ExchangeType:
    """Return the type of an exchange; of one that isn't there any more, one that takes any key."""
    return next((each.type for each in bound.exchanges if each.name == exchange), ExchangeType.TOPIC)


def _local(registry: Registry, bound: SiteBindings, exchange: str) -> Wants:
    """Return what the site's own queues want, those of other kinds of routes among them."""
    dynamic = {record.queue for record in registry.bridges.values() if record.bridge.dynamic}
    return frozenset(
        BindingAdvertisement.of(key, of_stored(arguments))
        for queue, keys in bound.keys_at(exchange).items()
        if queue not in dynamic and not _is_dynamic(bound.destination(queue))
        for key, arguments in keys.items()
    )


def _is_dynamic(destination: Destination | None) -> bool:
    """Whether a queue is a dynamic route's: also while it is being made anew, when no route says so."""
    crossing = None if destination is None else destination.crossing
    return crossing is not None and crossing.origins is not UNSET
