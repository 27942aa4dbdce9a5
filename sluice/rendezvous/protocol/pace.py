"""How often proxies poll, how many polls are held, and whose turn it is: from what was counted lately. Pure.

An offer waits for a poll, so what a client waits for is the next one: where many proxies poll, they come soon enough by
themselves, and each is told (`NextPoll`) to come so seldom that all of them together come as often as is wanted. Where
few poll, their polls are held open, as far as an allowance goes: a held poll costs its function's time.
"""

from collections.abc import Mapping

import msgspec

from sluice.rendezvous.protocol.matching import HOLD_MS, Pool
from sluice.times import DAY_MS, HOUR_MS, MINUTE_MS

LATELY_MINUTES = 3  # this one and those before it, which say how many poll and offer
NEXT_POLL_MS = 20_000  # at least
NEXT_POLL_MAX_MS = 4 * HOUR_MS
POLLS_AT_REST = 5.0  # a second: with so many an offer waits a fifth of one
POLLS_PER_OFFER = 2.5  # where offers are more than polls at rest
NONE_HELD_POLLERS = 160.0  # with more that poll no poll is held: they come by themselves
OFFER_ALLOWS_MS = 5_000  # of holding, each offer, beside what is allowed at rest
SETTLES_MS = LATELY_MINUTES * MINUTE_MS / 4  # half of what would swing for ever: what is counted is that late
SPENT_WITHIN_MS = 15 * MINUTE_MS  # what is allowed would be spent in this time, if it were all that there is
CROWD = 4  # addresses that poll: with fewer nobody keeps others from their turn
ADDRESS_GROUPS = 64  # that addresses fall into: how many of them are seen says whether there are many addresses
TURN = 0.9  # of what a proxy was told to wait: it may be early by its own clock
RESTS_AT_MOST_MS = NEXT_POLL_MAX_MS  # however often it was let in
OFFERS_A_SHARD = 100.0  # a second, which takes a third of what a partition of the table writes


class PoolPace(msgspec.Struct, frozen=True):
    """What was counted of one pool lately. `pollers` is how many proxies poll it, by how long each was sent away.

    `polls_per_s` are those that got nothing, in their turn.
    """

    pollers: float = 0.0
    polls_per_s: float = 0.0
    offers_per_s: float = 0.0

    @property
    def away_ms(self) -> float:
        """For how long proxies were sent away lately, on the average."""
        return 1000 * self.pollers / self.polls_per_s if self.polls_per_s else 0.0


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """What was counted lately. `groups` of addresses poll; `held_ms` and `offers` are of the last day."""

    pools: Mapping[Pool, PoolPace] = msgspec.field(default_factory=dict)
    groups: int = 0
    held_ms: int = 0
    offers: int = 0

    def of(self, pool: Pool) -> PoolPace:
        """Give one pool's."""
        return self.pools.get(pool, PoolPace())

    @property
    def offers_per_s(self) -> float:
        """All pools' offers a second."""
        return sum(each.offers_per_s for each in self.pools.values())

    @property
    def has_demand(self) -> bool:
        """Whether anybody offered lately."""
        return self.offers_per_s > 0

    def next_poll_ms(self, pool: Pool) -> int:
        """Say when a proxy should come again, so that those of its pool come as often as is wanted.

        What others were told lately is changed by how many come too often, or too seldom. Whoever was sent away for an
        hour shows what it did an hour later: so it is changed the slower the longer proxies are away, or all of them
        would be sent away for hours, and then for seconds.
        """
        pace = self.of(pool)
        wanted = max(POLLS_AT_REST, POLLS_PER_OFFER * pace.offers_per_s)
        away_ms = max(pace.away_ms, NEXT_POLL_MS)
        change: float = (pace.polls_per_s / wanted) ** min(1.0, SETTLES_MS / away_ms)
        return min(max(NEXT_POLL_MS, round(away_ms * change)), NEXT_POLL_MAX_MS)

    def hold_chance(self, pool: Pool, *, at_rest: int, at_most: int) -> float:
        """Say which part of the polls to hold. `at_rest` may be held at any time, on the average of a day."""
        pollers = self.of(pool).pollers
        if pollers > NONE_HELD_POLLERS:
            return 0.0
        allowed_ms = at_rest * DAY_MS + self.offers * OFFER_ALLOWS_MS - self.held_ms
        allowed = min(max(allowed_ms / SPENT_WITHIN_MS, 0.0), at_most)
        # If each of them were: held for ten seconds, and then away.
        held = sum(each.pollers for each in self.pools.values()) * HOLD_MS / (HOLD_MS + NEXT_POLL_MS)
        return min(allowed / max(held, 1.0), 1.0)

    @property
    def is_crowd(self) -> bool:
        """Whether so many addresses poll that each has its turn."""
        return self.groups >= CROWD

    @property
    def shards(self) -> int:
        """Say over how many partitions of the table what waits is spread."""
        return 1 + int(self.offers_per_s / OFFERS_A_SHARD)


class Turn(msgspec.Struct, frozen=True):
    """An address's turn: it was let in at `since_ms`, and its next turn is at `next_ms`."""

    since_ms: int
    next_ms: int

    @classmethod
    def begun(cls, *, now_ms: int, next_poll_ms: int, held: bool) -> "Turn":
        """Let an address in that is told to come back then, after its poll was held or at once."""
        return cls(now_ms, now_ms + (HOLD_MS if held else 0) + round(TURN * next_poll_ms))

    def rested(self, *, now_ms: int) -> float:
        """Say which part of its rest is over: 1 is its turn."""
        if now_ms >= self.next_ms:
            return 1.0
        return max(now_ms - self.since_ms, 0) / max(self.next_ms - self.since_ms, 1)

    def and_also(self, other: "Turn") -> "Turn":
        """Give the rest of an address that was let in twice: of both, where one began before the other was over."""
        first, last = sorted((self, other), key=lambda turn: turn.since_ms)
        if last.since_ms >= first.next_ms:
            return last
        until_ms = first.next_ms + last.next_ms - last.since_ms
        return Turn(first.since_ms, min(until_ms, max(first.next_ms, last.since_ms + RESTS_AT_MOST_MS)))


class ToldTurns(msgspec.Struct, frozen=True):
    """What an environment told of its turns, by address, in one row."""

    environment: str
    at_ms: int
    turns: Mapping[str, Turn]


def may_take(rested: float, *, sent_at_ms: int, waits_until_ms: int, now_ms: int) -> bool:
    """Say whether a poll may take an offer that waits: one that isn't rested, the older the offer the sooner.

    So offers go to those whose turn it is as long as such come, and to whoever comes before they go to nobody.
    """
    return (now_ms - sent_at_ms) >= (1.0 - rested) * (waits_until_ms - sent_at_ms)


class Counts(msgspec.Struct, frozen=True):
    """What was counted in a minute or an hour, by name, and which groups of addresses polled in it."""

    numbers: Mapping[str, int] = msgspec.field(default_factory=dict)
    groups: frozenset[int] = frozenset()

    def get(self, name: str) -> int:
        """Give a number; 0 for what wasn't counted."""
        return self.numbers.get(name, 0)


def pace_of(minutes: Mapping[int, Counts], hours: Mapping[int, Counts], *, now_ms: int) -> Pace:
    """Read what was counted, by number of the minute and of the hour since 1970, of the last ones."""
    minute = now_ms // MINUTE_MS
    counted = {each: minutes.get(each, Counts()) for each in range(minute - LATELY_MINUTES + 1, minute + 1)}
    begun_ms = min((each for each, counts in counted.items() if counts.numbers), default=minute) * MINUTE_MS
    window_ms = max(now_ms - begun_ms, MINUTE_MS // 2)

    def of_pool(pool: Pool) -> PoolPace:
        promised_ms = sum(counts.get(f"{pool}_promised_ms") for counts in counted.values())
        polls = sum(counts.get(f"{pool}_polls") for counts in counted.values())
        offers = max(
            counts.get(f"{pool}_offers") / (max(now_ms - each * MINUTE_MS, 10_000) if each == minute else MINUTE_MS)
            for each, counts in counted.items()
        )
        return PoolPace(
            pollers=promised_ms / window_ms, polls_per_s=1000 * polls / window_ms, offers_per_s=1000 * offers
        )

    hour = now_ms // HOUR_MS
    of_day = [counts for each, counts in hours.items() if each > hour - DAY_MS // HOUR_MS]
    return Pace(
        pools={pool: of_pool(pool) for pool in Pool},
        groups=max(len(counts.groups) for counts in counted.values()),
        held_ms=sum(counts.get("held_ms") for counts in of_day),
        offers=sum(counts.get("offers") for counts in of_day),
    )
