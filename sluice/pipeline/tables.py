"""Versions of landed tables, parsed from Delta Lake's log, as the jobs write it, and from Iceberg metadata. Pure.

This is for display only; reading rows takes a library for the format.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Protocol

from sluice.errors import Malformed

LOG_FOLDER = "_delta_log"
COMMIT_SUFFIX = ".json"
METADATA_FOLDER = "metadata"  # name of an Iceberg table's folder
VERSION_HINT = f"{METADATA_FOLDER}/version-hint.text"
_DIGITS = 20  # length of a version in a commit file's name


class Files(Protocol):
    """A folder of files, on a disk or in a bucket. Raises `CallFailed`, or `Malformed` for a missing file."""

    def names(self, folder: str, *, after: str = "") -> Sequence[str]:
        """List the names of a folder's files after the name `after`, in order."""

    def read(self, path: str) -> bytes:
        """Return the content of a file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedFile:
    """A data file that a version has added. `path` is relative to the table, and URI-encoded."""

    path: str
    partition: Mapping[str, str | None]
    size: int
    rows: int

    @classmethod
    def parse(cls, action: Mapping[str, Any]) -> "AddedFile":
        """Parse an `add` action of the log. Raises KeyError, TypeError, ValueError for another document."""
        return cls(
            path=str(action["path"]),
            partition=dict(action["partitionValues"]),
            size=int(action["size"]),
            rows=int(json.loads(action.get("stats") or "{}").get("numRecords", 0)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TableVersion:
    """The changes of a version. `batch` is the number of the streaming query's batch, None for other changes.

    `total_rows` is the table's row count, None if the log doesn't have it.
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

    @classmethod
    def from_snapshot(cls, snapshot: Mapping[str, Any]) -> "TableVersion":
        """Parse an Iceberg snapshot. Raises KeyError, TypeError, ValueError for another document."""
        summary = snapshot["summary"]
        batch, total = summary.get("sluice.batch"), summary.get("total-records")
        return cls(
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


def commit_name(version: int) -> str:
    """Return the name of a version's commit file in the log's folder."""
    return f"{version:0{_DIGITS}}{COMMIT_SUFFIX}"


def parse_version_number(name: str) -> int | None:
    """Parse the version from a commit file's name; None for any other file."""
    number = name.removesuffix(COMMIT_SUFFIX)
    return int(number) if name.endswith(COMMIT_SUFFIX) and len(number) == _DIGITS and number.isdigit() else None


def parse_version(number: int, text: str) -> TableVersion:
    """Parse a commit file of Delta's log. Raises `Malformed`."""
    try:
        actions = [json.loads(line) for line in text.splitlines() if line.strip()]
        added = [AddedFile.parse(action["add"]) for action in actions if "add" in action]
        info: Mapping[str, Any] = next((action["commitInfo"] for action in actions if "commitInfo" in action), {})
        batch = next((action["txn"]["version"] for action in actions if "txn" in action), None)
        return TableVersion(
            version=number,
            at_ms=int(info.get("timestamp", 0)),
            operation=str(info.get("operation", "")),
            rows=sum(file.rows for file in added),
            added=added,
            files=len(added),
            removed_files=sum("remove" in action for action in actions),
            size=sum(file.size for file in added),
            batch=None if batch is None else int(batch),
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise Malformed(f"version {number} of a table: {type(error).__name__}: {error}") from error


def parse_snapshots(text: str, *, most: int) -> Sequence[TableVersion]:
    """Parse the newest snapshots from an Iceberg table's metadata, the oldest first. Raises `Malformed`."""
    try:
        snapshots = json.loads(text).get("snapshots", [])
        return [
            TableVersion.from_snapshot(snapshot)
            for snapshot in sorted(snapshots, key=itemgetter("timestamp-ms"))[-most:]
        ]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise Malformed(f"metadata of a table: {type(error).__name__}: {error}") from error
