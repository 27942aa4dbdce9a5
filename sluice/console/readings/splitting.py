"""Page *Splitting*: split queues, their sessions, and how many messages went to each of them lately."""

from collections.abc import Iterator, Mapping
from typing import Any

from sluice.console.readings.shared import last, own_metric, series_of
from sluice.console.requests import text_in
from sluice.console.sites import Document, KnownSite, Query
from sluice.errors import CallFailed
from sluice.operator.functions import SPLITTING
from sluice.operator.metrics import Metric
from sluice.operator.sessions import session_document
from sluice.splitting.operations import QueueView, SessionView, ShowSplitting, SplittingView, StopSession

MINUTES = 15  # of which messages are counted
MAX_COUNTED = 100  # queues; so many sessions too: each is a metric, and CloudWatch takes money for each that it gives
OF_QUEUES = {"read": "MessagesRead", "main": "MessagesUnmatched", "mirrored": "MessagesMirrored"}
Counts = Mapping[tuple[str, str], int]  # by queue id, and what of it: one of `OF_QUEUES`, or a session's id


def read(site: KnownSite, _: Query) -> Document:
    """Read queues, sessions and counts. What can't be counted is null, and `uncounted` says why."""
    found = splitting_of(site)
    held = {each["url"]: each for each in site.held(url for each in found.queues for url in (each.source, each.main))}
    try:
        counts, uncounted = _counts(site, found), None
    except CallFailed as error:  # to read metrics is a permission of its own
        counts, uncounted = None, str(error)
    endpoint = site.connection.endpoint_url
    return {
        "queues": [_queue(each, held, counts) for each in found.queues],
        "sessions": [_session(each, counts) for each in found.sessions],
        "minutes": MINUTES,
        "uncounted": uncounted,
        # Beside credentials, which aren't shown, what leads a program to the site.
        "environment": {"AWS_REGION": site.connection.region, **({"AWS_ENDPOINT_URL": endpoint} if endpoint else {})},
    }


def stop_session(site: KnownSite, fields: Mapping[str, Any]) -> Document:
    """End a session, whoever started it. Raises what `sluice split stop` raises."""
    stopped = site.client(SPLITTING).ask(StopSession(session_id=text_in(fields, "session_id")))
    return session_document(stopped)


def splitting_of(site: KnownSite) -> SplittingView:
    """Ask for queues and sessions, once a round. Raises `NotUsable`, `CallFailed`."""
    found: SplittingView = site.once("splitting", lambda: site.client(SPLITTING).ask(ShowSplitting())).result()
    return found


def _queue(queue: QueueView, held: Mapping[str, Any], counts: Counts | None) -> dict[str, Any]:
    counted = {name: None if counts is None else counts.get((queue.queue_id, name), 0) for name in OF_QUEUES}
    return {**session_document(queue), "source": held[queue.source], "main": held[queue.main], "counted": counted}


def _session(session: SessionView, counts: Counts | None) -> dict[str, Any]:
    counted = {
        each.queue_id: None if counts is None else counts.get((each.queue_id, session.session_id))
        for each in session.queues
    }
    return {**session_document(session), "counted": counted}


def _counts(site: KnownSite, found: SplittingView) -> Counts | None:
    """Count what the last minutes had; None where that isn't known yet. Raises `CallFailed`."""
    wanted = {f"{queue_id}\n{what}": metric for queue_id, what, metric in _wanted(site, found)}
    if not wanted:
        return {}
    series = series_of(site, "splitting", wanted, last(MINUTES))
    if series is None:
        return None
    return {tuple(name.split("\n", 1)): round(sum(value for _, value in each)) for name, each in series.items()}  # type: ignore[misc]  # two parts


def _wanted(site: KnownSite, found: SplittingView) -> Iterator[tuple[str, str, Metric]]:
    for queue in found.queues[:MAX_COUNTED]:
        for what, name in OF_QUEUES.items():
            yield queue.queue_id, what, own_metric(site, name, service="splitter", queue=queue.queue_id)
    # The others are counted since their start, which the function knows itself.
    for session in sorted(found.sessions, key=lambda each: -each.messages)[:MAX_COUNTED]:
        told = {"service": "splitter", "session": session.session_id}
        for each in session.queues:
            metric = own_metric(site, "SessionMessages", queue=each.queue_id, **told)
            yield each.queue_id, session.session_id, metric
