"""Computes poll intervals, the share of polls to hold, and address cooldowns from recent counts. Pure.

An offer waits for the next poll of its pool. If many proxies poll, the reply field `NextPoll` makes each of them poll
so seldom that all together reach the wanted rate. If few poll, their polls are held open instead, within an allowance,
because the function costs for as long as it holds a poll.
"""

from collections.abc import Mapping

import msgspec

from sluice.rendezvous.protocol.matching import HOLD_MS, Pool
from sluice.times import DAY_MS, HOUR_MS, MINUTE_MS

LATELY_MINUTES = 3  # window of recent rates; it includes the current minute
NEXT_POLL_MS = 20_000  # shortest poll interval
NEXT_POLL_MAX_MS = 4 * HOUR_MS
POLLS_AT_REST = 5.0  # wanted polls per second without demand: an offer then waits 0.2 s
POLLS_PER_OFFER = 2.5  # wanted polls per offer, if more than without demand
NONE_HELD_POLLERS = 160.0  # With more proxies in a pool none of its polls is held: enough arrive.
OFFER_ALLOWS_MS = 5_000  # holding time that each offer adds to the daily allowance
SETTLES_MS = LATELY_MINUTES * MINUTE_MS / 4  # Half the value at which intervals would oscillate, as counts lag behind.
SPENT_WITHIN_MS = 15 * MINUTE_MS  # time in which the remaining allowance may be spent
CROWD = 4  # groups of polling addresses from which cooldowns apply
ADDRESS_GROUPS = 64  # hash groups of addresses; the number that is seen estimates the number of addresses
TURN = 0.9  # cooldown per poll interval; below 1, since a proxy's clock may be fast
RESTS_AT_MOST_MS = NEXT_POLL_MAX_MS  # longest cooldown after repeated polls
OFFERS_A_SHARD = 100.0  # offers per second, which use a third of a DynamoDB partition's writes


class PoolPace(msgspec.Struct, frozen=True):
    """Recent rates of one pool. `pollers` is the number of proxies that poll it, computed from their intervals.

    `polls_per_s` counts polls that got no offer after a complete cooldown.
    """

    pollers: float = 0.0
    polls_per_s: float = 0.0
    offers_per_s: float = 0.0

    @property
    def away_ms(self) -> float:
        """Return the recent average poll interval."""
        return 1000 * self.pollers / self.polls_per_s if self.polls_per_s else 0.0


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """Recent rates of all pools: `groups` of addresses poll; `held_ms` and `offers` are those of the last day."""

    pools: Mapping[Pool, PoolPace] = msgspec.field(default_factory=dict)
    groups: int = 0
    held_ms: int = 0
    offers: int = 0

    def of(self, pool: Pool) -> PoolPace:
        """Return the rates of one pool."""
        return self.pools.get(pool, PoolPace())

    @property
    def offers_per_s(self) -> float:
        """Return the offers per second of all pools."""
        return sum(pace.offers_per_s for pace in self.pools.values())

    @property
    def has_demand(self) -> bool:
        """Return whether any client sent an offer recently."""
        return self.offers_per_s > 0

    def next_poll_ms(self, pool: Pool) -> int:
        """Compute the next poll interval of a proxy, so that the polls of its pool have the wanted rate.

        The recent interval is corrected by the ratio of the actual rate to the wanted one. An interval of an hour has
        its effect an hour later, so longer intervals are corrected more slowly. Otherwise the interval would swing
        between hours and seconds.
        """
        pace = self.of(pool)
        wanted_polls_per_s = max(POLLS_AT_REST, POLLS_PER_OFFER * pace.offers_per_s)
        away_ms = max(pace.away_ms, NEXT_POLL_MS)
        change: float = (pace.polls_per_s / wanted_polls_per_s) ** min(1.0, SETTLES_MS / away_ms)
        return min(max(NEXT_POLL_MS, round(away_ms * change)), NEXT_POLL_MAX_MS)

    def hold_chance(self, pool: Pool, *, at_rest: int, at_most: int) -> float:
        """Return the fraction of polls to hold: at any time `at_most` polls, and `at_rest` polls on a day's average."""
        pollers = self.of(pool).pollers
        if pollers > NONE_HELD_POLLERS:
            return 0.0
        allowed_ms = at_rest * DAY_MS + self.offers * OFFER_ALLOWS_MS - self.held_ms
        allowed = min(max(allowed_ms / SPENT_WITHIN_MS, 0.0), at_most)
        # The number of polls held at a time if every poll were held for ten seconds before its interval.
        held = sum(pool_pace.pollers for pool_pace in self.pools.values()) * HOLD_MS / (HOLD_MS + NEXT_POLL_MS)
        return min(allowed / max(held, 1.0), 1.0)

    @property
    def is_crowd(self) -> bool:
        """Return whether enough addresses poll that cooldowns apply."""
        return self.groups >= CROWD

    @property
    def shards(self) -> int:
        """Return the number of table partitions over which waiting items are spread."""
        return 1 + int(self.offers_per_s / OFFERS_A_SHARD)


class Cooldown(msgspec.Struct, frozen=True):
    """The cooldown of an address: it began at `since_ms` with a poll, and ends at `next_ms`."""

    since_ms: int
    next_ms: int

    @classmethod
    def start(cls, *, now_ms: int, next_poll_ms: int, held: bool) -> "Cooldown":
        """Start an address's cooldown after a poll with this interval, which begins after the hold of a held poll."""
        return cls(now_ms, now_ms + (HOLD_MS if held else 0) + round(TURN * next_poll_ms))

    def compute_elapsed_fraction(self, *, now_ms: int) -> float:
        """Return the fraction of the cooldown that has elapsed; 1 if it is over."""
        if now_ms >= self.next_ms:
            return 1.0
        return max(now_ms - self.since_ms, 0) / max(self.next_ms - self.since_ms, 1)

    def merge(self, other: "Cooldown") -> "Cooldown":
        """Combine two cooldowns of one address: their times add up if one began before the other was over."""
        first, last = sorted((self, other), key=lambda turn: turn.since_ms)
        if last.since_ms >= first.next_ms:
            return last
        until_ms = first.next_ms + last.next_ms - last.since_ms
        return Cooldown(first.since_ms, min(until_ms, max(first.next_ms, last.since_ms + RESTS_AT_MOST_MS)))


class CooldownRow(msgspec.Struct, frozen=True):
    """The cooldowns that one environment published in one row, by address."""

    environment: str
    at_ms: int
    turns: Mapping[str, Cooldown]


def may_take(rested: float, *, sent_at_ms: int, waits_until_ms: int, now_ms: int) -> bool:
    """Return whether a poll may take a waiting offer: the older the offer, the less the cooldown must have elapsed.

    So offers go to rested addresses first, and to any other address before they time out.
    """
    return (now_ms - sent_at_ms) >= (1.0 - rested) * (waits_until_ms - sent_at_ms)


class Counts(msgspec.Struct, frozen=True):
    """Counts of a minute or an hour, by name, and the address groups that polled in it."""

    numbers: Mapping[str, int] = msgspec.field(default_factory=dict)
    groups: frozenset[int] = frozenset()

    def get(self, name: str) -> int:
        """Return the count of this name; 0 if there is none."""
        return self.numbers.get(name, 0)


def compute_pace(minutes: Mapping[int, Counts], hours: Mapping[int, Counts], *, now_ms: int) -> Pace:
    """Compute the recent rates from the counts by minute and by hour, each numbered since 1970."""
    minute = now_ms // MINUTE_MS
    counted = {number: minutes.get(number, Counts()) for number in range(minute - LATELY_MINUTES + 1, minute + 1)}
    begun_ms = min((number for number, counts in counted.items() if counts.numbers), default=minute) * MINUTE_MS
    window_ms = max(now_ms - begun_ms, MINUTE_MS // 2)

    def of_pool(pool: Pool) -> PoolPace:
        promised_ms = sum(counts.get(f"{pool}_promised_ms") for counts in counted.values())
        polls = sum(counts.get(f"{pool}_polls") for counts in counted.values())
        offers = max(
            counts.get(f"{pool}_offers") / (max(now_ms - number * MINUTE_MS, 10_000) if number == minute else MINUTE_MS)
            for number, counts in counted.items()
        )
        return PoolPace(
            pollers=promised_ms / window_ms, polls_per_s=1000 * polls / window_ms, offers_per_s=1000 * offers
        )

    hour = now_ms // HOUR_MS
    of_day = [counts for number, counts in hours.items() if number > hour - DAY_MS // HOUR_MS]
    return Pace(
        pools={pool: of_pool(pool) for pool in Pool},
        groups=max(len(counts.groups) for counts in counted.values()),
        held_ms=sum(counts.get("held_ms") for counts in of_day),
        offers=sum(counts.get("offers") for counts in of_day),
    )
