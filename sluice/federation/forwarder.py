"""Forwards a batch of a bridge's queue to the peer's ingress.

A message is deleted after it is forwarded: Lambda deletes the messages that aren't reported as failed. Once the peer is
unreachable, the rest of the batch stays in the queue, and the outage is reported to the link.
"""

import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from sluice.batches import Dispatcher, Entry
from sluice.errors import (
    Dropped,
    HeldBack,
    NotDelivered,
    PeerRefused,
    PeerUnreachable,
    QueueGone,
    SenderFault,
    SluiceError,
    WentAround,
)
from sluice.federation.links.registry import Forward
from sluice.federation.matching.metadata import (
    MAX_TURNS,
    Crossing,
    Drop,
    DropReason,
    Metadata,
    ReceivedMessage,
    append_tag,
    fill_in_metadata,
    find_drop_reason,
    make_outgoing,
    open_attributes,
    seal_attributes,
)
from sluice.message import Message, Outgoing

if TYPE_CHECKING:  # Adapters are passed in as arguments, so their classes are only imported for type checking.
    from sluice.aws.federation.peers import PeerQueues


@dataclass(slots=True)
class ForwardOutcome:
    """The result of forwarding a batch. Failures and drops are listed by the messages' positions in the batch.

    `outage` is the error that stopped the batch. Messages that failed because of this error are retried.
    """

    failures: Mapping[int, SluiceError] = field(default_factory=dict)
    dropped_messages: Mapping[int, Drop] = field(default_factory=dict)
    outage: PeerUnreachable | PeerRefused | None = None
    counts: Counter[str] = field(default_factory=Counter)
    lag_ms: int = 0  # time that the oldest forwarded message has waited in the bridge's queue


def split_batch(messages: Sequence[Message], routes: int) -> list[list[int]]:
    """Divide a batch among routes: return positions in the batch by route. Each message group goes over one route."""
    if routes == 1:
        return [list(range(len(messages)))]
    positions_by_route: list[list[int]] = [[] for _ in range(routes)]
    for position, message in enumerate(messages if routes else ()):
        place = position if message.group_id is None else zlib.crc32(message.group_id.encode())
        positions_by_route[place % routes].append(position)
    return positions_by_route


def forward_all(
    messages: Sequence[Message],
    route: Forward,
    *,
    fifo: bool,
    site: str,
    now_ms: int,
    peers: "PeerQueues",
    executor: Executor,
    passes_filter: Callable[[Message], bool] | None = None,
) -> ForwardOutcome:
    """Forward a batch: in order from a FIFO queue, with parallel requests from a standard queue.

    `passes_filter` is the route's filter. Once it has raised `HeldBack`, it must raise this for all later messages.
    """
    refusals: dict[int, SenderFault] = {}
    held_back: dict[int, SluiceError] = {}
    drops: dict[int, Drop] = {}
    entries: list[Entry] = []
    url = route.peer.fifo_ingress_url if fifo else route.peer.ingress_url
    dest, dest_key = route.bridge.dest, None if route.bridge.dest_key is UNSET else route.bridge.dest_key
    for position, message in enumerate(messages):
        received = ReceivedMessage.from_message(message, site=site, now_ms=now_ms)
        try:
            over = forward(
                received, crossing=route.crossing, dest=dest, dest_key=dest_key, fifo=fifo, passes_filter=passes_filter
            )
        except SenderFault as fault:
            refusals[position] = fault
            continue
        except HeldBack as fault:
            held_back[position] = fault
            continue
        if isinstance(over, Drop):
            drops[position] = over
        else:
            entries.append(Entry(position=position, target=url, outgoing=over))

    sender = _PeerSender(route, peers)
    dispatcher = Dispatcher(fifo=fifo, send=sender.send, executor=executor, parallel_per_target=not fifo)
    dispatcher.dispatch(entries)
    retried: Mapping[int, SluiceError] = dispatcher.failures
    if sender.outage is not None:
        retried = {position: HeldBack(str(fault)) for position, fault in retried.items()}
    retried = {**retried, **held_back}
    dropped: dict[int, SluiceError] = {}
    if route.bridge.src_is_queue:
        reason = f"dropped by route {route.bridge.name}"
        dropped = {position: Dropped(f"{reason}: {drop.reason}") for position, drop in drops.items()}
    gone = [messages[entry.position].sent_at_ms for entry in dispatcher.sent]
    counts = Counter(f"MessagesDropped_{drop.reason}" for drop in drops.values())
    counts.update(MessagesForwarded=len(gone), MessagesRetried=len(retried), MessagesRefused=len(refusals))
    return ForwardOutcome(
        failures={**retried, **refusals, **dropped},
        dropped_messages=drops,
        outage=sender.outage,
        counts=+counts,
        lag_ms=now_ms - min((sent_at_ms for sent_at_ms in gone if sent_at_ms is not None), default=now_ms),
    )


def forward(
    received: ReceivedMessage,
    *,
    crossing: Crossing,
    dest: str,
    dest_key: str | None = None,
    fifo: bool,
    passes_filter: Callable[[Message], bool] | None = None,
) -> Outgoing | Drop:
    """Return the message for the peer's ingress and the exchange `dest`, or the reason to drop the message.

    If `dest_key` is None, the message keeps its key. `passes_filter` is called last, with the publisher's own
    attributes, and its errors are raised. The message's metadata is always trusted: without traces, two opposite queue
    routes would forward a message for ever, while a forged trace only stops its own message. Raises `SenderFault`.
    """
    opened = open_attributes(received.message.attributes)
    metadata, message_id = fill_in_metadata(opened.metadata or Metadata(), opened.attributes, received)
    if crossing.origins is UNSET:  # only messages of dynamic routes may have an address
        metadata = replace(metadata, to=None, turns=0)
    is_addressed, now_ms = metadata.to is not None, received.now_ms
    reason = find_drop_reason(metadata.trace, crossing, addressed=is_addressed) or metadata.check_expiry(now_ms)
    if reason is None and passes_filter is not None:
        published = msgspec.structs.replace(received.message, attributes=opened.attributes)
        reason = None if passes_filter(published) else DropReason.FILTERED
    if reason is not None:
        return Drop(reason=reason, message_id=message_id)
    if metadata.turns >= MAX_TURNS:
        raise WentAround(f"has crossed {metadata.turns} bridges on its way to {', '.join(sorted(metadata.to or ()))}")
    gone = replace(
        metadata,
        exchange=dest,
        key=metadata.key if dest_key is None else dest_key,
        trace=append_tag(metadata.trace, crossing, addressed=is_addressed),
        ttl_ms=metadata.compute_ttl_ms(now_ms),
        stamped_at_ms=now_ms,
        turns=metadata.turns + is_addressed,
    )
    attributes = seal_attributes(received.message.body, opened.attributes, gone)
    return make_outgoing(received.message, attributes, gone, fifo=fifo, crosses=True)


@dataclass(slots=True)
class _PeerSender:
    """Sends to a route's peer. After the first outage, all further sends fail without a call to SQS."""

    route: Forward
    peers: "PeerQueues"
    outage: PeerUnreachable | PeerRefused | None = None

    def send(self, url: str, entries: Sequence[dict[str, Any]]) -> Mapping[str, str]:
        if self.outage is not None:
            raise self.outage
        try:
            return self.peers.send_batch(self.route.link, self.route.endpoint, url, entries)
        except (PeerUnreachable, PeerRefused) as outage:
            self.outage = outage
            raise
        except QueueGone as error:
            # The peer's ingress may be created again, so the message must be retried, unlike after `QueueGone`.
            raise NotDelivered(str(error)) from error
