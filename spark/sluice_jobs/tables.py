"""Tables that take each batch of a query once: Parquet with Delta Lake's log, Delta by Spark, Iceberg.

Reading and appending; what is in a row is `landing`'s to say.

Spark's file sink isn't used: its `_spark_metadata` is unknown to other readers, and a table with it can't be compacted.
Parquet files go to a folder that is new for each attempt, and are the table's once a version of the log names them: a
batch that was killed on the way leaves files that no reader sees. Delta skips a batch that it has by `txnAppId` and
`txnVersion`. Iceberg has the batch's number in the snapshot that it made; it is looked up before.
"""

import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  as everybody calls it
from pyspark.sql.types import StructType

from sluice_jobs.table_log import DataFile, TableLog, Transaction
from sluice_jobs.table_schemas import evolved

Keep = Callable[[Mapping[str, str]], bool]  # of a partition's values, by column
_WRITTEN = {
    # Values that are hardly ever repeated: a dictionary of them would cost CPU and be given up
    **{f"parquet.enable.dictionary#{name}": "false" for name in ("body", "message_id", "origin_id")},
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",  # the log says what is written
}
QUERY_PROPERTY, BATCH_PROPERTY = "sluice.query", "sluice.batch"  # of an Iceberg snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A table's columns, partition columns among them and last."""

    schema: StructType
    partition_columns: Sequence[str]


class Table(Protocol):
    """What the jobs need of a table."""

    def append(self, frame: DataFrame, transaction: Transaction) -> bool:
        """Add the rows, once for each transaction; False where it had been. Durable when it returns."""

    def read(self, spark: SparkSession, keep: Keep = lambda _: True) -> DataFrame:
        """Return the rows at the moment of the call. `keep` is a hint: rows of other partitions may come too."""


def open_table(table_format: str, location: str, name: str, layout: Layout) -> Table:
    """Table `name` at the location: a folder of it, or with iceberg a table of that namespace."""
    if table_format == "parquet":
        return ParquetTable(f"{location}/{name}", layout)
    if table_format == "delta":
        return DeltaTable(f"{location}/{name}", layout)
    return IcebergTable(f"{location}.{name}", layout)


class ParquetTable:
    """Parquet files, and Delta Lake's log beside them: see `table_log`."""

    def __init__(self, location: str, layout: Layout) -> None:
        self.location, self._layout = location, layout
        columns = layout.schema.json()
        self.log = TableLog(location, schema=columns, partition_columns=layout.partition_columns)

    def append(self, frame: DataFrame, transaction: Transaction) -> bool:
        """Write the files first, then the version of the log that names them. Raises LogError, UnknownFormat."""
        if self.log.has(transaction):
            return False
        rows = frame.select(*self._layout.schema.names)
        return self.log.append(self.write(rows, f"{transaction.version:012d}"), transaction)

    def read(self, spark: SparkSession, keep: Keep = lambda _: True) -> DataFrame:
        """Read the files of the newest version, but of partitions that `keep` refuses. Raises LogError."""
        return self.rows_of(spark, [file for file in self.log.files() if keep(file.partition)])

    def rows_of(self, spark: SparkSession, files: Sequence[DataFile]) -> DataFrame:
        """Read the rows of these files, with the table's columns."""
        layout = self._layout.schema.json()  # whose columns the table may not have yet
        schema = StructType.fromJson(json.loads(evolved(self.log.schema or layout, layout, table=self.location)))
        if not files:
            return spark.createDataFrame([], schema)
        reader = spark.read.schema(schema).option("basePath", self.location)
        reader = reader.option("ignoreInvalidPartitionPaths", "true")  # attempts' folders
        return reader.parquet(*[f"{self.location}/{file.name}" for file in files]).select(*schema.names)

    def write(self, frame: DataFrame, label: str) -> Sequence[DataFile]:
        """Files with the rows, in a new folder: not yet of the table. One that failed half-way writes none of these."""
        folder = f"{label}-{uuid.uuid4().hex[:12]}"  # without a `=`, in which readers would see a partition
        writer = frame.write.partitionBy(*self._layout.partition_columns)
        writer.options(**_WRITTEN).parquet(f"{self.location}/{folder}")
        return self.log.written(folder)


class DeltaTable:
    """By Delta Lake, whose jars the cluster has."""

    def __init__(self, location: str, layout: Layout) -> None:
        self.location, self._layout = location, layout

    def append(self, frame: DataFrame, transaction: Transaction) -> bool:
        """Add by Delta, which skips a batch that it has; its history is asked first, as Delta doesn't say so."""
        spark = frame.sparkSession
        spark.sql(self.create_statement())
        named = f"{transaction.app_id}/{transaction.version}"
        if spark.sql(f"DESCRIBE HISTORY {self.identifier}").where(F.col("userMetadata") == named).head(1):
            return False
        writer = frame.select(*self._layout.schema.names).write.format("delta").mode("append")
        writer = writer.option("txnAppId", transaction.app_id).option("txnVersion", transaction.version)
        writer.option("userMetadata", named).save(self.location)
        return True

    def read(self, spark: SparkSession, keep: Keep = lambda _: True) -> DataFrame:  # noqa: ARG002  Spark prunes
        """Read the table's newest version, all of it: `keep` is a hint, and Spark prunes by itself."""
        return spark.read.format("delta").load(self.location)

    @property
    def identifier(self) -> str:
        """What SQL calls a table that is at a location."""
        return f"delta.`{self.location}`"

    def create_statement(self) -> str:
        """Say in SQL to make the table where there is none."""
        return _create_statement(self.identifier, self._layout, "delta")


class IcebergTable:
    """By Iceberg, in a catalog that the session has. One query writes at a time: the staged log sees to that."""

    def __init__(self, identifier: str, layout: Layout) -> None:
        self.identifier, self._layout = identifier, layout

    def append(self, frame: DataFrame, transaction: Transaction) -> bool:
        """Add unless a snapshot says that it was done: the last days' have to be kept, as they are by default."""
        spark = frame.sparkSession
        spark.sql(self.create_statement())
        if spark.sql(self.lookup_statement(transaction)).head(1):
            return False
        writer = frame.select(*self._layout.schema.names).writeTo(self.identifier)
        writer = writer.option("fanout-enabled", "true")  # else rows would have to be sorted by partition
        writer = writer.option(f"snapshot-property.{QUERY_PROPERTY}", transaction.app_id)
        writer.option(f"snapshot-property.{BATCH_PROPERTY}", str(transaction.version)).append()
        return True

    def read(self, spark: SparkSession, keep: Keep = lambda _: True) -> DataFrame:  # noqa: ARG002  Spark prunes
        """Read the table's newest snapshot, all of it: `keep` is a hint, and Spark prunes by itself."""
        return spark.table(self.identifier)

    def create_statement(self) -> str:
        """Say in SQL to make the table where there is none."""
        return _create_statement(self.identifier, self._layout, "iceberg")

    def lookup_statement(self, transaction: Transaction) -> str:
        """Ask in SQL for a snapshot made by the transaction, or by a later one of the same query."""
        uuid.UUID(transaction.app_id)  # it goes into SQL: a query's id is one
        return (
            f"SELECT 1 FROM {self.identifier}.snapshots WHERE summary['{QUERY_PROPERTY}'] = '{transaction.app_id}' "  # noqa: S608  an id and a number of ours
            f"AND CAST(summary['{BATCH_PROPERTY}'] AS BIGINT) >= {int(transaction.version)} LIMIT 1"
        )


def _create_statement(identifier: str, layout: Layout, provider: str) -> str:
    columns = ", ".join(f"`{each.name}` {each.dataType.simpleString()}" for each in layout.schema.fields)
    partition = ", ".join(f"`{name}`" for name in layout.partition_columns)
    return f"CREATE TABLE IF NOT EXISTS {identifier} ({columns}) USING {provider} PARTITIONED BY ({partition})"
