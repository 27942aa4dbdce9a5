"""Conversion of received messages to table rows: columns, partition, and the reason if a row is quarantined.

All conversions are Spark SQL expressions, so that no row passes through Python.

Federation's metadata are in a message attribute (see `sluice.federation.matching.metadata`). A row's result depends
only on the row, not on the time: a batch that Spark runs again is split the same way.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  as everybody calls it
from pyspark.sql.types import DateType, StructType, TimestampNTZType, TimestampType
from sluice.federation.matching.metadata import ATTRIBUTE, EXCHANGE_ATTRIBUTE, KEY_ATTRIBUTE

from sluice_jobs.table_schemas import ENVELOPE, OWN_COLUMNS, REASON
from sluice_jobs.tables import Layout
from sluice_spark.formats.bodies import REASON as SOURCES_REASON
from sluice_spark.log.segments import SPARK_SCHEMA

NO_EXCHANGE = "none"
PARTITION_COLUMNS = ("date", "exchange", "late")
# The escaped exchange name is part of the partition's folder name. File systems limit a name to 255 bytes.
MAX_EXCHANGE_ESCAPED = 240
# Folder names can't contain control characters, nor the name by which Hive's layout of folders encodes null.
_NO_FOLDER = r"\p{Cc}|^__HIVE_DEFAULT_PARTITION__$"
# All readers of the tables support these times. Spark supports more; Python can't convert times of the first day.
FIRST_TIME, LAST_TIME = "0001-01-02", "9999-12-31 23:59:59.999999"
MAX_PUBLISHED_MS = 253_402_300_799_999  # epoch milliseconds at the end of year 9999, Python's last

_METADATA = "exchange string, key string, trace array<string>, id string, published bigint, unreadable string"
_TEXTS = ("exchange", "key", "id")  # The metadata's text fields, without the items of `trace`
_NO_TEXT = r"^(-?\d|true$|false$|\[|\{)"  # Matches the start of a JSON value that isn't a string
_EVENT = "kind string, id string, at string, site string"
_AT = r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d{1,9})?Z$"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtraColumns:
    """The optional columns: the envelopes' fields, and message attributes as columns with types."""

    envelope: bool = False
    attributes: Mapping[str, str] = field(default_factory=dict)

    @property
    def ddl(self) -> str:
        """The DDL of the optional columns, each followed by a comma."""
        envelope = {ENVELOPE: "map<string, string>"} if self.envelope else {}
        return "".join(f"`{name}` {kind}, " for name, kind in {**envelope, **self.attributes}.items())


NO_EXTRAS = ExtraColumns()


def messages_layout(extra_columns: ExtraColumns = NO_EXTRAS) -> Layout:
    """Return all columns of table `messages`: the source's, the optional, the job's and the partition columns."""
    columns = f"{SPARK_SCHEMA}, {extra_columns.ddl}{OWN_COLUMNS}"
    return Layout(schema=StructType.fromDDL(columns), partition_columns=PARTITION_COLUMNS)


def quarantine_layout() -> Layout:
    """Return the columns of the quarantine: the source's columns, the reason, and the day of the message's sending."""
    return Layout(schema=StructType.fromDDL(f"{SPARK_SCHEMA}, {REASON} string, date date"), partition_columns=("date",))


def classify_rows(received: DataFrame, *, late_days: int, extra_columns: ExtraColumns = NO_EXTRAS) -> DataFrame:
    """Add the job's columns to the source's; `reason` says why a row is bad and is null in good rows. Keeps every row.

    `happened_at` is the time in the body if the body is an event (see docs/jobs.md) whose time lies between 1970 and
    the sending. Otherwise `happened_at` is the time of sending. A row is `late` if it happened more than `late_days`
    before the day of sending: then `date` is the day of sending, so that old partitions get no files. An attribute that
    doesn't fit its column's type becomes null. A record that the source marks as bad is a bad row.
    """
    attributes = F.col("attributes")
    sealed = attributes[ATTRIBUTE]
    sent_at = F.coalesce("sent_at", "first_received_at", F.timestamp_seconds(F.lit(0)))
    unread = received.select(
        "*",
        sent_at.alias("_sent"),
        sealed.isNotNull().alias("_sealed"),
        F.from_json(sealed["string"], _METADATA, {"columnNameOfCorruptRecord": "unreadable"}).alias("_metadata"),
        F.when(F.col("body").startswith("{"), F.from_json("body", _EVENT)).alias("_event"),
    )
    named = (F.col("_metadata.exchange"), attributes[EXCHANGE_ATTRIBUTE]["string"])
    exchange = F.coalesce(*[F.when(name != "", name) for name in named], F.lit(NO_EXCHANGE))
    key = F.coalesce(F.col("_metadata.key"), attributes[KEY_ATTRIBUTE]["string"])
    published = F.col("_metadata.published")
    known = [SOURCES_REASON] if SOURCES_REASON in received.columns else []
    read = unread.select(
        *StructType.fromDDL(SPARK_SCHEMA).names,
        *([ENVELOPE] if extra_columns.envelope else []),
        *[_cast(attributes[name]["string"], kind).alias(name) for name, kind in extra_columns.attributes.items()],
        F.coalesce(_build_event_time(), "_sent").alias("happened_at"),
        key.alias("routing_key"),
        F.substring_index("_metadata.id", ".", 1).alias("origin"),
        F.col("_metadata.id").alias("origin_id"),
        F.col("_metadata.trace").alias("sites"),
        F.when(published.between(0, MAX_PUBLISHED_MS), F.timestamp_millis(published)).alias("published_at"),
        exchange.alias("exchange"),
        F.coalesce(*known, _build_reason_column(exchange)).alias(REASON),
        "_sent",
    )
    late = F.datediff(F.to_date("_sent"), F.to_date("happened_at")) > late_days
    dated = read.withColumn("late", late).withColumn(
        "date", F.to_date(F.when(late, F.col("_sent")).otherwise(F.col("happened_at")))
    )
    return dated.drop("_sent")


def _cast(column: Column, spark_type: str) -> Column:
    """Convert a text column to a Spark type. Null if a text doesn't fit, or is a time that some readers can't read."""
    value = column.try_cast(spark_type)
    if isinstance(StructType.fromDDL(f"value {spark_type}")[0].dataType, DateType | TimestampType | TimestampNTZType):
        return F.when(value.between(F.lit(FIRST_TIME).cast(spark_type), F.lit(LAST_TIME).cast(spark_type)), value)
    return value


def _build_event_time() -> Column:
    """Return the event's time. Null without an event, or if its time is unreadable, before 1970 or after the sending.

    A time before 1970 is a mistake. One before the year 1000 in a file's statistics makes readers skip the file.
    """
    event = F.col("_event")
    complete = event["kind"].isNotNull() & event["id"].isNotNull() & event["site"].isNotNull()
    at = F.when(complete & event["at"].rlike(_AT), F.try_to_timestamp(event["at"]))
    return F.when(at.between(F.timestamp_seconds(F.lit(0)), F.col("_sent")), at)


def _has_mistyped_text() -> Column:
    """Return whether a text field of the metadata isn't a JSON string: Spark would read 5 as `"5"`, and {} as `"{}"`.

    The JSON is parsed a second time only if a field's text looks like a value of another type.
    """
    metadata = F.col("_metadata")
    texts = F.concat(F.array(*[metadata[name] for name in _TEXTS]), F.coalesce(metadata["trace"], F.array()))
    parsed = F.try_parse_json(F.col("attributes")[ATTRIBUTE]["string"])

    def is_other_type(name: str, kind: str) -> Column:
        actual = F.schema_of_variant(F.try_variant_get(parsed, f"$.{name}", "variant"))
        return F.coalesce(actual != kind, F.lit(True))  # noqa: FBT003  a literal column

    others = [metadata[name].isNotNull() & is_other_type(name, "STRING") for name in _TEXTS]
    others.append((F.size("_metadata.trace") > 0) & is_other_type("trace", "ARRAY<STRING>"))
    return F.exists(texts, lambda text: text.rlike(_NO_TEXT)) & reduce(Column.__or__, others)


def _build_reason_column(exchange: Column) -> Column:
    metadata = F.col("_metadata")
    mistyped = F.coalesce(_has_mistyped_text(), F.lit(False))  # noqa: FBT003  a literal column
    unreadable = F.col("_sealed") & (metadata.isNull() | metadata["unreadable"].isNotNull() | mistyped)
    # Escaping turns a byte into at most three characters, so names up to a third of the limit need no escaping here.
    too_long = (F.octet_length(exchange) * 3 > MAX_EXCHANGE_ESCAPED) & (
        F.length(F.url_encode(exchange)) > MAX_EXCHANGE_ESCAPED
    )
    return (
        F.when(unreadable, F.lit(f"attribute {ATTRIBUTE} can't be read"))
        .when(too_long, F.lit("the exchange's name is too long"))
        .when(exchange.rlike(_NO_FOLDER), F.lit("the exchange's name can't be a folder's"))
        .otherwise(F.lit(None).cast("string"))
    )
