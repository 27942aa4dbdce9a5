"""Job *compact*: merges small files of closed days into files of a target size. Readers always see each row once.

A day is closed when it is over. Rows that are added to a closed day go to separate files, which the next run merges.
Concurrent runs are safe: a run that finds a file replaced by another run leaves the table as it is. Replaced files, and
the files of killed attempts, are deleted a day later, so that a running reader can finish.

Spark merges files on all its workers. The library's own compaction isn't used: two concurrent runs both succeeded
(deltalake 1.6.6), and every row was duplicated. Delta and Iceberg tables are compacted by their own SQL statements.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date, timedelta
from typing import Any

from pyspark.sql import SparkSession

from sluice_jobs.landing import messages_layout
from sluice_jobs.table_log import FILES_KEPT_HOURS, Change, DataFile
from sluice_jobs.table_schemas import MESSAGES
from sluice_jobs.tables import ParquetTable
from sluice_spark.errors import LogError

SMALL = 0.75  # Files larger than this share of the target size aren't merged.
DELTA_TARGET = "spark.databricks.delta.optimize.maxFileSize"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionTotals:
    """The result of a compaction. `removed` counts the deleted files of earlier runs and killed attempts."""

    files_before: int = 0
    files_after: int = 0
    rows: int = 0
    removed: int = 0


def compact_parquet(
    spark: SparkSession,
    location: str,
    *,
    days: Sequence[date],
    target_bytes: int,
    kept_hours: int = FILES_KEPT_HOURS,
) -> CompactionTotals:
    """Compact Parquet table `messages` at the location, and delete files removed more than `kept_hours` ago."""
    table = ParquetTable(f"{location}/{MESSAGES}", messages_layout())
    done = [merge_files(spark, table, small) for small in plan_merges(table.log.files(), days, target_bytes)]
    return CompactionTotals(
        files_before=sum(totals.files_before for totals in done),
        files_after=sum(totals.files_after for totals in done),
        rows=sum(totals.rows for totals in done),
        removed=table.log.delete_old_files(kept_hours=kept_hours),
    )


def compact_table(
    spark: SparkSession, table_format: str, location: str, *, days: Sequence[date], target_bytes: int
) -> Mapping[str, Any]:
    """Compact a table of any format. For Delta and Iceberg, `metrics` holds the SQL statement's result.

    Raises LogError if rows would be lost.
    """
    if table_format == "parquet":
        return asdict(compact_parquet(spark, location, days=days, target_bytes=target_bytes))
    if table_format == "delta":
        spark.conf.set(DELTA_TARGET, str(target_bytes))
        statement = build_optimize_statement(location, days)
    else:
        statement = build_rewrite_statement(location, days, target_bytes)
    return {"metrics": [row.asDict(recursive=True) for row in spark.sql(statement).collect()]}


def merge_files(spark: SparkSession, table: ParquetTable, inputs: Sequence[DataFile]) -> CompactionTotals:
    """Replace the files by one merged file, in one version of the table. Do nothing if another run was faster.

    Raises LogError if rows would be lost.
    """
    rows = table.read_files(spark, inputs).coalesce(1).sortWithinPartitions("sent_at")
    large = table.write(rows, "compacted")
    rows_before, rows_after = sum(file.rows for file in inputs), sum(file.rows for file in large)
    if rows_before != rows_after:
        raise LogError(f"{len(inputs)} files of {rows_before} rows became {rows_after} rows: the table stays as it is")

    def build_merge(files: Sequence[DataFile]) -> Change | None:
        if {file.path for file in inputs} - {file.path for file in files}:
            return None  # Another run was faster. A later clean-up deletes our file.
        return Change(add=large, remove=inputs, moves_rows=True)

    if not table.log.commit_change(build_merge):
        return CompactionTotals()
    return CompactionTotals(files_before=len(inputs), files_after=len(large), rows=rows_after)


def list_closed_days(today: date, count: int) -> Sequence[date]:
    """List the `count` days before today."""
    return [today - timedelta(days=back) for back in range(1, count + 1)]


def plan_merges(files: Sequence[DataFile], days: Sequence[date], target_bytes: int) -> Iterator[Sequence[DataFile]]:
    """Yield groups of small files to merge, each from one partition and in total at most of the target size."""
    dates = {day.isoformat() for day in days}
    partitions: dict[tuple[tuple[str, str], ...], list[DataFile]] = {}
    for file in sorted(files, key=lambda file: file.path):
        if file.partition["date"] in dates and file.size_bytes < SMALL * target_bytes:
            partitions.setdefault(tuple(sorted(file.partition.items())), []).append(file)
    for key in sorted(partitions):
        group: list[DataFile] = []
        for following in [*partitions[key], None]:
            if following is None or sum(file.size_bytes for file in group) + following.size_bytes > target_bytes:
                if len(group) > 1:
                    yield group
                group = []
            if following is not None:
                group.append(following)


def build_optimize_statement(location: str, days: Sequence[date]) -> str:
    """Return Delta's SQL statement to compact a table. The session's configuration sets its target size."""
    return f"OPTIMIZE delta.`{location}/{MESSAGES}` WHERE {_format_days_condition(days)}"


def build_rewrite_statement(namespace: str, days: Sequence[date], target_bytes: int) -> str:
    """Return Iceberg's SQL statement to compact a table."""
    catalog, _, rest = namespace.partition(".")
    where = _format_days_condition(days).replace("'", "''")
    return (
        f"CALL {catalog}.system.rewrite_data_files(table => '{rest}.{MESSAGES}', where => '{where}', "
        f"options => map('target-file-size-bytes', '{target_bytes}', 'partial-progress.enabled', 'true'))"
    )


def _format_days_condition(days: Sequence[date]) -> str:
    return f"date >= DATE '{min(days).isoformat()}' AND date <= DATE '{max(days).isoformat()}'"
