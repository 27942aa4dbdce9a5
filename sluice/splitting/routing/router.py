"""Routes a message to the first matching stealing session, and copies to the mirroring sessions before that one. Pure.

Sessions are ordered by start time, then id, and the deployed consumer comes last. A matching mirroring session gets a
copy, and the message goes on to the next session. A matching stealing session takes the message, and no later one gets
it. So a mirroring session gets exactly the messages that would have reached the deployed consumer without it.

A copy keeps the body byte for byte, all attributes with their types, the X-Ray trace header and the message group. The
original message id and sent time are lost, as SQS provides no way to set them.
"""

from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from enum import StrEnum

import msgspec

from sluice.message import MAX_ATTRIBUTES, MAX_MESSAGE_BYTES, Attributes, Message, Outgoing, Value, message_size
from sluice.splitting.filters import jq, patterns
from sluice.splitting.filters.index import Index
from sluice.splitting.filters.texts import FilterInput, fold_name
from sluice.splitting.filters.values import Filter, Mode, Share

SESSION_ATTRIBUTE = "sluice-session"
MARK_TYPE = "String.sluice"  # A producer's own attribute with the same value has another type.
# Clients that keep a large payload in S3 set one of these attributes. A mirroring session's client would delete the S3
# object together with its copy of the message, but the deployed consumer still needs the object.
PAYLOAD_ATTRIBUTES = frozenset({"extendedpayloadsize", "sqslargepayloadsize"})
NO_SESSIONS: AbstractSet[str] = frozenset()


class FaultKind(StrEnum):
    """Faults of a filter on a message. All except `OVER_BUDGET` count as no match."""

    PATTERN_TIMED_OUT = "pattern timed out"
    PATTERN_FAILED = "pattern can't be used"
    JQ_TIMED_OUT = "jq timed out"
    JQ_NOT_RUN = "jq can't be run for now"  # The jq process can't be started, which isn't the session's fault.
    OVER_BUDGET = "took too long in one batch"  # The result for this message still counts.


class MissingInput(StrEnum):
    """Input without which a message cannot be routed yet."""

    TIME = "time"  # The time of the batch is over.
    METADATA = "metadata"  # A jq program needs the metadata of S3 objects.


class Fault(msgspec.Struct, frozen=True):
    """A fault of one session's filter on one message."""

    session_id: str
    kind: FaultKind


class Recipients(msgspec.Struct, frozen=True, kw_only=True):
    """The recipients of a message: `mirroring` sessions get copies; `stealing` or else the main queue gets the message.

    If an input is `missing`, the recipients aren't decided yet.
    """

    stealing: Share | None = None
    mirroring: tuple[Share, ...] = ()
    faults: tuple[Fault, ...] = ()
    missing: MissingInput | None = None


@dataclass(slots=True, kw_only=True)
class Meter:
    """Measures the time that each group of sessions uses for its filter in one batch, against a budget.

    At the clock's time `until` and later, no filter is evaluated. A filter's time counts for each session with this
    filter. Starting the process for jq programs counts for no session, and is tried once.
    """

    clock: Callable[[], float]
    until: float
    budget_s: float
    runs_programs: bool = True
    _spent: dict[int, float] = field(default_factory=dict)

    def exceeds_budget(self, group: int, seconds: float) -> bool:
        """Add the seconds that a group's filter took for one message. Returns whether the group exceeds its budget."""
        spent = self._spent[group] = self._spent.get(group, 0.0) + seconds
        return spent > self.budget_s


def do_nothing() -> None:
    """Do nothing. This is the default of `ensure_started`, for jq programs that need no child process."""


class _FilterGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Sessions with equal filters, by position in the routing order. The filter is evaluated once for all of them."""

    filter: Filter
    positions: tuple[int, ...]


class Router(msgspec.Struct, frozen=True, kw_only=True):
    """One split queue's sessions at one version of the registry, prepared for many messages."""

    decide: jq.Decide
    ensure_started: Callable[[], None]
    _ordered_shares: Sequence[Share]
    _groups: Sequence[_FilterGroup]
    _index: Index

    @classmethod
    def build(
        cls, shares: Iterable[Share], *, decide: jq.Decide, ensure_started: Callable[[], None] = do_nothing
    ) -> "Router":
        """Build the router from the sessions' shares, given in any order. Sessions with an empty filter are left out.

        `ensure_started` starts the process that `decide` needs, before a session's time is measured. It raises
        `jq.NotRunning`.
        """
        line = sorted((share for share in shares if not share.filter.matches_nothing), key=lambda share: share.order)
        positions: dict[Filter, list[int]] = {}
        for position, share in enumerate(line):
            positions.setdefault(share.filter, []).append(position)
        # A dict keeps groups in order of their first session, so `find_recipients` can stop at the first later group.
        groups = [_FilterGroup(filter=filter_, positions=tuple(places)) for filter_, places in positions.items()]
        index = Index.build([group.filter for group in groups])
        return cls(decide=decide, ensure_started=ensure_started, _ordered_shares=line, _groups=groups, _index=index)

    def find_recipients(
        self, filter_input: FilterInput, *, gone: AbstractSet[str] = NO_SESSIONS, meter: Meter | None = None
    ) -> Recipients:
        """Find the message's recipients. Sessions whose ids are in `gone` are skipped, as if they didn't exist.

        Returns faults only of evaluated filters; filters that can't match the message aren't evaluated.
        """
        evaluation = _Evaluation(filter_input, self.decide)
        taker = len(self._ordered_shares)
        matched: list[int] = []
        faulty: dict[int, FaultKind] = {}
        missing: MissingInput | None = None
        for number in self._index.find_candidates(filter_input):
            group = self._groups[number]
            if group.positions[0] > taker:
                break
            present = group.positions
            if gone:
                present = tuple(place for place in present if self._ordered_shares[place].session_id not in gone)
            if not present:
                continue
            decided, over = self._evaluate(number, evaluation, meter)
            if isinstance(decided, MissingInput):
                missing = decided
                break
            if over or isinstance(decided, FaultKind):
                faulty.update(dict.fromkeys(present, decided if isinstance(decided, FaultKind) else OVER_BUDGET))
            if decided is True:
                matched.extend(present)
                stealing = (position for position in present if self._ordered_shares[position].mode is Mode.STEAL)
                taker = min(taker, next(stealing, taker))
        if not matched and not faulty and missing is None:
            return _TO_MAIN
        if not PAYLOAD_ATTRIBUTES.isdisjoint(filter_input.texts):
            matched = [position for position in matched if _asks_for_payloads(self._ordered_shares[position].filter)]
        return Recipients(
            stealing=self._ordered_shares[taker] if taker < len(self._ordered_shares) else None,
            mirroring=tuple(self._ordered_shares[position] for position in sorted(matched) if position < taker),
            faults=tuple(
                Fault(self._ordered_shares[position].session_id, kind)
                for position, kind in sorted(faulty.items())
                if position < taker or kind is OVER_BUDGET
            ),
            missing=missing,
        )

    def list_sessions_started_after(self, at_ms: int) -> AbstractSet[str]:
        """Return the ids of the sessions to which messages are routed only since a time after this one."""
        return {share.session_id for share in self._ordered_shares if share.since_ms > at_ms}

    def _evaluate(
        self, number: int, evaluation: "_Evaluation", meter: Meter | None
    ) -> tuple["_Decided | MissingInput", bool]:
        """Evaluate a group's filter. Returns the result, and whether the group exceeded its budget for the batch."""
        filter_ = self._groups[number].filter
        if meter is None:
            return evaluation.evaluate(filter_), False
        began = meter.clock()
        if began < meter.until and filter_.jq is not None:
            try:
                if meter.runs_programs:
                    self.ensure_started()
                    began = meter.clock()
            except jq.NotRunning:
                meter.runs_programs = False
            if not meter.runs_programs:
                return FaultKind.JQ_NOT_RUN, False
        if began >= meter.until:
            return MissingInput.TIME, False
        decided = evaluation.evaluate(filter_)
        return decided, meter.exceeds_budget(number, meter.clock() - began)


def _asks_for_payloads(filter_: Filter) -> bool:
    return any(fold_name(name) in PAYLOAD_ATTRIBUTES for name, _ in filter_.attributes)


_TO_MAIN = Recipients()
OVER_BUDGET = FaultKind.OVER_BUDGET
_Decided = bool | FaultKind


@dataclass(slots=True)
class _Evaluation:
    """Evaluates filters on one message. Runs equal patterns on the same attribute, and equal programs, only once."""

    filter_input: FilterInput
    decide: jq.Decide
    _pattern_results: dict[tuple[str, str], _Decided] = field(default_factory=dict)
    _line_results: dict[str, _Decided] = field(default_factory=dict)
    _program_results: dict[str, _Decided] = field(default_factory=dict)

    def evaluate(self, filter_: Filter) -> "_Decided | MissingInput":
        """Return whether the message matches. Cheap conditions run first; the first mismatch ends the evaluation."""
        for name, pattern in filter_.attributes:
            condition = fold_name(name), pattern
            decided = self._pattern_results.get(condition)
            if decided is None:
                decided = self._pattern_results[condition] = _search_texts(
                    self.filter_input.texts.get(condition[0], ()), pattern
                )
            if decided is not True:
                return decided
        for any_of in filter_.lines:
            decided = self._search_lines(any_of)
            if decided is not True:
                return decided
        return True if filter_.jq is None else self._run_program(filter_.jq)

    def _run_program(self, program: str) -> "_Decided | MissingInput":
        """Run the jq program, once per message. Returns its decision, or why it couldn't decide."""
        if self.filter_input.awaits_metadata and jq.mentions_metadata(program):
            return MissingInput.METADATA
        if program not in self._program_results:
            try:
                self._program_results[program] = self.decide(program, self.filter_input.document(program)) is True
            except jq.ProgramTimedOut:
                self._program_results[program] = FaultKind.JQ_TIMED_OUT
            except jq.NotRunning:
                self._program_results[program] = FaultKind.JQ_NOT_RUN
        return self._program_results[program]

    def _search_lines(self, any_of: Iterable[str]) -> _Decided:
        """Return whether one of the patterns is found in a line. A fault ends the search, as a match does."""
        decided: _Decided = False
        for pattern in any_of:
            if pattern not in self._line_results:
                self._line_results[pattern] = _search_texts(self.filter_input.lines(), pattern, exact_case=True)
            decided = self._line_results[pattern]
            if decided is not False:
                break
        return decided


def _search_texts(texts: Iterable[str], pattern: str, *, exact_case: bool = False) -> _Decided:
    """Return whether the pattern is found in one of the texts. If a search times out, the rest isn't searched."""
    try:
        return any(patterns.matches(pattern, text, exact_case=exact_case) for text in texts)
    except patterns.PatternFailed:
        return FaultKind.PATTERN_FAILED
    except patterns.PatternTimedOut:
        return FaultKind.PATTERN_TIMED_OUT


def build_main_message(message: Message, *, fifo: bool) -> Outgoing:
    """Build the message for the deployed consumer's queue. `fifo`: source and main queue are FIFO queues."""
    return _build_outgoing(message, message.attributes, dedup_id=message.message_id if fifo else None)


def build_session_copy(message: Message, *, key: str, fifo: bool) -> Outgoing:
    """Build a session's copy, with the session's key as an attribute if the message has room for it."""
    attributes = message.attributes
    if len(attributes) < MAX_ATTRIBUTES and SESSION_ATTRIBUTE not in attributes:
        marked = {**attributes, SESSION_ATTRIBUTE: Value(MARK_TYPE, key)}
        # A message near SQS's size limit has no room for another attribute.
        attributes = marked if message_size(message.body, marked) <= MAX_MESSAGE_BYTES else attributes
    return _build_outgoing(message, attributes, dedup_id=message.message_id if fifo else None)


def build_returned_message(message: Message, *, key: str, fifo: bool) -> Outgoing:
    """Build the message that returns a session's copy to main, without the session's key.

    The message's deduplication id is the message id in the source, as in the session's queue. If the splitter also
    sends the message to main, because sending to the session seemed to fail, SQS drops the duplicate.
    """
    marked = message.attributes.get(SESSION_ATTRIBUTE) == Value(MARK_TYPE, key)
    kept = {name: value for name, value in message.attributes.items() if not (marked and name == SESSION_ATTRIBUTE)}
    return _build_outgoing(message, kept, dedup_id=(message.deduplication_id or message.message_id) if fifo else None)


def _build_outgoing(message: Message, attributes: Attributes, *, dedup_id: str | None) -> Outgoing:
    """Copy a message. `dedup_id` is the deduplication id in FIFO queues: only retries have the same id."""
    return Outgoing(
        body=message.body,
        attributes=attributes,
        # Standard queues accept a message group too, for fairness between groups.
        group_id=message.group_id,
        deduplication_id=dedup_id,
        trace_header=message.trace_header,
    )
