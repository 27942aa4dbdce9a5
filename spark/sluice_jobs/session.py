"""The Spark session of a job: EMR Serverless gives one its master and resources, a bare machine gets a local one."""

import os
import sys
from collections.abc import Mapping

from pyspark import SparkContext
from pyspark.sql import SparkSession

from sluice_spark import register

LOCAL_MASTER = "local[*]"
_LOCAL: Mapping[str, str] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
}
# What the tables rely on, wherever a job runs
SETTINGS: Mapping[str, str] = {
    "spark.sql.session.timeZone": "UTC",  # a partition `date` is a day of UTC
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",  # INT96 is Spark's and Hive's alone
    "spark.sql.maxConcurrentOutputFileWriters": "64",  # a batch of few partitions isn't sorted by them
    "spark.sql.sources.partitionColumnTypeInference.enabled": "false",  # exchange `1` is a text
}


def job_session(name: str) -> SparkSession:
    """Open the session, with the `sqs` format known. Where nothing says what master to use, this machine is."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name)
    # Whether spark-submit started this program, or the environment says what it would
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ or "--master" in os.environ.get("PYSPARK_SUBMIT_ARGS", "")
    if not submitted:
        builder = builder.master(LOCAL_MASTER)
        for option, value in _LOCAL.items():
            builder = builder.config(option, value)
    return prepared(builder.getOrCreate())


def abandoned() -> None:
    """End the JVM that PySpark has started for us. Spark isn't asked: we may have been amid a call to it."""
    process = getattr(SparkContext._gateway, "proc", None)  # noqa: SLF001  PySpark offers no other way to its process
    if process is not None:  # else it has started us, as spark-submit does, and ends with us
        process.terminate()
        process.wait()


def prepared(spark: SparkSession) -> SparkSession:
    """Make a session that is there fit for the jobs."""
    for option, value in SETTINGS.items():
        spark.conf.set(option, value)
    register(spark)
    return spark
