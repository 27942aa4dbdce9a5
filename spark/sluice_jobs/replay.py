"""Job *replay*: sends messages of a period to an exchange's ingress again, from tables or from retained segments.

Attribute `sluice-replayed`, the message's id, lets receivers recognise repeats. If Spark retries a task, a FIFO ingress
still takes each message once within SQS's five minutes, a standard one at least once. Messages that can't be sent
again, for example without room for the attribute, are skipped and counted, and one example is logged.
"""

import hashlib
import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

from pyspark.sql import DataFrame, Observation, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812  as everybody calls it
from sluice.errors import Malformed, TooLarge
from sluice.federation.matching.metadata import ATTRIBUTE, Metadata, OpenedAttributes, open_attributes, seal_attributes
from sluice.message import Value

from sluice_jobs.landing import classify_rows, messages_layout
from sluice_jobs.table_schemas import MESSAGES, REASON
from sluice_jobs.tables import open_table
from sluice_spark.sink.outgoing import DeduplicationIds, RowPosition, UnsentRow, WriteContext, build_message

log = logging.getLogger(__name__)


FIFO_SUFFIX = ".fifo"
PARTS_PER_SECOND = 4  # a rate limit sleeps this often per second
MAX_BATCH_ROWS = 10_000  # Spark's default, of Arrow batches
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

Message = TypeVar("Message")
# The fields of _SINK_SCHEMA, in order. A row for an unsendable message has only the last field: id and reason.
SinkRow = tuple[Any, ...]


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
    exchange, rate, queue_url = arguments.exchange, arguments.rate, arguments.queue_url

    def convert(source_rows: Iterable[Row]) -> Iterator[SinkRow]:
        sink_rows = (_build_sink_row(row.asDict(recursive=True), exchange, queue_url) for row in source_rows)
        return sink_rows if rate is None else limit_rate(sink_rows, rate)

    return spark.createDataFrame(rows.rdd.mapPartitions(convert), _SINK_SCHEMA, verifySchema=False)


def _build_sink_row(row: Mapping[str, Any], exchange: str, queue_url: str) -> SinkRow:
    """Build the sink's row for a message; a message that the sink would refuse becomes an unsendable row.

    A standard queue gets no deduplication id, and no message group that the message didn't have.
    """
    fifo = queue_url.endswith(FIFO_SUFFIX)
    try:
        message = build_replayed_message(row, exchange)
    except (TooLarge, ValueError) as error:
        return _mark_unsendable(row, str(error))
    fields = {
        "body": row["body"],
        "attributes": message.attributes,
        "message_group_id": message.group_id if fifo else row["message_group_id"],
        "message_deduplication_id": message.deduplication_id if fifo else None,
        "trace_header": row["trace_header"],
    }
    checked = build_message(fields, RowPosition(0, 0), WriteContext(queue_urls=(queue_url,), ids=DeduplicationIds("")))
    return _mark_unsendable(row, checked.why) if isinstance(checked, UnsentRow) else (*fields.values(), None)


def _mark_unsendable(row: Mapping[str, Any], why: str) -> SinkRow:
    return (None,) * 5 + (f"{row['message_id']}: {why}",)


def limit_rate(messages: Iterable[Message], rate: int) -> Iterator[Message]:
    """Yield the messages, on average at most `rate` per second since the first."""
    size = max(1, rate // PARTS_PER_SECOND)
    started = time.monotonic()
    for index, message in enumerate(messages):
        if index % size == 0:
            time.sleep(max(0.0, started + index / rate - time.monotonic()))
        yield message


@contextmanager
def _limit_batch_rows(spark: SparkSession, rate: int | None) -> Iterator[None]:
    """Within the context, limit a batch that Spark passes to the sink to the rows of one second."""
    before = spark.conf.get(_BATCH_ROWS)
    spark.conf.set(_BATCH_ROWS, str(min(MAX_BATCH_ROWS, rate or MAX_BATCH_ROWS)))
    try:
        yield
    finally:
        spark.conf.set(_BATCH_ROWS, before)


ID_ATTRIBUTE = "sluice-replayed"
_GROUP_CHARACTERS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedMessage:
    """A message to be sent again: attributes with the source's fields `type`, `string` and `binary`, and ids."""

    attributes: Mapping[str, Mapping[str, Any]]
    group_id: str
    deduplication_id: str


def build_replayed_message(row: Mapping[str, Any], exchange: str) -> ReplayedMessage:
    """Build the attributes and ids to send a message again. Raises TooLarge if the metadata doesn't fit.

    `row` has `message_id`, `body`, `attributes` and `message_group_id` as received, `routing_key` and `origin_id` as
    landed. The replay id is the message's id at its first exchange, else its SQS id, so it is the same at every replay.
    """
    attributes = {
        name: Value(
            attribute["type"], attribute["string"] if attribute["binary"] is None else bytes(attribute["binary"])
        )
        for name, attribute in (row["attributes"] or {}).items()
    }
    try:
        opened = open_attributes(attributes)
    except Malformed:  # only possible in tables that another program wrote
        user = {name: value for name, value in attributes.items() if name != ATTRIBUTE}
        opened = OpenedAttributes(attributes=user, metadata=None)
    known_as, key, claimed = row["origin_id"] or row["message_id"], row["routing_key"] or "", opened.metadata
    metadata = Metadata(
        exchange=exchange,
        key=key,
        message_id=claimed.message_id if claimed else None,
        headers=claimed.headers if claimed else {},
    )
    sealed = seal_attributes(row["body"], {**opened.attributes, ID_ATTRIBUTE: Value("String", known_as)}, metadata)
    group_id = row["message_group_id"] or hashlib.sha256(f"{exchange}\0{key}".encode()).hexdigest()[:_GROUP_CHARACTERS]
    return ReplayedMessage(
        attributes={
            name: {
                "type": value.data_type,
                "string": value.text,
                "binary": value.content if isinstance(value.content, bytes) else None,
            }
            for name, value in sealed.items()
        },
        group_id=group_id,
        deduplication_id=hashlib.sha256(f"{exchange}\0{known_as}".encode()).hexdigest(),
    )
