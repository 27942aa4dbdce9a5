"""What one execution environment counts of polls and offers, and knows of all environments' counts.

Counts are added to the table together, some seconds after one another, and read as seldom: they say how many come, not
who. They never fail a rendezvous: what can't be written is counted later, what can't be read stays as it was known.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import InitVar, dataclass, field
from threading import Lock

from sluice.errors import CallFailed
from sluice.rendezvous.ports import NowMs, PaceStore
from sluice.rendezvous.protocol.matching import Pool, shard_of
from sluice.rendezvous.protocol.pace import ADDRESS_GROUPS, Counts, Pace, ToldTurns, Turn, pace_of
from sluice.rendezvous.turns import Turns

WRITTEN_EVERY_MS = 20_000
READ_EVERY_MS = 10_000


@dataclass(slots=True, kw_only=True)
class Pacing:
    """Of one environment, by its name; safe for threads. `log` is told of what could not be written or read."""

    environment: InitVar[str]
    store: PaceStore
    now_ms: NowMs
    log: Callable[[CallFailed], None]
    _minute: Counter[str] = field(default_factory=Counter)
    _hour: Counter[str] = field(default_factory=Counter)
    _groups: set[int] = field(default_factory=set)
    _turns: Turns = field(init=False)
    _pace: Pace = field(default_factory=Pace)
    _read_at_ms: int = 0
    _heard_at_ms: int = 0
    _written_at_ms: int = 0
    _lock: Lock = field(default_factory=Lock)

    def __post_init__(self, environment: str) -> None:
        self._turns = Turns(environment=environment)

    def pace(self) -> Pace:
        """Say how many come, as it was a few seconds ago."""
        now_ms = self.now_ms()
        with self._lock:
            if now_ms - self._read_at_ms >= READ_EVERY_MS:
                self._read_at_ms = now_ms
                try:
                    minutes, hours = self.store.lately(now_ms=now_ms)
                except CallFailed as error:
                    self.log(error)
                else:
                    self._pace = pace_of(minutes, hours, now_ms=now_ms)
            return self._pace

    def note_offer(self, pool: Pool) -> None:
        """Count an offer that asked for this pool."""
        with self._lock:
            self._minute[f"{pool}_offers"] += 1
            self._hour["offers"] += 1

    def note_poll(self, pool: Pool, *, address: str | None, away_ms: int) -> None:
        """Count a poll that got nothing, and was told to come again after `away_ms`."""
        with self._lock:
            self._minute[f"{pool}_polls"] += 1
            self._minute[f"{pool}_promised_ms"] += away_ms
            if address is not None:
                self._groups.add(shard_of(address, ADDRESS_GROUPS))

    def note_held(self, held_ms: int) -> None:
        """Count how long a poll was held."""
        with self._lock:
            self._hour["held_ms"] += held_ms

    def let_in(self, address: str | None, turn: Turn) -> float:
        """Begin an address's turn where it is one, as far as this environment knows.

        Returns 1, or which part of its rest is over.
        """
        pace = self.pace()
        if address is None or not pace.is_crowd:
            return 1.0
        with self._lock:
            if pace.has_demand:
                self._hear()
            rested = self._turns.rested(address, now_ms=turn.since_ms)
            if rested >= 1:
                self._turns.begin(address, turn)
        return rested

    def _hear(self) -> None:
        """Read what others told of, where some time has passed since the last time."""
        now_ms = self.now_ms()
        if now_ms - self._heard_at_ms < READ_EVERY_MS:
            return
        self._heard_at_ms = now_ms
        try:
            self._turns.hear(self.store.turns_told(since_ms=self._turns.heard_since_ms), now_ms=now_ms)
        except CallFailed as error:
            self.log(error)

    def confirm(self, address: str | None, turn: Turn) -> float:
        """Have the table confirm a turn that was begun here, before anything is given to the address.

        Returns 1, or which part of its rest is over: another environment let it in before.
        """
        pace = self.pace()
        if address is None or not (pace.is_crowd and pace.has_demand):
            return 1.0
        try:
            standing = self.store.take_turn(address, turn, now_ms=turn.since_ms)
        except CallFailed as error:
            self.log(error)
            return 1.0
        return 1.0 if standing is None else standing.rested(now_ms=turn.since_ms)

    def flush(self, *, at_shutdown: bool = False) -> None:
        """Add the counts to the table, at most every `WRITTEN_EVERY_MS` but for the shutdown."""
        now_ms = self.now_ms()
        with self._lock:
            is_due = at_shutdown or now_ms - self._written_at_ms >= WRITTEN_EVERY_MS
            if not is_due or not (self._minute or self._hour):
                return
            self._written_at_ms = now_ms
            minute = Counts(self._minute, frozenset(self._groups))
            hour = Counts(self._hour)
            self._minute, self._hour, self._groups = Counter(), Counter(), set()
            told = ToldTurns(self._turns.environment, now_ms, self._turns.untold())
        try:
            if self._pace.has_demand and told.turns:
                self.store.tell_turns(told)
            self.store.add(minute, hour, now_ms=now_ms)
        except CallFailed as error:
            self.log(error)
            with self._lock:
                self._minute.update(minute.numbers)
                self._hour.update(hour.numbers)
