"""Page *Splitting*: split queues, their sessions, and the number of recent messages of each."""

from collections.abc import Mapping
from typing import Any

from sluice.console.readings.shared import own_metric, read_cached_series
from sluice.console.requests import text_field
from sluice.console.sites import BudgetedSite, Document, Query
from sluice.errors import CallFailed
from sluice.operator.functions import SPLITTING
from sluice.operator.metrics import Metric
from sluice.operator.sessions import session_document
from sluice.splitting.operations import ShowSplitting, SplittingView, StopSession

MINUTES = 15  # of which messages are counted
MAX_COUNTED = 100  # queues; so many sessions too: each is a metric, and CloudWatch takes money for each that it gives
QUEUE_METRICS = {"read": "MessagesRead", "main": "MessagesUnmatched", "mirrored": "MessagesMirrored"}
Counts = Mapping[tuple[str, str], int]  # by queue id, and what of it: one of `OF_QUEUES`, or a session's id


def read(site: BudgetedSite, _: Query) -> Document:
    """Read queues, sessions and counts. Unknown counts are null, with the reason in `uncounted`."""
    view = read_splitting(site)
    held = {
        depth["url"]: depth
        for depth in site.read_depths(url for queue in view.queues for url in (queue.source, queue.main))
    }
    try:
        counts, uncounted = _counts(site, view), None
    except CallFailed as error:  # to read metrics is a permission of its own
        counts, uncounted = None, str(error)
    return {
        "queues": [
            {
                **session_document(queue),
                "source": held[queue.source],
                "main": held[queue.main],
                "counted": {
                    name: None if counts is None else counts.get((queue.queue_id, name), 0) for name in QUEUE_METRICS
                },
            }
            for queue in view.queues
        ],
        "sessions": [
            {
                **session_document(session),
                "counted": {
                    queue.queue_id: None if counts is None else counts.get((queue.queue_id, session.session_id))
                    for queue in session.queues
                },
            }
            for session in view.sessions
        ],
        "minutes": MINUTES,
        "uncounted": uncounted,
    }


def stop_session(site: BudgetedSite, fields: Mapping[str, Any]) -> Document:
    """End a session, whoever started it. Raises what `sluice split stop` raises."""
    stopped = site.client(SPLITTING).ask(StopSession(session_id=text_field(fields, "session_id")))
    return session_document(stopped)


def read_splitting(site: BudgetedSite) -> SplittingView:
    """Ask for queues and sessions, once a round. Raises `NotUsable`, `CallFailed`."""
    view: SplittingView = site.run_once("splitting", lambda: site.client(SPLITTING).ask(ShowSplitting())).result()
    return view


def _counts(site: BudgetedSite, view: SplittingView) -> Counts | None:
    """Count what the last minutes had; None where that isn't known yet. Raises `CallFailed`."""
    metrics: dict[str, Metric] = {}
    for queue in view.queues[:MAX_COUNTED]:
        for what, name in QUEUE_METRICS.items():
            metrics[f"{queue.queue_id}\n{what}"] = own_metric(site, name, service="splitter", queue=queue.queue_id)
    # Sessions beyond the limit only show the total that the control function counts.
    for session in sorted(view.sessions, key=lambda session: -session.messages)[:MAX_COUNTED]:
        dimensions = {"service": "splitter", "session": session.session_id}
        for own in session.queues:
            metric = own_metric(site, "SessionMessages", queue=own.queue_id, **dimensions)
            metrics[f"{own.queue_id}\n{session.session_id}"] = metric
    if not metrics:
        return {}
    series = read_cached_series(site, "splitting", metrics, minutes=MINUTES)
    if series is None:
        return None
    return {tuple(name.split("\n", 1)): round(sum(value for _, value in points)) for name, points in series.items()}  # type: ignore[misc]  # two parts
