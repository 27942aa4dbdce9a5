"""Job *statistics*: writes a day's rendezvous events as Snowflake's metrics log, and the events per hour as a table.

Both are computed from table `messages` and replaced as a whole, so a day can be computed again after late events.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  as everybody calls it
from pyspark.sql.types import StructType
from sluice.rendezvous.counts.events import OfferEvent, PollEvent
from sluice.rendezvous.counts.pages import write_daily_log
from sluice.rendezvous.counts.statistics import (
    ADDRESSES_BY_NAT,
    ADDRESSES_BY_TYPE,
    OFFERS,
    POLLS,
    PROXIES,
    REJECTED,
    WITH_RELAY_URL,
    WITHOUT_RELAY_URL,
    Counts,
    Family,
)
from sluice.rendezvous.protocol.addresses import UNKNOWN_COUNTRY
from sluice.rendezvous.protocol.ends import End, list_outcomes
from sluice.rendezvous.protocol.matching import Nat

from sluice_jobs.landing import messages_layout
from sluice_jobs.table_log import Change, DataFile
from sluice_jobs.table_schemas import MESSAGES
from sluice_jobs.tables import Layout, ParquetTable, open_table
from sluice_spark.log.store import open_store

HOURLY = "hourly"
_HOURLY_KEYS = ("kind", "outcome", "country", "method", "nat")
_HOURLY_SCHEMA = (
    "hour timestamp, kind string, outcome string, country string, method string, nat string, events bigint, date date"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceTables:
    """The table location and the exchange that contain the rendezvous events."""

    tables: str
    table_format: str
    exchange: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StatisticsSummary:
    """A run's result: the log's location, and the day's number of unique events, repeated rows and unreadable rows."""

    log: str
    events: int
    repeated: int
    bad: int


def hourly_layout() -> Layout:
    """Return the columns of the hourly table: `events` is the count for the hour from `hour` on, on day `date`."""
    return Layout(schema=StructType.fromDDL(_HOURLY_SCHEMA), partition_columns=("date",))


def statistics(spark: SparkSession, source: SourceTables, day: date, output: str) -> StatisticsSummary:
    """Write the day's log and rows of the hourly table. They replace the log and rows of an earlier run."""
    table = open_table(source.table_format, source.tables, MESSAGES, messages_layout())

    def can_contain_day(partition: Mapping[str, str]) -> bool:
        partition_date = date.fromisoformat(partition["date"])  # Partitions of later days contain this day's late rows.
        return partition_date > day if partition["late"] == "true" else partition_date == day

    # The condition includes the partition columns, so that Spark reads only the partitions of these days.
    in_time = ~F.col("late") & (F.col("date") == F.lit(day))
    late = F.col("late") & (F.col("date") > F.lit(day))
    messages = table.read(spark, can_contain_day).where(in_time | late)
    messages = messages.where(F.to_date("happened_at") == F.lit(day))
    day_events = select_events(messages, source.exchange)
    unique = day_events.dropDuplicates(["id"]).persist()  # cached, because several queries read these events
    try:
        name = f"snowflake-stats-{day.isoformat()}.log"
        store, text = open_store(output), write_daily_log(day.isoformat(), count_log_values(unique))
        store.remove([name])  # removes an earlier run's log
        store.publish(name, pa.py_buffer(text.encode()))
        hourly = ParquetTable(f"{output}/{HOURLY}", hourly_layout())
        files = hourly.write(aggregate_hourly(unique), f"statistics-{day.isoformat()}")

        def replace_day(old_files: Sequence[DataFile]) -> Change:
            return Change(add=files, remove=[file for file in old_files if file.partition["date"] == day.isoformat()])

        # A single version replaces the day, so a reader sees either the earlier run's rows or the new rows.
        hourly.log.commit_change(replace_day)
        counts = unique.count()
        return StatisticsSummary(
            log=f"{output}/{name}",
            events=counts,
            repeated=day_events.count() - counts,
            bad=select_bad_records(messages, source.exchange).count(),
        )
    finally:
        unique.unpersist()


def count_log_values(unique_events: DataFrame) -> Mapping[str, int]:
    """Compute the metrics log's values from these unique events, as Snowflake's broker counts them, before rounding."""
    outcome, events_, addresses = F.col("outcome"), F.sum("polls"), F.count_distinct("address")
    polls = unique_events.where(F.col("kind") == PollEvent.kind)
    rejected = outcome == End.POLL_REFUSED.event
    extended = F.coalesce("relay_extension", F.lit(False))  # noqa: FBT003  a literal column
    # Addresses of accepted polls. An address counts once by its first poll, and once for each proxy type and NAT.
    seen = polls.where(~rejected).withColumn("address", F.explode("addresses"))
    labels = ("proxy_type", "nat", "country")
    first = seen.groupBy("address").agg(F.min(F.struct("happened_at", "id", *labels)).alias("first"))
    offers = unique_events.where((F.col("kind") == OfferEvent.kind) & outcome.isin(*list_outcomes("offer")))
    method = F.coalesce("method", F.lit(UNKNOWN))
    return {
        **_count_by_labels(PROXIES, first, addresses, *[F.col(f"first.{label}") for label in labels]),
        **_count_by_labels(ADDRESSES_BY_TYPE, seen, addresses, "proxy_type"),
        **_count_by_labels(ADDRESSES_BY_NAT, seen, addresses, "nat"),
        **_count_by_labels(POLLS, polls.where(~rejected), events_, "nat", "proxy_type", "outcome"),
        **_count_by_labels(WITH_RELAY_URL, polls.where(extended), events_, "nat", "proxy_type"),
        **_count_by_labels(WITHOUT_RELAY_URL, polls.where(~extended), events_, "nat", "proxy_type"),
        **_count_by_labels(REJECTED, polls.where(rejected), events_, "nat", "proxy_type"),
        **_count_by_labels(OFFERS, offers, events_, "nat", "outcome", "country", method),
    }


def aggregate_hourly(unique_events: DataFrame) -> DataFrame:
    """Count events per hour, in the columns of the hourly table. An event of several polls counts once per poll."""
    window = F.window("happened_at", "1 hour")
    grouped = unique_events.groupBy(window, *_HOURLY_KEYS).agg(F.sum("polls").alias("events"))
    return grouped.select(
        F.col("window.start").alias("hour"), *_HOURLY_KEYS, "events", F.to_date("window.start").alias("date")
    )


def _count_by_labels(family: Family, frame: DataFrame, count: Column, *labels: str | Column) -> Counts:
    """Count rows by the label columns of a metric family."""
    counts: Counts = Counter()
    for row in frame.groupBy(*labels).agg(count).collect():
        counts[family.build_count_name(*row[:-1])] += row[-1]
    return counts


UNKNOWN = "unknown"
_SCHEMA = (
    "kind string, outcome string, id string, at string, site string, method string, nat string, country string, "
    "proxy_type string, relay_extension boolean, address string, polls long, addresses array<string>"
)
_COMMON = ("kind", "outcome", "id", "at", "site")
_COUNTRY = "^([A-Z]{2}|[?]{2})$"
_NATS = [nat.value for nat in Nat]


def select_events(messages: DataFrame, exchange: str) -> DataFrame:
    """Select the rendezvous events among rows of table `messages`, with fields and time. Repeated events are included.

    `polls` is an event's number of polls, 1 for an event of another kind; `addresses` are the distinct proxy addresses.
    """
    candidates = messages.where(F.col("exchange") == exchange).select(
        "happened_at", F.from_json("body", _SCHEMA).alias("event")
    )
    return candidates.where(~_build_bad_condition()).select(
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


def select_bad_records(messages: DataFrame, exchange: str) -> DataFrame:
    """Select the rows of the events exchange that are not valid events."""
    candidates = messages.where(F.col("exchange") == exchange)
    return candidates.withColumn("event", F.from_json("body", _SCHEMA)).where(_build_bad_condition()).drop("event")


def _build_bad_condition() -> Column:
    missing = F.col("event").isNull()
    for name in _COMMON:
        missing = missing | F.col(f"event.{name}").isNull()
    return missing
