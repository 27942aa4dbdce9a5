"""Stores a site's exchanges and bindings. Changes that conflict with other invocations are retried.

A change reads and writes only the bindings that it affects, so its cost depends only on its own size.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Concatenate, ParamSpec

from msgspec.structs import replace

from sluice.errors import BadBinding, TooBusy
from sluice.federation.matching.bindings import (
    CHANGE,
    MAX_CHANGE_BYTES,
    Binding,
    BindingId,
    BindingsChange,
    CachedReplica,
    Destination,
    SiteBindings,
    encode_page,
)
from sluice.federation.matching.exchanges import STANDARD_EXCHANGES, Exchange, list_alternates
from sluice.federation.matching.indexes import Arguments, BoundKeys
from sluice.federation.matching.typed_values import have_same_values, to_stored
from sluice.federation.stored import MAX_RACES

if TYPE_CHECKING:  # Adapters are passed in as arguments, so their classes are only imported for type checking.
    from sluice.aws.change_logs import DynamoChangeLog

P = ParamSpec("P")
Change = Callable[[SiteBindings], BindingsChange | None]  # The function returns None if nothing changes.


class ExchangeStore:
    """A store of exchanges and bindings, cached between invocations. Not thread-safe.

    Every invalid change raises `BadBinding`.
    """

    def __init__(self, log: "DynamoChangeLog") -> None:
        """Start with an empty cache. The first read loads the snapshot."""
        self.log, self._site = log, CachedReplica(log, SiteBindings)

    def bindings(self) -> SiteBindings:
        """Return the current bindings, an object that later reads and changes update in place. Raises `BadSnapshot`."""
        return self._site.value()

    def change(self, change: Change) -> SiteBindings:
        """Apply a change and return the bindings. A change without effect isn't written. Raises `TooBusy`."""
        for _ in range(MAX_RACES):
            site = self.bindings()
            made = change(site)
            if made is None:
                return site
            stored = CHANGE.pack(made)
            if len(stored) > MAX_CHANGE_BYTES:
                # A change that is too large for a DynamoDB item is written as a snapshot, which other readers load.
                # The cache is reset first, because the replica is changed before the write, which may fail.
                self._site = CachedReplica(self.log, SiteBindings)
                after = site.version
                site.apply(made)
                site.version = after + 1
                if self.log.save(b"".join(map(encode_page, site.pages())), after=after, version=after + 1):
                    return self.bindings()
            elif self.log.append(stored, after=site.version):
                return self._site.advance(stored)
        raise TooBusy(f"lost {MAX_RACES} races to write the bindings")

    def save_snapshot(self) -> bool:
        """Replace a long log of changes with a snapshot. Returns whether a snapshot was written."""
        site = self.bindings()
        return self.log.is_long and self.log.save(
            b"".join(map(encode_page, site.pages())), after=site.version, version=site.version
        )


def _define_change(make: Callable[Concatenate[SiteBindings, P], BindingsChange | None]) -> Callable[P, Change]:
    """Turn a function of bindings and arguments into a function of the arguments only, which returns a change."""
    return lambda *args, **options: lambda site: make(site, *args, **options)


@_define_change
def add_exchange(site: SiteBindings, exchange: Exchange) -> BindingsChange | None:
    """Add an exchange. Idempotent."""
    exchanges = {candidate.name: candidate for candidate in site.exchanges}
    existing = exchanges.setdefault(exchange.name, exchange)
    if existing != exchange:
        raise BadBinding(f"{exchange.name}: there is an exchange of this name, of type {existing.type}")
    if len(exchanges) == len(site.exchanges):
        return None
    list_alternates(exchange.name, exchanges)
    return BindingsChange(exchanges=(exchange,))


@_define_change
def remove_exchange(site: SiteBindings, name: str) -> BindingsChange:
    """Remove an exchange. Raises `BadBinding` if it has bindings, or is another exchange's alternate."""
    if site.exchange(name) in STANDARD_EXCHANGES:
        raise BadBinding(f"{name}: every site has this exchange")
    bound = sum(map(len, site.get_keys_by_queue(name).values()))
    if bound:
        raise BadBinding(f"{name} has {bound} bindings: unbind them first")
    users = [other.name for other in site.exchanges if other.alternate == name and other.name != name]
    if users:
        raise BadBinding(f"{name} is the alternate exchange of {', '.join(users)}")
    return BindingsChange(gone_exchanges=(name,))


@_define_change
def add_binding(
    site: SiteBindings, binding: Binding, destination: Destination, *, replaces: bool = False
) -> BindingsChange | None:
    """Bind a queue, and update its destination. Idempotent.

    If the binding exists with other arguments, they are replaced if `replaces` is true; else the change is refused.
    """
    queues = () if site.destination(binding.queue) == destination else (destination,)
    arguments = to_stored(binding.arguments)
    bound = {binding.exchange: {binding.queue: {binding.key: arguments}}}
    known = site.keys(binding.exchange, binding.queue).get(binding.key)
    if replaces and known is not None and not have_same_values(arguments, known):
        binding.check(site.exchange(binding.exchange).type)
        unbound = {binding.exchange: {binding.queue: {binding.key: known}}}
        return BindingsChange(queues=queues, unbound=unbound, bound=bound)
    if site.is_missing(binding):
        return BindingsChange(queues=queues, bound=bound)
    return BindingsChange(queues=queues) if queues else None


@_define_change
def update_destination(site: SiteBindings, destination: Destination) -> BindingsChange | None:
    """Update a bound queue's destination. Does nothing if the queue isn't bound."""
    is_known = site.destination(destination.queue) in {None, destination}
    return None if is_known else BindingsChange(queues=(destination,))


@_define_change
def remove_binding(site: SiteBindings, id_: BindingId, *, missing_ok: bool = False) -> BindingsChange | None:
    """Remove a binding. Raises `BadBinding` if the binding is missing, unless `missing_ok`."""
    exchange, queue, key = id_
    keys = site.keys(exchange, queue)
    if key in keys:
        return _build_unbinding(site, queue, {exchange: {key: keys[key]}})
    if missing_ok:
        return None
    raise BadBinding(f"{queue} is not bound to {exchange} by {key!r}")


@_define_change
def remove_queue_bindings(site: SiteBindings, queue: str) -> BindingsChange | None:
    """Remove all bindings of a queue."""
    removed_keys = site.keys_by_exchange(queue)
    return _build_unbinding(site, queue, removed_keys) if removed_keys else None


def _build_unbinding(site: SiteBindings, queue: str, removed_keys: Mapping[str, BoundKeys]) -> BindingsChange:
    """Build the change that removes these keys. A queue without other bindings is removed from the bound queues."""
    is_last = sum(map(len, removed_keys.values())) == sum(map(len, site.keys_by_exchange(queue).values()))
    unbound = {exchange: {queue: keys} for exchange, keys in removed_keys.items()}
    return BindingsChange(unbound=unbound, forgotten=(queue,) if is_last else ())


@_define_change
def replace_bindings(site: SiteBindings, *wanted: tuple[Destination, Sequence[Binding]]) -> BindingsChange | None:
    """Replace all bindings of these queues in one change. No two new bindings of a queue may have the same id."""
    queues, forgotten = list[Destination](), list[str]()
    unbound, bound = dict[str, dict[str, BoundKeys]](), dict[str, dict[str, BoundKeys]]()
    for destination, bindings in wanted:
        queue = destination.queue
        before = site.keys_by_exchange(queue)
        after: dict[str, dict[str, Arguments]] = {}
        for binding in bindings:
            if binding.arguments or binding.key not in before.get(binding.exchange, {}):  # existing bindings are valid
                binding.check(site.exchange(binding.exchange).type)
            after.setdefault(binding.exchange, {})[binding.key] = to_stored(binding.arguments)
        if after and site.destination(queue) != destination:
            queues.append(destination)
        if before and not after:
            forgotten.append(queue)
        _add_missing(unbound, queue, before, after)
        _add_missing(bound, queue, after, before)
    if not (queues or unbound or bound):
        return None
    return BindingsChange(queues=tuple(queues), unbound=unbound, bound=bound, forgotten=tuple(forgotten))


def _add_missing(
    missing: dict[str, dict[str, BoundKeys]],
    queue: str,
    bound_keys: Mapping[str, BoundKeys],
    other_keys: Mapping[str, BoundKeys],
) -> None:
    """Add to `missing` those of the keys that `other_keys` doesn't have with the same arguments."""
    for exchange, keys in bound_keys.items():
        known = other_keys.get(exchange, {})
        lacking = {
            key: arguments
            for key, arguments in keys.items()
            if key not in known or not have_same_values(arguments, known[key])
        }
        if lacking:
            missing.setdefault(exchange, {})[queue] = lacking


@_define_change
def mark_feeding_queues(site: SiteBindings, queues: Iterable[str]) -> BindingsChange | None:
    """Mark exactly these bound queues as read by queue routes, and no others."""
    fed = frozenset(queues)
    noted = []
    for queue in sorted(fed ^ site.feeding_queues):
        destination = site.destination(queue)
        if destination is not None:
            noted.append(replace(destination, feeds_route=queue in fed))
    return BindingsChange(queues=tuple(noted)) if noted else None
