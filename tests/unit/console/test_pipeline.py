"""Page Pipeline's reading: tables by their logs, landing by metrics, statistics by the daily logs."""

import io
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Barrier, BrokenBarrierError
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from pyarrow import parquet

from sluice.console.readings.pipeline import (
    CHARTED_MINUTES,
    DAY,
    MAX_LOG_LINES,
    TABLES_INTERVAL_S,
    count_new_rows,
    parse_day,
    parse_samples,
    read_days,
    sum_by_minute,
    sum_logs_by_minute,
)
from sluice.console.sites import BudgetedSite, SiteCache
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


def test_the_newest_day_is_read_again_with_each_look() -> None:
    files = MemoryFiles()
    days = [f"statistics/{DAY}2026-11-{day}.log" for day in (21, 22, 23)]
    files.content = dict.fromkeys(days, b"client-denied-count 3")
    now_s, connection = 0.0, SimpleNamespace()
    memory = SiteCache(now_s=lambda: now_s)

    def shown(calls: int) -> Sequence[str]:
        site = BudgetedSite(cast("Any", connection), memory, is_local=False, calls=calls)
        return [each["day"] for each in read_days(site, files)]

    assert shown(3) == ["2026-11-22", "2026-11-23"]  # a look, and two reads
    now_s += TABLES_INTERVAL_S
    assert shown(3) == ["2026-11-21", "2026-11-22", "2026-11-23"]
    assert files.read_paths == [days[2], days[1], days[2], days[0]]


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


def sample(at_ms: int, rows: int, lag_ms: float | None = None, **others: str) -> str:
    told = {"_aws": {"Timestamp": at_ms}, "Query": "land", "Source": "0", "numRecordsIn": rows}
    return json.dumps(told | ({} if lag_ms is None else {"currentEmitEventTimeLag": lag_ms}) | others)


def test_minutes_are_what_batches_added() -> None:
    at_ms = 100 * MINUTE_MS
    text = "\n".join(
        [
            "a line of Spark's",
            sample(at_ms - MINUTE_MS, 1_000, 50),
            sample(at_ms - MINUTE_MS + 1, 1_200, 80),
            sample(at_ms, 1_500),
            sample(at_ms, 9_999, Query="statistics"),
            sample(at_ms, 1_600)[:-5],
        ]
    )
    minutes = sum_by_minute(count_new_rows(parse_samples(text)), at_ms=at_ms)
    assert len(minutes) == CHARTED_MINUTES
    assert minutes[-2] == {"at_ms": at_ms - MINUTE_MS, "rows": 200, "batches": 2, "lag_ms": 80}
    assert minutes[-1] == {"at_ms": at_ms, "rows": 300, "batches": 1, "lag_ms": None}


def test_a_run_that_follows_another_counts_from_the_beginning() -> None:
    at_ms = 100 * MINUTE_MS
    first = "\n".join([sample(at_ms - MINUTE_MS, 50), sample(at_ms - MINUTE_MS, 90)])
    second = "\n".join([sample(at_ms, 20), sample(at_ms, 95)])
    assert [each["rows"] for each in sum_logs_by_minute([first, second], at_ms=at_ms)[-2:]] == [90, 95]
    cut = "\n" * MAX_LOG_LINES + first
    assert [each["rows"] for each in sum_logs_by_minute([cut, second], at_ms=at_ms)[-2:]] == [40, 95]
    assert not any(each["batches"] for each in sum_logs_by_minute([], at_ms=at_ms))


def test_each_run_counts_by_itself_whatever_the_one_before_it_had_landed() -> None:
    at_ms = 100 * MINUTE_MS
    first = sample(at_ms - MINUTE_MS, 90)
    larger = "\n".join([sample(at_ms, 95), sample(at_ms, 100)])
    assert [each["rows"] for each in sum_logs_by_minute([first, larger], at_ms=at_ms)[-2:]] == [90, 100]
    cut = "\n" * MAX_LOG_LINES + larger
    assert [each["rows"] for each in sum_logs_by_minute([first, cut], at_ms=at_ms)[-2:]] == [90, 5]


def test_a_days_log_has_offers_and_addresses() -> None:
    text = "snowflake-stats-end 2026-11-21 00:00:00 (86400 s)\nsnowflake-ips US=9,??=1\nsnowflake-ips-total 10\n"
    text += "client-denied-count 8\nclient-snowflake-match-count 64\n"
    assert parse_day("snowflake-stats-2026-11-20.log", text) == {
        "day": "2026-11-20",
        "offers": {"matched": 64, "denied": 8, "timed out": 0},
        "addresses": 10,
        "countries": [["US", 9], ["??", 1]],
    }
