"""Which proxies fit which client, and in what order. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from sluice.rendezvous.protocol.addresses import UNKNOWN_COUNTRY

HOLD_MS = 10_000  # how long a proxy's poll is held open, and its place in the pool good
PATIENCE_MS = 5_000  # how long after its offer was sent a client is answered


class Nat(StrEnum):
    """What an end knows of the address translation it is behind."""

    UNKNOWN = "unknown"
    RESTRICTED = "restricted"
    UNRESTRICTED = "unrestricted"


class Pool(StrEnum):
    """Where a waiting proxy stands."""

    UNRESTRICTED = "unrestricted"
    RESTRICTED = "restricted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What statistics want to know of a poll, beside its clients: nothing of it decides who is matched.

    `address` is the keyed hash of the proxy's; `trace` the X-Ray trace header of the function that holds the poll.
    """

    type: str = "unknown"
    nat: Nat = Nat.UNKNOWN
    country: str = UNKNOWN_COUNTRY
    address: str | None = None
    relay_extension: bool = False
    trace: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingProxy:
    """A proxy whose poll is held open.

    `poll_id` names the poll, `sid` the proxy (as it names itself, hashed), `mailbox` the URL of the queue that the
    function which holds the poll listens to.
    """

    poll_id: str
    sid: str
    pool: Pool
    clients: int
    polled_at_ms: int
    mailbox: str
    profile: Profile = Profile()

    @property
    def waits_until_ms(self) -> int:
        """When the poll is over."""
        return self.polled_at_ms + HOLD_MS


def pool_of(proxy: Nat) -> Pool:
    """Say where a proxy with this NAT waits."""
    return Pool.UNRESTRICTED if proxy is Nat.UNRESTRICTED else Pool.RESTRICTED


def pools_for(client: Nat) -> tuple[Pool, ...]:
    """Say where a client's proxy may come from, the pool to try first in front.

    Only an unrestricted client can reach a restricted proxy, so it leaves the others to those who need them.
    """
    if client is Nat.UNRESTRICTED:
        return (Pool.RESTRICTED, Pool.UNRESTRICTED)
    return (Pool.UNRESTRICTED,)


def in_order(waiting: Iterable[WaitingProxy], *, now_ms: int, ties: Sequence[float]) -> list[WaitingProxy]:
    """Order those who still wait, fewest clients first.

    `ties` are random numbers, one for each proxy: among equals two brokers then try different proxies first instead
    of losing the same claims to each other.
    """
    here = [
        (proxy.clients, tie, proxy) for proxy, tie in zip(waiting, ties, strict=True) if proxy.waits_until_ms > now_ms
    ]
    return [proxy for *_, proxy in sorted(here, key=lambda entry: entry[:2])]


def proxies_to_hold(*, recent_offers: int, at_least: int, at_most: int) -> int:
    """Say how many polls of one pool to hold open, from the offers it got in the last hold time.

    Twice the recent demand, so that a doubling finds proxies waiting; each held poll costs its function's time.
    """
    return min(max(2 * recent_offers, at_least), at_most)


def is_stale(*, sent_at_ms: int, now_ms: int) -> bool:
    """Say whether an offer's client has given up: a proxy for it would be wasted."""
    return now_ms - sent_at_ms >= PATIENCE_MS
