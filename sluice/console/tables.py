"""Reads landed tables for a page: their versions, each read once, and rows of files that are small enough."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any
from urllib.parse import unquote

from sluice.building.project import NotInstalled, install_command
from sluice.console.sites import Document
from sluice.errors import Malformed
from sluice.pipeline.tables import (
    LOG_FOLDER,
    METADATA_FOLDER,
    VERSION_HINT,
    AddedFile,
    Files,
    TableVersion,
    commit_name,
    parse_snapshots,
    parse_version,
    parse_version_number,
)

MAX_CACHED_VERSIONS = 200  # versions of a table
MAX_INITIAL_VERSIONS = 30  # versions read when a table is first seen
VERSION_FIELDS = ("version", "at_ms", "operation", "rows", "files", "removed_files", "size", "batch")
MAX_FILE_BYTES = 32 * 1024 * 1024  # rows of larger files aren't read


@dataclass(slots=True)
class CachedTable:
    """The newest versions of a Delta Lake table. Each is read once, because versions are immutable. Thread-safe."""

    folder: str
    versions: dict[int, TableVersion] = field(default_factory=dict)
    unread: list[int] = field(default_factory=list)  # version numbers, the newest last
    _newest: str = ""  # the newest commit's name
    _turn: Lock = field(default_factory=Lock)

    def look(self, files: Files) -> None:
        """List the versions that aren't read yet, usually in one request. Raises `CallFailed`."""
        with self._turn:
            read_to = self._newest  # the newest commit that has no unread commit before it
            if self.unread:
                read_to = commit_name(self.unread[0] - 1) if self.unread[0] else ""
            names = files.names(f"{self.folder}/{LOG_FOLDER}", after=read_to)
            numbers = [number for number in map(parse_version_number, names) if number is not None]
            most = MAX_CACHED_VERSIONS if self._newest else MAX_INITIAL_VERSIONS
            self.unread = [number for number in numbers if number not in self.versions][-most:]
            if numbers:
                self._newest = commit_name(numbers[-1])

    def read(self, files: Files, *, may_read: Callable[[], bool]) -> None:
        """Read unread versions, the newest first, with a request each, while `may_read` returns true.

        After a failed call the version stays unread; a malformed one is skipped. Raises `CallFailed`, `Malformed`.
        """
        with self._turn:
            malformed: Malformed | None = None
            while self.unread and may_read():
                number = self.unread[-1]
                try:
                    content = files.read(f"{self.folder}/{LOG_FOLDER}/{commit_name(number)}")
                    versions = {**self.versions, number: parse_version(number, content.decode(errors="replace"))}
                    self.versions = {key: versions[key] for key in sorted(versions)[-MAX_CACHED_VERSIONS:]}
                except Malformed as error:
                    malformed = error
                self.unread.pop()
            if malformed is not None:
                raise malformed

    @property
    def newest_first(self) -> Sequence[TableVersion]:
        """The versions that have been read, the newest first."""
        return list(reversed(self.versions.values()))

    @property
    def rows(self) -> int | None:
        """The table's number of rows; None if versions are unread or files have been removed."""
        versions = self.newest_first
        is_whole = bool(versions) and not self.unread and len(versions) == versions[0].version + 1
        if not is_whole or any(version.removed_files for version in versions):
            return None
        return sum(version.rows for version in versions)


def iceberg_versions(files: Files, folder: str) -> Sequence[TableVersion]:
    """Read the latest snapshots of an Iceberg table in a folder, the newest first. Raises `CallFailed`, `Malformed`."""
    hint = files.read(f"{folder}/{VERSION_HINT}").decode().strip()
    if not hint.isdigit():
        raise Malformed(f"{folder}: {hint[:80]!r} is not the version of a table")
    text = files.read(f"{folder}/{METADATA_FOLDER}/v{hint}.metadata.json").decode()
    return list(reversed(parse_snapshots(text, most=MAX_INITIAL_VERSIONS)))


def table_document(versions: Sequence[TableVersion], rows: int | None) -> Document:
    """Format a table for a page, the newest version first."""
    return {
        "rows": versions[0].total_rows if versions and rows is None else rows,
        "versions": [{name: getattr(version, name) for name in VERSION_FIELDS} for version in versions],
    }


def read_rows(files: Files, table: CachedTable, *, most: int) -> Sequence[Any]:
    """Read rows with their partition values, those of the newest versions first.

    Raises `NotInstalled` without pyarrow, `CallFailed`, `Malformed`.
    """
    rows = list[dict[str, Any]]()
    for version in table.newest_first:
        for added in version.added:
            rows += _rows(files, table, added)
            if len(rows) >= most:
                return rows[:most]
        if version.removed_files:  # a rewrite, which contains the rows of earlier versions
            break
    return rows


def _rows(files: Files, table: CachedTable, added: AddedFile) -> list[dict[str, Any]]:
    try:
        import pyarrow as pa  # noqa: PLC0415 - an optional dependency, needed only to read rows
        from pyarrow import parquet  # noqa: PLC0415 - see above
    except ImportError as error:
        raise NotInstalled(f"reading rows needs pyarrow: {install_command('console')}") from error
    if added.size > MAX_FILE_BYTES:
        raise Malformed(
            f"{added.path}: has {added.size} bytes, more than {MAX_FILE_BYTES}: read it with another program"
        )
    content = files.read(f"{table.folder}/{unquote(added.path)}")
    try:
        rows: list[dict[str, Any]] = parquet.ParquetFile(pa.BufferReader(content)).read().to_pylist()
    except pa.ArrowException as error:
        raise Malformed(f"{added.path}: {error}") from error
    return [{**row, **added.partition} for row in rows]
