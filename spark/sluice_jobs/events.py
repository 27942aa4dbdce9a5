"""Rendezvous events, as the tables have them: a body that is one, or a bad record. Expressions of Spark SQL.

An event is a JSON object with `kind`, `outcome`, `id`, `at` and `site`; what else is in it depends on the kind. Unknown
kinds and fields are tolerated. A bridge may deliver an event twice: its `id` tells. One may tell of several polls.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  as everybody calls it
from sluice.rendezvous.protocol.addresses import UNKNOWN_COUNTRY
from sluice.rendezvous.protocol.matching import Nat

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
