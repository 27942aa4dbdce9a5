"""An Amazon SQS source for Spark Structured Streaming. `register(spark)`, then `spark.readStream.format("sqs")`."""

from typing import TYPE_CHECKING

from sluice_spark.source.drain import Drained, drain

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Drained", "drain", "register"]


def register(spark: "SparkSession") -> None:
    """Make the format `sqs` known to the session."""
    from sluice_spark.data_source import SqsDataSource  # noqa: PLC0415  the client and the log are usable without PySpark

    spark.dataSource.register(SqsDataSource)
