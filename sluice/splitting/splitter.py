"""Splits a batch of one source queue: who gets what is the router's; here it is sent, counted, failures reported.

Forward, then delete: a message is done only when every receiver has it. Nothing is deleted here; the trigger deletes
what isn't reported as failed.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field

from sluice.batches import Dispatcher, Entry
from sluice.errors import DestinationFault, NotDelivered, QueueGone
from sluice.message import Message
from sluice.splitting.filters.envelopes import s3_objects
from sluice.splitting.filters.texts import Sight
from sluice.splitting.ports import ObjectMetadata, TargetQueues
from sluice.splitting.routing.copies import for_main, for_session
from sluice.splitting.routing.router import FaultKind, Recipients, Router

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
class SplitOutcome:
    """What became of a batch: by position what is to come again and why, counts, sessions to cancel."""

    failures: Mapping[int, DestinationFault] = field(default_factory=dict)
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
) -> SplitOutcome:
    """Forward the batch. `messages` are in the order in which they were received.

    What a session's vanished queue was to get is routed again, without that session, in as many passes as queues
    vanish; where main is gone, its messages stay on the source.
    """
    sights = [_sight(message, queue, metadata) for message in messages]
    dispatcher = Dispatcher(fifo=queue.fifo, send=queues.send_batch, executor=executor)
    sessions = {name: session_id for session_id, name in routes.queues.items()}
    gone: set[str] = set()
    faults: set[tuple[int, str, FaultKind]] = set()
    positions: Sequence[int] = range(len(sights))
    for _ in range(MAX_PASSES):
        entries: list[Entry] = []
        for position in positions:
            recipients = routes.router.recipients(sights[position], gone=gone)
            faults.update((position, fault.session_id, fault.kind) for fault in recipients.faults)
            entries += _entries(position, messages[position], recipients, queue, routes)
        stopped = dispatcher.dispatch(entries)
        for entry in stopped.gone:
            if entry.target not in sessions:
                dispatcher.fail(entry, NotDelivered(str(QueueGone(entry.target))))
        gone |= {sessions[entry.target] for entry in stopped.gone if entry.target in sessions}
        positions = sorted({entry.position for entry in (*stopped.gone, *stopped.later)} - dispatcher.failures.keys())
        if not positions:
            break
    for position in positions:
        entry = Entry(position=position, target=queue.main, outgoing=for_main(messages[position], fifo=queue.fifo))
        dispatcher.fail(entry, NotDelivered("its receivers keep vanishing"))

    sent = dispatcher.sent
    unmatched = sum(entry.target == queue.main for entry in sent)
    mirrored = len(sent) - len({entry.position for entry in sent})  # copies beside the message itself
    return SplitOutcome(
        failures=dispatcher.failures,
        counts=Counter(
            MessagesRead=len(messages),
            MessagesUnmatched=unmatched,
            MessagesForwarded=len(sent) - unmatched - mirrored,
            MessagesMirrored=mirrored,
            MessagesFailed=len(dispatcher.failures),
            FilterFaults=len(faults),
        ),
        forwarded=Counter(sessions[entry.target] for entry in sent if entry.target in sessions),
        cancelled=frozenset(session for _, session, kind in faults if kind is FaultKind.JQ_TIMED_OUT),
    )


def _sight(message: Message, queue: SplitQueue, metadata: ObjectMetadata) -> Sight:
    found: dict[str, str] | None = None
    if queue.s3_event:
        found = {}
        for each in s3_objects(message.body, sns=queue.sns):
            found |= metadata(each)
    return Sight.of(message, sns=queue.sns, s3_metadata=found)


def _entries(
    position: int, message: Message, recipients: Recipients, queue: SplitQueue, routes: Routes
) -> Iterator[Entry]:
    """Copy first, then the message itself, to a session or to main. A copy whose place is unknown has vanished."""
    stealing = recipients.stealing
    shares = [*recipients.mirroring, *([stealing] if stealing else [])]
    there = [share for share in shares if share.session_id in routes.queues]
    for share in there:
        copy = for_session(message, key=share.key, fifo=queue.fifo)
        yield Entry(position=position, target=routes.queues[share.session_id], outgoing=copy)
    if stealing not in there:
        yield Entry(position=position, target=queue.main, outgoing=for_main(message, fifo=queue.fifo))
