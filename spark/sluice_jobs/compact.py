"""*compact*: small files of closed days into files of a target size. Readers see each row once, also meanwhile.

A day is closed when it is over. Rows that come for it later go to files of their own, which the next run takes. Running
twice at once is safe: who finds that another has replaced a file leaves the table as it is. Files that are no longer of
the table, and what killed attempts left behind, are deleted a day later: so long a reader may take.

Spark merges, on all its workers. The library's own compaction isn't used: of two at once both went through (deltalake
1.6.6), and each row was there twice. Delta and Iceberg do it themselves, by SQL.
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

SMALL = 0.75  # of the target: a file that is larger stays
DELTA_TARGET = "spark.databricks.delta.optimize.maxFileSize"


@dataclass(frozen=True, slots=True, kw_only=True)
class Compacted:
    """What a run did. `removed`: files deleted, of earlier runs and killed attempts."""

    files_before: int = 0
    files_after: int = 0
    rows: int = 0
    removed: int = 0


def compact(
    spark: SparkSession,
    location: str,
    *,
    days: Sequence[date],
    target_bytes: int,
    kept_hours: int = FILES_KEPT_HOURS,
) -> Compacted:
    """Of table `messages` at the location, Parquet with its log. `kept_hours`: since when what isn't of it may go."""
    table = ParquetTable(f"{location}/{MESSAGES}", messages_layout())
    done = [merged(spark, table, small) for small in merges(table.log.files(), days, target_bytes)]
    return Compacted(
        files_before=sum(each.files_before for each in done),
        files_after=sum(each.files_after for each in done),
        rows=sum(each.rows for each in done),
        removed=table.log.cleaned(kept_hours=kept_hours),
    )


def compacted(
    spark: SparkSession, table_format: str, location: str, *, days: Sequence[date], target_bytes: int
) -> Mapping[str, Any]:
    """Compacts a table of any format. What Delta and Iceberg say of what they did is in `metrics`.

    Raises LogError where rows would be lost.
    """
    if table_format == "parquet":
        return asdict(compact(spark, location, days=days, target_bytes=target_bytes))
    if table_format == "delta":
        spark.conf.set(DELTA_TARGET, str(target_bytes))
        statement = optimize_statement(location, days)
    else:
        statement = rewrite_statement(location, days, target_bytes)
    return {"metrics": [row.asDict(recursive=True) for row in spark.sql(statement).collect()]}


def merged(spark: SparkSession, table: ParquetTable, small: Sequence[DataFile]) -> Compacted:
    """Make one file of these, in one version; nothing is done where another run was faster.

    Raises LogError if rows would be lost.
    """
    rows = table.rows_of(spark, small).coalesce(1).sortWithinPartitions("sent_at")
    large = table.write(rows, "compacted")
    rows_before, rows_after = sum(file.rows for file in small), sum(file.rows for file in large)
    if rows_before != rows_after:
        raise LogError(f"{len(small)} files of {rows_before} rows became {rows_after} rows: the table stays as it is")

    def change(files: Sequence[DataFile]) -> Change | None:
        if {file.path for file in small} - {file.path for file in files}:
            return None  # another run was faster; ours is deleted as what killed attempts leave
        return Change(add=large, remove=small, moved=True)

    if not table.log.change(change):
        return Compacted()
    return Compacted(files_before=len(small), files_after=len(large), rows=rows_after)


def closed_days(today: date, count: int) -> Sequence[date]:
    """List the `count` days before today."""
    return [today - timedelta(days=back) for back in range(1, count + 1)]


def merges(files: Sequence[DataFile], days: Sequence[date], target_bytes: int) -> Iterator[Sequence[DataFile]]:
    """Which files become one: of one partition, small, together no larger than the target. By partition, then path."""
    wanted = {day.isoformat() for day in days}
    partitions: dict[tuple[tuple[str, str], ...], list[DataFile]] = {}
    for file in sorted(files, key=lambda file: file.path):
        if file.partition["date"] in wanted and file.size < SMALL * target_bytes:
            partitions.setdefault(tuple(sorted(file.partition.items())), []).append(file)
    for key in sorted(partitions):
        group: list[DataFile] = []
        for following in [*partitions[key], None]:
            if following is None or sum(file.size for file in group) + following.size > target_bytes:
                if len(group) > 1:
                    yield group
                group = []
            if following is not None:
                group.append(following)


def optimize_statement(location: str, days: Sequence[date]) -> str:
    """Delta's. The target size is a setting of the session."""
    return f"OPTIMIZE delta.`{location}/{MESSAGES}` WHERE {_between(days)}"


def rewrite_statement(namespace: str, days: Sequence[date], target_bytes: int) -> str:
    """Iceberg's."""
    catalog, _, rest = namespace.partition(".")
    where = _between(days).replace("'", "''")
    return (
        f"CALL {catalog}.system.rewrite_data_files(table => '{rest}.{MESSAGES}', where => '{where}', "
        f"options => map('target-file-size-bytes', '{target_bytes}', 'partial-progress.enabled', 'true'))"
    )


def _between(days: Sequence[date]) -> str:
    return f"date >= DATE '{min(days).isoformat()}' AND date <= DATE '{max(days).isoformat()}'"
