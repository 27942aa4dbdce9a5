"""From messages to the records of the objects that they name: what a task reads when `s3Format` is set."""

import logging
from collections.abc import Iterator, Mapping
from datetime import datetime

import pyarrow as pa

from sluice_spark.errors import ObjectGone, ObjectUnreadable
from sluice_spark.formats.bodies import ENVELOPE, REASON, VALUE, envelope_column, open_bodies
from sluice_spark.formats.envelopes import CREATED, Payload, S3Choice, parse_utc_time
from sluice_spark.formats.s3_files import (
    BATCH_BYTES,
    BATCH_ROWS,
    FAIL,
    IGNORE,
    Records,
    S3Files,
    bad_record,
    read_records,
)
from sluice_spark.formats.s3_objects import FetchObject

log = logging.getLogger(__name__)

RECEIVED = "first_received_at"


def read_object_rows(
    messages: pa.RecordBatch,
    envelopes: tuple[str, ...],
    choice: S3Choice,
    *,
    files: S3Files,
    kind: pa.DataType,
    get: FetchObject,
) -> Iterator[pa.RecordBatch]:
    """Yield a row for each record of each object, in order: the message's columns, then envelope, value, reason.

    At most twice BATCH_ROWS in a batch.

    An event that made no object is a row without a value; an object that was older than the limit when its message was
    received is no row. `kind`: the struct of the file's columns. Raises ObjectRefused, and ObjectGone where that is the
    policy.
    """
    bodies = messages.column("body").to_pylist()
    received = messages.column(RECEIVED).to_pylist() if files.max_age_s is not None else [None] * len(bodies)
    return _join_batches(
        _rows(messages.slice(index, 1), payload, object_records)
        for index, payload, reason in zip(*open_bodies(bodies, envelopes, choice), strict=True)
        if not _is_too_old(payload.facts, received[index], files.max_age_s)
        for object_records in _read_object(payload.facts, reason, files, kind, get)
    )


def _is_too_old(facts: Mapping[str, str], received: datetime | None, limit_s: float | None) -> bool:
    """Whether the object was too old when its notification was received; it reads no clock, so a retry agrees."""
    if limit_s is None or received is None or "eventTime" not in facts or not facts["event"].startswith(CREATED):
        return False
    try:
        return (received - parse_utc_time(facts["eventTime"])).total_seconds() > limit_s
    except ValueError:
        return False


def _read_object(
    facts: Mapping[str, str], reason: str | None, files: S3Files, kind: pa.DataType, get: FetchObject
) -> Iterator[Records]:
    if reason is not None or not facts["event"].startswith(CREATED):
        yield bad_record(reason, kind)
        return
    try:
        content = get(facts)
    except ObjectGone as error:
        if files.missing == FAIL:
            raise
        if files.missing == IGNORE:
            log.info("passed over: %s", error)
            return
        yield bad_record(str(error), kind)
    except ObjectUnreadable as error:
        yield bad_record(str(error), kind)
    else:
        with content:
            yield from read_records(content, facts["key"], files, kind)


def _rows(message: pa.RecordBatch, payload: Payload, found: Records) -> pa.RecordBatch:
    """Repeat the message's one row as often as there are records."""
    names, columns = list(message.schema.names), list(message.columns)
    columns[names.index("body")] = pa.array([payload.body], pa.string())
    row = pa.RecordBatch.from_arrays([*columns, envelope_column([payload])], names=[*names, ENVELOPE])
    rows = row.take(pa.repeat(pa.scalar(0, pa.int64()), len(found.reasons)))
    reasons = pa.array(found.reasons, pa.string())
    return pa.RecordBatch.from_arrays([*rows.columns, found.values, reasons], names=[*row.schema.names, VALUE, REASON])


def _join_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Join small batches into larger ones, as many objects have a single record."""
    pending: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        pending.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= BATCH_ROWS or size >= BATCH_BYTES:
            yield from pa.Table.from_batches(pending).combine_chunks().to_batches()
            pending, rows, size = [], 0, 0
    if pending:
        yield from pa.Table.from_batches(pending).combine_chunks().to_batches()
