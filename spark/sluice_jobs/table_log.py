"""A table's log, kept by the package deltalake: which files are the table, at which version, after which batches.

Spark writes the files, without Delta's jars; a version of the log makes them the table, or not. Versions are published
create-exclusive, by a hard link or S3's `If-None-Match: *`, so writers never undo each other. Checkpoints, the log's
clean-up and that of files are the library's.

Only adding, replacing and forgetting files is decided here: no Spark.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import date
from functools import cached_property, partial
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import botocore.session
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Schema
from deltalake import Transaction as AppTransaction
from deltalake.exceptions import CommitFailedError, DeltaError, DeltaProtocolError, TableNotFoundError
from deltalake.fs import DeltaStorageHandler
from deltalake.transaction import AddAction, RemoveAction
from pyarrow.fs import FileSelector, FileType, PyFileSystem

from sluice_jobs.table_schemas import evolved
from sluice_spark.errors import InvalidOffset, LogError, SegmentMissing, UnknownFormat
from sluice_spark.log.store import S3_SCHEMES

FOLDER = "_delta_log"
CHECKPOINT_EVERY = 50  # versions
LOG_KEPT_DAYS = 7  # versions, for readers that follow the table
FILES_KEPT_HOURS = 24  # that are no longer of the table, and those of attempts that were killed: so long may one read
OFFSET_VERSION = 1  # of a stream of the table
COMMIT_ATTEMPTS = 50  # others' commits between our reading and our publishing
CONFIGURATION = {
    "delta.checkpointInterval": str(CHECKPOINT_EVERY),
    "delta.logRetentionDuration": f"interval {LOG_KEPT_DAYS} days",
    "delta.deletedFileRetentionDuration": f"interval {FILES_KEPT_HOURS // 24} days",
}
MEASURED = ("sent_at", "happened_at")  # columns whose least and greatest are in the log: readers skip files by them
PARQUET = ".parquet"
UNSUPPORTED = "Unsupported"
_LIKE_THE_LIBRARY = "/!$&'()+,:;=@"  # what it leaves as it is in a path, beside letters, digits and `_.-~`
_NO_DAY = "0001-01-01"


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """A Parquet file of the table. `path` is relative, as the log has it; `partition` has its partition's texts."""

    path: str
    partition: Mapping[str, str]
    size: int
    rows: int
    stats: str = ""  # of a new file, as the log takes them

    @property
    def name(self) -> str:
        """Its name in the table's folder."""
        return unquote(self.path)


def encoded(name: str) -> str:
    """Write a file's name as the library does in the log."""
    return quote(name, safe=_LIKE_THE_LIBRARY)


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """What an application has written up to: a batch of a query is in the table once."""

    app_id: str
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What a commit does, all at once. One that is `moved` adds the rows that it removes, and no others."""

    add: Sequence[DataFile] = ()
    remove: Sequence[DataFile] = ()
    moved: bool = False


class TableLog:
    """One table's log, as far as this process has read it. Not for threads.

    Raises LogError for what the store or the library refuses, UnknownFormat for a table of another kind.
    """

    def __init__(self, location: str, *, schema: str, partition_columns: Sequence[str]) -> None:
        """Touch nothing yet. `schema`: the columns as Spark writes them as JSON, partition columns among them."""
        self._place = TableLocation(location)
        self._schema, self._partition_columns = schema, list(partition_columns)
        self._table: DeltaTable | None = None
        self._options: Mapping[str, str] = {}

    @property
    def version(self) -> int:
        """The newest; -1 before the first."""
        table = self._newest()
        return -1 if table is None else table.version()

    @property
    def rows(self) -> int:
        """Of all files."""
        return sum(file.rows for file in self.files())

    @property
    def schema(self) -> str | None:
        """The table's columns, as JSON; None where it isn't there."""
        table = self._newest()
        return None if table is None else str(table.schema().to_json())

    def files(self) -> Sequence[DataFile]:
        """List those of the newest version."""
        table = self._newest()
        return [] if table is None else list(_files(table))

    def has(self, transaction: Transaction) -> bool:
        """Whether its batch, or a later one of the same application, is in the table."""
        table = self._newest()
        return table is not None and _has(table, transaction)

    def append(self, files: Sequence[DataFile], transaction: Transaction) -> bool:
        """Make the files the table's, once for each transaction; False where its rows are there from others."""

        def make(table: DeltaTable) -> Change | bool:
            if not _has(table, transaction):
                return Change(add=files)
            # Ours all the same, where a try has come through and only its answer was lost.
            return bool(files) and files[0].path in {file.path for file in _files(table)}

        said = [AppTransaction(transaction.app_id, transaction.version)]
        return self._commit(make, CommitProperties(app_transactions=said))

    def change(self, make: Callable[[Sequence[DataFile]], Change | None]) -> bool:
        """Publish what `make` makes of the newest version's files; None leaves the table as it is, and is False.

        Called anew each time that another writer was faster: the library by itself would add what another has added
        already, of files that another has removed.
        """
        tried: Change | None = None

        def make_anew(table: DeltaTable) -> Change | bool:
            nonlocal tried
            files = list(_files(table))
            if tried and tried.add and {file.path for file in tried.add} <= {file.path for file in files}:
                return True  # a try has come through, and only its answer was lost
            tried = make(files)
            return tried or False

        return self._commit(make_anew, CommitProperties(max_commit_retries=0))

    def _commit(self, make: Callable[[DeltaTable], Change | bool], said: CommitProperties) -> bool:
        """Publish what `make` makes of the newest version, until nobody was faster; or return what it says instead."""
        for _ in range(COMMIT_ATTEMPTS):
            table = self._made()
            change = make(table)
            if isinstance(change, bool):
                return change
            now_ms, is_new = int(time.time() * 1000), not change.moved
            actions: list[AddAction | RemoveAction] = []
            for file in change.add:
                stats = file.stats or json.dumps({"numRecords": file.rows})
                actions += [AddAction(file.name, file.size, dict(file.partition), now_ms, is_new, stats)]
            for file in change.remove:
                actions += [RemoveAction(file.name, is_new, now_ms, file.size, dict(file.partition))]
            with _translated(), suppress(CommitFailedError):
                columns = table.schema()
                table.create_write_transaction(
                    actions, "append", columns, self._partition_columns, commit_properties=said
                )
                return True
        raise LogError(f"{COMMIT_ATTEMPTS} commits to the table were overtaken by others")

    def written(self, folder: str) -> Sequence[DataFile]:
        """Describe the Parquet files in a folder of the table's by their footers: Spark doesn't tell of them."""
        with _translated():
            store = self._files_of()
            found = store.get_file_info(FileSelector(folder, recursive=True, allow_not_found=True))
            names = [(each.path, each.size) for each in found if each.type is FileType.File]
            return [
                _described(name, size, pq.read_metadata(store.open_input_file(name)))
                for name, size in names
                if name.endswith(PARQUET) and not name.rpartition("/")[2].startswith((".", "_"))
            ]

    def added(self, *, after: int, until: int) -> Sequence[DataFile]:
        """Files with new rows, in the versions after the one and up to the other.

        Raises SegmentMissing where one of them is forgotten.
        """
        found: list[DataFile] = []
        with _translated():
            store = self._files_of()
            for version in range(after + 1, until + 1):
                try:
                    text = store.open_input_file(f"{FOLDER}/{version:020d}.json").read()
                except FileNotFoundError:
                    raise SegmentMissing(f"the table's log no longer has version {version}") from None
                adds = [add for line in text.splitlines() if (add := json.loads(line).get("add"))]
                found += [
                    DataFile(
                        path=add["path"],
                        partition=dict(add["partitionValues"]),
                        size=add["size"],
                        rows=json.loads(add.get("stats") or "{}").get("numRecords", 0),
                    )
                    for add in adds
                    if add["dataChange"]
                ]
        return found

    def cleaned(self, *, kept_hours: int = FILES_KEPT_HOURS) -> int:
        """Delete files that left the table so long ago, or were never of it and are so old, and the log's oldest part.

        Return how many files that were. Readers that began before then are gone.
        """
        table = self._newest()
        if table is None:
            return 0
        with _translated():
            vacuum = partial(table.vacuum, kept_hours, enforce_retention_duration=False, full=True)
            removed = vacuum(dry_run=True)
            if removed:  # else it would leave two versions that say so
                vacuum(dry_run=False)
            table.update_incremental()
            table.cleanup_metadata()
        return sum(name.endswith(PARQUET) for name in removed)  # beside them are Hadoop's checksums, on a file system

    def _made(self) -> DeltaTable:
        """Find the newest version, with our columns: the table is made where there is none, and given what it lacks."""
        for _ in range(COMMIT_ATTEMPTS):
            table = self._newest()
            try:
                if table is None:
                    DeltaTable.create(
                        self._place.uri,
                        Schema.from_json(self._schema),
                        mode="error",
                        partition_by=self._partition_columns,
                        configuration=CONFIGURATION,
                        storage_options=dict(self._options),
                    )
                elif (wanted := self._evolved(table)) is not None:
                    # The library has it that new columns overwrite rows: here of a partition that there isn't.
                    table.create_write_transaction(
                        [],
                        "overwrite",
                        Schema.from_json(wanted),
                        self._partition_columns,
                        partition_filters=[(self._partition_columns[0], "=", _NO_DAY)],
                        commit_properties=CommitProperties(max_commit_retries=0),
                    )
                else:
                    return table
            except (CommitFailedError, DeltaError) as error:
                lost = error  # another was faster, which the next look shows
        raise LogError(f"{self._place.location}: {lost}") from lost

    def _evolved(self, table: DeltaTable) -> str | None:
        """Say what columns it is to have, None where it has them. Raises UnknownFormat for those of another kind."""
        if list(table.metadata().partition_columns) != self._partition_columns:
            raise UnknownFormat(
                f"{self._place.location}: partitioned by {', '.join(table.metadata().partition_columns)}, "
                f"not by {', '.join(self._partition_columns)}"
            )
        known = table.schema().to_json()
        wanted = evolved(known, self._schema, table=self._place.location)
        return None if Schema.from_json(wanted) == table.schema() else wanted

    def _newest(self) -> DeltaTable | None:
        """Read up to the newest version; None where there is no table. Opened anew where its keys have changed."""
        options = self._place.options()
        with _translated():
            if self._table is not None and options == self._options:
                self._table.update_incremental()
                return self._table
            self._options = options
            try:
                self._table = DeltaTable(self._place.uri, storage_options=dict(options))
            except TableNotFoundError:
                self._table = None
        return self._table

    def _files_of(self) -> PyFileSystem:
        return PyFileSystem(DeltaStorageHandler(self._place.uri, dict(self._place.options())))


def offset_at(version: int) -> dict[str, Any]:
    """Make the offset of a stream that has read the table's versions up to this one."""
    return {"version": OFFSET_VERSION, "tableVersion": version}


def version_of(offset: Mapping[str, Any]) -> int:
    """Read such an offset. Raises InvalidOffset for what isn't one, or is of a later version."""
    if offset.get("version") != OFFSET_VERSION or not isinstance(offset.get("tableVersion"), int):
        raise InvalidOffset(f"no offset of version {OFFSET_VERSION}, which this package reads: {offset}")
    return int(offset["tableVersion"])


@contextmanager
def _translated() -> Iterator[None]:
    """Raise the library's errors as ours."""
    try:
        yield
    except (DeltaError, OSError, pa.ArrowException) as error:
        # Its reader says of a later protocol only by its text that it can't read it.
        later = isinstance(error, DeltaProtocolError) or UNSUPPORTED in str(error)
        raise (UnknownFormat if later else LogError)(f"the table's log: {error}") from error


def _has(table: DeltaTable, transaction: Transaction) -> bool:
    known = table.transaction_version(transaction.app_id)
    return known is not None and known >= transaction.version


def _files(table: DeltaTable) -> Iterator[DataFile]:
    columns = table.metadata().partition_columns
    for row in pa.table(table.get_add_actions(flatten=True)).to_pylist():
        yield DataFile(
            path=row["path"],
            partition={name: _text(row[f"partition.{name}"]) for name in columns},
            size=row["size_bytes"],
            rows=row["num_records"] or 0,
        )


def _text(value: Any) -> str:
    """Write a partition's value as the log does."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return value.isoformat() if isinstance(value, date) else str(value)


def _described(name: str, size: int, footer: pq.FileMetaData) -> DataFile:
    """`name`: below folders `column=value`, escaped as Hive does."""
    folders = [each.partition("=") for each in name.split("/")[:-1] if "=" in each]
    return DataFile(
        path=encoded(name),
        partition={column: unquote(value) for column, _, value in folders},
        size=size,
        rows=footer.num_rows,
        stats=json.dumps({"numRecords": footer.num_rows, **_measures(footer)}),
    )


def _measures(footer: pq.FileMetaData) -> Mapping[str, Mapping[str, Any]]:
    """Find the least and the greatest of the columns that readers ask for, and how many rows have none."""
    least, greatest, nulls = dict[str, str](), dict[str, str](), dict[str, int]()
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    for index in range(footer.num_columns):
        name = footer.schema.column(index).path
        found = [group.column(index).statistics for group in groups] if name in MEASURED else []
        if found and all(each is not None and each.has_min_max and each.has_null_count for each in found):
            least[name] = _instant(min(each.min for each in found))
            greatest[name] = _instant(max(each.max for each in found))
            nulls[name] = sum(each.null_count for each in found)
    return {"minValues": least, "maxValues": greatest, "nullCount": nulls} if least else {}


def _instant(moment: Any) -> str:
    return f"{moment:%Y-%m-%dT%H:%M:%S.%f}Z"


AWS_ENDPOINTS = (".amazonaws.com", ".amazonaws.com.cn")


class TableLocation:
    """A table's: a path, `file:`, or `s3:`, `s3a:`."""

    def __init__(self, location: str) -> None:
        self.location = location
        self._parts = urlsplit(location)
        if self._parts.scheme not in {"", "file", *S3_SCHEMES}:
            raise LogError(f"table {location}: scheme {self._parts.scheme!r} is none that tables can be in")

    @property
    def uri(self) -> str:
        """Its address."""
        if self._parts.scheme in S3_SCHEMES:
            return f"s3://{self._parts.netloc}{self._parts.path}"
        return self._parts.path

    def options(self) -> Mapping[str, str]:
        """Say what the library needs to get there at this moment, as keys expire. Raises LogError without any."""
        if self._parts.scheme not in S3_SCHEMES:
            return {}
        credentials = self._session.get_credentials()
        if credentials is None:
            raise LogError(f"table {self.location}: no AWS credentials")
        keys = credentials.get_frozen_credentials()
        token = {"AWS_SESSION_TOKEN": keys.token} if keys.token else {}
        return {
            "AWS_ACCESS_KEY_ID": keys.access_key,
            "AWS_SECRET_ACCESS_KEY": keys.secret_key,
            **token,
            **self._reached,
        }

    @cached_property
    def _session(self) -> Any:
        return botocore.session.Session()

    @cached_property
    def _reached(self) -> Mapping[str, str]:
        """Region, and an endpoint that isn't AWS's own."""
        client = self._session.create_client("s3")
        endpoint = str(client.meta.endpoint_url)
        region = {"AWS_REGION": str(client.meta.region_name)}
        if str(urlsplit(endpoint).hostname).endswith(AWS_ENDPOINTS):
            return region
        return {**region, "AWS_ENDPOINT_URL": endpoint, "AWS_ALLOW_HTTP": str(endpoint.startswith("http:")).lower()}
