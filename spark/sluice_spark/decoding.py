"""Decodes bodies with Spark's own readers, so that no row passes through Python.

The source gives bodies as text; this module adds Spark expressions that parse the text. This module also removes the
header that a schema registry puts before the content.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  as everybody calls it
from pyspark.sql.avro.functions import from_avro
from pyspark.sql.protobuf.functions import from_protobuf
from pyspark.sql.types import ArrayType, BooleanType, StringType, StructField, StructType

from sluice_spark.errors import InvalidOption
from sluice_spark.formats.bodies import REASON

BAD_RECORD = "bad_record"
JSON, VARIANT, AVRO, PROTOBUF = "json", "variant", "avro", "protobuf"
CONFLUENT, GLUE, NONE = "confluent", "glue", "none"
# https://docs.confluent.io/platform/current/schema-registry/fundamentals/serdes-develop/index.html#wire-format
CONFLUENT_MARK, CONFLUENT_BYTES = b"\x00", 5
CONFLUENT_LIKELY = b"\x00\x00"  # start of a Confluent header whose schema id is below 2^24, as is usual
FIRST_MESSAGE = b"\x00"  # in a Protobuf header: the type is the schema file's first message type
# https://github.com/awslabs/aws-glue-schema-registry: format version, compression, schema id
GLUE_MARK, GLUE_ZLIB_MARK, GLUE_BYTES = b"\x03\x00", b"\x03\x05", 18
CONTAINER_MARK = b"Obj\x01"  # The first bytes of an Avro object container file
ALL_BYTES = 2**31 - 1
END = bytes.fromhex("9d1f6a0c53e8b742")  # These bytes are appended to an Avro datum, to detect unread bytes.
_CONTENT, _PARSED = "_sluice_content", "_sluice_parsed"  # names of temporary columns


@dataclass(frozen=True, slots=True, kw_only=True)
class _FormatReader:
    """One of Spark's readers, with a check that the reader has read the whole content and nothing else."""

    parse: Callable[[Column], Column]
    is_read: Callable[[DataFrame], Column]  # The argument is the frame with the parsed column.
    value: Column
    failure: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _StrippedContent:
    """A body without its header. `flaw` is the reason if there is no content; `hint` says why the reader might fail."""

    content: Column
    flaw: Column
    hint: Column


def decode(
    frame: DataFrame,
    format: str,  # noqa: A002  as Spark's readers name it
    schema: str | bytes | StructType | None = None,
    *,
    message: str | None = None,
    header: str | None = None,
    column: str = "body",
    into: str = "value",
    options: Mapping[str, str] | None = None,
) -> DataFrame:
    """Add the column that one of Spark's readers decodes from a column of text, and mark the rows that it can't read.

    `format` is `json` (`from_json`), `variant` (`try_parse_json`), `avro` (`from_avro`, of Spark's package spark-avro)
    or `protobuf` (`from_protobuf`, of spark-protobuf); bodies of the last two are base64. `schema` is DDL or a
    StructType for JSON, a schema as JSON for Avro, and the content of a descriptor file for Protobuf, where `message`
    is the full name of the message type. `options` are the reader's own, without `mode`.

    `header` names the header before the content: `confluent`, `glue`, or `none`; if it is given, bodies of every format
    are base64. If `header` isn't given, a body that begins like one of these headers is a bad record, and its reason
    says so.

    The columns are `into`, null in a bad row; `bad_record`, the unreadable text, else null; and `bad_reason`. A row
    that is already bad stays bad. Raises InvalidOption for invalid arguments.
    """
    reader = _choose_reader(format, schema, message, options or {})
    text, content = F.col(column), _strip_header(F.col(column), format, header)
    known = F.col(REASON) if REASON in frame.columns else _build_null_text()
    unpacked = frame.withColumn(
        _CONTENT,
        F.struct(
            F.when(content.flaw.isNull(), content.content).alias("content"),
            content.flaw.alias("flaw"),
            content.hint.alias("hint"),
        ),
    )
    parsed = unpacked.withColumn(_PARSED, reader.parse(F.col(f"{_CONTENT}.content")))
    is_unread = text.isNotNull() & ~F.coalesce(reader.is_read(parsed), F.lit(False))  # noqa: FBT003  a literal column
    failure = F.when(is_unread, F.coalesce(F.col(f"{_CONTENT}.hint"), F.lit(reader.failure)))
    reason = F.coalesce(known, F.col(f"{_CONTENT}.flaw"), failure)
    raw = F.coalesce(text, F.col("body")) if "body" in frame.columns else text
    value, bad = F.when(reason.isNull(), reader.value), F.when(reason.isNotNull(), raw)
    return parsed.withColumns({into: value, BAD_RECORD: bad, REASON: reason}).drop(_CONTENT, _PARSED)


def _strip_header(text: Column, format_: str, header: str | None) -> _StrippedContent:
    """Remove the schema registry's header from the bodies."""
    if header not in {CONFLUENT, GLUE, NONE, None}:
        raise InvalidOption("header", f"{header!r} is none of {CONFLUENT}, {GLUE}, {NONE}")
    is_binary = format_ in {AVRO, PROTOBUF}
    binary = F.try_to_binary(text, F.lit("base64"))
    flaw = F.when(text.isNotNull() & binary.isNull(), "not base64")

    def begins_with(prefix: bytes) -> Column:
        return F.startswith(binary, F.lit(prefix))

    if header is None:
        likely = F.when(begins_with(CONFLUENT_LIKELY), _suggest_header("Confluent", CONFLUENT))
        likely = likely.when(begins_with(GLUE_MARK) | begins_with(GLUE_ZLIB_MARK), _suggest_header("Glue", GLUE))
        if not is_binary:
            return _StrippedContent(content=text, flaw=_build_null_text(), hint=likely)
        flaw = F.coalesce(flaw, likely)
    size = 0
    if header == CONFLUENT:
        size = CONFLUENT_BYTES
        flaw = flaw.when(~begins_with(CONFLUENT_MARK) | (F.octet_length(binary) < size), "no Confluent header")
        if format_ == PROTOBUF:
            size += len(FIRST_MESSAGE)
            place = F.substring(binary, size, 1)
            flaw = flaw.when(place != F.lit(FIRST_MESSAGE), "Confluent's header names another message than the first")
    elif header == GLUE:
        size = GLUE_BYTES
        flaw = flaw.when(begins_with(GLUE_ZLIB_MARK), "Glue's header with zlib, which Spark has no function for")
        flaw = flaw.when(~begins_with(GLUE_MARK) | (F.octet_length(binary) < size), "no Glue header")
    content = F.substring(binary, size + 1, ALL_BYTES)
    if format_ == AVRO:
        is_container = F.startswith(content, F.lit(CONTAINER_MARK))
        flaw = F.coalesce(flaw, F.when(is_container, "an Avro container file, not one datum"))
    text_of = content if is_binary else F.try_validate_utf8(content.cast("string"))
    return _StrippedContent(content=text_of, flaw=flaw, hint=_build_null_text())


def _suggest_header(name: str, header: str) -> str:
    return f"it begins like {name}'s header: header={header!r} takes that off, header={NONE!r} reads it as content"


def _build_null_text() -> Column:
    return F.lit(None).cast("string")


def _choose_reader(
    format_: str, schema: str | bytes | StructType | None, message: str | None, options: Mapping[str, str]
) -> _FormatReader:
    if "mode" in options:
        raise InvalidOption("mode", "not for the reader: what it can't read is a bad record")
    if message is not None and format_ != PROTOBUF:
        raise InvalidOption("message", "needs format protobuf")
    reader_options = {**options, "mode": "PERMISSIVE"}
    if format_ == JSON and isinstance(schema, str | StructType):
        return _build_json_reader(StructType.fromDDL(schema) if isinstance(schema, str) else schema, reader_options)
    if format_ == VARIANT and schema is None and not options:
        return _build_variant_reader()
    if format_ == AVRO and isinstance(schema, str):
        return _build_avro_reader(schema, reader_options)
    if format_ == PROTOBUF and isinstance(schema, bytes) and message is not None:
        return _build_protobuf_reader(schema, message, reader_options)
    needs = {
        JSON: "a schema as DDL or a StructType",
        VARIANT: "neither a schema nor options",
        AVRO: "a schema as JSON",
        PROTOBUF: "a descriptor file's content (bytes) as its schema, and a message",
    }
    if format_ in needs:
        raise InvalidOption("schema", f"format {format_} needs {needs[format_]}")
    raise InvalidOption("format", f"{format_!r} is none of {', '.join(needs)}")


def _enclose_in_json(body: Column) -> Column:
    """Enclose a body in a JSON object, because Spark's readers don't report text after a body's first JSON value."""
    return F.concat(F.lit('{"v":['), body, F.lit('],"end":true}'))


def _build_json_reader(schema: StructType, options: Mapping[str, str]) -> _FormatReader:
    """Return a reader of JSON records. If only a part of a record fits the schema, the whole record is bad."""
    whole = StructType(
        [StructField("v", ArrayType(schema)), StructField("end", BooleanType()), StructField("bad", StringType())]
    )
    parsed = F.col(_PARSED)
    value = F.get(parsed["v"], F.lit(0))
    is_read = parsed["end"] & parsed["bad"].isNull() & (F.size(parsed["v"]) == 1) & value.isNotNull()
    return _FormatReader(
        parse=lambda content: F.from_json(
            _enclose_in_json(content), whole, {**options, "columnNameOfCorruptRecord": "bad"}
        ),
        is_read=lambda _: is_read,
        value=value,
        failure="not JSON of the schema",
    )


def _build_variant_reader() -> _FormatReader:
    def get_variant(path: str, kind: str = "variant") -> Column:
        return F.try_variant_get(F.col(_PARSED), path, kind)

    return _FormatReader(
        parse=lambda content: F.try_parse_json(_enclose_in_json(content)),
        is_read=lambda _: (
            get_variant("$.end", "boolean") & get_variant("$.v[0]").isNotNull() & get_variant("$.v[1]").isNull()
        ),
        value=get_variant("$.v[0]"),
        failure="not JSON",
    )


def _build_avro_reader(schema: str, options: Mapping[str, str]) -> _FormatReader:
    """Return a reader of Avro data that reads a datum as a record's first field, followed by a field of known value.

    Without the second field Spark's reader ignores bytes after a datum, and returns nulls for other content.
    """
    if "avroSchemaUrl" in options:
        raise InvalidOption("avroSchemaUrl", "give what is there as avroSchema")
    reader_options = dict(options)
    if "avroSchema" in options:
        reader_options["avroSchema"] = _append_end_marker_field(options["avroSchema"])
    whole = _append_end_marker_field(schema)
    return _FormatReader(
        parse=lambda content: from_avro(F.concat(content, F.lit(END)), whole, reader_options),
        is_read=lambda _: F.col(_PARSED)["end"] == F.lit(END),
        value=F.col(_PARSED)["value"],
        failure="no Avro datum of the schema",
    )


def _append_end_marker_field(schema: str) -> str:
    try:
        value = json.loads(schema)
    except json.JSONDecodeError as error:
        raise InvalidOption("schema", f"no Avro schema, which is JSON: {error}") from error
    end = {"type": "fixed", "name": "SluiceEnd", "size": len(END)}
    fields = [{"name": "value", "type": value}, {"name": "end", "type": end}]
    return json.dumps({"type": "record", "name": "SluiceBody", "fields": fields})


def _build_protobuf_reader(descriptors: bytes, message: str, options: Mapping[str, str]) -> _FormatReader:
    """Return a reader of Protobuf messages that detects unreadable content, for which Spark's reader returns nulls."""

    def is_read(parsed: DataFrame) -> Column:
        kind = parsed.schema[_PARSED].dataType
        names = kind.names if isinstance(kind, StructType) else []
        is_empty = F.octet_length(F.col(_CONTENT)["content"]) == 0
        return is_empty | F.coalesce(*(F.when(F.col(_PARSED)[name].isNotNull(), F.lit(True)) for name in names))  # noqa: FBT003  a literal column

    return _FormatReader(
        parse=lambda content: from_protobuf(content, message, options=dict(options), binaryDescriptorSet=descriptors),
        is_read=is_read,
        value=F.col(_PARSED),
        failure=f"no message {message}, or one without any of its fields",
    )
