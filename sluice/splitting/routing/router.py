"""Who gets a message: the first stealing session that matches, and the mirroring ones before it. Pure.

Each session stands before the deployed consumer in a line of (start time, session id). A message goes down the line: a
mirroring session that matches gets a copy, and the message goes on; a stealing one that matches takes it, and those
behind it, the deployed consumer last, never see it. So a mirroring session sees what would have reached the deployed
consumer without it, and no more.
"""

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from enum import StrEnum

from sluice.splitting.filters import jq, patterns
from sluice.splitting.filters.index import Index
from sluice.splitting.filters.texts import Sight, fold_name
from sluice.splitting.filters.values import Filter, Mode
from sluice.splitting.routing.shares import Share

NOBODY: AbstractSet[str] = frozenset()


class FaultKind(StrEnum):
    """How a filter failed on a message. Either way it is no match."""

    PATTERN_TIMED_OUT = "pattern timed out"  # counted
    JQ_TIMED_OUT = "jq timed out"  # the session is to be cancelled


@dataclass(frozen=True, slots=True)
class Fault:
    """One session's filter failed on one message."""

    session_id: str
    kind: FaultKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipients:
    """Where a message goes: copies to `mirroring`, in order, itself to `stealing`, or to main where that is None."""

    stealing: Share | None = None
    mirroring: tuple[Share, ...] = ()
    faults: tuple[Fault, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    """The sessions that ask for the same, by position in the line: a filter is evaluated once for all of them."""

    filter: Filter
    positions: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Router:
    """One split queue's sessions at one version of the registry, compiled for many messages."""

    version: int
    decide: jq.Decide
    _line: Sequence[Share]
    _groups: Sequence[_Group]
    _index: Index

    @classmethod
    def of(cls, shares: Iterable[Share], *, version: int, decide: jq.Decide) -> "Router":
        """Compiles the sessions' shares, given in any order. Empty filters match nothing and cost nothing."""
        line = sorted((share for share in shares if not share.filter.matches_nothing), key=lambda share: share.order)
        positions: dict[Filter, list[int]] = {}
        for position, share in enumerate(line):
            positions.setdefault(share.filter, []).append(position)
        # In order of their first session, as dicts keep it: `recipients` stops at the first that can't matter.
        groups = [_Group(filter=filter_, positions=tuple(found)) for filter_, found in positions.items()]
        index = Index.of([group.filter for group in groups])
        return cls(version=version, decide=decide, _line=line, _groups=groups, _index=index)

    def recipients(self, sight: Sight, *, gone: AbstractSet[str] = NOBODY) -> Recipients:
        """Find the message's recipients. Sessions in `gone`, by id, are passed over: their queues have vanished.

        Faults are those of filters that had to be evaluated; one that can't match whatever it does has none.
        """
        evaluation = _Evaluation(sight, self.decide)
        taker = len(self._line)
        matched: list[int] = []
        faulty: dict[int, FaultKind] = {}
        for number in self._index.candidates(sight.texts):
            group = self._groups[number]
            if group.positions[0] > taker:
                break
            present = group.positions
            if gone:
                present = tuple(position for position in present if self._line[position].session_id not in gone)
            if not present:
                continue
            decided = evaluation.decided(group.filter)
            if isinstance(decided, FaultKind):
                faulty.update(dict.fromkeys(present, decided))
            elif decided:
                matched.extend(present)
                stealing = (position for position in present if self._line[position].mode is Mode.STEAL)
                taker = min(taker, next(stealing, taker))
        if not matched and not faulty:
            return _TO_MAIN
        return Recipients(
            stealing=self._line[taker] if taker < len(self._line) else None,
            mirroring=tuple(self._line[position] for position in sorted(matched) if position < taker),
            faults=tuple(
                Fault(self._line[position].session_id, kind)
                for position, kind in sorted(faulty.items())
                if position < taker
            ),
        )


_TO_MAIN = Recipients()
_Decided = bool | FaultKind


@dataclass(slots=True)
class _Evaluation:
    """Filters on one message; the same pattern on the same attribute, and the same program, are run once."""

    sight: Sight
    decide: jq.Decide
    _of_patterns: dict[tuple[str, str], _Decided] = field(default_factory=dict)
    _of_programs: dict[str, _Decided] = field(default_factory=dict)

    def decided(self, filter_: Filter) -> _Decided:
        """Whether the message matches. What costs little is asked first, and the first no ends it."""
        for name, pattern in filter_.attributes:
            condition = fold_name(name), pattern
            found = self._of_patterns.get(condition)
            if found is None:
                found = self._of_patterns[condition] = _found_in(self.sight.texts.get(condition[0], ()), pattern)
            if found is not True:
                return found
        program = filter_.jq
        if program is None:
            return True
        if program not in self._of_programs:
            try:
                self._of_programs[program] = self.decide(program, self.sight.document()) is True
            except jq.ProgramTimedOut:
                self._of_programs[program] = FaultKind.JQ_TIMED_OUT
        return self._of_programs[program]


def _found_in(texts: Iterable[str], pattern: str) -> _Decided:
    timed_out = False
    for text in texts:
        try:
            if patterns.searches(pattern, text):
                return True
        except patterns.PatternTimedOut:
            timed_out = True
    return FaultKind.PATTERN_TIMED_OUT if timed_out else False
