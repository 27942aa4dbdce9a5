"""A stream of what is added to a table of ours: Parquet files with their log. For formats with jars Spark has its own.

An offset is a version of the log. A batch's files are those that its versions added; files that only hold the rows of
others again, as compaction writes them, aren't read.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from sluice_jobs.table_log import DataFile, TableLog
from sluice_spark.errors import InvalidOption
from sluice_spark.log.store import open_store

NAME = "sluice-table"
SCHEMA = "message_id string, body string, happened_at timestamp, date date, exchange string, late boolean"
_STORED = ("message_id", "body", "happened_at")
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
        """The format's name."""
        return NAME

    def schema(self) -> str:
        """Some of table `messages`: what says which event a row is."""
        return SCHEMA

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802, ARG002  Spark's name and call
        """Reads from the table's beginning on."""
        if "path" not in self.options:
            raise InvalidOption("path", "missing: the table's location")
        return TableStreamReader(self.options["path"])


class TableStreamReader(DataSourceStreamReader):
    """Nothing is kept between calls but the location."""

    def __init__(self, location: str) -> None:
        self._location = location

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  Spark's name
        """Before the first version."""
        return {"version": -1}

    def latestOffset(self) -> dict[str, Any]:  # noqa: N802  Spark's name
        """The newest version."""
        return {"version": self._log().snapshot().version}

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> Sequence[InputPartition]:
        """A file each; at least one, as Spark 4.0 and 4.1 fail on a batch without any."""
        added = self._log().added(after=start["version"], until=end["version"])
        return [File(self._location, file) for file in added] or [InputPartition(None)]

    def commit(self, end: Mapping[str, Any]) -> None:
        """The log isn't ours to shorten."""

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The file's rows."""
        if not isinstance(partition, File):
            return
        content = open_store(partition.location).read(unquote(partition.file.path))
        for batch in pq.ParquetFile(pa.BufferReader(content)).iter_batches(columns=list(_STORED)):
            yield _with_partition(batch, partition.file.partition)

    def _log(self) -> TableLog:
        return TableLog(open_store(self._location))


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
