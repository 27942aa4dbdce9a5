"""Pointers to payloads that SQS's Extended Client has put into S3. Pure: the caller passes the fetch function.

The libraries for Java and Python, and those for SNS, write the same pointer; older ones named another class:
https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/sqs-managing-large-messages.html A pointer is
trusted only if the options name its bucket; otherwise the message is a bad record. Without this check a sender could
make the source read any object that its role may access.
"""

from collections.abc import Collection, Iterator

import orjson
import pyarrow as pa

from sluice_spark.errors import ObjectUnreadable
from sluice_spark.formats.bodies import REASON
from sluice_spark.formats.envelopes import Dereference
from sluice_spark.formats.s3_objects import FetchObject, Pointer

CLASSES = frozenset(
    {"software.amazon.payloadoffloading.PayloadS3Pointer", "com.amazon.sqs.javamessaging.MessageS3Pointer"}
)
SIZES = frozenset({"ExtendedPayloadSize", "SQSLargePayloadSize"})  # Client libraries add and hide these attributes.
PARALLEL_FETCHES = 6  # number of payloads that a task fetches at once and holds in memory
PAYLOAD_LIMIT = 256 * 2**20  # maximum bytes, so that PARALLEL_FETCHES payloads fit into one Arrow column
_HINT = "S3Pointer"  # Every pointer contains this text, in any envelope.
_ATTRIBUTES = "attributes"


def parse_pointer(body: str) -> Pointer | None:
    """Parse a pointer to a payload in S3; returns None for any other body."""
    if _HINT not in body:
        return None
    try:
        name, location = orjson.loads(body)
        pointer = Pointer(location["s3BucketName"], location["s3Key"])
    except (ValueError, TypeError, KeyError):
        return None
    are_texts = isinstance(pointer.bucket, str) and isinstance(pointer.key, str)
    return pointer if are_texts and isinstance(name, str) and name in CLASSES else None


def build_dereferencer(fetch: FetchObject, buckets: Collection[str]) -> Dereference:
    """Return a function that replaces a pointer by its payload, and returns any other body unchanged.

    The function raises ObjectRefused, and ValueError if a payload isn't available or isn't UTF-8.
    """

    def dereference(body: str) -> str:
        pointer = parse_pointer(body)
        if pointer is None:
            return body
        if pointer.bucket not in buckets:
            raise ValueError(f"a pointer to bucket {pointer.bucket!r}, which payloadBuckets doesn't name")
        try:
            return fetch(pointer).decode()
        except ObjectUnreadable as error:
            raise ValueError(str(error)) from error

    return dereference


def split_by_pointers(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Split the rows into parts with at most PARALLEL_FETCHES pointers each, which limits the payloads in memory."""
    import pyarrow.compute as pc  # noqa: PLC0415  8 MiB, which a task needs and a driver doesn't

    hinted = pc.indices_nonzero(pc.match_substring(batch.column("body"), _HINT)).to_pylist()
    ends = [*hinted[PARALLEL_FETCHES::PARALLEL_FETCHES], batch.num_rows]
    start = 0
    for end in ends:
        yield batch.slice(start, end - start)
        start = end


def hide_size_attributes(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Remove the libraries' size attributes from rows whose payload was fetched; a bad record stays unchanged."""
    kept = [
        [pair for pair in pairs if pair[0] not in SIZES] if pairs and reason is None else pairs
        for pairs, reason in zip(rows.column(_ATTRIBUTES).to_pylist(), rows.column(REASON).to_pylist(), strict=True)
    ]
    at = rows.schema.get_field_index(_ATTRIBUTES)
    return rows.set_column(at, rows.schema.field(at), pa.array(kept, rows.schema.field(at).type))
