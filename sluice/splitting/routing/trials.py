"""Tries a filter on one message, and reports the result of each condition. Pure.

The router evaluates all conditions, so a trial has the same results as the splitter.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from sluice.splitting.filters.jq import Decide
from sluice.splitting.filters.texts import FilterInput
from sluice.splitting.filters.values import Filter, Share
from sluice.splitting.routing.router import Router

YES = "yes"
NO = "no"


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """A condition of a filter: its place in a filter file, its pattern or program, and its result.

    The result is yes, no, or a fault of the filter.
    """

    place: str
    asked: str  # naming: a field of the command's output
    answer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """The result of a filter on a message, and of each condition. An empty filter matches nothing."""

    matches: bool
    conditions: tuple[Condition, ...]


def try_filter(filter_: Filter, filter_input: FilterInput, *, decide: Decide) -> Trial:
    """Try a filter on a message. The filter's patterns and program must have been checked."""
    conditions = tuple(
        Condition(place=place, asked=condition, answer=_evaluate(part, filter_input, decide))
        for place, condition, part in _iter_conditions(filter_)
    )
    return Trial(matches=_evaluate(filter_, filter_input, decide) == YES, conditions=conditions)


def _iter_conditions(filter_: Filter) -> Iterator[tuple[str, str, Filter]]:
    """Yield each condition's place in a filter file, its pattern or program, and a filter with only this condition."""
    for name, pattern in filter_.attributes:
        yield f"message_filter.{name}", pattern, Filter(attributes=((name, pattern),))
    for form, lines in (("all_of", filter_.all_of), ("any_of", filter_.any_of)):
        for pattern in lines or ():
            yield f"filter.{form}", pattern, Filter(all_of=(pattern,))
    if filter_.jq is not None:
        yield "jq_filter", filter_.jq, Filter(jq=filter_.jq)


def _evaluate(filter_: Filter, filter_input: FilterInput, decide: Decide) -> str:
    alone = Share(session_id="", key="", started_at_ms=0, filter=filter_)
    recipients = Router.build([alone], decide=decide).find_recipients(filter_input)
    if recipients.faults:
        return recipients.faults[0].kind
    return NO if recipients.stealing is None else YES
