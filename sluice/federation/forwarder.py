"""Sends a batch of a bridge's queue to the peer's ingress: what goes is `deliveries`' to decide; here it is sent.

Forward, then delete: nothing is deleted here; the trigger deletes what isn't reported as failed. Once the peer can't be
reached, nothing more of the batch is tried: it stays, and the link is told.
"""

import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from msgspec import UNSET

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
)
from sluice.federation.links.registry import Forward
from sluice.federation.messages.deliveries import Drop, Receipt, forward
from sluice.message import Message
from sluice.ulids import ulid_of

if TYPE_CHECKING:  # at run time the shell is given its adapters, and imports none
    from sluice.aws.federation.peers import PeerQueues

FIFO_SUFFIX = ".fifo"


@dataclass(slots=True)
class ForwardOutcome:
    """What became of a batch, by position: what comes again or never can, and what was dropped.

    `outage` is what stopped the batch; then all that failed for it waits, and no message is to blame.
    """

    failures: Mapping[int, SluiceError] = field(default_factory=dict)
    drops: Mapping[int, Drop] = field(default_factory=dict)
    outage: PeerUnreachable | PeerRefused | None = None
    counts: Counter[str] = field(default_factory=Counter)
    lag_ms: int = 0  # of the oldest message that was forwarded, since it came into the bridge's queue


def shared_out(messages: Sequence[Message], routes: int) -> list[list[int]]:
    """Give the positions of a batch that each of the routes is to forward; a group's messages all go over one."""
    if routes == 1:
        return [list(range(len(messages)))]
    shares: list[list[int]] = [[] for _ in range(routes)]
    for position, message in enumerate(messages if routes else ()):
        place = position if message.group_id is None else zlib.crc32(message.group_id.encode())
        shares[place % routes].append(position)
    return shares


def forward_all(
    messages: Sequence[Message],
    route: Forward,
    *,
    fifo: bool,
    site: str,
    now_ms: int,
    peers: "PeerQueues",
    executor: Executor,
    lets_over: Callable[[Message], bool] | None = None,
) -> ForwardOutcome:
    """Forward the batch of a FIFO queue, in order, or of a standard one, requests abreast.

    `lets_over` is the route's filter, where it has one. Once it holds a message back, so it does all later ones.
    """
    refused: dict[int, SenderFault] = {}
    unasked: dict[int, SluiceError] = {}
    drops: dict[int, Drop] = {}
    entries: list[Entry] = []
    url = route.peer.fifo_ingress_url if fifo else route.peer.ingress_url
    dest, dest_key = route.bridge.dest, None if route.bridge.dest_key is UNSET else route.bridge.dest_key
    for position, message in enumerate(messages):
        sent_at_ms = now_ms if message.sent_at_ms is None else message.sent_at_ms
        ulid = ulid_of(message.message_id, sent_at_ms=sent_at_ms)
        receipt = Receipt(message=message, site=site, ulid=ulid, now_ms=now_ms)
        try:
            crossed = forward(
                receipt, crossing=route.crossing, dest=dest, dest_key=dest_key, fifo=fifo, lets_over=lets_over
            )
        except SenderFault as fault:
            refused[position] = fault
            continue
        except HeldBack as fault:
            unasked[position] = fault
            continue
        if isinstance(crossed, Drop):
            drops[position] = crossed
        else:
            entries.append(Entry(position=position, target=url, outgoing=crossed))

    way = _Way(route, peers)
    dispatcher = Dispatcher(fifo=fifo, send=way.send, executor=executor, abreast=not fifo)
    dispatcher.dispatch(entries)
    waiting: Mapping[int, SluiceError] = dispatcher.failures
    if way.outage is not None:
        waiting = {position: HeldBack(str(fault)) for position, fault in waiting.items()}
    waiting = {**waiting, **unasked}
    dropped: dict[int, SluiceError] = {}
    if route.bridge.src_is_queue:
        reason = f"dropped by route {route.bridge.name}"
        dropped = {position: Dropped(f"{reason}: {drop.reason}") for position, drop in drops.items()}
    gone = [messages[entry.position].sent_at_ms for entry in dispatcher.sent]
    counts = Counter(f"MessagesDropped_{drop.reason}" for drop in drops.values())
    for name, number in {
        "MessagesForwarded": len(gone),
        "MessagesRetried": len(waiting),
        "MessagesRefused": len(refused),
    }.items():
        if number:
            counts[name] = number
    return ForwardOutcome(
        failures={**waiting, **refused, **dropped},
        drops=drops,
        outage=way.outage,
        counts=counts,
        lag_ms=now_ms - min((sent_at_ms for sent_at_ms in gone if sent_at_ms is not None), default=now_ms),
    )


@dataclass(slots=True)
class _Way:
    """The way to the route's peer. Once the peer can't be reached, nothing more is tried."""

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
            # The peer's ingress may be back. The dispatcher would hand it back as gone, for somebody to route anew.
            raise NotDelivered(str(error)) from error
