"""What tasks write beside the segments, for the driver to find: notes, counts of bad records, and the bad records.

A note is an empty object, whose name is numbers, a segment's first, and the format's version. A task that is tried
again writes the same names, so each is there once. What others put beside them is passed over.
"""

import logging
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import pyarrow as pa

from sluice_spark.errors import SegmentTaken, UnknownFormat
from sluice_spark.log.planning import Position, Slice
from sluice_spark.log.store import Store

log = logging.getLogger(__name__)

ERRORS = "errors"  # the folder of notes that count records which could not be read
VERSION = 1
_NAME = re.compile(r"([0-9]{20}(?:-[0-9]+)+)\.v([0-9]+)")


@dataclass(frozen=True, slots=True)
class Note:
    """A note that was read. `noted_at`: epoch seconds."""

    name: str
    numbers: Sequence[int]
    noted_at: float


def note(store: Store, folder: str, number: int, *numbers: int) -> None:
    """Publish a note about segment `number`."""
    name = "-".join([f"{number:020d}", *map(str, numbers)])
    with suppress(SegmentTaken):
        store.publish(f"{folder}/{name}.v{VERSION}", pa.py_buffer(b""))


def notes(store: Store, folder: str) -> Sequence[Note]:
    """Read the folder's notes. Raises UnknownFormat for those of a later version."""
    listed = []
    for name, at in store.names(folder).items():
        parsed = _NAME.fullmatch(name.removeprefix(f"{folder}/"))
        if not parsed:
            continue
        if int(parsed[2]) != VERSION:
            raise UnknownFormat(f"{name} is no note of version {VERSION}, which this package reads")
        listed.append(Note(name, [int(number) for number in parsed[1].split("-")], at))
    return listed


def note_errors(store: Store, part: Slice, errors: int, share: int = 0) -> None:
    """Note how many records of a part could not be read. Nothing is written for none."""
    if errors:
        note(store, ERRORS, part.number, part.low, part.high, share, errors)


def count_errors(store: Store, start: Position, end: Position) -> int:
    """Count the errors in rows from `start` to `end`; both are where batches begin or end.

    A batch's errors are all there once it is committed. Raises UnknownFormat.
    """
    noted = (one.numbers for one in notes(store, ERRORS))
    return sum(errors for number, low, _, _, errors in noted if start <= Position(number, low) < end)


def forget_errors(store: Store, committed: Position, *, before: float) -> None:
    """Remove what was noted of committed segments before the time, in epoch seconds: offsets have counted it."""
    noted = notes(store, ERRORS)
    store.remove([one.name for one in noted if one.noted_at < before and one.numbers[0] < committed.segment])


def quarantine(store: Store, part: Slice, rows: pa.RecordBatch, share: int = 0, piece: int = 0) -> None:
    """Write bad records to a Parquet file of their own, whose name says how many there are.

    The file lies in the location itself, so that this can be read as a table. It is durable when this returns, before
    the task's good rows are used. `piece`: of a part whose rows come in several.
    """
    if not rows.num_rows:
        return
    import pyarrow.parquet as pq  # noqa: PLC0415  5 MiB, which a task needs and a driver doesn't

    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_batches([rows]), sink)
    within = f"{share}.{piece}" if piece else f"{share}"
    name = f"{part.number:020d}-{part.low}-{part.high}-{within}-{rows.num_rows}.parquet"
    with suppress(SegmentTaken):
        store.publish(name, sink.getvalue())
        log.warning("%d bad records of segment %d are in %s", rows.num_rows, part.number, name)
