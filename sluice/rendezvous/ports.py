"""What the rendezvous asks of AWS. Adapters are in `sluice.aws.rendezvous`; the tests' fakes keep the same promises."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple, Protocol

import msgspec

from sluice.rendezvous.counts import statistics
from sluice.rendezvous.counts.statistics import Position, Tally
from sluice.rendezvous.protocol.addresses import UNKNOWN_COUNTRY
from sluice.rendezvous.protocol.matching import Nat, Pool, Profile, WaitingProxy, waits_until
from sluice.rendezvous.protocol.messages import OfferMethod
from sluice.rendezvous.protocol.pace import Counts, ToldTurns, Turn

NowMs = Callable[[], int]  # wall clock, milliseconds since 1970
NewId = Callable[[], str]  # draws one that nobody else draws


class OfferState(StrEnum):
    """What is known of an offer: who ends it moves it on, once, and the change tells of its end (`counts.stream`)."""

    RECEIVED = "received"
    REFUSED = "refused"  # malformed: its client was told so at once
    ANSWERED = "answered"
    DENIED = "denied"
    TIMED_OUT = "timed out"


class OfferRecord(msgspec.Struct, frozen=True, kw_only=True):
    """An offer in the store, by its `key`.

    `nat`, `country` and `trace` are for the event that tells of its end. `token` says who wrote it, `shard` where it
    stands if that isn't where it would be put now.
    """

    client_id: str
    sent_at_ms: int
    method: OfferMethod
    state: OfferState = OfferState.RECEIVED
    nat: Nat = Nat.UNKNOWN
    country: str = UNKNOWN_COUNTRY
    trace: str | None = None
    token: str = ""
    shard: int | None = None

    @property
    def key(self) -> tuple[str, int]:
        """What tells it from all others."""
        return self.client_id, self.sent_at_ms


class OpenOffer(msgspec.Struct, frozen=True, kw_only=True):
    """An offer that may be given to a proxy: its `record`, and all that the proxy and its answer's way need.

    `offer` is the session description as text, `relay` the bridge's WebSocket address, `reply_to` the URL of the queue
    where its client hears, `shard` the part of those that wait.
    """

    record: OfferRecord
    offer: str
    relay: str
    reply_to: str
    answers_until_ms: int
    shard: int = 0

    @property
    def waits_until_ms(self) -> int:
        """When nobody can answer it in time any more who hasn't got it."""
        return waits_until(self.answers_until_ms)


class LeftOffer(NamedTuple):
    """An offer that waited and that nobody took. `partition` is the store's own."""

    partition: str
    sent_at_ms: int
    client_id: str

    @property
    def key(self) -> tuple[str, int]:
        """Its record's."""
        return self.client_id, self.sent_at_ms


class Match(msgspec.Struct, frozen=True, kw_only=True):
    """An offer that was given to a proxy, and what the proxy's answer needs. `profile` is the proxy's."""

    record: OfferRecord
    profile: Profile
    reply_to: str
    answers_until_ms: int


class OfferStore(Protocol):
    """The offers of the last two minutes, and what proxies were given. Raises `CallFailed`, as every store does.

    Its writes may be repeated by whoever makes them: they know what they have done already.
    """

    def record(self, offer: OfferRecord) -> bool:
        """Write a received offer; False where another delivery has."""

    def match(self, offer: OpenOffer, proxy: WaitingProxy, *, now_ms: int) -> bool:
        """Give the offer to a proxy; False where its poll is over or has another, or its Sid had one lately."""

    def close(self, proxy: WaitingProxy) -> bool:
        """End a poll that was given nothing, and is given nothing from now on; False where it was given an offer."""

    def answer(self, sid: str, *, token: str, now_ms: int) -> Match | None:
        """Take the answer of the proxy with this Sid: once, and only in time. None where nobody waits for it.

        `token` is the caller's, who may ask again.
        """

    def end(self, offer: OfferRecord, state: OfferState, *, now_ms: int) -> bool:
        """Say how an offer ended that nobody answered; False where it has its end."""

    def sent_before(self, until_ms: int) -> Iterator[Sequence[OfferRecord]]:
        """Read all offers sent before, page by page, oldest first within a shard."""

    def forget(self, offers: Sequence[OfferRecord]) -> None:
        """Delete them."""


class WaitingOffers(Protocol):
    """The offers that no proxy has yet. Raises `CallFailed`."""

    def put(self, offers: Sequence[OpenOffer]) -> None:
        """Have offers wait."""

    def oldest(
        self, pool: Pool, *, now_ms: int, limit: int, shards: int, consistent: bool = False
    ) -> Sequence[OpenOffer]:
        """Read those that a proxy of this pool may serve, and may still answer, the oldest first."""

    def take(self, offer: OpenOffer) -> bool:
        """Take an offer that waits, which one caller can; False for the others."""

    def left(self, *, until_ms: int, shards: int) -> Iterator[Sequence[LeftOffer]]:
        """Read those that nobody took and that were sent before, page by page."""

    def forget(self, offers: Sequence[LeftOffer]) -> None:
        """Delete them."""


class ProxyPools(Protocol):
    """The proxies whose polls are held open. Raises `CallFailed`."""

    def enter(self, proxy: WaitingProxy) -> None:
        """Add a proxy to its pool, in the place of an earlier poll of the same Sid."""

    def leave(self, proxy: WaitingProxy) -> None:
        """Take a proxy out."""

    def waiting(
        self, pool: Pool, *, now_ms: int, limit: int, shards: int, consistent: bool = True
    ) -> Sequence[WaitingProxy]:
        """Read some who wait, drawn at random, all where they are no more than `limit`.

        Those who have just come may be missing unless it is `consistent`, which costs twice as much.

        What it sees of those whose time is over it deletes.
        """

    def profiles(self, pool: Pool, *, now_ms: int, shards: int) -> Sequence[Profile]:
        """Read what is known of all who wait (eventually consistent)."""


class PaceStore(Protocol):
    """What is counted to know how many poll and offer, and whose turn it is. Raises `CallFailed`."""

    def add(self, minute: Counts, hour: Counts, *, now_ms: int) -> None:
        """Add to the counts of this minute and of this hour."""

    def lately(self, *, now_ms: int) -> tuple[Mapping[int, Counts], Mapping[int, Counts]]:
        """Read the counts of the last minutes and of the last day's hours, by their numbers since 1970."""

    def take_turn(self, address: str, turn: Turn, *, now_ms: int) -> Turn | None:
        """Begin an address's turn; the one that isn't over yet where there is one, and None where ours has begun."""

    def tell_turns(self, told: ToldTurns) -> None:
        """Tell other environments of turns, by the first 16 digits of an address."""

    def turns_told(self, *, since_ms: int) -> Sequence[ToldTurns]:
        """Read the last rows that were told since then, some hundreds, the oldest first (eventually consistent)."""


class StatisticsStore(Protocol):
    """What was counted of this site's rendezvous. Reads raise `CallFailed`."""

    def add(self, tallies: Sequence[Tally]) -> Mapping[Position, str]:
        """Count events, which are in their stream's order; what was counted before, by its position, is passed over.

        Returns the positions that aren't counted, or not wholly, with the reason: they and what follows the first of
        them have to be added again before anything that comes after these.
        """

    def totals(self) -> statistics.Counts:
        """Read all since the beginning."""

    def of_day(self, day: str) -> statistics.Counts:
        """Read those of one UTC day; empty where nothing was counted, or too long ago."""


class MailboxStore(Protocol):
    """The mailboxes made, by creation time. A mailbox is noted before it is made, so none is ever forgotten.

    Raises `CallFailed`.
    """

    def note(self, name: str, *, created_at_ms: int) -> None:
        """Write down a mailbox that is about to be made."""

    def created_before(self, until_ms: int) -> Iterator[Sequence[tuple[str, int]]]:
        """Read names and creation times, page by page, oldest first."""

    def forget(self, mailboxes: Sequence[tuple[str, int]]) -> None:
        """Delete the notes."""


class Queues(Protocol):
    """SQS. Raises `QueueGone` for a queue that doesn't exist and `CallFailed` for what else goes wrong."""

    def create(self, name: str, attributes: Mapping[str, str]) -> str:
        """Make a queue, or find it where it is there with the same attributes. Returns its URL."""

    def send(self, url: str, body: str, *, attributes: Mapping[str, str] | None = None, delay_s: int = 0) -> None:
        """Send one message with these String attributes."""

    def receive(self, url: str, *, wait_s: int) -> str | None:
        """Read one message's body, waiting for it up to `wait_s` seconds (whole, at most 20). It isn't deleted."""

    def delete(self, name: str) -> bool:
        """Delete a queue by name; False where it doesn't exist."""
