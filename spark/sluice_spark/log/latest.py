"""State objects of the log of which only the newest counts: the receiver's status and the backfill's progress.

Before Spark 4.2 a source can report in a query's progress only with a new offset, which a source that receives nothing
doesn't have, so the receiver writes its status here. The backfill's progress is written after the segment it counts:
if the driver dies between the two, the next driver lists that part again and recognizes the ids.
"""

import json
import re
from dataclasses import asdict, dataclass, replace
from typing import Any

import pyarrow as pa

from sluice_spark.errors import Fenced, SegmentMissing, SegmentTaken, UnknownFormat
from sluice_spark.log.notifications import Backfill
from sluice_spark.log.store import Store

STATUS, BACKFILL = "status", "backfill"  # folders
VERSION = 1
_NAME = re.compile(r"[a-z]+/([0-9]{20})\.v([0-9]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """The receiver's, at `at_ms`, epoch milliseconds. Counts are of this driver, since `began_ms`.

    `state`: receiving, idle, or failing for the `reason`. `requests`: to SQS, as it bills them: 64 KiB each.
    `oldest_ms`: how old the oldest message was of those that came last; `waiting`: messages that the queues hold. None
    where it isn't known.
    """

    at_ms: int
    began_ms: int
    state: str
    reason: str = ""
    receives_failed: int = 0
    since_good_ms: int = 0
    requests: int = 0
    staged_messages: int = 0
    staged_bytes: int = 0
    oldest_ms: int | None = None
    waiting: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The backfill's progress: `location` is listed up to the key `after`. Times are as in Backfill."""

    location: str
    since: float
    until: float | None = None
    after: str = ""
    step: int = 0

    @property
    def backfill(self) -> Backfill:
        """The listed place and time range, to which notifications are compared."""
        bucket, _, prefix = self.location.removeprefix("s3://").partition("/")
        return Backfill(bucket=bucket, prefix=prefix, since=self.since, until=self.until)


def write_status(store: Store, status: Status) -> None:
    """Put a status in the place of those before. Raises what the store raises."""
    before = _versions(store, STATUS)
    try:
        _publish(store, STATUS, status.at_ms, status)
    except SegmentTaken:
        return  # another driver's, of the same millisecond
    store.remove([name for number, (name, _) in before.items() if number < status.at_ms])


def read_status(store: Store) -> Status | None:
    """Read the newest status; None where there is none that this version knows."""
    for _, (name, version) in sorted(_versions(store, STATUS).items(), reverse=True):
        try:
            if version == VERSION:
                return Status(**_read(store, name))
        except SegmentMissing:
            continue  # a newer one has taken its place
    return None


def write_progress(store: Store, made: Progress) -> Progress:
    """Note a step, and forget the one before; return what the next goes on from. Raises Fenced if another took it."""
    try:
        _publish(store, BACKFILL, made.step, made)
    except SegmentTaken as error:
        raise Fenced("another driver lists the bucket") from error
    store.remove([name for number, (name, _) in _versions(store, BACKFILL).items() if number < made.step])
    return replace(made, step=made.step + 1)


def read_progress(store: Store) -> Progress | None:
    """Read the newest step; None where none was begun. Raises UnknownFormat for one of a later version."""
    steps = _versions(store, BACKFILL)
    if not steps:
        return None
    name, version = steps[max(steps)]
    if version != VERSION:
        raise UnknownFormat(f"{name} is no backfill of version {VERSION}, which this package reads")
    return Progress(**_read(store, name))


def _versions(store: Store, folder: str) -> dict[int, tuple[str, int]]:
    """List a folder's objects by number, each with its format's version. What others put there is passed over."""
    parsed = [(name, _NAME.fullmatch(name)) for name in store.names(folder)]
    return {int(match[1]): (name, int(match[2])) for name, match in parsed if match}


def _publish(store: Store, folder: str, number: int, content: Status | Progress) -> None:
    store.publish(f"{folder}/{number:020d}.v{VERSION}", pa.py_buffer(json.dumps(asdict(content)).encode()))


def _read(store: Store, name: str) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(store.read(name).to_pybytes())
    return values
