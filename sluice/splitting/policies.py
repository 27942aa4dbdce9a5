"""Policies that limit sessions by queue, and the check of a new session against them. Pure.

All policies that match a queue apply. Policies are checked only when a session starts, not for running sessions.
"""

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase

from sluice.codec import Struct
from sluice.splitting.filters.dialect import Kind, tokens
from sluice.splitting.filters.texts import fold_name
from sluice.splitting.filters.values import Filter, Mode, QueueFilter


class Policy(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Rules for queues whose ids match one of the shell patterns in `queues`. None means no limit.

    If `max_time_limit_s` is set, a session must have a time limit. Default values are omitted in JSON, because a
    function's settings have a size limit.
    """

    queues: tuple[str, ...] = ("*",)
    required_attributes: tuple[str, ...] = ()
    allow_jq: bool = True
    modes: tuple[Mode, ...] = (Mode.STEAL, Mode.MIRROR)
    max_sessions: int | None = None
    max_time_limit_s: int | None = None

    def applies_to(self, queue_id: str) -> bool:
        """Return whether the policy applies to this queue."""
        return queue_id in self.queues or any(fnmatchcase(queue_id, pattern) for pattern in self.queues)

    def rules(self) -> Iterator[str]:
        """Describe each rule of the policy in a few words."""
        if self.required_attributes:
            yield f"names {', '.join(self.required_attributes)}"
        if not self.allow_jq:
            yield "no jq"
        if set(self.modes) != set(Mode):
            yield f"{', '.join(self.modes)} only"
        if self.max_sessions is not None:
            yield f"at most {self.max_sessions} sessions"
        if self.max_time_limit_s is not None:
            yield f"a time limit of at most {self.max_time_limit_s} s"

    def find_violations(self, queue_filter: QueueFilter, *, time_limit_s: int | None, sessions: int) -> Iterator[str]:
        """Describe the rules that a session with this filter would break on a queue with `sessions` live sessions."""
        named = find_named_attributes(queue_filter.filter)
        missing = [name for name in self.required_attributes if fold_name(name) not in named]
        if missing:
            yield f"required_attributes: its filter must name {', '.join(missing)}"
        if queue_filter.filter.jq is not None and not self.allow_jq:
            yield "allow_jq: it may have no jq program"
        if queue_filter.mode not in self.modes:
            yield f"modes: it may {' or '.join(self.modes)}, not {queue_filter.mode}"
        if self.max_sessions is not None and sessions >= self.max_sessions:
            yield f"max_sessions: there are {sessions} sessions of {self.max_sessions} already"
        if self.max_time_limit_s is not None and (time_limit_s is None or time_limit_s > self.max_time_limit_s):
            yield f"max_time_limit_s: it must have a time limit, of at most {self.max_time_limit_s} s"


def list_refusals(
    policies: Sequence[Policy], queue_id: str, queue_filter: QueueFilter, *, time_limit_s: int | None, sessions: int
) -> Iterator[str]:
    """Describe each policy's rules that a session would break on this queue, which has `sessions` live sessions."""
    for number, policy in enumerate(policies):
        if policy.applies_to(queue_id):
            for rule in policy.find_violations(queue_filter, time_limit_s=time_limit_s, sessions=sessions):
                yield f"queue {queue_id}: splitting.policies[{number}].{rule}"


def find_named_attributes(filter_: Filter) -> frozenset[str]:
    """Return the folded names of the attributes that every matching message has, as far as the filter shows them.

    A pattern on lines names an attribute if it begins with `^name:`. If one of several patterns is enough, all must
    name the same attribute. jq programs aren't analyzed.
    """
    named = {fold_name(name) for name, _ in filter_.attributes}
    for either in filter_.lines:
        names = [_find_attribute(pattern) for pattern in either]
        folded = {fold_name(name) for name in names if name is not None}
        if len(folded) == 1 and None not in names:
            named |= folded
    return frozenset(named)


def _find_attribute(pattern: str) -> str | None:
    """Return the only attribute in whose line the pattern can be found; None if the pattern doesn't show it."""
    stream = [token for token in tokens(pattern) if token.kind not in {Kind.FLAGS, Kind.SKIPPED}]
    if not stream or stream[0].kind is not Kind.START or any(token.multiline or token.verbose for token in stream):
        return None
    depth = 0
    for token in stream:
        depth += (token.kind is Kind.OPEN) - (token.kind is Kind.CLOSE)
        if token.kind is Kind.OR and not depth:
            return None
    name = ""
    for place, token in enumerate(stream[1:], start=1):
        character = token.text.removeprefix("\\")
        if token.kind not in {Kind.LITERAL, Kind.ESCAPE} or (token.kind is Kind.ESCAPE and character.isalnum()):
            return None
        if character == ":":
            is_counted = stream[place + 1 : place + 2] and stream[place + 1].kind is Kind.QUANTIFIER
            return None if is_counted or not name else name
        name += character
    return None
