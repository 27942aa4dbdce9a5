"""Landed tables as a page shows them: their versions, read once each, and rows of what is small enough to look at."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
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
    number_of,
    snapshots_of,
    version_of,
)

MAX_KEPT = 200  # versions of a table
MAX_FIRST = 30  # versions that are read of what was there before
# Of a version, for a page.
SHOWN = ("version", "at_ms", "operation", "rows", "files", "removed_files", "size", "batch")
MAX_FILE = 32 * 1024 * 1024  # bytes of a file whose rows are looked at


@dataclass(slots=True)
class KnownTable:
    """A table whose log is Delta Lake's: its newest versions. Each is read once, as none ever changes.

    Safe for threads: who reads it while another one does waits.
    """

    folder: str
    versions: dict[int, TableVersion] = field(default_factory=dict)
    unread: list[int] = field(default_factory=list)  # the newest last
    _newest: str = ""  # name of a commit
    _turn: Lock = field(default_factory=Lock)

    def look(self, files: Files) -> None:
        """See which versions aren't read yet, in one request or few. Raises `CallFailed`."""
        with self._turn:
            names = files.names(f"{self.folder}/{LOG_FOLDER}", after=self._all_read)
            found = [number for number in map(number_of, names) if number is not None]
            most = MAX_KEPT if self._newest else MAX_FIRST
            self.unread = [number for number in found if number not in self.versions][-most:]
            if found:
                self._newest = commit_name(found[-1])

    @property
    def _all_read(self) -> str:
        """Name the commit up to which nothing is left to be read."""
        if not self.unread:
            return self._newest
        return commit_name(self.unread[0] - 1) if self.unread[0] else ""

    def read(self, files: Files, *, may_read: Callable[[], bool]) -> None:
        """Read versions, the newest first, a request each, while that is allowed.

        One that can't be asked for stays unread, one that is no version is passed over. Raises `CallFailed`,
        `Malformed`.
        """
        with self._turn:
            passed_over: Malformed | None = None
            while self.unread and may_read():
                number = self.unread[-1]
                try:
                    self._read(files, number)
                except Malformed as error:
                    passed_over = error
                self.unread.pop()
            if passed_over is not None:
                raise passed_over

    def _read(self, files: Files, number: int) -> None:
        content = files.read(f"{self.folder}/{LOG_FOLDER}/{commit_name(number)}")
        versions = {**self.versions, number: version_of(number, content.decode(errors="replace"))}
        self.versions = {each: versions[each] for each in sorted(versions)[-MAX_KEPT:]}

    @property
    def newest_first(self) -> Sequence[TableVersion]:
        """Its versions, as far as they are known."""
        return list(reversed(self.versions.values()))

    @property
    def rows(self) -> int | None:
        """How many rows it has; None where not all of the log is known, or something was removed since."""
        versions = self.newest_first
        is_whole = bool(versions) and not self.unread and len(versions) == versions[0].version + 1
        if not is_whole or any(each.removed_files for each in versions):
            return None
        return sum(each.rows for each in versions)


def iceberg_versions(files: Files, folder: str) -> Sequence[TableVersion]:
    """Read the newest snapshots of an Iceberg table in a folder, the newest first. Raises `CallFailed`, `Malformed`."""
    hint = files.read(f"{folder}/{VERSION_HINT}").decode().strip()
    if not hint.isdigit():
        raise Malformed(f"{folder}: no version of a table: {hint[:80]!r}")
    text = files.read(f"{folder}/{METADATA_FOLDER}/v{hint}.metadata.json").decode()
    return list(reversed(snapshots_of(text, most=MAX_FIRST)))


def document_of(versions: Sequence[TableVersion], rows: int | None) -> Document:
    """Say a table for a page, its newest version first."""
    return {
        "rows": versions[0].total_rows if versions and rows is None else rows,
        "versions": [{name: getattr(each, name) for name in SHOWN} for each in versions],
    }


def rows_of(files: Files, table: KnownTable, *, most: int) -> Sequence[Any]:
    """Read rows, those of the newest versions first, with the values of their partitions.

    Raises `NotInstalled` without pyarrow, `CallFailed`, `Malformed`.
    """
    rows = list[dict[str, Any]]()
    for added in _files_of(table):
        rows += _rows(files, table, added)
        if len(rows) >= most:
            break
    return rows[:most]


def rows_that(
    files: Files, table: KnownTable, wanted: Callable[[Mapping[str, Any]], bool], *, most: int, most_files: int
) -> Sequence[Any]:
    """Find rows among the newest files; of the others of a file nothing is kept. Raises as `rows_of` does."""
    found = list[dict[str, Any]]()
    for added in islice(_files_of(table), most_files):
        found += [row for row in _rows(files, table, added) if wanted(row)]
        if len(found) >= most:
            break
    return found[:most]


def _files_of(table: KnownTable) -> Iterator[AddedFile]:
    """Give the table's files, but those that a later version took in place of others: these are read twice else."""
    for version in table.newest_first:
        yield from version.added
        if version.removed_files:
            return


def _rows(files: Files, table: KnownTable, added: AddedFile) -> list[dict[str, Any]]:
    try:
        import pyarrow as pa  # noqa: PLC0415 - only where somebody looks at rows
        from pyarrow import parquet  # noqa: PLC0415 - see above
    except ImportError as error:
        raise NotInstalled(f"looking at rows needs pyarrow: {install_command('console')}") from error
    if added.size > MAX_FILE:
        raise Malformed(f"{added.path}: has {added.size} bytes, more than {MAX_FILE}: read it with another program")
    content = files.read(f"{table.folder}/{unquote(added.path)}")
    try:
        rows: list[dict[str, Any]] = parquet.ParquetFile(pa.BufferReader(content)).read().to_pylist()
    except pa.ArrowException as error:
        raise Malformed(f"{added.path}: {error}") from error
    return [{**row, **added.partition} for row in rows]
