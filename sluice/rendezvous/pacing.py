"""Counts polls and offers of one execution environment, and caches the counts of all environments.

An environment adds its counts to the table every `WRITTEN_EVERY_MS`, and reads all counts about as often. Counts have
no addresses. Errors never fail a rendezvous: unwritten counts are written later, and unread ones keep their last value.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import InitVar, dataclass, field
from threading import Lock
from typing import TYPE_CHECKING

from sluice.errors import CallFailed
from sluice.rendezvous.protocol.matching import Pool, choose_shard
from sluice.rendezvous.protocol.pace import ADDRESS_GROUPS, Cooldown, CooldownRow, Counts, Pace, compute_pace
from sluice.times import NowMs

if TYPE_CHECKING:  # only for type hints: a shell gets its adapters as arguments
    from sluice.aws.rendezvous.pace import DynamoPaceStore

WRITTEN_EVERY_MS = 20_000
READ_EVERY_MS = 10_000
ADDRESS_DIGITS = 16  # leading digits of an address's hash, which identify the address
MAX_TURNS = 100_000  # cooldowns in memory, about 20 MB
MAX_UNTOLD = 2_000  # cooldowns per row, 40 KB; further ones aren't published
TOLD_LATE_MS = 5_000  # delay of a row, by different clocks and eventually consistent reads


@dataclass(slots=True, kw_only=True)
class Pacing:
    """The counts of one named environment; thread-safe. `log` gets the errors of reads and writes."""

    environment: InitVar[str]
    store: "DynamoPaceStore"
    now_ms: NowMs
    log: Callable[[CallFailed], None]
    _minute: Counter[str] = field(default_factory=Counter)
    _hour: Counter[str] = field(default_factory=Counter)
    _groups: set[int] = field(default_factory=set)
    _turns: "AddressCooldowns" = field(init=False)
    _pace: Pace = field(default_factory=Pace)
    _shards: int = 1  # the number of shards by `_pace`
    _read_at_ms: int = 0
    _heard_at_ms: int = 0
    _written_at_ms: int = 0
    _lock: Lock = field(default_factory=Lock)

    def __post_init__(self, environment: str) -> None:
        self._turns = AddressCooldowns(environment=environment)

    def pace(self) -> Pace:
        """Return the recent rates, cached for a few seconds."""
        now_ms = self.now_ms()
        with self._lock:
            if now_ms - self._read_at_ms >= READ_EVERY_MS:
                self._read_at_ms = now_ms
                try:
                    minutes, hours = self.store.read_recent_counts(now_ms=now_ms)
                except CallFailed as error:
                    self.log(error)
                else:
                    self._pace = compute_pace(minutes, hours, now_ms=now_ms)
                    self._shards = self._pace.shards
            return self._pace

    def shards(self) -> int:
        """Return the number of partitions over which waiting items are spread, cached for a few seconds."""
        self.pace()
        return self._shards

    def note_offer(self, pool: Pool) -> None:
        """Count an offer that first tries this pool."""
        with self._lock:
            self._minute[f"{pool}_offers"] += 1
            self._hour["offers"] += 1

    def note_poll(self, pool: Pool, *, address: str | None, away_ms: int) -> None:
        """Count a poll that got no offer, with the poll interval `away_ms` until the proxy's next poll."""
        with self._lock:
            self._minute[f"{pool}_polls"] += 1
            self._minute[f"{pool}_promised_ms"] += away_ms
            if address is not None:
                self._groups.add(choose_shard(address, ADDRESS_GROUPS))

    def note_held(self, held_ms: int) -> None:
        """Count how long a poll was held."""
        with self._lock:
            self._hour["held_ms"] += held_ms

    def start_cooldown(self, address: str | None, turn: Cooldown) -> float:
        """Start the address's cooldown if, as far as this environment knows, the last one is over.

        Returns 1 in that case, and otherwise the fraction of the last cooldown that has elapsed.
        """
        pace = self.pace()
        if address is None or not pace.is_crowd:
            return 1.0
        with self._lock:
            if pace.has_demand:
                self._receive_cooldowns()
            rested = self._turns.compute_elapsed_fraction(address, now_ms=turn.since_ms)
            if rested >= 1:
                self._turns.begin(address, turn)
        return rested

    def _receive_cooldowns(self) -> None:
        """Read the cooldowns that other environments published, unless they were read recently."""
        now_ms = self.now_ms()
        if now_ms - self._heard_at_ms < READ_EVERY_MS:
            return
        self._heard_at_ms = now_ms
        try:
            self._turns.hear(self.store.read_cooldowns(since_ms=self._turns.read_since_ms), now_ms=now_ms)
        except CallFailed as error:
            self.log(error)

    def confirm(self, address: str | None, turn: Cooldown) -> float:
        """Start a cooldown in the table too, before the address gets an offer. Returns 1 if no earlier one still holds.

        Otherwise another environment served the address. Returns the elapsed fraction of that cooldown.
        """
        pace = self.pace()
        if address is None or not (pace.is_crowd and pace.has_demand):
            return 1.0
        try:
            standing = self.store.start_cooldown(address, turn, now_ms=turn.since_ms)
        except CallFailed as error:
            self.log(error)
            return 1.0
        return 1.0 if standing is None else standing.compute_elapsed_fraction(now_ms=turn.since_ms)

    def flush(self, *, at_shutdown: bool = False) -> None:
        """Add the counts to the table, at most every `WRITTEN_EVERY_MS`, and at the shutdown."""
        now_ms = self.now_ms()
        with self._lock:
            is_due = at_shutdown or now_ms - self._written_at_ms >= WRITTEN_EVERY_MS
            if not is_due or not (self._minute or self._hour):
                return
            self._written_at_ms = now_ms
            minute = Counts(self._minute, frozenset(self._groups))
            hour = Counts(self._hour)
            self._minute, self._hour, self._groups = Counter(), Counter(), set()
            row = CooldownRow(self._turns.environment, now_ms, self._turns.take_unpublished())
        try:
            if self._pace.has_demand and row.turns:
                self.store.publish_cooldowns(row)
            self.store.add(minute, hour, now_ms=now_ms)
        except CallFailed as error:
            self.log(error)
            with self._lock:
                self._minute.update(minute.numbers)
                self._hour.update(hour.numbers)


@dataclass(slots=True, kw_only=True)
class AddressCooldowns:
    """The cooldowns that one environment knows: from its own polls, and as other environments published them.

    Addresses are the first digits of a hash. Not thread-safe. Environments publish cooldowns in rows of many,
    every few seconds, and don't query the table for each address. So several environments may each start a cooldown of
    an address that polls in a burst. The address gains nothing: before it gets an offer the table confirms its cooldown
    (`confirm`), and when the environments read each other's rows, the cooldowns add up.
    """

    environment: str  # this environment's name in published rows
    _known: OrderedDict[str, Cooldown] = field(default_factory=OrderedDict)
    _untold: dict[str, Cooldown] = field(default_factory=dict)
    _heard_ms: dict[str, int] = field(default_factory=dict)  # time of the last row that was read, by environment
    _heard_until_ms: int = 0

    def compute_elapsed_fraction(self, address: str, *, now_ms: int) -> float:
        """Return the fraction of the address's cooldown that has elapsed: 1 if it is over or unknown."""
        turn = self._known.get(address[:ADDRESS_DIGITS])
        return 1.0 if turn is None else turn.compute_elapsed_fraction(now_ms=now_ms)

    def begin(self, address: str, turn: Cooldown) -> None:
        """Start an address's cooldown, and keep it to be published to the other environments."""
        self._add(address[:ADDRESS_DIGITS], turn)
        if len(self._untold) < MAX_UNTOLD:
            self._untold[address[:ADDRESS_DIGITS]] = turn

    def take_unpublished(self) -> Mapping[str, Cooldown]:
        """Return and forget the unpublished cooldowns. The caller must publish them."""
        untold, self._untold = self._untold, {}
        return untold

    @property
    def read_since_ms(self) -> int:
        """Return the time from which to read rows. It overlaps the last read by a few seconds, for late rows."""
        return self._heard_until_ms - TOLD_LATE_MS

    def hear(self, rows: Iterable[CooldownRow], *, now_ms: int) -> None:
        """Add the cooldowns that other environments published, each row once."""
        for row in rows:
            if row.environment != self.environment and row.at_ms > self._heard_ms.get(row.environment, 0):
                self._heard_ms[row.environment] = row.at_ms
                for address, turn in row.turns.items():
                    self._add(address, turn)
        self._heard_until_ms = now_ms
        self._heard_ms = {name: at_ms for name, at_ms in self._heard_ms.items() if at_ms > self.read_since_ms}

    def _add(self, address: str, turn: Cooldown) -> None:
        known = self._known.get(address)
        if known is not None:
            if turn.next_ms <= known.since_ms:
                return
            turn = known.merge(turn)
        self._known[address] = turn
        self._known.move_to_end(address)
        while len(self._known) > MAX_TURNS:
            self._known.popitem(last=False)
