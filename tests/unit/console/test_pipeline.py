"""Page Pipeline's reading: tables by their logs, and landing by their versions."""

import io
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Barrier, BrokenBarrierError
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from sluice.console.readings.pipeline import CHARTED_MINUTES, count_landed
from sluice.console.tables import MAX_INITIAL_VERSIONS, CachedTable, iceberg_versions, read_rows, table_document
from sluice.errors import CallFailed, Malformed
from sluice.operator.pipelines import FolderFiles
from sluice.pipeline.tables import commit_name, parse_version, parse_version_number
from sluice.times import MINUTE_MS

STORED = Path(__file__).parents[2] / "spark" / "stored" / "1"


@dataclass(slots=True)
class MemoryFiles:
    """Files by their paths; counts what is read. So many reads fail."""

    content: dict[str, bytes] = field(default_factory=dict)
    read_paths: list[str] = field(default_factory=list)
    fails: int = 0

    def names(self, folder: str, *, after: str = "") -> Sequence[str]:
        found = (path.removeprefix(f"{folder}/") for path in self.content if path.startswith(f"{folder}/"))
        return sorted(name for name in found if "/" not in name and name > after)

    def read(self, path: str) -> bytes:
        if self.fails:
            self.fails -= 1
            raise CallFailed("GetObject", "SlowDown", "not now")
        self.read_paths.append(path)
        return self.content[path]

    def commit(self, table: str, number: int, *actions: Mapping[str, Any]) -> None:
        text = "".join(f"{json.dumps(each)}\n" for each in actions)
        self.content[f"{table}/_delta_log/{commit_name(number)}"] = text.encode()


def added(path: str, rows: int, **partition: str) -> dict[str, Any]:
    stats = json.dumps({"numRecords": rows})
    return {"add": {"path": path, "partitionValues": partition, "size": 10, "dataChange": True, "stats": stats}}


def info(operation: str = "WRITE", at_ms: int = 5) -> dict[str, Any]:
    return {"commitInfo": {"timestamp": at_ms, "operation": operation}}


def a_table(files: MemoryFiles, versions: int, name: str = "t") -> CachedTable:
    for number in range(versions):
        taken = {"txn": {"appId": "q", "version": number + 100}}
        files.commit(name, number, added(f"batch={number}/a.parquet", 3), taken, info())
    return CachedTable(name)


def test_a_version_says_what_it_did_and_for_which_batch() -> None:
    files = MemoryFiles()
    table = a_table(files, 1)
    read_whole(table, files)
    [version] = table.newest_first
    assert (version.version, version.at_ms, version.operation, version.rows, version.batch) == (0, 5, "WRITE", 3, 100)
    assert table_document(table.newest_first, table.rows)["rows"] == 3


def test_the_log_that_the_jobs_wrote_is_read() -> None:
    texts = [each.read_text() for each in (STORED / "table" / "_delta_log").glob("*.json")]
    assert {parse_version(0, text).operation for text in texts} <= {"WRITE", "OPTIMIZE"}


def test_each_version_is_read_once_and_as_many_in_a_round_as_it_has_calls_for() -> None:
    files = MemoryFiles()
    table = a_table(files, MAX_INITIAL_VERSIONS + 10)
    table.look(files)
    rounds = [[True] * 20 + [False], [True] * 20 + [False]]
    read_in(table, files, rounds[0])
    assert [each.version for each in table.newest_first] == list(
        range(MAX_INITIAL_VERSIONS + 9, MAX_INITIAL_VERSIONS - 11, -1)
    )
    read_in(table, files, rounds[1])
    assert len(files.read_paths) == len(table.versions) == MAX_INITIAL_VERSIONS
    assert table.rows is None  # of the beginning nothing is known
    a_table(files, MAX_INITIAL_VERSIONS + 15)
    table.look(files)
    read_in(table, files, [True] * 9)
    assert len(files.read_paths) == len(set(files.read_paths)) == MAX_INITIAL_VERSIONS + 5


def test_rows_are_counted_once_all_versions_are_read() -> None:
    files = MemoryFiles()
    table = a_table(files, 3)
    table.look(files)
    read_in(table, files, [True, True, False])
    assert table.rows is None
    read_in(table, files, [True])
    assert table.rows == 9


def read_in(table: CachedTable, files: MemoryFiles, allowed: Sequence[bool]) -> None:
    table.read(files, may_read=iter(allowed).__next__)


def read_whole(table: CachedTable, files: MemoryFiles) -> None:
    table.look(files)
    table.read(files, may_read=lambda: True)


def test_a_version_that_cant_be_read_once_is_read_with_the_next_look() -> None:
    files = MemoryFiles()
    table = a_table(files, 2)
    table.look(files)
    files.fails = 1
    with pytest.raises(CallFailed):
        table.read(files, may_read=lambda: True)
    read_whole(table, files)
    assert (len(table.versions), table.rows) == (2, 6)


def test_a_version_that_nobody_can_read_keeps_no_other_from_being_read() -> None:
    files = MemoryFiles()
    table = a_table(files, 2)
    files.content[f"t/_delta_log/{commit_name(1)}"] = b"{"
    table.look(files)
    with pytest.raises(Malformed):
        table.read(files, may_read=lambda: True)
    read_whole(table, files)
    assert list(table.versions) == [0]


def test_two_who_read_at_once_read_each_file_once() -> None:
    files, both = MemoryFiles(), Barrier(2)
    known = a_table(files, 1)
    known.look(files)

    def may_read() -> bool:
        with suppress(BrokenBarrierError):  # where the other one waits for its turn
            both.wait(0.2)
        return True

    with ThreadPoolExecutor(2) as threads:
        for each in [threads.submit(known.read, files, may_read=may_read) for _ in range(2)]:
            each.result()
    assert len(files.read_paths) == 1


def test_files_beside_versions_are_passed_over() -> None:
    assert parse_version_number("00000000000000000007.json") == 7
    assert [
        parse_version_number(each) for each in ("00000000000000000050.checkpoint.parquet", "7.json", "_last_checkpoint")
    ] == [None] * 3


@pytest.mark.parametrize("text", ["{", '{"add": {}}', '{"txn": {"version": "x"}}', "1"])
def test_a_log_that_cant_be_read_is_malformed(text: str) -> None:
    with pytest.raises(Malformed, match="version 3 of a table"):
        parse_version(3, text)


def a_file(*rows: Mapping[str, Any]) -> bytes:
    sink = io.BytesIO()
    parquet.write_table(pa.Table.from_pylist([dict(each) for each in rows]), sink)
    return sink.getvalue()


def test_rows_are_the_newest_first_with_their_partitions() -> None:
    files = MemoryFiles()
    for number in range(3):
        files.commit("t", number, added(f"b/{number}%20x.parquet", 1, date=f"2026-11-2{number}"), info())
        files.content[f"t/b/{number} x.parquet"] = a_file({"body": f"row {number}"})
    table = CachedTable("t")
    read_whole(table, files)
    assert read_rows(files, table, most=2) == [{"body": f"row {n}", "date": f"2026-11-2{n}"} for n in (2, 1)]


def test_rows_that_were_rewritten_are_not_there_twice() -> None:
    files = MemoryFiles()
    files.commit("t", 0, added("old.parquet", 1), info())
    files.commit("t", 1, added("new.parquet", 1), {"remove": {"path": "old.parquet"}}, info("OPTIMIZE"))
    files.content["t/new.parquet"] = a_file({"body": "once"})
    table = CachedTable("t")
    read_whole(table, files)
    assert [row["body"] for row in read_rows(files, table, most=9)] == ["once"]
    assert table.rows is None


def test_a_file_that_is_no_parquet_is_malformed() -> None:
    files = MemoryFiles()
    files.commit("t", 0, added("a.parquet", 1), info())
    files.content["t/a.parquet"] = b"not this"
    table = CachedTable("t")
    read_whole(table, files)
    with pytest.raises(Malformed):
        read_rows(files, table, most=1)


def test_an_iceberg_tables_snapshots_are_versions() -> None:
    snapshots = [
        {
            "sequence-number": number,
            "timestamp-ms": number,
            "summary": {
                "operation": "append",
                "added-records": "4",
                "total-records": str(4 * number),
                "sluice.batch": "7",
            },
        }
        for number in (1, 2)
    ]
    files = MemoryFiles(
        {
            "t/metadata/version-hint.text": b"2\n",
            "t/metadata/v2.metadata.json": json.dumps({"snapshots": snapshots}).encode(),
        }
    )
    versions = iceberg_versions(files, "t")
    assert [(each.version, each.rows, each.batch, each.total_rows) for each in versions] == [(2, 4, 7, 8), (1, 4, 7, 4)]
    assert table_document(versions, None)["rows"] == 8
    files.content["t/metadata/version-hint.text"] = b"../../secret"
    with pytest.raises(Malformed):
        iceberg_versions(files, "t")


def test_a_folder_has_its_files_and_one_that_isnt_there_none(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for name in ("1", "2"):
        (tmp_path / "a" / name).write_text(name)
    files = FolderFiles(tmp_path)
    assert (files.names("a"), files.names("a", after="1"), files.names("b")) == (["1", "2"], ["2"], [])
    assert files.read("a/1") == b"1"
    with pytest.raises(Malformed):
        files.read("a/3")


def test_minutes_are_what_versions_added() -> None:
    at_ms, files = 100 * MINUTE_MS, MemoryFiles()
    for number, version_ms in enumerate((at_ms - MINUTE_MS, at_ms - MINUTE_MS + 1, at_ms, at_ms - 70 * MINUTE_MS)):
        files.commit("t", number, added(f"{number}.parquet", 5 + number), info(at_ms=version_ms))
    rewritten = added("all.parquet", 26), {"remove": {"path": "0.parquet"}}, info("OPTIMIZE", at_ms)
    files.commit("t", 4, *rewritten)
    table = CachedTable("t")
    read_whole(table, files)
    minutes = count_landed(table.newest_first, at_ms=at_ms)
    assert len(minutes) == CHARTED_MINUTES
    assert minutes[-2:] == [
        {"at_ms": at_ms - MINUTE_MS, "rows": 11, "batches": 2},
        {"at_ms": at_ms, "rows": 7, "batches": 1},
    ]
    assert not any(minute["rows"] for minute in minutes[:-2])
