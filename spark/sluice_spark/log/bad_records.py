"""How many records could not be read, from the tasks that found out to the driver that counts: an empty file in the
staging location for each part of a batch that has some, whose name says where and how many.

A task tried again writes the same name. A batch's errors are all there once it is committed.
"""

from collections.abc import Sequence

import pyarrow as pa

from sluice_spark.errors import SegmentTaken
from sluice_spark.log.offsets import Position
from sluice_spark.log.planning import Slice
from sluice_spark.log.store import Store

FOLDER = "errors"


def noted(store: Store, part: Slice, errors: int, share: int = 0) -> None:
    """Once, however often it is called. No file for none."""
    if not errors:
        return
    name = f"{FOLDER}/{part.number:020d}-{part.low}-{part.high}-{share}-{errors}"
    try:
        store.publish(name, pa.py_buffer(b""))
    except SegmentTaken:
        return  # an earlier try of this task, or its twin


def between(store: Store, start: Position, end: Position) -> int:
    """Errors in rows from `start` to `end`; both are where batches begin or end."""
    found = (_parsed(name) for name in store.names(FOLDER))
    return sum(errors for position, errors in found if start <= position < end)


def forget(store: Store, committed: Position, *, before: float) -> None:
    """Removes what was noted of committed segments before the time, in epoch seconds: offsets have counted it."""
    names = store.names(FOLDER).items()
    old: Sequence[str] = [n for n, at in names if at < before and _parsed(n)[0].segment < committed.segment]
    store.remove(old)


def _parsed(name: str) -> tuple[Position, int]:
    number, low, _, _, errors = name.rpartition("/")[2].split("-")
    return Position(int(number), int(low)), int(errors)
