"""From bodies to typed values: JSON, Avro, or the user's function, each record by itself. Pure but for lazy imports.

A record that can't be read has no value and a reason in `bad_record`; it never fails its task. What a row becomes
follows from the row and the options alone, so a task tried again gives the same.
"""

import importlib
from base64 import b64decode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from io import BytesIO
from typing import Any

import orjson
import pyarrow as pa

from sluice_spark.envelopes import S3Choice, Unwrapped, unwrapped
from sluice_spark.errors import InvalidOption

FORMATS = ("raw", "json", "avro")
ENVELOPE, VALUE, REASON = "envelope", "value", "bad_record"
CONTAINER = b"Obj\x01"  # an Avro object container file carries its writer's schema
_AVRO_DDL = {
    "null": "void", "boolean": "boolean", "int": "int", "long": "bigint", "float": "float", "double": "double",
    "bytes": "binary", "string": "string", "enum": "string", "fixed": "binary",
}  # fmt: skip
_AVRO_LOGICAL_DDL = {"date": "date", "timestamp-millis": "timestamp", "timestamp-micros": "timestamp", "uuid": "string"}
_PYTHON_TYPES: Mapping[int, Any] = {
    **{kind.id: int for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64())},
    **{kind.id: (int, float) for kind in (pa.float32(), pa.float64())},
    pa.date32().id: date,
    pa.timestamp("us").id: datetime,
}

Parse = Callable[[str], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Deserialisation:
    """What becomes of a body: first out of its `envelopes`, outermost first, then by `format`.

    `format` is one of FORMATS or a function as `package.module:name`, called with the body, that returns a mapping.
    `schema`: DDL of the value's fields, or with avro an Avro record as JSON. `quarantine`: where bad records go instead
    of the column.
    """

    format: str = "raw"
    schema: str | None = None
    envelopes: tuple[str, ...] = ()
    quarantine: str | None = None

    @property
    def raw(self) -> bool:
        """Rows are as they were received."""
        return self.format == "raw" and not self.envelopes


def added_columns(wanted: Deserialisation) -> Sequence[str]:
    """DDL of the columns beside a message's own. Raises InvalidOption for what can't work on any record."""
    columns = [f"{ENVELOPE} map<string, string>"] if wanted.envelopes else []
    if wanted.format != "raw":
        parser(wanted)  # raises where a library or a function is missing
        fields = _avro_fields(wanted) if wanted.format == "avro" else wanted.schema
        columns.append(f"{VALUE} struct<{fields}>")
    return columns if wanted.raw else [*columns, f"{REASON} string"]


def parser(wanted: Deserialisation) -> Parse:
    """The function from a body to a mapping. Raises InvalidOption where there is none."""
    if wanted.format == "raw":
        return str
    if wanted.format == "json":
        return orjson.loads
    if wanted.format == "avro":
        return _avro_parser(_avro_schema(wanted))
    module, _, name = wanted.format.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise InvalidOption("format", f"{wanted.format!r} can't be imported here: {error}") from error
    if not callable(found):
        raise InvalidOption("format", f"{wanted.format!r} is not a function")
    parse: Parse = found
    return parse


def deserialised(
    batch: pa.RecordBatch, wanted: Deserialisation, choice: S3Choice, types: Mapping[str, pa.DataType], parse: Parse
) -> pa.RecordBatch:
    """The rows with their added columns; fewer or more where an envelope holds none or several. `types`: Arrow's, of
    the added columns."""
    indexes, opened, reasons = _opened(batch.column("body").to_pylist(), wanted.envelopes, choice)
    taken = batch.take(pa.array(indexes, pa.int64()))
    names, columns = list(taken.schema.names), list(taken.columns)
    columns[names.index("body")] = pa.array([each.body for each in opened], pa.string())
    if wanted.envelopes:
        names.append(ENVELOPE)
        columns.append(pa.array([list(each.facts.items()) for each in opened], pa.map_(pa.string(), pa.string())))
    if wanted.format != "raw":
        values, reasons = _values([each.body for each in opened], reasons, types[VALUE], parse)
        names.append(VALUE)
        columns.append(values)
    return pa.RecordBatch.from_arrays([*columns, pa.array(reasons, pa.string())], names=[*names, REASON])


def split(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """The good rows, then the bad."""
    good = batch.column(REASON).is_null()
    return batch.filter(good), batch.filter(pa.array([not each.as_py() for each in good], pa.bool_()))


def _opened(
    bodies: Sequence[str], envelopes: Sequence[str], choice: S3Choice
) -> tuple[list[int], list[Unwrapped], list[str | None]]:
    indexes: list[int] = []
    opened: list[Unwrapped] = []
    reasons: list[str | None] = []
    for index, body in enumerate(bodies):
        try:
            inside: Sequence[Unwrapped] = unwrapped(body, envelopes, choice)
            reason = None
        except ValueError as error:
            inside, reason = [Unwrapped(body, {})], str(error)
        indexes += [index] * len(inside)
        opened += inside
        reasons += [reason] * len(inside)
    return indexes, opened, reasons


def _values(
    bodies: Sequence[str], reasons: Sequence[str | None], kind: pa.DataType, parse: Parse
) -> tuple[pa.Array, list[str | None]]:
    pairs = [_value(body, reason, kind, parse) for body, reason in zip(bodies, reasons, strict=True)]
    values = pa.array([value for value, _ in pairs], kind)
    return values, [reason for _, reason in pairs]


def _value(body: str, reason: str | None, kind: pa.DataType, parse: Parse) -> tuple[Any, str | None]:
    if reason is not None:
        return None, reason
    try:
        value = parse(body)
        if not isinstance(value, Mapping):
            return None, f"{type(value).__name__} where an object is expected"
        fitting = _fitting(value, kind)
        pa.scalar(fitting, kind)
    except Exception as error:  # noqa: BLE001  the record is reported as bad, whatever the user's function raised
        return None, f"{type(error).__name__}: {error}"
    return fitting, None


def _fitting(value: Any, kind: pa.DataType) -> Any:
    """As pyarrow takes it for the type; text stands for what JSON has no type for. Raises ValueError or TypeError."""
    if value is None:
        return None
    if pa.types.is_nested(kind):
        return _nested(value, kind)
    if isinstance(value, str):
        return _from_text(value, kind)
    if pa.types.is_decimal(kind):
        return Decimal(str(value))
    expected = _PYTHON_TYPES.get(kind.id)
    # pyarrow would cut 1.5 to 1, and take 1 for a moment in 1970
    if expected and (not isinstance(value, expected) or isinstance(value, bool)):
        raise TypeError(f"{value!r} where {kind} is expected")
    return value


def _nested(value: Any, kind: pa.DataType) -> Any:
    if pa.types.is_struct(kind):
        return {field.name: _fitting(_entry(value, field), field.type) for field in kind}
    if pa.types.is_map(kind):
        return [(name, _fitting(each, kind.item_type)) for name, each in _of(value, Mapping).items()]
    return [_fitting(each, kind.value_type) for each in _of(value, list)]


def _entry(value: Any, field: pa.Field) -> Any:
    found = _of(value, Mapping).get(field.name)
    if found is None and not field.nullable:
        raise ValueError(f"field {field.name!r} is missing")
    return found


def _of(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"{type(value).__name__} where {kind.__name__.lower()} is expected")
    return value


def _from_text(value: str, kind: pa.DataType) -> Any:
    if pa.types.is_timestamp(kind):
        at = datetime.fromisoformat(value)
        return at if at.tzinfo or not kind.tz else at.replace(tzinfo=UTC)
    if pa.types.is_date(kind):
        return date.fromisoformat(value)
    if pa.types.is_decimal(kind):
        return Decimal(value)
    return b64decode(value, validate=True) if pa.types.is_binary(kind) else value


def _fastavro() -> Any:
    try:
        return importlib.import_module("fastavro")
    except ImportError as error:
        raise InvalidOption("format", "avro needs fastavro where the driver and the executors run") from error


def _avro_schema(wanted: Deserialisation) -> Any:
    try:
        schema = orjson.loads(wanted.schema or "")
    except orjson.JSONDecodeError as error:
        raise InvalidOption("schema", f"not an Avro schema: {error}") from error
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise InvalidOption("schema", "not an Avro record")
    return schema


def _avro_parser(schema: Any) -> Parse:
    """Bodies are base64, as SQS carries text alone; of a bare datum, or of a container with one."""
    fastavro = _fastavro()
    known = fastavro.parse_schema(schema)

    def parse(body: str) -> Any:
        content = b64decode(body, validate=True)
        if content.startswith(CONTAINER):
            return next(iter(fastavro.reader(BytesIO(content), reader_schema=known)))
        rest = BytesIO(content)
        value = fastavro.schemaless_reader(rest, known, None)
        if rest.read(1):
            raise ValueError("more than one Avro datum, or of another schema")
        return value

    return parse


def _avro_fields(wanted: Deserialisation) -> str:
    return ", ".join(f"`{field['name']}`: {_avro_ddl(field['type'])}" for field in _avro_schema(wanted)["fields"])


def _avro_ddl(kind: Any) -> str:
    if isinstance(kind, list):
        others = [each for each in kind if each != "null"]
        if len(others) == 1:
            return _avro_ddl(others[0])
        raise InvalidOption("schema", f"an Avro union of several types has no column type: {kind}")
    name = kind if isinstance(kind, str) else kind.get("type")
    if isinstance(kind, dict) and (found := _avro_complex_ddl(name, kind)):
        return found
    if name not in _AVRO_DDL:
        raise InvalidOption("schema", f"Avro type {name!r} has no column type")
    return _AVRO_DDL[name]


def _avro_complex_ddl(name: Any, kind: Mapping[str, Any]) -> str | None:
    if kind.get("logicalType") == "decimal":
        return f"decimal({kind['precision']}, {kind.get('scale', 0)})"
    if name == "record":
        inner = (f"`{each['name']}`: {_avro_ddl(each['type'])}" for each in kind["fields"])
        return f"struct<{', '.join(inner)}>"
    if name == "array":
        return f"array<{_avro_ddl(kind['items'])}>"
    if name == "map":
        return f"map<string, {_avro_ddl(kind['values'])}>"
    return _AVRO_LOGICAL_DDL.get(kind.get("logicalType", ""))
