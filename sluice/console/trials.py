"""Tests which sessions of a queue would get a message, with the splitter's own rules."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from sluice.console.readings.splitting import read_splitting
from sluice.console.requests import text_field
from sluice.console.sites import BudgetedSite, Document
from sluice.errors import BadRequest
from sluice.operator.documents import parse_document
from sluice.operator.messages import parse_filter_input
from sluice.splitting.filters.files import parse_filters
from sluice.splitting.filters.jq import Decide
from sluice.splitting.filters.texts import FilterInput
from sluice.splitting.filters.values import Filter, Share, select_filter
from sluice.splitting.jq_runner import JqRunner, compile_problem
from sluice.splitting.routing.router import Router
from sluice.splitting.routing.trials import Trial, try_filter
from sluice.splitting.sessions.state import ROUTED

FILTERS, MESSAGE = Path("filters.yaml"), Path("message.json")  # names of the form's texts in error messages
MAX_LEAVING = 200  # listed sessions whose filters don't match the message
UNSTARTED = ""  # the id of a session that has not been started


def try_message(site: BudgetedSite, fields: Mapping[str, Any]) -> Document:
    """Return which sessions of a queue would get a message, and the results of all filter conditions.

    `filters` adds a trial session, which is last in order. Raises `BadFile`, `BadFilter`, `BadRequest`.
    """
    queue_id, view = text_field(fields, "queue"), read_splitting(site)
    queue = next((queue for queue in view.queues if queue.queue_id == queue_id), None)
    if queue is None:
        known = ", ".join(queue.queue_id for queue in view.queues)
        raise BadRequest(f"queue: there is no split queue {queue_id!r}; there are {known}")
    filter_input = parse_filter_input(parse_document(text_field(fields, "message"), MESSAGE), MESSAGE, envelope=queue)
    trial_filter = None
    if fields.get("filters"):
        document, key = parse_document(text_field(fields, "filters"), FILTERS), text_field(fields, "key", default="")
        filters = parse_filters(document, compile_problem=compile_problem, key=key or None)
        trial_filter = select_filter(filters, queue_id)
        if trial_filter is None:
            raise BadRequest(f"filters: there is none for queue {queue_id}")
    filters_by_session = ((session, select_filter(session.filters, queue_id)) for session in view.sessions)
    filtering = [(session, own) for session, own in filters_by_session if own is not None]
    shares = [
        Share(
            session_id=session.session_id,
            key=session.key,
            started_at_ms=session.started_at_ms,
            filter=own.filter,
            mode=own.mode,
        )
        for session, own in filtering
        if session.status in ROUTED
    ]
    if trial_filter is not None:
        last = max((share.started_at_ms for share in shares), default=0) + 1
        shares.append(
            Share(session_id=UNSTARTED, key="", started_at_ms=last, filter=trial_filter.filter, mode=trial_filter.mode)
        )
    with closing(JqRunner()) as decide:
        results = list(_evaluate(shares, filter_input, decide))
    owners = {session.session_id: session.owner for session, _ in filtering}
    waiting = [session for session, _ in filtering if session.status not in ROUTED]
    return {
        "queue_id": queue_id,
        "sessions": [{**result, "owner": owners.get(result["session_id"], "")} for result in _limit_leaving(results)],
        "left_out": len(results) - len(_limit_leaving(results)),
        "not_routed": [
            {"session_id": session.session_id, "owner": session.owner, "status": session.status} for session in waiting
        ],
        "taker": next((result["session_id"] for result in results if result["verdict"] == "takes"), None),
    }


def _evaluate(shares: Sequence[Share], filter_input: FilterInput, decide: Decide) -> Iterator[dict[str, Any]]:
    """Yield each session's verdict on the message, in routing order, with the results of its filter's conditions."""
    recipients = Router.build(shares, decide=decide).find_recipients(filter_input)
    mirroring = {share.session_id for share in recipients.mirroring}
    trials = dict[Filter, Trial]()
    for share in sorted(shares, key=lambda share: share.order):
        if share.filter not in trials:
            trials[share.filter] = try_filter(share.filter, filter_input, decide=decide)
        trial = trials[share.filter]
        if recipients.stealing is not None and share.session_id == recipients.stealing.session_id:
            verdict = "takes"
        elif share.session_id in mirroring:
            verdict = "gets a copy"
        else:
            verdict = "too late" if trial.matches else "leaves"
        yield {
            "session_id": share.session_id,
            "mode": share.mode,
            "verdict": verdict,
            "conditions": [
                {"place": condition.place, "asked": condition.asked, "answer": condition.answer}
                for condition in trial.conditions
            ],
        }


def _limit_leaving(results: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
    """Limit the number of sessions that don't match the message."""
    left = [result["session_id"] for result in results if result["verdict"] == "leaves"][MAX_LEAVING:]
    return [result for result in results if result["session_id"] not in left or result["session_id"] == UNSTARTED]
