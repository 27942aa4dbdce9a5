"""Notes beside the segments: empty objects, whose names are numbers, a segment's first, and the format's version.

A note is written by a task for the driver to find, once, however often the task is tried.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from sluice_spark.errors import SegmentTaken, UnknownFormat
from sluice_spark.log.store import Store

VERSION = 1
_NAME = re.compile(r"([0-9]{20}(?:-[0-9]+)+)\.v([0-9]+)")


@dataclass(frozen=True, slots=True)
class Note:
    """One that was found. `noted_at`: epoch seconds."""

    name: str
    numbers: Sequence[int]
    noted_at: float


def note(store: Store, folder: str, number: int, *numbers: int) -> None:
    """Publish what is to be said of segment `number`. One that is there says the same."""
    name = "-".join([f"{number:020d}", *(str(each) for each in numbers)])
    try:
        store.publish(f"{folder}/{name}.v{VERSION}", pa.py_buffer(b""))
    except SegmentTaken:
        return


def notes(store: Store, folder: str, since: int = 0) -> Sequence[Note]:
    """Find the folder's notes, of segments from `since` on. Raises UnknownFormat for those of a later version.

    What others put beside them is passed over.
    """
    found = []
    for name, at in store.names(folder, after=f"{folder}/{since:020d}").items():
        parsed = _NAME.fullmatch(name.removeprefix(f"{folder}/"))
        if not parsed:
            continue
        if int(parsed[2]) != VERSION:
            raise UnknownFormat(f"{name} is no note of version {VERSION}, which this package reads")
        found.append(Note(name, [int(each) for each in parsed[1].split("-")], at))
    return found
