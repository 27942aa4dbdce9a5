"""How far the backfill of a log is: an object for each step, of which the newest counts.

It is written after the segment that it counts: who dies between the two lists that part again, and knows its ids.
"""

import json
import re
from dataclasses import asdict, dataclass, replace

import pyarrow as pa

from sluice_spark.errors import Fenced, SegmentTaken, UnknownFormat
from sluice_spark.log.notified import Backfill
from sluice_spark.log.store import Store

FOLDER = "backfill"
VERSION = 1
_NAME = re.compile(rf"{FOLDER}/([0-9]{{20}})\.v([0-9]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What is listed of `location`, up to the key `after`. Times as Backfill has them."""

    location: str
    since: float
    until: float | None = None
    after: str = ""
    step: int = 0

    @property
    def backfill(self) -> Backfill:
        """What notifications are told by."""
        bucket, _, prefix = self.location.removeprefix("s3://").partition("/")
        return Backfill(bucket=bucket, prefix=prefix, since=self.since, until=self.until)


def progress(store: Store) -> Progress | None:
    """Find the newest step; None where none was begun. Raises UnknownFormat for one of a later version."""
    steps = {}
    for name in store.names(FOLDER):
        if found := _NAME.fullmatch(name):
            steps[int(found[1])] = name, int(found[2])
    if not steps:
        return None
    name, version = steps[max(steps)]
    if version != VERSION:
        raise UnknownFormat(f"{name} is no backfill of version {VERSION}, which this package reads")
    return Progress(**json.loads(store.read(name).to_pybytes()))


def noted(store: Store, made: Progress) -> Progress:
    """Note a step, and forget the one before; return what the next goes on from. Raises Fenced if another took it."""
    try:
        store.publish(_name(made.step), pa.py_buffer(json.dumps(asdict(made)).encode()))
    except SegmentTaken as error:
        raise Fenced("another driver lists the bucket") from error
    if made.step:
        store.remove([_name(made.step - 1)])
    return replace(made, step=made.step + 1)


def _name(step: int) -> str:
    return f"{FOLDER}/{step:020d}.v{VERSION}"
