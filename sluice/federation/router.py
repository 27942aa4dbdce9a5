"""Routes a batch of an ingress queue: what an exchange sends where of each message, or why it doesn't; and sends it.

Copy, then delete: a message is done only when every queue has its copy. Nothing is deleted here; the trigger deletes
what isn't reported as failed.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from sluice.batches import Dispatcher, Entry, Send
from sluice.errors import (
    Malformed,
    NoPeer,
    NotPermitted,
    QueueGone,
    SenderFault,
    SluiceError,
    dead_letter_text,
)
from sluice.federation.links.peers import KnownPeers, Peer, marked
from sluice.federation.matching.bindings import Destination, RoutingTable
from sluice.federation.matching.indexes import Publication
from sluice.federation.matching.metadata import (
    ATTRIBUTE,
    EXCHANGE_ATTRIBUTE,
    Drop,
    DropReason,
    Metadata,
    Receipt,
    attribute_text,
    deduplication_id,
    held_back,
    make_outgoing,
    open_attributes,
    seal,
    stamp,
)
from sluice.federation.matching.typed_values import headers_of
from sluice.message import MAX_ATTRIBUTES, Attributes, Message, Outgoing

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
        receipt = Receipt.of(message, site=site, now_ms=now_ms)
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


# One message


class Copy(msgspec.Struct, frozen=True, kw_only=True):
    """What goes to one queue."""

    destination: Destination
    outgoing: Outgoing


class Published(msgspec.Struct, frozen=True, kw_only=True):
    """What becomes of a message at an exchange. There is at least one copy or one drop."""

    message_id: str
    copies: tuple[Copy, ...] = ()
    drops: tuple[Drop, ...] = ()


def publish(
    receipt: Receipt,
    *,
    table: RoutingTable,
    trusted: bool,
    senders: Sequence[Peer] | None = None,
    exchange: str | None = None,
) -> Published:
    """Decide what the exchange does with a message; where `exchange` is None, the one that the message names.

    `senders` are the peers one of which it came from, over a link. What they say is believed, and what is said where a
    site chooses to trust its publishers. Otherwise the trace, the id and the times that a message claims are forgotten,
    as if it had none.

    Raises `SenderFault` for a message that can never succeed: its metadata can't be read, its key is too long, it is
    too large with metadata, the exchange isn't there, or isn't one that the peer may push to.
    """
    opened = open_attributes(receipt.message.attributes)
    claimed = opened.metadata or Metadata()
    if senders is not None:
        claimed = replace(claimed, trace=marked(claimed.trace, senders))
    elif not trusted:
        claimed = Metadata(exchange=claimed.exchange, key=claimed.key, ttl_ms=claimed.ttl_ms, headers=claimed.headers)
    metadata, message_id = stamp(claimed, opened.attributes, receipt)
    named = exchange or claimed.exchange or attribute_text(opened.attributes, EXCHANGE_ATTRIBUTE)
    if not named:
        raise Malformed(f"names no exchange: neither {ATTRIBUTE} nor an attribute `{EXCHANGE_ATTRIBUTE}` does")
    refusals = [each.push_refusal(named) for each in senders or ()]
    if refusals and None not in refusals:
        raise NotPermitted(refusals[0] or "")
    reason = (DropReason.LOOP if receipt.site in metadata.trace else None) or metadata.expired(receipt.now_ms)
    if reason is not None:
        return Published(message_id=message_id, drops=(Drop(reason=reason, message_id=message_id),))
    headers = headers_of(opened.attributes, metadata.headers)
    destinations = table.route(Publication(exchange=named, key=metadata.key or "", headers=headers))
    if not destinations:
        return Published(message_id=message_id, drops=(Drop(reason=DropReason.UNROUTABLE, message_id=message_id),))
    return _shared_out(receipt, opened.attributes, replace(metadata, exchange=named), destinations)


def _shared_out(
    receipt: Receipt, attributes: Attributes, metadata: Metadata, destinations: Sequence[Destination]
) -> Published:
    """Give each destination its copy: those on dynamic bridges share out whom the message is for."""
    message, message_id = receipt.message, metadata.message_id or ""
    is_addressed, is_for_here = metadata.to is not None, metadata.to is None or receipt.site in metadata.to
    unaddressed = replace(metadata, to=None, turns=0)
    sealed = seal(message.body, attributes, unaddressed)
    # SQS's ten are the user's again where the message ends its way: a plain consumer knows nothing of `x-qpid`.
    fills_up = len(attributes) == MAX_ATTRIBUTES and not metadata.headers
    at_the_end = attributes if fills_up else sealed
    copies: list[Copy] = []
    drops: list[Drop] = []
    for destination in destinations:
        crossing, held, known_as = destination.crossing, None, message_id
        if crossing is not None and crossing.origins is not UNSET:
            # Without an address it is for all who haven't had it.
            to = crossing.origins.difference(metadata.trace) if metadata.to is None else crossing.origins & metadata.to
            addressed = replace(metadata, to=to)
            if is_addressed and not addressed.to:
                continue  # other copies are for those
            held = held_back(metadata.trace, crossing, addressed=is_addressed)
            held = held or (None if addressed.to else DropReason.LOOP)
            carried, known_as = seal(message.body, attributes, addressed), deduplication_id(addressed)
        elif is_for_here:
            if crossing is not None:
                held, known_as = held_back(metadata.trace, crossing), deduplication_id(unaddressed)
            carried = sealed if destination.goes_on else at_the_end
        else:
            continue
        if held is not None:
            drops.append(Drop(reason=held, message_id=message_id, queue=destination.queue))
            continue
        sent = make_outgoing(message, carried, message_id, fifo=destination.is_fifo, known_as=known_as)
        copies.append(Copy(destination=destination, outgoing=sent))
    if not (copies or drops):
        drops.append(Drop(reason=DropReason.UNROUTABLE, message_id=message_id))
    return Published(message_id=message_id, copies=tuple(copies), drops=tuple(drops))
