"""Makes what bridges need, and takes it away: queues, bindings, event source mappings.

All of it is safe to do again: whoever did it may have died before saying so.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET

from sluice.dead_letter_reasons import ROUTE_GONE
from sluice.errors import BadBinding, BadConfiguration, CallFailed, MappingGone, QueueGone
from sluice.federation.exchange_store import (
    ExchangeStore,
    feeding,
    known_anew,
    with_binding,
    without_binding,
    without_queue,
)
from sluice.federation.links.due import Act, Due
from sluice.federation.links.links import MAX_SYNC, Address, Bridge, MappingPace, RouteKind
from sluice.federation.links.registry import NOT_YET, BridgeRecord, Registry, bridge_destination, fed_queues
from sluice.federation.links.transitions import Change, drop_bridge, note_count, note_refitted, note_things
from sluice.federation.matching.bindings import Binding
from sluice.message import DeadLetter
from sluice.stages import staged

if TYPE_CHECKING:  # at run time the shell is given its adapters, and imports none
    from sluice.aws.dead_letters import DeadLetters
    from sluice.aws.federation.mappings import BridgeMappings
    from sluice.aws.federation.queues import SqsSiteQueues

SITE_TAG = "sluice:site"  # of every queue that is made at run time: whose it is
BRIDGE_QUEUE_PREFIX = "sluice-bridge-"
FIFO_SUFFIX = ".fifo"
FIFO_BATCH = 10
LEAST_CONCURRENCY = 2  # of an event source mapping
RETENTION = "MessageRetentionPeriod"
DIFFERS = frozenset({"QueueNameExists", "QueueAlreadyExists"})  # with other attributes: SQS's two names for it
NAME_CHARACTERS = 24  # of a hash, in a bridge queue's name


def bridge_queue_name(tag: str, bridge: Bridge, *, stage: str | None = None) -> str:
    """Name the queue that is made for a bridge whose messages come from the site with this tag, at a stage or none."""
    digest = hashlib.sha256(f"{tag}/{bridge.name}".encode()).hexdigest()[:NAME_CHARACTERS]
    return staged(BRIDGE_QUEUE_PREFIX, stage) + digest + (FIFO_SUFFIX if bridge.fifo else "")


def pace_of(bridges: Sequence[BridgeRecord], queue: str) -> MappingPace:
    """How the bridge function reads a queue: as the strictest of the bridges asks that read it."""
    batch_size, max_concurrency = FIFO_BATCH if queue.endswith(FIFO_SUFFIX) else MAX_SYNC, list[int]()
    for bridge in (each.bridge for each in bridges):
        rate = MAX_SYNC if bridge.rate is UNSET else bridge.rate  # a batch is a second's at most
        batch_size = min(batch_size, bridge.sync, rate, max(1, bridge.credit // 2) if bridge.credit else MAX_SYNC)
    for bridge in (each.bridge for each in bridges):
        if bridge.credit:
            max_concurrency.append(max(LEAST_CONCURRENCY, bridge.credit // batch_size))
        if bridge.rate is not UNSET:
            max_concurrency.append(LEAST_CONCURRENCY)
    return MappingPace(batch_size=batch_size, max_concurrency=min(max_concurrency, default=None))


def changeable(attributes: Mapping[str, str]) -> Mapping[str, str]:
    """Of a bridge queue's attributes those that its bridge's options can change."""
    return {name: value for name, value in attributes.items() if name == RETENTION}


class BridgeProvisioner(msgspec.Struct, frozen=True, kw_only=True):
    """One invocation's, at the site `here`."""

    here: Address
    exchanges: ExchangeStore
    queues: "SqsSiteQueues"
    mappings: "BridgeMappings"
    dead_letters: "DeadLetters"
    bridge_queue_attributes: Callable[[Bridge], Mapping[str, str]]  # of the queue that is made for it
    readable: Callable[[str], str]  # the name that SQS knows a queue by; raises `BadBinding` for one out of bounds
    may_go_on: Callable[[], bool]

    def perform(self, due: Due, registry: Registry) -> Change:
        """Do what is due; what has become of it, also where AWS refuses it, or it can't be."""
        record, name = registry.bridges[due.name], due.name
        try:
            return self._perform(due, record, registry)
        except MappingGone:
            return note_things(name, mapping="", on=False)
        except (CallFailed, BadConfiguration, QueueGone) as error:
            not_yet = isinstance(error, CallFailed) and error.passes
            return note_things(name, error=f"{NOT_YET}{error}" if not_yet else str(error))

    def _perform(  # noqa: PLR0911 - one case an act
        self, due: Due, record: BridgeRecord, registry: Registry
    ) -> Change:
        bridge, name, queue = record.bridge, due.name, record.queue or ""
        match due.act:
            case Act.MAKE_QUEUE:
                return note_things(name, queue=self.make_queue(bridge, registry), made_for=bridge)
            case Act.BIND | Act.UNBIND:
                bound = due.act is Act.BIND
                self.set_binding(record, registry, bound=bound)
                return note_things(name, bound=bound, made_for=bridge)
            case Act.MAKE_MAPPING:
                pace = pace_of(registry.bridges_reading(queue), queue)
                return note_things(
                    name, mapping=self.mappings.create(queue, pace, on=due.on), on=due.on, made_for=bridge
                )
            case Act.SWITCH_MAPPING:
                self.mappings.switch(record.mapping or "", on=due.on)
                return note_things(name, on=due.on)
            case Act.REFIT:
                self.refit(record, registry)
                return note_refitted(bridge)
            case Act.COUNT_QUEUE:
                return note_count(name, self.count(queue))
            case Act.BURY_LEFTOVERS:
                return note_count(name, self.tear_down(record, registry))
        if bridge.src_is_local and self.tear_down(record, registry):
            return note_count(name, 1)  # it isn't empty after all
        if record.makes_queue:
            self.queues.delete(self.name_queue(bridge))
        return drop_bridge(name)

    def make_queue(self, bridge: Bridge, registry: Registry) -> str:
        """Return the queue that the bridge reads, which is made unless it is a queue route's. Raises `QueueGone`."""
        name = self.queue_of(bridge)
        if bridge.src_is_queue:
            self.queues.count(name)  # it has to be there
            self.exchanges.change(feeding(fed_queues(registry) | {name}))
            return name
        tags = {SITE_TAG: self.here.tag, "sluice:bridge": bridge.name}
        attributes = self.bridge_queue_attributes(bridge)
        try:
            self.queues.create(name, attributes, tags)
        except CallFailed as error:
            if error.code not in DIFFERS:
                raise
            self.queues.set_attributes(name, changeable(attributes))  # it was made before the bridge was changed
        return name

    def name_queue(self, bridge: Bridge) -> str:
        """Name the queue that is made for a bridge here."""
        stage = None if self.here.stage is UNSET else self.here.stage
        return bridge_queue_name(self.here.tag, bridge, stage=stage)

    def queue_of(self, bridge: Bridge) -> str:
        """Name the queue that the bridge reads, whether it is there or not. Raises `BadBinding`."""
        return self.readable(bridge.src) if bridge.src_is_queue else self.name_queue(bridge)

    def set_binding(self, record: BridgeRecord, registry: Registry, *, bound: bool) -> None:
        """Binds a static route's queue, or unbinds it. Raises `BadBinding`."""
        bridge = record.bridge
        queue = record.queue or self.queue_of(bridge)  # a route whose queue is gone may be closed
        if not bound:
            self.unbind(bridge, queue)
            return
        arguments = self.exchanges.bindings().exchange(bridge.src).type.index_class.takes_all
        binding = Binding(exchange=bridge.src, queue=queue, key=bridge.key, arguments=arguments)
        destination = bridge_destination(registry, record, url=self.queues.url(queue))
        self.exchanges.change(with_binding(binding, destination))

    def unbind(self, bridge: Bridge, queue: str) -> None:
        """Take the bridge's binding away, or the bindings of a dynamic one."""
        id_ = bridge.src, queue, bridge.key
        self.exchanges.change(without_queue(queue) if bridge.dynamic else without_binding(id_, missing_ok=True))

    def refit(self, record: BridgeRecord, registry: Registry) -> None:
        """Let the queue, its binding and its mapping be as the bridge's options are now: none of them goes meanwhile.

        Raises `QueueGone`, `MappingGone`, `CallFailed`.
        """
        queue = record.queue or ""
        if record.makes_queue:
            self.queues.set_attributes(queue, changeable(self.bridge_queue_attributes(record.bridge)))
        if record.bridge.kind is RouteKind.STATIC:
            self.exchanges.change(known_anew(bridge_destination(registry, record, url=self.queues.url(queue))))
        if record.mapping is not None:
            self.mappings.pace(record.mapping, queue, pace_of(registry.bridges_reading(queue), queue))

    def count(self, queue: str) -> int:
        """How many messages are in it; none where it is gone. Raises `CallFailed`."""
        try:
            return self.queues.count(queue)
        except QueueGone:
            return 0

    def tear_down(self, record: BridgeRecord, registry: Registry) -> int:
        """Take away all but the queue, known to be there or not; how many messages are left in that."""
        bridge = record.bridge
        try:
            queue = record.queue or self.queue_of(bridge)
        except BadBinding:
            return 0  # it may not be used, so it never was
        if not bridge.src_is_queue:
            self.unbind(bridge, queue)
        # Another route may go on reading the queue, through the one mapping that a queue and a function have.
        others = [each for each in registry.bridges_reading(queue) if each.bridge.name != bridge.name]
        if all(each.closing for each in others):
            self.mappings.delete(queue)
        if not record.makes_queue:
            return 0
        return self.count(queue) if self.bury(queue, ROUTE_GONE.format(bridge.name)) else 1

    def bury(self, queue: str, reason: str) -> bool:
        """Lets what is left become dead letters; False where the time ran out. Raises `CallFailed`."""
        try:
            while messages := self.queues.receive_batch(queue):
                if not self.may_go_on():
                    return False
                for message in messages:
                    self.dead_letters.bury(DeadLetter(message=message, reason=reason, source=self.queues.arn(queue)))
                self.queues.delete_batch(queue, messages)
        except QueueGone:
            return True
        return True
