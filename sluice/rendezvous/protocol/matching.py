"""Offers and polls as values, and the matching rules: eligible proxies, their order, and the deadlines. Pure."""

import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any

import msgspec

from sluice.rendezvous.protocol.addresses import UNKNOWN_COUNTRY
from sluice.rendezvous.protocol.ends import OPEN, End

HOLD_MS = 10_000  # A poll is held, and its entry in the pool is valid, for this time.
# An offer that no proxy took within this time is denied. Over HTTP, a client waits this long for its answer.
PATIENCE_MS = 5_000
# A client over SQS receives for 100 seconds. If each of its requests takes D seconds, it starts 1 + 2 D seconds after
# its offer, and takes the first message that it finds. So until then its queue must hold no message except the answer.
ANSWERS_MS = 20_000  # A proxy's answer to an offer over SQS is accepted for this time.
TIME_OUT_REPLY_MS = 25_000  # The time-out reply becomes visible after this time.
ANSWER_QUEUE_AGE_MS = 120_000  # An answer queue and its offer are deleted at this age.
ANSWERING_MS = 1_000  # A proxy needs this time to answer, so an offer with less time left isn't matched.


class Nat(StrEnum):
    """The kind of network address translation (NAT) of a client or proxy. Unlisted kinds are `UNKNOWN`.

    Newer clients and proxies report open, moderate and strict.
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
    """The pools of waiting proxies, by their kind of NAT. The pool whose proxies most clients can reach comes first."""

    UNRESTRICTED = "unrestricted"
    MODERATE = "moderate"
    RESTRICTED = "restricted"


class OfferMethod(StrEnum):
    """The rendezvous method by which an offer arrived."""

    SQS = "sqs"
    HTTP = "http"
    AMP_CACHE = "ampcache"


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """Properties of a poll that only statistics use, not the matching.

    `address` is the keyed hash of the proxy's address; `trace` is the X-Ray trace header of the function with the poll.
    """

    type: str = "unknown"
    nat: Nat = Nat.UNKNOWN
    country: str = UNKNOWN_COUNTRY
    address: str | None = None
    relay_extension: bool = False
    trace: str | None = None


class WaitingProxy(msgspec.Struct, frozen=True, kw_only=True):
    """A proxy that polls. If `mailbox` is empty, its poll isn't held and gets only an offer that already waits.

    `poll_id` names the poll; `sid` names the proxy by a hash of its Sid. `mailbox` is the URL of the queue of the
    function that holds the poll. `shard` is the shard of its pool.
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
    """A stored offer, identified by its `key`. `end` is None while the offer is open, and `end` is set once.

    `nat`, `country` and `trace` are for the event of its end. `token` names the delivery that stored the offer. `shard`
    is the shard that stores the offer, or None for the shard chosen by its client's id. `waiting_shard` is the shard in
    which the offer would wait. `receipt_handle` is the one of the offer's message.
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
        """Return the offer's identity: its client's id, and the time at which it was sent."""
        return self.client_id, self.sent_at_ms

    @property
    def state(self) -> str:
        """Return the text that is stored for the offer's end."""
        return OPEN if self.end is None else self.end.state


class OpenOffer(msgspec.Struct, frozen=True, kw_only=True):
    """An open offer: its `record`, and all data that a proxy and the proxy's answer need.

    `offer` is the session description as text, `relay` the bridge's WebSocket address, `reply_to` the URL of the queue
    for the client's reply, and `shard` the shard of the waiting offers.
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
        """Return the fields of the offer that the proxy gets."""
        return {"offer": self.offer, "nat": self.record.nat, "relay": self.relay}

    @property
    def for_answer(self) -> dict[str, str | int]:
        """Return the fields that are needed to deliver the proxy's answer, as stored with the match."""
        return {
            "client_id": self.record.client_id,
            "sent_at": self.record.sent_at_ms,
            "method": self.record.method,
            "reply_to": self.reply_to,
            "answers_until": self.answers_until_ms,
        }

    def compute_waited_fraction(self, now_ms: int) -> float:
        """Return the elapsed fraction of the time for which the offer can wait."""
        sent_at_ms = self.record.sent_at_ms
        return (now_ms - sent_at_ms) / (self.waits_until_ms - sent_at_ms)


class Match(msgspec.Struct, frozen=True, kw_only=True):
    """A match of an offer and a poll, with the data that is needed to deliver the proxy's answer.

    `has_waited`: a poll took the offer from the waiting offers, so its message, if any, is still in the offers queue.
    """

    record: OfferRecord
    profile: Profile
    reply_to: str
    answers_until_ms: int
    has_waited: bool = False

    @classmethod
    def parse(cls, fields: Mapping[str, Any], profile: Profile, *, has_waited: bool = False) -> "Match":
        """Parse the fields of `OpenOffer.for_answer`. Raises KeyError or ValueError for any other fields."""
        return cls(
            record=OfferRecord(
                client_id=fields["client_id"], sent_at_ms=fields["sent_at"], method=OfferMethod(fields["method"])
            ),
            profile=profile,
            reply_to=fields["reply_to"],
            answers_until_ms=fields["answers_until"],
            has_waited=has_waited,
        )


def select_pool_for_proxy(proxy: Nat) -> Pool:
    """Return the pool in which a proxy with this NAT waits."""
    if proxy in {Nat.OPEN, Nat.UNRESTRICTED}:
        return Pool.UNRESTRICTED
    return Pool.MODERATE if proxy is Nat.MODERATE else Pool.RESTRICTED


def choose_shard(name: str, shards: int) -> int:
    """Choose one of `shards` shards, by the name of an item, to store the item in."""
    return zlib.crc32(name.encode()) % shards


def list_pools_for_client(client: Nat) -> tuple[Pool, ...]:
    """Return the pools of the proxies that a client can reach, in the order to try them.

    Proxies that only few clients can reach come first, so that other proxies stay free for clients that need these.
    """
    if client in {Nat.OPEN, Nat.UNRESTRICTED}:
        return (Pool.RESTRICTED, Pool.MODERATE, Pool.UNRESTRICTED)
    return (Pool.MODERATE, Pool.UNRESTRICTED) if client is Nat.MODERATE else (Pool.UNRESTRICTED,)


def rank_proxies(waiting: Iterable[WaitingProxy], *, ties: Sequence[float]) -> list[WaitingProxy]:
    """Order waiting proxies: fewest clients first, but one proxy of every address before a second one of any address.

    `ties` has a random number for each proxy, so that two brokers begin with different proxies among equal ones.
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
    """Return whether an offer is too old to get a proxy."""
    return now_ms - sent_at_ms >= PATIENCE_MS


def seconds_until(at_ms: int, *, now_ms: int) -> int:
    """Return the whole seconds, the unit of SQS's delays, until this time is over."""
    return max(-(-(at_ms - now_ms) // 1000), 0)
