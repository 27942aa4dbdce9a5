"""Page *Pipeline*: runs, landed rows by minute, and tables with their versions."""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from sluice.aws.clients import now_ms
from sluice.aws.deployment import output
from sluice.codec import to_document
from sluice.console.readings.shared import try_reading
from sluice.console.requests import text_field
from sluice.console.sites import BudgetedSite, Document, Query
from sluice.console.tables import CachedTable, iceberg_versions, read_rows, table_document
from sluice.operations import parse_request
from sluice.operator.pipelines import STACK, BucketFiles, FolderFiles, parse_start_operation
from sluice.pipeline.jobs import ICEBERG_NAMESPACE, LAND, TableFormat
from sluice.pipeline.operations import DrainQueue, PipelineView, ShowPipeline, StopJob
from sluice.pipeline.tables import Files, TableVersion
from sluice.rendezvous.protocol.addresses import mask_addresses
from sluice.times import MINUTE_MS

CHARTED_MINUTES = 60  # the period of the chart of landed rows
TABLES_INTERVAL_S = 20.0
LOCAL_TABLES_INTERVAL_S = 2.0
SHOWN_VERSIONS = 20
SHOWN_RUNS = 20
MAX_ROWS = 200  # quarantined messages
MAX_BODY = 20_000  # characters
QUARANTINE = "quarantine"
# The tables' folders, relative to the folder or bucket in which the jobs write.
QUARANTINED, HOURLY, MESSAGES = "quarantine/quarantine", "statistics/hourly", "tables/messages"


def read(site: BudgetedSite, _: Query) -> Document:
    """Read the page's data; unreadable data are null, errors in `troubles`. Raises `NotDeployed`, `CallFailed`."""
    outputs, troubles = site.outputs(STACK), dict[str, str]()
    view: PipelineView = site.pipeline().ask(ShowPipeline())
    files = try_reading(troubles, "landed files", lambda: open_landed_files(site))
    [queue] = site.read_depths([output(outputs, STACK, "QueueUrl")])
    tables = (files and try_reading(troubles, "tables", lambda: read_tables(site, files, outputs))) or {}
    return {
        **to_document(view),
        "runs": [to_document(run) for run in view.runs[:SHOWN_RUNS]],
        "queue": queue,
        "minutes": count_landed(tables["messages"][0], at_ms=now_ms()) if tables else None,
        "tables": {name: table_document(read[:SHOWN_VERSIONS], rows) for name, (read, rows) in tables.items()} or None,
        "troubles": troubles,
    }


def open_landed_files(site: BudgetedSite) -> Files:
    """Open the files that the jobs have written. Raises `NotDeployed`, `NotUsable`."""
    if site.is_local:
        return FolderFiles(site.jobs_folder())
    return BucketFiles(site.connection.client("s3"), output(site.outputs(STACK), STACK, "BucketName"))


# Tables


def count_landed(versions: Sequence[TableVersion], *, at_ms: int) -> Sequence[Document]:
    """Count landed rows and batches for each charted minute, in order. Versions that remove files don't count."""
    rows, batches = Counter[int](), Counter[int]()
    for version in versions:
        if not version.removed_files:
            rows[version.at_ms // MINUTE_MS] += version.rows
            batches[version.at_ms // MINUTE_MS] += 1
    last = at_ms // MINUTE_MS
    return [
        {"at_ms": minute * MINUTE_MS, "rows": rows[minute], "batches": batches[minute]}
        for minute in range(last - CHARTED_MINUTES + 1, last + 1)
    ]


def read_tables(
    site: BudgetedSite, files: Files, outputs: Mapping[str, str]
) -> Mapping[str, tuple[Sequence[TableVersion], int | None]]:
    """Read each table's versions, the newest first, and its number of rows; None if that is unknown."""
    tables: dict[str, tuple[Sequence[TableVersion], int | None]] = {}
    for name, folder in (("messages", MESSAGES), (QUARANTINE, QUARANTINED), ("hourly", HOURLY)):
        if name == "messages" and outputs.get("TableFormat") == TableFormat.ICEBERG:
            place = f"tables/{ICEBERG_NAMESPACE}/{name}"
            versions = site.read_cached(
                ("iceberg", name), partial(iceberg_versions, files, place), every_s=TABLES_INTERVAL_S, calls=2
            )
            tables[name] = versions or [], None
            continue
        table = read_table(site, files, name, folder)
        tables[name] = table.newest_first, table.rows
    return tables


def read_table(site: BudgetedSite, files: Files, name: str, folder: str, *, in_full: bool = False) -> CachedTable:
    """Return a table after reading its new versions, within the round's budget of calls unless `in_full`."""
    table = site.memory.of(f"table {name}", lambda: CachedTable(folder))
    every_s, cost = (LOCAL_TABLES_INTERVAL_S, 0) if site.is_local else (TABLES_INTERVAL_S, 1)
    site.read_cached(("table", name), lambda: table.look(files), every_s=every_s, calls=cost)
    table.read(files, may_read=lambda: in_full or site.spend(cost))
    return table


# Questions


def quarantine(site: BudgetedSite, _: Mapping[str, Any]) -> Document:
    """Return messages that couldn't be landed, the newest first, with addresses and session descriptions masked.

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
    attributes, shown = dict[str, str](), mask_addresses(body)
    for name, pairs in row.get("attributes") or ():
        value = dict(pairs)
        text, size = value.get("string"), len(value.get("binary") or b"")
        attributes[name] = f"[{size} bytes]" if text is None else mask_addresses(str(text))
    return {
        "message_id": row.get("message_id"),
        "reason": mask_addresses(str(row.get("reason") or "")),
        "date": str(row.get("date") or ""),
        "sent_at_ms": None if sent is None else round(sent.timestamp() * 1_000),
        "receives": row.get("receive_count"),
        "body": shown[:MAX_BODY],
        "left_out": max(0, len(shown) - MAX_BODY),
        "attributes": attributes,
    }


# Actions


def start_job(site: BudgetedSite, fields: Mapping[str, Any]) -> Document:
    """Start a job, as `sluice pipeline start` does. Raises the command's errors."""
    parameters = {name: value for name, value in fields.items() if name != "job" and value not in (None, "")}
    return to_document(site.pipeline().ask(parse_start_operation(text_field(fields, "job", default=LAND), parameters)))


def stop_job(site: BudgetedSite, fields: Mapping[str, Any]) -> Document:
    """Stop a job's runs, as `sluice pipeline stop` does. Raises the command's errors."""
    operation: StopJob = parse_request({"op": "stop", "job": text_field(fields, "job", default=LAND)}, StopJob)
    return to_document(site.pipeline().ask(operation))


def drain(site: BudgetedSite, _: Mapping[str, Any]) -> Document:
    """Land the queue's messages, then stop, as `sluice pipeline drain` does. Raises the command's errors."""
    return to_document(site.pipeline().ask(DrainQueue()))
