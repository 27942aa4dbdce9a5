"""Splits a batch of one source queue: sends each message where the router decides, counts, and reports failures.

A message is deleted only when every receiver has it: the trigger deletes messages that aren't reported as failed.

A batch is routed and sent slice by slice, with separate deadlines for filters, S3 and sending. Messages that miss a
deadline are reported as failed and redelivered. A session that exceeds its filter budget, or whose queue refuses
messages, is skipped for the rest of the batch, and its messages are routed as if the session did not exist.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, wait
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from sluice.batches import Dispatcher, Entry, Send
from sluice.errors import DestinationFault, HeldBack, NotDelivered, NotReached, QueueGone
from sluice.message import Message
from sluice.splitting.consumers.temporary_queues import FIFO_SUFFIX
from sluice.splitting.filters.jq import Decide
from sluice.splitting.filters.texts import Envelope, FilterInput, S3Object
from sluice.splitting.filters.values import Share
from sluice.splitting.routing.routed import Routed
from sluice.splitting.routing.router import (
    FaultKind,
    Meter,
    MissingInput,
    Recipients,
    Router,
    build_main_message,
    build_session_copy,
    do_nothing,
)
from sluice.splitting.sessions.state import SPLITTER_LEASE_S, Reason, Registry
from sluice.splitting.settings import SplitConfig

if TYPE_CHECKING:  # These imports are only for type hints: the adapters are passed in as arguments.
    from sluice.aws.splitting.registry_store import DynamoRegistryStore

NOT_SPLIT = "its consumer doesn't read a main queue, or not yet"
CACHED_MS = 1_000
BATCH_MS = 20_000  # No batch can exceed the function's time limit.
ANNOUNCED_FOR_MS = SPLITTER_LEASE_S * 1_000 - BATCH_MS
MAX_READS = 10  # A registry that keeps changing is read at most this often.
MAX_PASSES = 20  # A message is routed again at most this often because a session's queue was deleted.
# The last filter and the last request may start this many seconds after the batch. The function's limit is 20 s.
DECIDED_WITHIN_S = 10.0
SENT_WITHIN_S = 16.0
SLICE_S = 1.0  # After this time of routing, the splitter sends the messages routed so far.
KNOWN_WITHIN_MS = 1_000  # This long after a session's start, every new batch routes to the session.
FILTER_BUDGET_S = 2.0  # A session's filter may take this many seconds for one batch, of at most 6 MB.

# A cancelled session is skipped for this time. If the control function is late or its message is lost, the session is
# then tried and cancelled again.
SKIPPED_S = 60.0
REPEATED_AFTER_S = 2.0  # A fault is repeated only after this time, because SQS may not find a new queue for a second.
REPEATED_WITHIN_S = 600.0
MAX_CANCELLATIONS = 50  # One batch cancels at most this many sessions, with a request for each.
MAX_ERROR_CHARACTERS = 200  # A session's reason has at most this many characters of SQS's error.

# A well-behaved session can have these faults once: in a slow moment, or if SQS doesn't find a new queue yet.
FORGIVEN_ONCE = frozenset({Reason.FILTER_TOO_SLOW, Reason.QUEUE_GONE})
REASONS = {
    FaultKind.PATTERN_TIMED_OUT: Reason.PATTERN_TIMED_OUT,
    FaultKind.PATTERN_FAILED: Reason.PATTERN_FAILED,
    FaultKind.JQ_TIMED_OUT: Reason.FILTER_TIMED_OUT,
    FaultKind.OVER_BUDGET: Reason.FILTER_TOO_SLOW,
}

# Returns an S3 object's metadata, {} if the object can't exist or be read. Raises `CallFailed` for transient errors.
ObjectMetadata = Callable[[S3Object], Mapping[str, str]]
# Asks the control function to cancel a session, given its id and the reason. Never raises.
CancelSession = Callable[[str, str], None]


def read_first_received_ms(message: Message) -> int | None:
    """Return the time at which a message was first received; None if this is its first receive, or if it is unknown."""
    at_ms = message.system.get("ApproximateFirstReceiveTimestamp")
    return None if at_ms is None or message.system.get("ApproximateReceiveCount", "1") == "1" else int(at_ms)


@dataclass(slots=True, kw_only=True)
class SessionCircuitBreaker:
    """Tracks misbehaving sessions: those that are skipped, and those that were cancelled. Not thread-safe."""

    clock_s: Callable[[], float]  # returns monotonic seconds
    cancel: CancelSession
    _skipped_until: dict[str, float] = field(default_factory=dict)  # the time at which each session's skip ends
    _faulted_at: dict[tuple[str, Reason], float] = field(default_factory=dict)  # times of first faults
    _cancellations: int = 0

    def begin(self) -> set[str]:
        """Begin a batch. Returns the ids of the sessions to skip."""
        now = self.clock_s()
        self._cancellations = 0
        self._skipped_until = {session_id: until for session_id, until in self._skipped_until.items() if until > now}
        self._faulted_at = {fault: at for fault, at in self._faulted_at.items() if at > now - REPEATED_WITHIN_S}
        return set(self._skipped_until)

    def report_fault(self, session_id: str, reason: Reason, error_text: str = "") -> None:
        """Ask control to cancel the session; after a fault that is `FORGIVEN_ONCE`, only if the fault is repeated."""
        now = self.clock_s()
        if reason in FORGIVEN_ONCE and now - self._faulted_at.setdefault((session_id, reason), now) < REPEATED_AFTER_S:
            return
        if session_id in self._skipped_until or self._cancellations >= MAX_CANCELLATIONS:
            return
        self._cancellations += 1
        self._skipped_until[session_id] = now + SKIPPED_S
        self.cancel(session_id, f"{reason}: {error_text[:MAX_ERROR_CHARACTERS]}" if error_text else reason)


class Routes(msgspec.Struct, frozen=True, kw_only=True):
    """One split queue's router, and the names of its sessions' queues, by session id."""

    router: Router
    queues: Mapping[str, str]


class RegistryUnsettled(RuntimeError):
    """The registry changed during every read of it, so the batch is redelivered."""


@dataclass(slots=True)
class CachedRegistry:
    """Caches the registry for a splitter's environment for at most one second. Not thread-safe.

    This order makes it safe (`sessions.rules`): announce the version that was read, read the version again, and route
    only if it is unchanged. An announcement holds for the lease, and is repeated before a batch could outlast the
    lease.
    """

    store: "DynamoRegistryStore"
    splitter_id: str
    decide: Callable[[], Decide]
    now_ms: Callable[[], int]
    ensure_started: Callable[[], None] = do_nothing  # starts the process for jq programs
    _registry: Registry = field(default_factory=lambda: Registry(version=-1))
    _routes: dict[str, Routes] = field(default_factory=dict)
    _checked_at_ms: int = 0
    _announced_at_ms: int = 0

    def load_routes(self, queue_id: str) -> Routes:
        """Return the routes of a split queue, built again after each change. Raises `RegistryUnsettled`."""
        self._refresh()
        if queue_id not in self._routes:
            registry = self._registry
            shares = registry.list_shares(queue_id)
            queues = {share.session_id: registry.find_session_queue(share.session_id, queue_id) for share in shares}
            self._routes[queue_id] = Routes(
                router=Router.build(shares, decide=self.decide(), ensure_started=self.ensure_started),
                queues={session_id: queue.name for session_id, queue in queues.items() if queue is not None},
            )
        return self._routes[queue_id]

    def find_main_queue(self, queue_id: str, *, configured: str | None) -> str | None:
        """Return the queue that the deployed consumer reads, as of the last `load_routes`, or None.

        None means that nothing may be forwarded. If the consumer was re-pointed, the registry has its queue. Otherwise
        it is the `configured` queue.
        """
        split = self._registry.splits.get(queue_id)
        if split is None or split.static or split.is_at_rest:
            return configured
        return split.main if split.may_forward else None

    def _refresh(self) -> None:
        now_ms = self.now_ms()
        if now_ms - self._checked_at_ms < CACHED_MS and now_ms - self._announced_at_ms < ANNOUNCED_FOR_MS:
            return
        for _ in range(MAX_READS):
            now_ms, version = self.now_ms(), self.store.read_version()
            if version == self._registry.version and now_ms - self._announced_at_ms < ANNOUNCED_FOR_MS:
                self._checked_at_ms = now_ms
                return
            if version != self._registry.version:
                self._registry, _ = self.store.load()
                self._routes.clear()
                self._announced_at_ms = 0  # If the next call fails, the next batch announces the version.
            self.store.announce_version(self.splitter_id, version=self._registry.version, at_ms=now_ms)
            self._announced_at_ms = now_ms
        raise RegistryUnsettled("the registry of sessions changes too fast to be read")


@dataclass(slots=True)
class SplitOutcome:
    """The result of a batch: failures of messages by position, counts, and the messages sent to sessions."""

    failures: Mapping[int, DestinationFault] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    routed: Sequence[Routed] = ()

    @property
    def forwarded(self) -> Counter[str]:
        """Return the number of messages sent to each session, by session id."""
        return Counter({share.session: len(share.messages) for share in self.routed})


def split(
    messages: Sequence[Message],
    queue: SplitConfig,
    routes: Routes,
    *,
    send: Send,
    executor: Executor,
    metadata: ObjectMetadata,
    circuit_breaker: SessionCircuitBreaker,
    began_s: float,
) -> SplitOutcome:
    """Forward the messages of a batch, in the order received.

    The batch began at `began_s` of the circuit breaker's clock. While the queue has no `main`, nothing may be
    forwarded. If a session's queue is missing or refuses messages, these messages are routed again without that
    session, in a pass for each such queue. If the main queue is missing, its messages fail and stay in the source.
    """
    if queue.main is None:
        failures = dict.fromkeys(range(len(messages)), HeldBack(NOT_SPLIT))
        return SplitOutcome(failures=failures, counts=Counter(MessagesRead=len(messages), MessagesFailed=len(failures)))
    now_s = circuit_breaker.clock_s
    batch = _Batch(
        main_queue=queue.main,
        messages=messages,
        envelope=queue,
        routes=routes,
        executor=executor,
        metadata=metadata,
        circuit_breaker=circuit_breaker,
        sessions={name: session_id for session_id, name in routes.queues.items()},
        dispatcher=Dispatcher(
            fifo=queue.source.endswith(FIFO_SUFFIX),
            send=send,
            executor=executor,
            optional=frozenset(routes.queues.values()),
            may_go_on=lambda: now_s() < began_s + SENT_WITHIN_S,
        ),
        meter=Meter(clock=now_s, until=began_s + DECIDED_WITHIN_S, budget_s=FILTER_BUDGET_S),
        skipped=circuit_breaker.begin() if routes.queues else set(),
    )
    waiting = deque(range(len(messages)))
    while waiting:
        batch.deliver_messages(batch.take_messages(waiting))
    return batch.build_outcome()


@dataclass(slots=True, kw_only=True)
class _Batch:
    """The state of a batch while it is forwarded. `skipped` has the ids of skipped sessions."""

    messages: Sequence[Message]
    envelope: Envelope
    main_queue: str
    routes: Routes
    executor: Executor
    metadata: ObjectMetadata
    circuit_breaker: SessionCircuitBreaker
    sessions: Mapping[str, str]  # session ids by queue name
    dispatcher: Dispatcher
    meter: Meter
    skipped: set[str]
    faults: set[tuple[int, str, FaultKind]] = field(default_factory=set)
    inputs_with_metadata: dict[int, FilterInput] = field(default_factory=dict)  # Keys are message positions.
    shares: dict[str, Share] = field(default_factory=dict)  # shares by session queue's name

    def take_messages(self, waiting: deque[int]) -> dict[int, Recipients]:
        """Take messages from the front of `waiting`, at least one, and route them until the slice's time is over."""
        until = self.circuit_breaker.clock_s() + SLICE_S
        routed: dict[int, Recipients] = {}
        while waiting and (not routed or self.circuit_breaker.clock_s() < until):
            position = waiting.popleft()
            routed[position] = self.route(position)
        return self.settle_metadata(routed)

    def deliver_messages(self, decided: dict[int, Recipients]) -> None:
        """Send routed messages. If a session's queue refuses messages, route these again without that session."""
        for _ in range(MAX_PASSES):
            stopped = self.dispatcher.dispatch(
                [entry for position in sorted(decided) for entry in self.build_entries(position, decided[position])]
            )
            for entry, fault in stopped.refused:
                if not isinstance(fault, QueueGone):
                    self.drop_session(entry.target, Reason.QUEUE_REFUSED, str(fault))
                elif entry.target in self.sessions:
                    self.drop_session(entry.target, Reason.QUEUE_GONE)
                else:
                    self.dispatcher.fail(entry, NotDelivered(str(fault)))
            entries = (*(refusal.entry for refusal in stopped.refused), *stopped.untried)
            again = sorted({entry.position for entry in entries} - self.dispatcher.failures.keys())
            if not again:
                return
            decided = self.settle_metadata({position: self.route(position) for position in again})
        for position in decided:
            self.fail(position, NotDelivered("its receivers keep vanishing"))

    def drop_session(self, target: str, reason: Reason, error_text: str = "") -> None:
        """Skip a session for the rest of the batch, because its queue is missing or refuses messages."""
        session_id = self.sessions[target]
        if session_id not in self.skipped:
            self.skipped.add(session_id)
            self.circuit_breaker.report_fault(session_id, reason, error_text)

    def route(self, position: int) -> Recipients:
        """Route a message. A session whose filter has a fault is skipped from the next message on."""
        gone = self.skipped
        first_ms = read_first_received_ms(self.messages[position]) if self.dispatcher.fifo else None
        if first_ms is not None:
            # An earlier attempt may have sent the message to a session. A session that started after that attempt must
            # not get the same message.
            gone = gone | self.routes.router.list_sessions_started_after(first_ms - KNOWN_WITHIN_MS)
        recipients = self.routes.router.find_recipients(self.filter_input(position), gone=gone, meter=self.meter)
        for fault in recipients.faults:
            self.faults.add((position, fault.session_id, fault.kind))
            self.skipped.add(fault.session_id)
            if fault.kind in REASONS:
                self.circuit_breaker.report_fault(fault.session_id, REASONS[fault.kind])
        return recipients

    def filter_input(self, position: int) -> FilterInput:
        """Prepare a message for filters. Only inputs with S3 metadata are cached, as most messages are routed once."""
        cached = self.inputs_with_metadata.get(position)
        if cached is not None:
            return cached
        return FilterInput.from_message(self.messages[position], envelope=self.envelope)

    def settle_metadata(self, routed: dict[int, Recipients]) -> dict[int, Recipients]:
        """Fetch the S3 metadata that jq programs need, and route again. Messages without a decision fail."""
        wanting = [position for position, recipients in routed.items() if recipients.missing is MissingInput.METADATA]
        for position in self.fetch_metadata(wanting) if wanting else ():
            routed[position] = self.route(position)
        for position, recipients in routed.items():
            if recipients.missing is not None and position not in self.dispatcher.failures:
                self.fail(position, NotReached("not decided within the batch's time"))
        return {position: recipients for position, recipients in routed.items() if recipients.missing is None}

    def fetch_metadata(self, positions: Sequence[int]) -> Iterator[int]:
        """Fetch the metadata of these messages' S3 objects concurrently, within half of the remaining time.

        Yields the positions of messages whose metadata arrived. If S3 fails for a message, only that message fails.
        """
        objects = {position: self.envelope.objects(self.messages[position].body) for position in positions}
        requests = {
            s3_object: self.executor.submit(self.metadata, s3_object)
            for message_objects in objects.values()
            for s3_object in message_objects
        }
        wait(requests.values(), timeout=max(0.0, (self.meter.until - self.circuit_breaker.clock_s()) / 2))
        for future in requests.values():
            future.cancel()
        for position, message_objects in objects.items():
            answers = [requests[s3_object] for s3_object in message_objects]
            if not all(answer.done() and not answer.cancelled() for answer in answers):
                self.fail(position, NotReached("S3 didn't answer within the batch's time"))
                continue
            failed = next((error for error in (answer.exception() for answer in answers) if error), None)
            if failed is not None:
                self.fail(position, NotDelivered(f"metadata of its S3 object: {failed}"))
                continue
            metadata = {name: value for answer in answers for name, value in answer.result().items()}
            self.inputs_with_metadata[position] = self.filter_input(position).with_metadata(metadata)
            yield position

    def build_entries(self, position: int, recipients: Recipients) -> Iterator[Entry]:
        """Yield entries for the copies, then for the message itself. Sessions without a queue get no copy."""
        message, fifo = self.messages[position], self.dispatcher.fifo
        stealing = recipients.stealing
        shares = [*recipients.mirroring, *([stealing] if stealing else [])]
        reachable = [share for share in shares if share.session_id in self.routes.queues]
        for share in reachable:
            copy = build_session_copy(message, key=share.key, fifo=fifo)
            target = self.routes.queues[share.session_id]
            self.shares[target] = share
            yield Entry(position=position, target=target, outgoing=copy)
        if stealing not in reachable:
            yield self.build_main_entry(position)

    def build_main_entry(self, position: int) -> Entry:
        """Build the entry that sends the message to the main queue."""
        outgoing = build_main_message(self.messages[position], fifo=self.dispatcher.fifo)
        return Entry(position=position, target=self.main_queue, outgoing=outgoing)

    def fail(self, position: int, fault: DestinationFault) -> None:
        """Report a message as failed, and with it all later messages of its message group."""
        self.dispatcher.fail(self.build_main_entry(position), fault)

    def build_outcome(self) -> SplitOutcome:
        """Return the outcome of the whole batch."""
        sent, failures = self.dispatcher.sent, self.dispatcher.failures
        unmatched = sum(entry.target == self.main_queue for entry in sent)
        mirrored = len(sent) - len({entry.position for entry in sent})  # copies besides the messages themselves
        ids: dict[str, list[str]] = {}  # message ids by queue name
        for entry in sent:
            if entry.target in self.shares:
                ids.setdefault(entry.target, []).append(self.messages[entry.position].message_id)
        return SplitOutcome(
            failures=failures,
            counts=Counter(
                MessagesRead=len(self.messages),
                MessagesUnmatched=unmatched,
                MessagesForwarded=len(sent) - unmatched - mirrored,
                MessagesMirrored=mirrored,
                MessagesFailed=len(failures),
                FilterFaults=len(self.faults),
            ),
            routed=[
                Routed(session=share.session_id, key=share.key, mode=share.mode, messages=tuple(ids[target]))
                for target, share in self.shares.items()
                if target in ids
            ],
        )
