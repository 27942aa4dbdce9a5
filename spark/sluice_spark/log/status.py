"""What the receiver is doing, for whoever watches the query: an object of which the newest counts.

Before Spark 4.2 a source can't say anything in a query's progress but with a new offset, which one that receives
nothing never has.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import pyarrow as pa

from sluice_spark.errors import SegmentMissing, SegmentTaken
from sluice_spark.log.store import Store

FOLDER = "status"
VERSION = 1
_NAME = re.compile(rf"{FOLDER}/([0-9]{{20}})\.v{VERSION}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """At `at_ms`, epoch milliseconds. Counts are of this driver, since `began_ms`.

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


def say(store: Store, status: Status) -> None:
    """Put a status in the place of those before. Raises what the store raises."""
    before = _names(store)
    name = f"{FOLDER}/{status.at_ms:020d}.v{VERSION}"
    try:
        store.publish(name, pa.py_buffer(json.dumps(asdict(status)).encode()))
    except SegmentTaken:
        return  # another driver's, of the same millisecond
    store.remove([each for each in before if each < name])


def said(store: Store) -> Status | None:
    """Find the newest; None where there is none that this version knows."""
    for name in reversed(_names(store)):
        try:
            return Status(**json.loads(store.read(name).to_pybytes()))
        except SegmentMissing:
            continue  # a newer one has taken its place
    return None


def _names(store: Store) -> Sequence[str]:
    return sorted(name for name in store.names(FOLDER) if _NAME.fullmatch(name))
