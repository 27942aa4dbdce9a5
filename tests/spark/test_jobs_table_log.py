"""A table's log: what is the table, whoever writes, and what compaction may merge."""

import json
import time
from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sluice_jobs import table_log
from sluice_jobs.merging import closed_days, merges, optimize_statement, rewrite_statement
from sluice_jobs.table_log import OPTIMIZE, WRITE, Change, DataFile, Snapshot, TableLog, Transaction
from sluice_spark.errors import LogError, SegmentTaken, UnknownFormat
from sluice_spark.log.store import FileStore

SCHEMA = json.dumps({"type": "struct", "fields": []})
DAY = date(2026, 11, 20)


def file(path: str, rows: int = 1, *, size: int = 10, day: date = DAY, exchange: str = "e") -> DataFile:
    return DataFile(path=path, partition={"date": day.isoformat(), "exchange": exchange}, size=size, rows=rows)


def commit(log: TableLog, change: Change | Callable[[Snapshot], Change | None], schema: str = SCHEMA) -> Snapshot:
    make = change if callable(change) else lambda _: change
    return log.commit(make, schema=schema, partition_columns=["date", "exchange"])


def added(*paths: str) -> Change:
    return Change(operation=WRITE, add=[file(path) for path in paths])


def test_a_table_without_a_version_is_empty(tmp_path: Path) -> None:
    snapshot = TableLog(FileStore(tmp_path)).snapshot()
    assert (snapshot.version, snapshot.files, snapshot.schema) == (-1, {}, None)


def test_what_one_process_commits_another_reads(tmp_path: Path) -> None:
    writer, reader = TableLog(FileStore(tmp_path)), TableLog(FileStore(tmp_path))
    commit(writer, added("a", "b"))
    assert set(reader.snapshot().files) == {"a", "b"}
    commit(reader, Change(operation=OPTIMIZE, add=[file("c", 2)], remove=[file("a"), file("b")]))
    assert set(writer.snapshot().files) == {"c"}
    assert set(writer.snapshot().removed) == {"a", "b"}
    assert writer.snapshot().rows == 2


def test_a_commit_that_was_overtaken_is_made_of_what_is_there_now(tmp_path: Path) -> None:
    one, other = TableLog(FileStore(tmp_path)), TableLog(FileStore(tmp_path))
    commit(one, added("a"))
    seen: list[set[str]] = []

    def change(snapshot: Snapshot) -> Change:
        seen.append(set(snapshot.files))
        if len(seen) == 1:
            commit(other, added("b"))
        return added("c")

    assert set(commit(one, change).files) == {"a", "b", "c"}
    assert seen == [{"a"}, {"a", "b"}]


def test_a_change_that_is_none_leaves_the_table(tmp_path: Path) -> None:
    log = TableLog(FileStore(tmp_path))
    commit(log, added("a"))
    assert commit(log, lambda _: None).version == 0


def test_a_transaction_is_known_with_those_before_it(tmp_path: Path) -> None:
    log = TableLog(FileStore(tmp_path))
    commit(log, Change(operation=WRITE, transaction=Transaction(app_id="query", version=4)))
    snapshot = TableLog(FileStore(tmp_path)).snapshot()
    known = [snapshot.has(Transaction(app_id="query", version=version)) for version in (3, 4, 5)]
    assert known == [True, True, False]
    assert not snapshot.has(Transaction(app_id="another", version=0))


class AnswerLost(FileStore):
    """Publishes, and says that the name is taken: as a store's client that tries again does."""

    def publish(self, name: str, content: pa.Buffer) -> None:
        super().publish(name, content)
        raise SegmentTaken(name)


def test_a_commit_whose_answer_was_lost_is_made_once(tmp_path: Path) -> None:
    log = TableLog(AnswerLost(tmp_path))
    assert commit(log, added("a")).version == 0
    assert commit(log, added("b")).version == 1


def test_a_store_where_others_are_always_faster_fails_after_a_while(tmp_path: Path) -> None:
    other = TableLog(FileStore(tmp_path))

    def change(snapshot: Snapshot) -> Change:
        commit(other, added(f"other-{snapshot.version}"))
        return added("mine")

    with pytest.raises(LogError, match="overtaken"):
        commit(TableLog(FileStore(tmp_path)), change)


def schema_of(*names: str) -> str:
    return json.dumps({"type": "struct", "fields": [{"name": name, "type": "string"} for name in names]})


def test_columns_that_a_table_lacks_are_added(tmp_path: Path) -> None:
    log = TableLog(FileStore(tmp_path))
    first = commit(log, added("a"), schema_of("x"))
    later = commit(log, added("b"), schema_of("x", "y"))
    assert (later.schema, set(later.files)) == (schema_of("x", "y"), {"a", "b"})
    assert first.metadata is not None
    assert later.metadata is not None
    assert later.metadata["id"] == first.metadata["id"]


def test_a_table_of_another_kind_isnt_written_to(tmp_path: Path) -> None:
    log = TableLog(FileStore(tmp_path))
    commit(log, added("a"), schema_of("x", "y"))
    with pytest.raises(UnknownFormat, match="it has y"):
        commit(log, added("b"), schema_of("x"))
    assert set(TableLog(FileStore(tmp_path)).snapshot().files) == {"a"}


def test_a_later_protocol_isnt_read(tmp_path: Path) -> None:
    line = json.dumps({"protocol": {"minReaderVersion": 3, "minWriterVersion": 7}})
    FileStore(tmp_path).publish(f"{table_log.FOLDER}/{0:020d}.json", pa.py_buffer(line.encode()))
    with pytest.raises(UnknownFormat, match="protocol"):
        TableLog(FileStore(tmp_path)).snapshot()


def test_a_version_that_is_missing_is_never_passed_over(tmp_path: Path) -> None:
    log = TableLog(FileStore(tmp_path))
    for name in "abc":
        commit(log, added(name))
    (tmp_path / table_log.FOLDER / f"{1:020d}.json").unlink()
    with pytest.raises(LogError, match="version 1"):
        TableLog(FileStore(tmp_path)).snapshot()


@pytest.fixture
def long_log(tmp_path: Path) -> TableLog:
    """Longer than two checkpoints, with files added and removed."""
    log = TableLog(FileStore(tmp_path))
    for number in range(2 * table_log.CHECKPOINT_EVERY + 5):
        old = [file(f"é {number - 1}", number)] if number % 3 == 2 else []
        transaction = Transaction(app_id="query", version=number)
        commit(log, Change(operation=WRITE, add=[file(f"é {number}", number + 1)], remove=old, transaction=transaction))
    return log


def test_a_table_read_from_its_checkpoint_is_the_same(tmp_path: Path, long_log: TableLog) -> None:
    expected = long_log.snapshot()
    for number in range(table_log.CHECKPOINT_EVERY * 2):
        (tmp_path / table_log.FOLDER / f"{number:020d}.json").unlink()
    found = TableLog(FileStore(tmp_path)).snapshot()
    assert found.files == expected.files
    assert found.removed == expected.removed
    assert (found.version, found.transactions, found.schema) == (expected.version, {"query": 104}, SCHEMA)


def test_versions_that_a_checkpoint_covers_are_forgotten_once_they_are_old(tmp_path: Path, long_log: TableLog) -> None:
    assert long_log.forget(before=time.time() - 3600) == 0
    assert long_log.forget(before=time.time() + 3600) > table_log.CHECKPOINT_EVERY
    assert TableLog(FileStore(tmp_path)).snapshot().files == long_log.snapshot().files
    assert long_log.forget(before=time.time() + 3600) == 0


def test_a_stream_gets_new_rows_and_not_those_that_were_moved(tmp_path: Path) -> None:
    log = TableLog(FileStore(tmp_path))
    commit(log, added("a"))
    commit(log, added("b"))
    commit(log, Change(operation=OPTIMIZE, add=[file("c", 2)], remove=[file("a"), file("b")]))
    commit(log, added("d"))
    assert [each.path for each in log.added(after=-1, until=3)] == ["a", "b", "d"]
    assert [each.path for each in log.added(after=1, until=2)] == []


# What is merged


def snapshot_of(*files: DataFile) -> Snapshot:
    return Snapshot(version=0, files={each.path: each for each in files})


def test_small_files_of_one_partition_are_merged_up_to_the_target() -> None:
    files = [file(f"{number}", size=30) for number in range(5)] + [file("large", size=90), file("x", exchange="o")]
    groups = [[each.path for each in group] for group in merges(snapshot_of(*files), [DAY], 100)]
    assert groups == [["0", "1", "2"], ["3", "4"]]


def test_days_that_arent_asked_for_stay() -> None:
    files = [file("a", day=DAY + timedelta(days=1)), file("b", day=DAY + timedelta(days=1))]
    assert list(merges(snapshot_of(*files), [DAY], 100)) == []
    assert closed_days(DAY, 2) == [date(2026, 11, 19), date(2026, 11, 18)]


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(1, 150), st.sampled_from("ab")), max_size=30), st.integers(1, 120))
def test_no_file_is_merged_twice_and_no_group_exceeds_the_target(sizes: list[tuple[int, str]], target: int) -> None:
    files = [file(f"{number}", size=size, exchange=name) for number, (size, name) in enumerate(sizes)]
    groups = list(merges(snapshot_of(*files), [DAY], target))
    paths = [each.path for group in groups for each in group]
    assert len(set(paths)) == len(paths)
    for group in groups:
        assert len(group) > 1
        assert sum(each.size for each in group) <= target
        assert len({each.partition["exchange"] for each in group}) == 1


def test_delta_and_iceberg_are_told_by_sql() -> None:
    days = closed_days(DAY, 3)
    where = "date >= DATE '2026-11-17' AND date <= DATE '2026-11-19'"
    assert optimize_statement("s3://b/t", days) == f"OPTIMIZE delta.`s3://b/t/messages` WHERE {where}"
    escaped = where.replace("'", "''")
    assert rewrite_statement("glue.sluice", days, 64) == (
        f"CALL glue.system.rewrite_data_files(table => 'sluice.messages', where => '{escaped}', "
        "options => map('target-file-size-bytes', '64', 'partial-progress.enabled', 'true'))"
    )


def test_a_commit_is_lines_of_deltas_actions(tmp_path: Path) -> None:
    """As the protocol has them: other readers depend on it."""
    commit(TableLog(FileStore(tmp_path)), added("batch=1/a%20b"))
    lines = (tmp_path / "_delta_log" / f"{0:020d}.json").read_text().splitlines()
    actions: list[dict[str, Any]] = [json.loads(line) for line in lines]
    assert [next(iter(each)) for each in actions] == ["protocol", "metaData", "add", "commitInfo"]
    assert actions[0]["protocol"] == {"minReaderVersion": 1, "minWriterVersion": 2}
    add = actions[2]["add"]
    assert (add["path"], add["dataChange"], json.loads(add["stats"])) == ("batch=1/a%20b", True, {"numRecords": 1})
