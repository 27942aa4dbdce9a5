"""The receiver's status, as objects beside the log's segments, of which only the newest counts.

Before Spark 4.2 a source can report in a query's progress only with a new offset, which a source that receives nothing
doesn't have, so the receiver writes its status here.
"""

import json
import re
from dataclasses import asdict, dataclass

import pyarrow as pa

from sluice_spark.errors import SegmentMissing, SegmentTaken
from sluice_spark.log.store import Store

STATUS = "status"  # the folder
VERSION = 1
_NAME = re.compile(rf"{STATUS}/([0-9]{{20}})\.v([0-9]+)")  # the status's time in milliseconds, and the format's version


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


def write_status(store: Store, status: Status) -> None:
    """Put a status in the place of those before. Raises what the store raises."""
    before = [name for name in store.names(STATUS) if (match := _NAME.fullmatch(name)) and int(match[1]) < status.at_ms]
    content = pa.py_buffer(json.dumps(asdict(status)).encode())
    try:
        store.publish(f"{STATUS}/{status.at_ms:020d}.v{VERSION}", content)
    except SegmentTaken:
        return  # another driver's, of the same millisecond
    store.remove(before)


def read_status(store: Store) -> Status | None:
    """Read the newest status; None where there is none that this version knows."""
    for name in sorted(store.names(STATUS), reverse=True):
        match = _NAME.fullmatch(name)
        if match is None or int(match[2]) != VERSION:
            continue
        try:
            return Status(**json.loads(store.read(name).to_pybytes()))
        except SegmentMissing:
            continue  # a newer one has taken its place
    return None
