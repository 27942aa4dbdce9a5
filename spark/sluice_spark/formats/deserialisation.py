"""From bodies to typed values: JSON, Avro, Protobuf, or the user's function, each by itself. Pure but for lazy imports.

A record that can't be read has no value and a reason in `bad_record`; it never fails its task. What a row becomes
follows from the row and the options alone, so a task tried again gives the same.
"""

import importlib
from base64 import b64decode
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import lru_cache, partial
from io import BytesIO
from typing import Any

import orjson
import pyarrow as pa

from sluice_spark.errors import InvalidOption
from sluice_spark.formats import protobuf
from sluice_spark.formats.envelopes import Follow, S3Choice, Unwrapped, itself, unwrapped

FORMATS = ("raw", "json", "avro", "protobuf")
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

Parse = Callable[[Any], Any]  # of a body, or of a line of a file
Fit = Callable[[Any], Any]
Each = Callable[[Callable[[str], Any], Sequence[str]], Iterable[Any]]  # `map`, or as it


@dataclass(frozen=True, slots=True, kw_only=True)
class Deserialisation:
    """What becomes of a body: first out of its `envelopes`, outermost first, then by `format`.

    `format` is one of FORMATS or a function as `package.module:name`, called with the body, that returns a mapping.
    `schema`: DDL of the value's fields, or with avro an Avro record as JSON. With protobuf instead `descriptors`, the
    content of a descriptor file, and the `message` of it. `quarantine`: where bad records go instead
    of the column. `payload_buckets`: whence payloads come to which bodies, or what envelopes hold, are pointers.
    """

    format: str = "raw"
    schema: str | None = None
    descriptors: bytes | None = None
    message: str | None = None
    envelopes: tuple[str, ...] = ()
    quarantine: str | None = None
    payload_buckets: tuple[str, ...] = ()

    @property
    def raw(self) -> bool:
        """Rows are as they were received."""
        return self.format == "raw" and not self.envelopes and not self.payload_buckets


def added_columns(wanted: Deserialisation) -> Sequence[str]:
    """DDL of the columns beside a message's own. Raises InvalidOption for what can't work on any record."""
    columns = [f"{ENVELOPE} map<string, string>"] if wanted.envelopes else []
    if wanted.format != "raw":
        parser(wanted)  # raises where a library or a function is missing
        if wanted.format == "protobuf":
            fields: str | None = protobuf.columns(wanted.descriptors or b"", wanted.message or "")
        else:
            fields = _avro_fields(wanted) if wanted.format == "avro" else wanted.schema
        columns.append(f"{VALUE} struct<{fields}>")
    return columns if wanted.raw else [*columns, f"{REASON} string"]


def file_columns(wanted: Deserialisation) -> Sequence[str]:
    """DDL of the columns beside a message's own where objects are read: a value is a record of one."""
    return [f"{ENVELOPE} map<string, string>", f"{VALUE} struct<{wanted.schema}>", f"{REASON} string"]


def parser(wanted: Deserialisation) -> Parse:
    """Find the function from a body to a mapping. Raises InvalidOption where there is none."""
    if wanted.format == "raw":
        return str
    if wanted.format == "json":
        return orjson.loads
    if wanted.format == "avro":
        return _avro_parser(_avro_schema(wanted))
    if wanted.format == "protobuf":
        return protobuf.parser(wanted.descriptors or b"", wanted.message or "")
    parse: Parse = user_function("format", wanted.format)
    return parse


def user_function(option: str, name: str) -> Callable[..., Any]:
    """Import the function that an option names as `package.module:name`. Raises InvalidOption where there is none."""
    module, _, attribute = name.partition(":")
    try:
        function = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise InvalidOption(option, f"{name!r} can't be imported here: {error}") from error
    if not callable(function):
        raise InvalidOption(option, f"{name!r} is not a function")
    return function  # type: ignore[no-any-return]  # it is what the user wrote


def deserialised(
    batch: pa.RecordBatch,
    wanted: Deserialisation,
    choice: S3Choice,
    types: Mapping[str, pa.DataType],
    parse: Parse,
    *,
    follow: Follow = itself,
    each: Each = map,
) -> pa.RecordBatch:
    """Add columns to the rows; fewer or more rows where an envelope holds none or several.

    `types`: Arrow's, of the added columns. Raises what `follow` raises, but ValueError.
    """
    indexes, payloads, reasons = opened(
        batch.column("body").to_pylist(), wanted.envelopes, choice, follow=follow, each=each
    )
    taken = batch.take(pa.array(indexes, pa.int64()))
    names, columns = list(taken.schema.names), list(taken.columns)
    columns[names.index("body")] = pa.array([each.body for each in payloads], pa.string())
    if wanted.envelopes:
        names.append(ENVELOPE)
        columns.append(facts_of(payloads))
    if wanted.format != "raw":
        values, reasons = values_of([each.body for each in payloads], reasons, types[VALUE], parse)
        names.append(VALUE)
        columns.append(values)
    return pa.RecordBatch.from_arrays([*columns, pa.array(reasons, pa.string())], names=[*names, REASON])


def split(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """Part the good rows from the bad, which come second."""
    good = batch.column(REASON).is_null()
    return batch.filter(good), batch.filter(batch.column(REASON).is_valid())


def opened(
    bodies: Sequence[str], envelopes: Sequence[str], choice: S3Choice, *, follow: Follow = itself, each: Each = map
) -> tuple[list[int], list[Unwrapped], list[str | None]]:
    """Open the bodies: payloads, each with the index of its body, and why it is none: then it is the body itself.

    `each`: `map`, or one that has `follow` wait for several at once.
    """

    def inside(body: str) -> tuple[Sequence[Unwrapped], str | None]:
        try:
            return unwrapped(body, envelopes, choice, follow), None
        except ValueError as error:
            return [Unwrapped(body, {})], str(error)

    indexes: list[int] = []
    payloads: list[Unwrapped] = []
    reasons: list[str | None] = []
    for index, (found, reason) in enumerate(each(inside, bodies)):
        indexes += [index] * len(found)
        payloads += found
        reasons += [reason] * len(found)
    return indexes, payloads, reasons


def facts_of(payloads: Sequence[Unwrapped]) -> pa.Array:
    """Make the column `envelope`."""
    return pa.array([list(each.facts.items()) for each in payloads], pa.map_(pa.string(), pa.string()))


def values_of(
    bodies: Sequence[str | bytes], reasons: Sequence[str | None], kind: pa.DataType, parse: Parse
) -> tuple[pa.Array, list[str | None]]:
    """Parse values, null where there is a reason; return them with the reasons, those given and those found."""
    fit = _fitting(kind)
    pairs = [_value(body, reason, fit, parse) for body, reason in zip(bodies, reasons, strict=True)]
    try:
        return pa.array([value for value, _ in pairs], kind), [reason for _, reason in pairs]
    except Exception:  # noqa: BLE001  pyarrow says neither which record doesn't fit nor by one type of error
        for index, (value, _) in enumerate(pairs):
            try:
                pa.scalar(value, kind)
            except Exception as error:  # noqa: BLE001  as above
                pairs[index] = None, f"{type(error).__name__}: {error}"
    return pa.array([value for value, _ in pairs], kind), [reason for _, reason in pairs]


def _value(body: str | bytes, reason: str | None, fit: Fit, parse: Parse) -> tuple[Any, str | None]:
    if reason is not None:
        return None, reason
    try:
        value = parse(body)
        if not isinstance(value, Mapping):
            return None, f"{type(value).__name__} where an object is expected"
        return fit(value), None
    except Exception as error:  # noqa: BLE001  the record is reported as bad, whatever the user's function raised
        return None, f"{type(error).__name__}: {error}"


@lru_cache(maxsize=256)  # types are few, values many: what a type asks for is found out once
def _fitting(kind: pa.DataType) -> Fit:
    """Find the function that makes a value as pyarrow takes it for the type.

    Text stands for what JSON has no type for. It raises ValueError or TypeError.
    """
    if pa.types.is_struct(kind):
        return _fitting_struct(kind)
    if pa.types.is_map(kind):
        item = _fitting(kind.item_type)
        return lambda value: None if value is None else [(k, item(v)) for k, v in _of(value, Mapping).items()]
    if pa.types.is_nested(kind):
        entry = _fitting(kind.value_type)
        return lambda value: None if value is None else [entry(each) for each in _of(value, list)]
    return _fitting_scalar(kind)


def _fitting_struct(kind: pa.DataType) -> Fit:
    fields = [(field.name, _fitting(field.type), field.nullable) for field in kind]

    def fit(value: Any) -> Any:
        if value is None:
            return None
        given, found = _of(value, Mapping), {}
        for name, fit_field, nullable in fields:
            each = given.get(name)
            if each is None and not nullable:
                raise ValueError(f"field {name!r} is missing")
            found[name] = each if each is None else fit_field(each)
        return found

    return fit


def _fitting_scalar(kind: pa.DataType) -> Fit:
    of_text = from_text(kind)
    if pa.types.is_decimal(kind):
        return lambda value: None if value is None else Decimal(str(value))
    expected = _PYTHON_TYPES.get(kind.id)

    def fit(value: Any) -> Any:
        if isinstance(value, str):
            return of_text(value)
        # pyarrow would cut 1.5 to 1, and take 1 for a moment in 1970
        if expected and value is not None and (not isinstance(value, expected) or isinstance(value, bool)):
            raise TypeError(f"{value!r} where {kind} is expected")
        return value

    return fit


def _of(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"{type(value).__name__} where {kind.__name__.lower()} is expected")
    return value


def from_text(kind: pa.DataType) -> Fit:
    """Find the function that reads text of a type that JSON has none for; of any other it is text.

    It raises ValueError, of a decimal ArithmeticError.
    """
    if pa.types.is_timestamp(kind):
        return aware if kind.tz else datetime.fromisoformat
    if pa.types.is_date(kind):
        return date.fromisoformat
    if pa.types.is_decimal(kind):
        return Decimal
    return partial(b64decode, validate=True) if pa.types.is_binary(kind) else str


def aware(value: str) -> datetime:
    """Read a time, which is UTC without an offset. Raises ValueError."""
    at = datetime.fromisoformat(value)
    return at if at.tzinfo else at.replace(tzinfo=UTC)


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
