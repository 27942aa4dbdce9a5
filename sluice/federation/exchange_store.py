"""A site's exchanges and bindings, changed one at a time by whoever wins, and read by version."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from sluice.errors import BadBinding, SluiceError
from sluice.federation.matching.bindings import Binding, BindingId, check, is_new
from sluice.federation.matching.exchanges import STANDARD_EXCHANGES, Exchange
from sluice.federation.matching.routing import Destination, RoutingTable
from sluice.federation.ports import Document

MAX_RACES = 50


class TooBusy(SluiceError):
    """Written by too many at once; the request may be repeated."""


def decode_table(snapshot: bytes | None) -> RoutingTable:
    """The table of a snapshot; what every site begins with where there is none. Raises `BadSnapshot`."""
    if snapshot is not None:
        return RoutingTable.from_bytes(snapshot)
    return RoutingTable.of(version=0, exchanges=STANDARD_EXCHANGES, queues=(), bindings=())


Change = Callable[[RoutingTable], RoutingTable]


@dataclass(frozen=True, slots=True)
class ExchangeBook:
    """The routing table in its document. Every change raises `BadBinding` where it can't be."""

    document: Document

    def table(self) -> RoutingTable:
        """As it stands."""
        return decode_table(self.document.load()[0])

    def change(self, change: Change) -> RoutingTable:
        """The table after the change; nothing is written where nothing changes."""
        for _ in range(MAX_RACES):
            snapshot, version = self.document.load()
            before = decode_table(snapshot)
            after = change(before)
            if after is before or self.document.save(replace(after, version=version + 1).to_bytes(), after=version):
                return after
        raise TooBusy(f"lost {MAX_RACES} races to write the bindings")


def with_exchange(exchange: Exchange) -> Change:
    """Adds an exchange; one that is there already stays."""

    def change(table: RoutingTable) -> RoutingTable:
        existing = next((each for each in table.exchanges if each.name == exchange.name), None)
        if existing == exchange:
            return table
        if existing is not None:
            raise BadBinding(f"{exchange.name}: there is an exchange of this name, of type {existing.type}")
        return _table(table, exchanges=[*table.exchanges, exchange])

    return change


def without_exchange(name: str) -> Change:
    """Takes an exchange away that nothing is bound to."""

    def change(table: RoutingTable) -> RoutingTable:
        if name in {each.name for each in STANDARD_EXCHANGES}:
            raise BadBinding(f"{name}: every site has this exchange")
        if name not in {each.name for each in table.exchanges}:
            raise BadBinding(f"no such exchange: {name}")
        bound = sum(binding.exchange == name for binding in table.bindings)
        if bound:
            raise BadBinding(f"{name} has {bound} bindings: unbind them first")
        return _table(table, exchanges=[each for each in table.exchanges if each.name != name])

    return change


def with_binding(binding: Binding, destination: Destination) -> Change:
    """Binds a queue; the same binding once more changes nothing but what is known of the queue."""

    def change(table: RoutingTable) -> RoutingTable:
        exchange = next((each for each in table.exchanges if each.name == binding.exchange), None)
        if exchange is None:
            raise BadBinding(f"no such exchange: {binding.exchange}")
        check(binding, exchange)
        known = next((queue for queue in table.queues if queue.queue == destination.queue), None)
        existing = next((each for each in table.bindings if each.id == binding.id), None)
        adds = is_new(binding, existing)
        if not adds and known == destination:
            return table
        queues = [queue for queue in table.queues if queue.queue != destination.queue]
        bindings = [*table.bindings, binding] if adds else table.bindings
        return _table(table, queues=[*queues, destination], bindings=bindings)

    return change


def without_bindings(wanted: Callable[[Binding], bool]) -> Change:
    """Takes bindings away; a queue with none left is forgotten."""

    def change(table: RoutingTable) -> RoutingTable:
        bindings = [binding for binding in table.bindings if not wanted(binding)]
        if len(bindings) == len(table.bindings):
            return table
        bound = {binding.queue for binding in bindings}
        return _table(table, queues=[queue for queue in table.queues if queue.queue in bound], bindings=bindings)

    return change


def without_binding(id_: BindingId) -> Change:
    """Takes one binding away; one that isn't there is an error."""
    remove = without_bindings(lambda binding: binding.id == id_)

    def change(table: RoutingTable) -> RoutingTable:
        after = remove(table)
        if after is table:
            exchange, queue, key = id_
            raise BadBinding(f"{queue} is not bound to {exchange} by {key!r}")
        return after

    return change


def bound_exactly(destination: Destination, bindings: Sequence[Binding]) -> Change:
    """Lets a queue have these bindings and no others."""

    def change(table: RoutingTable) -> RoutingTable:
        queue = destination.queue
        known = next((each for each in table.queues if each.queue == queue), None)
        before = [binding for binding in table.bindings if binding.queue == queue]
        if before == list(bindings) and (known == destination or not bindings):
            return table
        others = [each for each in table.queues if each.queue != queue]
        kept = [binding for binding in table.bindings if binding.queue != queue]
        return _table(table, queues=[*others, destination] if bindings else others, bindings=[*kept, *bindings])

    return change


def feeding(queues: Iterable[str]) -> Change:
    """Notes which bound queues are read by queue routes."""
    fed = frozenset(queues)

    def change(table: RoutingTable) -> RoutingTable:
        noted = [replace(queue, feeds_route=queue.queue in fed) for queue in table.queues]
        return table if noted == list(table.queues) else _table(table, queues=noted)

    return change


def _table(
    table: RoutingTable,
    *,
    exchanges: Iterable[Exchange] | None = None,
    queues: Iterable[Destination] | None = None,
    bindings: Iterable[Binding] | None = None,
) -> RoutingTable:
    return RoutingTable.of(
        version=table.version,
        exchanges=table.exchanges if exchanges is None else exchanges,
        queues=table.queues if queues is None else queues,
        bindings=table.bindings if bindings is None else bindings,
    )
