"""Provisions bridges' queues, bindings and event source mappings, and removes them.

Every step is idempotent, because an earlier invocation may have crashed before it recorded its result.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from sluice.aws_rules import MAX_UNWINDOWED_BATCH, MIN_CONCURRENCY
from sluice.dead_letter_reasons import ROUTE_GONE
from sluice.errors import BadBinding, BadConfiguration, CallFailed, QueueGone
from sluice.federation.exchange_store import (
    ExchangeStore,
    add_binding,
    mark_feeding_queues,
    remove_binding,
    remove_queue_bindings,
    update_destination,
)
from sluice.federation.links.due import Action, DueAction
from sluice.federation.links.links import DEFAULT_SYNC, MAX_SYNC, Address, Bridge, MappingScaling, RouteKind
from sluice.federation.links.registry import NOT_YET, BridgeRecord, Registry, find_feeding_queues, make_destination
from sluice.federation.links.transitions import (
    Change,
    record_count,
    record_resources,
    remove_bridge,
)
from sluice.federation.matching.bindings import Binding
from sluice.message import FIFO_SUFFIX, DeadLetter
from sluice.stages import add_stage_prefix

if TYPE_CHECKING:  # Adapters are passed in as arguments, so their classes are only imported for type checking.
    from sluice.aws.dead_letters import DeadLetters
    from sluice.aws.federation.mappings import BridgeMappings
    from sluice.aws.federation.queues import SqsSiteQueues

SITE_TAG = "sluice:site"  # Each queue that is created at run time has this tag, with the tag of the site that owns it.
BRIDGE_QUEUE_PREFIX = "sluice-bridge-"
RETENTION = "MessageRetentionPeriod"
ENCRYPTION = frozenset({"KmsMasterKeyId", "SqsManagedSseEnabled"})
DIFFERS = frozenset({"QueueNameExists", "QueueAlreadyExists"})  # codes if a queue with other attributes exists
NAME_CHARACTERS = 24  # The name of a bridge's queue contains this many characters of a hash.


def build_bridge_queue_name(tag: str, bridge: Bridge, *, stage: str | None = None) -> str:
    """Return the name of a bridge's queue at the site with this tag and stage."""
    digest = hashlib.sha256(f"{tag}/{bridge.name}".encode()).hexdigest()[:NAME_CHARACTERS]
    return add_stage_prefix(BRIDGE_QUEUE_PREFIX, stage) + digest + (FIFO_SUFFIX if bridge.fifo else "")


def build_queue_attributes(*, fifo: bool, kms_key_arn: str | None) -> dict[str, str]:
    """Return the attributes of queues that are created at run time. Without a key, SQS's own key encrypts them."""
    attributes = {"SqsManagedSseEnabled": "true"} if kms_key_arn is None else {"KmsMasterKeyId": kms_key_arn}
    # Each message group gets its own throughput limit and its own deduplication ids.
    per_group = {"DeduplicationScope": "messageGroup", "FifoThroughputLimit": "perMessageGroupId"}
    return {**attributes, "FifoQueue": "true", **per_group} if fifo else attributes


def choose_scaling(bridges: Sequence[BridgeRecord], queue: str) -> MappingScaling:
    """Return a mapping's batch size and concurrency: the strictest values of all bridges that read the queue.

    If bridges of several links read the queue, values that a peer requested don't count, as they would slow down the
    other links.
    """
    batch_size, max_concurrency = MAX_UNWINDOWED_BATCH if queue.endswith(FIFO_SUFFIX) else MAX_SYNC, list[int]()
    is_shared = len({record.bridge.link for record in bridges}) > 1
    declared = [
        replace(record.bridge, sync=DEFAULT_SYNC, credit=0, rate=UNSET)
        if is_shared and record.served
        else record.bridge
        for record in bridges
    ]
    for bridge in declared:
        rate = MAX_SYNC if bridge.rate is UNSET else bridge.rate  # A batch has at most one second's messages.
        batch_size = min(batch_size, bridge.sync, rate, max(1, bridge.credit // 2) if bridge.credit else MAX_SYNC)
    for bridge in declared:
        if bridge.credit:
            max_concurrency.append(max(MIN_CONCURRENCY, bridge.credit // batch_size))
        if bridge.rate is not UNSET:
            max_concurrency.append(MIN_CONCURRENCY)
    return MappingScaling(batch_size=batch_size, max_concurrency=min(max_concurrency, default=None))


class BridgeProvisioner(msgspec.Struct, frozen=True, kw_only=True):
    """Provisions bridges at the site `here` during one invocation."""

    here: Address
    exchanges: ExchangeStore
    queues: "SqsSiteQueues"
    mappings: "BridgeMappings"
    dead_letter_queue: "DeadLetters"
    bridge_queue_attributes: Callable[[Bridge], Mapping[str, str]]  # returns the attributes of a new bridge queue
    find_readable_queue: Callable[[str], str]  # returns a queue's SQS name; raises `BadBinding` if it may not be read
    may_go_on: Callable[[], bool]

    def run_action(self, due: DueAction, registry: Registry) -> Change:
        """Run a due action. Returns the change that records the action's result or error."""
        try:
            return self._run_action(due, registry.bridges[due.name], registry)
        except (CallFailed, BadConfiguration, QueueGone) as error:
            not_yet = isinstance(error, CallFailed) and error.is_transient
            return record_resources(due.name, error=f"{NOT_YET}{error}" if not_yet else str(error))

    def _run_action(  # noqa: PLR0911 - one case an act
        self, due: DueAction, record: BridgeRecord, registry: Registry
    ) -> Change:
        bridge, name, queue = record.bridge, due.name, record.queue or ""
        match due.action:
            case Action.MAKE_QUEUE:
                return record_resources(name, queue=self.make_queue(bridge, registry), made_for=bridge)
            case Action.BIND | Action.UNBIND:
                bound = due.action is Action.BIND
                self.set_binding(record, registry, bound=bound)
                return record_resources(name, bound=bound, made_for=bridge)
            case Action.RECONCILE:
                if record.changed:
                    self.reconfigure(record, registry)
                mapping = self.reconcile_mapping(record, registry, on=due.on)
                return record_resources(name, mapping=mapping, on=due.on, changed=UNSET, made_for=bridge)
            case Action.COUNT_QUEUE:
                return record_count(name, self.count_messages(queue))
            case Action.DEAD_LETTER_LEFTOVERS:
                return record_count(name, self.tear_down(record, registry), on=False)
        if bridge.src_is_local and self.tear_down(record, registry):
            return record_count(name, 1)  # messages have arrived since the last count
        if record.makes_queue:
            self.queues.delete(self.find_queue_name(bridge))
        return remove_bridge(name)

    def make_queue(self, bridge: Bridge, registry: Registry) -> str:
        """Create the bridge's queue. A queue route's queue must exist. Returns the queue's name. Raises `QueueGone`."""
        name = self.find_queue_name(bridge)
        if bridge.src_is_queue:
            self.queues.count(name)  # this raises `QueueGone` if the queue is missing
            self.exchanges.change(mark_feeding_queues(find_feeding_queues(registry) | {name}))
            return name
        tags = {SITE_TAG: self.here.tag, "sluice:bridge": bridge.name}
        try:
            self.queues.create(name, self.bridge_queue_attributes(bridge), tags)
        except CallFailed as error:
            if error.code not in DIFFERS:
                raise
            self.configure_queue(name, bridge)  # an existing queue may still have the bridge's former options
        return name

    def find_queue_name(self, bridge: Bridge) -> str:
        """Return the name of the queue that the bridge reads. The queue may not exist yet. Raises `BadBinding`."""
        stage = None if self.here.stage is UNSET else self.here.stage
        return (
            self.find_readable_queue(bridge.src)
            if bridge.src_is_queue
            else build_bridge_queue_name(self.here.tag, bridge, stage=stage)
        )

    def set_binding(self, record: BridgeRecord, registry: Registry, *, bound: bool) -> None:
        """Bind or unbind a static route's queue. Raises `BadBinding`."""
        bridge = record.bridge
        queue = record.queue or self.find_queue_name(bridge)  # a closing route's queue may be missing
        if not bound:
            self.unbind(bridge, queue)
            return
        arguments = self.exchanges.bindings().exchange(bridge.src).type.index_class.match_all_arguments
        binding = Binding(exchange=bridge.src, queue=queue, key=bridge.key, arguments=arguments)
        destination = make_destination(registry, record, url=self.queues.url(queue))
        self.exchanges.change(add_binding(binding, destination))

    def unbind(self, bridge: Bridge, queue: str) -> None:
        """Remove a static bridge's binding, or all bindings of a dynamic bridge's queue."""
        id_ = bridge.src, queue, bridge.key
        self.exchanges.change(remove_queue_bindings(queue) if bridge.dynamic else remove_binding(id_, missing_ok=True))

    def reconfigure(self, record: BridgeRecord, registry: Registry) -> None:
        """Apply the bridge's new options to its existing queue and binding. Raises `QueueGone`, `CallFailed`."""
        queue = record.queue or ""
        if record.makes_queue:
            self.configure_queue(queue, record.bridge)
        if record.bridge.kind is RouteKind.STATIC:
            self.exchanges.change(update_destination(make_destination(registry, record, url=self.queues.url(queue))))

    def configure_queue(self, queue: str, bridge: Bridge) -> bool:
        """Restore the settings of a bridge's own queue. Returns whether any setting differed. Raises `QueueGone`.

        An existing queue's encryption stays, because its messages need the key that encrypted them.
        """
        attributes = self.bridge_queue_attributes(bridge)
        return self.queues.configure(
            queue, {name: value for name, value in attributes.items() if name not in ENCRYPTION}
        )

    def reconcile_mapping(self, record: BridgeRecord, registry: Registry, *, on: bool) -> str:
        """Create or update the mapping of a bridge's queue. Returns the mapping's id. Raises `CallFailed`.

        If the recorded mapping no longer exists, the id is empty: another invocation may have removed the bridge.
        """
        queue = record.queue or ""
        scaling = choose_scaling(registry.list_readers(queue), queue)
        return self.mappings.reconcile(queue, scaling, on=on, creates=record.mapping is None)

    def count_messages(self, queue: str) -> int:
        """Return the number of messages in a queue; 0 if the queue is missing. Raises `CallFailed`."""
        try:
            return self.queues.count(queue)
        except QueueGone:
            return 0

    def tear_down(self, record: BridgeRecord, registry: Registry) -> int:
        """Remove a bridge's bindings and mapping, and dead-letter its messages. Returns how many messages are left."""
        bridge = record.bridge
        try:
            queue = record.queue or self.find_queue_name(bridge)
        except BadBinding:
            return 0  # The site may not use this queue, so it has created no resources.
        if not bridge.src_is_queue:
            self.unbind(bridge, queue)
        # Other routes may read the queue, too, and all of them share its one mapping.
        others = [record for record in registry.list_readers(queue) if record.bridge.name != bridge.name]
        if all(record.closing for record in others):
            self.mappings.delete(queue)
        if not record.makes_queue:
            return 0
        return self.count_messages(queue) if self.dead_letter_leftovers(queue, ROUTE_GONE.format(bridge.name)) else 1

    def dead_letter_leftovers(self, queue: str, reason: str) -> bool:
        """Move the queue's messages to the dead-letter queue. Returns False if time ran out. Raises `CallFailed`."""
        with suppress(QueueGone):
            arn = self.queues.arn(queue)
            while messages := self.queues.receive_batch(queue):
                if not self.may_go_on():
                    return False
                for message in messages:
                    self.dead_letter_queue.send(DeadLetter(message=message, reason=reason, source=arn))
                self.queues.delete_batch(queue, messages)
        return True
