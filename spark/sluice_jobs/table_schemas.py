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


def merge_schemas(table_schema: str, new_schema: str, *, table: str) -> str:
    """Return the table's columns, widened to the new schema's types if needed, followed by the new columns.

    A column that the new schema lacks stays, and is null in new rows. If the new type is narrower, the table's type
    stays. Raises UnknownFormat, which names table and column, for an incompatible type.
    """
    new_fields = {field["name"]: field for field in json.loads(new_schema)["fields"]}
    fields = []
    for field in json.loads(table_schema)["fields"]:
        name = field["name"]
        mine = new_fields.pop(name, field)
        fields.append({**field, "type": _widen_type(field["type"], mine["type"], f"{table}: column {name}")})
    return json.dumps({"type": "struct", "fields": [*fields, *new_fields.values()]})


def _widen_type(table_type: Any, new_type: Any, column: str) -> Any:
    if isinstance(table_type, Mapping) and isinstance(new_type, Mapping) and table_type["type"] == new_type["type"]:
        return _widen_nested_type(table_type, new_type, column)
    if table_type == new_type:
        return table_type
    if isinstance(table_type, str) and isinstance(new_type, str):
        if new_type in WIDER_TYPES.get(table_type, ()):
            return new_type
        if table_type in WIDER_TYPES.get(new_type, ()):
            return table_type
    raise UnknownFormat(f"{column} is {_format_type(table_type)} there, and can't become {_format_type(new_type)}")


def _widen_nested_type(table_type: Mapping[str, Any], new_type: Mapping[str, Any], column: str) -> Mapping[str, Any]:
    match table_type["type"]:
        case "struct":
            pair = (json.dumps(schema) for schema in (table_type, new_type))
            return dict(json.loads(merge_schemas(*pair, table=column)))
        case "array":
            element_type = _widen_type(table_type["elementType"], new_type["elementType"], column)
            return {**table_type, "elementType": element_type}
        case _:
            keys = _widen_type(table_type["keyType"], new_type["keyType"], column)
            values = _widen_type(table_type["valueType"], new_type["valueType"], column)
            return {**table_type, "keyType": keys, "valueType": values}


def _format_type(spark_type: Any) -> str:
    return spark_type if isinstance(spark_type, str) else str(spark_type["type"])


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
