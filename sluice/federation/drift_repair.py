"""Repairs drift: compares the recorded resources of routes and bindings with those that exist.

A missing resource is removed from the registry, so that its creation becomes due. The bindings of a deleted queue are
removed. Copies that became dead letters while a queue was missing are redriven. Every step is idempotent.
"""

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from sluice.errors import CallFailed, DestinationFault, QueueGone
from sluice.federation.exchange_store import remove_queue_bindings
from sluice.federation.link_service import LinkService
from sluice.federation.links.links import RouteKind
from sluice.federation.links.registry import BridgeRecord, Registry
from sluice.federation.links.transitions import Change, record_resources
from sluice.federation.links.watch import GONE_AFTER_MS, UNBOUND_AFTER_MS, WATCH, SiteWatch
from sluice.federation.matching.bindings import SiteBindings
from sluice.federation.stored import DocumentStore

if TYPE_CHECKING:  # Adapters are passed in as arguments, so their classes are only imported for type checking.
    from sluice.aws.documents import DynamoDocument

MAX_CHECKED_QUEUES = 50  # a sweep checks at most this many bound queues; later sweeps check the others
SWEEP_MS = 60_000
AGAIN_MS = 5_000

QUEUE, SETTINGS, MAPPING, BINDING = "queue", "queue's settings", "event source mapping", "binding"


class Repair(msgspec.Struct, frozen=True, kw_only=True):
    """A repaired resource, and the routes that use it. About `lost_messages` messages were lost with the resource."""

    resource: str
    name: str
    routes: tuple[str, ...] = ()
    lost_messages: int = 0


class DriftRepair(msgspec.Struct, frozen=True, kw_only=True):
    """Repairs drift during one invocation. `declared` has the names of queues that have declared bindings."""

    link_service: LinkService
    document: "DynamoDocument"
    declared: frozenset[str]
    redrive: Callable[[str], int]  # moves a queue's dead letters back to the queue, and returns their number
    repairs: list[Repair] = msgspec.field(default_factory=list)

    def watch(self) -> SiteWatch:
        """Return the stored results of earlier checks. Raises `BadSnapshot`."""
        return self._stored.value()

    def sweep(self) -> None:
        """Check routes' resources, missing queues, and the next bound queues in turn. Raises `CallFailed` last."""
        registry, bindings, watch = self.link_service.registry(), self.link_service.exchanges.bindings(), self.watch()
        sources = (record for record in registry.bridges.values() if record.bridge.src_is_local and not record.closing)
        read = {record.queue for record in sources if record.queue is not None}
        turn = self.link_service.now_ms() // SWEEP_MS
        self._check_queues({*read, *bindings.sample_queues(MAX_CHECKED_QUEUES, turn=turn), *_list_unsettled(watch)})

        def prune(watch: SiteWatch) -> SiteWatch:
            """Remove the results of deleted routes, and of queues that no route reads and no binding names."""
            queues = {
                name: queue
                for name, queue in watch.queues.items()
                if name in read or name in self.declared or bindings.destination(name) is not None
            }
            repairs = {name: repairs for name, repairs in watch.repairs.items() if name in registry.bridges}
            return SiteWatch(queues=queues, repairs=repairs).record_refusals({}, now_ms=self.link_service.now_ms())

        self._stored.change(prune)
        self._compare_routes()

    def recheck(self) -> None:
        """Check again the queues that were missing at the last check, and those with dead letters to redrive."""
        names = _list_unsettled(self.watch())
        if names:
            self._check_queues(names)

    def report(self, copies: Mapping[str, int], refusals: Mapping[str, str] = MappingProxyType({})) -> None:
        """Record `copies`, dead letters by missing queue, and `refusals`, SQS's reasons by refusing queue."""
        bindings = self.link_service.exchanges.bindings()
        undelivered = {name: number for name, number in copies.items() if bindings.destination(name) is not None}

        def record(watch: SiteWatch) -> SiteWatch:
            for name, number in undelivered.items():
                watch = watch.record_undelivered(name, number)
            return watch.record_refusals(refusals, now_ms=self.link_service.now_ms())

        if undelivered or refusals:
            self._stored.change(record)
        if undelivered:
            self._check_queues(undelivered.keys())
            self.link_service.advance(ticks=False)

    def next_check_ms(self) -> int | None:
        """Return when the next check is needed, in ms since the epoch; None if the scheduled sweep is enough."""
        registry, now_ms, times = self.link_service.registry(), self.link_service.now_ms(), list[int]()
        for name, queue_watch in self.watch().queues.items():
            since_ms = queue_watch.missing_since_ms
            if registry.list_readers(name) if since_ms is not None else queue_watch.undelivered:
                # Redrives that find no dead letters are repeated at growing intervals.
                none_found_ms = (
                    0 if queue_watch.none_found_since_ms is None else now_ms - queue_watch.none_found_since_ms
                )
                times.append(now_ms + max(AGAIN_MS, none_found_ms))
            elif since_ms is not None and since_ms + UNBOUND_AFTER_MS > now_ms:
                times.append(since_ms + UNBOUND_AFTER_MS)
        return min(times, default=None)

    @property
    def _stored(self) -> DocumentStore[SiteWatch]:
        return DocumentStore(self.document, WATCH, SiteWatch)

    def _check_queues(self, queues: Collection[str]) -> None:
        """Check whether queues exist. Redrive dead letters of existing queues, and repair missing queues."""
        registry, counts = self.link_service.registry(), self._count_messages(queues)
        now_ms = self.link_service.now_ms()
        # Only the counts of routes' queues are used. Storing other queues' counts would cause a write at each check.
        noted = {
            name: messages if messages is None or registry.list_readers(name) else 0
            for name, messages in counts.items()
        }
        watch = self._stored.change(lambda watch: watch.record_counts(noted, now_ms=now_ms))
        bindings = self.link_service.exchanges.bindings()
        for name, messages in counts.items():
            if messages is not None:
                # Redrive a part of the copies that became dead letters while the queue was missing.
                if watch.find_queue(name).undelivered:
                    with suppress(DestinationFault):  # the next check redrives the rest
                        moved = self.redrive(name)
                        self._stored.change(partial(SiteWatch.record_redriven, name=name, number=moved, now_ms=now_ms))
                continue
            if registry.list_readers(name) and watch.is_gone(name, after_ms=GONE_AFTER_MS, now_ms=now_ms):
                self._recreate_queue(name, registry, now_ms=now_ms)
            if watch.is_gone(name, after_ms=UNBOUND_AFTER_MS, now_ms=now_ms):
                self._unbind(name, bindings)

    def _count_messages(self, queues: Collection[str]) -> Mapping[str, int | None]:
        """Return each queue's number of messages, None for a missing queue. Leaves out a queue if its count fails."""
        counts: dict[str, int | None] = {}
        for name in sorted(queues):
            if not self.link_service.provisioner.may_go_on():
                break
            with suppress(CallFailed):
                try:
                    counts[name] = self.link_service.provisioner.queues.count(name)
                except QueueGone:
                    counts[name] = None
        return counts

    def _recreate_queue(self, queue: str, registry: Registry, *, now_ms: int) -> None:
        """Remove a deleted queue from its routes, so that the queue is created again. Only one invocation does this."""
        routes = tuple(record.bridge.name for record in registry.list_readers(queue) if not record.closing)
        claimed, lost = False, 0

        def claim(watch: SiteWatch) -> SiteWatch:
            nonlocal claimed, lost
            known = watch.find_queue(queue)
            claimed, lost = watch.is_gone(queue, after_ms=GONE_AFTER_MS, now_ms=now_ms), known.messages
            if not claimed:
                return watch
            forgotten = replace(known, messages=0, waiting_since_ms=None, missing_since_ms=None)
            return watch.with_queue(queue, forgotten).record_repair(routes, QUEUE, lost_messages=lost, now_ms=now_ms)

        if routes:
            self._stored.change(claim)
        if not claimed:
            return
        try:
            # The mapping belongs to the deleted queue, and Lambda may have disabled it for good.
            self.link_service.provisioner.mappings.delete(queue)
        except CallFailed:
            return  # Lambda is still changing the mapping, so the next check tries again.
        error = f"{QueueGone(queue)}: it was deleted"
        self.link_service.save_changes(
            [record_resources(route, queue="", mapping="", on=False, error=error) for route in routes]
        )
        self.repairs.append(Repair(resource=QUEUE, name=queue, routes=routes, lost_messages=lost))

    def _unbind(self, queue: str, bindings: SiteBindings) -> None:
        """Remove a deleted queue's bindings, except for a route's own queue, which is created again."""
        destination = bindings.destination(queue)
        if destination is None or destination.crossing is not None:
            return
        self.link_service.exchanges.change(remove_queue_bindings(queue))
        self._stored.change(
            lambda watch: watch.with_queue(queue, replace(watch.find_queue(queue), undelivered=0, unbound=True))
        )
        self.repairs.append(Repair(resource=BINDING, name=queue))

    def _compare_routes(self) -> None:
        """Repair each route's binding, queue settings and mapping. Raises `CallFailed` after the last route."""
        registry, bindings = self.link_service.registry(), self.link_service.exchanges.bindings()
        provisioner, changes, failed = self.link_service.provisioner, list[Change](), list[CallFailed]()
        for record in registry.bridges.values():
            bridge, queue = record.bridge, record.queue
            if queue is None:
                continue
            is_bound = bridge.kind is RouteKind.STATIC and record.bound and not record.closing
            if is_bound and bridge.key not in bindings.keys(bridge.src, queue):
                changes.append(record_resources(bridge.name, bound=False))
                self._record_repair(record, BINDING)
            try:
                with suppress(QueueGone):  # the check of queues reports a missing queue
                    if record.makes_queue and not record.closing and provisioner.configure_queue(queue, bridge):
                        self._record_repair(record, SETTINGS)
                if record.mapping is not None:
                    mapping = provisioner.reconcile_mapping(record, registry, on=record.on)
                    on = record.on and bool(mapping)
                    changes.append(record_resources(bridge.name, mapping=mapping, on=on, error=record.error))
                    if mapping != record.mapping:
                        self._record_repair(record, MAPPING)
            except CallFailed as error:
                # The other routes are still checked. After a transient error, the next sweep checks this route again.
                failed += [] if error.is_transient else [error]
        self.link_service.save_changes(changes)
        if failed:
            raise failed[0]

    def _record_repair(self, record: BridgeRecord, resource: str) -> None:
        routes, now_ms = (record.bridge.name,), self.link_service.now_ms()
        self._stored.change(lambda watch: watch.record_repair(routes, resource, now_ms=now_ms))
        self.repairs.append(Repair(resource=resource, name=record.queue or "", routes=routes))


def _list_unsettled(watch: SiteWatch) -> set[str]:
    """Return the queues that were missing at the last check, and the queues with dead letters to redrive."""
    return {
        name
        for name, queue_watch in watch.queues.items()
        if queue_watch.missing_since_ms is not None or queue_watch.undelivered
    }
