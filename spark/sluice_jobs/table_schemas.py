"""Schema evolution of tables: new columns and wider types are allowed, other changes are refused. Pure.

Schemas are JSON, as Spark and Delta Lake write them. Files are never rewritten: readers read a column that a file lacks
as null, and widen narrow numbers.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from sluice_spark.errors import UnknownFormat
from sluice_spark.log.segments import SPARK_SCHEMA

# For each column type, the wider types that every reader can convert its values to
WIDER_TYPES: Mapping[str, frozenset[str]] = {
    "byte": frozenset({"short", "integer", "long"}),
    "short": frozenset({"integer", "long"}),
    "integer": frozenset({"long"}),
    "float": frozenset({"double"}),
}


def merge_schemas(known: str, new: str, *, table: str) -> str:
    """Return the table's columns, widened to the new schema's types if needed, followed by the new columns.

    A column that the new schema lacks stays, and is null in new rows. If the new type is narrower, the table's type
    stays. Raises UnknownFormat, which names table and column, for an incompatible type.
    """
    new_fields = {field["name"]: field for field in json.loads(new)["fields"]}
    fields = []
    for field in json.loads(known)["fields"]:
        name = field["name"]
        mine = new_fields.pop(name, field)
        fields.append({**field, "type": _widen(field["type"], mine["type"], f"{table}: column {name}")})
    return json.dumps({"type": "struct", "fields": [*fields, *new_fields.values()]})


def _widen(known: Any, new: Any, column: str) -> Any:
    if isinstance(known, Mapping) and isinstance(new, Mapping) and known["type"] == new["type"]:
        return _widen_nested(known, new, column)
    if known == new:
        return known
    if isinstance(known, str) and isinstance(new, str):
        if new in WIDER_TYPES.get(known, ()):
            return new
        if known in WIDER_TYPES.get(new, ()):
            return known
    raise UnknownFormat(f"{column} is {_type_name(known)} there, and can't become {_type_name(new)}")


def _widen_nested(known: Mapping[str, Any], new: Mapping[str, Any], column: str) -> Mapping[str, Any]:
    match known["type"]:
        case "struct":
            pair = (json.dumps(schema) for schema in (known, new))
            return dict(json.loads(merge_schemas(*pair, table=column)))
        case "array":
            return {**known, "elementType": _widen(known["elementType"], new["elementType"], column)}
        case _:
            keys = _widen(known["keyType"], new["keyType"], column)
            return {**known, "keyType": keys, "valueType": _widen(known["valueType"], new["valueType"], column)}


def _type_name(kind: Any) -> str:
    return kind if isinstance(kind, str) else str(kind["type"])


MESSAGES, QUARANTINE = "messages", "quarantine"
REASON = "reason"  # a column of table `quarantine`
ENVELOPE = "envelope"  # a column of table `messages` with option `--envelope`
OWN_COLUMNS = (
    "happened_at timestamp, routing_key string, origin string, origin_id string, sites array<string>, "
    "published_at timestamp, date date, exchange string, late boolean"
)
# Attribute columns can't have these names. The pattern finds each word before a type; nested fields have a colon there.
RESERVED = {REASON, ENVELOPE, *re.findall(r"(\w+) \w", f"{SPARK_SCHEMA}, {OWN_COLUMNS}")}
ATTRIBUTE_TYPES = ("string", "boolean", "int", "bigint", "float", "double", "date", "timestamp")
