"""Job *replay*: reads a period's messages from tables or retained segments, and sends them to an exchange's ingress.

Attribute `sluice-replayed`, the message's id, lets receivers recognise repeats. If Spark retries a task within SQS's
five minutes, a FIFO ingress still takes each message once. A standard ingress takes each message at least once.
Messages that can't be sent again, for example because of the attribute's size, are skipped and counted; one is logged.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812  as everybody calls it
from sluice.message import FIFO_SUFFIX

from sluice_jobs.landing import classify_rows, messages_layout
from sluice_jobs.replayed_rows import convert_rows
from sluice_jobs.table_schemas import MESSAGES, REASON
from sluice_jobs.tables import open_table

log = logging.getLogger(__name__)

MAX_BATCH_ROWS = 10_000  # Spark's default number of rows in an Arrow batch
_BATCH_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
UNSENDABLE = "unsendable"
_SINK_SCHEMA = (
    "body string, attributes map<string, struct<type: string, string: string, binary: binary>>, "
    f"message_group_id string, message_deduplication_id string, trace_header string, {UNSENDABLE} string"
)
_SOURCE_COLUMNS = (
    "message_id", "body", "attributes", "message_group_id", "sequence_number", "sent_at", "trace_header",
    "routing_key", "origin_id",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayArguments:
    """Arguments of job *replay*: replays messages from `tables` or `staging`, sent from `start` until before `end`."""

    queue_url: str
    exchange: str
    start: datetime
    end: datetime
    tables: str | None = None
    table_format: str = "parquet"
    staging: str | None = None
    from_exchange: str | None = None
    rate: int | None = None
    region: str | None = None
    endpoint: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayTotals:
    """The number of messages that were sent again, and of messages that can't be sent."""

    replayed: int
    unsendable: int


def replay(spark: SparkSession, arguments: ReplayArguments) -> ReplayTotals:
    """Send the selected messages again. After a failure a second run repeats some, which receivers can recognise."""
    if arguments.tables:
        table = open_table(arguments.table_format, arguments.tables, MESSAGES, messages_layout())
        # A partition's date is the day of sending or earlier.
        last = arguments.end.date().isoformat()
        rows = table.read(spark, lambda partition: partition["date"] <= last).where(F.col("date") <= last)
    else:  # Messages that would be quarantined aren't replayed.
        received = spark.read.format("sqs").option("stagingLocation", arguments.staging).load()
        rows = classify_rows(received, late_days=0).where(F.col(REASON).isNull())
    rows = rows.where((F.col("sent_at") >= F.lit(arguments.start)) & (F.col("sent_at") < F.lit(arguments.end)))
    if arguments.from_exchange is not None:
        rows = rows.where(F.col("exchange") == arguments.from_exchange)
    sent = Observation()
    unsendable = F.col(UNSENDABLE)
    counted = _convert_rows(spark, _order_rows(rows.select(*_SOURCE_COLUMNS), arguments), arguments).observe(
        sent,
        F.count_if(unsendable.isNull()).alias("messages"),
        F.count(unsendable).alias("unsendable"),
        F.min(unsendable).alias("example"),
    )
    counted = counted.where(unsendable.isNull()).drop(UNSENDABLE)
    options = {"queueUrl": arguments.queue_url, "region": arguments.region, "endpoint": arguments.endpoint}
    sink_options = {name: value for name, value in options.items() if value is not None}
    writer = counted.write.format("sqs").mode("append").options(**sink_options)
    with _limit_batch_rows(spark, arguments.rate):
        writer.save()
    counts = sent.get
    if counts["unsendable"]:
        log.warning("%d messages can't be sent again, as %s", counts["unsendable"], counts["example"])
    return ReplayTotals(replayed=counts["messages"], unsendable=counts["unsendable"])


def _order_rows(rows: DataFrame, arguments: ReplayArguments) -> DataFrame:
    """Order rows by sending time. With a rate limit one task has all rows; else one task has all of a message group."""
    if arguments.rate is not None:
        placed = rows.coalesce(1)
    elif arguments.queue_url.endswith(FIFO_SUFFIX):
        placed = rows.repartition("message_group_id")
    else:
        return rows
    return placed.sortWithinPartitions("sent_at", "sequence_number")


def _convert_rows(spark: SparkSession, rows: DataFrame, arguments: ReplayArguments) -> DataFrame:
    """Convert rows to the sink's rows. Uses RDDs, because Spark's Arrow functions would need pandas on every worker."""
    convert = partial(convert_rows, exchange=arguments.exchange, rate=arguments.rate, queue_url=arguments.queue_url)
    return spark.createDataFrame(rows.rdd.mapPartitions(convert), _SINK_SCHEMA, verifySchema=False)


@contextmanager
def _limit_batch_rows(spark: SparkSession, rate: int | None) -> Iterator[None]:
    """Limit the Arrow batches that Spark passes to the sink within the context to the rows of one second."""
    before = spark.conf.get(_BATCH_ROWS)
    spark.conf.set(_BATCH_ROWS, str(min(MAX_BATCH_ROWS, rate or MAX_BATCH_ROWS)))
    try:
        yield
    finally:
        spark.conf.set(_BATCH_ROWS, before)
