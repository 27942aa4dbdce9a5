"""Sends a batch of a bridge's queue to the peer's ingress: what goes is `deliveries`' to decide; here it is sent.

Forward, then delete: nothing is deleted here; the trigger deletes what isn't reported as failed. Once the peer can't be
reached, nothing more of the batch is tried: it stays, and the link is told.
"""

import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field

from sluice.batches import Parcel, Progress, Request, standard_round
from sluice.errors import DestinationFault, SenderFault
from sluice.federation.links.registry import Forward
from sluice.federation.messages.deliveries import Drop, Receipt, forward
from sluice.federation.messages.ulids import ulid_of
from sluice.federation.ports import PeerRefused, Peers, PeerUnreachable
from sluice.message import Message, Outgoing

HELD_BACK = "held back by an earlier message of its group"
FIFO_SUFFIX = ".fifo"


@dataclass(slots=True)
class Outcome:
    """What became of a batch, by position: to come again with the reason, never, or dropped.

    `outage` is what stopped the batch; then all that failed for it waits, and no message is to blame.
    """

    failed: Mapping[int, str] = field(default_factory=dict)
    refused: Mapping[int, SenderFault] = field(default_factory=dict)
    drops: Mapping[int, Drop] = field(default_factory=dict)
    outage: PeerUnreachable | PeerRefused | None = None
    counts: Counter[str] = field(default_factory=Counter)
    lag_ms: int = 0  # of the oldest message that was forwarded, since it came into the bridge's queue


def shared_out(messages: Sequence[Message], routes: int) -> list[list[int]]:
    """The positions of a batch that each of the routes is to forward; a group's messages all go over one."""
    shares: list[list[int]] = [[] for _ in range(routes)]
    for position, message in enumerate(messages):
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
    peers: Peers,
    executor: Executor,
) -> Outcome:
    """Forwards the batch of a FIFO queue, or of a standard one. `messages` are in order."""
    batch = _Batch(route=route, fifo=fifo, peers=peers)
    for position, message in enumerate(messages):
        batch.decide(position, _crossed(message, route, fifo=fifo, site=site, now_ms=now_ms))
    batch.send_all(executor)
    return batch.outcome(messages, now_ms=now_ms)


def _crossed(message: Message, route: Forward, *, fifo: bool, site: str, now_ms: int) -> Outgoing | Drop | SenderFault:
    sent_at_ms = now_ms if message.sent_at_ms is None else message.sent_at_ms
    receipt = Receipt(
        message=message, site=site, ulid=ulid_of(message.message_id, sent_at_ms=sent_at_ms), now_ms=now_ms
    )
    try:
        return forward(receipt, crossing=route.crossing, dest=route.bridge.dest, fifo=fifo)
    except SenderFault as fault:
        return fault


@dataclass(slots=True, kw_only=True)
class _Batch:
    route: Forward
    fifo: bool
    peers: Peers
    progress: Progress = field(init=False)
    parcels: list[Parcel] = field(default_factory=list)
    refused: dict[int, SenderFault] = field(default_factory=dict)
    drops: dict[int, Drop] = field(default_factory=dict)
    reasons: dict[int, str] = field(default_factory=dict)
    outage: PeerUnreachable | PeerRefused | None = None

    def __post_init__(self) -> None:
        self.progress = Progress(fifo=self.fifo)

    @property
    def url(self) -> str:
        """The peer's ingress."""
        return self.route.peer.fifo_ingress_url if self.fifo else self.route.peer.ingress_url

    def decide(self, position: int, crossed: Outgoing | Drop | SenderFault) -> None:
        """Notes what is to become of one message."""
        match crossed:
            case SenderFault():
                self.refused[position] = crossed
            case Drop():
                self.drops[position] = crossed
            case Outgoing():
                self.parcels.append(Parcel(position=position, target=self.url, outgoing=crossed))

    def send_all(self, executor: Executor) -> None:
        """Sends what crosses: a standard queue's requests side by side, a FIFO queue's one after the other."""
        requests = standard_round(self.parcels)
        if self.fifo or len(requests) == 1:
            for request in requests:
                self._send(request)
        else:
            list(executor.map(self._send, requests))

    def _send(self, request: Request) -> None:
        sendable = self.progress.sendable(request)
        if sendable is None:
            return
        refused = self._refusals(sendable)
        for place, parcel in enumerate(sendable.parcels):
            if str(place) in refused:
                self.reasons[parcel.position] = refused[str(place)]
                self.progress.fail(parcel)

    def _refusals(self, request: Request) -> Mapping[str, str]:
        """By an entry's id, why the peer doesn't have it."""
        if self.outage is None:
            try:
                route = self.route
                return self.peers.send_batch(route.link, route.endpoint, request.target, request.entries())
            except (PeerUnreachable, PeerRefused) as outage:
                self.outage = outage
            except DestinationFault as error:
                return {str(place): str(error) for place in range(len(request.parcels))}
        return {str(place): str(self.outage) for place in range(len(request.parcels))}

    def outcome(self, messages: Sequence[Message], *, now_ms: int) -> Outcome:
        """Everything that happened."""
        failed = {position: self.reasons.get(position, HELD_BACK) for position in self.progress.failed()}
        gone = [messages[parcel.position] for parcel in self.parcels if parcel.position not in failed]
        counts = Counter(
            MessagesForwarded=len(gone),
            MessagesRetried=len(failed),
            MessagesRefused=len(self.refused),
            **{f"MessagesDropped_{drop.reason}": 0 for drop in self.drops.values()},
        )
        for drop in self.drops.values():
            counts[f"MessagesDropped_{drop.reason}"] += 1
        return Outcome(
            failed=failed,
            refused=self.refused,
            drops=self.drops,
            outage=self.outage,
            counts=+counts,
            lag_ms=max((now_ms - message.sent_at_ms for message in gone if message.sent_at_ms is not None), default=0),
        )
