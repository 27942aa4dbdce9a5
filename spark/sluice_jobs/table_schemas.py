"""What columns a table may get: new ones, and wider types. Anything else is another table. Pure.

Schemas are JSON, as Spark and Delta Lake write them. Files are never rewritten for it: readers take a column that a
file lacks as null, and a narrow number as a wide one.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from sluice_spark.errors import UnknownFormat
from sluice_spark.log.segments import SPARK_SCHEMA

# What every reader takes from a file for a column that is wider
WIDER: Mapping[str, frozenset[str]] = {
    "byte": frozenset({"short", "integer", "long"}),
    "short": frozenset({"integer", "long"}),
    "integer": frozenset({"long"}),
    "float": frozenset({"double"}),
}


def evolved(known: str, wanted: str, *, table: str) -> str:
    """List the columns that the table is to have: its own, as wide as the wanted ones, then those that are new.

    A column that isn't wanted any more stays, and is null in new rows; one that is narrower than the table's stays as
    wide. Raises UnknownFormat, which names table and column, where a type is another one.
    """
    ours = {field["name"]: field for field in json.loads(wanted)["fields"]}
    fields = []
    for field in json.loads(known)["fields"]:
        name = field["name"]
        mine = ours.pop(name, field)
        fields.append({**field, "type": _wider(field["type"], mine["type"], f"{table}: column {name}")})
    return json.dumps({"type": "struct", "fields": [*fields, *ours.values()]})


def _wider(known: Any, wanted: Any, what: str) -> Any:
    if isinstance(known, Mapping) and isinstance(wanted, Mapping) and known["type"] == wanted["type"]:
        return _wider_within(known, wanted, what)
    if known == wanted:
        return known
    if isinstance(known, str) and isinstance(wanted, str):
        if wanted in WIDER.get(known, ()):
            return wanted
        if known in WIDER.get(wanted, ()):
            return known
    raise UnknownFormat(f"{what} is {_named(known)} there, and can't become {_named(wanted)}")


def _wider_within(known: Mapping[str, Any], wanted: Mapping[str, Any], what: str) -> Mapping[str, Any]:
    match known["type"]:
        case "struct":
            pair = (json.dumps(each) for each in (known, wanted))
            return dict(json.loads(evolved(*pair, table=what)))
        case "array":
            return {**known, "elementType": _wider(known["elementType"], wanted["elementType"], what)}
        case _:
            keys = _wider(known["keyType"], wanted["keyType"], what)
            return {**known, "keyType": keys, "valueType": _wider(known["valueType"], wanted["valueType"], what)}


def _named(kind: Any) -> str:
    return kind if isinstance(kind, str) else str(kind["type"])


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
