"""The routing table: a site's bindings, compiled for many messages. Pure.

It is made of a snapshot once, and takes in what changes; what is stored is `bindings`'.
"""

from sluice.errors import BadBinding, UnknownExchange
from sluice.federation.matching.bindings import Bindings, BindingsChange, BindingsReplica, Destination
from sluice.federation.matching.exchanges import Exchange, way
from sluice.federation.matching.indexes import BindingIndex, BoundKeys, Publication


class RoutingTable(BindingsReplica):
    """Where one site's messages go."""

    __slots__ = ("_indexes", "_ways")

    def __init__(self, bindings: Bindings) -> None:
        """Compile all of the bindings. Raises `BadBinding` for what refers to what isn't there."""
        self._indexes: dict[str, BindingIndex] = {}
        self._ways: dict[str, tuple[BindingIndex, ...]] = {}
        super().__init__(bindings)

    def route(self, publication: Publication) -> tuple[Destination, ...]:
        """Find the queues that get a copy, each once, in order of names.

        None, where neither the exchange nor an alternate has a match. Whether a bridge's queue may have it is the
        bridge's `crossing` to say: a message that is held back there counts as routed, and goes to no alternate. Raises
        `UnknownExchange`.
        """
        indexes = self._ways.get(publication.exchange)
        if indexes is None:
            raise UnknownExchange(publication.exchange)
        for index in indexes:
            queues = index.matches(publication)
            if queues:
                return tuple([self._queues[queue] for queue in sorted(queues)])
        return ()

    def apply(self, change: BindingsChange) -> None:
        """Take in the next version, as `Replica` says."""
        for exchange in change.exchanges:
            self._indexes.setdefault(exchange.name, exchange.type.index_class())
        super().apply(change)
        for name in change.gone_exchanges:
            self._indexes.pop(name, None)
        if change.exchanges or change.gone_exchanges:
            ways = {name: way(name, self._exchanges) for name in self._exchanges}
            self._ways = {name: tuple(self._indexes[stop] for stop in stops) for name, stops in ways.items()}

    def _bind(self, exchange: Exchange, queue: str, keys: BoundKeys) -> None:
        self._indexes[exchange.name].add(queue, keys)

    def _unbind(self, exchange: Exchange, queue: str, keys: BoundKeys) -> None:
        try:
            self._indexes[exchange.name].remove(queue, keys)
        except KeyError as error:
            raise BadBinding(f"{queue} is not bound to {exchange.name} by all of it: {error}") from None
