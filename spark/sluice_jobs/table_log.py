"""A table's log: which files are the table. Versions are published create-exclusive, so writers never undo each other.

The format is Delta Lake's transaction log (https://github.com/delta-io/delta/blob/master/PROTOCOL.md, reader 1, writer
2), written here without its jars, so that DuckDB, Athena, Trino, Polars and Spark with Delta read the table as it is.
A version is a JSON file of actions in `_delta_log/`; the table is what they leave, in order. Every CHECKPOINT_EVERY
versions a Parquet file holds all of it, so that a reader needs no more than the versions after.

Only adding, replacing and forgetting files is decided here: no Spark.
"""

import json
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from sluice_spark.errors import InvalidOffset, LogError, SegmentTaken, UnknownFormat
from sluice_spark.log.store import Store

FOLDER = "_delta_log"
READER_VERSION, WRITER_VERSION = 1, 2
CHECKPOINT_EVERY = 50
OFFSET_VERSION = 1  # of a stream of the table
COMMIT_ATTEMPTS = 50  # others' commits between our reading and our publishing
TOMBSTONES_KEPT_MS = 30 * 86_400_000  # compaction deletes a removed file long before
WRITE, OPTIMIZE = "WRITE", "OPTIMIZE"
ENGINE = "sluice-spark"

_TEXT, _LONG, _FLAG, _MAP = pa.string(), pa.int64(), pa.bool_(), pa.map_(pa.string(), pa.string())
_ADD = {"path": _TEXT, "partitionValues": _MAP, "size": _LONG, "modificationTime": _LONG, "dataChange": _FLAG}
_METADATA = {
    "id": _TEXT,
    "format": pa.struct({"provider": _TEXT, "options": _MAP}),
    "schemaString": _TEXT,
    "partitionColumns": pa.list_(_TEXT),
    "configuration": _MAP,
    "createdTime": _LONG,
}
_CHECKPOINT = pa.schema(
    {
        "txn": pa.struct({"appId": _TEXT, "version": _LONG, "lastUpdated": _LONG}),
        "add": pa.struct({**_ADD, "stats": _TEXT}),
        "remove": pa.struct({"path": _TEXT, "deletionTimestamp": _LONG, "dataChange": _FLAG}),
        "metaData": pa.struct(_METADATA),
        "protocol": pa.struct({"minReaderVersion": pa.int32(), "minWriterVersion": pa.int32()}),
    }
)
_NO_VERSION = 1 << 62
_MAPS = ("partitionValues", "options", "configuration")

Action = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """A Parquet file of the table. `path` is relative and URI-encoded; `partition` has its partition columns' texts."""

    path: str
    partition: Mapping[str, str]
    size: int
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """What an application has written up to: a batch of a query is in the table once."""

    app_id: str
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The table at a version; -1 before its first. `removed` are files that are no longer of it, with the epoch ms."""

    version: int = -1
    metadata: Mapping[str, Any] | None = None
    files: Mapping[str, DataFile] = field(default_factory=dict)
    removed: Mapping[str, int] = field(default_factory=dict)
    transactions: Mapping[str, int] = field(default_factory=dict)

    @property
    def schema(self) -> str | None:
        """The columns as Spark writes a schema as JSON, partition columns among them."""
        return self.metadata["schemaString"] if self.metadata else None

    @property
    def rows(self) -> int:
        """Of all files."""
        return sum(file.rows for file in self.files.values())

    def has(self, transaction: Transaction) -> bool:
        """Whether its batch, or a later one of the same application, is in the table."""
        return self.transactions.get(transaction.app_id, -1) >= transaction.version

    def after(self, version: int, actions: Sequence[Action]) -> "Snapshot":
        """Return the table once the version's actions are done. Raises UnknownFormat for a later protocol."""
        files, removed, transactions = dict(self.files), dict(self.removed), dict(self.transactions)
        metadata = self.metadata
        for action in actions:
            if "add" in action:
                file = _file(action["add"])
                files[file.path] = file
                removed.pop(file.path, None)
            elif "remove" in action:
                files.pop(action["remove"]["path"], None)
                removed[action["remove"]["path"]] = action["remove"].get("deletionTimestamp") or 0
            elif "txn" in action:
                transactions[action["txn"]["appId"]] = action["txn"]["version"]
            elif "metaData" in action:
                metadata = action["metaData"]
            elif "protocol" in action:
                versions = action["protocol"]
                if versions["minReaderVersion"] > READER_VERSION or versions["minWriterVersion"] > WRITER_VERSION:
                    raise UnknownFormat(f"the table's protocol is {dict(versions)}, this package knows 1 and 2")
        return replace(
            self, version=version, metadata=metadata, files=files, removed=removed, transactions=transactions
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What a commit does, all at once. An OPTIMIZE adds the rows that it removes, and no others."""

    operation: str
    add: Sequence[DataFile] = ()
    remove: Sequence[DataFile] = ()
    transaction: Transaction | None = None


class TableLog:
    """One table's log, as far as this process has read it. Not for threads."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._snapshot = Snapshot()

    def snapshot(self) -> Snapshot:
        """Read up to the newest version. Raises LogError for a gap in the log, UnknownFormat for a later protocol."""
        known = self._snapshot.version
        names = set(self._store.names(FOLDER, after=_commit_name(known) if known >= 0 else ""))
        self._snapshot = self._from_checkpoint(names)
        while _commit_name(self._snapshot.version + 1) in names:
            self._advance()
        last = max((_version(name) for name in names if name.endswith(".json")), default=self._snapshot.version)
        if last > self._snapshot.version:
            raise LogError(f"the table's log lacks version {self._snapshot.version + 1}: its newest is {last}")
        return self._snapshot

    def commit(
        self, change: Callable[[Snapshot], Change | None], *, schema: str, partition_columns: Sequence[str]
    ) -> Snapshot:
        """Publish what `change` makes of the newest version, as the next; None leaves the table as it is.

        Called anew each time that another writer was faster. The first commit makes the table, with these columns; to
        a table that has fewer they are added, one that has others fails with UnknownFormat. Raises LogError where
        others are faster again and again.
        """
        self.snapshot()
        for _ in range(COMMIT_ATTEMPTS):
            wanted = change(self._snapshot)
            if wanted is None:
                return self._snapshot
            if self._published(wanted, _made(self._snapshot, schema, partition_columns)):
                return self._snapshot
        raise LogError(f"{COMMIT_ATTEMPTS} commits to the table were overtaken by others")

    def added(self, *, after: int, until: int) -> Sequence[DataFile]:
        """Files with new rows, in the versions after the one and up to the other.

        Raises SegmentMissing where one of them is forgotten.
        """
        found: list[DataFile] = []
        for version in range(after + 1, until + 1):
            actions = self._read(_commit_name(version))
            found += [_file(each["add"]) for each in actions if "add" in each and each["add"]["dataChange"]]
        return found

    def _published(self, change: Change, first: Sequence[Action]) -> bool:
        """Whether our commit is the next version. Where it isn't, the one that is has been read."""
        token = uuid.uuid4().hex
        actions = [*first, *_actions(change, token)]
        name = _commit_name(self._snapshot.version + 1)
        try:
            self._store.publish(name, pa.py_buffer("".join(f"{json.dumps(each)}\n" for each in actions).encode()))
        except SegmentTaken:
            # Ours where an earlier try had come through, and only its answer was lost.
            if not any(each.get("commitInfo", {}).get("txnId") == token for each in self._read(name)):
                self._advance()
                return False
        self._snapshot = self._snapshot.after(self._snapshot.version + 1, actions)
        if self._snapshot.version % CHECKPOINT_EVERY == 0 and self._snapshot.version:
            self._checkpoint()
        return True

    def _advance(self) -> None:
        version = self._snapshot.version + 1
        self._snapshot = self._snapshot.after(version, self._read(_commit_name(version)))

    def _read(self, name: str) -> list[dict[str, Any]]:
        text = self._store.read(name).to_pybytes().decode()
        try:
            return [json.loads(line) for line in text.splitlines() if line]
        except json.JSONDecodeError as error:
            raise UnknownFormat(f"{name} is no commit of a table: {error}") from error

    def _from_checkpoint(self, names: set[str]) -> Snapshot:
        """Take the newest of a whole checkpoint and what is known already."""
        newest = max((_version(name) for name in names if name.endswith(".checkpoint.parquet")), default=-1)
        if newest <= self._snapshot.version:
            return self._snapshot
        rows = pq.read_table(pa.BufferReader(self._store.read(_checkpoint_name(newest)))).to_pylist(
            maps_as_pydicts="strict"
        )
        return Snapshot().after(newest, [{k: v for k, v in row.items() if v is not None} for row in rows])

    def _checkpoint(self) -> None:
        sink = pa.BufferOutputStream()
        pq.write_table(pa.Table.from_pylist(_checkpoint_rows(self._snapshot), _CHECKPOINT), sink)
        try:
            self._store.publish(_checkpoint_name(self._snapshot.version), sink.getvalue())
        except SegmentTaken:
            return  # another writer's, of the same version: it says the same

    def forget(self, *, before: float) -> int:
        """Remove versions and checkpoints, older than epoch second `before`, that a newer old checkpoint covers.

        Return how many. Readers that began before then are gone.
        """
        published = self._store.names(FOLDER)
        covered = [_version(n) for n, at in published.items() if n.endswith(".checkpoint.parquet") and at < before]
        if not covered:
            return 0
        old = [name for name in published if _version(name) < max(covered)]
        self._store.remove(old)
        return len(old)


def offset_at(version: int) -> dict[str, Any]:
    """Make the offset of a stream that has read the table's versions up to this one."""
    return {"version": OFFSET_VERSION, "tableVersion": version}


def version_of(offset: Mapping[str, Any]) -> int:
    """Read such an offset. Raises InvalidOffset for what isn't one, or is of a later version."""
    if offset.get("version") != OFFSET_VERSION or not isinstance(offset.get("tableVersion"), int):
        raise InvalidOffset(f"no offset of version {OFFSET_VERSION}, which this package reads: {offset}")
    return int(offset["tableVersion"])


def _made(snapshot: Snapshot, schema: str, partition_columns: Sequence[str]) -> Sequence[Action]:
    """Make the table, or add the columns that it lacks; nothing where it is as it should be.

    Raises UnknownFormat for another.
    """
    protocol = {"minReaderVersion": READER_VERSION, "minWriterVersion": WRITER_VERSION}
    known = snapshot.metadata
    if known is None:
        metadata = {
            "id": str(uuid.uuid4()),
            "format": {"provider": "parquet", "options": {}},
            "schemaString": schema,
            "partitionColumns": list(partition_columns),
            "configuration": {},
            "createdTime": _now_ms(),
        }
        return [{"protocol": protocol}, {"metaData": metadata}]
    if known["schemaString"] == schema and list(known["partitionColumns"]) == list(partition_columns):
        return []
    missing = [each for each in _columns(known["schemaString"]) if each not in _columns(schema)]
    if missing or list(known["partitionColumns"]) != list(partition_columns):
        raise UnknownFormat(f"the table is of another kind: it has {', '.join(each['name'] for each in missing)}")
    return [{"metaData": {**known, "schemaString": schema}}]


def _columns(schema: str) -> Sequence[Mapping[str, Any]]:
    columns: Sequence[Mapping[str, Any]] = json.loads(schema)["fields"]
    return columns


def _actions(change: Change, token: str) -> list[Action]:
    changed = change.operation != OPTIMIZE  # else the same rows in other files: who streams the table passes them over
    actions: list[Action] = [_add(file, data_change=changed) for file in change.add]
    actions += [
        {
            "remove": {
                "path": file.path,
                "deletionTimestamp": _now_ms(),
                "dataChange": changed,
                "extendedFileMetadata": True,
                "partitionValues": dict(file.partition),
                "size": file.size,
            }
        }
        for file in change.remove
    ]
    if change.transaction:
        said = {"appId": change.transaction.app_id, "version": change.transaction.version, "lastUpdated": _now_ms()}
        actions.append({"txn": said})
    info = {"timestamp": _now_ms(), "operation": change.operation, "operationParameters": {}, "engineInfo": ENGINE}
    return [*actions, {"commitInfo": {**info, "txnId": token}}]


def _add(file: DataFile, *, data_change: bool) -> Action:
    return {
        "add": {
            "path": file.path,
            "partitionValues": dict(file.partition),
            "size": file.size,
            "modificationTime": _now_ms(),
            "dataChange": data_change,
            "stats": json.dumps({"numRecords": file.rows}),
        }
    }


def _file(added: Mapping[str, Any]) -> DataFile:
    rows = json.loads(added.get("stats") or "{}").get("numRecords", 0)
    return DataFile(path=added["path"], partition=dict(added["partitionValues"]), size=added["size"], rows=rows)


def _checkpoint_rows(snapshot: Snapshot) -> list[Action]:
    rows: list[Action] = [
        {"protocol": {"minReaderVersion": READER_VERSION, "minWriterVersion": WRITER_VERSION}},
        {"metaData": _paired(snapshot.metadata or {})},
    ]
    rows += [{"txn": {"appId": app, "version": version}} for app, version in snapshot.transactions.items()]
    rows += [{"add": _paired(_add(file, data_change=False)["add"])} for file in snapshot.files.values()]
    known_since = _now_ms() - TOMBSTONES_KEPT_MS
    rows += [
        {"remove": {"path": path, "deletionTimestamp": at, "dataChange": False}}
        for path, at in snapshot.removed.items()
        if at > known_since
    ]
    return rows


def _paired(value: Any) -> Any:
    """Make maps what pyarrow takes for them."""
    if not isinstance(value, Mapping):
        return value
    return {name: list(each.items()) if name in _MAPS else _paired(each) for name, each in value.items()}


def _commit_name(version: int) -> str:
    return f"{FOLDER}/{version:020d}.json"


def _checkpoint_name(version: int) -> str:
    return f"{FOLDER}/{version:020d}.checkpoint.parquet"


def _version(name: str) -> int:
    """Of a commit or a checkpoint; a large number for what is neither, as Delta keeps `_last_checkpoint` there."""
    digits = name.rpartition("/")[2].partition(".")[0]
    return int(digits) if digits.isdigit() else _NO_VERSION


def _now_ms() -> int:
    return int(time.time() * 1000)
