"""Looks after what links and bindings have made: compares what should be there with what is.

What a route lacks is taken out of the registry, and so falls due again; a bound queue that is gone takes its bindings
with it; copies that were dead letters meanwhile go back into their queue. All of it is safe to do again.
"""

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from sluice.errors import CallFailed, DestinationFault, MappingGone, QueueGone
from sluice.federation.exchange_store import without_queue
from sluice.federation.links.links import RouteKind
from sluice.federation.links.registry import BridgeRecord, Registry
from sluice.federation.links.transitions import Change, note_things
from sluice.federation.links.watch import GONE_AFTER_MS, UNBOUND_AFTER_MS, WATCH, SiteWatch
from sluice.federation.matching.bindings import SiteBindings
from sluice.federation.registrar import LinkService
from sluice.federation.stored import Stored

if TYPE_CHECKING:  # at run time the shell is given its adapters, and imports none
    from sluice.aws.documents import DynamoDocument

MAX_LOOKED_AT = 50  # of the bound queues, at one sweep; where there are more, others each time
SWEEP_MS = 60_000
AGAIN_MS = 5_000

ENCRYPTION = frozenset({"KmsMasterKeyId", "SqsManagedSseEnabled"})

QUEUE, SETTINGS, MAPPING, BINDING = "queue", "queue's settings", "event source mapping", "binding"


class Mended(msgspec.Struct, frozen=True, kw_only=True):
    """What was found missing, and of which routes. `lost` messages, about, went with it."""

    what: str
    name: str
    routes: tuple[str, ...] = ()
    lost: int = 0


class DriftRepair(msgspec.Struct, frozen=True, kw_only=True):
    """One invocation's. `declared` are the queues that declared bindings name. `mended` is for whoever tells of it."""

    registrar: LinkService
    document: "DynamoDocument"
    declared: frozenset[str]
    redrive: Callable[[str], int]  # of dead letters of the queue with this name, back into it: how many
    mended: list[Mended] = msgspec.field(default_factory=list)

    def watch(self) -> SiteWatch:
        """Return what is known by the looks so far. Raises `BadSnapshot`."""
        return self._stored.value()

    def sweep(self) -> None:
        """Look at all that routes have, bound queues in turn, and what was missing. Raises `CallFailed`, at the end."""
        registry, bindings, watch = self.registrar.registry(), self.registrar.exchanges.bindings(), self.watch()
        read = {each.queue for each in _open(registry) if each.queue is not None}
        turn = self.registrar.now_ms() // SWEEP_MS
        self._look({*read, *bindings.some_queues(MAX_LOOKED_AT, turn=turn), *_unsettled(watch)})

        def kept(watch: SiteWatch) -> SiteWatch:
            """Forget what is of no use: queues that nobody reads or binds any more, routes that are gone."""
            queues = {
                name: queue
                for name, queue in watch.queues.items()
                if name in read or name in self.declared or bindings.destination(name) is not None
            }
            return SiteWatch(
                queues=queues, mends={name: each for name, each in watch.mends.items() if name in registry.bridges}
            )

        self._stored.change(kept)
        self._compare_routes()

    def look_again(self) -> None:
        """Look at what was missing a moment ago, and at whose dead letters are to go back."""
        names = _unsettled(self.watch())
        if names:
            self._look(names)

    def report(self, copies: Mapping[str, int]) -> None:
        """Take in that bound queues didn't exist when they were sent to, and how many copies are dead letters so."""
        bindings = self.registrar.exchanges.bindings()
        known = {name: number for name, number in copies.items() if bindings.destination(name) is not None}

        def missed(watch: SiteWatch) -> SiteWatch:
            for name, number in known.items():
                watch = watch.missed(name, number)
            return watch

        if known:
            self._stored.change(missed)
            self._look(known.keys())
            self.registrar.advance(ticks=False)

    def next_look_ms(self) -> int | None:
        """When somebody should look again, ms since 1970; None where the schedule will do."""
        registry, now_ms, times = self.registrar.registry(), self.registrar.now_ms(), list[int]()
        for name, each in self.watch().queues.items():
            since_ms = each.missing_since_ms
            if registry.bridges_reading(name) if since_ms is not None else each.undelivered:
                # Dead letters that nobody finds are looked for at growing intervals.
                none_found_ms = 0 if each.none_found_since_ms is None else now_ms - each.none_found_since_ms
                times.append(now_ms + max(AGAIN_MS, none_found_ms))
            elif since_ms is not None and since_ms + UNBOUND_AFTER_MS > now_ms:
                times.append(since_ms + UNBOUND_AFTER_MS)
        return min(times, default=None)

    @property
    def _stored(self) -> Stored[SiteWatch]:
        return Stored(self.document, WATCH, SiteWatch)

    # Queues

    def _look(self, names: Collection[str]) -> None:
        """Look whether these queues are there, and do what follows."""
        registry, counts, now_ms = self.registrar.registry(), self._counts(names), self.registrar.now_ms()
        # What other queues hold is nobody's business, and would be written each time.
        noted = {
            name: messages if messages is None or registry.bridges_reading(name) else 0
            for name, messages in counts.items()
        }
        watch = self._stored.change(lambda watch: watch.seen(noted, now_ms=now_ms))
        bindings = self.registrar.exchanges.bindings()
        for name, messages in counts.items():
            if messages is not None:
                if watch.of(name).undelivered:
                    self._deliver(name)
                continue
            if registry.bridges_reading(name) and watch.is_gone(name, after_ms=GONE_AFTER_MS, now_ms=now_ms):
                self._lay_anew(name, registry, now_ms=now_ms)
            if watch.is_gone(name, after_ms=UNBOUND_AFTER_MS, now_ms=now_ms):
                self._unbind(name, bindings)

    def _counts(self, names: Collection[str]) -> Mapping[str, int | None]:
        """Count what is in the queues: None for one that isn't there; nothing is said of one that can't be asked."""
        counts: dict[str, int | None] = {}
        for name in sorted(names):
            if not self.registrar.works.may_go_on():
                break
            with suppress(CallFailed):
                try:
                    counts[name] = self.registrar.works.queues.count(name)
                except QueueGone:
                    counts[name] = None
        return counts

    def _deliver(self, name: str) -> None:
        """Put back what became dead letters while the queue was away, a part at a time, until there is none."""
        try:
            moved = self.redrive(name)
        except DestinationFault:
            return  # the rest is still there: the next look goes on
        now_ms = self.registrar.now_ms()
        self._stored.change(lambda watch: watch.put_back(name, moved, now_ms=now_ms))

    def _lay_anew(self, name: str, registry: Registry, *, now_ms: int) -> None:
        """Forget what routes had of a queue that is gone: so it falls due. Of several who see it one does."""
        routes = tuple(each.bridge.name for each in registry.bridges_reading(name) if not each.closing)
        claimed, lost = False, 0

        def claim(watch: SiteWatch) -> SiteWatch:
            nonlocal claimed, lost
            known = watch.of(name)
            claimed, lost = watch.is_gone(name, after_ms=GONE_AFTER_MS, now_ms=now_ms), known.messages
            if not claimed:
                return watch
            forgotten = replace(known, messages=0, waiting_since_ms=None, missing_since_ms=None)
            return watch.with_queue(name, forgotten).mended(routes, QUEUE, lost=lost, now_ms=now_ms)

        if routes:
            self._stored.change(claim)
        if not claimed:
            return
        try:
            # It is the gone queue's: Lambda may have switched it off for good.
            self.registrar.works.mappings.delete(name)
        except CallFailed:
            return  # it is on its way into another state: the looks find the queue missing again
        error = f"{QueueGone(name)}: it was deleted"
        self.registrar.take_in([note_things(route, queue="", mapping="", on=False, error=error) for route in routes])
        self.mended.append(Mended(what=QUEUE, name=name, routes=routes, lost=lost))

    def _unbind(self, name: str, bindings: SiteBindings) -> None:
        """Let a queue that is gone take its bindings with it; a route's own queue is made anew instead."""
        destination = bindings.destination(name)
        if destination is None or destination.crossing is not None:
            return
        self.registrar.exchanges.change(without_queue(name))
        self._stored.change(lambda watch: watch.with_queue(name, replace(watch.of(name), undelivered=0, unbound=True)))
        self.mended.append(Mended(what=BINDING, name=name))

    # Routes

    def _compare_routes(self) -> None:
        """Note what is gone of each route, or was changed; a queue of its own gets its settings back at once."""
        registry, bindings = self.registrar.registry(), self.registrar.exchanges.bindings()
        failed: list[CallFailed] = []
        for record in registry.bridges.values():
            if _lacks_binding(record, bindings):
                self._lacks(record, BINDING, note_things(record.bridge.name, bound=False))
            try:
                self._compare_queue(record)
                self._compare_mapping(record)
            except CallFailed as error:
                failed.append(error)  # it holds up no other route
        if failed:
            raise failed[0]

    def _compare_queue(self, record: BridgeRecord) -> None:
        """Give a queue of a route's own its settings back. Raises `CallFailed`."""
        if not record.makes_queue or record.queue is None or record.closing:
            return
        attributes = self.registrar.works.bridge_queue_attributes(record.bridge)
        # What encrypts a queue that is there stays: its messages need the key that they were encrypted with.
        wanted = {name: value for name, value in attributes.items() if name not in ENCRYPTION}
        with suppress(QueueGone):  # the looks tell
            if self.registrar.works.queues.configure(record.queue, wanted):
                self._lacks(record, SETTINGS)

    def _compare_mapping(self, record: BridgeRecord) -> None:
        """Note that an event source mapping is gone, or that somebody has switched it. Raises `CallFailed`."""
        if record.mapping is None:
            return
        try:
            on = self.registrar.works.mappings.is_on(record.mapping)
        except MappingGone:
            self._lacks(record, MAPPING, note_things(record.bridge.name, mapping="", on=False))
        else:
            if on != record.on:
                self.registrar.take_in([note_things(record.bridge.name, on=on)])

    def _lacks(self, record: BridgeRecord, what: str, *found: Change) -> None:
        self.registrar.take_in(found)
        routes, now_ms = (record.bridge.name,), self.registrar.now_ms()
        self._stored.change(lambda watch: watch.mended(routes, what, now_ms=now_ms))
        self.mended.append(Mended(what=what, name=record.queue or "", routes=routes))


def _open(registry: Registry) -> list[BridgeRecord]:
    return [each for each in registry.bridges.values() if each.bridge.src_is_local and not each.closing]


def _unsettled(watch: SiteWatch) -> set[str]:
    """Find the queues that were missing at the last look, and those whose dead letters are to go back."""
    return {name for name, each in watch.queues.items() if each.missing_since_ms is not None or each.undelivered}


def _lacks_binding(record: BridgeRecord, bindings: SiteBindings) -> bool:
    bridge, queue = record.bridge, record.queue
    if bridge.kind is not RouteKind.STATIC or queue is None or not record.bound or record.closing:
        return False
    return bridge.key not in bindings.keys(bridge.src, queue)
