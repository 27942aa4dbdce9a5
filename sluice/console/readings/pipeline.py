"""Page *Pipeline*: runs, how landing goes, tables with their versions, daily statistics."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

from sluice.aws.clients import now_ms
from sluice.aws.deployment import output
from sluice.codec import to_document
from sluice.console.readings.shared import last_minutes, read_cached_series, try_reading
from sluice.console.requests import text_field
from sluice.console.sites import BudgetedSite, Document, Query
from sluice.console.tables import CachedTable, iceberg_versions, read_rows, table_document
from sluice.operations import parse_request
from sluice.operator.metrics import Metric
from sluice.operator.pipelines import STACK, BucketFiles, FolderFiles, parse_start_operation
from sluice.pipeline.jobs import ICEBERG_NAMESPACE, LAND, TableFormat
from sluice.pipeline.operations import DrainQueue, PipelineView, RunView, ShowPipeline, StopJob
from sluice.pipeline.tables import Files
from sluice.rendezvous.protocol.addresses import mask_addresses
from sluice.stages import add_stage_prefix
from sluice.times import MINUTE_MS

CHARTED_MINUTES = 60  # of landing that are drawn
MAX_LOG_LINES = 4_000  # of a local run's log: an hour's batches
MAX_LOGS = 5  # of local runs
SPARK_NAMESPACE = "Sluice/Spark"
TABLES_INTERVAL_S = 20.0
LOCAL_TABLES_INTERVAL_S = 2.0
SHOWN_VERSIONS = 20
SHOWN_RUNS = 20
SHOWN_DAYS = 14
MAX_ROWS = 200  # of the quarantine
MAX_BODY = 20_000  # characters of a body that are shown
QUARANTINE = "quarantine"
# Tables' folders, as the jobs name them in the places that they are told.
QUARANTINED, HOURLY, MESSAGES = "quarantine/quarantine", "statistics/hourly", "tables/messages"
OFFERS = {
    "matched": "client-snowflake-match-count",
    "denied": "client-denied-count",
    "timed out": "client-snowflake-timeout-count",
}
ADDRESSES = "snowflake-ips-total"
DAY = "snowflake-stats-"


def read(site: BudgetedSite, _: Query) -> Document:
    """Read it. What can't be read of it is null, with the reason in `troubles`. Raises `NotDeployed`, `CallFailed`."""
    outputs, troubles = site.outputs(STACK), dict[str, str]()
    view: PipelineView = site.pipeline().ask(ShowPipeline())
    files = try_reading(troubles, "what is landed", lambda: open_landed_files(site))
    [queue] = site.read_depths([output(outputs, STACK, "QueueUrl")])
    return {
        **to_document(view),
        "runs": [to_document(run) for run in view.runs[:SHOWN_RUNS]],
        "queue": queue,
        "minutes": try_reading(troubles, "how landing goes", lambda: _read_minutes(site, view.runs)),
        "tables": files and try_reading(troubles, "tables", lambda: _tables(site, files, outputs)),
        "days": files and try_reading(troubles, "statistics", lambda: read_days(site, files)),
        "troubles": troubles,
    }


def open_landed_files(site: BudgetedSite) -> Files:
    """Give what the jobs have written. Raises `NotDeployed`, `NotUsable`."""
    if site.is_local:
        return FolderFiles(site.jobs_folder())
    return BucketFiles(site.connection.client("s3"), output(site.outputs(STACK), STACK, "BucketName"))


# How landing goes


def _read_minutes(site: BudgetedSite, runs: Sequence[RunView]) -> Sequence[Document] | None:
    """Say of each of the last minutes what it landed; None where that isn't known."""
    if site.is_local:
        return sum_logs_by_minute(_read_logs(site, runs), at_ms=now_ms())
    dimensions = {"Query": LAND, "Source": "0"}
    metric = partial(Metric, namespace=add_stage_prefix(SPARK_NAMESPACE, site.connection.stage), dimensions=dimensions)
    metrics = {
        "rows": metric(name="numRecordsIn", statistic="Maximum"),
        "batches": metric(name="numRecordsIn", statistic="SampleCount"),
        "lag": metric(name="currentEmitEventTimeLag", statistic="Maximum"),
    }
    series = read_cached_series(site, "landing", metrics, last_minutes(CHARTED_MINUTES + 1))
    if series is None:
        return None
    batches, lags = dict(series["batches"]), dict(series["lag"])
    samples = ((at_ms, round(batches.get(at_ms, 0)), rows, lags.get(at_ms)) for at_ms, rows in series["rows"])
    return sum_by_minute(count_new_rows(samples), at_ms=now_ms())


Sample = tuple[int, int, float, float | None]  # when, how many batches, rows since the query began, lag in ms


def _read_logs(site: BudgetedSite, runs: Sequence[RunView]) -> Sequence[str]:
    """Read the logs of the newest runs that landed in the last hour."""
    since_ms = now_ms() - CHARTED_MINUTES * MINUTE_MS
    landed = [run for run in runs if run.job == LAND and (run.ended_at_ms or since_ms) >= since_ms]
    return [site.pipeline().text(run.run, lines=MAX_LOG_LINES) for run in landed[:MAX_LOGS]]


def sum_logs_by_minute(texts: Sequence[str], *, at_ms: int) -> Sequence[Document]:
    """Add up what runs' logs have. Of a log that is cut what came before isn't known."""
    cut = {text for text in texts if text.count("\n") >= MAX_LOG_LINES - 1}
    landed = (count_new_rows(parse_samples(text), before=None if text in cut else 0.0) for text in texts)
    return sum_by_minute(chain.from_iterable(landed), at_ms=at_ms)


def parse_samples(text: str) -> Iterator[Sample]:
    """Read the metrics that a run's log has, a line a batch."""
    for line in text.splitlines():
        if not line.startswith('{"_aws"'):
            continue
        try:
            record = json.loads(line)
            if record.get("Query") == LAND and record.get("Source") == "0":
                at_ms, rows = int(record["_aws"]["Timestamp"]), float(record["numRecordsIn"])
                yield at_ms, 1, rows, record.get("currentEmitEventTimeLag")
        except (ValueError, TypeError, KeyError):
            continue  # a line that was cut


def count_new_rows(samples: Iterable[Sample], *, before: float | None = None) -> Iterator[Sample]:
    """Give samples with the rows that came since the one before, in place of all.

    A query counts its rows from 0 on: where there are fewer than before, another one has begun. `before` is what was
    counted before the first sample, where that is known.
    """
    for sample_ms, number, rows, lag_ms in samples:
        if before is None:
            before = rows
        yield sample_ms, number, rows - before if rows >= before else rows, lag_ms
        before = rows


def sum_by_minute(batches: Iterable[Sample], *, at_ms: int) -> Sequence[Document]:
    """Add batches up, a minute each, the newest last."""
    last = at_ms // MINUTE_MS
    minutes = range(last - CHARTED_MINUTES + 1, last + 1)
    landed, numbers, lags = Counter[int](), Counter[int](), dict[int, int]()
    for batch_ms, number, rows, lag_ms in batches:
        minute = batch_ms // MINUTE_MS
        numbers[minute] += number
        landed[minute] += round(rows)
        if lag_ms is not None:
            lags[minute] = max(lags.get(minute, 0), round(lag_ms))
    return [
        {"at_ms": minute * MINUTE_MS, "rows": landed[minute], "batches": numbers[minute], "lag_ms": lags.get(minute)}
        for minute in minutes
    ]


# What is landed


def _tables(site: BudgetedSite, files: Files, outputs: Mapping[str, str]) -> Mapping[str, Document]:
    """Say of each table its newest versions; one that isn't there yet has none."""
    tables = {}
    for name, folder in (("messages", MESSAGES), (QUARANTINE, QUARANTINED), ("hourly", HOURLY)):
        if name == "messages" and outputs.get("TableFormat") == TableFormat.ICEBERG:
            place = f"tables/{ICEBERG_NAMESPACE}/{name}"
            versions = site.read_cached(
                ("iceberg", name), partial(iceberg_versions, files, place), every_s=TABLES_INTERVAL_S, calls=2
            )
            tables[name] = table_document((versions or [])[:SHOWN_VERSIONS], None)
            continue
        table = read_table(site, files, name, folder)
        tables[name] = table_document(table.newest_first[:SHOWN_VERSIONS], table.rows)
    return tables


def _look_interval(site: BudgetedSite) -> tuple[float, int]:
    """Say how many seconds apart a folder is looked at, and how many calls to AWS a look is."""
    return (LOCAL_TABLES_INTERVAL_S, 0) if site.is_local else (TABLES_INTERVAL_S, 1)


def read_table(site: BudgetedSite, files: Files, name: str, folder: str, *, in_full: bool = False) -> CachedTable:
    """Give a table as it is known after a look at what is new: as far as the round's calls go, unless `in_full`."""
    table = site.memory.of(f"table {name}", lambda: CachedTable(folder))
    every_s, cost = _look_interval(site)
    site.read_cached(("table", name), lambda: table.look(files), every_s=every_s, calls=cost)
    table.read(files, may_read=lambda: in_full or site.spend(cost))
    return table


def read_days(site: BudgetedSite, files: Files) -> Sequence[Document]:
    """Read the last daily logs, as far as the round's calls go: each once, but the newest, as late events come."""
    every_s, cost = _look_interval(site)
    names = site.read_cached("days", partial(files.names, "statistics"), every_s=every_s, calls=cost) or ()
    *older, newest = [name for name in names if name.startswith(DAY)][-SHOWN_DAYS:] or [""]
    known = site.memory.of("days", dict[str, Document])

    def read(name: str) -> Document:
        return parse_day(name, files.read(f"statistics/{name}").decode())

    last = site.read_cached(("day", newest), partial(read, newest), every_s=every_s, calls=cost) if newest else None
    for name in reversed(older):
        if name not in known and site.spend(cost):
            known[name] = read(name)
    return [day for day in (*map(known.get, older), last) if day is not None]


def parse_day(name: str, text: str) -> Document:
    """Read a daily log: offers by how they ended, and addresses of proxies, of all and by country."""
    lines = {key: value for key, _, value in (line.partition(" ") for line in text.splitlines())}
    countries = [entry.partition("=") for entry in lines.get("snowflake-ips", "").split(",") if "=" in entry]
    return {
        "day": name.removeprefix(DAY).removesuffix(".log"),
        "offers": {outcome: _parse_count(lines.get(line)) for outcome, line in OFFERS.items()},
        "addresses": _parse_count(lines.get(ADDRESSES)),
        "countries": [[country, _parse_count(number)] for country, _, number in countries[:SHOWN_VERSIONS]],
    }


def _parse_count(text: str | None) -> int:
    return int(text) if text is not None and text.isascii() and text.isdigit() else 0


# Questions


def quarantine(site: BudgetedSite, _: Mapping[str, Any]) -> Document:
    """Show what couldn't be landed, the newest first, without addresses and session descriptions.

    Raises `BadConfiguration`, `CallFailed`, `Malformed`.
    """
    files = open_landed_files(site)
    table = read_table(site, files, QUARANTINE, QUARANTINED, in_full=True)
    rows = read_rows(files, table, most=MAX_ROWS)
    return {
        "rows": [_format_quarantined(row) for row in rows],
        "more": sum(version.rows for version in table.newest_first) - len(rows),
    }


def _format_quarantined(row: Mapping[str, Any]) -> Document:
    body, sent = str(row.get("body") or ""), row.get("sent_at")
    attributes = {name: dict(value) for name, value in row.get("attributes") or ()}
    shown = mask_addresses(body)
    return {
        "message_id": row.get("message_id"),
        "reason": mask_addresses(str(row.get("reason") or "")),
        "date": str(row.get("date") or ""),
        "sent_at_ms": None if sent is None else round(sent.timestamp() * 1_000),
        "receives": row.get("receive_count"),
        "body": shown[:MAX_BODY],
        "left_out": max(0, len(shown) - MAX_BODY),
        "attributes": {name: _value_text(value) for name, value in attributes.items()},
    }


def _value_text(value: Mapping[str, Any]) -> str:
    text = value.get("string")
    return f"[{len(value.get('binary') or b'')} bytes]" if text is None else mask_addresses(str(text))


# Actions


def start_job(site: BudgetedSite, fields: Mapping[str, Any]) -> Document:
    """Start a job, as `sluice pipeline start`. Raises what the command raises."""
    parameters = {name: value for name, value in fields.items() if name != "job" and value not in (None, "")}
    return to_document(site.pipeline().ask(parse_start_operation(text_field(fields, "job", default=LAND), parameters)))


def stop_job(site: BudgetedSite, fields: Mapping[str, Any]) -> Document:
    """End a job's runs, as `sluice pipeline stop`. Raises what the command raises."""
    operation: StopJob = parse_request({"op": "stop", "job": text_field(fields, "job", default=LAND)}, StopJob)
    return to_document(site.pipeline().ask(operation))


def drain(site: BudgetedSite, _: Mapping[str, Any]) -> Document:
    """Land what the queue holds, then stop. Raises what the command raises."""
    return to_document(site.pipeline().ask(DrainQueue()))
