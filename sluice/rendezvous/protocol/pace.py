"""Computes poll intervals, the share of polls to hold, and address cooldowns, all from recent counts. Pure.

An offer waits for the next poll of its pool. If many proxies poll, the reply field `NextPoll` gives each proxy such a
long interval that all proxies together poll at the target rate. If few proxies poll, their polls are held open instead,
within an allowance, because a held poll costs function time. Anybody can poll, so polls count only in the proportion in
which proxies answered their offers.
"""

import math
from collections.abc import Iterable, Mapping

import msgspec

from sluice.rendezvous.protocol.matching import HOLD_MS, Pool
from sluice.times import DAY_MS, HOUR_MS, MINUTE_MS

LATELY_MINUTES = 3  # Recent rates cover this many minutes, including the current one.
PROVEN_HOURS = 2  # If recent minutes have too few offers for a rate, the rate is taken from this many hours.
NEXT_POLL_MS = 20_000  # This is the shortest mean of poll intervals.
NEXT_POLL_MAX_MS = 4 * HOUR_MS  # This is the longest mean of poll intervals.
POLLS_WITHOUT_DEMAND = 5.0  # Without demand, this is the target rate of polls per second: an offer then waits 0.2 s.
POLLS_PER_OFFER = 2.5  # With demand, the target is this many polls per offer, if that rate is higher.
MAX_POLLERS_TO_HOLD = 160.0  # No polls of a pool with more proxies are held, because enough polls arrive.
OFFER_ALLOWS_MS = 5_000  # Each offer adds this holding time to the daily allowance.
SETTLES_MS = LATELY_MINUTES * MINUTE_MS / 4  # Counts lag behind: at twice this time, intervals would oscillate.
SPENT_WITHIN_MS = 15 * MINUTE_MS  # The rest of the allowance may be spent within this time.
CROWD = 4  # Cooldowns apply if this many groups of addresses poll.
ADDRESS_GROUPS = 64  # Addresses are hashed to groups; the number of groups that poll estimates the number of addresses.
SPREAD = 0.2  # Intervals vary by at least this part of their mean, so that proxies don't return in waves.
MEAN = 0.5  # A random draw of this value gives the mean interval.
COOLDOWN = 0.9  # A cooldown is this part of a poll interval, less than 1 because a proxy's clock may be fast.
OFFERS_A_SHARD = 100.0  # This many offers per second use a third of a DynamoDB partition's writes.


class PoolPace(msgspec.Struct, frozen=True):
    """Recent rates of one pool. `pollers` is the number of proxies that poll, computed from their poll intervals.

    `polls_per_s` counts polls that got no offer after a complete cooldown. Both numbers are multiplied by the answered
    part of given offers. So proxies that don't answer neither lengthen the intervals of other proxies nor prevent the
    holding of polls.
    """

    pollers: float = 0.0
    polls_per_s: float = 0.0
    offers_per_s: float = 0.0

    @property
    def interval_ms(self) -> float:
        """Return the recent average poll interval."""
        return 1000 * self.pollers / self.polls_per_s if self.polls_per_s else 0.0


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """Recent rates of all pools. `groups` is the number of polling groups; `held_ms` and `offers` cover a day."""

    pools: Mapping[Pool, PoolPace] = msgspec.field(default_factory=dict)
    groups: int = 0
    held_ms: int = 0
    offers: int = 0

    def for_pool(self, pool: Pool) -> PoolPace:
        """Return the recent rates of one pool."""
        return self.pools.get(pool, PoolPace())

    @property
    def offers_per_s(self) -> float:
        """Return the offers per second of all pools."""
        return sum(pace.offers_per_s for pace in self.pools.values())

    @property
    def has_demand(self) -> bool:
        """Return whether any client sent an offer recently."""
        return self.offers_per_s > 0

    def draw_next_poll_ms(self, pool: Pool, draw: float) -> int:
        """Draw the next poll interval of a proxy, so that the polls of its pool reach the target rate.

        The recent interval is multiplied by the ratio of the actual rate to the target rate. An interval of an hour has
        its effect an hour later, so longer intervals are corrected more slowly; otherwise they would swing between
        hours and seconds. If the interval becomes much longer, it is drawn from the recent interval upwards, because
        otherwise no proxy would poll for that long. `draw` is a random number in [0, 1).
        """
        pace = self.for_pool(pool)
        target_polls_per_s = max(POLLS_WITHOUT_DEMAND, POLLS_PER_OFFER * pace.offers_per_s)
        interval_ms = max(pace.interval_ms, NEXT_POLL_MS)
        change: float = (pace.polls_per_s / target_polls_per_s) ** min(1.0, SETTLES_MS / interval_ms)
        mean_ms = min(max(NEXT_POLL_MS, interval_ms * change), NEXT_POLL_MAX_MS)
        return draw_interval(mean_ms, draw, least_ms=interval_ms)

    def compute_hold_fraction(self, pool: Pool, *, on_average: int, at_most: int) -> float:
        """Return the fraction of polls to hold, limited to `at_most` polls at once and `on_average` over a day."""
        pollers = self.for_pool(pool).pollers
        if pollers > MAX_POLLERS_TO_HOLD:
            return 0.0
        allowed_ms = on_average * DAY_MS + self.offers * OFFER_ALLOWS_MS - self.held_ms
        allowed = min(max(allowed_ms / SPENT_WITHIN_MS, 0.0), at_most)
        # This many polls would be held at a time if every poll were held for ten seconds before its interval.
        held_polls = sum(pool_pace.pollers for pool_pace in self.pools.values()) * HOLD_MS / (HOLD_MS + NEXT_POLL_MS)
        return min(allowed / max(held_polls, 1.0), 1.0)

    @property
    def has_crowd(self) -> bool:
        """Return whether so many addresses poll that cooldowns apply."""
        return self.groups >= CROWD

    @property
    def shards(self) -> int:
        """Return the number of table partitions over which waiting offers and polls are spread."""
        return 1 + int(self.offers_per_s / OFFERS_A_SHARD)


def draw_interval(mean_ms: float, draw: float, *, least_ms: float = math.inf) -> int:
    """Draw an interval around its mean, within `SPREAD`, or from `least_ms` on. `draw` is random in [0, 1)."""
    return round(mean_ms + max(SPREAD * mean_ms, mean_ms - least_ms) * (2 * draw - 1))


def compute_elapsed_fraction(next_ms: int, *, now_ms: int, cooldown_ms: int) -> float:
    """Return the elapsed fraction of a cooldown that ends at `next_ms`: 0 before its beginning, 1 after its end."""
    return min(max(1 - (next_ms - now_ms) / cooldown_ms, 0.0), 1.0)


def may_take_offer(elapsed_fraction: float, waited: float) -> bool:
    """Return whether a poll may take an offer that has waited for a fraction of its time.

    The longer the offer has waited, the less of the address's cooldown needs to be over. So offers go first to
    addresses whose cooldown is over, and to any other address before they time out.
    """
    return elapsed_fraction + waited >= 1


class Counts(msgspec.Struct, frozen=True):
    """Counts of a minute or an hour, by name, and the groups of addresses that polled in this time."""

    numbers: Mapping[str, int] = msgspec.field(default_factory=dict)
    groups: frozenset[int] = frozenset()

    def get(self, name: str) -> int:
        """Return the count with this name; 0 if nothing was counted."""
        return self.numbers.get(name, 0)


def compute_pace(minutes: Mapping[int, Counts], hours: Mapping[int, Counts], *, now_ms: int) -> Pace:
    """Compute the recent rates from counts by minute and by hour, both numbered since 1970."""
    minute = now_ms // MINUTE_MS
    counted = {number: minutes.get(number, Counts()) for number in range(minute - LATELY_MINUTES + 1, minute + 1)}
    begun_ms = min((number for number, counts in counted.items() if counts.numbers), default=minute) * MINUTE_MS
    window_ms = max(now_ms - begun_ms, MINUTE_MS // 2)

    hour = now_ms // HOUR_MS
    of_day = {number: counts for number, counts in hours.items() if number > hour - DAY_MS // HOUR_MS}
    of_hours = [counts for number, counts in of_day.items() if number > hour - PROVEN_HOURS]

    def compute_pool_pace(pool: Pool) -> PoolPace:
        proven = min(_compute_answered_share(pool, counted.values()), _compute_answered_share(pool, of_hours))
        promised_ms = proven * sum(counts.get(f"{pool}_promised_ms") for counts in counted.values())
        polls = proven * sum(counts.get(f"{pool}_polls") for counts in counted.values())
        offers = max(
            counts.get(f"{pool}_offers") / (max(now_ms - number * MINUTE_MS, 10_000) if number == minute else MINUTE_MS)
            for number, counts in counted.items()
        )
        return PoolPace(
            pollers=promised_ms / window_ms, polls_per_s=1000 * polls / window_ms, offers_per_s=1000 * offers
        )

    return Pace(
        pools={pool: compute_pool_pace(pool) for pool in Pool},
        groups=max(len(counts.groups) for counts in counted.values()),
        held_ms=sum(counts.get("held_ms") for counts in of_day.values()),
        offers=sum(counts.get("offers") for counts in of_day.values()),
    )


def _compute_answered_share(pool: Pool, counted: Iterable[Counts]) -> float:
    """Return the answered part of the offers given to a pool. Adds one answered offer to avoid a division by 0."""
    offers, answers = (1 + sum(counts.get(f"{pool}_{what}") for counts in counted) for what in ("given", "answered"))
    return min(answers / offers, 1.0)
