"""How many records could not be read, from the tasks that found out to the driver that counts.

A note for each part of a batch that has some, which says where and how many.

A task tried again writes the same. A batch's errors are all there once it is committed.
"""

from sluice_spark.log.notes import note, notes
from sluice_spark.log.offsets import Position
from sluice_spark.log.planning import Slice
from sluice_spark.log.store import Store

FOLDER = "errors"


def noted(store: Store, part: Slice, errors: int, share: int = 0) -> None:
    """Note the errors of a part, once, however often it is called. Nothing is written for none."""
    if errors:
        note(store, FOLDER, part.number, part.low, part.high, share, errors)


def between(store: Store, start: Position, end: Position) -> int:
    """Count the errors in rows from `start` to `end`; both are where batches begin or end. Raises UnknownFormat."""
    found = (each.numbers for each in notes(store, FOLDER))
    return sum(errors for number, low, _, _, errors in found if start <= Position(number, low) < end)


def forget(store: Store, committed: Position, *, before: float) -> None:
    """Remove what was noted of committed segments before the time, in epoch seconds: offsets have counted it."""
    found = notes(store, FOLDER)
    store.remove([each.name for each in found if each.noted_at < before and each.numbers[0] < committed.segment])
