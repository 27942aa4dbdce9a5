"""A site's exchanges and bindings, changed one at a time by whoever wins.

A change checks what it changes, and compiles nothing.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from sluice.codec import encode
from sluice.errors import BadBinding, SluiceError
from sluice.federation.matching.bindings import (
    Arguments,
    Binding,
    BindingId,
    Bindings,
    BoundKeys,
    Destination,
    check,
    pack,
    unpack,
)
from sluice.federation.matching.exchanges import STANDARD_EXCHANGES, Exchange, way
from sluice.federation.matching.typed_values import to_stored
from sluice.federation.ports import Document

MAX_RACES = 50


class TooBusy(SluiceError):
    """Written by too many at once; the request may be repeated."""


Change = Callable[[Bindings], Bindings]


@dataclass(frozen=True, slots=True)
class ExchangeStore:
    """The bindings in their document. Every change raises `BadBinding` where it can't be."""

    document: Document

    def bindings(self) -> Bindings:
        """Read the bindings as they stand. Raises `BadSnapshot`."""
        return unpack(self.document.load()[0])

    def change(self, change: Change) -> Bindings:
        """Change the bindings, and return them; nothing is written where nothing changes. Raises `TooBusy`."""
        for _ in range(MAX_RACES):
            snapshot, version = self.document.load()
            before = unpack(snapshot)
            after = change(before)
            if after is before or self.document.save(pack(replace(after, version=version + 1)), after=version):
                return after
        raise TooBusy(f"lost {MAX_RACES} races to write the bindings")


def with_exchange(exchange: Exchange) -> Change:
    """Add an exchange; one that is there already stays."""

    def change(bindings: Bindings) -> Bindings:
        exchanges = {each.name: each for each in bindings.exchanges}
        existing = exchanges.setdefault(exchange.name, exchange)
        if existing != exchange:
            raise BadBinding(f"{exchange.name}: there is an exchange of this name, of type {existing.type}")
        if len(exchanges) == len(bindings.exchanges):
            return bindings
        way(exchange.name, exchanges)
        return replace(bindings, exchanges=tuple(exchanges.values()))

    return change


def without_exchange(name: str) -> Change:
    """Take an exchange away that nothing is bound to, and that is no other's alternate."""

    def change(bindings: Bindings) -> Bindings:
        gone = bindings.exchange(name)
        if gone in STANDARD_EXCHANGES:
            raise BadBinding(f"{name}: every site has this exchange")
        bound = sum(len(keys) for keys in bindings.bound.get(name, {}).values())
        if bound:
            raise BadBinding(f"{name} has {bound} bindings: unbind them first")
        kept = tuple(each for each in bindings.exchanges if each is not gone)
        users = [each.name for each in kept if each.alternate == name]
        if users:
            raise BadBinding(f"{name} is the alternate exchange of {', '.join(users)}")
        return replace(bindings, exchanges=kept)

    return change


def with_binding(binding: Binding, destination: Destination) -> Change:
    """Bind a queue; the same binding once more changes nothing but what is known of the queue."""

    def change(bindings: Bindings) -> Bindings:
        if not bindings.lacks(binding) and bindings.destination(binding.queue) == destination:
            return bindings
        keys = {**bindings.keys(binding.exchange, binding.queue), binding.key: to_stored(binding.arguments)}
        return _with_keys(bindings, binding.queue, {binding.exchange: keys}, destination)

    return change


def without_binding(id_: BindingId, *, missing_ok: bool = False) -> Change:
    """Take one binding away; one that isn't there is an error unless `missing_ok`."""
    exchange, queue, key = id_

    def change(bindings: Bindings) -> Bindings:
        keys = bindings.keys(exchange, queue)
        if key in keys:
            return _with_keys(bindings, queue, {exchange: {each: keys[each] for each in keys if each != key}})
        if missing_ok:
            return bindings
        raise BadBinding(f"{queue} is not bound to {exchange} by {key!r}")

    return change


def without_queue(queue: str) -> Change:
    """Take all of a queue's bindings away."""

    def change(bindings: Bindings) -> Bindings:
        gone: dict[str, BoundKeys] = {exchange: {} for exchange, queues in bindings.bound.items() if queue in queues}
        return _with_keys(bindings, queue, gone) if gone else bindings

    return change


def bound_exactly(destination: Destination, wanted: Sequence[Binding]) -> Change:
    """Let a queue have these bindings, of which no two have one id, and no others."""
    queue = destination.queue

    def change(bindings: Bindings) -> Bindings:
        before = {exchange: queues[queue] for exchange, queues in bindings.bound.items() if queue in queues}
        after: dict[str, dict[str, Arguments]] = {}
        for binding in wanted:
            check(binding, bindings.exchange(binding.exchange))
            after.setdefault(binding.exchange, {})[binding.key] = to_stored(binding.arguments)
        known = not wanted or bindings.destination(queue) == destination
        # As JSON, for to Python 1 and True are equal.
        if known and encode(before) == encode(after):
            return bindings
        gone: dict[str, BoundKeys] = {exchange: {} for exchange in before}
        return _with_keys(bindings, queue, gone | after, destination)

    return change


def feeding(queues: Iterable[str]) -> Change:
    """Note which bound queues are read by queue routes."""
    fed = frozenset(queues)

    def change(bindings: Bindings) -> Bindings:
        noted = tuple(replace(each, feeds_route=each.queue in fed) for each in bindings.queues)
        return bindings if noted == bindings.queues else replace(bindings, queues=noted)

    return change


def _with_keys(
    bindings: Bindings, queue: str, by_exchange: Mapping[str, BoundKeys], destination: Destination | None = None
) -> Bindings:
    """Set the queue's keys at these exchanges, and what is known of it; with none left anywhere it is forgotten."""
    bound = dict(bindings.bound)
    for exchange, keys in by_exchange.items():
        others = {name: each for name, each in bound.pop(exchange, {}).items() if name != queue}
        if others or keys:
            bound[exchange] = {**others, queue: keys} if keys else others
    queues = {each.queue: each for each in bindings.queues}
    if not any(queue in by_queue for by_queue in bound.values()):
        queues.pop(queue, None)
    elif destination is not None:
        queues[queue] = destination
    return replace(bindings, queues=tuple(queues.values()), bound=bound)
