"""An Amazon SQS source for Spark Structured Streaming. Usage: `register(spark)`, `spark.readStream.format("sqs")`."""

from typing import TYPE_CHECKING

from sluice_spark.source.drain import DrainResult, drain

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["DrainResult", "drain", "register"]


def register(spark: "SparkSession") -> None:
    """Register the format `sqs` with the session."""
    from sluice_spark.data_source import SqsDataSource  # noqa: PLC0415  the client and the log are usable without PySpark

    spark.dataSource.register(SqsDataSource)
