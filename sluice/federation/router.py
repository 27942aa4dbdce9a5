"""Routes a batch of an ingress queue: decides which queues get each message, and sends the copies.

A message is deleted only after every queue has got its copy: Lambda deletes the messages that aren't reported as
failed.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from sluice.batches import Dispatcher, Entry, RefusedEntry, Send
from sluice.errors import DestinationFault, Malformed, NoPeer, NotPermitted, QueueGone, SenderFault, SluiceError
from sluice.federation.links.peers import KnownPeers, Peer, append_peer_tag
from sluice.federation.matching.bindings import Destination, RoutingTable
from sluice.federation.matching.indexes import Publication
from sluice.federation.matching.metadata import (
    ATTRIBUTE,
    EXCHANGE_ATTRIBUTE,
    Drop,
    DropReason,
    Metadata,
    ReceivedMessage,
    fill_in_metadata,
    find_drop_reason,
    get_attribute_text,
    make_outgoing,
    open_attributes,
    seal_attributes,
)
from sluice.federation.matching.typed_values import collect_headers
from sluice.message import MAX_ATTRIBUTES, Attributes, Message, Outgoing

LASTING_AFTER_MS = 5_000  # messages aren't retried if their queue has been missing or refusing for this long
REPORT_INTERVAL_MS = 60_000


class Ingress(msgspec.Struct, frozen=True, kw_only=True):
    """A queue through which publishers' messages reach one exchange, or any exchange if `exchange` is None.

    `from_links` is true if only peers send to the queue. `trusted` is true if publishers' metadata is trusted.
    """

    fifo: bool
    from_links: bool = False
    trusted: bool = False
    exchange: str | None = None


def identify_senders(message: Message, peers: KnownPeers) -> Sequence[Peer]:
    """Return the peers that may have sent the message. Raises `NoPeer` if the sender is unknown."""
    senders = peers.find_senders(message.sender_id)
    if not senders:
        raise NoPeer(f"sent by {message.sender_id.partition(':')[0]!r}, which is no peer's role")
    return senders


@dataclass(slots=True)
class FailingQueues:
    """Caches the URLs of queues that were missing, or refused messages, when messages were last sent to them.

    SQS also reports a queue as missing during the queue's first second, and new permissions take effect after some
    seconds. So one answer of SQS doesn't prove that a queue was deleted, or that it will refuse messages again.
    """

    since_ms: dict[str, int] = field(default_factory=dict)
    reported_ms: dict[str, int] = field(default_factory=dict)

    def record_failure(self, url: str, now_ms: int) -> bool:
        """Record that a queue fails. Returns whether it has been failing for at least `LASTING_AFTER_MS`."""
        return now_ms - self.since_ms.setdefault(url, now_ms) >= LASTING_AFTER_MS

    def is_report_due(self, url: str, now_ms: int) -> bool:
        """Return whether a queue's refusal should be reported now, which is once in `REPORT_INTERVAL_MS`."""
        is_due = now_ms - self.reported_ms.get(url, 0) >= REPORT_INTERVAL_MS
        if is_due:
            self.reported_ms[url] = now_ms
        return is_due

    def mark_working(self, urls: Iterable[str]) -> None:
        """Remove queues from the failing ones, because they accepted a message."""
        for url in self.since_ms.keys() & set(urls):
            del self.since_ms[url]


@dataclass(slots=True)
class RoutingOutcome:
    """The result of routing a batch: failures by position, undeliverable copies with their errors, and drops.

    `missing_urls` has the number of undeliverable copies for each missing queue's URL. `refusals` has SQS's reason for
    the URL of each queue that refused messages.
    """

    failures: Mapping[int, SluiceError] = field(default_factory=dict)
    undeliverable: Sequence[RefusedEntry] = ()
    missing_urls: Mapping[str, int] = field(default_factory=dict)
    refusals: Mapping[str, str] = field(default_factory=dict)
    dropped_messages: Sequence[Drop] = ()
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
    failing: FailingQueues,
) -> RoutingOutcome:
    """Send each message of the batch, in order, to the queues that its exchange selects.

    A message from a link is refused unless it is from one of the `peers`. If a target queue is missing but may be new,
    or refuses messages, the message is retried once. If the error lasts, the copy is undeliverable. Then the message
    isn't retried, because a retry would send another copy to the other queues.
    """
    refusals: dict[int, SenderFault] = {}
    drops: list[Drop] = []
    entries: list[Entry] = []
    known_peers = peers() if ingress.from_links else None
    for position, message in enumerate(messages):
        received = ReceivedMessage.from_message(message, site=site, now_ms=now_ms)
        try:
            senders = None if known_peers is None else identify_senders(message, known_peers)
            published = publish(
                received, table=table, trusted=ingress.trusted, senders=senders, exchange=ingress.exchange
            )
        except SenderFault as fault:
            refusals[position] = fault
            continue
        drops.extend(published.dropped_messages)
        entries.extend(
            Entry(position=position, target=copy.destination.url, outgoing=copy.outgoing) for copy in published.copies
        )
    optional = {entry.target for entry in entries}
    dispatcher = Dispatcher(fifo=ingress.fifo, send=send, executor=executor, optional=optional)
    persistent_failures: list[RefusedEntry] = []
    faults: dict[str, DestinationFault] = {}
    remaining_entries: Sequence[Entry] = entries
    while remaining_entries:
        stopped = dispatcher.dispatch(remaining_entries)
        for entry, error in stopped.refused:
            faults[entry.target] = error
            if failing.record_failure(entry.target, now_ms) or messages[entry.position].receive_count > 1:
                persistent_failures.append(RefusedEntry(entry, error))
            else:  # This entry fails now, so that later messages of its group are held back.
                dispatcher.fail(entry, error)
        remaining_entries = stopped.untried
    failing.mark_working(entry.target for entry in dispatcher.sent)
    # A message that also failed for another queue is retried, so its copies aren't undeliverable yet.
    undeliverable = [lost for lost in persistent_failures if lost.entry.position not in dispatcher.failures]
    copies = Counter(lost.entry.target for lost in undeliverable)
    counts = Counter(
        MessagesReceived=len(messages),
        MessagesRouted=len(dispatcher.sent),
        MessagesFailed=len(dispatcher.failures),
        MessagesRefused=len(refusals),
        MessagesUndeliverable=len(undeliverable),
    )
    return RoutingOutcome(
        failures={**dispatcher.failures, **refusals},
        undeliverable=undeliverable,
        missing_urls={url: copies[url] for url, fault in sorted(faults.items()) if isinstance(fault, QueueGone)},
        refusals={url: str(fault) for url, fault in faults.items() if not isinstance(fault, QueueGone)},
        dropped_messages=drops,
        counts=+counts,
    )


class RoutedCopy(msgspec.Struct, frozen=True, kw_only=True):
    """A copy of a message for one queue."""

    destination: Destination
    outgoing: Outgoing


class PublishResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of publishing a message: at least one copy or one drop."""

    copies: tuple[RoutedCopy, ...] = ()
    dropped_messages: tuple[Drop, ...] = ()


def publish(
    received: ReceivedMessage,
    *,
    table: RoutingTable,
    trusted: bool,
    senders: Sequence[Peer] | None = None,
    exchange: str | None = None,
) -> PublishResult:
    """Decide which queues get a message. If `exchange` is None, the message names its exchange.

    `senders` are the peers that may have sent the message over a link. Metadata is trusted from peers, and from any
    publisher if `trusted`. Otherwise the claimed trace, id and times are dropped.
    Raises `SenderFault` for a message that can never succeed: its metadata is malformed, its key is too long, the
    message is too large with metadata, or its exchange is missing or not open to the peer.
    """
    opened = open_attributes(received.message.attributes)
    claimed = opened.metadata or Metadata()
    if senders is not None:
        claimed = replace(claimed, trace=append_peer_tag(claimed.trace, senders))
    elif not trusted:
        claimed = Metadata(exchange=claimed.exchange, key=claimed.key, ttl_ms=claimed.ttl_ms, headers=claimed.headers)
    metadata, message_id = fill_in_metadata(claimed, opened.attributes, received)
    named = exchange or claimed.exchange or get_attribute_text(opened.attributes, EXCHANGE_ATTRIBUTE)
    if not named:
        raise Malformed(f"names no exchange: neither {ATTRIBUTE} nor an attribute `{EXCHANGE_ATTRIBUTE}` does")
    refusals = [sender.find_push_refusal(named) for sender in senders or ()]
    if refusals and None not in refusals:
        raise NotPermitted(refusals[0] or "")
    reason = (DropReason.LOOP if received.site in metadata.trace else None) or metadata.check_expiry(received.now_ms)
    if reason is not None:
        return PublishResult(dropped_messages=(Drop(reason=reason, message_id=message_id),))
    headers = collect_headers(opened.attributes, metadata.headers)
    destinations = table.route(Publication(exchange=named, key=metadata.key or "", headers=headers))
    if not destinations:
        return PublishResult(dropped_messages=(Drop(reason=DropReason.UNROUTABLE, message_id=message_id),))
    return _address_copies(received, opened.attributes, replace(metadata, exchange=named), destinations)


def _address_copies(
    received: ReceivedMessage, attributes: Attributes, metadata: Metadata, destinations: Sequence[Destination]
) -> PublishResult:
    """Return a copy for each destination. The copies on dynamic bridges divide the message's origins among them."""
    message, message_id = received.message, metadata.message_id or ""
    is_addressed, is_for_here = metadata.to is not None, metadata.to is None or received.site in metadata.to
    unaddressed = replace(metadata, to=None, turns=0)
    sealed = seal_attributes(message.body, attributes, unaddressed)
    # At its final queue, a message with ten user attributes gets no `x-qpid`, because plain consumers don't need it.
    fills_up = len(attributes) == MAX_ATTRIBUTES and not metadata.headers
    at_the_end = attributes if fills_up else sealed
    copies: list[RoutedCopy] = []
    drops: list[Drop] = []
    for destination in destinations:
        crossing, drop_reason, carrying = destination.crossing, None, unaddressed
        if crossing is not None and crossing.origins is not UNSET:
            # A message without an address is for all origins that aren't in its trace.
            to = crossing.origins.difference(metadata.trace) if metadata.to is None else crossing.origins & metadata.to
            carrying = replace(metadata, to=to)
            if is_addressed and not to:
                continue  # other copies lead to the remaining origins
            drop_reason = find_drop_reason(metadata.trace, crossing, addressed=is_addressed)
            drop_reason = drop_reason or (None if to else DropReason.LOOP)
            carried = seal_attributes(message.body, attributes, carrying)
        elif is_for_here:
            if crossing is not None:
                drop_reason = find_drop_reason(metadata.trace, crossing)
            carried = sealed if destination.is_forwarded else at_the_end
        else:
            continue
        if drop_reason is not None:
            drops.append(Drop(reason=drop_reason, message_id=message_id, queue=destination.queue))
            continue
        sent = make_outgoing(message, carried, carrying, fifo=destination.is_fifo, crosses=crossing is not None)
        copies.append(RoutedCopy(destination=destination, outgoing=sent))
    if not (copies or drops):
        drops.append(Drop(reason=DropReason.UNROUTABLE, message_id=message_id))
    return PublishResult(copies=tuple(copies), dropped_messages=tuple(drops))
