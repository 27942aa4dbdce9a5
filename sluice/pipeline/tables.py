"""What the logs of landed tables say of their versions: Delta Lake's, as the jobs write it, and Iceberg's. Pure.

Only what is shown to people: who reads rows takes a program that knows the format.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from sluice.errors import Malformed

LOG_FOLDER = "_delta_log"
COMMIT_SUFFIX = ".json"
METADATA_FOLDER = "metadata"  # of an Iceberg table in a folder
VERSION_HINT = f"{METADATA_FOLDER}/version-hint.text"
_DIGITS = 20  # of a version in its file's name


class Files(Protocol):
    """A folder of files, on a disk or in a bucket. Raises `CallFailed`, or `Malformed` for a file that isn't there."""

    def names(self, folder: str, *, after: str = "") -> Sequence[str]:
        """List the names of files in a folder that come after one, in order."""

    def read(self, path: str) -> bytes:
        """Read a file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedFile:
    """A file of rows that a version added. `path` is relative to the table, and URI-encoded."""

    path: str
    partition: Mapping[str, str | None]
    size: int
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TableVersion:
    """What a version did. `batch` is the number of a streaming query's batch that it took, None for other changes.

    `total_rows` are the table's, where the log says so.
    """

    version: int
    at_ms: int
    operation: str
    rows: int
    added: Sequence[AddedFile] = ()
    files: int = 0
    removed_files: int = 0
    size: int = 0
    batch: int | None = None
    total_rows: int | None = None


def commit_name(version: int) -> str:
    """Name the file of a version, below the log's folder."""
    return f"{version:0{_DIGITS}}{COMMIT_SUFFIX}"


def number_of(name: str) -> int | None:
    """Read the version that a file of the log is of; None where it is another file."""
    number = name.removesuffix(COMMIT_SUFFIX)
    return int(number) if name.endswith(COMMIT_SUFFIX) and len(number) == _DIGITS and number.isdigit() else None


def version_of(number: int, text: str) -> TableVersion:
    """Read a version of Delta's log. Raises `Malformed`."""
    try:
        actions = [json.loads(line) for line in text.splitlines() if line.strip()]
        added = [_added(each["add"]) for each in actions if "add" in each]
        info: Mapping[str, Any] = next((each["commitInfo"] for each in actions if "commitInfo" in each), {})
        batch = next((each["txn"]["version"] for each in actions if "txn" in each), None)
        return TableVersion(
            version=number,
            at_ms=int(info.get("timestamp", 0)),
            operation=str(info.get("operation", "")),
            rows=sum(each.rows for each in added),
            added=added,
            files=len(added),
            removed_files=sum("remove" in each for each in actions),
            size=sum(each.size for each in added),
            batch=None if batch is None else int(batch),
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise Malformed(f"version {number} of a table: {type(error).__name__}: {error}") from error


def _added(action: Mapping[str, Any]) -> AddedFile:
    rows = json.loads(action.get("stats") or "{}").get("numRecords", 0)
    return AddedFile(
        path=str(action["path"]), partition=dict(action["partitionValues"]), size=int(action["size"]), rows=int(rows)
    )


def snapshots_of(text: str, *, most: int) -> Sequence[TableVersion]:
    """Read the newest snapshots of an Iceberg table's metadata, the oldest first. Raises `Malformed`."""
    try:
        snapshots = json.loads(text).get("snapshots", [])
        return [_snapshot(each) for each in sorted(snapshots, key=lambda each: each["timestamp-ms"])[-most:]]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise Malformed(f"metadata of a table: {type(error).__name__}: {error}") from error


def _snapshot(snapshot: Mapping[str, Any]) -> TableVersion:
    summary = snapshot["summary"]
    batch, total = summary.get("sluice.batch"), summary.get("total-records")
    return TableVersion(
        version=int(snapshot.get("sequence-number", 0)),
        at_ms=int(snapshot["timestamp-ms"]),
        operation=str(summary.get("operation", "")),
        rows=int(summary.get("added-records", 0)),
        files=int(summary.get("added-data-files", 0)),
        removed_files=int(summary.get("deleted-data-files", 0)),
        size=int(summary.get("added-files-size", 0)),
        batch=None if batch is None else int(batch),
        total_rows=None if total is None else int(total),
    )
