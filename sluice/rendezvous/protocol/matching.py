"""Offers and polls as values, and the rules of matching: eligible proxies, their order, and deadlines. Pure."""

import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any

import msgspec

from sluice.rendezvous.protocol.addresses import UNKNOWN_COUNTRY
from sluice.rendezvous.protocol.ends import OPEN, End

HOLD_MS = 10_000  # how long a proxy's poll is held open and its entry in the pool is valid
# An offer that no proxy took for this time is denied. A client over HTTP waits no longer for its answer.
PATIENCE_MS = 5_000
# A client over SQS receives for 100 seconds. If each of its requests takes D seconds, it begins 1 + 2 D seconds after
# its offer, and takes whatever it finds. So its queue must hold only the answer until later than that.
ANSWERS_MS = 20_000  # how long a proxy's answer to an offer over SQS is accepted
TIME_OUT_REPLY_MS = 25_000  # delay until the time-out reply becomes visible
ANSWER_QUEUE_AGE_MS = 120_000  # age at which an answer queue and its offer are deleted
ANSWERING_MS = 1_000  # time that a proxy needs to answer; an offer with less time left isn't matched


class Nat(StrEnum):
    """The kind of network address translation (NAT) of a client or proxy. Any other word is unknown.

    Newer peers name open, moderate and strict.
    """

    UNKNOWN = "unknown"
    RESTRICTED = "restricted"
    UNRESTRICTED = "unrestricted"
    OPEN = "open"
    MODERATE = "moderate"
    STRICT = "strict"

    @classmethod
    def _missing_(cls, _: object) -> "Nat":
        return cls.UNKNOWN


class Pool(StrEnum):
    """The pools of waiting proxies, by the kind of their NAT: those that most clients can reach first."""

    UNRESTRICTED = "unrestricted"
    MODERATE = "moderate"
    RESTRICTED = "restricted"


class OfferMethod(StrEnum):
    """The method by which an offer arrived."""

    SQS = "sqs"
    HTTP = "http"
    AMP_CACHE = "ampcache"


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """Properties of a poll for statistics, besides its clients. None of them decides which offers match.

    `address` is the keyed hash of the proxy's address; `trace` is the X-Ray trace header of the function with the poll.
    """

    type: str = "unknown"
    nat: Nat = Nat.UNKNOWN
    country: str = UNKNOWN_COUNTRY
    address: str | None = None
    relay_extension: bool = False
    trace: str | None = None


class WaitingProxy(msgspec.Struct, frozen=True, kw_only=True):
    """A proxy that polls. Without a `mailbox`, its poll isn't held: it gets only an offer that already waits.

    `poll_id` names the poll, `sid` the proxy (the hash of its Sid), `mailbox` is the URL of the queue of the function
    that holds the poll, and `shard` the part of its pool.
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
        """Return the time at which the poll ends."""
        return self.polled_at_ms + HOLD_MS


class OfferRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A stored offer, by its `key`. `end` is None while it is open, and is set once.

    `nat`, `country` and `trace` are for the event of its end. `token` names the delivery that stored the offer. `shard`
    is the shard that it is stored in, if that isn't the one chosen by its client's id, and `waiting_shard` the part of
    the waiting offers that it would be in. `receipt_handle` is that of its message in the offers queue.
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
    waiting_shard: int = 0
    receipt_handle: str = ""

    @property
    def key(self) -> tuple[str, int]:
        """Return the identity of the offer: its client, and when it was sent."""
        return self.client_id, self.sent_at_ms

    @property
    def state(self) -> str:
        """Return the stored form of the offer's end."""
        return OPEN if self.end is None else self.end.state


class OpenOffer(msgspec.Struct, frozen=True, kw_only=True):
    """An offer that may be given to a proxy: its `record`, and all that the proxy and its answer need.

    `offer` is the session description as text, `relay` the bridge's WebSocket address, `reply_to` the URL of the queue
    for the client's reply, and `shard` the part of the waiting offers.
    """

    record: OfferRecord
    offer: str
    relay: str
    reply_to: str
    answers_until_ms: int
    shard: int = 0

    @property
    def waits_until_ms(self) -> int:
        """Return the time after which no new proxy gets the offer."""
        return min(self.record.sent_at_ms + PATIENCE_MS, self.answers_until_ms - ANSWERING_MS)

    @property
    def for_proxy(self) -> dict[str, str]:
        """Return the fields that the proxy gets."""
        return {"offer": self.offer, "nat": self.record.nat, "relay": self.relay}

    @property
    def for_answer(self) -> dict[str, str | int]:
        """Return the fields that the proxy's answer needs, as they are stored with the match."""
        return {
            "client_id": self.record.client_id,
            "sent_at": self.record.sent_at_ms,
            "method": self.record.method,
            "reply_to": self.reply_to,
            "answers_until": self.answers_until_ms,
        }

    def compute_waited_fraction(self, now_ms: int) -> float:
        """Return the part of the time for which the offer can wait that is over."""
        sent_at_ms = self.record.sent_at_ms
        return (now_ms - sent_at_ms) / (self.waits_until_ms - sent_at_ms)


class Match(msgspec.Struct, frozen=True, kw_only=True):
    """An offer that was given to the proxy of this poll, with the data that the proxy's answer needs.

    `has_waited` says that a poll took it: then its message, if it has one, is still in the offers queue.
    """

    record: OfferRecord
    profile: Profile
    reply_to: str
    answers_until_ms: int
    has_waited: bool = False

    @classmethod
    def parse(cls, fields: Mapping[str, Any], profile: Profile, *, has_waited: bool = False) -> "Match":
        """Read the fields of `OpenOffer.for_answer`. Raises KeyError or ValueError for any others."""
        return cls(
            record=OfferRecord(
                client_id=fields["client_id"], sent_at_ms=fields["sent_at"], method=OfferMethod(fields["method"])
            ),
            profile=profile,
            reply_to=fields["reply_to"],
            answers_until_ms=fields["answers_until"],
            has_waited=has_waited,
        )


def pool_for_proxy(proxy: Nat) -> Pool:
    """Return the pool in which a proxy with this NAT waits."""
    if proxy in {Nat.OPEN, Nat.UNRESTRICTED}:
        return Pool.UNRESTRICTED
    return Pool.MODERATE if proxy is Nat.MODERATE else Pool.RESTRICTED


def choose_shard(name: str, shards: int) -> int:
    """Choose the shard, out of this number, in which the item with this name is stored."""
    return zlib.crc32(name.encode()) % shards


def pools_for(client: Nat) -> tuple[Pool, ...]:
    """Return the pools of the proxies that a client can reach, in the order to try them.

    The proxies that fewest clients can reach come first, which leaves the others to other clients.
    """
    if client in {Nat.OPEN, Nat.UNRESTRICTED}:
        return (Pool.RESTRICTED, Pool.MODERATE, Pool.UNRESTRICTED)
    return (Pool.MODERATE, Pool.UNRESTRICTED) if client is Nat.MODERATE else (Pool.UNRESTRICTED,)


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
    """Return whether an offer gets no proxy any more."""
    return now_ms - sent_at_ms >= PATIENCE_MS


def seconds_until(at_ms: int, *, now_ms: int) -> int:
    """Return the whole seconds, as SQS delays messages, after which this time is over."""
    return max(-(-(at_ms - now_ms) // 1000), 0)
