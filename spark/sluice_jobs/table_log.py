"""A table's Delta log, kept by the package deltalake: the table's files, its versions and the batches it has.

Spark writes the files, without Delta's jars; they belong to the table once a version of the log lists them. Versions
are published create-exclusive, by a hard link or S3's `If-None-Match: *`, so writers never undo each other. The library
writes checkpoints, and cleans up the log and the files.

This module decides only which files are added, replaced and removed. It doesn't use Spark.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import date, datetime
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

from sluice_jobs.table_schemas import merge_schemas
from sluice_spark.errors import LogError, UnknownFormat
from sluice_spark.log.store import S3_SCHEMES

FOLDER = "_delta_log"
CHECKPOINT_EVERY = 50  # versions of the table between two checkpoints
LOG_KEPT_DAYS = 7  # days that the log is kept, for readers that stream the table's versions
# Removed files, and those of killed attempts, are kept this long for readers that began before.
FILES_KEPT_HOURS = 24
COMMIT_ATTEMPTS = 50  # maximum number of attempts if another writer commits between our read and our commit
CONFIGURATION = {
    "delta.checkpointInterval": str(CHECKPOINT_EVERY),
    "delta.logRetentionDuration": f"interval {LOG_KEPT_DAYS} days",
    "delta.deletedFileRetentionDuration": f"interval {FILES_KEPT_HOURS // 24} days",
}
MEASURED = ("sent_at", "happened_at")  # columns with minimum and maximum in the log, by which readers skip files
PARQUET = ".parquet"
UNSUPPORTED = "Unsupported"
_LIKE_THE_LIBRARY = "/!$&'()+,:;=@"  # not percent-encoded in a path, besides letters, digits and `_.-~`
_NO_DAY = "0001-01-01"


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """A Parquet file of the table. `path` is relative and encoded as in the log; `partition` holds text."""

    path: str
    partition: Mapping[str, str]
    size: int
    rows: int
    stats: str = ""  # a new file's statistics, as the log's JSON

    @property
    def name(self) -> str:
        """The file's name, relative to the table's folder."""
        return unquote(self.path)


def encode_path(name: str) -> str:
    """Percent-encode a file's name as the library does in the log."""
    return quote(name, safe=_LIKE_THE_LIBRARY)


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """The last version that an application has written, so that each batch of a query is in the table once."""

    app_id: str
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """The files that one commit adds and removes. With `moves_rows` it adds only rows that it also removes."""

    add: Sequence[DataFile] = ()
    remove: Sequence[DataFile] = ()
    moves_rows: bool = False


class TableLog:
    """One table's log, as far as this process has read it. Not thread-safe.

    Raises LogError if the store or the library refuses a call, UnknownFormat for a table of another kind.
    """

    def __init__(self, location: str, *, schema: str, partition_columns: Sequence[str]) -> None:
        """Make no call yet. `schema` is Spark's JSON of all columns, partition columns included."""
        self._place = TableLocation(location)
        self._schema, self._partition_columns = schema, list(partition_columns)
        self._table: DeltaTable | None = None
        self._options: Mapping[str, str] = {}

    @property
    def schema(self) -> str | None:
        """The table's columns, as JSON; None if there is no table."""
        table = self._open_newest()
        return None if table is None else str(table.schema().to_json())

    def files(self) -> Sequence[DataFile]:
        """List the files of the newest version."""
        table = self._open_newest()
        return [] if table is None else list(_list_files(table))

    def has(self, transaction: Transaction) -> bool:
        """Whether the transaction's batch, or a later one of the same application, is in the table."""
        table = self._open_newest()
        return table is not None and _has(table, transaction)

    def append(self, files: Sequence[DataFile], transaction: Transaction) -> bool:
        """Add the files to the table, once for each transaction; False if an earlier attempt has added the rows."""

        def build_change(table: DeltaTable) -> Change | bool:
            if not _has(table, transaction):
                return Change(add=files)
            # The table has the files of this call if an earlier attempt succeeded and only its response was lost.
            return bool(files) and files[0].path in {file.path for file in _list_files(table)}

        properties = [AppTransaction(transaction.app_id, transaction.version)]
        return self._commit(build_change, CommitProperties(app_transactions=properties))

    def change(self, build_change: Callable[[Sequence[DataFile]], Change | None]) -> bool:
        """Commit the change that `build_change` returns for the newest version's files; False if it returns None.

        `build_change` is called again each time another writer commits first. deltalake's own retry would repeat
        additions that another writer has made, from files that it has removed.
        """
        tried: Change | None = None

        def rebuild_change(table: DeltaTable) -> Change | bool:
            nonlocal tried
            files = list(_list_files(table))
            if tried and tried.add and {file.path for file in tried.add} <= {file.path for file in files}:
                return True  # an earlier attempt succeeded, and only its response was lost
            tried = build_change(files)
            return tried or False

        return self._commit(rebuild_change, CommitProperties(max_commit_retries=0))

    def _commit(self, build_change: Callable[[DeltaTable], Change | bool], properties: CommitProperties) -> bool:
        """Commit the change, and retry if another writer is faster; if `build_change` returns a bool, return it."""
        for _ in range(COMMIT_ATTEMPTS):
            table = self._ensure_table()
            change = build_change(table)
            if isinstance(change, bool):
                return change
            now_ms, is_new = int(time.time() * 1000), not change.moves_rows
            actions: list[AddAction | RemoveAction] = []
            for file in change.add:
                stats = file.stats or json.dumps({"numRecords": file.rows})
                actions += [AddAction(file.name, file.size, dict(file.partition), now_ms, is_new, stats)]
            for file in change.remove:
                actions += [RemoveAction(file.name, is_new, now_ms, file.size, dict(file.partition))]
            with _translate_errors(), suppress(CommitFailedError):
                columns = table.schema()
                table.create_write_transaction(
                    actions, "append", columns, self._partition_columns, commit_properties=properties
                )
                return True
        raise LogError(f"{COMMIT_ATTEMPTS} commits to the table were overtaken by other writers: run the job again")

    def list_written_files(self, folder: str) -> Sequence[DataFile]:
        """Describe the Parquet files in a folder of the table by their footers, as Spark doesn't report them."""
        with _translate_errors():
            store = self._file_system()
            entries = store.get_file_info(FileSelector(folder, recursive=True, allow_not_found=True))
            names = [(entry.path, entry.size) for entry in entries if entry.type is FileType.File]
            return [
                _describe_file(name, size, pq.read_metadata(store.open_input_file(name)))
                for name, size in names
                if name.endswith(PARQUET) and not name.rpartition("/")[2].startswith((".", "_"))
            ]

    def clean_up(self, *, kept_hours: int = FILES_KEPT_HOURS) -> int:
        """Delete unreferenced files older than `kept_hours`, and the expired part of the log.

        Returns the number of Parquet files deleted. A reader that began more than `kept_hours` ago may fail.
        """
        table = self._open_newest()
        if table is None:
            return 0
        with _translate_errors():
            vacuum = partial(table.vacuum, kept_hours, enforce_retention_duration=False, full=True)
            removed = vacuum(dry_run=True)
            if removed:  # an empty vacuum would add two versions to the log
                vacuum(dry_run=False)
            table.update_incremental()
            table.cleanup_metadata()
        return sum(name.endswith(PARQUET) for name in removed)  # Hadoop's checksum files are removed too

    def _ensure_table(self) -> DeltaTable:
        """Return the newest version with this log's columns; create the table, or add missing columns, if needed."""
        for _ in range(COMMIT_ATTEMPTS):
            table = self._open_newest()
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
                elif (evolved := self._evolve_schema(table)) is not None:
                    # The library adds columns only on an overwrite, so this overwrites a partition that doesn't exist.
                    table.create_write_transaction(
                        [],
                        "overwrite",
                        Schema.from_json(evolved),
                        self._partition_columns,
                        partition_filters=[(self._partition_columns[0], "=", _NO_DAY)],
                        commit_properties=CommitProperties(max_commit_retries=0),
                    )
                else:
                    return table
            except (CommitFailedError, DeltaError) as error:
                lost = error  # another writer was faster; the next read shows its version
        raise LogError(f"{self._place.location}: {lost}") from lost

    def _evolve_schema(self, table: DeltaTable) -> str | None:
        """Return the columns that the table should get; None if it has them. Raises UnknownFormat if incompatible."""
        if list(table.metadata().partition_columns) != self._partition_columns:
            raise UnknownFormat(
                f"{self._place.location}: partitioned by {', '.join(table.metadata().partition_columns)}, "
                f"not by {', '.join(self._partition_columns)}"
            )
        known = table.schema().to_json()
        schema = merge_schemas(known, self._schema, table=self._place.location)
        return None if Schema.from_json(schema) == table.schema() else schema

    def _open_newest(self) -> DeltaTable | None:
        """Return the newest version; None if there is no table. Opens the table again if its credentials changed."""
        options = self._place.options()
        with _translate_errors():
            if self._table is not None and options == self._options:
                self._table.update_incremental()
                return self._table
            self._options = options
            try:
                self._table = DeltaTable(self._place.uri, storage_options=dict(options))
            except TableNotFoundError:
                self._table = None
        return self._table

    def _file_system(self) -> PyFileSystem:
        return PyFileSystem(DeltaStorageHandler(self._place.uri, dict(self._place.options())))


@contextmanager
def _translate_errors() -> Iterator[None]:
    """Convert the library's errors to LogError or UnknownFormat."""
    try:
        yield
    except (DeltaError, OSError, pa.ArrowException) as error:
        # deltalake says only in its error's text that a table needs a newer reader version.
        later = isinstance(error, DeltaProtocolError) or UNSUPPORTED in str(error)
        raise (UnknownFormat if later else LogError)(f"the table's log: {error}") from error


def _has(table: DeltaTable, transaction: Transaction) -> bool:
    known = table.transaction_version(transaction.app_id)
    return known is not None and known >= transaction.version


def _list_files(table: DeltaTable) -> Iterator[DataFile]:
    columns = table.metadata().partition_columns
    for row in pa.table(table.get_add_actions(flatten=True)).to_pylist():
        yield DataFile(
            path=row["path"],
            partition={name: _format_partition_value(row[f"partition.{name}"]) for name in columns},
            size=row["size_bytes"],
            rows=row["num_records"] or 0,
        )


def _format_partition_value(value: Any) -> str:
    """Format a partition's value as the log does."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return value.isoformat() if isinstance(value, date) else str(value)


def _describe_file(name: str, size: int, footer: pq.FileMetaData) -> DataFile:
    """Describe a file by its footer. `name` has folders `column=value`, escaped as Hive does."""
    folders = [folder.partition("=") for folder in name.split("/")[:-1] if "=" in folder]
    return DataFile(
        path=encode_path(name),
        partition={column: unquote(value) for column, _, value in folders},
        size=size,
        rows=footer.num_rows,
        stats=json.dumps({"numRecords": footer.num_rows, **_measure_columns(footer)}),
    )


def _measure_columns(footer: pq.FileMetaData) -> Mapping[str, Mapping[str, Any]]:
    """Return minimum, maximum and null count of the measured columns, for readers to skip files by."""
    least, greatest, nulls = dict[str, str](), dict[str, str](), dict[str, int]()
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    for index in range(footer.num_columns):
        name = footer.schema.column(index).path
        statistics = [group.column(index).statistics for group in groups] if name in MEASURED else []
        if statistics and all(chunk is not None and chunk.has_min_max and chunk.has_null_count for chunk in statistics):
            least[name] = _format_instant(min(chunk.min for chunk in statistics))
            greatest[name] = _format_instant(max(chunk.max for chunk in statistics))
            nulls[name] = sum(column.null_count for column in statistics)
    return {"minValues": least, "maxValues": greatest, "nullCount": nulls} if least else {}


def _format_instant(at: datetime) -> str:
    return at.replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"  # strftime doesn't pad years


AWS_ENDPOINTS = (".amazonaws.com", ".amazonaws.com.cn")


class TableLocation:
    """A table's location: a path, or a URL of scheme `file`, `s3` or `s3a`."""

    def __init__(self, location: str) -> None:
        self.location = location
        self._parts = urlsplit(location)
        self._session: Any = botocore.session.Session()
        if self._parts.scheme not in {"", "file", *S3_SCHEMES}:
            raise LogError(f"table {location}: scheme {self._parts.scheme!r} is none that tables can be in")

    @property
    def uri(self) -> str:
        """The location in the form that package deltalake accepts."""
        if self._parts.scheme in S3_SCHEMES:
            return f"s3://{self._parts.netloc}{self._parts.path}"
        return self._parts.path

    def options(self) -> Mapping[str, str]:
        """Return the storage options with current credentials, as they expire. Raises LogError if there are none."""
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
            **self._connection_options,
        }

    @cached_property
    def _connection_options(self) -> Mapping[str, str]:
        """Storage options for the region, and for the endpoint if it isn't AWS's own."""
        client = self._session.create_client("s3")
        endpoint = str(client.meta.endpoint_url)
        region = {"AWS_REGION": str(client.meta.region_name)}
        if str(urlsplit(endpoint).hostname).endswith(AWS_ENDPOINTS):
            return region
        return {**region, "AWS_ENDPOINT_URL": endpoint, "AWS_ALLOW_HTTP": str(endpoint.startswith("http:")).lower()}
