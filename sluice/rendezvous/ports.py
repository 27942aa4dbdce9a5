"""What the rendezvous asks of AWS. Adapters are in `sluice.aws.rendezvous`; the tests' fakes keep the same promises."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from sluice.rendezvous.counts.statistics import Counts, Position, Tally
from sluice.rendezvous.protocol.addresses import UNKNOWN_COUNTRY
from sluice.rendezvous.protocol.matching import Nat, Pool, Profile, WaitingProxy
from sluice.rendezvous.protocol.messages import OfferMethod

NowMs = Callable[[], int]  # wall clock, milliseconds since 1970


class OfferState(StrEnum):
    """How far an offer has come. Every step is one conditional write, so each is taken once."""

    RECEIVED = "received"
    MATCHED = "matched"
    ANSWERED = "answered"
    TIMED_OUT = "timed out"


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferRecord:
    """An offer in the store: its key is (client_id, sent_at_ms).

    Once matched it has `reply_to`, the URL of the queue where its client hears, and the `proxy` that was claimed for it
    at `matched_at_ms`. `nat`, `country` and `trace` are for the event that tells of its end.
    """

    client_id: str
    sent_at_ms: int
    method: OfferMethod
    state: OfferState = OfferState.RECEIVED
    reply_to: str = ""
    proxy: WaitingProxy | None = None
    matched_at_ms: int = 0
    nat: Nat = Nat.UNKNOWN
    country: str = UNKNOWN_COUNTRY
    trace: str | None = None


class Claim(StrEnum):
    """How a claim went."""

    WON = "won"
    PROXY_TAKEN = "proxy taken"
    OFFER_TAKEN = "offer taken"


class OfferStore(Protocol):
    """The offers of the last two minutes. Reads are strongly consistent. Raises `CallFailed`, as every store does."""

    def record(self, offer: OfferRecord) -> OfferRecord | None:
        """Write a received offer; where it is there already, return it as it stands."""

    def claim(self, offer: OfferRecord, proxy: WaitingProxy, *, reply_to: str, now_ms: int) -> Claim:
        """Take the proxy out of its pool for this offer: all or nothing, and for one offer only."""

    def release(self, offer: OfferRecord, proxy: WaitingProxy) -> None:
        """Undo a won claim whose proxy turned out to be gone; the proxy doesn't go back to the pool."""

    def answer(self, sid: str) -> OfferRecord | None:
        """End the offer that this proxy was matched with as answered; None where no offer of its waits for that."""

    def unanswer(self, offer: OfferRecord) -> None:
        """Undo `answer` where the answer could not be sent, so that the time-out still reaches the client."""

    def time_out(self, offer: OfferRecord) -> OfferRecord | None:
        """End a matched offer without an answer, and return it; None where its answer came first."""

    def matched(self, *, since_ms: int, until_ms: int) -> Sequence[OfferRecord]:
        """Find the offers sent in [since, until] that wait for their proxy's answer, oldest first."""

    def sent_before(self, until_ms: int) -> Iterator[Sequence[OfferRecord]]:
        """Read all offers sent before, page by page, oldest first within a shard."""

    def forget(self, offers: Sequence[OfferRecord]) -> None:
        """Delete them."""


class ProxyPools(Protocol):
    """The proxies whose polls are held open, and how much they are asked for. Raises `CallFailed`."""

    def enter(self, proxy: WaitingProxy) -> None:
        """Add a proxy to its pool."""

    def leave(self, proxy: WaitingProxy) -> bool:
        """Take an unmatched proxy out; False where an offer has claimed it."""

    def waiting(self, pool: Pool, *, limit: int) -> Sequence[WaitingProxy]:
        """Read who is in the pool, fewest clients first, then longest waiting. Some may have given up unseen."""

    def count(self, pool: Pool, *, now_ms: int) -> int:
        """Count who waits, roughly (eventually consistent)."""

    def profiles(self, pool: Pool, *, now_ms: int) -> Sequence[Profile]:
        """Read what is known of those that `count` counts."""

    def note_offers(self, pool: Pool, number: int, *, now_ms: int) -> None:
        """Count offers that asked for this pool."""

    def recent_offers(self, pool: Pool, *, now_ms: int) -> int:
        """Say how many offers asked for this pool in the last hold time, at its busiest."""


class StatisticsStore(Protocol):
    """What was counted of this site's rendezvous. Reads raise `CallFailed`."""

    def add(self, tallies: Sequence[Tally]) -> Mapping[Position, str]:
        """Count events, which are in their stream's order; what was counted before, by its position, is passed over.

        Returns the positions that aren't counted, or not wholly, with the reason: they and what follows the first of
        them have to be added again before anything that comes after these.
        """

    def totals(self) -> Counts:
        """Read all since the beginning."""

    def of_day(self, day: str) -> Counts:
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
