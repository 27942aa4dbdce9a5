"""Reads the records of an S3 object: CSV, Parquet or lines of text, with the partition columns from its key.

This module does no network I/O: the caller passes the content as a file.

A line that can't be read has no value, and a reason with its number. If the rest of a file can't be read, one last
record says so. The result depends only on the key, the content and the options.
"""

import csv
import io
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import IO, Any
from urllib.parse import unquote

import pyarrow as pa

from sluice_spark.errors import InvalidOption
from sluice_spark.formats.bodies import ENVELOPE, REASON, VALUE
from sluice_spark.formats.envelopes import parse_utc_time

NONE, CSV, TEXT, PARQUET = "none", "csv", "text", "parquet"
FILE_FORMATS = (NONE, CSV, TEXT, PARQUET)
LINE = "line"  # the column of a text's lines
FAIL, IGNORE, BAD = "fail", "ignore", "bad"
MISSING_POLICIES = (FAIL, IGNORE, BAD)
BATCH_ROWS = 4096
BATCH_BYTES = 4 * 2**20  # of lines in a batch, or of Parquet's columns as they are encoded
PAGE_BYTES = 2**20
LINE_LIMIT = 16 * 2**20  # bytes, unpacked; also of one field
OBJECT_BYTES = 256 * 2**20
NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_BROKEN = (OSError, EOFError, pa.ArrowException)


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Files:
    """How the objects that notifications name are read, if at all."""

    format: str = NONE
    schema: str | None = None  # DDL of a value's columns
    missing: str = BAD
    csv_header: bool = False
    csv_delimiter: str = ","
    object_bytes: int = OBJECT_BYTES  # as stored: a larger one is a bad record
    endpoint: str | None = None
    max_age_s: float | None = None  # of an object, when its notification was received: an older one is no row
    backfill: str | None = None  # s3://bucket/prefix, whose objects come before the first notification

    @property
    def read(self) -> bool:
        """Whether there is a row for each record of an object, not for each object."""
        return self.format != NONE

    @property
    def columns(self) -> Sequence[str]:
        """DDL of the columns beside a message's own: a value is a record."""
        value = self.schema or f"{LINE} string"
        return [f"{ENVELOPE} map<string, string>", f"{VALUE} struct<{value}>", f"{REASON} string"]


@dataclass(frozen=True, slots=True)
class Records:
    """Some thousand at most: a struct for each, null where there is a reason."""

    values: pa.Array
    reasons: Sequence[str | None]


@dataclass(frozen=True, slots=True)
class _Line:
    """A record's first line, by number from 1, and its fields or its bytes; or why it has none."""

    number: int
    content: Any = None
    reason: str | None = None
    size: int = 0


@dataclass(frozen=True, slots=True)
class _Part:
    """The columns of the file, one for each field wanted of it."""

    columns: Sequence[pa.Array]
    reasons: list[str | None]
    place: Callable[[int], str]  # where the record of an index is, for its reason


@dataclass(slots=True)
class _Lines:
    """A file's lines. A class, since a generator ends with its first error: a line that is too long isn't the last."""

    content: IO[bytes]
    number: int = 0
    taken: int = 0  # bytes

    def __iter__(self) -> "_Lines":
        return self

    def __next__(self) -> bytes:
        """Read a line. Raises ValueError for one that can't be taken: the next call brings the one after.

        OSError is the end.
        """
        line = self._read(LINE_LIMIT + 1)
        if not line:
            raise StopIteration
        self.number += 1
        self.taken += len(line)
        if self.number == 1:
            line = line.removeprefix(BYTE_ORDER_MARK)
        if len(line) > LINE_LIMIT:
            while rest := self._read(LINE_LIMIT):
                if rest.endswith(b"\n"):
                    break
            raise ValueError(f"longer than {LINE_LIMIT} bytes")
        return line

    def _read(self, size: int) -> bytes:
        try:
            return self.content.readline(size)
        except ValueError as error:  # Arrow's too: trying again would bring it again
            raise OSError(str(error)) from error


def check_columns(files: S3Files, kind: pa.DataType) -> None:
    """Check what such files can't have. Raises InvalidOption."""
    nested = [field.name for field in kind if pa.types.is_nested(field.type)]
    if files.format == CSV and nested:
        raise InvalidOption("schema", f"CSV has no nested columns: {', '.join(nested)}")
    if files.format == TEXT and pa.field(LINE, pa.string()) not in list(kind):
        raise InvalidOption("schema", f"s3Format text has its lines in a column `{LINE} string`, which isn't there")


def read_records(content: IO[bytes], key: str, files: S3Files, kind: pa.DataType) -> Iterator[Records]:
    """Yield the file's records in order, as structs of type `kind`, in batches of BATCH_ROWS at most.

    None of an empty file.

    A column is the key's if a path segment `name=value` has it, else the file's, else null. Names are compared as
    written.
    """
    try:
        named = parse_partition_values(key, kind)
    except ValueError as error:
        yield bad_record(str(error), kind)
        return
    inside = pa.struct([field for field in kind if field.name not in named])
    for part in _READERS[files.format](content, key, files, inside):
        yield _complete_records(part, kind, inside, named)


def bad_record(reason: str | None, kind: pa.DataType) -> Records:
    """Make one record without a value."""
    return Records(pa.nulls(1, kind), [reason])


def parse_partition_values(key: str, kind: pa.DataType) -> Mapping[str, pa.Scalar]:
    """Tell what the folders of a key say of the columns: Hive's escapes are undone, its word for null is null.

    Raises ValueError for a value that isn't of its column's type.
    """
    fields = {field.name: field for field in kind}
    values: dict[str, pa.Scalar] = {}
    for segment in key.split("/")[:-1]:
        escaped, equals, value = segment.partition("=")
        name = unquote(escaped)
        if equals and name in fields:
            text = None if value == NO_VALUE else unquote(value)
            values[name] = _partition_value(name, text, fields[name].type)
    return values


def _partition_value(name: str, text: str | None, kind: pa.DataType) -> pa.Scalar:
    try:
        return _convert_texts([text], kind)[0]
    except (ValueError, pa.ArrowException) as error:
        raise ValueError(f"partition column {name!r}: {error}") from error


def _complete_records(part: _Part, kind: pa.DataType, inside: pa.DataType, named: Mapping[str, pa.Scalar]) -> Records:
    count, reasons = len(part.reasons), part.reasons
    of_file = dict(zip((field.name for field in inside), part.columns, strict=True))
    columns = []
    for field in kind:
        column = of_file[field.name] if field.name in of_file else pa.repeat(named[field.name], count)
        if not field.nullable and column.null_count:
            import pyarrow.compute as pc  # noqa: PLC0415  8 MiB, which a task needs and a driver doesn't

            for index in pc.indices_nonzero(column.is_null()).to_pylist():
                reasons[index] = reasons[index] or f"{part.place(index)}: column {field.name!r} is null"
        columns.append(column)
    bad = pa.array([reason is not None for reason in reasons], pa.bool_())
    return Records(pa.StructArray.from_arrays(columns, fields=list(kind), mask=bad), reasons)


# Lines


def _csv_parts(content: IO[bytes], key: str, files: S3Files, inside: pa.DataType) -> Iterator[_Part]:
    """RFC 4180, with the delimiter; a field may hold line ends in quotes."""
    csv.field_size_limit(max(csv.field_size_limit(), LINE_LIMIT))  # the module's own is 128 KiB
    lines = _Lines(_decompress(content, key))
    reader = csv.reader(map(bytes.decode, lines), delimiter=files.csv_delimiter, strict=True)
    try:
        names = _read_header(reader, inside) if files.csv_header else [field.name for field in inside]
    except (csv.Error, ValueError) as error:
        names, first = [], [_Line(lines.number, reason=f"line {lines.number}: {error}")]
    except _BROKEN as error:
        names, first = [], [_Line(0, reason=_describe_break(error))]
    else:
        first = []
    positions = [names.index(field.name) if field.name in names else None for field in inside]
    for chunk in _chunks(iter(first) if first else _csv_lines(lines, reader, len(names))):
        yield _csv_part(chunk, inside, positions)


def _csv_lines(lines: _Lines, reader: Iterator[list[str]], count: int) -> Iterator[_Line]:
    while True:
        first, before = lines.number + 1, lines.taken
        try:
            fields = next(reader)
        except StopIteration:
            return
        except (csv.Error, ValueError) as error:
            yield _Line(first, reason=f"line {first}: {error}")
            continue
        if len(fields) == count:
            yield _Line(first, fields, size=lines.taken - before)
        elif fields:  # not an empty line
            yield _Line(first, reason=f"line {first}: {len(fields)} columns, {count} are expected")


def _read_header(reader: Iterator[list[str]], inside: pa.DataType) -> Sequence[str]:
    """Read the first line that isn't empty; without one there are no records, and no names. Raises ValueError."""
    names = next((fields for fields in reader if fields), [])
    if len(set(names)) < len(names):
        raise ValueError("the header names a column twice")
    if names and inside.num_fields and not any(field.name in names for field in inside):
        raise ValueError(f"the header has no column of the schema: {', '.join(names)}")
    return names


def _csv_part(chunk: Sequence[_Line], inside: pa.DataType, positions: Sequence[int | None]) -> _Part:
    reasons, place = [line.reason for line in chunk], _line_place(chunk)
    columns = []
    for field, position in zip(inside, positions, strict=True):
        if position is None:
            columns.append(pa.nulls(len(chunk), field.type))
            continue
        texts = [line.content[position] if line.content else None for line in chunk]
        columns.append(_convert_column(texts, field, reasons, place, _convert_texts))
    return _Part(columns, reasons, place)


def _line_place(chunk: Sequence[_Line]) -> Callable[[int], str]:
    return lambda index: f"line {chunk[index].number}"


def _text_parts(content: IO[bytes], key: str, _: S3Files, inside: pa.DataType) -> Iterator[_Part]:
    for chunk in _chunks(_text_lines(content, key)):
        lines = pa.array([line.content for line in chunk], pa.string())
        columns = [lines if field.name == LINE else pa.nulls(len(chunk), field.type) for field in inside]
        yield _Part(columns, [line.reason for line in chunk], _line_place(chunk))


def _text_lines(content: IO[bytes], key: str) -> Iterator[_Line]:
    lines = _Lines(_decompress(content, key))
    while True:
        try:
            line = next(lines)
            if not line.isspace():
                yield _Line(lines.number, line.decode().rstrip("\r\n"), size=len(line))
        except StopIteration:
            return
        except ValueError as error:
            yield _Line(lines.number, reason=f"line {lines.number}: {error}")


def _chunks(lines: Iterator[_Line]) -> Iterator[Sequence[_Line]]:
    chunk: list[_Line] = []
    size = 0
    try:
        for line in lines:
            chunk.append(line)
            size += line.size
            if len(chunk) >= BATCH_ROWS or size >= BATCH_BYTES:
                yield chunk
                chunk, size = [], 0
    except _BROKEN as error:
        last = chunk[-1].number if chunk else 0
        chunk.append(_Line(last, reason=_describe_break(error)))
    if chunk:
        yield chunk


def _decompress(content: IO[bytes], key: str) -> IO[bytes]:
    """Decompress the content if the key's suffix is one that Arrow knows: .gz, .bz2, .zst, .lz4."""
    suffix = key.rpartition("/")[2].rpartition(".")[2].lower()
    codec = _CODECS.get(suffix)
    if not codec:
        return content
    packed = pa.CompressedInputStream(pa.PythonFile(content, mode="r"), codec)
    return io.BufferedReader(packed)


def _describe_break(error: Exception) -> str:
    return f"the object can't be read from here on: {error}"


# Parquet


def _parquet_parts(content: IO[bytes], _key: str, _files: S3Files, inside: pa.DataType) -> Iterator[_Part]:
    """Suffixes say nothing here: `.gz.parquet` and `.parquet.gz` name the codec inside."""
    import pyarrow.parquet as pq  # noqa: PLC0415  5 MiB, which a task needs and a driver doesn't

    first = 1
    try:
        file = pq.ParquetFile(
            content, coerce_int96_timestamp_unit="us", buffer_size=PAGE_BYTES, pre_buffer=False
        )  # else a row group is in memory as a whole
        names = [field.name for field in inside if field.name in file.schema_arrow.names]
        if inside.num_fields and not names:
            raise pa.ArrowInvalid(f"no column of the schema: {', '.join(file.schema_arrow.names)}")
        for batch in file.iter_batches(batch_size=_rows_at_once(file.metadata), columns=names):
            yield _parquet_part(batch, inside, first)
            first += batch.num_rows
    except _BROKEN as error:
        columns = [pa.nulls(1, field.type) for field in inside]
        yield _Part(columns, [_describe_break(error)], str)


def _rows_at_once(metadata: Any) -> int:
    """Return the number of rows per batch: fewer if rows are wide."""
    groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
    widest = max((group.total_byte_size / group.num_rows for group in groups if group.num_rows), default=1)
    return max(1, min(BATCH_ROWS, int(BATCH_BYTES / max(1, widest))))


def _parquet_part(batch: pa.RecordBatch, inside: pa.DataType, first: int) -> _Part:
    reasons: list[str | None] = [None] * batch.num_rows
    columns = []

    def place(index: int) -> str:
        return f"row {first + index}"

    for field in inside:
        if field.name not in batch.schema.names:
            columns.append(pa.nulls(batch.num_rows, field.type))
            continue
        values = batch.column(field.name)
        columns.append(_convert_column(values, field, reasons, place, _cast))
    return _Part(columns, reasons, place)


# Types


def _convert_column(
    values: Any, wanted: pa.Field, reasons: list[str | None], place: Callable[[int], str], convert: Callable[..., Any]
) -> pa.Array:
    """Convert a whole column; if that fails, convert value by value: one that doesn't fit is null, with a reason."""
    try:
        return convert(values, wanted.type)
    except (ValueError, pa.ArrowInvalid):
        pass
    columns = []
    for index in range(len(values)):
        try:
            columns.append(convert(values[index : index + 1], wanted.type))
        except (ValueError, pa.ArrowInvalid) as error:
            columns.append(pa.nulls(1, wanted.type))
            reasons[index] = reasons[index] or f"{place(index)}: column {wanted.name!r}: {error}"
    return pa.concat_arrays(columns)


def _convert_texts(texts: Sequence[str | None], kind: pa.DataType) -> pa.Array:
    """Convert texts to a type: empty is null, times without an offset are UTC, binary is base64."""
    values = [text or None for text in texts]
    if pa.types.is_timestamp(kind) or pa.types.is_binary(kind):
        read = _text_parser(kind)
        return pa.array([None if text is None else read(text) for text in values], kind)
    return pa.array(values, pa.string()).cast(kind)


def _text_parser(kind: pa.DataType) -> Callable[[str], Any]:
    if pa.types.is_binary(kind):
        return partial(b64decode, validate=True)
    return parse_utc_time if kind.tz else datetime.fromisoformat


def _cast(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast values, truncating nanoseconds to Spark's microseconds and nothing else."""
    import pyarrow.compute as pc  # noqa: PLC0415  8 MiB, which a task needs and a driver doesn't

    return values.cast(options=pc.CastOptions(target_type=kind, allow_time_truncate=True))


_CODECS = {"gz": "gzip", "gzip": "gzip", "bz2": "bz2", "zst": "zstd", "lz4": "lz4"}
_READERS: Mapping[str, Callable[[IO[bytes], str, S3Files, pa.DataType], Iterator[_Part]]] = {
    CSV: _csv_parts,
    TEXT: _text_parts,
    PARQUET: _parquet_parts,
}
