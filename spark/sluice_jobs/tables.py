"""Tables that take each batch of a query once: Parquet with Delta Lake's log, Spark's Delta tables, and Iceberg.

This module reads and appends rows; `landing` defines their columns.

Spark's file sink isn't used: other readers ignore its folder `_spark_metadata`, and its tables can't be compacted. Each
attempt writes Parquet files to a new folder. These files belong to the table once a version of the log lists them, so a
killed attempt leaves only files that no reader sees. Delta skips a repeated batch by `txnAppId` and `txnVersion`. For
Iceberg the batch's number is a snapshot property, which is looked up before a batch is written.
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
from sluice_jobs.table_schemas import merge_schemas

PartitionFilter = Callable[[Mapping[str, str]], bool]  # Its argument holds a partition's values by column.
_PARQUET_OPTIONS = {
    # The values of these columns rarely repeat, so Parquet would spend CPU on a dictionary and then drop it.
    **{f"parquet.enable.dictionary#{name}": "false" for name in ("body", "message_id", "origin_id")},
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",  # No marker file is needed.
}
QUERY_PROPERTY, BATCH_PROPERTY = "sluice.query", "sluice.batch"  # names of snapshot properties in Iceberg


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A table's columns, with the partition columns last."""

    schema: StructType
    partition_columns: Sequence[str]


class Table(Protocol):
    """A table that jobs append to and read."""

    def append(self, frame: DataFrame, transaction: Transaction) -> bool:
        """Add the rows durably, once for each transaction. Returns False if an earlier attempt has added the rows."""

    def read(self, spark: SparkSession, keep: PartitionFilter = lambda _: True) -> DataFrame:
        """Return the table's rows at the time of the call. `keep` is a hint: other partitions' rows may be included."""


def open_table(table_format: str, location: str, name: str, layout: Layout) -> Table:
    """Open table `name` at the location: a folder below it, or for Iceberg a table of that namespace."""
    if table_format == "parquet":
        return ParquetTable(f"{location}/{name}", layout)
    if table_format == "delta":
        return DeltaTable(f"{location}/{name}", layout)
    return IcebergTable(f"{location}.{name}", layout)


class ParquetTable:
    """A table of Parquet files with a Delta log, which module `table_log` writes."""

    def __init__(self, location: str, layout: Layout) -> None:
        self.location, self._layout = location, layout
        columns = layout.schema.json()
        self.log = TableLog(location, schema=columns, partition_columns=layout.partition_columns)

    def append(self, frame: DataFrame, transaction: Transaction) -> bool:
        """Write the rows to files, and publish a log version with these files. Raises LogError, UnknownFormat."""
        if self.log.has_transaction(transaction):
            return False
        rows = frame.select(*self._layout.schema.names)
        return self.log.append(self.write(rows, f"{transaction.version:012d}"), transaction)

    def read(self, spark: SparkSession, keep: PartitionFilter = lambda _: True) -> DataFrame:
        """Read the files of the newest version in the partitions that `keep` accepts. Raises LogError."""
        return self.read_files(spark, [file for file in self.log.files() if keep(file.partition)])

    def read_files(self, spark: SparkSession, files: Sequence[DataFile]) -> DataFrame:
        """Read the rows of these files, with the table's columns."""
        layout = self._layout.schema.json()  # Files may have columns that the table lacks.
        schema = StructType.fromJson(json.loads(merge_schemas(self.log.schema or layout, layout, table=self.location)))
        if not files:
            return spark.createDataFrame([], schema)
        reader = spark.read.schema(schema).option("basePath", self.location)
        reader = reader.option("ignoreInvalidPartitionPaths", "true")  # Folders of attempts aren't partitions.
        return reader.parquet(*[f"{self.location}/{file.name}" for file in files]).select(*schema.names)

    def check(self, frame: DataFrame) -> None:
        """Write the rows to files that no version lists; raises if that fails. Compaction deletes the files later."""
        self.write(frame.select(*self._layout.schema.names), "checked")

    def write(self, frame: DataFrame, label: str) -> Sequence[DataFile]:
        """Write the rows to files in a new folder, and describe the files, which the log doesn't list yet."""
        folder = f"{label}-{uuid.uuid4().hex[:12]}"  # Readers would take a name with `=` for a partition.
        writer = frame.write.partitionBy(*self._layout.partition_columns)
        writer.options(**_PARQUET_OPTIONS).parquet(f"{self.location}/{folder}")
        return self.log.list_written_files(folder)


class DeltaTable:
    """A table written by Delta Lake's own jars, which the cluster provides."""

    def __init__(self, location: str, layout: Layout) -> None:
        self.location, self._layout = location, layout

    def append(self, frame: DataFrame, transaction: Transaction) -> bool:
        """Append the rows unless the table's history has the batch. Delta doesn't report skipped batches."""
        spark = frame.sparkSession
        spark.sql(self.create_statement())
        named = f"{transaction.app_id}/{transaction.version}"
        if spark.sql(f"DESCRIBE HISTORY {self.identifier}").where(F.col("userMetadata") == named).head(1):
            return False
        writer = frame.select(*self._layout.schema.names).write.format("delta").mode("append")
        writer = writer.option("txnAppId", transaction.app_id).option("txnVersion", transaction.version)
        writer.option("userMetadata", named).save(self.location)
        return True

    def read(self, spark: SparkSession, keep: PartitionFilter = lambda _: True) -> DataFrame:  # noqa: ARG002  Spark prunes
        """Read the table's newest version. `keep` is ignored, because Spark prunes the partitions by itself."""
        return spark.read.format("delta").load(self.location)

    @property
    def identifier(self) -> str:
        """The table's name in SQL, which contains its location."""
        return f"delta.`{self.location}`"

    def create_statement(self) -> str:
        """Return the SQL statement that creates the table if it doesn't exist."""
        return _create_statement(self.identifier, self._layout, "delta")


class IcebergTable:
    """An Iceberg table in a catalog of the session. The staged log ensures that only one query writes at a time."""

    def __init__(self, identifier: str, layout: Layout) -> None:
        self.identifier, self._layout = identifier, layout

    def append(self, frame: DataFrame, transaction: Transaction) -> bool:
        """Append the rows unless a snapshot has the batch. Snapshots must be kept for days, as by Iceberg's default."""
        spark = frame.sparkSession
        spark.sql(self.create_statement())
        if spark.sql(self.build_lookup_statement(transaction)).head(1):
            return False
        writer = frame.select(*self._layout.schema.names).writeTo(self.identifier)
        writer = writer.option("fanout-enabled", "true")  # Without this option rows must be sorted by partition.
        writer = writer.option(f"snapshot-property.{QUERY_PROPERTY}", transaction.app_id)
        writer.option(f"snapshot-property.{BATCH_PROPERTY}", str(transaction.version)).append()
        return True

    def read(self, spark: SparkSession, keep: PartitionFilter = lambda _: True) -> DataFrame:  # noqa: ARG002  Spark prunes
        """Read the table's newest snapshot. `keep` is ignored, because Spark prunes the partitions by itself."""
        return spark.table(self.identifier)

    def create_statement(self) -> str:
        """Return the SQL statement that creates the table if it doesn't exist."""
        return _create_statement(self.identifier, self._layout, "iceberg")

    def build_lookup_statement(self, transaction: Transaction) -> str:
        """Return the SQL query for a snapshot of this transaction, or of a later one of its streaming query."""
        uuid.UUID(transaction.app_id)  # ValueError for other text: the id becomes part of SQL
        return (
            f"SELECT 1 FROM {self.identifier}.snapshots WHERE summary['{QUERY_PROPERTY}'] = '{transaction.app_id}' "  # noqa: S608  an id and a number of ours
            f"AND CAST(summary['{BATCH_PROPERTY}'] AS BIGINT) >= {int(transaction.version)} LIMIT 1"
        )


def _create_statement(identifier: str, layout: Layout, provider: str) -> str:
    columns = ", ".join(f"`{field.name}` {field.dataType.simpleString()}" for field in layout.schema.fields)
    partition = ", ".join(f"`{name}`" for name in layout.partition_columns)
    return f"CREATE TABLE IF NOT EXISTS {identifier} ({columns}) USING {provider} PARTITIONED BY ({partition})"
