"""Reads the page *Pipeline*: runs of Spark jobs, and the number of messages landed in tables by minute."""

from collections.abc import Mapping, Sequence
from typing import Any

from sluice.aws.clients import now_ms
from sluice.aws.deployment import get_output
from sluice.codec import to_document
from sluice.console.readings.counters import CHARTED_MINUTES, build_queue_metric, sum_by_minute
from sluice.console.readings.shared import read_cached_series, try_reading
from sluice.console.requests import get_text_field
from sluice.console.sites import CallLimitedSite, Document, Query
from sluice.operations import parse_request
from sluice.operator.metrics import Series
from sluice.operator.pipelines import STACK, parse_start_operation
from sluice.pipeline.jobs import LAND
from sluice.pipeline.operations import DrainQueue, PipelineView, ShowPipeline, StopJob
from sluice.times import MINUTE_MS

SHOWN_RUNS = 20
LANDED = "NumberOfMessagesDeleted"  # This SQS metric counts landed messages: the job deletes what it has staged.


def read(site: CallLimitedSite, _: Query) -> Document:
    """Read the page's data; unreadable data are null, with reasons in `troubles`. Raises `NotUsable`, `CallFailed`."""
    url, troubles = get_output(site.read_outputs(STACK), STACK, "QueueUrl"), dict[str, str]()
    view: PipelineView = site.connect_pipeline().ask(ShowPipeline())
    metrics = {LANDED: build_queue_metric(url, LANDED)}
    series = try_reading(
        troubles, "metrics", lambda: read_cached_series(site, "pipeline", metrics, minutes=CHARTED_MINUTES)
    )
    return {
        **to_document(view),
        "runs": [to_document(run) for run in view.runs[:SHOWN_RUNS]],
        "queue": site.read_depths([url])[url],
        "minutes": count_landed(series, at_ms=now_ms()),
        "troubles": troubles,
    }


def count_landed(series: Mapping[str, Series] | None, *, at_ms: int) -> Sequence[Document] | None:
    """Return the number of landed messages for each minute of the chart, oldest first; None if unknown."""
    counts, first = sum_by_minute(series, (LANDED,), at_ms), at_ms // MINUTE_MS - CHARTED_MINUTES + 1
    if counts is None:
        return None
    return [{"at_ms": minute * MINUTE_MS, "messages": count} for minute, count in enumerate(counts, first)]


def start_job(site: CallLimitedSite, fields: Mapping[str, Any]) -> Document:
    """Start a Spark job, as `sluice pipeline start` does. Raises the same errors as the command."""
    parameters = {name: value for name, value in fields.items() if name != "job" and value not in (None, "")}
    return to_document(
        site.connect_pipeline().ask(parse_start_operation(get_text_field(fields, "job", default=LAND), parameters))
    )


def stop_job(site: CallLimitedSite, fields: Mapping[str, Any]) -> Document:
    """Stop a Spark job's runs, as `sluice pipeline stop` does. Raises the same errors as the command."""
    operation: StopJob = parse_request({"op": "stop", "job": get_text_field(fields, "job", default=LAND)}, StopJob)
    return to_document(site.connect_pipeline().ask(operation))


def drain(site: CallLimitedSite, _: Mapping[str, Any]) -> Document:
    """Land the queue's messages, then stop, as `sluice pipeline drain` does. Raises the same errors as the command."""
    return to_document(site.connect_pipeline().ask(DrainQueue()))
