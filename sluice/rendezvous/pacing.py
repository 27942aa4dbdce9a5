"""What one execution environment counts of polls and offers, and knows of all environments' counts.

Counts are added to the table together, some seconds after one another, and read as seldom: they say how many come, not
who. They never fail a rendezvous: what can't be written is counted later, what can't be read stays as it was known.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import InitVar, dataclass, field
from threading import Lock
from typing import TYPE_CHECKING

from sluice.errors import CallFailed
from sluice.rendezvous.protocol.matching import Pool, shard_of
from sluice.rendezvous.protocol.pace import ADDRESS_GROUPS, Counts, Pace, ToldTurns, Turn, pace_of
from sluice.times import NowMs

if TYPE_CHECKING:  # the adapter's type; a shell is given it, and imports none
    from sluice.aws.rendezvous.pace import DynamoPaceStore

WRITTEN_EVERY_MS = 20_000
READ_EVERY_MS = 10_000
ADDRESS_DIGITS = 16  # of a hash, which tell addresses apart
MAX_TURNS = 100_000  # remembered, some 20 MB
MAX_UNTOLD = 2_000  # told of at once, which is 40 KB; of more an environment tells nobody
TOLD_LATE_MS = 5_000  # by clocks that differ, and reads that are eventually consistent


@dataclass(slots=True, kw_only=True)
class Pacing:
    """Of one environment, by its name; safe for threads. `log` is told of what could not be written or read."""

    environment: InitVar[str]
    store: "DynamoPaceStore"
    now_ms: NowMs
    log: Callable[[CallFailed], None]
    _minute: Counter[str] = field(default_factory=Counter)
    _hour: Counter[str] = field(default_factory=Counter)
    _groups: set[int] = field(default_factory=set)
    _turns: "AddressCooldowns" = field(init=False)
    _pace: Pace = field(default_factory=Pace)
    _shards: int = 1  # of that pace
    _read_at_ms: int = 0
    _heard_at_ms: int = 0
    _written_at_ms: int = 0
    _lock: Lock = field(default_factory=Lock)

    def __post_init__(self, environment: str) -> None:
        self._turns = AddressCooldowns(environment=environment)

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
                    self._shards = self._pace.shards
            return self._pace

    def shards(self) -> int:
        """Say over how many partitions of the table what waits is spread, as it was a few seconds ago."""
        self.pace()
        return self._shards

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


@dataclass(slots=True, kw_only=True)
class AddressCooldowns:
    """Whose turn it is, as one environment knows: of the polls that it served, and of those that others told of.

    By the first digits of an address, which is a hash. Not safe for threads. It never asks the table about one address:
    turns are told in rows of many, some seconds after one another, and read as seldom. So an address that polls in a
    burst may be let in by several environments. It gains nothing by that: before it is given anything the table itself
    is asked, and when they hear of each other's turns, they let it rest for all of them.
    """

    environment: str  # its name among those that tell of turns
    _known: OrderedDict[str, Turn] = field(default_factory=OrderedDict)
    _untold: dict[str, Turn] = field(default_factory=dict)
    _heard_ms: dict[str, int] = field(default_factory=dict)  # the last row, by environment
    _heard_until_ms: int = 0

    def rested(self, address: str, *, now_ms: int) -> float:
        """Say which part of its rest is over: 1 is its turn, as it is for one that isn't known."""
        turn = self._known.get(address[:ADDRESS_DIGITS])
        return 1.0 if turn is None else turn.rested(now_ms=now_ms)

    def begin(self, address: str, turn: Turn) -> None:
        """Let an address in: others are to hear of it."""
        self._add(address[:ADDRESS_DIGITS], turn)
        if len(self._untold) < MAX_UNTOLD:
            self._untold[address[:ADDRESS_DIGITS]] = turn

    def untold(self) -> Mapping[str, Turn]:
        """Hand out what nobody was told of: it is the caller's to tell."""
        untold, self._untold = self._untold, {}
        return untold

    @property
    def heard_since_ms(self) -> int:
        """Since when to read rows: of the last seconds again."""
        return self._heard_until_ms - TOLD_LATE_MS

    def hear(self, rows: Iterable[ToldTurns], *, now_ms: int) -> None:
        """Remember what others told of, each row once."""
        for row in rows:
            if row.environment != self.environment and row.at_ms > self._heard_ms.get(row.environment, 0):
                self._heard_ms[row.environment] = row.at_ms
                for address, turn in row.turns.items():
                    self._add(address, turn)
        self._heard_until_ms = now_ms
        self._heard_ms = {name: at_ms for name, at_ms in self._heard_ms.items() if at_ms > self.heard_since_ms}

    def _add(self, address: str, turn: Turn) -> None:
        known = self._known.get(address)
        if known is not None:
            if turn.next_ms <= known.since_ms:
                return
            turn = known.and_also(turn)
        self._known[address] = turn
        self._known.move_to_end(address)
        while len(self._known) > MAX_TURNS:
            self._known.popitem(last=False)
