"""A Spark stream of the rows added to a Parquet table with a log. Delta and Iceberg have their own stream sources.

An offset is a version of the log. A batch reads the files that its versions added, except for files that only hold
moved rows, as compaction writes them.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from sluice_jobs.table_log import DataFile, TableLog, build_offset, parse_offset
from sluice_spark.errors import InvalidOption
from sluice_spark.log.store import open_store

NAME = "sluice-table"
SCHEMA = "message_id string, body string, happened_at timestamp, date date, exchange string, late boolean"
_STORED = ("message_id", "body", "happened_at")
_NO_COLUMNS = '{"type": "struct", "fields": []}'  # declares none, as a stream only reads the table
_TIME = pa.timestamp("us", tz="UTC")


class FilePartition(InputPartition):
    """One file of the table, for one task."""

    def __init__(self, location: str, file: DataFile) -> None:
        super().__init__(None)
        self.location, self.file = location, file


class TableSource(DataSource):
    """Format `sluice-table`: option `path`, the table's location. Streams only."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return NAME

    def schema(self) -> str:
        """Return the columns of table `messages` that statistics need."""
        return SCHEMA

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802, ARG002  Spark's name and call
        """Return a reader that starts at the table's first version. Raises InvalidOption without a path."""
        if "path" not in self.options:
            raise InvalidOption("path", "missing: the table's location")
        return TableStreamReader(self.options["path"])


class TableStreamReader(DataSourceStreamReader):
    """Reads the files that versions of the log added. Keeps no state but the location."""

    def __init__(self, location: str) -> None:
        self._location = location

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  Spark's name
        """Return the offset before the first version."""
        return build_offset(-1)

    def latestOffset(self) -> dict[str, Any]:  # noqa: N802  Spark's name
        """Return the offset of the newest version. Raises as TableLog does."""
        return build_offset(self._log().version)

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> Sequence[InputPartition]:
        """Return a partition for each file; at least one, as Spark 4.0 and 4.1 fail on an empty batch."""
        added = self._log().list_added_files(after=parse_offset(start), until=parse_offset(end))
        return [FilePartition(self._location, file) for file in added] or [InputPartition(None)]

    def commit(self, end: Mapping[str, Any]) -> None:
        """Do nothing: the table's own clean-up shortens the log."""

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the file's rows. Raises SegmentMissing if the file was deleted."""
        if not isinstance(partition, FilePartition):
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
