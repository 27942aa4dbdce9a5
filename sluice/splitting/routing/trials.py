"""A filter tried on one message: what it comes to, and what each of its conditions says. Pure.

Everything is asked of the router, so that a trial and the splitter can't differ.
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
    """One thing that a filter asks for: its place in a filter file, its pattern or program, and the answer to it.

    The answer is yes, no, or what kept it from being either.
    """

    place: str
    asked: str
    answer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """Whether the filter takes the message, and by what. An empty filter has no conditions, and takes nothing."""

    matches: bool
    conditions: tuple[Condition, ...]


def tried(filter_: Filter, sight: FilterInput, *, decide: Decide) -> Trial:
    """Try a filter whose patterns and program were checked."""
    conditions = tuple(
        Condition(place=place, asked=asked, answer=_answer(part, sight, decide))
        for place, asked, part in _parts(filter_)
    )
    return Trial(matches=_answer(filter_, sight, decide) == YES, conditions=conditions)


def _parts(filter_: Filter) -> Iterator[tuple[str, str, Filter]]:
    """Yield each condition's place, what it asks, and it as a filter of its own."""
    for name, pattern in filter_.attributes:
        yield f"message_filter.{name}", pattern, Filter(attributes=((name, pattern),))
    for form, lines in (("all_of", filter_.all_of), ("any_of", filter_.any_of)):
        for pattern in lines or ():
            yield f"filter.{form}", pattern, Filter(all_of=(pattern,))
    if filter_.jq is not None:
        yield "jq_filter", filter_.jq, Filter(jq=filter_.jq)


def _answer(filter_: Filter, sight: FilterInput, decide: Decide) -> str:
    alone = Share(session_id="", key="", started_at_ms=0, filter=filter_)
    found = Router.of([alone], decide=decide).recipients(sight)
    if found.faults:
        return found.faults[0].kind
    return NO if found.stealing is None else YES
