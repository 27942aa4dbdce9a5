"""Payloads that SQS's Extended Client put into S3, with a pointer in their place. Pure: who fetches is passed in.

Java's library and Python's, and SNS's of both, write the same pointer; older ones named another class:
https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/sqs-managing-large-messages.html
What a message says is never believed: a pointer to any bucket but those that the options name is a bad record, as a
sender could else have us read, and remove, whatever our role may.
"""

from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress

import orjson
import pyarrow as pa

from sluice_spark.errors import ObjectUnreadable
from sluice_spark.formats.bodies import REASON
from sluice_spark.formats.envelopes import Dereference, S3Choice, unwrap
from sluice_spark.formats.s3_objects import FetchObject, Pointer

CLASSES = frozenset(
    {"software.amazon.payloadoffloading.PayloadS3Pointer", "com.amazon.sqs.javamessaging.MessageS3Pointer"}
)
SIZES = frozenset({"ExtendedPayloadSize", "SQSLargePayloadSize"})  # attributes of the libraries' own, which hide them
PARALLEL_FETCHES = 6  # payloads that a task fetches side by side, and holds
PAYLOAD_LIMIT = 256 * 2**20  # AT_ONCE of these fit a column of Arrow's
_HINT = "S3Pointer"  # in every pointer, however it is wrapped
_ATTRIBUTES = "attributes"


def parse_pointer(body: str) -> Pointer | None:
    """Read a pointer; None for any other body."""
    if _HINT not in body:
        return None
    try:
        name, location = orjson.loads(body)
        pointer = Pointer(location["s3BucketName"], location["s3Key"])
    except (ValueError, TypeError, KeyError):
        return None
    texts = isinstance(pointer.bucket, str) and isinstance(pointer.key, str)
    return pointer if texts and isinstance(name, str) and name in CLASSES else None


def payload_dereferencer(get: FetchObject, buckets: Collection[str]) -> Dereference:
    """Make the function from a body to its payload, or to itself where it is no pointer.

    It raises ValueError where the payload isn't to be had or is no UTF-8, and ObjectRefused.
    """

    def follow(body: str) -> str:
        pointer = parse_pointer(body)
        if pointer is None:
            return body
        if pointer.bucket not in buckets:
            raise ValueError(f"a pointer to bucket {pointer.bucket!r}, which payloadBuckets doesn't name")
        try:
            return get(pointer).decode()
        except ObjectUnreadable as error:
            raise ValueError(str(error)) from error

    return follow


def find_pointers(body: str, envelopes: Sequence[str]) -> Sequence[Pointer]:
    """Find the pointers in a body, without following any."""
    pointers: list[Pointer] = []

    def note(text: str) -> str:
        if pointer := parse_pointer(text):
            pointers.append(pointer)
            raise ValueError("what is behind it is elsewhere")
        return text

    if _HINT in body:
        with suppress(ValueError):
            unwrap(body, envelopes, S3Choice(), note)
    return pointers


def cut_batch(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Cut the rows where AT_ONCE of them may be pointers: so many payloads are in memory together."""
    import pyarrow.compute as pc  # noqa: PLC0415  8 MiB, which a task needs and a driver doesn't

    hinted = pc.indices_nonzero(pc.match_substring(batch.column("body"), _HINT)).to_pylist()
    ends = [*hinted[PARALLEL_FETCHES::PARALLEL_FETCHES], batch.num_rows]
    start = 0
    for end in ends:
        yield batch.slice(start, end - start)
        start = end


def hide_size_attributes(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Hide the libraries' own attribute where the payload is in its place; a bad record stays as it came."""
    kept = [
        [pair for pair in pairs if pair[0] not in SIZES] if pairs and reason is None else pairs
        for pairs, reason in zip(rows.column(_ATTRIBUTES).to_pylist(), rows.column(REASON).to_pylist(), strict=True)
    ]
    at = rows.schema.get_field_index(_ATTRIBUTES)
    return rows.set_column(at, rows.schema.field(at), pa.array(kept, rows.schema.field(at).type))
