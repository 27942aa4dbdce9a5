"""Messages regrouped by target into as few send requests as SQS allows, in order. Pure.

A batch of received messages becomes *rounds* of requests. The requests of a round to different targets may go side by
side, those to one target go one after the other. Standard queues have one round. With FIFO queues, a group's messages
to different receivers are sent in different rounds: so when one fails, what follows it in its group hasn't been sent to
anyone yet, and is held back.

Within one request SQS decides message by message, so there a failed one can be overtaken by the next of its group; SQS
has no request that would prevent it.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from sluice.message import MAX_MESSAGE_BYTES, Outgoing

MAX_ENTRIES = 10
MAX_REQUEST_BYTES = MAX_MESSAGE_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Parcel:
    """One message for one target. `position` is the source message's in the batch that was received."""

    position: int
    target: str
    outgoing: Outgoing


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What one `SendMessageBatch` sends to one target, in order. An entry's id is its place in the request."""

    target: str
    parcels: tuple[Parcel, ...]

    def entries(self) -> list[dict[str, object]]:
        """The entries, as the API takes them."""
        return [parcel.outgoing.entry(str(place)) for place, parcel in enumerate(self.parcels)]


Round = tuple[Request, ...]


def standard_round(parcels: Iterable[Parcel]) -> Round:
    """The requests for standard queues. The order of parcels is kept for each target."""
    return tuple(_requests(parcels))


def fifo_rounds(parcels: Iterable[Parcel]) -> tuple[Round, ...]:
    """The rounds for FIFO queues, given the parcels by position. Order is kept for each group and target."""
    rounds: defaultdict[int, list[Parcel]] = defaultdict(list)
    groups: dict[str | None, _GroupSoFar] = {}
    for parcels_of_one in _by_position(parcels):
        group = groups.setdefault(parcels_of_one[0].outgoing.group_id, _GroupSoFar())
        rounds[group.round_for(parcels_of_one)].extend(parcels_of_one)
    return tuple(tuple(_requests(rounds[number])) for number in sorted(rounds))


@dataclass(slots=True)
class _GroupSoFar:
    number: int = 0
    targets: frozenset[str] | None = None

    def round_for(self, parcels: Sequence[Parcel]) -> int:
        """The round of the group's next message: the next one where its targets aren't the last one's."""
        targets = frozenset(parcel.target for parcel in parcels)
        if self.targets is not None and targets != self.targets:
            self.number += 1
        self.targets = targets
        return self.number


def _by_position(parcels: Iterable[Parcel]) -> list[list[Parcel]]:
    found: dict[int, list[Parcel]] = {}
    for parcel in parcels:
        found.setdefault(parcel.position, []).append(parcel)
    return [found[position] for position in sorted(found)]


def _requests(parcels: Iterable[Parcel]) -> Iterator[Request]:
    by_target: dict[str, list[Parcel]] = {}
    for parcel in parcels:
        by_target.setdefault(parcel.target, []).append(parcel)
    for target, of_target in by_target.items():
        for together in _within_limits(of_target):
            yield Request(target=target, parcels=tuple(together))


def _within_limits(parcels: Iterable[Parcel]) -> Iterator[list[Parcel]]:
    together: list[Parcel] = []
    size = 0
    for parcel in parcels:
        more = parcel.outgoing.size
        if together and (len(together) == MAX_ENTRIES or size + more > MAX_REQUEST_BYTES):
            yield together
            together, size = [], 0
        together.append(parcel)
        size += more
    if together:
        yield together


@dataclass(slots=True)
class Progress:
    """Which source messages have failed, so that they stay where they are. Deleting comes after sending, always.

    In FIFO queues a failed message holds back what follows it in its group, whoever that goes to, and no other group:
    else a retry that falls to another receiver would come there after its successors.
    """

    fifo: bool
    _failed: set[int] = field(default_factory=set)
    _first_failed: dict[str | None, int] = field(default_factory=dict)

    def fail(self, parcel: Parcel) -> None:
        """Notes a parcel that wasn't sent: its source message is to come again."""
        self._failed.add(parcel.position)
        group = parcel.outgoing.group_id
        self._first_failed[group] = min(parcel.position, self._first_failed.get(group, parcel.position))

    def sendable(self, request: Request) -> Request | None:
        """The request without what is held back, which is noted as failed; None where nothing is left."""
        if not self.fifo:
            return request
        held = [parcel for parcel in request.parcels if self._held_back(parcel)]
        for parcel in held:
            self.fail(parcel)
        left = tuple(parcel for parcel in request.parcels if parcel not in held)
        return Request(target=request.target, parcels=left) if left else None

    def failed(self) -> tuple[int, ...]:
        """Positions of the source messages that are to come again; all others may be deleted."""
        return tuple(sorted(self._failed))

    def _held_back(self, parcel: Parcel) -> bool:
        first = self._first_failed.get(parcel.outgoing.group_id)
        return first is not None and parcel.position > first
