"""Splits a batch of one source queue: who gets what is the router's; here it is sent, counted, failures reported.

Forward, then delete: a message is done only when every receiver has it. Nothing is deleted here; the trigger deletes
what isn't reported as failed.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field

from sluice.batches import Parcel, Progress, Request, Round, fifo_rounds, standard_round
from sluice.errors import DestinationFault, QueueGone
from sluice.message import Message
from sluice.splitting.filters.texts import Sight
from sluice.splitting.ports import ObjectMetadata, TargetQueues
from sluice.splitting.routing.copies import for_main, for_session
from sluice.splitting.routing.envelopes import s3_objects
from sluice.splitting.routing.router import FaultKind, Recipients, Router
from sluice.splitting.routing.shares import Share

HELD_BACK = "held back by an earlier message of its group"
MAX_PASSES = 20  # of re-routing, while session after session turns out to be gone


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitQueue:
    """A queue as the splitter needs to know it. `main` is a queue's name."""

    queue_id: str
    main: str
    fifo: bool = False
    sns: bool = False
    s3_event: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Routes:
    """One split queue's router and where its sessions' queues are: session id to queue name."""

    router: Router
    queues: Mapping[str, str]


@dataclass(slots=True)
class Outcome:
    """What became of a batch: positions of messages to come again with the reason, counts, sessions to cancel."""

    failed: Mapping[int, str] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    forwarded: Counter[str] = field(default_factory=Counter)  # by session id
    cancelled: frozenset[str] = frozenset()


def split(
    messages: Sequence[Message],
    queue: SplitQueue,
    routes: Routes,
    *,
    queues: TargetQueues,
    executor: Executor,
    metadata: ObjectMetadata,
) -> Outcome:
    """Forwards the batch. `messages` are in the order in which they were received."""
    batch = _Batch(messages=messages, queue=queue, routes=routes, queues=queues, executor=executor)
    sights = [_sight(message, queue, metadata) for message in messages]
    batch.forward(sights)
    return batch.outcome()


def _sight(message: Message, queue: SplitQueue, metadata: ObjectMetadata) -> Sight:
    found: dict[str, str] | None = None
    if queue.s3_event:
        found = {}
        for each in s3_objects(message.body, sns=queue.sns):
            found |= metadata(each)
    return Sight.of(message, sns=queue.sns, s3_metadata=found)


@dataclass(slots=True, kw_only=True)
class _Batch:
    """A batch on its way. Whatever a session's vanished queue was to get is routed again, without that session."""

    messages: Sequence[Message]
    queue: SplitQueue
    routes: Routes
    queues: TargetQueues
    executor: Executor
    gone: set[str] = field(default_factory=set)
    faults: set[tuple[int, str, FaultKind]] = field(default_factory=set)
    reasons: dict[int, str] = field(default_factory=dict)
    sent: list[Parcel] = field(default_factory=list)
    progress: Progress = field(init=False)

    def __post_init__(self) -> None:
        self.progress = Progress(fifo=self.queue.fifo)

    def forward(self, sights: Sequence[Sight]) -> None:
        """Sends every message to all its receivers, in as many passes as receivers vanish."""
        positions: Iterable[int] = range(len(sights))
        for _ in range(MAX_PASSES):
            parcels = [parcel for position in positions for parcel in self._parcels(position, sights[position])]
            unsent = self._send_all(self._left(parcels))
            if not unsent:
                return
            positions = sorted({parcel.position for parcel in unsent})
        for position in positions:
            self.reasons[position] = "its receivers keep vanishing"
            self._fail_position(position)

    def _parcels(self, position: int, sight: Sight) -> Iterator[Parcel]:
        recipients = self.routes.router.recipients(sight, gone=self.gone)
        self.faults.update((position, fault.session_id, fault.kind) for fault in recipients.faults)
        for share in self._receivers(recipients):
            yield self._parcel(position, sight.message, share)

    def _receivers(self, recipients: Recipients) -> Iterator[Share | None]:
        """Copies first, then the message itself; None is main. A copy whose place is unknown has vanished."""
        for share in recipients.mirroring:
            if share.session_id in self.routes.queues:
                yield share
        stealing = recipients.stealing
        yield stealing if stealing is None or stealing.session_id in self.routes.queues else None

    def _parcel(self, position: int, message: Message, share: Share | None) -> Parcel:
        fifo = self.queue.fifo
        if share is None:
            return Parcel(position=position, target=self.queue.main, outgoing=for_main(message, fifo=fifo))
        copy = for_session(message, key=share.key, fifo=fifo)
        return Parcel(position=position, target=self.routes.queues[share.session_id], outgoing=copy)

    def _left(self, parcels: Sequence[Parcel]) -> list[Parcel]:
        """Without what an earlier pass has sent already, nor what comes again anyway: its successors may be ahead."""
        sent = {(parcel.position, parcel.target) for parcel in self.sent}
        failed = set(self.progress.failed())
        return [each for each in parcels if each.position not in failed and (each.position, each.target) not in sent]

    def _send_all(self, parcels: Sequence[Parcel]) -> list[Parcel]:
        """Sends, round by round; what couldn't be sent since its session is gone comes back."""
        rounds: Sequence[Round] = fifo_rounds(parcels) if self.queue.fifo else (standard_round(parcels),)
        for number, requests in enumerate(rounds):
            unsent = [parcel for part in self.executor.map(self._send_to, _by_target(requests)) for parcel in part]
            if unsent:
                # What follows in the groups goes out after what is routed again.
                return unsent + [parcel for later in rounds[number + 1 :] for each in later for parcel in each.parcels]
        return []

    def _send_to(self, requests: Sequence[Request]) -> list[Parcel]:
        """Requests to one target, one after the other."""
        unsent: list[Parcel] = []
        for request in requests:
            sendable = self.progress.sendable(request)
            if sendable is not None:
                unsent += self._send(sendable)
        return unsent

    def _send(self, request: Request) -> list[Parcel]:
        try:
            refused = self.queues.send_batch(request.target, request.entries())
        except QueueGone as error:
            return self._vanished(request, error)
        except DestinationFault as error:
            refused = {str(place): str(error) for place in range(len(request.parcels))}
        for place, parcel in enumerate(request.parcels):
            if str(place) in refused:
                self.reasons[parcel.position] = refused[str(place)]
                self.progress.fail(parcel)
            else:
                self.sent.append(parcel)
        return []

    def _vanished(self, request: Request, error: QueueGone) -> list[Parcel]:
        sessions = {session_id for session_id, name in self.routes.queues.items() if name == request.target}
        if not sessions:  # main is gone: the messages stay on the source
            for parcel in request.parcels:
                self.reasons[parcel.position] = str(error)
                self.progress.fail(parcel)
            return []
        self.gone |= sessions
        return list(request.parcels)

    def _fail_position(self, position: int) -> None:
        message = self.messages[position]
        self.progress.fail(
            Parcel(position=position, target=self.queue.main, outgoing=for_main(message, fifo=self.queue.fifo))
        )

    def outcome(self) -> Outcome:
        """Everything that happened."""
        failed = {position: self.reasons.get(position, HELD_BACK) for position in self.progress.failed()}
        sessions = {name: session_id for session_id, name in self.routes.queues.items()}
        forwarded = Counter(sessions[parcel.target] for parcel in self.sent if parcel.target in sessions)
        unmatched = sum(parcel.target == self.queue.main for parcel in self.sent)
        counts = Counter(
            MessagesRead=len(self.messages),
            MessagesUnmatched=unmatched,
            MessagesForwarded=len(self.sent) - unmatched - self._mirrored(),
            MessagesMirrored=self._mirrored(),
            MessagesFailed=len(failed),
            FilterFaults=len(self.faults),
        )
        cancelled = frozenset(session for _, session, kind in self.faults if kind is FaultKind.JQ_TIMED_OUT)
        return Outcome(failed=failed, counts=counts, forwarded=forwarded, cancelled=cancelled)

    def _mirrored(self) -> int:
        """Copies beside the message itself."""
        return len(self.sent) - len({parcel.position for parcel in self.sent})


def _by_target(requests: Round) -> list[list[Request]]:
    found: dict[str, list[Request]] = {}
    for request in requests:
        found.setdefault(request.target, []).append(request)
    return list(found.values())
