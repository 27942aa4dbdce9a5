"""DynamoDB's units that requests would cost on AWS: one JSON line each, written by `benchmarks.counting_cloud`.

https://docs.aws.amazon.com/amazondynamodb/latest/developerguide/read-write-operations.html
"""

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Lock
from typing import Any, TextIO

WRITE, READ = "write", "read"
WRITE_BYTES, READ_BYTES = 1024, 4096  # of one unit


@dataclass(frozen=True, slots=True, kw_only=True)
class Units:
    """The units of one request. `partition` is the first word of its key, before a `#`; `sort` is its sort key."""

    at_ms: int
    action: str
    table: str
    partition: str
    kind: str
    units: float
    sort: str = ""


class UnitLog:
    """The log file. Thread-safe; each line is written whole, so the file can be read while it grows."""

    def __init__(self, path: Path) -> None:
        """Open the file to append, so that a restarted cloud continues it."""
        self._file: TextIO = path.open("a", buffering=1)
        self._lock = Lock()

    def note(self, *, action: str, table: str, data: Mapping[str, Any], kind: str, units: float) -> None:
        """Append a line for a request for one item or one partition."""
        noted = Units(
            at_ms=time.time_ns() // 1_000_000,
            action=action,
            table=table,
            partition=find_key_text(data, "pk").partition("#")[0],
            kind=kind,
            units=units,
            sort=find_key_text(data, "sk"),
        )
        with self._lock:
            self._file.write(json.dumps(asdict(noted)) + "\n")


def read_units(path: Path, *, offset: int = 0) -> Iterator[Units]:
    """Read the lines after `offset` bytes of the file."""
    with path.open("rb") as file:
        file.seek(offset)
        for line in file:
            if line.endswith(b"\n"):
                yield Units(**json.loads(line))


def write_units(size: int) -> int:
    """Count the units for writing or deleting an item of this size."""
    return max(-(-size // WRITE_BYTES), 1)


def read_units_of(size: int, *, consistent: bool) -> float:
    """Count the units for reading this many bytes."""
    return max(-(-size // READ_BYTES), 1) * (1.0 if consistent else 0.5)


def find_key_text(data: Mapping[str, Any], name: str) -> str:
    """Find the text of the key `pk` or `sk` in a request for one item or one partition; empty if it has none."""
    key = data.get("Key") or data.get("Item") or {}
    value = key.get(name) or (data.get("ExpressionAttributeValues") or {}).get(f":{name}") or {}
    found: str = value.get("S", "")
    return found
