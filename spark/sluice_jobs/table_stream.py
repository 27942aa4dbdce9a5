"""A stream of what is added to a table of ours: Parquet files with their log. For formats with jars Spark has its own.

An offset names a version of the log. A batch's files are those that its versions added; files that only hold the rows
of others again, as compaction writes them, aren't read.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from sluice_jobs.table_log import DataFile, TableLog, offset_at, version_of
from sluice_spark.errors import InvalidOption
from sluice_spark.log.store import open_store

NAME = "sluice-table"
SCHEMA = "message_id string, body string, happened_at timestamp, date date, exchange string, late boolean"
_STORED = ("message_id", "body", "happened_at")
_NO_COLUMNS = '{"type": "struct", "fields": []}'  # it is read, and never made
_TIME = pa.timestamp("us", tz="UTC")


class File(InputPartition):
    """One file of the table, for one task."""

    def __init__(self, location: str, file: DataFile) -> None:
        super().__init__(None)
        self.location, self.file = location, file


class TableSource(DataSource):
    """Format `sluice-table`: option `path`, the table's location. Streams only."""

    @classmethod
    def name(cls) -> str:
        """Say the format's name."""
        return NAME

    def schema(self) -> str:
        """Say the columns, some of table `messages`: what tells which event a row is."""
        return SCHEMA

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802, ARG002  Spark's name and call
        """Read from the table's beginning on. Raises InvalidOption without a path."""
        if "path" not in self.options:
            raise InvalidOption("path", "missing: the table's location")
        return TableStreamReader(self.options["path"])


class TableStreamReader(DataSourceStreamReader):
    """Nothing is kept between calls but the location."""

    def __init__(self, location: str) -> None:
        self._location = location

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  Spark's name
        """Name the place before the first version."""
        return offset_at(-1)

    def latestOffset(self) -> dict[str, Any]:  # noqa: N802  Spark's name
        """Name the newest version. Raises what the table's log raises."""
        return offset_at(self._log().version)

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> Sequence[InputPartition]:
        """Make a task of each file; at least one, as Spark 4.0 and 4.1 fail on a batch without any."""
        added = self._log().added(after=version_of(start), until=version_of(end))
        return [File(self._location, file) for file in added] or [InputPartition(None)]

    def commit(self, end: Mapping[str, Any]) -> None:
        """Leave the log as it is: it isn't ours to shorten."""

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the file's rows. Raises SegmentMissing where it is gone."""
        if not isinstance(partition, File):
            return
        content = open_store(partition.location).read(partition.file.name)
        for batch in pq.ParquetFile(pa.BufferReader(content)).iter_batches(columns=list(_STORED)):
            yield _with_partition(batch, partition.file.partition)

    def _log(self) -> TableLog:
        return TableLog(self._location, schema=_NO_COLUMNS, partition_columns=())


def _with_partition(batch: pa.RecordBatch, partition: Mapping[str, str]) -> pa.RecordBatch:
    day = date.fromisoformat(partition["date"])
    columns = [
        batch.column("message_id").cast(pa.string()),
        batch.column("body").cast(pa.string()),
        batch.column("happened_at").cast(_TIME),
        pa.repeat(pa.scalar(day, pa.date32()), batch.num_rows),
        pa.repeat(pa.scalar(partition["exchange"], pa.string()), batch.num_rows),
        pa.repeat(pa.scalar(partition["late"] == "true", pa.bool_()), batch.num_rows),
    ]
    return pa.RecordBatch.from_arrays(columns, names=["message_id", "body", "happened_at", "date", "exchange", "late"])
