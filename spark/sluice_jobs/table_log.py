"""A table's Delta log, written by package deltalake: lists the table's files, versions and added batches.

Spark writes the files, without Delta's jars. The files belong to the table once a version of the log lists them. A
version is published only if its number is unused, by a hard link or S3's `If-None-Match: *`, so that no writer
overwrites another's version. The library writes checkpoints, and cleans up the log and the files.

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
CHECKPOINT_EVERY = 50  # number of table versions between two checkpoints of the log
LOG_KEPT_DAYS = 7  # days for which the log is kept, for readers that stream versions
# Removed files, and files of killed attempts, are kept for this time, for readers that began before the removal.
FILES_KEPT_HOURS = 24
COMMIT_ATTEMPTS = 50  # maximum commit attempts, each after another writer was faster
CONFIGURATION = {
    "delta.checkpointInterval": str(CHECKPOINT_EVERY),
    "delta.logRetentionDuration": f"interval {LOG_KEPT_DAYS} days",
    "delta.deletedFileRetentionDuration": f"interval {FILES_KEPT_HOURS // 24} days",
}
MEASURED = ("sent_at", "happened_at")  # Readers skip files by these columns' statistics in the log.
PARQUET = ".parquet"
UNSUPPORTED = "Unsupported"
_LIKE_THE_LIBRARY = "/!$&'()+,:;=@"  # Package deltalake doesn't percent-encode these either.
_NO_DAY = "0001-01-01"


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """A Parquet file of the table. `path` is relative and percent-encoded as in the log; `partition` has texts."""

    path: str
    partition: Mapping[str, str]
    size_bytes: int
    rows: int
    stats: str = ""  # a new file's statistics, as JSON in the log's format

    @property
    def name(self) -> str:
        """The file's name, relative to the table's folder."""
        return unquote(self.path)


def encode_path(name: str) -> str:
    """Percent-encode a file's name as the library deltalake does in the log."""
    return quote(name, safe=_LIKE_THE_LIBRARY)


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """The number of a query's last batch in the table, in Delta's terms a version of an application."""

    app_id: str
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """The files that one commit adds and removes. With `moves_rows` the commit changes no rows of the table."""

    add: Sequence[DataFile] = ()
    remove: Sequence[DataFile] = ()
    moves_rows: bool = False


class TableLog:
    """One table's log, as far as this process has read it. Not thread-safe.

    Raises LogError if the store or the library refuses a call, UnknownFormat for a table of another kind.
    """

    def __init__(self, location: str, *, schema: str, partition_columns: Sequence[str]) -> None:
        """Create the object without a call. `schema` is Spark's JSON of all columns, including partition columns."""
        self._place = TableLocation(location)
        self._schema, self._partition_columns = schema, list(partition_columns)
        self._table: DeltaTable | None = None
        self._options: Mapping[str, str] = {}

    @property
    def schema(self) -> str | None:
        """The table's columns as JSON; None if the table doesn't exist."""
        table = self._open_newest()
        return None if table is None else str(table.schema().to_json())

    def files(self) -> Sequence[DataFile]:
        """List the files of the table's newest version."""
        table = self._open_newest()
        return [] if table is None else list(_list_files(table))

    def has_transaction(self, transaction: Transaction) -> bool:
        """Whether the table contains the transaction's batch, or a later batch of the same query."""
        table = self._open_newest()
        return table is not None and _has_transaction(table, transaction)

    def append(self, files: Sequence[DataFile], transaction: Transaction) -> bool:
        """Add the files, once for each transaction. Returns False if an earlier attempt has added the rows."""

        def build_change(table: DeltaTable) -> Change | bool:
            if not _has_transaction(table, transaction):
                return Change(add=files)
            # The table contains the files of this call if the commit succeeded but its response was lost.
            return bool(files) and files[0].path in {file.path for file in _list_files(table)}

        properties = [AppTransaction(transaction.app_id, transaction.version)]
        return self._commit(build_change, CommitProperties(app_transactions=properties))

    def commit_change(self, build_change: Callable[[Sequence[DataFile]], Change | None]) -> bool:
        """Commit the change that `build_change` returns for the newest version's files. Returns False without a change.

        `build_change` is called again each time another writer commits first. deltalake's own retry isn't used: if
        another writer has replaced the same files, the retry would add their rows a second time.
        """
        prior: Change | None = None

        def rebuild_change(table: DeltaTable) -> Change | bool:
            nonlocal prior
            files = list(_list_files(table))
            if prior and prior.add and {file.path for file in prior.add} <= {file.path for file in files}:
                return True  # The commit succeeded, but its response was lost.
            prior = build_change(files)
            return prior or False

        return self._commit(rebuild_change, CommitProperties(max_commit_retries=0))

    def _commit(self, build_change: Callable[[DeltaTable], Change | bool], properties: CommitProperties) -> bool:
        """Commit the change; retry if another writer is faster. Returns the bool if `build_change` returns one."""
        for _ in range(COMMIT_ATTEMPTS):
            table = self._ensure_table()
            change = build_change(table)
            if isinstance(change, bool):
                return change
            now_ms, is_new = int(time.time() * 1000), not change.moves_rows
            actions: list[AddAction | RemoveAction] = []
            for file in change.add:
                stats = file.stats or json.dumps({"numRecords": file.rows})
                actions += [AddAction(file.name, file.size_bytes, dict(file.partition), now_ms, is_new, stats)]
            for file in change.remove:
                actions += [RemoveAction(file.name, is_new, now_ms, file.size_bytes, dict(file.partition))]
            with _translate_errors(), suppress(CommitFailedError):
                columns = table.schema()
                table.create_write_transaction(
                    actions, "append", columns, self._partition_columns, commit_properties=properties
                )
                return True
        raise LogError(f"{COMMIT_ATTEMPTS} commits to the table were overtaken by other writers: run the job again")

    def list_written_files(self, folder: str) -> Sequence[DataFile]:
        """Read the footers of a folder's new Parquet files, because Spark doesn't report which files it wrote."""
        with _translate_errors():
            store = self._file_system()
            entries = store.get_file_info(FileSelector(folder, recursive=True, allow_not_found=True))
            names = [(entry.path, entry.size) for entry in entries if entry.type is FileType.File]
            return [
                _describe_file(name, size, pq.read_metadata(store.open_input_file(name)))
                for name, size in names
                if name.endswith(PARQUET) and not name.rpartition("/")[2].startswith((".", "_"))
            ]

    def delete_old_files(self, *, kept_hours: int = FILES_KEPT_HOURS) -> int:
        """Delete unreferenced files older than `kept_hours`, and the expired part of the log.

        Returns the number of Parquet files deleted. A reader that began more than `kept_hours` ago may fail.
        """
        table = self._open_newest()
        if table is None:
            return 0
        with _translate_errors():
            vacuum = partial(table.vacuum, kept_hours, enforce_retention_duration=False, full=True)
            removed = vacuum(dry_run=True)
            if removed:  # A vacuum without files would add two versions.
                vacuum(dry_run=False)
            table.update_incremental()
            table.cleanup_metadata()
        return sum(name.endswith(PARQUET) for name in removed)  # `removed` includes Hadoop's checksum files.

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
                lost = error  # Another writer was faster; the next read shows its version.
        raise LogError(f"{self._place.location}: {lost}") from lost

    def _evolve_schema(self, table: DeltaTable) -> str | None:
        """Return the columns to give the table; None if it has all. Raises UnknownFormat for an incompatible type."""
        if list(table.metadata().partition_columns) != self._partition_columns:
            raise UnknownFormat(
                f"{self._place.location}: partitioned by {', '.join(table.metadata().partition_columns)}, "
                f"not by {', '.join(self._partition_columns)}"
            )
        known = table.schema().to_json()
        schema = merge_schemas(known, self._schema, table=self._place.location)
        return None if Schema.from_json(schema) == table.schema() else schema

    def _open_newest(self) -> DeltaTable | None:
        """Return the table's newest version; None without a table. Reopens the table after its credentials changed."""
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
    """Convert errors of library deltalake to LogError or UnknownFormat."""
    try:
        yield
    except (DeltaError, OSError, pa.ArrowException) as error:
        # deltalake says only in its error's text that a table needs a newer reader version.
        later = isinstance(error, DeltaProtocolError) or UNSUPPORTED in str(error)
        raise (UnknownFormat if later else LogError)(f"the table's log: {error}") from error


def _has_transaction(delta_table: DeltaTable, transaction: Transaction) -> bool:
    known = delta_table.transaction_version(transaction.app_id)
    return known is not None and known >= transaction.version


def _list_files(table: DeltaTable) -> Iterator[DataFile]:
    columns = table.metadata().partition_columns
    for row in pa.table(table.get_add_actions(flatten=True)).to_pylist():
        yield DataFile(
            path=row["path"],
            partition={name: _format_partition_value(row[f"partition.{name}"]) for name in columns},
            size_bytes=row["size_bytes"],
            rows=row["num_records"] or 0,
        )


def _format_partition_value(value: Any) -> str:
    """Format a partition value as text, as the Delta log does."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return value.isoformat() if isinstance(value, date) else str(value)


def _describe_file(name: str, size: int, footer: pq.FileMetaData) -> DataFile:
    """Describe a Parquet file by its footer. Folders in `name` are `column=value`, escaped as in Hive."""
    folders = [folder.partition("=") for folder in name.split("/")[:-1] if "=" in folder]
    return DataFile(
        path=encode_path(name),
        partition={column: unquote(value) for column, _, value in folders},
        size_bytes=size,
        rows=footer.num_rows,
        stats=json.dumps({"numRecords": footer.num_rows, **_measure_columns(footer)}),
    )


def _measure_columns(footer: pq.FileMetaData) -> Mapping[str, Mapping[str, Any]]:
    """Return minimum, maximum and null count of the columns in MEASURED, by which readers skip files."""
    least, greatest, nulls = dict[str, str](), dict[str, str](), dict[str, int]()
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    for index in range(footer.num_columns):
        name = footer.schema.column(index).path
        statistics = [group.column(index).statistics for group in groups] if name in MEASURED else []
        if statistics and all(chunk is not None and chunk.has_min_max and chunk.has_null_count for chunk in statistics):
            least[name] = _format_time(min(chunk.min for chunk in statistics))
            greatest[name] = _format_time(max(chunk.max for chunk in statistics))
            nulls[name] = sum(column.null_count for column in statistics)
    return {"minValues": least, "maxValues": greatest, "nullCount": nulls} if least else {}


def _format_time(time_: datetime) -> str:
    return time_.replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"  # strftime wouldn't pad the year.


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
        """Return deltalake's storage options, with unexpired credentials. Raises LogError without credentials."""
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
        """The library's storage options for the region, and for an endpoint that isn't AWS's."""
        client = self._session.create_client("s3")
        endpoint = str(client.meta.endpoint_url)
        region = {"AWS_REGION": str(client.meta.region_name)}
        if str(urlsplit(endpoint).hostname).endswith(AWS_ENDPOINTS):
            return region
        return {**region, "AWS_ENDPOINT_URL": endpoint, "AWS_ALLOW_HTTP": str(endpoint.startswith("http:")).lower()}
