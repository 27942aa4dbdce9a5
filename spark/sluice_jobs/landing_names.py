"""Names of tables and of their columns, shared by what writes them and what reads them."""

import re

from sluice_spark.log.segments import SPARK_SCHEMA

MESSAGES, QUARANTINE = "messages", "quarantine"
REASON = "reason"  # of the quarantine
ENVELOPE = "envelope"  # of the messages, with option `--envelope`
OWN_COLUMNS = (
    "happened_at timestamp, routing_key string, origin string, origin_id string, sites array<string>, "
    "published_at timestamp, date date, exchange string, late boolean"
)
# What an attribute's column can't be called: each name before a type, fields within types have a colon there
RESERVED = {REASON, ENVELOPE, *re.findall(r"(\w+) \w", f"{SPARK_SCHEMA}, {OWN_COLUMNS}")}
ATTRIBUTE_TYPES = ("string", "boolean", "int", "bigint", "float", "double", "date", "timestamp")
