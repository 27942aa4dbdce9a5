"""*compact*: small files of closed days into files of a target size. Readers see each row once, also meanwhile.

A day is closed when it is over. Rows that come for it later go to files of their own, which the next run takes. Running
twice at once is safe: who finds that another has replaced a file leaves the table as it is. Files that are no longer of
the table, and what killed attempts left behind, are deleted KEPT_S later: so long a reader may take.

Delta and Iceberg do it themselves, by SQL.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from typing import Any
from urllib.parse import unquote

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  as everybody calls it

from sluice_jobs.landing import messages_layout
from sluice_jobs.landing_names import MESSAGES
from sluice_jobs.merging import merges, optimize_statement, rewrite_statement
from sluice_jobs.table_log import OPTIMIZE, Change, DataFile, Snapshot
from sluice_jobs.tables import ParquetTable
from sluice_spark.errors import LogError
from sluice_spark.log.store import open_store

KEPT_S = 86_400.0
DELTA_TARGET = "spark.databricks.delta.optimize.maxFileSize"
LOG_KEPT_S = 7 * 86_400.0  # versions, for readers that follow the table


@dataclass(frozen=True, slots=True, kw_only=True)
class Compacted:
    """What a run did. `removed`: files deleted, of earlier runs and killed attempts."""

    files_before: int = 0
    files_after: int = 0
    rows: int = 0
    removed: int = 0


def compact(
    spark: SparkSession, location: str, *, days: Sequence[date], target_bytes: int, now: float | None = None
) -> Compacted:
    """Of table `messages` at the location, Parquet with its log. `now`: epoch seconds, for what may be deleted."""
    table = ParquetTable(f"{location}/{MESSAGES}", messages_layout())
    done = [merged(spark, table, small) for small in merges(table.log.snapshot(), days, target_bytes)]
    moment = time.time() if now is None else now
    removed = _deleted(spark, table, before=moment - KEPT_S)
    table.log.forget(before=moment - LOG_KEPT_S)
    return Compacted(
        files_before=sum(each.files_before for each in done),
        files_after=sum(each.files_after for each in done),
        rows=sum(each.rows for each in done),
        removed=removed,
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

    def change(snapshot: Snapshot) -> Change | None:
        if any(file.path not in snapshot.files for file in small):
            return None  # another run was faster; ours is deleted as what killed attempts leave
        return Change(operation=OPTIMIZE, add=large, remove=small)

    rows_before, rows_after = sum(file.rows for file in small), sum(file.rows for file in large)
    if rows_before != rows_after:
        raise LogError(f"{len(small)} files of {rows_before} rows became {rows_after} rows: the table stays as it is")
    after = table.commit(change).files
    if any(file.path not in after for file in large):
        return Compacted()
    return Compacted(files_before=len(small), files_after=len(large), rows=rows_after)


def _deleted(spark: SparkSession, table: ParquetTable, *, before: float) -> int:
    """Files that lie there and are not of the table, nor were after `before`. Spark lists them on any store."""
    snapshot = table.log.snapshot()
    kept = {unquote(path) for path in snapshot.files}
    kept |= {unquote(path) for path, at_ms in snapshot.removed.items() if at_ms / 1000 >= before}
    lying = (
        spark.read.format("binaryFile")
        .option("recursiveFileLookup", "true")
        .option("pathGlobFilter", "*.parquet")
        .load(table.location)
        .where(F.col("modificationTime") < F.timestamp_seconds(F.lit(before)))
        .select("path")
    )
    found = [f"batch={row.path.rpartition('/batch=')[2]}" for row in lying.collect()]
    old = [name for name in found if name not in kept]
    open_store(table.location).remove(old)
    return len(old)
