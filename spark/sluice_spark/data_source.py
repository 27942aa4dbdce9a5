"""The data source of format `sqs`: creates the readers and writers for Spark."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from sluice_spark.errors import InvalidColumn, InvalidOption
from sluice_spark.log.segments import SPARK_SCHEMA
from sluice_spark.options import Options, parse_options
from sluice_spark.sink.writers import SqsStreamWriter, SqsWriter, check_write
from sluice_spark.source.readers import SqsReader, SqsStreamReader


@contextmanager
def hide_stack_traces() -> Iterator[None]:
    """Make Spark report errors that the user must correct as text only, without a stack trace of this package.

    Spark ends a worker after an error, so this environment variable affects no other code of the user.
    """
    try:
        yield
    except (InvalidOption, InvalidColumn):
        worker = getattr(sys.modules["__main__"], "__spec__", None)
        if worker and worker.name.startswith("pyspark."):
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise


class SqsDataSource(DataSource):
    """Format `sqs`: bounded and streaming reads and writes. Register with `sluice_spark.register(spark)`.

    Every method raises InvalidOption for invalid options; writers raise InvalidColumn too.
    """

    @classmethod
    def name(cls) -> str:
        """Return the format's name, `sqs`."""
        return "sqs"

    @hide_stack_traces()
    def schema(self) -> str:
        """Return the source's columns as DDL. Spark calls this method first, so this method also checks the options."""
        return ", ".join([SPARK_SCHEMA, *parse_options(self.options).bodies.columns])

    @hide_stack_traces()
    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a bounded reader: of the queues, or of the retained segments if option `queueUrl` isn't set."""
        options = parse_options(self.options)
        if options.after_commit:
            raise InvalidOption("deleteMode", "a batch read has no commit: staged, or none")
        check_schema(options, schema)
        return SqsReader(options)

    @hide_stack_traces()
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  Spark's name
        """Return a streaming reader of the queues."""
        options = parse_options(self.options)
        if not options.queue_urls:
            raise InvalidOption("queueUrl", "missing: a stream needs at least one")
        check_schema(options, schema)
        return SqsStreamReader(options)

    @hide_stack_traces()
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: FBT001  Spark's signature
        """Return a writer that sends a batch DataFrame to queues."""
        return SqsWriter(check_write(self.options, schema, overwrite=overwrite))

    @hide_stack_traces()
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: FBT001, N802  Spark's
        """Return a writer that sends a streaming DataFrame to queues."""
        return SqsStreamWriter(check_write(self.options, schema, overwrite=overwrite))


def check_schema(options: Options, schema: StructType) -> None:
    """Check a schema given by the user, before any message is received. Raises InvalidOption for a wrong schema."""
    columns = ", ".join([SPARK_SCHEMA, *options.bodies.columns])
    types = ",".join(f"{column.name}{column.dataType.simpleString()}" for column in schema.fields)
    if types.replace(":", "") != columns.replace(":", "").replace(" ", ""):  # Spark omits spaces in types.
        raise InvalidOption("schema", f"the columns are {columns}; `decode` gives a body a schema")
