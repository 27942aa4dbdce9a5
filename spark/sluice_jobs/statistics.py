"""*statistics*: a day's rendezvous events as Snowflake's metrics log, and events per hour as a table.

Both come from table `messages` and are made anew as a whole, so a day can be computed again when late events have come.
The streaming variant keeps the hourly table up to date: an hour appears once, when the watermark has passed it.
"""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  as everybody calls it
from pyspark.sql.types import StructType
from sluice.rendezvous.counts.events import OfferEvent, PollEvent
from sluice.rendezvous.counts.pages import daily_log
from sluice.rendezvous.counts.statistics import (
    ADDRESSES,
    ADDRESSES_BY_NAT,
    ADDRESSES_BY_TYPE,
    OFFERS,
    POLLS,
    REJECTED,
    WITH_RELAY_URL,
    WITHOUT_RELAY_URL,
    Count,
    Family,
)
from sluice.rendezvous.protocol.addresses import UNKNOWN_COUNTRY
from sluice.rendezvous.protocol.ends import End, outcomes_of
from sluice.rendezvous.protocol.matching import Nat

from sluice_jobs import table_stream
from sluice_jobs.land import QUERY_ID
from sluice_jobs.landing import messages_layout
from sluice_jobs.session import asked_to_stop, awaited, stop_before
from sluice_jobs.table_log import Change, DataFile, Transaction
from sluice_jobs.table_schemas import MESSAGES
from sluice_jobs.tables import Keep, Layout, ParquetTable, open_table
from sluice_spark.log.store import open_store

HOURLY, HOURLY_LIVE = "hourly", "hourly_live"
WATERMARK = "2 hours"
QUERY_NAME = "statistics"
_HOURLY_KEYS = ("kind", "outcome", "country", "method", "nat")
_HOURLY_SCHEMA = (
    "hour timestamp, kind string, outcome string, country string, method string, nat string, events bigint, date date"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where the events are."""

    tables: str
    table_format: str
    exchange: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What a run found: events of the day without repeats, how many rows of them were repeats or none at all."""

    log: str
    events: int
    repeated: int
    bad: int


def hourly_layout() -> Layout:
    """Of both hourly tables: `events` in the hour that begins at `hour`; `date` is the hour's."""
    return Layout(schema=StructType.fromDDL(_HOURLY_SCHEMA), partition_columns=("date",))


def statistics(spark: SparkSession, source: Source, day: date, output: str) -> Summary:
    """Write the day's log and its rows of the hourly table, in place of what an earlier run wrote."""
    table = open_table(source.table_format, source.tables, MESSAGES, messages_layout())
    messages = table.read(spark, _of_day(day)).where(_happened(day))
    found = events(messages, source.exchange)
    unique = found.dropDuplicates(["id"]).persist()  # counted in several ways
    try:
        name = f"snowflake-stats-{day.isoformat()}.log"
        store, text = open_store(output), daily_log(day.isoformat(), counted(unique))
        store.remove([name])  # an earlier run's: for a moment there may be none
        store.publish(name, pa.py_buffer(text.encode()))
        _replace_day(ParquetTable(f"{output}/{HOURLY}", hourly_layout()), hourly(unique), day)
        counts = unique.count()
        return Summary(
            log=f"{output}/{name}",
            events=counts,
            repeated=found.count() - counts,
            bad=bad_records(messages, source.exchange).count(),
        )
    finally:
        unique.unpersist()


def counted(unique: DataFrame) -> Mapping[Count, int]:
    """Count what the log says of these events, as the broker counts it, before it rounds."""
    outcome, events_, addresses = F.col("outcome"), F.sum("polls"), F.count_distinct("address")
    polls = unique.where(F.col("kind") == PollEvent.kind)
    rejected = outcome == End.POLL_REFUSED.event
    extended = F.coalesce("relay_extension", F.lit(False))  # noqa: FBT003  a literal column
    # Addresses of polls that weren't rejected. One seen in two countries counts in the first.
    seen = polls.where(~rejected).withColumn("address", F.explode("addresses"))
    first = seen.groupBy("address").agg(F.min(F.struct("happened_at", "id", "country")).alias("first"))
    offers = unique.where((F.col("kind") == OfferEvent.kind) & outcome.isin(outcomes_of("offer")))
    method = F.coalesce("method", F.lit(UNKNOWN))
    return {
        **_by(ADDRESSES, first, addresses, F.col("first.country")),
        **_by(ADDRESSES_BY_TYPE, seen, addresses, "proxy_type"),
        **_by(ADDRESSES_BY_NAT, seen, addresses, "nat"),
        **_by(POLLS, polls.where(~rejected), events_, "nat", "proxy_type", "outcome"),
        **_by(WITH_RELAY_URL, polls.where(extended), events_, "nat", "proxy_type"),
        **_by(WITHOUT_RELAY_URL, polls.where(~extended), events_, "nat", "proxy_type"),
        **_by(REJECTED, polls.where(rejected), events_, "nat", "proxy_type"),
        **_by(OFFERS, offers, events_, "nat", "outcome", "country", method),
    }


def hourly(unique: DataFrame) -> DataFrame:
    """Events per hour, in the columns of the hourly table: one that tells of several polls counts as these."""
    window = F.window("happened_at", "1 hour")
    grouped = unique.groupBy(window, *_HOURLY_KEYS).agg(F.sum("polls").alias("events"))
    return grouped.select(
        F.col("window.start").alias("hour"), *_HOURLY_KEYS, "events", F.to_date("window.start").alias("date")
    )


def keep_hourly(spark: SparkSession, source: Source, output: str, checkpoint: str, trigger_s: float) -> int:
    """Run until SIGTERM: hours that the watermark has passed go to table `hourly_live`, each once.

    Return how many rows.

    An event that comes more than WATERMARK after the newest isn't in it; `statistics` of its day has it.
    """
    stopping = threading.Event()
    hours = Hours(ParquetTable(f"{output}/{HOURLY_LIVE}", hourly_layout()), stopping)
    writer = finished_hours(spark, source).writeStream.queryName(QUERY_NAME).option("checkpointLocation", checkpoint)
    writer = writer.outputMode("append").foreachBatch(hours).trigger(processingTime=f"{trigger_s} seconds")
    with asked_to_stop(stopping):
        awaited(writer.start(), stopping)
    return hours.rows


def finished_hours(spark: SparkSession, source: Source) -> DataFrame:
    """Stream rows of the hourly table, for append mode: each once its hour can't change any more."""
    unique = _arriving(spark, source).withWatermark("happened_at", WATERMARK).dropDuplicatesWithinWatermark(["id"])
    return hourly(unique)


class Hours:
    """What Spark calls with each batch of finished hours."""

    def __init__(self, table: ParquetTable, stopping: threading.Event) -> None:
        self._table, self._stopping = table, stopping
        self.rows = 0

    def __call__(self, batch: DataFrame, number: int) -> None:
        """Durable when it returns."""
        if self._stopping.is_set():
            stop_before(number, batch.sparkSession)
        before = self._table.log.rows
        query = batch.sparkSession.sparkContext.getLocalProperty(QUERY_ID)
        self._table.append(batch, Transaction(app_id=query, version=number))
        self.rows += self._table.log.rows - before


def _arriving(spark: SparkSession, source: Source) -> DataFrame:
    """Stream the events that are in the table, and those that land from now on."""
    if source.table_format == "delta":
        messages = spark.readStream.format("delta").load(f"{source.tables}/{MESSAGES}")
    elif source.table_format == "iceberg":
        messages = spark.readStream.format("iceberg").load(f"{source.tables}.{MESSAGES}")
    else:
        spark.dataSource.register(table_stream.TableSource)
        messages = spark.readStream.format(table_stream.NAME).load(f"{source.tables}/{MESSAGES}")
    return events(messages, source.exchange)


def _of_day(day: date) -> Keep:
    """Keep the day's partitions, and late rows, whose partition is a later day."""

    def keep(partition: Mapping[str, str]) -> bool:
        found = date.fromisoformat(partition["date"])
        return found > day if partition["late"] == "true" else found == day

    return keep


def _happened(day: date) -> Column:
    """Says also which partitions Spark need not look into, where it can prune."""
    in_time = ~F.col("late") & (F.col("date") == F.lit(day))
    return (in_time | (F.col("late") & (F.col("date") > F.lit(day)))) & (F.to_date("happened_at") == F.lit(day))


def _by(family: Family, frame: DataFrame, number: Column, *labels: str | Column) -> dict[Count, int]:
    """Count by the columns that are a family's labels."""
    rows = frame.groupBy(*labels).agg(number).collect()
    return {Count(family.name, tuple(row[:-1])): row[-1] for row in rows}


def _replace_day(table: ParquetTable, rows: DataFrame, day: date) -> None:
    """In one version: a reader sees the rows of the earlier run, or of this one."""
    files = table.write(rows, f"statistics-{day.isoformat()}")

    def change(known: Sequence[DataFile]) -> Change:
        return Change(add=files, remove=[file for file in known if file.partition["date"] == day.isoformat()])

    table.log.change(change)


UNKNOWN = "unknown"
_SCHEMA = (
    "kind string, outcome string, id string, at string, site string, method string, nat string, country string, "
    "proxy_type string, relay_extension boolean, address string, polls long, addresses array<string>"
)
_COMMON = ("kind", "outcome", "id", "at", "site")
_COUNTRY = "^([A-Z]{2}|[?]{2})$"
_NATS = [nat.value for nat in Nat]


def events(messages: DataFrame, exchange: str) -> DataFrame:
    """Select the events among rows of table `messages`: their fields, and when they happened. Repeats stay.

    `polls` is of how many polls an event tells, 1 for every other kind; `addresses` are the different ones of these.
    """
    found = messages.where(F.col("exchange") == exchange).select(
        "happened_at", F.from_json("body", _SCHEMA).alias("event")
    )
    return found.where(~_bad()).select(
        "happened_at",
        *[F.col(f"event.{name}") for name in ("kind", "outcome", "id", "site", "method", "relay_extension")],
        F.greatest(F.coalesce(F.col("event.polls"), F.lit(1)), F.lit(1)).alias("polls"),
        F.array_compact(
            F.array_union(F.array("event.address"), F.coalesce("event.addresses", F.array().cast("array<string>")))
        ).alias("addresses"),
        F.coalesce(F.col("event.proxy_type"), F.lit(UNKNOWN)).alias("proxy_type"),
        F.when(F.col("event.nat").isin(*_NATS), F.col("event.nat")).otherwise(Nat.UNKNOWN.value).alias("nat"),
        F.when(F.col("event.country").rlike(_COUNTRY), F.col("event.country"))
        .otherwise(UNKNOWN_COUNTRY)
        .alias("country"),
    )


def bad_records(messages: DataFrame, exchange: str) -> DataFrame:
    """Rows of the exchange that are no events."""
    found = messages.where(F.col("exchange") == exchange)
    return found.withColumn("event", F.from_json("body", _SCHEMA)).where(_bad()).drop("event")


def _bad() -> Column:
    missing = F.col("event").isNull()
    for name in _COMMON:
        missing = missing | F.col(f"event.{name}").isNull()
    return missing
