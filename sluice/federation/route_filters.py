"""A route's filter, evaluated with the splitter's router. Pure: the clock is an argument.

Filters run in the bridge function. In the exchange function, filters would save copies, but a peer's patterns could
slow down all publishing. This module is imported only for routes with a filter, because its pattern libraries load
slowly.
"""

import math
from collections.abc import Callable

from sluice.errors import BadFilter, HeldBack, NotSifted
from sluice.message import Message
from sluice.splitting.filters.files import check
from sluice.splitting.filters.jq import CompileProblem, Decide
from sluice.splitting.filters.texts import FilterInput
from sluice.splitting.filters.values import Filter, Share
from sluice.splitting.routing.router import FaultKind, Meter, Router, do_nothing

BATCH_S = 10.0  # time in seconds for filtering a batch; the function has 30 s, which include sending
OUT_OF_TIME = "the route's filter ran out of time for this batch"
NOT_RUNNING = "the jq process can't be started at the moment"


def make_route_filter(
    filter_: Filter, *, clock: Callable[[], float], decide: Decide, ensure_started: Callable[[], None] = do_nothing
) -> Callable[[Message], bool]:
    """Return a function that tells whether the filter matches a message of one batch. The batch's time starts now.

    `clock` returns monotonic seconds. `ensure_started` starts what `decide` needs. The function raises `HeldBack` if
    the time for the filter is over, and again for all later messages of the batch. It raises `NotSifted` if the filter
    fails on this message.
    """
    share = Share(session_id="", key="", started_at_ms=0, filter=filter_)
    router = Router.build([share], decide=decide, ensure_started=ensure_started)
    meter = Meter(clock=clock, until=clock() + BATCH_S, budget_s=math.inf)

    def passes_filter(message: Message) -> bool:
        recipients = router.find_recipients(FilterInput.from_message(message), meter=meter)
        if recipients.missing is not None:
            raise HeldBack(OUT_OF_TIME)
        for fault in recipients.faults:
            if fault.kind is FaultKind.JQ_NOT_RUN:
                raise HeldBack(NOT_RUNNING)
            raise NotSifted(f"the route's filter: {fault.kind}")
        return recipients.stealing is not None

    return passes_filter


def find_filter_problem(filter_: Filter, *, compile_problem: CompileProblem) -> str | None:
    """Return why a route can't have this filter; None if the filter is valid for routes."""
    try:
        check("filter", filter_, compile_problem=compile_problem)
    except BadFilter as error:
        return str(error)
    return None
