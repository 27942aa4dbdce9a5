"""*replay*: what was sent in a span of time goes back to an exchange's ingress, from tables or from retained segments.

Receivers know a message again by attribute `sluice-replayed`, its id. A FIFO ingress takes each once within SQS's five
minutes, however often a task is tried; a standard one at least once. A message that can't be sent again, as one that
has no room for the attribute, is left out, counted and named: the others go.
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
from sluice.federation.matching.metadata import ATTRIBUTE, Metadata, Opened, open_attributes, seal
from sluice.message import Value

from sluice_jobs.landing import classified, messages_layout
from sluice_jobs.table_schemas import MESSAGES, REASON
from sluice_jobs.tables import open_table
from sluice_spark.sink.outgoing import Addressing, RowPosition, Unsent, outgoing

log = logging.getLogger(__name__)


FIFO_SUFFIX = ".fifo"
PARTS_PER_SECOND = 4  # how evenly a rate is kept
MAX_BATCH_ROWS = 10_000  # Spark's default, of Arrow batches
_BATCH_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
UNSENDABLE = "unsendable"
_SENT = (
    "body string, attributes map<string, struct<type: string, string: string, binary: binary>>, "
    f"message_group_id string, message_deduplication_id string, trace_header string, {UNSENDABLE} string"
)
_READ = (
    "message_id", "body", "attributes", "message_group_id", "sequence_number", "sent_at", "trace_header",
    "routing_key", "origin_id",
)  # fmt: skip

Message = TypeVar("Message")
# In the order of _SENT: what can't be sent has its id and the reason in the last, and nothing else
Sent = tuple[Any, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """What `replay` is told. Either `tables` or `staging` is there. Messages sent from `start` on and before `end`."""

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
    """How many messages were sent, and how many couldn't be."""

    replayed: int
    unsendable: int


def replay(spark: SparkSession, wanted: Replay) -> ReplayTotals:
    """Send them. Raises what the sink raises: then some are sent, and who knows ids isn't hurt."""
    if wanted.tables:
        table = open_table(wanted.table_format, wanted.tables, MESSAGES, messages_layout())
        last = wanted.end.date().isoformat()  # a message's partition is of the day it was sent, or of one before
        rows = table.read(spark, lambda partition: partition["date"] <= last).where(F.col("date") <= last)
    else:  # without what would be quarantined
        received = spark.read.format("sqs").option("stagingLocation", wanted.staging).load()
        rows = classified(received, late_days=0).where(F.col(REASON).isNull())
    rows = rows.where((F.col("sent_at") >= F.lit(wanted.start)) & (F.col("sent_at") < F.lit(wanted.end)))
    if wanted.from_exchange is not None:
        rows = rows.where(F.col("exchange") == wanted.from_exchange)
    sent = Observation()
    unsendable = F.col(UNSENDABLE)
    counted = _outgoing(spark, _placed(rows.select(*_READ), wanted), wanted).observe(
        sent,
        F.count_if(unsendable.isNull()).alias("messages"),
        F.count(unsendable).alias("unsendable"),
        F.min(unsendable).alias("example"),
    )
    counted = counted.where(unsendable.isNull()).drop(UNSENDABLE)
    options = {"queueUrl": wanted.queue_url, "region": wanted.region, "endpoint": wanted.endpoint}
    given = {name: value for name, value in options.items() if value is not None}
    writer = counted.write.format("sqs").mode("append").options(**given)
    with _batches_of(spark, wanted.rate):
        writer.save()
    found = sent.get
    if found["unsendable"]:
        log.warning("%d messages can't be sent again, as %s", found["unsendable"], found["example"])
    return ReplayTotals(replayed=found["messages"], unsendable=found["unsendable"])


def _placed(rows: DataFrame, wanted: Replay) -> DataFrame:
    """In the order sent: all in one task where a rate is kept, else each group of a FIFO queue in one."""
    if wanted.rate is not None:
        placed = rows.coalesce(1)
    elif wanted.queue_url.endswith(FIFO_SUFFIX):
        placed = rows.repartition("message_group_id")
    else:
        return rows
    return placed.sortWithinPartitions("sent_at", "sequence_number")


def _outgoing(spark: SparkSession, rows: DataFrame, wanted: Replay) -> DataFrame:
    """By way of RDDs: what works on Arrow batches wants pandas, in every worker."""
    exchange, rate, queue_url = wanted.exchange, wanted.rate, wanted.queue_url

    def convert(given: Iterable[Row]) -> Iterator[Sent]:
        made = (_sent(row.asDict(recursive=True), exchange, queue_url) for row in given)
        return made if rate is None else paced(made, rate)

    return spark.createDataFrame(rows.rdd.mapPartitions(convert), _SENT, verifySchema=False)


def _sent(row: Mapping[str, Any], exchange: str, queue_url: str) -> Sent:
    """Make what the sink is given, where it is something that the sink takes.

    A standard queue takes no deduplication id, and no group that the message didn't have.
    """
    fifo = queue_url.endswith(FIFO_SUFFIX)
    try:
        made = replayed(row, exchange)
    except (TooLarge, ValueError) as error:
        return _unsendable(row, str(error))
    sent = {
        "body": row["body"],
        "attributes": made.attributes,
        "message_group_id": made.group_id if fifo else row["message_group_id"],
        "message_deduplication_id": made.deduplication_id if fifo else None,
        "trace_header": row["trace_header"],
    }
    checked = outgoing(sent, RowPosition(0, 0), Addressing(queue_urls=(queue_url,), deduplication="position", write=""))
    return _unsendable(row, checked.why) if isinstance(checked, Unsent) else (*sent.values(), None)


def _unsendable(row: Mapping[str, Any], why: str) -> Sent:
    return (None,) * 5 + (f"{row['message_id']}: {why}",)


def paced(messages: Iterable[Message], rate: int) -> Iterator[Message]:
    """Yield the messages, at most `rate` of them a second from the first on."""
    size = max(1, rate // PARTS_PER_SECOND)
    started = time.monotonic()
    for given, message in enumerate(messages):
        if given % size == 0:
            time.sleep(max(0.0, started + given / rate - time.monotonic()))
        yield message


@contextmanager
def _batches_of(spark: SparkSession, rate: int | None) -> Iterator[None]:
    """Spark hands the sink rows in batches of so many: with a rate no more than a second's."""
    before = spark.conf.get(_BATCH_ROWS)
    spark.conf.set(_BATCH_ROWS, str(min(MAX_BATCH_ROWS, rate or MAX_BATCH_ROWS)))
    try:
        yield
    finally:
        spark.conf.set(_BATCH_ROWS, before)


ID_ATTRIBUTE = "sluice-replayed"
_GROUP_CHARACTERS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """What the sink sends beside the body. An attribute has `type`, `string`, `binary`, as the source's struct."""

    attributes: Mapping[str, Mapping[str, Any]]
    group_id: str
    deduplication_id: str


def replayed(row: Mapping[str, Any], exchange: str) -> Replayed:
    """Make the message anew. Raises TooLarge where it has no room for metadata.

    `row`: `message_id`, `body`, `attributes` and `message_group_id` as received, `routing_key` and `origin_id` as
    landed. The id is the message's at its first exchange, else SQS's: the same at every replay.
    """
    attributes = {
        name: Value(given["type"], given["string"] if given["binary"] is None else bytes(given["binary"]))
        for name, given in (row["attributes"] or {}).items()
    }
    try:
        opened = open_attributes(attributes)
    except Malformed:  # which only a table made by others has
        user = {name: value for name, value in attributes.items() if name != ATTRIBUTE}
        opened = Opened(attributes=user, metadata=None)
    known_as, key, claimed = row["origin_id"] or row["message_id"], row["routing_key"] or "", opened.metadata
    metadata = Metadata(
        exchange=exchange,
        key=key,
        message_id=claimed.message_id if claimed else None,
        headers=claimed.headers if claimed else {},
    )
    sealed = seal(row["body"], {**opened.attributes, ID_ATTRIBUTE: Value("String", known_as)}, metadata)
    group_id = row["message_group_id"] or hashlib.sha256(f"{exchange}\0{key}".encode()).hexdigest()[:_GROUP_CHARACTERS]
    return Replayed(
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
