"""Job *replay*: sends messages of a period to an exchange's ingress again, from tables or from retained segments.

Attribute `sluice-replayed`, the message's id, lets receivers recognise repeats. If Spark retries a task, a FIFO ingress
still takes each message once within SQS's five minutes, a standard one at least once. Messages that can't be sent
again, for example without room for the attribute, are skipped and counted, and one example is logged.
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

MAX_BATCH_ROWS = 10_000  # Spark's default limit for Arrow batches
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
    """Arguments of `replay`. Reads `tables` or `staging`; selects messages sent from `start` up to before `end`."""

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
    """The numbers of messages sent again, and of those that can't be sent."""

    replayed: int
    unsendable: int


def replay(spark: SparkSession, arguments: ReplayArguments) -> ReplayTotals:
    """Send the selected messages again. If the sink fails, some were sent; their ids make a second run safe."""
    if arguments.tables:
        table = open_table(arguments.table_format, arguments.tables, MESSAGES, messages_layout())
        last = arguments.end.date().isoformat()  # a partition's date is at most the day of sending
        rows = table.read(spark, lambda partition: partition["date"] <= last).where(F.col("date") <= last)
    else:  # messages that would be quarantined aren't replayed
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
    """Order rows by sending time: in one task if there is a rate limit, else each FIFO message group in one task."""
    if arguments.rate is not None:
        placed = rows.coalesce(1)
    elif arguments.queue_url.endswith(FIFO_SUFFIX):
        placed = rows.repartition("message_group_id")
    else:
        return rows
    return placed.sortWithinPartitions("sent_at", "sequence_number")


def _convert_rows(spark: SparkSession, rows: DataFrame, arguments: ReplayArguments) -> DataFrame:
    """Convert rows to sink rows, by RDDs: Arrow functions would need pandas on every worker."""
    convert = partial(convert_rows, exchange=arguments.exchange, rate=arguments.rate, queue_url=arguments.queue_url)
    return spark.createDataFrame(rows.rdd.mapPartitions(convert), _SINK_SCHEMA, verifySchema=False)


@contextmanager
def _limit_batch_rows(spark: SparkSession, rate: int | None) -> Iterator[None]:
    """Within the context, limit a batch that Spark passes to the sink to the rows of one second."""
    before = spark.conf.get(_BATCH_ROWS)
    spark.conf.set(_BATCH_ROWS, str(min(MAX_BATCH_ROWS, rate or MAX_BATCH_ROWS)))
    try:
        yield
    finally:
        spark.conf.set(_BATCH_ROWS, before)
