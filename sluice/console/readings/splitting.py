"""Reads the page *Splitting*: split queues, sessions, and the number of recent messages of each."""

from collections.abc import Mapping
from typing import Any

from sluice.codec import to_document
from sluice.console.readings.shared import read_cached_series, site_metric
from sluice.console.requests import get_text_field
from sluice.console.sites import CallLimitedSite, Document, Query
from sluice.errors import CallFailed
from sluice.operator.functions import SPLITTING
from sluice.operator.metrics import Metric
from sluice.operator.sessions import build_session_document
from sluice.splitting.operations import ShowSplitting, SplittingView, StopSession

MINUTES = 15  # Messages are counted over this number of minutes up to now.
MAX_COUNTED = 100  # At most this number of queues and sessions is counted: CloudWatch charges for each metric read.
QUEUE_METRICS = {"read": "MessagesRead", "main": "MessagesUnmatched", "mirrored": "MessagesMirrored"}
Counts = Mapping[tuple[str, str], int]  # The keys are a queue id with a session id or a key of `QUEUE_METRICS`.


def read(site: CallLimitedSite, _: Query) -> Document:
    """Read split queues, sessions and message counts. Unknown counts are null, with the reason in `uncounted`."""
    view = read_splitting(site)
    depths = site.read_depths(url for queue in view.queues for url in (queue.source, queue.main))
    try:
        counts, uncounted = _count_messages(site, view), None
    except CallFailed as error:  # The user may lack the permission to read metrics, which is a separate one.
        counts, uncounted = None, str(error)
    return {
        "queues": [
            {
                **build_session_document(queue),
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
                **build_session_document(session),
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


def stop_session(site: CallLimitedSite, fields: Mapping[str, Any]) -> Document:
    """Stop a session, even another user's. Raises the same errors as `sluice split stop`."""
    stopped = site.find_client(SPLITTING).ask(StopSession(session_id=get_text_field(fields, "session_id")))
    return build_session_document(stopped)


def read_splitting(site: CallLimitedSite) -> SplittingView:
    """Read split queues and sessions, at most once a second for all pages. Raises `NotUsable`, `CallFailed`."""
    return site.run_once("splitting", lambda: site.find_client(SPLITTING).ask(ShowSplitting())).result()


def _count_messages(site: CallLimitedSite, view: SplittingView) -> Counts | None:
    """Count the messages of the last `MINUTES` minutes; None if not all have been read yet. Raises `CallFailed`."""
    metrics: dict[str, Metric] = {}
    for queue in view.queues[:MAX_COUNTED]:
        for what, name in QUEUE_METRICS.items():
            metrics[f"{queue.queue_id}\n{what}"] = site_metric(site, name, service="splitter", queue=queue.queue_id)
    # For further sessions, the page only shows the total number of messages that the control function counts.
    for session in sorted(view.sessions, key=lambda session: -session.messages)[:MAX_COUNTED]:
        dimensions = {"service": "splitter", "session": session.session_id}
        for own in session.queues:
            metric = site_metric(site, "SessionMessages", queue=own.queue_id, **dimensions)
            metrics[f"{own.queue_id}\n{session.session_id}"] = metric
    if not metrics:
        return {}
    series = read_cached_series(site, "splitting", metrics, minutes=MINUTES)
    if series is None:
        return None
    return {tuple(name.split("\n", 1)): round(sum(value for _, value in points)) for name, points in series.items()}  # type: ignore[misc]  # two parts
