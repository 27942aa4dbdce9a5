"""Counts polls and offers of one execution environment, and caches the total counts of all environments.

An environment adds its counts to the table every `WRITTEN_EVERY_MS`, and reads the totals about as often. Counts have
no addresses. Errors never fail a rendezvous: counts are written later, and the last totals that were read stay in use.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING

from sluice.errors import CallFailed
from sluice.rendezvous.protocol.matching import Pool, choose_shard
from sluice.rendezvous.protocol.pace import (
    ADDRESS_GROUPS,
    Counts,
    Pace,
    compute_elapsed_fraction,
    compute_pace,
    may_take_offer,
)
from sluice.times import NowMs

if TYPE_CHECKING:  # These imports are only for type hints: the adapters are passed in as arguments.
    from sluice.aws.rendezvous.pace import DynamoPaceStore

WRITTEN_EVERY_MS = 20_000
READ_EVERY_MS = 10_000
MAX_COOLDOWNS = 50_000  # This many cooldowns take about 15 MB of memory.


@dataclass(slots=True, kw_only=True)
class Pacing:
    """The counts and cooldowns of one environment; thread-safe. `log` is called with the errors of reads and writes.

    An environment remembers the cooldowns that began in it. The table stores only cooldowns of addresses that polled
    too early in some environment, or that hold polls, and must confirm that such a cooldown is over before the address
    gets an offer. Storing all cooldowns would cost a tenth of a rendezvous. An address that polls in several
    environments, and in none too early, may get several offers. But polls that aren't held take milliseconds, so
    environments are few.
    """

    store: "DynamoPaceStore"
    now_ms: NowMs
    log: Callable[[CallFailed], None]
    _minute_counts: Counter[str] = field(default_factory=Counter)
    _hour_counts: Counter[str] = field(default_factory=Counter)
    _polling_groups: set[int] = field(default_factory=set)
    # For each address: the end of its cooldown, and whether the table has this cooldown.
    _cooldowns: OrderedDict[str, tuple[int, bool]] = field(default_factory=OrderedDict)
    _cached_pace: Pace = field(default_factory=Pace)
    _shard_count: int = 1  # the number of shards of `_cached_pace`
    _read_at_ms: int = 0
    _written_at_ms: int = 0
    _lock: Lock = field(default_factory=Lock)

    def get_pace(self) -> Pace:
        """Return the recent rates of polls and offers, cached for a few seconds."""
        now_ms = self.now_ms()
        with self._lock:
            if now_ms - self._read_at_ms >= READ_EVERY_MS:
                self._read_at_ms = now_ms
                try:
                    minutes, hours = self.store.read_recent_counts(now_ms=now_ms)
                except CallFailed as error:
                    self.log(error)
                else:
                    self._cached_pace = compute_pace(minutes, hours, now_ms=now_ms)
                    self._shard_count = self._cached_pace.shards
            return self._cached_pace

    def count_shards(self) -> int:
        """Return the number of partitions over which waiting items are spread, cached for a few seconds."""
        self.get_pace()
        return self._shard_count

    def count_offer(self, pool: Pool) -> None:
        """Count an offer whose first pool is this one."""
        with self._lock:
            self._minute_counts[f"{pool}_offers"] += 1
            self._hour_counts["offers"] += 1

    def count_poll(self, pool: Pool, *, interval_ms: int) -> None:
        """Count a poll that got no offer; the proxy's next poll is due after `interval_ms`."""
        with self._lock:
            self._minute_counts[f"{pool}_polls"] += 1
            self._minute_counts[f"{pool}_promised_ms"] += interval_ms

    def count_given(self, pool: Pool, *, is_answered: bool = False) -> None:
        """Count an offer given to a proxy of this pool, or, if `is_answered`, an offer answered in time."""
        name = f"{pool}_answered" if is_answered else f"{pool}_given"
        with self._lock:
            self._minute_counts[name] += 1
            self._hour_counts[name] += 1

    def count_hold(self, held_ms: int) -> None:
        """Add the time for which a poll was held."""
        with self._lock:
            self._hour_counts["held_ms"] += held_ms

    def start_cooldown(self, address: str | None, cooldown_ms: int) -> float:
        """Count the address, and start its cooldown unless this environment knows one that isn't over.

        Returns 1 if no cooldown holds, otherwise the elapsed fraction of the known cooldown.
        """
        pace, now_ms = self.get_pace(), self.now_ms()
        if address is None:
            return 1.0
        with self._lock:
            self._polling_groups.add(choose_shard(address, ADDRESS_GROUPS))
            if not pace.has_crowd:
                return 1.0
            next_ms, is_stored = self._cooldowns.get(address, (0, False))
            elapsed_fraction = compute_elapsed_fraction(next_ms, now_ms=now_ms, cooldown_ms=cooldown_ms)
            if elapsed_fraction >= 1:
                self._remember_cooldown(address, now_ms + cooldown_ms, is_stored=False)
        if elapsed_fraction < 1 and pace.has_demand and not is_stored:
            self._start_stored_cooldown(address, next_ms, now_ms=now_ms)
        return elapsed_fraction

    def confirm(self, address: str | None, cooldown_ms: int, *, is_held: bool = False, waited: float = 0.0) -> float:
        """Check in the table that an address's last cooldown is over, before the address gets an offer.

        Returns the elapsed fraction of the cooldown. The table starts a cooldown for an address that polled too early,
        or whose poll is to be held, since an address can hold many polls at once. `waited` is the fraction of its
        waiting time that the offer has waited. If the address may take the offer although its last cooldown isn't over,
        the cooldowns add up: otherwise an address that always polls too early would get too many offers.
        """
        pace, now_ms = self.get_pace(), self.now_ms()
        if address is None or not (pace.has_crowd and pace.has_demand):
            return 1.0
        if not (is_held or self._has_stored_cooldown(address)):
            return 1.0
        next_ms = self._start_stored_cooldown(address, now_ms + cooldown_ms, now_ms=now_ms, is_held=is_held)
        if next_ms is None:
            return 1.0
        elapsed_fraction = compute_elapsed_fraction(next_ms, now_ms=now_ms, cooldown_ms=cooldown_ms)
        is_due = may_take_offer(elapsed_fraction, waited)
        # The write fails if another poll of the address took an offer in the meantime.
        if is_due and self._start_stored_cooldown(address, next_ms + cooldown_ms, now_ms=now_ms, after_ms=next_ms):
            return 0.0
        return elapsed_fraction

    def _has_stored_cooldown(self, address: str) -> bool:
        """Return whether the table has a cooldown of the address, even one that is over. False if the call fails."""
        try:
            return self._cooldowns.get(address, (0, False))[1] or self.store.has_cooldown(address, now_ms=self.now_ms())
        except CallFailed as error:
            self.log(error)
            return False

    def _start_stored_cooldown(
        self, address: str, next_ms: int, *, now_ms: int, after_ms: int | None = None, is_held: bool = False
    ) -> int | None:
        """Start a cooldown in the table. Returns None, also if the call fails, or the end of one that still holds."""
        try:
            standing = self.store.start_cooldown(address, next_ms, now_ms=now_ms, after_ms=after_ms, is_held=is_held)
        except CallFailed as error:
            self.log(error)
            return None
        with self._lock:
            self._remember_cooldown(address, standing or next_ms, is_stored=True)
        return standing

    def _remember_cooldown(self, address: str, next_ms: int, *, is_stored: bool) -> None:
        self._cooldowns[address] = next_ms, is_stored
        self._cooldowns.move_to_end(address)
        while len(self._cooldowns) > MAX_COOLDOWNS:
            self._cooldowns.popitem(last=False)

    def flush_counts(self, *, at_shutdown: bool = False) -> None:
        """Add the counts to the table, at most every `WRITTEN_EVERY_MS` and at the environment's shutdown."""
        now_ms = self.now_ms()
        with self._lock:
            is_due = at_shutdown or now_ms - self._written_at_ms >= WRITTEN_EVERY_MS
            if not is_due or not (self._minute_counts or self._hour_counts or self._polling_groups):
                return
            self._written_at_ms = now_ms
            minute = Counts(self._minute_counts, frozenset(self._polling_groups))
            hour = Counts(self._hour_counts)
            self._minute_counts, self._hour_counts, self._polling_groups = Counter(), Counter(), set()
        try:
            self.store.add(minute, hour, now_ms=now_ms)
        except CallFailed as error:
            self.log(error)
            with self._lock:
                self._minute_counts.update(minute.numbers)
                self._hour_counts.update(hour.numbers)
