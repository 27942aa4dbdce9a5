"""Which messages a route's filter lets over: the splitter's filters, asked of its router. Pure: the clock comes in.

The bridge function asks, and not the exchange function before it makes a copy: that would save the copy's requests,
and a peer's patterns would take the time of all that is published. It is imported where a route has a filter: what
compiles patterns is nothing that other routes should wait for.
"""

import math
from collections.abc import Callable

import msgspec

from sluice.errors import BadFilter, HeldBack, NotSifted
from sluice.message import Message
from sluice.splitting.filters.files import check
from sluice.splitting.filters.jq import CompileProblem, Decide
from sluice.splitting.filters.texts import FilterInput
from sluice.splitting.filters.values import Filter, Share
from sluice.splitting.routing.router import FaultKind, Meter, Router, is_ready

BATCH_S = 10.0  # for the filters of one batch: the bridge function has thirty seconds, and is to send, too
OUT_OF_TIME = "its route's filter has had its time in this batch"
NOT_RUNNING = "what runs jq can't be started for now"


class RouteFilter(msgspec.Struct, frozen=True, kw_only=True):
    """One route's filter, for one batch."""

    router: Router
    meter: Meter

    @classmethod
    def of(
        cls, filter_: Filter, *, clock: Callable[[], float], decide: Decide, ready: Callable[[], None] = is_ready
    ) -> "RouteFilter":
        """Begin a batch. The clock's seconds go on; `ready` starts what `decide` needs."""
        share = Share(session_id="", key="", started_at_ms=0, filter=filter_)
        return cls(
            router=Router.of([share], decide=decide, ready=ready),
            meter=Meter(clock=clock, until=clock() + BATCH_S, budget_s=math.inf),
        )

    def lets_over(self, message: Message) -> bool:
        """Whether the filter matches.

        Raises `HeldBack` where it hasn't been asked: then it is asked of no later message of the batch either. Raises
        `NotSifted` where it fails on this message.
        """
        found = self.router.recipients(FilterInput.of(message), meter=self.meter)
        if found.lacks is not None:
            raise HeldBack(OUT_OF_TIME)
        for fault in found.faults:
            if fault.kind is FaultKind.JQ_NOT_RUN:
                raise HeldBack(NOT_RUNNING)
            raise NotSifted(f"the route's filter: {fault.kind}")
        return found.stealing is not None


def problem(filter_: Filter, *, compile_problem: CompileProblem) -> str | None:
    """Say why a route can't have the filter; None where it can."""
    try:
        check("filter", filter_, compile_problem=compile_problem)
    except BadFilter as error:
        return str(error)
    return None
