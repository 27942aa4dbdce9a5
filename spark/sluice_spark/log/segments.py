"""Segments: numbered store objects with messages in Arrow IPC format, each published once.

The schema's metadata contains the segment's header. Only this module knows the format and its version.
"""

import json
import logging
import re
import time
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import accumulate

import pyarrow as pa

from sluice_spark.errors import LogError, SegmentTaken, UnknownFormat
from sluice_spark.log.store import Store
from sluice_spark.sqs.received import Attribute, Received

log = logging.getLogger(__name__)

FOLDER = "segments"
READERS = 16
PUBLISH_ATTEMPTS = 6
PUBLISH_AGAIN_S = 0.5
VERSION = 3
HEADER_KEY = b"sluice.segment"
HEAD_BYTES = 16_384  # bytes at a segment's start that contain the header; rows aren't read
# LZ4 reduces JSON to a third of its size. This shortens uploads, and costs less CPU than writing all to disk.
CODEC = "lz4"
WORTHWHILE_RATIO = 0.8  # Content isn't compressed if that leaves more than this share.
SAMPLE_BYTES = 64 * 2**10
LARGE_BODY = 8 * 2**10  # characters: bodies of this or a higher average length count as large
LZ4_GROWTH = 1.01  # LZ4's upper bound of the growth of incompressible content
BATCH_BYTES = 8 * 2**10  # upper bound of a batch's metadata in the file
_MAGIC_BYTES = 8  # length of the Arrow file's prefix, ARROW1 and padding
_ATTRIBUTE = pa.struct([("type", pa.string()), ("string", pa.string()), ("binary", pa.binary())])
_TIME = pa.timestamp("us", tz="UTC")
_TEXT = pa.string()
_NAME = re.compile(rf"{FOLDER}/([0-9]{{20}})\.arrow")

SCHEMA = pa.schema(
    [
        ("message_id", pa.string()),
        ("body", pa.string()),
        ("attributes", pa.map_(pa.string(), _ATTRIBUTE)),
        ("message_group_id", pa.string()),
        ("message_deduplication_id", pa.string()),
        ("sequence_number", pa.string()),
        ("sent_at", _TIME),
        ("first_received_at", _TIME),
        ("receive_count", pa.int32()),
        ("sender_id", pa.string()),
        ("queue_url", pa.string()),
        ("trace_header", pa.string()),
        ("dead_letter_queue_source_arn", pa.string()),
    ]
)
SPARK_SCHEMA = (
    "message_id string, body string, attributes map<string, struct<type: string, string: string, binary: binary>>, "
    "message_group_id string, message_deduplication_id string, sequence_number string, sent_at timestamp, "
    "first_received_at timestamp, receive_count int, sender_id string, queue_url string, trace_header string, "
    "dead_letter_queue_source_arn string"
)
EMPTY = pa.Table.from_batches([], schema=SCHEMA)


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """A segment's header, which can be read without its rows.

    `messages_before`, `size_before` (bytes) and `deletions_failed` are totals of the log before this segment.

    `epoch` orders the drivers of a log: it is the number of the empty segment by which the driver claimed the log.
    """

    number: int
    writer: str
    published_ms: int
    messages: int = 0
    size: int = 0
    messages_before: int = 0
    size_before: int = 0
    deletions_failed: int = 0
    epoch: int = -1

    def next_header(self) -> "Header":
        """Return a header for the next segment, which continues the cumulative counters."""
        return Header(
            number=self.number + 1,
            writer="",
            published_ms=0,
            messages_before=self.messages_before + self.messages,
            size_before=self.size_before + self.size,
            deletions_failed=self.deletions_failed,
        )


def segment_name(number: int) -> str:
    """Return the name of a segment's object. Sorting objects by name sorts segments by number."""
    return f"{FOLDER}/{number:020d}.arrow"


def list_segments(store: Store) -> Mapping[int, float]:
    """List the existing segments' numbers, each with its time of publication in epoch seconds.

    Other files in the folder are ignored, for example a folder marker of the S3 console or a README.
    """
    matches = ((_NAME.fullmatch(name), published_at) for name, published_at in store.list_names(FOLDER).items())
    return {int(match[1]): published_at for match, published_at in matches if match}


def read_header(store: Store, number: int) -> Header:
    """Read a segment's header. Raises SegmentMissing, UnknownFormat."""
    return parse_header(store.read(segment_name(number), HEAD_BYTES))


def read_headers(store: Store, numbers: Iterable[int]) -> Sequence[Header]:
    """Read several segments' headers, in the order of the numbers. Raises the errors of `read_header`."""
    with ThreadPoolExecutor(READERS) as readers:
        return list(readers.map(lambda number: read_header(store, number), sorted(numbers)))


def publish(store: Store, header: Header, rows: pa.Table) -> None:
    """Publish rows as the segment with the header's number.

    Raises SegmentTaken if another writer was first. After other errors the segment may or may not exist.
    """
    name, content = segment_name(header.number), encode_segment(rows, header)
    for attempt in range(1, PUBLISH_ATTEMPTS + 1):
        try:
            store.publish(name, content)
        except SegmentTaken:
            if read_header(store, header.number).writer != header.writer:
                raise
            return  # The earlier attempt succeeded, but its response was lost.
        except (OSError, LogError) as error:
            if attempt == PUBLISH_ATTEMPTS:
                raise
            log.warning("publishing segment %d again: %s", header.number, error)
            time.sleep(PUBLISH_AGAIN_S * attempt)
        else:
            return


def build_rows(received: Sequence[Received]) -> pa.RecordBatch:
    """Convert messages to rows, in the order received."""
    messages = [message for answer in received for message in answer.messages]
    system = [message.attributes for message in messages]
    columns = {
        "message_id": pa.array([message.message_id for message in messages], _TEXT),
        "body": _build_bodies([message.body for message in messages]),
        "attributes": _build_attributes([message.message_attributes for message in messages]),
        "message_group_id": _build_array([values.message_group_id for values in system]),
        "message_deduplication_id": _build_array([values.message_deduplication_id for values in system]),
        "sequence_number": _build_array([values.sequence_number for values in system]),
        "sent_at": _build_times([values.sent_timestamp for values in system]),
        "first_received_at": _build_times([values.approximate_first_receive_timestamp for values in system]),
        "receive_count": _build_array([int(values.approximate_receive_count) for values in system], pa.int32()),
        "sender_id": _build_array([values.sender_id for values in system]),
        "queue_url": _build_array([answer.queue_url for answer in received for _ in answer.messages]),
        "trace_header": _build_array([values.trace_header for values in system]),
        "dead_letter_queue_source_arn": _build_array([values.dead_letter_queue_source_arn for values in system]),
    }
    return pa.RecordBatch.from_arrays([columns[name] for name in SCHEMA.names], schema=SCHEMA)


def sum_body_bytes(rows: pa.Table) -> int:
    """Return the total size of all bodies in bytes."""
    return sum(chunk.view(pa.binary()).total_values_length for chunk in rows.column("body").chunks)


def encode_segment(rows: pa.Table, header: Header) -> pa.Buffer:
    """Encode the rows and the header as a segment's content."""
    metadata = {HEADER_KEY: json.dumps({"version": VERSION, **asdict(header)})}
    # The buffer has the largest possible size from the start. Growing would copy it; unwritten memory is free.
    batches = rows.replace_schema_metadata(metadata).to_batches()
    content = pa.allocate_buffer(HEAD_BYTES + BATCH_BYTES * len(batches) + int(LZ4_GROWTH * rows.nbytes))
    sink = pa.FixedSizeBufferWriter(content)
    options = pa.ipc.IpcWriteOptions(compression=CODEC if _is_compressible(rows) else None, use_threads=False)
    with pa.ipc.new_file(sink, SCHEMA.with_metadata(metadata), options=options) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return content.slice(0, sink.tell())


def _is_compressible(rows: pa.Table) -> bool:
    """Return whether compressing the rows is worthwhile, judged by the first part of the bodies."""
    chunks = rows.column("body").chunks
    text = chunks[0].buffers()[2] if chunks else None
    if not text:
        return False
    sample = memoryview(text)[:SAMPLE_BYTES]
    return len(pa.compress(sample, CODEC, asbytes=True)) < WORTHWHILE_RATIO * len(sample)


def parse_header(content: pa.Buffer | bytes) -> Header:
    """Read a segment's header from its content or first HEAD_BYTES. Raises UnknownFormat for other content."""
    content = pa.py_buffer(content)
    if bytes(memoryview(content)[:6]) != b"ARROW1":
        raise UnknownFormat("not an Arrow file")
    with _translate_damage_errors():
        return _check_schema(pa.ipc.read_schema(content.slice(_MAGIC_BYTES)))


@contextmanager
def _translate_damage_errors() -> Iterator[None]:
    """Convert the errors that Arrow and json raise for damaged files, including OSError, to UnknownFormat."""
    try:
        yield
    except (pa.ArrowException, OSError, IndexError, ValueError, TypeError) as error:
        raise UnknownFormat(f"a damaged segment: {error}") from error


def read_rows(content: pa.Buffer) -> pa.Table:
    """Read all rows of a segment. Raises UnknownFormat."""
    with _translate_damage_errors(), pa.ipc.open_file(content) as reader:
        _check_schema(reader.schema)
        return reader.read_all()


def read_batches(content: pa.Buffer, low: int, high: int) -> Iterator[pa.RecordBatch]:
    """Yield a segment's rows [low, high). Reads only the record batches with such rows. Raises UnknownFormat."""
    begin = 0
    with _translate_damage_errors():
        counts, reader = _open_column("receive_count", content), pa.ipc.open_file(content)
        _check_schema(reader.schema)
    for number in range(reader.num_record_batches):
        with _translate_damage_errors():
            end = begin + counts.get_batch(number).num_rows
            first, last = max(low, begin), min(high, end)
            batch = reader.get_batch(number) if first < last else None
        if batch is not None:
            yield batch.replace_schema_metadata(None).slice(first - begin, last - first)
        begin = end


def read_message_ids(content: pa.Buffer) -> Sequence[str]:
    """Read the message ids of all rows, without the other columns."""
    parse_header(content)
    with _translate_damage_errors(), _open_column("message_id", content) as reader:
        ids: Sequence[str] = reader.read_all().column("message_id").to_pylist()
        return ids


def _open_column(column: str, content: pa.Buffer) -> pa.ipc.RecordBatchFileReader:
    return pa.ipc.open_file(
        content, options=pa.ipc.IpcReadOptions(included_fields=[SCHEMA.get_field_index(column)], use_threads=False)
    )


def _check_schema(schema: pa.Schema) -> Header:
    values = json.loads((schema.metadata or {}).get(HEADER_KEY, b"{}"))
    version = values.pop("version", None)
    if version != VERSION:
        raise UnknownFormat(f"segment of version {version!r}, this package reads {VERSION}")
    if not schema.remove_metadata().equals(SCHEMA):
        raise UnknownFormat(f"segment with other columns than version {VERSION} has: {schema.names}")
    return Header(**values)


def _build_bodies(values: Sequence[str]) -> pa.Array:
    """Build the body column. Large bodies get a buffer of exact size: Arrow's builder would double and copy its own."""
    if sum(map(len, values)) < LARGE_BODY * len(values):
        return pa.array(values, _TEXT)
    ends = array("i", accumulate((len(value if value.isascii() else value.encode()) for value in values), initial=0))
    content = pa.allocate_buffer(ends[-1])
    with pa.FixedSizeBufferWriter(content) as sink:
        for value in values:
            sink.write(value.encode())
    return pa.StringArray.from_buffers(len(values), pa.py_buffer(ends), content)


def _build_array(values: Sequence[str | int | None], kind: pa.DataType = _TEXT) -> pa.Array:
    """Build a column from values. If all values are equal or missing, as usual, a repeated scalar halves the cost."""
    if values and values.count(values[0]) == len(values):
        return pa.repeat(pa.scalar(values[0], kind), len(values))
    return pa.array(values, kind)


def _build_times(values: Sequence[str | None]) -> pa.Array:
    """Build a column of times. Arrow's casts take a third of the time, but load 8 MiB of compute functions."""
    return pa.array([None if value is None else 1000 * int(value) for value in values], _TIME)


def _build_attributes(values: Sequence[Mapping[str, Attribute] | None]) -> pa.Array:
    kind = SCHEMA.field("attributes").type
    if values.count(None) == len(values):  # fast path: in most queues no message has attributes
        zero_offsets = pa.repeat(pa.scalar(0, pa.int32()), len(values) + 1)
        return pa.MapArray.from_arrays(zero_offsets, pa.nulls(0, kind.key_type), pa.nulls(0, kind.item_type), kind)
    rows = [
        [
            (name, {"type": value.data_type, "string": value.string_value, "binary": value.binary_value})
            for name, value in (attributes or {}).items()
        ]
        for attributes in values
    ]
    return pa.array(rows, kind)
