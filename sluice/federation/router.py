"""Routes a batch of an ingress queue: the copies are `deliveries`' to decide; here they are sent and counted.

Copy, then delete: a message is done only when every queue has its copy. Nothing is deleted here; the trigger deletes
what isn't reported as failed.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any, Protocol

from sluice.batches import Parcel, Progress, Request, Round, fifo_rounds, standard_round
from sluice.errors import DestinationFault, QueueGone, SenderFault
from sluice.federation.matching.routing import RoutingTable
from sluice.federation.messages.deliveries import Drop, Published, Receipt, publish
from sluice.federation.messages.ulids import ulid_of
from sluice.message import Message

HELD_BACK = "held back by an earlier message of its group"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ingress:
    """A queue that messages are published to: any exchange's, or one's alone. `trusted` where only links send to it."""

    fifo: bool
    trusted: bool = False
    exchange: str | None = None


class BoundQueues(Protocol):
    """The queues that are bound, by URL."""

    def send_batch(self, url: str, entries: Sequence[dict[str, Any]]) -> Mapping[str, str]:
        """Sends up to ten entries; the ids of those that SQS refused, with its reason.

        Raises `QueueGone` for a queue that doesn't exist and `CallFailed` for what else goes wrong with all of them.
        """


@dataclass(slots=True)
class Outcome:
    """What became of a batch: by position what comes again, and what never can; copies without a queue; drops."""

    failed: Mapping[int, str] = field(default_factory=dict)
    refused: Mapping[int, SenderFault] = field(default_factory=dict)
    undeliverable: Sequence[tuple[int, str]] = ()  # the message's position, and why: its queue is gone
    drops: Sequence[Drop] = ()
    counts: Counter[str] = field(default_factory=Counter)


def route(
    messages: Sequence[Message],
    ingress: Ingress,
    table: RoutingTable,
    *,
    site: str,
    now_ms: int,
    queues: BoundQueues,
    executor: Executor,
) -> Outcome:
    """Sends every message of the batch to the queues that its exchange finds. `messages` are in order."""
    batch = _Batch(fifo=ingress.fifo, queues=queues, executor=executor)
    for position, message in enumerate(messages):
        batch.decide(position, _published(message, ingress, table, site=site, now_ms=now_ms))
    batch.send_all()
    return batch.outcome(len(messages))


def _published(
    message: Message, ingress: Ingress, table: RoutingTable, *, site: str, now_ms: int
) -> Published | SenderFault:
    sent_at_ms = now_ms if message.sent_at_ms is None else message.sent_at_ms
    receipt = Receipt(
        message=message, site=site, ulid=ulid_of(message.message_id, sent_at_ms=sent_at_ms), now_ms=now_ms
    )
    try:
        return publish(receipt, table=table, trusted=ingress.trusted, exchange=ingress.exchange)
    except SenderFault as fault:
        return fault


@dataclass(slots=True, kw_only=True)
class _Batch:
    fifo: bool
    queues: BoundQueues
    executor: Executor
    progress: Progress = field(init=False)
    parcels: list[Parcel] = field(default_factory=list)
    drops: list[Drop] = field(default_factory=list)
    refused: dict[int, SenderFault] = field(default_factory=dict)
    undeliverable: list[tuple[int, str]] = field(default_factory=list)
    reasons: dict[int, str] = field(default_factory=dict)
    sent: int = 0

    def __post_init__(self) -> None:
        self.progress = Progress(fifo=self.fifo)

    def decide(self, position: int, published: Published | SenderFault) -> None:
        """Notes what is to become of one message."""
        if isinstance(published, SenderFault):
            self.refused[position] = published
            return
        self.drops.extend(published.drops)
        self.parcels.extend(
            Parcel(position=position, target=copy.destination.url, outgoing=copy.outgoing) for copy in published.copies
        )

    def send_all(self) -> None:
        """Sends all copies, round by round; queues side by side."""
        rounds: Sequence[Round] = fifo_rounds(self.parcels) if self.fifo else (standard_round(self.parcels),)
        for requests in rounds:
            for _ in self.executor.map(self._send_to, _by_target(requests)):
                pass  # what a thread raised is raised here

    def _send_to(self, requests: Iterable[Request]) -> None:
        for request in requests:
            sendable = self.progress.sendable(request)
            if sendable is not None:
                self._send(sendable)

    def _send(self, request: Request) -> None:
        try:
            refused = self.queues.send_batch(request.target, request.entries())
        except QueueGone as error:
            # The other queues have theirs: were the message to come again, they'd have it twice.
            self.undeliverable += [(parcel.position, str(error)) for parcel in request.parcels]
            return
        except DestinationFault as error:
            refused = {str(place): str(error) for place in range(len(request.parcels))}
        for place, parcel in enumerate(request.parcels):
            if str(place) in refused:
                self.reasons[parcel.position] = refused[str(place)]
                self.progress.fail(parcel)
            else:
                self.sent += 1

    def outcome(self, received: int) -> Outcome:
        """Everything that happened."""
        failed = {position: self.reasons.get(position, HELD_BACK) for position in self.progress.failed()}
        counts = Counter(
            MessagesReceived=received,
            MessagesRouted=self.sent,
            MessagesFailed=len(failed),
            MessagesRefused=len(self.refused),
            MessagesUndeliverable=len(self.undeliverable),
        )
        return Outcome(
            failed=failed,
            refused=self.refused,
            undeliverable=self.undeliverable,
            drops=self.drops,
            counts=+counts,
        )


def _by_target(requests: Round) -> list[list[Request]]:
    found: dict[str, list[Request]] = {}
    for request in requests:
        found.setdefault(request.target, []).append(request)
    return list(found.values())
