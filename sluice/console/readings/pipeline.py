"""Page *Pipeline*: runs, how landing goes, tables with their versions, daily statistics."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

from sluice.aws.clients import now_ms
from sluice.aws.deployment import output
from sluice.codec import plain
from sluice.console.readings.shared import last, series_of, tried
from sluice.console.requests import text_in
from sluice.console.sites import Document, KnownSite, Query
from sluice.console.tables import KnownTable, document_of, iceberg_versions, rows_of
from sluice.local.landed_files import FolderFiles
from sluice.operations import request_of
from sluice.operator.metrics import Metric
from sluice.operator.pipelines import STACK, BucketFiles, start_operation
from sluice.pipeline.jobs import ICEBERG_NAMESPACE, LAND, TableFormat
from sluice.pipeline.operations import DrainQueue, PipelineView, RunView, ShowPipeline, StopJob
from sluice.pipeline.tables import Files
from sluice.rendezvous.protocol.addresses import masked
from sluice.stages import staged
from sluice.times import MINUTE_MS

MINUTES = 60  # of landing that are drawn
LINES = 4_000  # of a local run's log: an hour's batches
LOGS = 5  # of local runs
SPARK_NAMESPACE = "Sluice/Spark"
TABLES_EVERY_S = 20.0
LOCAL_TABLES_EVERY_S = 2.0
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


def read(site: KnownSite, _: Query) -> Document:
    """Read it. What can't be read of it is null, with the reason in `troubles`. Raises `NotDeployed`, `CallFailed`."""
    outputs, troubles = site.outputs(STACK), dict[str, str]()
    found: PipelineView = site.pipeline().ask(ShowPipeline())
    files = tried(troubles, "what is landed", lambda: files_at(site))
    [queue] = site.held([output(outputs, STACK, "QueueUrl")])
    return {
        **plain(found),
        "runs": [plain(each) for each in found.runs[:SHOWN_RUNS]],
        "queue": queue,
        "minutes": tried(troubles, "how landing goes", lambda: _minutes(site, found.runs)),
        "tables": files and tried(troubles, "tables", lambda: _tables(site, files, outputs)),
        "days": files and tried(troubles, "statistics", lambda: days_of(site, files)),
        "troubles": troubles,
    }


def files_at(site: KnownSite) -> Files:
    """Give what the jobs have written. Raises `NotDeployed`, `NotUsable`."""
    if site.is_local:
        return FolderFiles(site.jobs_folder())
    return BucketFiles(site.connection.client("s3"), output(site.outputs(STACK), STACK, "BucketName"))


# How landing goes


def _minutes(site: KnownSite, runs: Sequence[RunView]) -> Sequence[Document] | None:
    """Say of each of the last minutes what it landed; None where that isn't known."""
    if site.is_local:
        return minutes_of_logs(_logs(site, runs), at_ms=now_ms())
    told = {"Query": LAND, "Source": "0"}
    metric = partial(Metric, namespace=staged(SPARK_NAMESPACE, site.connection.stage), dimensions=told)
    wanted = {
        "rows": metric(name="numRecordsIn", statistic="Maximum"),
        "batches": metric(name="numRecordsIn", statistic="SampleCount"),
        "lag": metric(name="currentEmitEventTimeLag", statistic="Maximum"),
    }
    series = series_of(site, "landing", wanted, last(MINUTES + 1))
    if series is None:
        return None
    batches, lags = dict(series["batches"]), dict(series["lag"])
    samples = ((at_ms, round(batches.get(at_ms, 0)), rows, lags.get(at_ms)) for at_ms, rows in series["rows"])
    return minutes_of(landed_by(samples), at_ms=now_ms())


Sample = tuple[int, int, float, float | None]  # when, how many batches, rows since the query began, lag in ms


def _logs(site: KnownSite, runs: Sequence[RunView]) -> Sequence[str]:
    """Read the logs of the newest runs that landed in the last hour."""
    since_ms = now_ms() - MINUTES * MINUTE_MS
    landed = [each for each in runs if each.job == LAND and (each.ended_at_ms or since_ms) >= since_ms]
    return [site.pipeline().text(each.run, lines=LINES) for each in landed[:LOGS]]


def minutes_of_logs(texts: Sequence[str], *, at_ms: int) -> Sequence[Document]:
    """Add up what runs' logs have. Of a log that is cut what came before isn't known."""
    cut = {text for text in texts if text.count("\n") >= LINES - 1}
    landed = (landed_by(samples_of(text), before=None if text in cut else 0.0) for text in texts)
    return minutes_of(chain.from_iterable(landed), at_ms=at_ms)


def samples_of(text: str) -> Iterator[Sample]:
    """Read the metrics that a run's log has, a line a batch."""
    for line in text.splitlines():
        if not line.startswith('{"_aws"'):
            continue
        try:
            said = json.loads(line)
            if said.get("Query") == LAND and said.get("Source") == "0":
                at_ms, rows = int(said["_aws"]["Timestamp"]), float(said["numRecordsIn"])
                yield at_ms, 1, rows, said.get("currentEmitEventTimeLag")
        except (ValueError, TypeError, KeyError):
            continue  # a line that was cut


def landed_by(samples: Iterable[Sample], *, before: float | None = None) -> Iterator[Sample]:
    """Give samples with the rows that came since the one before, in place of all.

    A query counts its rows from 0 on: where there are fewer than before, another one has begun. `before` is what was
    counted before the first sample, where that is known.
    """
    for sample_ms, number, rows, lag_ms in samples:
        if before is None:
            before = rows
        yield sample_ms, number, rows - before if rows >= before else rows, lag_ms
        before = rows


def minutes_of(batches: Iterable[Sample], *, at_ms: int) -> Sequence[Document]:
    """Add batches up, a minute each, the newest last."""
    last = at_ms // MINUTE_MS
    minutes = range(last - MINUTES + 1, last + 1)
    landed, numbers, lags = Counter[int](), Counter[int](), dict[int, int]()
    for batch_ms, number, rows, lag_ms in batches:
        minute = batch_ms // MINUTE_MS
        numbers[minute] += number
        landed[minute] += round(rows)
        if lag_ms is not None:
            lags[minute] = max(lags.get(minute, 0), round(lag_ms))
    return [
        {"at_ms": each * MINUTE_MS, "rows": landed[each], "batches": numbers[each], "lag_ms": lags.get(each)}
        for each in minutes
    ]


# What is landed


def _tables(site: KnownSite, files: Files, outputs: Mapping[str, str]) -> Mapping[str, Document]:
    """Say of each table its newest versions; one that isn't there yet has none."""
    found = {}
    for name, folder in (("messages", MESSAGES), (QUARANTINE, QUARANTINED), ("hourly", HOURLY)):
        if name == "messages" and outputs.get("TableFormat") == TableFormat.ICEBERG:
            place = f"tables/{ICEBERG_NAMESPACE}/{name}"
            versions = site.kept(
                ("iceberg", name), partial(iceberg_versions, files, place), every_s=TABLES_EVERY_S, calls=2
            )
            found[name] = document_of((versions or [])[:SHOWN_VERSIONS], None)
            continue
        table = table_at(site, files, name, folder)
        found[name] = document_of(table.newest_first[:SHOWN_VERSIONS], table.rows)
    return found


def _often(site: KnownSite) -> tuple[float, int]:
    """Say how many seconds apart a folder is looked at, and how many calls to AWS a look is."""
    return (LOCAL_TABLES_EVERY_S, 0) if site.is_local else (TABLES_EVERY_S, 1)


def table_at(site: KnownSite, files: Files, name: str, folder: str, *, in_full: bool = False) -> KnownTable:
    """Give a table as it is known after a look at what is new: as far as the round's calls go, unless `in_full`."""
    table = site.memory.of(f"table {name}", lambda: KnownTable(folder))
    every_s, cost = _often(site)
    site.kept(("table", name), lambda: table.look(files), every_s=every_s, calls=cost)
    table.read(files, may_read=lambda: in_full or site.spend(cost))
    return table


def days_of(site: KnownSite, files: Files) -> Sequence[Document]:
    """Read the last daily logs, as far as the round's calls go: each once, but the newest, as late events come."""
    every_s, cost = _often(site)
    names = site.kept("days", partial(files.names, "statistics"), every_s=every_s, calls=cost) or ()
    *older, newest = [each for each in names if each.startswith(DAY)][-SHOWN_DAYS:] or [""]
    known = site.memory.of("days", dict[str, Document])

    def read(name: str) -> Document:
        return day_of_log(name, files.read(f"statistics/{name}").decode())

    last = site.kept(("day", newest), partial(read, newest), every_s=every_s, calls=cost) if newest else None
    for name in reversed(older):
        if name not in known and site.spend(cost):
            known[name] = read(name)
    return [day for day in (*map(known.get, older), last) if day is not None]


def day_of_log(name: str, text: str) -> Document:
    """Read a daily log: offers by how they ended, and addresses of proxies, of all and by country."""
    lines = {key: value for key, _, value in (line.partition(" ") for line in text.splitlines())}
    countries = [each.partition("=") for each in lines.get("snowflake-ips", "").split(",") if "=" in each]
    return {
        "day": name.removeprefix(DAY).removesuffix(".log"),
        "offers": {told: _whole(lines.get(line)) for told, line in OFFERS.items()},
        "addresses": _whole(lines.get(ADDRESSES)),
        "countries": [[country, _whole(number)] for country, _, number in countries[:SHOWN_VERSIONS]],
    }


def _whole(text: str | None) -> int:
    return int(text) if text is not None and text.isascii() and text.isdigit() else 0


# Questions


def quarantine(site: KnownSite, _: Mapping[str, Any]) -> Document:
    """Show what couldn't be landed, the newest first, without addresses and session descriptions.

    Raises `BadConfiguration`, `CallFailed`, `Malformed`.
    """
    files = files_at(site)
    table = table_at(site, files, QUARANTINE, QUARANTINED, in_full=True)
    rows = rows_of(files, table, most=MAX_ROWS)
    return {
        "rows": [_quarantined(each) for each in rows],
        "more": sum(each.rows for each in table.newest_first) - len(rows),
    }


def _quarantined(row: Mapping[str, Any]) -> Document:
    body, sent = str(row.get("body") or ""), row.get("sent_at")
    attributes = {name: dict(value) for name, value in row.get("attributes") or ()}
    shown = masked(body)
    return {
        "message_id": row.get("message_id"),
        "reason": masked(str(row.get("reason") or "")),
        "date": str(row.get("date") or ""),
        "sent_at_ms": None if sent is None else round(sent.timestamp() * 1_000),
        "receives": row.get("receive_count"),
        "body": shown[:MAX_BODY],
        "left_out": max(0, len(shown) - MAX_BODY),
        "attributes": {name: _value(value) for name, value in attributes.items()},
    }


def _value(value: Mapping[str, Any]) -> str:
    text = value.get("string")
    return f"[{len(value.get('binary') or b'')} bytes]" if text is None else masked(str(text))


# Actions


def start_job(site: KnownSite, fields: Mapping[str, Any]) -> Document:
    """Start a job, as `sluice pipeline start`. Raises what the command raises."""
    given = {name: value for name, value in fields.items() if name != "job" and value not in (None, "")}
    return plain(site.pipeline().ask(start_operation(text_in(fields, "job", default=LAND), given)))


def stop_job(site: KnownSite, fields: Mapping[str, Any]) -> Document:
    """End a job's runs, as `sluice pipeline stop`. Raises what the command raises."""
    operation: StopJob = request_of({"op": "stop", "job": text_in(fields, "job", default=LAND)}, StopJob)
    return plain(site.pipeline().ask(operation))


def drain(site: KnownSite, _: Mapping[str, Any]) -> Document:
    """Land what the queue holds, then stop. Raises what the command raises."""
    return plain(site.pipeline().ask(DrainQueue()))
