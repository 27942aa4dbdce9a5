"""Routes a batch of an ingress queue: the copies are `deliveries`' to decide; here they are sent and counted.

Copy, then delete: a message is done only when every queue has its copy. Nothing is deleted here; the trigger deletes
what isn't reported as failed.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field

import msgspec

from sluice.batches import Dispatcher, Entry, Send
from sluice.errors import NoPeer, QueueGone, SenderFault, SluiceError, dead_letter_text
from sluice.federation.links.peers import KnownPeers, Peer
from sluice.federation.matching.replicas import RoutingTable
from sluice.federation.messages.deliveries import Drop, Receipt, publish
from sluice.message import Message, Outgoing
from sluice.ulids import ulid_of

GONE_AFTER_MS = 5_000  # of answers that a queue doesn't exist


class Ingress(msgspec.Struct, frozen=True, kw_only=True):
    """A queue that messages are published to: any exchange's, or one's alone.

    `from_links` where only peers send to it; `trusted` where publishers are believed where a message has been.
    """

    fifo: bool
    from_links: bool = False
    trusted: bool = False
    exchange: str | None = None


def senders_of(message: Message, peers: KnownPeers) -> Sequence[Peer]:
    """Return whose message it may be. Raises `NoPeer`."""
    found = peers.sent_by(message.sender_id)
    if not found:
        raise NoPeer(f"sent by {message.sender_id.partition(':')[0]!r}, which is no peer's role")
    return found


@dataclass(slots=True)
class AbsentQueues:
    """The queues, by URL, that said they don't exist when they were last sent to: what an environment keeps of them.

    SQS says so of a queue in its first second too, so one answer is no proof that it is gone.
    """

    since_ms: dict[str, int] = field(default_factory=dict)

    def is_gone(self, url: str, now_ms: int) -> bool:
        """Note that it said so; whether it has for some seconds."""
        return now_ms - self.since_ms.setdefault(url, now_ms) >= GONE_AFTER_MS

    def there(self, urls: Iterable[str]) -> None:
        """Forget queues that took something."""
        for url in self.since_ms.keys() & set(urls):
            del self.since_ms[url]


class Undeliverable(msgspec.Struct, frozen=True, kw_only=True):
    """A copy whose queue is gone: of the message at the position."""

    position: int
    url: str
    outgoing: Outgoing

    @property
    def queue(self) -> str:
        """The queue's name."""
        return self.url.rsplit("/", 1)[1]

    @property
    def reason(self) -> str:
        """Why it is a dead letter."""
        return dead_letter_text(QueueGone(self.url))


@dataclass(slots=True)
class RoutingOutcome:
    """What became of a batch: by position what comes again or never can; copies without a queue; drops.

    `absent` are the URLs of the queues that said they don't exist, each with how many of its copies are undeliverable.
    """

    failures: Mapping[int, SluiceError] = field(default_factory=dict)
    undeliverable: Sequence[Undeliverable] = ()
    absent: Mapping[str, int] = field(default_factory=dict)
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
    send: Send,
    executor: Executor,
    absent: AbsentQueues,
) -> RoutingOutcome:
    """Send every message of the batch to the queues that its exchange finds. `messages` are in order.

    What comes from links is a peer's of those that `peers` knows, or a stranger's, which is refused.

    A message comes again, once, where a queue says that it doesn't exist and may only be new. A copy whose queue is
    gone is undeliverable, and its message done: the other queues have theirs, and each time that it came again, they'd
    have it once more.
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
    dispatcher = Dispatcher(fifo=ingress.fifo, send=send, executor=executor)
    gone: list[Undeliverable] = []
    said_so: set[str] = set()
    left: Sequence[Entry] = entries
    while left:
        stopped = dispatcher.dispatch(left)
        said_so |= {entry.target for entry in stopped.gone}
        for entry in stopped.gone:
            if absent.is_gone(entry.target, now_ms) or messages[entry.position].receives > 1:
                gone.append(Undeliverable(position=entry.position, url=entry.target, outgoing=entry.outgoing))
            else:  # at once: what follows in its group is held back
                dispatcher.fail(entry, QueueGone(entry.target))
        left = stopped.later
    absent.there(entry.target for entry in dispatcher.sent)
    undeliverable = [each for each in gone if each.position not in dispatcher.failures]  # else it comes again
    copies = Counter(each.url for each in undeliverable)
    counts = Counter(
        MessagesReceived=len(messages),
        MessagesRouted=len(dispatcher.sent),
        MessagesFailed=len(dispatcher.failures),
        MessagesRefused=len(refused),
        MessagesUndeliverable=len(undeliverable),
    )
    return RoutingOutcome(
        failures={**dispatcher.failures, **refused},
        undeliverable=undeliverable,
        absent={url: copies[url] for url in sorted(said_so)},
        drops=drops,
        counts=+counts,
    )
