"""Offers and polls as values, which proxies fit which client, in what order, and how long each waits. Pure."""

import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import NamedTuple

import msgspec

from sluice.rendezvous.protocol.addresses import UNKNOWN_COUNTRY
from sluice.rendezvous.protocol.ends import OPEN, End

HOLD_MS = 10_000  # how long a proxy's poll is held open, and its place in the pool good
PATIENCE_MS = 5_000  # how long after its offer was sent a client is answered
ANSWER_QUEUE_AGE_MS = 120_000  # when it is swept, and its offer forgotten
HEARS_MS = 6_000  # and by when it hears that nobody answered
GUARD_MS = 300  # from the last moment at which an answer is taken to that: no answer in time comes second
ANSWERING_MS = 1_000  # that a proxy needs for its answer: with less an offer isn't given to it


class Nat(StrEnum):
    """The address translation that a client or proxy is behind, as far as it knows."""

    UNKNOWN = "unknown"
    RESTRICTED = "restricted"
    UNRESTRICTED = "unrestricted"


class Pool(StrEnum):
    """The pool in which a proxy waits."""

    UNRESTRICTED = "unrestricted"
    RESTRICTED = "restricted"


class OfferMethod(StrEnum):
    """The method by which an offer arrived."""

    SQS = "sqs"
    HTTP = "http"
    AMP_CACHE = "ampcache"


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """Properties of a poll for statistics, besides its clients. None of them decides which offers match.

    `address` is the keyed hash of the proxy's; `trace` the X-Ray trace header of the function that holds the poll.
    """

    type: str = "unknown"
    nat: Nat = Nat.UNKNOWN
    country: str = UNKNOWN_COUNTRY
    address: str | None = None
    relay_extension: bool = False
    trace: str | None = None


class WaitingProxy(msgspec.Struct, frozen=True, kw_only=True):
    """A proxy that polls: one without a `mailbox` takes an offer that waits, or goes.

    `poll_id` names the poll, `sid` the proxy (as it names itself, hashed), `mailbox` the URL of the queue that the
    function which holds the poll listens to, `shard` the part of its pool.
    """

    poll_id: str
    sid: str
    pool: Pool
    clients: int
    polled_at_ms: int
    mailbox: str = ""
    profile: Profile = Profile()
    shard: int = 0

    @property
    def waits_until_ms(self) -> int:
        """When the poll is over."""
        return self.polled_at_ms + HOLD_MS


class OfferRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A stored offer, by its `key`; `end` is None while it is open, and is set once.

    `nat`, `country` and `trace` are for the event that tells of its end. `token` says which delivery wrote it, `shard`
    where it stands if that isn't where it would be put now.
    """

    client_id: str
    sent_at_ms: int
    method: OfferMethod
    end: End | None = None
    nat: Nat = Nat.UNKNOWN
    country: str = UNKNOWN_COUNTRY
    trace: str | None = None
    token: str = ""
    shard: int | None = None

    @property
    def key(self) -> tuple[str, int]:
        """The identity of the offer: its client, and when it was sent."""
        return self.client_id, self.sent_at_ms

    @property
    def state(self) -> str:
        """The offer's end as it is stored."""
        return OPEN if self.end is None else self.end.state


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
        """The time after which no new proxy could answer the offer in time."""
        return self.answers_until_ms - ANSWERING_MS


class LeftOffer(NamedTuple):
    """An offer that waited and that no proxy took. `partition` is the store's own."""

    partition: str
    sent_at_ms: int
    client_id: str

    @property
    def key(self) -> tuple[str, int]:
        """The key of the offer's record."""
        return self.client_id, self.sent_at_ms


class Match(msgspec.Struct, frozen=True, kw_only=True):
    """An offer that was given to a proxy, with the data that the proxy's answer needs."""

    record: OfferRecord
    reply_to: str
    answers_until_ms: int


def pool_for_proxy(proxy: Nat) -> Pool:
    """Return the pool in which a proxy with this NAT waits."""
    return Pool.UNRESTRICTED if proxy is Nat.UNRESTRICTED else Pool.RESTRICTED


def choose_shard(name: str, shards: int) -> int:
    """Return the shard of the table, out of this number, in which an item with this name is stored."""
    return zlib.crc32(name.encode()) % shards


def pools_for(client: Nat) -> tuple[Pool, ...]:
    """Return the pools of the proxies that a client can reach, in the order to try them.

    Only an unrestricted client can reach a restricted proxy, so it leaves the others to those who need them.
    """
    if client is Nat.UNRESTRICTED:
        return (Pool.RESTRICTED, Pool.UNRESTRICTED)
    return (Pool.UNRESTRICTED,)


def rank_proxies(waiting: Iterable[WaitingProxy], *, ties: Sequence[float]) -> list[WaitingProxy]:
    """Order waiting proxies: fewest clients first, but one proxy of each address before a second of any.

    `ties` are random numbers, one for each proxy, so that two brokers try different ones of equal proxies first.
    """
    drawn = [(proxy.clients, tie, proxy) for proxy, tie in zip(waiting, ties, strict=True)]
    of_address: Counter[str | None] = Counter()
    ranked = []
    for clients, tie, proxy in sorted(drawn, key=lambda each: each[:2]):
        address = proxy.profile.address
        ranked.append((of_address[address] if address else 0, clients, tie, proxy))
        of_address[address] += 1
    return [proxy for *_, proxy in sorted(ranked, key=lambda each: each[:3])]


def is_stale(*, sent_at_ms: int, now_ms: int) -> bool:
    """Return whether an offer's client has given up: a proxy for it would be wasted."""
    return now_ms - sent_at_ms >= PATIENCE_MS


def reply_delay_s(*, sent_at_ms: int, answers_until_ms: int, now_ms: int) -> int:
    """Return the delay of the time-out reply to a client, in whole seconds, as SQS delays messages.

    The reply arrives by `HEARS_MS`, but never before an answer that was accepted in time.
    """
    delay_s = max((sent_at_ms + HEARS_MS - now_ms) // 1000, 0)
    return delay_s + (now_ms + delay_s * 1000 < answers_until_ms + GUARD_MS)


def answers_until(*, sent_at_ms: int, now_ms: int) -> int:
    """Return the deadline for answers to a client whose queue exists now, given that SQS delays by whole seconds."""
    hears_at_ms = now_ms + max((sent_at_ms + HEARS_MS - now_ms) // 1000, 1) * 1000
    return min(hears_at_ms - GUARD_MS, sent_at_ms + PATIENCE_MS)
