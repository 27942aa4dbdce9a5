"""The receiver's status, stored in objects beside the log's segments. Only the newest status is valid."""

import json
import re
from dataclasses import asdict, dataclass

import pyarrow as pa

from sluice_spark.errors import SegmentMissing, SegmentTaken
from sluice_spark.log.store import Store

STATUS = "status"  # the folder of the receiver's statuses
VERSION = 1
_NAME = re.compile(rf"{STATUS}/([0-9]{{20}})\.v([0-9]+)")  # time in milliseconds, format version


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiverStatus:
    """The receiver's status at `at_ms`, in epoch milliseconds. Counts are of this driver, since `began_ms`.

    `state` is receiving, idle, or failing, with the `reason`. `requests` counts SQS requests as billed, each 64 KiB as
    one. `oldest_ms` is the age of the oldest of the last received messages. `waiting` is the number of messages in the
    queues. A field is None if its value is unknown.
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


def write_status(store: Store, status: ReceiverStatus) -> None:
    """Write the status and remove older statuses. Raises the store's errors."""
    old = [name for name in store.list_names(STATUS) if (hit := _NAME.fullmatch(name)) and int(hit[1]) < status.at_ms]
    content = pa.py_buffer(json.dumps(asdict(status)).encode())
    try:
        store.publish(f"{STATUS}/{status.at_ms:020d}.v{VERSION}", content)
    except SegmentTaken:
        return  # Another driver has written a status in the same millisecond.
    store.remove(old)


def read_status(store: Store) -> ReceiverStatus | None:
    """Read the newest status that has a format known to this version; None if there is none."""
    for name in sorted(store.list_names(STATUS), reverse=True):
        match = _NAME.fullmatch(name)
        if match is None or int(match[2]) != VERSION:
            continue
        try:
            return ReceiverStatus(**json.loads(store.read(name).to_pybytes()))
        except SegmentMissing:
            continue  # A newer status has replaced this status.
    return None
