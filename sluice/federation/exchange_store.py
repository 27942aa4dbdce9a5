"""A site's exchanges and bindings, changed one at a time by whoever wins.

A change checks and writes what it changes, and nothing else: it costs by its own size.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Concatenate, ParamSpec

from msgspec.structs import replace

from sluice.errors import BadBinding, TooBusy
from sluice.federation.matching.bindings import (
    CHANGE,
    MAX_CHANGE_BYTES,
    Binding,
    BindingId,
    BindingsChange,
    Destination,
    Followed,
    SiteBindings,
    pack,
    parts_of,
)
from sluice.federation.matching.exchanges import STANDARD_EXCHANGES, Exchange, way
from sluice.federation.matching.indexes import Arguments, BoundKeys
from sluice.federation.matching.typed_values import same, to_stored
from sluice.federation.stored import MAX_RACES

if TYPE_CHECKING:  # at run time the shell is given its adapters, and imports none
    from sluice.aws.change_logs import DynamoChangeLog

P = ParamSpec("P")
Change = Callable[[SiteBindings], BindingsChange | None]  # None where nothing changes


@dataclass(slots=True)
class ExchangeStore:
    """The bindings in their log, kept in memory between invocations. Not for threads.

    Every change raises `BadBinding` where it can't be.
    """

    log: "DynamoChangeLog"
    _site: Followed[SiteBindings] = field(init=False)

    def __post_init__(self) -> None:
        """Begin with nothing: the first read takes the snapshot in."""
        self._site = Followed(self.log, SiteBindings)

    def bindings(self) -> SiteBindings:
        """Read the bindings as they stand; they change in place with the next read or change. Raises `BadSnapshot`."""
        return self._site.value()

    def change(self, change: Change) -> SiteBindings:
        """Change the bindings, and return them; nothing is written where nothing changes. Raises `TooBusy`."""
        for _ in range(MAX_RACES):
            site = self.bindings()
            made = change(site)
            if made is None:
                return site
            stored = CHANGE.pack(made)
            if len(stored) > MAX_CHANGE_BYTES:
                if self._save(made, site):
                    return self.bindings()
            elif self.log.append(stored, after=site.version):
                return self._site.advance(stored)
        raise TooBusy(f"lost {MAX_RACES} races to write the bindings")

    def _save(self, change: BindingsChange, site: SiteBindings) -> bool:
        """Write a bulk change that no item holds: whoever follows takes the snapshot in."""
        self._site = Followed(self.log, SiteBindings)  # were it not written, what is changed here is of no use
        after = site.version
        site.apply(change)
        site.version = after + 1
        return self.log.save(_packed(site), after=after, version=after + 1)

    def fold(self) -> bool:
        """Write a snapshot in place of the changes, once there are many: whether that was done. For a quiet moment."""
        site = self.bindings()
        return self.log.is_long and self.log.save(_packed(site), after=site.version, version=site.version)


def _packed(site: SiteBindings) -> bytes:
    return b"".join(map(pack, site.pages()))


def _change(
    make: Callable[Concatenate[SiteBindings, P], BindingsChange | None],
) -> Callable[P, Change]:
    """Let a change be described by all but the bindings that it is of."""
    return lambda *args, **options: lambda site: make(site, *args, **options)


@_change
def with_exchange(site: SiteBindings, exchange: Exchange) -> BindingsChange | None:
    """Add an exchange; one that is there already stays."""
    exchanges = {each.name: each for each in site.exchanges}
    existing = exchanges.setdefault(exchange.name, exchange)
    if existing != exchange:
        raise BadBinding(f"{exchange.name}: there is an exchange of this name, of type {existing.type}")
    if len(exchanges) == len(site.exchanges):
        return None
    way(exchange.name, exchanges)
    return BindingsChange(exchanges=(exchange,))


@_change
def without_exchange(site: SiteBindings, name: str) -> BindingsChange:
    """Take an exchange away that nothing is bound to, and that is no other's alternate."""
    if site.exchange(name) in STANDARD_EXCHANGES:
        raise BadBinding(f"{name}: every site has this exchange")
    bound = sum(map(len, site.keys_at(name).values()))
    if bound:
        raise BadBinding(f"{name} has {bound} bindings: unbind them first")
    users = [each.name for each in site.exchanges if each.alternate == name and each.name != name]
    if users:
        raise BadBinding(f"{name} is the alternate exchange of {', '.join(users)}")
    return BindingsChange(gone_exchanges=(name,))


@_change
def with_binding(
    site: SiteBindings, binding: Binding, destination: Destination, *, replaces: bool = False
) -> BindingsChange | None:
    """Bind a queue; the same binding once more changes nothing but what is known of the queue.

    One with other arguments is refused, but where this one `replaces` it, in one change.
    """
    queues = () if site.destination(binding.queue) == destination else (destination,)
    arguments = to_stored(binding.arguments)
    bound = {binding.exchange: {binding.queue: {binding.key: arguments}}}
    known = site.keys(binding.exchange, binding.queue).get(binding.key)
    if replaces and known is not None and not same(arguments, known):
        binding.check(site.exchange(binding.exchange).type)
        unbound = {binding.exchange: {binding.queue: {binding.key: known}}}
        return BindingsChange(queues=queues, unbound=unbound, bound=bound)
    if site.lacks(binding):
        return BindingsChange(queues=queues, bound=bound)
    return BindingsChange(queues=queues) if queues else None


@_change
def known_anew(site: SiteBindings, destination: Destination) -> BindingsChange | None:
    """Change what is known of a bound queue; one that isn't bound is left alone."""
    is_known = site.destination(destination.queue) in {None, destination}
    return None if is_known else BindingsChange(queues=(destination,))


@_change
def without_binding(site: SiteBindings, id_: BindingId, *, missing_ok: bool = False) -> BindingsChange | None:
    """Take one binding away; one that isn't there is an error unless `missing_ok`."""
    exchange, queue, key = id_
    keys = site.keys(exchange, queue)
    if key in keys:
        return _unbinding(site, queue, {exchange: {key: keys[key]}})
    if missing_ok:
        return None
    raise BadBinding(f"{queue} is not bound to {exchange} by {key!r}")


@_change
def without_queue(site: SiteBindings, queue: str) -> BindingsChange | None:
    """Take all of a queue's bindings away."""
    gone = site.keys_of(queue)
    return _unbinding(site, queue, gone) if gone else None


def _unbinding(site: SiteBindings, queue: str, gone: Mapping[str, BoundKeys]) -> BindingsChange:
    """Take these away; a queue that has no others is forgotten."""
    is_last = sum(map(len, gone.values())) == sum(map(len, site.keys_of(queue).values()))
    unbound = {exchange: {queue: keys} for exchange, keys in gone.items()}
    return BindingsChange(unbound=unbound, forgotten=(queue,) if is_last else ())


@_change
def bound_exactly(site: SiteBindings, destination: Destination, wanted: Sequence[Binding]) -> BindingsChange | None:
    """Let a queue have these bindings, of which no two have one id, and no others."""
    queue = destination.queue
    before = site.keys_of(queue)
    after: dict[str, dict[str, Arguments]] = {}
    for binding in wanted:
        if binding.arguments or binding.key not in before.get(binding.exchange, {}):  # most are there, and good
            binding.check(site.exchange(binding.exchange).type)
        after.setdefault(binding.exchange, {})[binding.key] = to_stored(binding.arguments)
    if not after:
        return _unbinding(site, queue, before) if before else None
    queues = () if site.destination(queue) == destination else (destination,)
    unbound, bound = _lacking(before, after, queue), _lacking(after, before, queue)
    if not (queues or unbound or bound):
        return None
    return BindingsChange(queues=queues, unbound=unbound, bound=bound)


@_change
def all_of(site: SiteBindings, changes: Sequence[Change]) -> BindingsChange | None:
    """Make changes of different queues' bindings at once."""
    made = [each for each in (one(site) for one in changes) if each is not None]
    if not made:
        return None
    return BindingsChange(
        queues=tuple(chain.from_iterable(each.queues for each in made)),
        unbound=_merged(each.unbound for each in made),
        bound=_merged(each.bound for each in made),
        forgotten=tuple(chain.from_iterable(each.forgotten for each in made)),
    )


def _merged(parts: Iterable[Mapping[str, Mapping[str, BoundKeys]]]) -> dict[str, dict[str, BoundKeys]]:
    merged: dict[str, dict[str, BoundKeys]] = {}
    for exchange, queue, keys in chain.from_iterable(map(parts_of, parts)):
        merged.setdefault(exchange, {})[queue] = keys
    return merged


def _lacking(
    some: Mapping[str, BoundKeys], others: Mapping[str, BoundKeys], queue: str
) -> dict[str, dict[str, BoundKeys]]:
    """Find the keys that the others lack, or have with other arguments: by exchange and queue."""
    found: dict[str, dict[str, BoundKeys]] = {}
    for exchange, keys in some.items():
        known = others.get(exchange, {})
        lacking = {key: each for key, each in keys.items() if key not in known or not same(each, known[key])}
        if lacking:
            found[exchange] = {queue: lacking}
    return found


@_change
def feeding(site: SiteBindings, queues: Iterable[str]) -> BindingsChange | None:
    """Note which bound queues are read by queue routes."""
    fed = frozenset(queues)
    noted = []
    for queue in sorted(fed ^ site.fed):
        destination = site.destination(queue)
        if destination is not None:
            noted.append(replace(destination, feeds_route=queue in fed))
    return BindingsChange(queues=tuple(noted)) if noted else None
