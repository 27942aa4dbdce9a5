"""Splits a batch of one source queue: who gets what is the router's; here it is sent, counted, failures reported.

Forward, then delete: a message is done only when every receiver has it. Nothing is deleted here; the trigger deletes
what isn't reported as failed.

Time is shared out. A batch is decided and sent slice by slice, and filters, S3 and sending have their shares of it.
What they don't come to is reported as failed and comes again. A session that costs too much, or whose queue won't take
what it is sent, is out of the rest of the batch: its messages go on down the line, as if it weren't there.
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
    for_main,
    for_session,
    is_ready,
)
from sluice.splitting.sessions.state import SPLITTER_LEASE_S, Reason, Registry
from sluice.splitting.settings import SplitConfig

if TYPE_CHECKING:  # at run time the shell is given its adapters, and imports none
    from sluice.aws.splitting.registry_store import DynamoRegistryStore

NOT_SPLIT = "its consumer doesn't read a main queue, or not yet"
CACHED_MS = 1_000
BATCH_MS = 20_000  # the function's time limit: no batch takes longer
ANNOUNCED_FOR_MS = SPLITTER_LEASE_S * 1_000 - BATCH_MS
MAX_READS = 10  # of a registry that changes with every look
MAX_PASSES = 20  # of re-routing, while session after session turns out to be gone
# From a batch's begin, of the function's 20 s: no filter is asked any more, and no request begun.
DECIDED_WITHIN_S = 10.0
SENT_WITHIN_S = 16.0
SLICE_S = 1.0  # what is decided by then is sent, before more is decided
KNOWN_WITHIN_MS = 1_000  # of a session's beginning every batch that begins routes to it
FILTER_BUDGET_S = 2.0  # what a session's filter may take of one batch; 6 MB of messages is all that a batch can have

# After a cancellation: if control is late or its message is lost, the session is tried, and told, again.
PASSED_OVER_S = 60.0
AGAIN_AFTER_S = 2.0  # SQS doesn't find a queue in its first second; and one batch is one time
AGAIN_WITHIN_S = 600.0
MAX_TOLD = 50  # cancellations of one batch, each of them a request; the others are told of by the next
MAX_WORDS = 200  # characters of a queue's refusal

# What may happen to a session that does nothing wrong: a slow moment, a queue that isn't to be found yet.
FORGIVEN_ONCE = frozenset({Reason.FILTER_TOO_SLOW, Reason.QUEUE_GONE})
REASONS = {
    FaultKind.PATTERN_TIMED_OUT: Reason.PATTERN_TIMED_OUT,
    FaultKind.PATTERN_FAILED: Reason.PATTERN_FAILED,
    FaultKind.JQ_TIMED_OUT: Reason.FILTER_TIMED_OUT,
    FaultKind.OVER_BUDGET: Reason.FILTER_TOO_SLOW,
}

# Empty where there can be no such object, or it is gone or may not be read. Raises `CallFailed` for what may pass.
ObjectMetadata = Callable[[S3Object], Mapping[str, str]]
Tell = Callable[[str, str], None]  # has control cancel a session, by id, for this reason; raises nothing


def first_received_ms(message: Message) -> int | None:
    """When a message was received for the first time; None where that is now, or isn't known."""
    at_ms = message.system.get("ApproximateFirstReceiveTimestamp")
    return None if at_ms is None or message.system.get("ApproximateReceiveCount", "1") == "1" else int(at_ms)


@dataclass(slots=True, kw_only=True)
class SessionCircuitBreaker:
    """What one splitter's environment keeps from batch to batch, of sessions by id. Not for threads."""

    now_s: Callable[[], float]  # of a clock that only goes on
    tell: Tell
    _passed_over: dict[str, float] = field(default_factory=dict)  # until when
    _noted: dict[tuple[str, Reason], float] = field(default_factory=dict)  # since when
    _told: int = 0

    def begin(self) -> set[str]:
        """Begin a batch: the sessions that it is to pass over."""
        now = self.now_s()
        self._told = 0
        self._passed_over = {session_id: until for session_id, until in self._passed_over.items() if until > now}
        self._noted = {each: at for each, at in self._noted.items() if at > now - AGAIN_WITHIN_S}
        return set(self._passed_over)

    def note(self, session_id: str, reason: Reason, words: str = "") -> None:
        """Have control cancel the session, at once or, of what is forgiven once, when it happens again."""
        now = self.now_s()
        if reason in FORGIVEN_ONCE and now - self._noted.setdefault((session_id, reason), now) < AGAIN_AFTER_S:
            return
        if session_id in self._passed_over or self._told >= MAX_TOLD:
            return
        self._told += 1
        self._passed_over[session_id] = now + PASSED_OVER_S
        self.tell(session_id, f"{reason}: {words[:MAX_WORDS]}" if words else reason)


class Routes(msgspec.Struct, frozen=True, kw_only=True):
    """One split queue's router and where its sessions' queues are: session id to queue name."""

    router: Router
    queues: Mapping[str, str]


class Unsettled(RuntimeError):
    """The registry changed each time it was read; the batch comes again."""


@dataclass(slots=True)
class CachedRegistry:
    """The registry as a splitter's environment knows it: never older than a second. Not for threads.

    It is announced before it is routed by. The order is what makes it safe (`sessions.rules`): announce the version
    read, read the version again, and route only when it is still the same. An announcement holds for the lease: it is
    repeated before a batch could outlive it.
    """

    store: "DynamoRegistryStore"
    splitter_id: str
    decide: Callable[[], Decide]
    now_ms: Callable[[], int]
    ready: Callable[[], None] = is_ready  # starts what `decide` needs
    _registry: Registry = field(default_factory=lambda: Registry(version=-1))
    _routes: dict[str, Routes] = field(default_factory=dict)
    _checked_at_ms: int = 0
    _announced_at_ms: int = 0

    def routes(self, queue_id: str) -> Routes:
        """Give the routes of a split queue, compiled at the first batch after a change. Raises `Unsettled`."""
        self._refresh()
        if queue_id not in self._routes:
            registry = self._registry
            shares = registry.shares_of(queue_id)
            queues = {share.session_id: registry.queue_of(share.session_id, queue_id) for share in shares}
            self._routes[queue_id] = Routes(
                router=Router.of(shares, decide=self.decide(), ready=self.ready),
                queues={session_id: queue.name for session_id, queue in queues.items() if queue is not None},
            )
        return self._routes[queue_id]

    def main(self, queue_id: str, *, configured: str | None) -> str | None:
        """Name the queue that the deployed consumer reads as of the last `routes`, None while nothing is forwarded.

        Where it is re-pointed, or was by a deployment before this one, the registry says it; else the stacks do.
        """
        split = self._registry.splits.get(queue_id)
        if split is None or split.static or split.is_at_rest:
            return configured
        return split.main if split.forwards else None

    def _refresh(self) -> None:
        now_ms = self.now_ms()
        if now_ms - self._checked_at_ms < CACHED_MS and now_ms - self._announced_at_ms < ANNOUNCED_FOR_MS:
            return
        for _ in range(MAX_READS):
            now_ms, version = self.now_ms(), self.store.version()
            if version == self._registry.version and now_ms - self._announced_at_ms < ANNOUNCED_FOR_MS:
                self._checked_at_ms = now_ms
                return
            if version != self._registry.version:
                self._registry, _ = self.store.load()
                self._routes.clear()
                self._announced_at_ms = 0  # where announcing fails, the next batch begins with it
            self.store.announce(self.splitter_id, version=self._registry.version, at_ms=now_ms)
            self._announced_at_ms = now_ms
        raise Unsettled("the registry of sessions changes too fast to be read")


@dataclass(slots=True)
class SplitOutcome:
    """What became of a batch: by position what is to come again and why, counts, and what went to sessions."""

    failures: Mapping[int, DestinationFault] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    routed: Sequence[Routed] = ()

    @property
    def forwarded(self) -> Counter[str]:
        """How many went to each session, by its id."""
        return Counter({each.session: len(each.messages) for each in self.routed})


def split(
    messages: Sequence[Message],
    queue: SplitConfig,
    routes: Routes,
    *,
    send: Send,
    executor: Executor,
    metadata: ObjectMetadata,
    conduct: SessionCircuitBreaker,
    began_s: float,
) -> SplitOutcome:
    """Forward the batch, which began at this reading of the conduct's clock. `messages` are in the order received.

    While the queue has no `main` nothing may be forwarded.
    What a session's vanished or refusing queue was to get is routed again, without that session, in as many passes as
    queues are lost; where main is gone, its messages stay on the source.
    """
    if queue.main is None:
        failures = dict.fromkeys(range(len(messages)), HeldBack(NOT_SPLIT))
        return SplitOutcome(failures=failures, counts=Counter(MessagesRead=len(messages), MessagesFailed=len(failures)))
    now_s = conduct.now_s
    batch = _Batch(
        main=queue.main,
        messages=messages,
        envelope=Envelope.of(queue),
        routes=routes,
        executor=executor,
        metadata=metadata,
        conduct=conduct,
        sessions={name: session_id for session_id, name in routes.queues.items()},
        dispatcher=Dispatcher(
            fifo=queue.source.endswith(FIFO_SUFFIX),
            send=send,
            executor=executor,
            optional=frozenset(routes.queues.values()),
            may_go_on=lambda: now_s() < began_s + SENT_WITHIN_S,
        ),
        meter=Meter(clock=now_s, until=began_s + DECIDED_WITHIN_S, budget_s=FILTER_BUDGET_S),
        out=conduct.begin() if routes.queues else set(),
    )
    waiting = deque(range(len(messages)))
    while waiting:
        batch.deliver(batch.take(waiting))
    return batch.outcome()


@dataclass(slots=True, kw_only=True)
class _Batch:
    """A batch on its way. `out` are the sessions that it passes over."""

    messages: Sequence[Message]
    envelope: Envelope
    main: str
    routes: Routes
    executor: Executor
    metadata: ObjectMetadata
    conduct: SessionCircuitBreaker
    sessions: Mapping[str, str]  # by queue name
    dispatcher: Dispatcher
    meter: Meter
    out: set[str]
    faults: set[tuple[int, str, FaultKind]] = field(default_factory=set)
    answered: dict[int, FilterInput] = field(default_factory=dict)  # by position, of which S3 has been asked
    shares: dict[str, Share] = field(default_factory=dict)  # of those who were to get something, by queue name

    def take(self, waiting: deque[int]) -> dict[int, Recipients]:
        """Take messages off the front and route them, for as long as a slice lasts, and one at least."""
        until = self.conduct.now_s() + SLICE_S
        found: dict[int, Recipients] = {}
        while waiting and (not found or self.conduct.now_s() < until):
            position = waiting.popleft()
            found[position] = self.routed(position)
        return self.decided(found)

    def deliver(self, found: dict[int, Recipients]) -> None:
        """Send what is decided; what a session's queue won't have is decided again, without that session."""
        for _ in range(MAX_PASSES):
            stopped = self.dispatcher.dispatch(
                [entry for position in sorted(found) for entry in self.entries(position, found[position])]
            )
            for entry in stopped.gone:
                if entry.target in self.sessions:
                    self.drop_session(entry.target, Reason.QUEUE_GONE)
                else:
                    self.dispatcher.fail(entry, NotDelivered(str(QueueGone(entry.target))))
            for entry, fault in stopped.refused:
                self.drop_session(entry.target, Reason.QUEUE_REFUSED, str(fault))
            entries = (*stopped.gone, *(each.entry for each in stopped.refused), *stopped.later)
            again = sorted({entry.position for entry in entries} - self.dispatcher.failures.keys())
            if not again:
                return
            found = self.decided({position: self.routed(position) for position in again})
        for position in found:
            self.fail(position, NotDelivered("its receivers keep vanishing"))

    def drop_session(self, target: str, reason: Reason, words: str = "") -> None:
        """Take the session of a queue that is gone, or refuses, out of the batch."""
        session_id = self.sessions[target]
        if session_id not in self.out:
            self.out.add(session_id)
            self.conduct.note(session_id, reason, words)

    def routed(self, position: int) -> Recipients:
        """Route a message. A session whose filter is at fault is out of the batch from the next one on."""
        gone = self.out
        first_ms = first_received_ms(self.messages[position]) if self.dispatcher.fifo else None
        if first_ms is not None:
            # It may have gone to somebody already, who gets it again and suppresses it: never a later session too.
            gone = gone | self.routes.router.later_than(first_ms - KNOWN_WITHIN_MS)
        recipients = self.routes.router.recipients(self.sight(position), gone=gone, meter=self.meter)
        for fault in recipients.faults:
            self.faults.add((position, fault.session_id, fault.kind))
            self.out.add(fault.session_id)
            if fault.kind in REASONS:
                self.conduct.note(fault.session_id, REASONS[fault.kind])
        return recipients

    def sight(self, position: int) -> FilterInput:
        """Prepare a message for filters; it is kept only where S3 has been asked, as most are routed once."""
        found = self.answered.get(position)
        if found is not None:
            return found
        return FilterInput.of(self.messages[position], envelope=self.envelope)

    def decided(self, found: dict[int, Recipients]) -> dict[int, Recipients]:
        """Give those that are decided, once S3 has been asked where a program wants it; the others have failed."""
        wanting = [position for position, recipients in found.items() if recipients.lacks is MissingInput.METADATA]
        for position in self.fetched(wanting) if wanting else ():
            found[position] = self.routed(position)
        for position, recipients in found.items():
            if recipients.lacks is not None and position not in self.dispatcher.failures:
                self.fail(position, NotReached("not decided within the batch's time"))
        return {position: recipients for position, recipients in found.items() if recipients.lacks is None}

    def fetched(self, positions: Sequence[int]) -> Iterator[int]:
        """Ask S3 for these messages' objects, side by side, within half of the time that is left.

        Yields the positions that have their answers; where S3 fails, that message alone has failed.
        """
        objects = {each: self.envelope.objects(self.messages[each].body) for each in positions}
        asked = {each: self.executor.submit(self.metadata, each) for of_one in objects.values() for each in of_one}
        wait(asked.values(), timeout=max(0.0, (self.meter.until - self.conduct.now_s()) / 2))
        for future in asked.values():
            future.cancel()
        for position, of_one in objects.items():
            answers = [asked[each] for each in of_one]
            if not all(answer.done() and not answer.cancelled() for answer in answers):
                self.fail(position, NotReached("S3 didn't answer within the batch's time"))
                continue
            failed = next((error for error in (answer.exception() for answer in answers) if error), None)
            if failed is not None:
                self.fail(position, NotDelivered(f"metadata of its S3 object: {failed}"))
                continue
            metadata = {name: value for answer in answers for name, value in answer.result().items()}
            self.answered[position] = self.sight(position).with_metadata(metadata)
            yield position

    def entries(self, position: int, recipients: Recipients) -> Iterator[Entry]:
        """Copy first, then the message itself, to a session or to main. A copy whose place is unknown has vanished."""
        message, fifo = self.messages[position], self.dispatcher.fifo
        stealing = recipients.stealing
        shares = [*recipients.mirroring, *([stealing] if stealing else [])]
        there = [share for share in shares if share.session_id in self.routes.queues]
        for share in there:
            copy = for_session(message, key=share.key, fifo=fifo)
            target = self.routes.queues[share.session_id]
            self.shares[target] = share
            yield Entry(position=position, target=target, outgoing=copy)
        if stealing not in there:
            yield self.to_main(position)

    def to_main(self, position: int) -> Entry:
        """Give the message as the deployed consumer gets it."""
        outgoing = for_main(self.messages[position], fifo=self.dispatcher.fifo)
        return Entry(position=position, target=self.main, outgoing=outgoing)

    def fail(self, position: int, fault: DestinationFault) -> None:
        """Note that a message is to come again, and what follows it in its group with it."""
        self.dispatcher.fail(self.to_main(position), fault)

    def outcome(self) -> SplitOutcome:
        """Say what became of the batch."""
        sent, failures = self.dispatcher.sent, self.dispatcher.failures
        unmatched = sum(entry.target == self.main for entry in sent)
        mirrored = len(sent) - len({entry.position for entry in sent})  # copies beside the message itself
        ids: dict[str, list[str]] = {}  # by queue name
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
