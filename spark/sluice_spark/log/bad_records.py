"""Counts of bad records, and the quarantined records themselves. Tasks write both; the driver reads the counts.

A count is an empty object. Its name contains the segment, the range of rows, the share of FIFO groups, the number of
bad records and the format's version. A retried task writes the same names, so each count exists once. Other files in
the folder are ignored.
"""

import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress

import pyarrow as pa

from sluice_spark.errors import SegmentTaken, UnknownFormat
from sluice_spark.log.planning import Position, Slice
from sluice_spark.log.store import Store

log = logging.getLogger(__name__)

ERRORS = "errors"  # the folder of the counts of bad records
VERSION = 1
_NAME = re.compile(rf"{ERRORS}/([0-9]{{20}}(?:-[0-9]+)+)\.v([0-9]+)")


def write_error_count(store: Store, part: Slice, errors: int, share_index: int = 0) -> None:
    """Write the number of unreadable records in a part of a segment; write nothing if the part has no such records."""
    if errors:
        name = f"{ERRORS}/{part.segment_number:020d}-{part.low}-{part.high}-{share_index}-{errors}.v{VERSION}"
        with suppress(SegmentTaken):
            store.publish(name, pa.py_buffer(b""))


def count_errors(store: Store, start: Position, end: Position) -> int:
    """Return the number of bad records in the rows from `start` to `end`. Both must be boundaries of batches.

    Once a batch is committed, all its counts exist. Raises UnknownFormat.
    """
    noted = (numbers for _, numbers, _ in _read_counts(store))
    return sum(errors for number, low, _, _, errors in noted if start <= Position(number, low) < end)


def remove_error_counts(store: Store, committed: Position, *, before_s: float) -> None:
    """Remove old counts of committed segments. Offsets include these counts. `before_s` is in epoch seconds."""
    noted = _read_counts(store)
    store.remove([name for name, numbers, at in noted if at < before_s and numbers[0] < committed.segment])


def _read_counts(store: Store) -> Iterator[tuple[str, Sequence[int], float]]:
    """Yield each count's name, numbers and time in epoch seconds. Raises UnknownFormat for a later format version."""
    for name, at in store.list_names(ERRORS).items():
        parsed = _NAME.fullmatch(name)
        if not parsed:
            continue
        if int(parsed[2]) != VERSION:
            raise UnknownFormat(f"{name} is no note of version {VERSION}, which this package reads")
        yield name, [int(number) for number in parsed[1].split("-")], at


def quarantine(store: Store, part: Slice, rows: pa.RecordBatch, share_index: int = 0, piece_index: int = 0) -> None:
    """Write bad records to a new Parquet file, whose name contains the number of records.

    The file is directly in the location, so that the location can be read as a table. The file is durable on return,
    before the task's good rows are used. `piece_index` distinguishes the files of a part read in several pieces.
    """
    if not rows.num_rows:
        return
    import pyarrow.parquet as pq  # noqa: PLC0415  5 MiB, which a task needs and a driver doesn't

    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_batches([rows]), sink)
    within = f"{share_index}.{piece_index}" if piece_index else f"{share_index}"
    name = f"{part.segment_number:020d}-{part.low}-{part.high}-{within}-{rows.num_rows}.parquet"
    with suppress(SegmentTaken):
        store.publish(name, sink.getvalue())
        log.warning("%d bad records of segment %d are in %s", rows.num_rows, part.segment_number, name)
