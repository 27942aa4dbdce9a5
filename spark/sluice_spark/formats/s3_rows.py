"""From messages to the records of the objects that they name: what a task reads when `s3Format` is set."""

import logging
from collections.abc import Iterator, Mapping
from datetime import datetime

import pyarrow as pa

from sluice_spark.errors import ObjectGone, ObjectUnreadable
from sluice_spark.formats.bodies import ENVELOPE, REASON, VALUE, facts_of, opened
from sluice_spark.formats.envelopes import CREATED, S3Choice, Unwrapped, utc_time
from sluice_spark.formats.s3_files import BATCH_BYTES, BATCH_ROWS, FAIL, IGNORE, Records, S3Files, records, unread
from sluice_spark.formats.s3_objects import Get

log = logging.getLogger(__name__)

RECEIVED = "first_received_at"


def object_rows(
    messages: pa.RecordBatch,
    envelopes: tuple[str, ...],
    choice: S3Choice,
    *,
    files: S3Files,
    kind: pa.DataType,
    get: Get,
) -> Iterator[pa.RecordBatch]:
    """Yield a row for each record of each object, in order: the message's columns, then envelope, value, reason.

    At most twice BATCH_ROWS in a batch.

    An event that made no object is a row without a value; an object that was older than the limit when its message was
    received is no row. `kind`: the struct of the file's columns. Raises ObjectRefused, and ObjectGone where that is the
    policy.
    """
    bodies = messages.column("body").to_pylist()
    received = messages.column(RECEIVED).to_pylist() if files.max_age_s is not None else [None] * len(bodies)
    return _joined(
        _rows(messages.slice(index, 1), payload, found)
        for index, payload, reason in zip(*opened(bodies, envelopes, choice), strict=True)
        if not _too_old(payload.facts, received[index], files.max_age_s)
        for found in _found(payload.facts, reason, files, kind, get)
    )


def _too_old(facts: Mapping[str, str], received: datetime | None, limit_s: float | None) -> bool:
    """By what the notification and SQS say, and no clock: the same at each try."""
    if limit_s is None or received is None or "eventTime" not in facts or not facts["event"].startswith(CREATED):
        return False
    try:
        return (received - utc_time(facts["eventTime"])).total_seconds() > limit_s
    except ValueError:
        return False


def _found(
    facts: Mapping[str, str], reason: str | None, files: S3Files, kind: pa.DataType, get: Get
) -> Iterator[Records]:
    if reason is not None or not facts["event"].startswith(CREATED):
        yield unread(reason, kind)
        return
    try:
        content = get(facts)
    except ObjectGone as error:
        if files.missing == FAIL:
            raise
        if files.missing == IGNORE:
            log.info("passed over: %s", error)
            return
        yield unread(str(error), kind)
    except ObjectUnreadable as error:
        yield unread(str(error), kind)
    else:
        with content:
            yield from records(content, facts["key"], files, kind)


def _rows(message: pa.RecordBatch, payload: Unwrapped, found: Records) -> pa.RecordBatch:
    """Repeat the message's one row as often as there are records."""
    names, columns = list(message.schema.names), list(message.columns)
    columns[names.index("body")] = pa.array([payload.body], pa.string())
    row = pa.RecordBatch.from_arrays([*columns, facts_of([payload])], names=[*names, ENVELOPE])
    rows = row.take(pa.repeat(pa.scalar(0, pa.int64()), len(found.reasons)))
    reasons = pa.array(found.reasons, pa.string())
    return pa.RecordBatch.from_arrays([*rows.columns, found.values, reasons], names=[*row.schema.names, VALUE, REASON])


def _joined(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Fewer, larger ones: many objects have one record."""
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        held.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= BATCH_ROWS or size >= BATCH_BYTES:
            yield from pa.Table.from_batches(held).combine_chunks().to_batches()
            held, rows, size = [], 0, 0
    if held:
        yield from pa.Table.from_batches(held).combine_chunks().to_batches()
