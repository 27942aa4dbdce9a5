"""Routes a batch of an ingress queue: the copies are `deliveries`' to decide; here they are sent and counted.

Copy, then delete: a message is done only when every queue has its copy. Nothing is deleted here; the trigger deletes
what isn't reported as failed.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any, Protocol

from sluice.batches import Dispatcher, Entry
from sluice.errors import QueueGone, SenderFault, SluiceError
from sluice.federation.links.peers import KnownPeers, Peer
from sluice.federation.matching.routing import RoutingTable
from sluice.federation.messages.deliveries import Drop, Receipt, publish
from sluice.message import Message
from sluice.ulids import ulid_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Ingress:
    """A queue that messages are published to: any exchange's, or one's alone.

    `from_links` where only peers send to it; `trusted` where publishers are believed where a message has been.
    """

    fifo: bool
    from_links: bool = False
    trusted: bool = False
    exchange: str | None = None


class BoundQueues(Protocol):
    """The queues that are bound, by URL."""

    def send_batch(self, url: str, entries: Sequence[dict[str, Any]]) -> Mapping[str, str]:
        """Send up to ten entries; the ids of those that SQS refused, with its reason.

        Raises `QueueGone` for a queue that doesn't exist and `CallFailed` for what else goes wrong with all of them.
        """


class NoPeer(SenderFault):
    """A message in a queue that is for peers, of somebody who is none."""


def senders_of(message: Message, peers: KnownPeers) -> Sequence[Peer]:
    """Return whose message it may be. Raises `NoPeer`."""
    found = peers.sent_by(message.sender_id)
    if not found:
        raise NoPeer(f"sent by {message.sender_id.partition(':')[0]!r}, which is no peer's role")
    return found


@dataclass(slots=True)
class RoutingOutcome:
    """What became of a batch: by position what comes again or never can; copies without a queue; drops."""

    failures: Mapping[int, SluiceError] = field(default_factory=dict)
    undeliverable: Sequence[tuple[int, str]] = ()  # the message's position, and why: its queue is gone
    drops: Sequence[Drop] = ()
    counts: Counter[str] = field(default_factory=Counter)


def route(
    messages: Sequence[Message],
    ingress: Ingress,
    table: RoutingTable,
    *,
    site: str,
    peers: Callable[[], KnownPeers],
    now_ms: int,
    queues: BoundQueues,
    executor: Executor,
) -> RoutingOutcome:
    """Send every message of the batch to the queues that its exchange finds. `messages` are in order.

    What comes from links is a peer's of those that `peers` knows, or a stranger's, which is refused.

    A copy whose queue is gone is undeliverable, and its message done: the other queues have theirs, and were it to come
    again, they'd have it twice.
    """
    refused: dict[int, SenderFault] = {}
    drops: list[Drop] = []
    entries: list[Entry] = []
    known = peers() if ingress.from_links else None
    for position, message in enumerate(messages):
        sent_at_ms = now_ms if message.sent_at_ms is None else message.sent_at_ms
        ulid = ulid_of(message.message_id, sent_at_ms=sent_at_ms)
        receipt = Receipt(message=message, site=site, ulid=ulid, now_ms=now_ms)
        try:
            senders = None if known is None else senders_of(message, known)
            published = publish(
                receipt, table=table, trusted=ingress.trusted, senders=senders, exchange=ingress.exchange
            )
        except SenderFault as fault:
            refused[position] = fault
            continue
        drops.extend(published.drops)
        entries.extend(
            Entry(position=position, target=copy.destination.url, outgoing=copy.outgoing) for copy in published.copies
        )
    dispatcher = Dispatcher(fifo=ingress.fifo, send=queues.send_batch, executor=executor)
    undeliverable: list[tuple[int, str]] = []
    left: Sequence[Entry] = entries
    while left:
        stopped = dispatcher.dispatch(left)
        undeliverable += [(entry.position, str(QueueGone(entry.target))) for entry in stopped.gone]
        left = stopped.later
    counts = Counter(
        MessagesReceived=len(messages),
        MessagesRouted=len(dispatcher.sent),
        MessagesFailed=len(dispatcher.failures),
        MessagesRefused=len(refused),
        MessagesUndeliverable=len(undeliverable),
    )
    return RoutingOutcome(
        failures={**dispatcher.failures, **refused}, undeliverable=undeliverable, drops=drops, counts=+counts
    )
