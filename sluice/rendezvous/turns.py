"""Whose turn it is, as one execution environment knows: of the polls that it served, and of those that others told of.

It never asks the table about one address: turns are told in rows of many, some seconds after one another, and read as
seldom. So an address that polls in a burst may be let in by several environments. It gains nothing by that: before it
is given anything the table itself is asked, and when they hear of each other's turns, they let it rest for all of them.
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from sluice.rendezvous.protocol.pace import ToldTurns, Turn

ADDRESS_DIGITS = 16  # of a hash, which tell addresses apart
MAX_TURNS = 100_000  # remembered, some 20 MB
MAX_UNTOLD = 2_000  # told of at once, which is 40 KB; of more an environment tells nobody
TOLD_LATE_MS = 5_000  # by clocks that differ, and reads that are eventually consistent


@dataclass(slots=True, kw_only=True)
class Turns:
    """By the first digits of an address, which is a hash. Not safe for threads."""

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
