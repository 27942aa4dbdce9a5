"""What the rendezvous asks of AWS. The adapters are in `sluice.aws`, the tests' fakes keep the same promises."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from sluice.rendezvous.counts.events import PollEvent
from sluice.rendezvous.counts.statistics import Counts, Tally
from sluice.rendezvous.protocol.addresses import UNKNOWN_COUNTRY
from sluice.rendezvous.protocol.matching import Nat, Pool, Profile, WaitingProxy
from sluice.rendezvous.protocol.offers import Method

NowMs = Callable[[], int]  # wall clock, milliseconds since 1970


class State(StrEnum):
    """How far an offer has come. Every step is one conditional write, so each is taken once."""

    RECEIVED = "received"
    MATCHED = "matched"
    ANSWERED = "answered"
    TIMED_OUT = "timed out"


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferRecord:
    """An offer in the book: its key is (client_id, sent_at_ms).

    Once matched it has `reply_to`, the URL of the queue where its client hears, and the `poll_id`, `sid` and `mailbox`
    of its proxy. `nat`, `country`, `trace` and `poll`, which is how the proxy's poll ended, are for the event that
    tells of its end.
    """

    client_id: str
    sent_at_ms: int
    method: Method
    state: State = State.RECEIVED
    reply_to: str = ""
    poll_id: str = ""
    sid: str = ""
    mailbox: str = ""
    nat: Nat = Nat.UNKNOWN
    country: str = UNKNOWN_COUNTRY
    trace: str | None = None
    poll: PollEvent | None = None


class Claim(StrEnum):
    """How a claim went."""

    WON = "won"
    PROXY_TAKEN = "proxy taken"
    OFFER_TAKEN = "offer taken"


class OfferBook(Protocol):
    """The offers of the last two minutes. Reads are strongly consistent."""

    def record(self, offer: OfferRecord) -> OfferRecord | None:
        """Writes a received offer; where it is there already, returns it as it stands."""

    def claim(self, offer: OfferRecord, proxy: WaitingProxy, *, reply_to: str, now_ms: int) -> Claim:
        """Takes the proxy out of its pool for this offer: all or nothing, and for one offer only."""

    def release(self, offer: OfferRecord, proxy: WaitingProxy) -> None:
        """Undoes a won claim whose proxy turned out to be gone; the proxy doesn't go back to the pool."""

    def answer(self, sid: str) -> OfferRecord | None:
        """The offer that this proxy was matched with, now answered; None where no offer of its waits for an answer."""

    def unanswer(self, offer: OfferRecord) -> None:
        """Undoes `answer` where the answer could not be sent, so that the time-out still reaches the client."""

    def time_out(self, offer: OfferRecord) -> OfferRecord | None:
        """Ends a matched offer without an answer, and returns it; None where its answer came first."""

    def matched(self, *, since_ms: int, until_ms: int) -> Sequence[OfferRecord]:
        """The offers sent in [since, until] that wait for their proxy's answer, oldest first."""

    def sent_before(self, until_ms: int) -> Iterator[Sequence[OfferRecord]]:
        """All offers sent before, page by page, oldest first within a shard."""

    def forget(self, offers: Sequence[OfferRecord]) -> None:
        """Deletes them."""


class ProxyPools(Protocol):
    """The proxies whose polls are held open, and how much they are asked for."""

    def enter(self, proxy: WaitingProxy) -> None:
        """Adds a proxy to its pool."""

    def leave(self, proxy: WaitingProxy) -> bool:
        """Takes an unmatched proxy out; False where an offer has claimed it."""

    def waiting(self, pool: Pool, *, limit: int) -> Sequence[WaitingProxy]:
        """Those in the pool, fewest clients first, then longest waiting. Some may have given up unseen."""

    def count(self, pool: Pool, *, now_ms: int) -> int:
        """How many wait, roughly (eventually consistent)."""

    def profiles(self, pool: Pool, *, now_ms: int) -> Sequence[Profile]:
        """What is known of those that `count` counts."""

    def note_offers(self, pool: Pool, number: int, *, now_ms: int) -> None:
        """Counts offers that asked for this pool."""

    def recent_offers(self, pool: Pool, *, now_ms: int) -> int:
        """How many offers asked for this pool in the last hold time, at its busiest."""


class Statistics(Protocol):
    """What was counted of this site's rendezvous."""

    def add(self, tallies: Sequence[Tally]) -> Mapping[str, str]:
        """Counts events. The ids of those that aren't counted, with the reason: they may be added again."""

    def totals(self) -> Counts:
        """All since the beginning."""

    def of_day(self, day: str) -> Counts:
        """Those of one UTC day; empty where nothing was counted, or too long ago."""


class MailboxBook(Protocol):
    """The mailboxes made, by creation time. A mailbox is noted before it is made, so none is ever forgotten."""

    def note(self, name: str, *, created_at_ms: int) -> None:
        """Writes down a mailbox that is about to be made."""

    def created_before(self, until_ms: int) -> Iterator[Sequence[tuple[str, int]]]:
        """Names and creation times, page by page, oldest first."""

    def forget(self, mailboxes: Sequence[tuple[str, int]]) -> None:
        """Deletes the notes."""


class Queues(Protocol):
    """SQS. Raises `QueueGone` for a queue that doesn't exist and `CallFailed` for what else goes wrong."""

    def create(self, name: str, attributes: Mapping[str, str]) -> str:
        """Makes a queue, or finds it where it is there with the same attributes. Returns its URL."""

    def send(self, url: str, body: str, *, attributes: Mapping[str, str] | None = None, delay_s: int = 0) -> None:
        """Sends one message with these String attributes."""

    def receive(self, url: str, *, wait_s: int) -> str | None:
        """The body of one message, waiting for it up to `wait_s` seconds (whole, at most 20). It isn't deleted."""

    def delete(self, name: str) -> bool:
        """Deletes a queue by name; False where it doesn't exist."""
