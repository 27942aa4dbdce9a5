"""Page *Splitting*: split queues, their sessions, and the number of recent messages of each."""

from collections.abc import Mapping
from typing import Any

from sluice.codec import to_document
from sluice.console.readings.shared import own_metric, read_cached_series
from sluice.console.requests import text_field
from sluice.console.sites import BudgetedSite, Document, Query
from sluice.errors import CallFailed
from sluice.operator.functions import SPLITTING
from sluice.operator.metrics import Metric
from sluice.operator.sessions import session_document
from sluice.splitting.operations import ShowSplitting, SplittingView, StopSession

MINUTES = 15  # minutes for which messages are counted
MAX_COUNTED = 100  # maximum number of counted queues, and of sessions; CloudWatch charges for each metric
QUEUE_METRICS = {"read": "MessagesRead", "main": "MessagesUnmatched", "mirrored": "MessagesMirrored"}
Counts = Mapping[tuple[str, str], int]  # by queue id, and a key of `QUEUE_METRICS` or a session's id


def read(site: BudgetedSite, _: Query) -> Document:
    """Read queues, sessions and counts. Unknown counts are null, with the reason in `uncounted`."""
    view = read_splitting(site)
    depths = site.read_depths(url for queue in view.queues for url in (queue.source, queue.main))
    try:
        counts, uncounted = _count_messages(site, view), None
    except CallFailed as error:  # reading metrics needs a separate permission
        counts, uncounted = None, str(error)
    return {
        "queues": [
            {
                **session_document(queue),
                "source": depths[queue.source],
                "main": depths[queue.main],
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
        "splits": [to_document(split) for split in view.splits],
        "minutes": MINUTES,
        "uncounted": uncounted,
    }


def stop_session(site: BudgetedSite, fields: Mapping[str, Any]) -> Document:
    """Stop a session of any user. Raises the errors of `sluice split stop`."""
    stopped = site.client(SPLITTING).ask(StopSession(session_id=text_field(fields, "session_id")))
    return session_document(stopped)


def read_splitting(site: BudgetedSite) -> SplittingView:
    """Read queues and sessions, once per round. Raises `NotUsable`, `CallFailed`."""
    return site.run_once("splitting", lambda: site.client(SPLITTING).ask(ShowSplitting())).result()


def _count_messages(site: BudgetedSite, view: SplittingView) -> Counts | None:
    """Count the messages of the last minutes; None if they haven't been read yet. Raises `CallFailed`."""
    metrics: dict[str, Metric] = {}
    for queue in view.queues[:MAX_COUNTED]:
        for what, name in QUEUE_METRICS.items():
            metrics[f"{queue.queue_id}\n{what}"] = own_metric(site, name, service="splitter", queue=queue.queue_id)
    # For sessions beyond the limit, the page only shows the total that the control function counts.
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
