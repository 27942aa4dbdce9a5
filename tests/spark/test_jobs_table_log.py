"""A table's log: what is the table, whoever writes, what columns it gets, and what compaction may merge."""

import json
import os
import string
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sluice_jobs.compact import build_optimize_statement, build_rewrite_statement, list_closed_days, plan_merges
from sluice_jobs.table_log import CHECKPOINT_EVERY, Change, DataFile, TableLocation, TableLog, Transaction, encode_path
from sluice_jobs.table_schemas import merge_schemas
from sluice_spark.errors import LogError, UnknownFormat

DAY = date(2026, 11, 20)
AWKWARD = "a/b:c {%}*? é=1+2&'x'"
KEPT_LOG_S = 8 * 86_400


def schema(**more: Any) -> str:
    columns = {"message_id": "string", **more, "date": "date", "exchange": "string"}
    fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in columns.items()]
    return json.dumps({"type": "struct", "fields": fields})


def opened(place: Path, **more: Any) -> TableLog:
    return TableLog(str(place), schema=schema(**more), partition_columns=["date", "exchange"])


def wrote(place: Path, folder: str, ids: Sequence[str], exchange: str = "e") -> Sequence[DataFile]:
    """A file with these rows, as Spark leaves it; described as the log is told."""
    part = place / folder / f"date={DAY}" / f"exchange={hive_escaped(exchange)}"
    part.mkdir(parents=True, exist_ok=True)
    sent_at = [datetime(2026, 11, 20, 12, tzinfo=UTC)] * len(ids)
    columns = {"message_id": list(ids), "sent_at": pa.array(sent_at, pa.timestamp("us", "UTC"))}
    pq.write_table(pa.table(columns), part / "part-0.parquet")
    return opened(place).list_written_files(folder)


def hive_escaped(name: str) -> str:
    return "".join(f"%{ord(each):02X}" if each in "\"#%'*/:=?\\{[]^" else each for each in name)


def transaction(version: int, query: str = "query") -> Transaction:
    return Transaction(app_id=query, version=version)


def ids(place: Path) -> list[str]:
    found = deltalake.DeltaTable(str(place)).to_pyarrow_table(columns=["message_id"])
    return sorted(found["message_id"].to_pylist())


def newest_version(place: Path) -> int:
    return int(deltalake.DeltaTable(str(place)).version())


def test_a_table_without_a_version_is_empty(tmp_path: Path) -> None:
    log = opened(tmp_path)
    assert (log.files(), log.schema) == ([], None)
    assert log.delete_old_files() == 0
    assert not log.has_transaction(transaction(0))


def test_what_one_process_commits_another_reads(tmp_path: Path) -> None:
    writer, reader = opened(tmp_path), opened(tmp_path)
    assert writer.append([*wrote(tmp_path, "1", ["a"]), *wrote(tmp_path, "2", ["b"], AWKWARD)], transaction(0))
    assert {(file.name.partition("/")[0], file.rows) for file in reader.files()} == {("1", 1), ("2", 1)}
    merged = wrote(tmp_path, "3", ["a", "b"])
    assert reader.commit_change(lambda files: Change(add=merged, remove=files, moves_rows=True))
    assert [file.path for file in writer.files()] == [merged[0].path]
    assert [file.rows for file in writer.files()] == [2]
    assert ids(tmp_path) == ["a", "b"]


def test_a_batch_is_in_the_table_once(tmp_path: Path) -> None:
    log = opened(tmp_path)
    assert log.append(wrote(tmp_path, "1", ["a"]), transaction(4))
    assert not log.append(wrote(tmp_path, "2", ["a"]), transaction(4))
    assert not log.append(wrote(tmp_path, "3", ["b"]), transaction(3))
    assert [opened(tmp_path).has_transaction(transaction(version)) for version in (3, 4, 5)] == [True, True, False]
    assert not log.has_transaction(transaction(0, "another"))
    assert log.append(wrote(tmp_path, "4", ["c"]), transaction(0, "another"))
    assert ids(tmp_path) == ["a", "c"]


def test_of_two_drivers_that_write_a_batch_one_does(tmp_path: Path) -> None:
    """Both had looked before either wrote."""
    first, second = opened(tmp_path), opened(tmp_path)
    first.append([], transaction(0))
    assert not first.has_transaction(transaction(1))
    assert not second.has_transaction(transaction(1))
    assert first.append(wrote(tmp_path, "1", ["a"]), transaction(1))
    assert not second.append(wrote(tmp_path, "2", ["a"]), transaction(1))
    assert ids(tmp_path) == ["a"]


def test_a_commit_whose_answer_was_lost_is_made_once(tmp_path: Path) -> None:
    files = wrote(tmp_path, "1", ["a"])
    opened(tmp_path).append(files, transaction(0))
    assert opened(tmp_path).append(files, transaction(0))
    assert ids(tmp_path) == ["a"]


def test_a_change_that_was_overtaken_is_made_of_what_is_there_now(tmp_path: Path) -> None:
    one, other = opened(tmp_path), opened(tmp_path)
    one.append(wrote(tmp_path, "1", ["a"]), transaction(0))
    seen: list[int] = []

    def change(files: Sequence[DataFile]) -> Change:
        seen.append(len(files))
        if len(seen) == 1:
            other.append(wrote(tmp_path, "2", ["b"]), transaction(1))
        return Change(add=wrote(tmp_path, f"merged-{len(seen)}", ["a", "b"][: len(files)]), remove=files)

    assert one.commit_change(change)
    assert seen == [1, 2]
    assert ids(tmp_path) == ["a", "b"]


def test_of_two_that_merge_the_same_files_one_does(tmp_path: Path) -> None:
    """The library by itself lets both, and each row is there twice."""
    first, second = opened(tmp_path), opened(tmp_path)
    first.append([*wrote(tmp_path, "1", ["a"]), *wrote(tmp_path, "2", ["b"])], transaction(0))
    small = list(first.files())

    def merging(folder: str, before: Any = lambda: None) -> Any:
        large = wrote(tmp_path, folder, ["a", "b"])

        def change(files: Sequence[DataFile]) -> Change | None:
            if {file.path for file in small} - {file.path for file in files}:
                return None
            before()
            return Change(add=large, remove=small, moves_rows=True)

        return change

    assert not first.commit_change(merging("3", before=lambda: second.commit_change(merging("4"))))
    assert ids(tmp_path) == ["a", "b"]


def test_a_change_that_is_none_leaves_the_table(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.append(wrote(tmp_path, "1", ["a"]), transaction(0))
    assert not log.commit_change(lambda _: None)
    assert newest_version(tmp_path) == 1


def test_a_store_where_others_are_always_faster_fails_after_a_while(tmp_path: Path) -> None:
    log, other = opened(tmp_path), opened(tmp_path)

    def change(files: Sequence[DataFile]) -> Change:
        other.append([], transaction(len(batches)))
        batches.append(len(files))
        return Change(add=wrote(tmp_path, "mine", ["x"]))

    batches: list[int] = []
    with pytest.raises(LogError, match="overtaken"):
        log.commit_change(change)


# Columns


def kinds(log: TableLog) -> dict[str, Any]:
    return {field["name"]: field["type"] for field in json.loads(log.schema or "")["fields"]}


def test_columns_that_a_table_lacks_are_added_and_numbers_get_wider(tmp_path: Path) -> None:
    opened(tmp_path, n="integer", ratio="float").append(wrote(tmp_path, "1", ["a"]), transaction(0))
    before = deltalake.DeltaTable(str(tmp_path)).metadata().id
    log = opened(tmp_path, n="long", ratio="double", tenant="string")
    log.append(wrote(tmp_path, "2", ["b"]), transaction(1))
    assert kinds(log) | {"n": "long", "ratio": "double", "tenant": "string"} == kinds(log)
    assert deltalake.DeltaTable(str(tmp_path)).metadata().id == before
    rows = deltalake.DeltaTable(str(tmp_path)).to_pyarrow_table()
    assert (rows["tenant"].null_count, rows.num_rows) == (2, 2)


def test_a_column_that_isnt_written_any_more_stays_as_wide_as_it_was(tmp_path: Path) -> None:
    opened(tmp_path, n="long", tenant="string").append(wrote(tmp_path, "1", ["a"]), transaction(0))
    log = opened(tmp_path, n="integer")
    before = newest_version(tmp_path)
    log.append(wrote(tmp_path, "2", ["b"]), transaction(1))
    assert (kinds(log)["n"], kinds(log)["tenant"], newest_version(tmp_path)) == ("long", "string", before + 1)


@pytest.mark.parametrize(("there", "wanted"), [("string", "integer"), ("long", "double"), ("integer", "string")])
def test_a_column_of_another_type_is_refused_by_table_and_name(tmp_path: Path, there: str, wanted: str) -> None:
    opened(tmp_path, n=there).append(wrote(tmp_path, "1", ["a"]), transaction(0))
    with pytest.raises(UnknownFormat, match=f"{tmp_path}: column n is {there} there, and can't become {wanted}"):
        opened(tmp_path, n=wanted).append(wrote(tmp_path, "2", ["b"]), transaction(1))
    assert ids(tmp_path) == ["a"]


def test_what_is_within_a_column_evolves_as_columns_do() -> None:
    def nested(kind: str, *more: str) -> dict[str, Any]:
        fields = [{"name": name, "type": each} for name, each in [("n", kind), *((name, "string") for name in more)]]
        return {"type": "array", "elementType": {"type": "struct", "fields": fields}, "containsNull": True}

    found = json.loads(merge_schemas(schema(value=nested("integer")), schema(value=nested("long", "x")), table="t"))
    assert found["fields"][1]["type"] == nested("long", "x")
    with pytest.raises(UnknownFormat, match="t: column value: column n is integer there"):
        merge_schemas(schema(value=nested("integer")), schema(value=nested("string")), table="t")
    with pytest.raises(UnknownFormat, match="t: column value is array there, and can't become string"):
        merge_schemas(schema(value=nested("integer")), schema(value="string"), table="t")


def test_a_table_that_is_partitioned_otherwise_isnt_written_to(tmp_path: Path) -> None:
    opened(tmp_path).append(wrote(tmp_path, "1", ["a"]), transaction(0))
    other = TableLog(str(tmp_path), schema=schema(), partition_columns=["date"])
    with pytest.raises(UnknownFormat, match="partitioned by date, exchange, not by date"):
        other.append([], transaction(1))


def test_a_later_protocol_isnt_written_to(tmp_path: Path) -> None:
    (tmp_path / "_delta_log").mkdir()
    lines = [
        {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["odd"], "writerFeatures": []}},
        {"metaData": {"id": "1", "format": {"provider": "parquet", "options": {}}, "schemaString": schema(),
                      "partitionColumns": ["date", "exchange"], "configuration": {}}},
    ]  # fmt: skip
    (tmp_path / "_delta_log" / f"{0:020d}.json").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    with pytest.raises(LogError, match="odd"):
        opened(tmp_path).append([], transaction(0))


# What lies there


def test_a_file_is_described_from_its_footer_and_its_folders(tmp_path: Path) -> None:
    (file,) = wrote(tmp_path, "7-x", ["a", "b"], AWKWARD)
    assert (file.rows, dict(file.partition)) == (2, {"date": "2026-11-20", "exchange": AWKWARD})
    assert (tmp_path / file.name).stat().st_size == file.size_bytes
    noon = "2026-11-20T12:00:00.000000Z"
    stats = {"minValues": {"sent_at": noon}, "maxValues": {"sent_at": noon}, "nullCount": {"sent_at": 0}}
    assert json.loads(file.stats) == {"numRecords": 2, **stats}


def test_a_name_is_written_as_the_library_writes_it(tmp_path: Path) -> None:
    """Else it wouldn't find what is to be removed, and its rows were there twice."""
    names = [f"x{each}y" for each in string.printable if each.isprintable() and each != "/"] + ["é", "日本", AWKWARD]
    log = opened(tmp_path)
    part = {"date": "2026-11-20", "exchange": "e"}
    files = [DataFile(path=encode_path(name), partition=part, size_bytes=1, rows=1) for name in names]
    log.append(files, transaction(0))
    assert {file.path for file in log.files()} == {file.path for file in files}
    log.commit_change(lambda files: Change(remove=files))
    assert log.files() == []


def aged(path: Path, days: int) -> None:
    for file in [each for each in path.rglob("*") if each.is_file()]:
        os.utime(file, (time.time() - days * 86_400,) * 2)


def test_what_a_killed_attempt_leaves_is_no_part_of_the_table_and_goes_a_day_later(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.append(wrote(tmp_path, "1", ["a"], AWKWARD), transaction(0))
    wrote(tmp_path, "2-killed", ["b"], AWKWARD)
    unfinished = tmp_path / "3-killed" / "_temporary" / "0" / "part-0.parquet"
    unfinished.parent.mkdir(parents=True)
    unfinished.write_bytes(b"PAR1")
    assert ids(tmp_path) == ["a"]
    assert log.delete_old_files() == 0
    for folder in ("1", "2-killed", "3-killed"):
        aged(tmp_path / folder, days=2)
    assert log.delete_old_files() == 2
    assert not list(tmp_path.glob("*-killed/**/*.parquet"))
    assert ids(tmp_path) == ["a"]


def test_a_log_is_read_from_its_checkpoint_and_what_that_covers_is_forgotten_once_it_is_old(tmp_path: Path) -> None:
    log = opened(tmp_path)
    for number in range(CHECKPOINT_EVERY + 10):
        log.append(wrote(tmp_path, f"{number}", [f"{number:03d}"]), transaction(number))
    assert list((tmp_path / "_delta_log").glob("*.checkpoint.parquet"))
    expected = ids(tmp_path)
    aged(tmp_path / "_delta_log", days=8)
    log.delete_old_files()
    assert len(list((tmp_path / "_delta_log").glob("*.json"))) < CHECKPOINT_EVERY
    assert ids(tmp_path) == expected
    again = opened(tmp_path)
    assert again.has_transaction(transaction(CHECKPOINT_EVERY + 9))


def test_delta_s_readers_of_changes_get_new_rows_and_not_those_that_were_moved(tmp_path: Path) -> None:
    log = opened(tmp_path)
    for number in range(2):
        log.append(wrote(tmp_path, f"{number}", [f"{number}"]), transaction(number))
    log.commit_change(lambda files: Change(add=wrote(tmp_path, "2", ["0", "1"]), remove=files, moves_rows=True))
    log.append(wrote(tmp_path, "3", ["3"]), transaction(3))
    versions = [path.read_text() for path in sorted((tmp_path / "_delta_log").glob("*.json"))]
    added = [add for text in versions for line in text.splitlines() if (add := json.loads(line).get("add"))]
    assert [add["path"].partition("/")[0] for add in added if add["dataChange"]] == ["0", "1", "3"]


# S3


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """In another process: the library doesn't let go of the interpreter while it waits for an answer."""
    program = "from tests.spark import s3_server\nwith s3_server.running() as s3: print(s3.url, flush=True); input()"
    root = Path(__file__).parents[2]
    with subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=root,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as server:
        assert server.stdout is not None
        url = server.stdout.readline().strip()
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", url)
        import boto3  # noqa: PLC0415  where there is an endpoint

        place = {"LocationConstraint": "eu-west-1"}
        boto3.client("s3").create_bucket(Bucket="bucket", CreateBucketConfiguration=place)
        yield "s3a://bucket/tables/messages"
        server.terminate()


def test_on_s3_a_version_is_one_writer_s(s3: str) -> None:
    first, second = (TableLog(s3, schema=schema(), partition_columns=["date", "exchange"]) for _ in range(2))
    file = DataFile(path=encode_path("1/é"), partition={"date": "2026-11-20", "exchange": "e"}, size_bytes=1, rows=1)
    first.append([], transaction(0))
    assert not second.has_transaction(transaction(1))
    assert first.append([file], transaction(1))
    assert not second.append([], transaction(1))
    assert [each.path for each in second.files()] == [file.path]
    assert second.list_written_files("none") == []


def test_keys_of_s3_are_botocore_s_and_an_endpoint_of_aws_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", "token")
    assert TableLocation("s3://bucket/t").options() == {
        "AWS_ACCESS_KEY_ID": "AKIATEST",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_SESSION_TOKEN": "token",
        "AWS_REGION": "eu-west-1",
    }
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")
    options = TableLocation("s3://bucket/t").options()
    assert (options["AWS_ENDPOINT_URL"], options["AWS_ALLOW_HTTP"]) == ("http://127.0.0.1:9", "true")
    assert (TableLocation("/t").options(), TableLocation("file:/t").uri) == ({}, "/t")
    with pytest.raises(LogError, match="'hdfs'"):
        TableLocation("hdfs://host/t")


# What is merged


def file(path: str, *, size: int = 10, day: date = DAY, exchange: str = "e") -> DataFile:
    return DataFile(path=path, partition={"date": day.isoformat(), "exchange": exchange}, size_bytes=size, rows=1)


def test_small_files_of_one_partition_are_merged_up_to_the_target() -> None:
    files = [file(f"{number}", size=30) for number in range(5)] + [file("large", size=90), file("x", exchange="o")]
    groups = [[each.path for each in group] for group in plan_merges(files, [DAY], 100)]
    assert groups == [["0", "1", "2"], ["3", "4"]]


def test_days_that_arent_asked_for_stay() -> None:
    files = [file("a", day=DAY + timedelta(days=1)), file("b", day=DAY + timedelta(days=1))]
    assert list(plan_merges(files, [DAY], 100)) == []
    assert list_closed_days(DAY, 2) == [date(2026, 11, 19), date(2026, 11, 18)]


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(1, 150), st.sampled_from("ab")), max_size=30), st.integers(1, 120))
def test_no_file_is_merged_twice_and_no_group_exceeds_the_target(sizes: list[tuple[int, str]], target: int) -> None:
    files = [file(f"{number}", size=size, exchange=name) for number, (size, name) in enumerate(sizes)]
    groups = list(plan_merges(files, [DAY], target))
    paths = [each.path for group in groups for each in group]
    assert len(set(paths)) == len(paths)
    for group in groups:
        assert len(group) > 1
        assert sum(each.size_bytes for each in group) <= target
        assert len({each.partition["exchange"] for each in group}) == 1


def test_delta_and_iceberg_are_told_by_sql() -> None:
    days = list_closed_days(DAY, 3)
    where = "date >= DATE '2026-11-17' AND date <= DATE '2026-11-19'"
    assert build_optimize_statement("s3://b/t", days) == f"OPTIMIZE delta.`s3://b/t/messages` WHERE {where}"
    escaped = where.replace("'", "''")
    assert build_rewrite_statement("glue.sluice", days, 64) == (
        f"CALL glue.system.rewrite_data_files(table => 'sluice.messages', where => '{escaped}', "
        "options => map('target-file-size-bytes', '64', 'partial-progress.enabled', 'true'))"
    )
