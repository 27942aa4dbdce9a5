"""The jobs on Spark: each message lands once, whatever is killed; a day's statistics, line by line; compaction while
others read and write; and back to an exchange."""

import json
import os
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.spark.with_spark.driver import kill_session
from tests.spark.with_spark.killed import committed, until
from tests.spark.with_spark.land_programs import WITHIN_S, killed_when, program, table_at, told
from tests.spark.with_spark.readers import BESIDE_SPARK, by_spark

VISIBILITY_S = 3
GOOD, LATE, BAD = 3900, 60, 40
DAY = date(2026, 11, 20)
NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
ULID = "01ARZ3NDEKTSV4RRFFQ69G5FAV"


def sealed(exchange: str, **more: Any) -> dict[str, Any]:
    text = json.dumps({"exchange": exchange, "key": "a.b", "trace": ["SITE1"], "id": f"SITE1.{ULID}", **more})
    return {"x-qpid": {"type": "String", "string": text, "binary": None}}


def _text(value: str) -> dict[str, Any]:
    return {"type": "String", "string": value, "binary": None}


def bad_metadata() -> dict[str, Any]:
    return {"x-qpid": {"type": "String", "string": "{", "binary": None}}


def message(number: int, body: str = "m", sent_at: datetime = NOON, **more: Any) -> dict[str, Any]:
    return {
        "message_id": f"{number:06d}",
        "body": body,
        "sent_at": sent_at,
        "attributes": {},
        "receive_count": 1,
    } | more


@pytest.fixture
def landed(job_spark: Any, tmp_path: Path) -> Iterator[Any]:
    """What Spark calls with each batch, on tables of this test."""
    with writing(job_spark, tmp_path) as writer:
        yield writer


@contextmanager
def writing(spark: Any, place: Path) -> Iterator[Any]:
    from sluice_jobs.land import QUERY_ID, BatchWriter  # noqa: PLC0415  needs PySpark

    spark.sparkContext.setLocalProperty(QUERY_ID, str(uuid.uuid4()))
    yield BatchWriter(table_at(place, "tables/messages"), table_at(place, "bad/quarantine"), late_days=3)
    spark.sparkContext.setLocalProperty(QUERY_ID, None)


@pytest.fixture
def messages(job_spark: Any, tmp_path: Path) -> Callable[..., Any]:
    return lambda name="tables/messages": table_at(tmp_path, name).read(job_spark)


def ids(frame: Any) -> list[str]:
    return sorted(row.message_id for row in frame.select("message_id").collect())


# land


def fill(queue: Any) -> None:
    """Late ones are events of a week before; bad ones have metadata that can't be read."""
    week_ago = (datetime.now(UTC) - timedelta(days=7)).strftime("%Y-%m-%dT%H:%M:%S.123Z")
    late = json.dumps({"kind": "poll", "id": "1", "at": week_ago, "site": "s", "outcome": "idle"})
    for number in range(GOOD + LATE + BAD):
        text = json.dumps({"exchange": f"e{number % 3}"}) if number < GOOD + LATE else "{"
        body = f"{number}" if number < GOOD or number >= GOOD + LATE else late
        entry = {"MessageBody": body, "MessageAttributes": {"x-qpid": {"DataType": "String", "StringValue": text}}}
        queue.send(entry, time.time())


@pytest.mark.timeout(900)  # up to three programs start one after the other
@pytest.mark.slow
@pytest.mark.parametrize("kills", [["in the table"], ["received", "in the table", "committed"]])
def test_a_job_that_is_killed_lands_each_message_once(
    job_spark: Any, sqs: Any, tmp_path: Path, messages: Any, kills: list[str]
) -> None:
    """Killed while it receives, when a batch is in the table, or when Spark has committed one."""
    from sluice_jobs.land import LandArguments, land  # noqa: PLC0415  needs PySpark

    sqs.queues["q"].visibility_s = VISIBILITY_S
    fill(sqs.queues["q"])
    sent = sorted(sqs.queues["q"].known)
    arguments = {**told(sqs, tmp_path), "--max-messages": "900"}
    log, commits = tmp_path / "tables" / "messages" / "_delta_log", tmp_path / "checkpoint" / "commits"
    moments: dict[str, Callable[[], bool]] = {
        "received": lambda: sqs.calls["DeleteMessageBatch"] > 40,
        "in the table": lambda: len(list(log.glob("*.json"))) > 2,
        "committed": lambda: len([path for path in commits.glob("*") if path.name.isdigit()]) > 3,
    }
    for kill in kills:
        killed_when(moments[kill], program(arguments))
    rest = land(
        job_spark,
        LandArguments(
            source={
                "queueUrl": sqs.queue_url("q"),
                "endpoint": sqs.url,
                "stagingLocation": f"{tmp_path}/staging",
                "waitTimeSeconds": "1",
            },
            checkpoint=f"{tmp_path}/checkpoint",
            tables=f"{tmp_path}/tables",
            table_format="parquet",
            quarantine=f"{tmp_path}/bad",
            drain=True,
        ),
    )
    assert not rest.interrupted
    assert sqs.queues["q"].known == {}
    rows, bad = messages(), messages("bad/quarantine")
    assert sorted(ids(rows) + ids(bad)) == sent
    assert (rows.where("late").count(), bad.count()) == (LATE, BAD)
    assert {row.exchange for row in rows.select("exchange").distinct().collect()} == {"e0", "e1", "e2"}


@pytest.mark.slow
def test_sigterm_ends_a_job_between_two_batches(job_spark: Any, sqs: Any, tmp_path: Path, messages: Any) -> None:
    from sluice_jobs.land import LandArguments, land  # noqa: PLC0415  needs PySpark

    sqs.queues["q"].fill([f"{number}" for number in range(500)], time.time())
    source = {"queueUrl": sqs.queue_url("q"), "endpoint": sqs.url, "stagingLocation": f"{tmp_path}/staging"}
    landing = LandArguments(
        source=source | {"waitTimeSeconds": "1", "maxMessagesPerTrigger": "100"},
        checkpoint=f"{tmp_path}/checkpoint",
        tables=f"{tmp_path}/tables",
        table_format="parquet",
        quarantine=f"{tmp_path}/bad",
        trigger_seconds=0,
    )

    def terminate(number: int) -> None:
        if number == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    done = land(job_spark, landing, terminate)
    assert done.interrupted
    assert done.totals.landed == len(ids(messages()))
    committed = [path.name for path in (tmp_path / "checkpoint" / "commits").glob("*") if path.name.isdigit()]
    assert len(committed) == done.totals.batches


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_ctrl_c_ends_a_job_after_its_batch_without_a_traceback(spark: Any, sqs: Any, tmp_path: Path) -> None:
    """As a terminal sends it: to all processes of the job."""
    sqs.queues["q"].fill([f"{number}" for number in range(300)], time.time())
    arguments = {**told(sqs, tmp_path), "--max-messages": "100"}
    with subprocess.Popen(
        program(arguments), start_new_session=True, stderr=subprocess.PIPE, stdout=subprocess.PIPE
    ) as job:
        try:
            until(lambda: committed({"checkpoint": f"{tmp_path}/checkpoint"}) > 1 or job.poll() is not None)
            os.killpg(job.pid, signal.SIGINT)
            said, errors = job.communicate(timeout=WITHIN_S)
        finally:
            kill_session(job.pid)
    assert job.returncode == 0, errors[-4000:]
    assert b"Traceback" not in errors
    assert json.loads(said.splitlines()[-1])["landed"] >= 100


def test_a_job_killed_before_the_quarantine_completes_it_when_the_batch_comes_again(
    received: Any, landed: Any, messages: Any, tmp_path: Path
) -> None:
    from sluice_jobs.land import BatchWriter  # noqa: PLC0415  needs PySpark

    class Killed(Exception):
        pass

    class Unreachable:
        def append(self, frame: Any, transaction: Any) -> bool:
            raise Killed

        def read(self, spark: Any, keep: Any = None) -> Any:
            raise Killed

    batch = received([message(1), message(2, attributes=bad_metadata())])
    with pytest.raises(Killed):
        BatchWriter(table_at(tmp_path, "tables/messages"), Unreachable(), late_days=3)(batch, 0)
    landed(batch, 0)
    assert ids(messages()) == ["000001"]
    assert ids(messages("bad/quarantine")) == ["000002"]


AWKWARD = "a/b:c {%}*?"
NUMBERLIKE = ("5", "true", "-1", "{}", "[]")
MISTYPED = (
    '{"exchange": 5}',
    '{"exchange": true}',
    '{"exchange": {"a": 1}}',
    '{"exchange": 5, "headers": {"exchange": "e"}}',
    '{"exchange": "e", "key": -1.5}',
    '{"exchange": "e", "id": 7}',
    '{"exchange": "e", "trace": ["SITE1", 7]}',
)


def event(at: datetime, number: int, **more: Any) -> str:
    at_text = at.strftime("%Y-%m-%dT%H:%M:%S.") + f"{at.microsecond // 1000:03d}Z"
    return json.dumps({"kind": "poll", "outcome": "idle", "id": f"{number}", "at": at_text, "site": "s"} | more)


CARRIED = [
    message(1, attributes=sealed(AWKWARD, published=1_700_000_000_000)),
    message(2, attributes={"exchange": _text("plain"), "routing-key": _text("k")}),
    message(3, attributes=sealed("e", published=1 << 62)),
    message(4),
]
NAMED = [message(10 + number, attributes=sealed(name, key=name)) for number, name in enumerate(NUMBERLIKE)]
UNREADABLE = [
    message(20 + number, attributes={"x-qpid": attribute})
    for number, attribute in enumerate(
        [
            *bad_metadata().values(),
            _text("5"),
            _text("[" * 5000),
            _text('{"published": "soon"}'),
            {"type": "Binary", "string": None, "binary": b"{}"},
            _text(json.dumps({"exchange": "é" * 127})),  # a name that no folder can have
            *(_text(text) for text in MISTYPED),
        ]
    )
]
HAPPENED = {
    "000040": (NOON - timedelta(days=3), DAY - timedelta(days=3), False),
    "000041": (NOON - timedelta(days=4), DAY, True),
    "000042": (NOON + timedelta(days=400), DAY, False),  # a clock that is ahead
}
EVENTS = [message(int(name), event(at, 1)) for name, (at, _, _) in HAPPENED.items()]
NO_EVENTS = [
    message(50 + number, body)
    for number, body in enumerate(
        ['{"at": "2020-01-01T00:00:00Z"}', event(NOON, 1).replace("2026-", "soon-"), '{"kind": [1', "{}"]
    )
]


@dataclass(frozen=True)
class Landed:
    """What the tables have, by message id, and the run's totals."""

    rows: list[Any]
    bad: list[Any]
    totals: Any

    def of(self, messages: list[dict[str, Any]]) -> list[Any]:
        wanted = {each["message_id"] for each in messages}
        return [row for row in self.rows if row.message_id in wanted]


@pytest.fixture(scope="module")
def batch(job_spark: Any, received: Any, tmp_path_factory: pytest.TempPathFactory) -> Landed:
    """One batch with all of these messages, which comes again."""
    place = tmp_path_factory.mktemp("batch")
    frame = received([*CARRIED, *NAMED, *UNREADABLE, *EVENTS, *NO_EVENTS])
    with writing(job_spark, place) as writer:
        for _ in range(2):
            writer(frame, 0)
    rows, bad = (
        table_at(place, name).read(job_spark).orderBy("message_id").collect()
        for name in ("tables/messages", "bad/quarantine")
    )
    return Landed(rows, bad, writer.totals)


def test_a_batch_that_comes_again_is_in_the_tables_once(batch: Landed) -> None:
    good = [*CARRIED, *NAMED, *EVENTS, *NO_EVENTS]
    assert [row.message_id for row in batch.rows] == [each["message_id"] for each in good]
    assert [row.message_id for row in batch.bad] == [each["message_id"] for each in UNREADABLE]
    totals = batch.totals
    assert (totals.landed, totals.late, totals.quarantined) == (len(good) - 1, 1, len(UNREADABLE))


def test_what_a_message_carries_is_in_columns(batch: Landed) -> None:
    one, two, three, four = batch.of(CARRIED)
    assert (one.exchange, one.routing_key, one.origin, one.sites) == (AWKWARD, "a.b", "SITE1", ["SITE1"])
    assert (one.origin_id, one.published_at.timestamp()) == (f"SITE1.{ULID}", 1_700_000_000)
    assert (two.exchange, two.routing_key, two.origin) == ("plain", "k", None)
    assert three.published_at is None
    assert (four.exchange, four.routing_key, four.date, four.late) == ("none", None, DAY, False)


def test_a_name_that_looks_like_a_number_is_a_name(batch: Landed) -> None:
    assert [(row.exchange, row.routing_key) for row in batch.of(NAMED)] == [(name, name) for name in NUMBERLIKE]


def test_metadata_that_cant_be_read_are_quarantined_with_a_reason(batch: Landed) -> None:
    assert {(bool(row.reason), row.date) for row in batch.bad} == {(True, DAY)}


def test_a_late_event_makes_no_file_in_an_old_partition(batch: Landed) -> None:
    found = {row.message_id: (row.date, row.late) for row in batch.of(EVENTS)}
    assert found == {name: (day, late) for name, (_, day, late) in HAPPENED.items()}


def test_a_body_that_only_looks_like_an_event_is_dated_when_it_was_sent(batch: Landed) -> None:
    assert [(row.date, row.late) for row in batch.of(NO_EVENTS)] == [(DAY, False)] * len(NO_EVENTS)


class Answering:
    """A session whose SQL says one thing, and what was asked of it and of a frame's writer."""

    def __init__(self, rows: list[int]) -> None:
        self.asked: list[Any] = []
        self.options: dict[str, Any] = {}
        self.rows, self.sparkSession, self.write = rows, self, self

    def sql(self, statement: str) -> "Answering":
        self.asked.append(statement)
        return self

    def head(self, count: int) -> list[int]:
        return self.rows[:count]

    def option(self, name: str, value: Any) -> "Answering":
        self.options[name] = value
        return self

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> "Answering":
            self.asked.append(name)
            return self

        return call


@pytest.mark.usefixtures("job_spark")  # columns are written down as DDL, which the JVM reads
@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_delta_and_iceberg_are_asked_first_whether_they_have_a_batch(kind: str, there: bool) -> None:
    from sluice_jobs.landing import messages_layout  # noqa: PLC0415  needs PySpark
    from sluice_jobs.table_log import Transaction  # noqa: PLC0415  as above
    from sluice_jobs.tables import open_table  # noqa: PLC0415  as above

    query = "b0b4b16a-3b5f-4d38-8e9a-000000000000"
    table = open_table(kind, "s3://b/t" if kind == "delta" else "glue.sluice", "messages", messages_layout())
    frame = Answering([1] if there else [])
    assert table.append(frame, Transaction(app_id=query, version=7)) is not there
    created, looked_up = frame.asked[:2]
    named = "delta.`s3://b/t/messages`" if kind == "delta" else "glue.sluice.messages"
    assert created.startswith(f"CREATE TABLE IF NOT EXISTS {named} (`message_id` string, `body` string, ")
    assert created.endswith(f"`late` boolean) USING {kind} PARTITIONED BY (`date`, `exchange`, `late`)")
    written = "save" if kind == "delta" else "append"
    assert (written in frame.asked) is not there
    if kind == "delta":
        assert looked_up == f"DESCRIBE HISTORY {named}"
        expected = {"txnAppId": query, "txnVersion": 7, "userMetadata": f"{query}/7"}
    else:
        assert f"{named}.snapshots WHERE summary['sluice.query'] = '{query}'" in looked_up
        expected = {
            "fanout-enabled": "true",
            "snapshot-property.sluice.query": query,
            "snapshot-property.sluice.batch": "7",
        }
    assert frame.options == ({} if there else expected)


# compact


@pytest.mark.slow
def test_readers_see_each_row_once_while_files_are_merged(
    job_spark: Any, received: Any, landed: Any, messages: Any, tmp_path: Path
) -> None:
    from sluice_jobs.compact import compact_parquet  # noqa: PLC0415  needs PySpark

    def merged(**more: Any) -> Any:
        return compact_parquet(job_spark, f"{tmp_path}/tables", days=[DAY], target_bytes=1 << 20, **more)

    for number in range(3):
        rows = [message(10 * number + row, attributes=sealed("a" if row % 2 else "b/c")) for row in range(4)]
        landed(received(rows), number)
    expected = ids(messages())
    reader = messages()
    done = merged()
    landed(received([message(99)]), 3)
    assert (done.files_before, done.files_after, done.rows) == (6, 2, 12)
    assert ids(reader) == expected
    assert ids(messages()) == [*expected, "000099"]
    again = merged()
    assert (again.files_before, again.removed) == (0, 0)
    later = merged(kept_hours=0)
    assert later.removed == done.files_before
    assert ids(messages()) == [*expected, "000099"]


@pytest.mark.slow
def test_two_compactions_at_once_leave_each_row_once(
    job_spark: Any, received: Any, landed: Any, messages: Any, tmp_path: Path
) -> None:
    from sluice_jobs import compact  # noqa: PLC0415  needs PySpark

    for number in range(2):
        landed(received([message(number)]), number)
    table = table_at(tmp_path, "tables/messages")
    small = table.log.files()
    first = compact.merge_files(job_spark, table_at(tmp_path, "tables/messages"), small)
    second = compact.merge_files(job_spark, table_at(tmp_path, "tables/messages"), small)
    assert (first.files_before, second.files_before) == (2, 0)
    assert ids(messages()) == ["000000", "000001"]


# columns that a table gets


def _number(value: str) -> dict[str, Any]:
    return {"type": "Number", "string": value, "binary": None}


@pytest.fixture
def landed_with(job_spark: Any, tmp_path: Path) -> Callable[..., None]:
    """Lands rows as a job does that is told of these columns."""
    from sluice_jobs.land import QUERY_ID, BatchWriter  # noqa: PLC0415  needs PySpark
    from sluice_jobs.landing import ExtraColumns, messages_layout  # noqa: PLC0415  as above
    from sluice_jobs.tables import ParquetTable  # noqa: PLC0415  as above

    def land(rows: Any, number: int, **columns: str) -> None:
        extras = ExtraColumns(attributes=columns)
        table = ParquetTable(f"{tmp_path}/tables/messages", messages_layout(extras))
        job_spark.sparkContext.setLocalProperty(QUERY_ID, "b0b4b16a-3b5f-4d38-8e9a-000000000002")
        BatchWriter(table, table_at(tmp_path, "bad/quarantine"), late_days=3, extras=extras)(rows, number)

    return land


@pytest.mark.slow
def test_attributes_become_columns_of_a_table_that_is_there_and_stay_when_files_are_merged(
    job_spark: Any, received: Any, landed_with: Any, messages: Any, tmp_path: Path
) -> None:
    from sluice_jobs.compact import compact_parquet  # noqa: PLC0415  needs PySpark

    def rows(number: int, **attributes: Any) -> Any:
        return received([message(number, attributes=attributes)])

    landed_with(rows(0, priority=_number("1")), 0)
    landed_with(rows(1, priority=_number("2"), tenant=_text("acme")), 1, priority="int")
    landed_with(rows(2, priority=_number(f"{1 << 40}"), tenant=_text("acme")), 2, priority="bigint", tenant="string")
    landed_with(rows(3, priority=_text("high")), 3, priority="int")  # a job of before, and no number
    expected = [("000000", None, None), ("000001", 2, None), ("000002", 1 << 40, "acme"), ("000003", None, None)]
    for merge in (False, True):
        if merge:
            assert compact_parquet(job_spark, f"{tmp_path}/tables", days=[DAY], target_bytes=1 << 20).files_before == 4
        assert (
            by_spark(job_spark, table_at(tmp_path, "tables/messages"), ("message_id", "priority", "tenant")) == expected
        )
        for name, read in BESIDE_SPARK.items():
            assert read(f"{tmp_path}/tables/messages", ("message_id", "priority", "tenant")) == expected, name


def test_an_attribute_that_cant_become_what_its_column_is_fails_the_batch_by_name(
    received: Any, landed_with: Any, messages: Any
) -> None:
    from sluice_spark.errors import UnknownFormat  # noqa: PLC0415  may be missing here

    landed_with(received([message(0, attributes={"priority": _text("1")})]), 0, priority="string")
    with pytest.raises(
        UnknownFormat, match=r"tables/messages: column priority is string there, and can't become integer"
    ):
        landed_with(received([message(1, attributes={"priority": _text("1")})]), 1, priority="int")
    assert ids(messages()) == ["000000"]


@pytest.mark.slow
def test_what_an_envelope_says_is_a_column_and_a_body_without_one_is_quarantined(
    job_spark: Any, sqs: Any, tmp_path: Path, messages: Any
) -> None:
    from sluice_jobs.land import QUERY_ID, BatchWriter  # noqa: PLC0415  needs PySpark
    from sluice_jobs.landing import ExtraColumns, messages_layout  # noqa: PLC0415  as above
    from sluice_jobs.tables import ParquetTable  # noqa: PLC0415  as above

    notification = {"Type": "Notification", "Message": "hello", "TopicArn": "arn:t", "MessageId": "1", "Subject": "s"}
    for body in (json.dumps(notification), "no envelope"):
        sqs.queues["q"].send({"MessageBody": body}, time.time())
    source = {"queueUrl": sqs.queue_url("q"), "endpoint": sqs.url, "stagingLocation": f"{tmp_path}/staging"}
    job_spark.read.format("sqs").options(**source).load().collect()
    source = {"stagingLocation": f"{tmp_path}/staging", "envelope": "sns"}
    extras = ExtraColumns(envelope=True)
    table = ParquetTable(f"{tmp_path}/tables/messages", messages_layout(extras))
    job_spark.sparkContext.setLocalProperty(QUERY_ID, "b0b4b16a-3b5f-4d38-8e9a-000000000003")
    landed = BatchWriter(table, table_at(tmp_path, "bad/quarantine"), late_days=3, extras=extras)
    landed(job_spark.read.format("sqs").options(**source).load(), 0)
    (row,) = table.read(job_spark).collect()
    assert (row.body, row.envelope["TopicArn"]) == ("hello", "arn:t")
    (bad,) = messages("bad/quarantine").collect()
    assert (bad.body, bool(bad.reason)) == ("no envelope", True)


# who reads the tables

SEEN = ("message_id", "exchange", "date", "late")


@pytest.mark.slow
def test_all_readers_see_the_same_rows_in_new_and_in_merged_files(
    job_spark: Any, received: Any, landed: Any, tmp_path: Path
) -> None:
    from sluice_jobs.compact import compact_parquet  # noqa: PLC0415  needs PySpark

    names = ["events", "a/b:c {%}*? é=1+2&'x'", "5", "true"]
    for number in range(3):
        rows = [message(10 * number + index, attributes=sealed(name)) for index, name in enumerate(names)]
        week_ago = event(NOON - timedelta(days=7), number)
        landed(
            received([*rows, message(10 * number + 9, week_ago), message(10 * number + 8, sent_at=NOON - DAYS)]), number
        )
    table = table_at(tmp_path, "tables/messages")
    expected = by_spark(job_spark, table, SEEN)
    assert ([row[0] for row in expected], {row[1] for row in expected}) == (
        [f"{10 * number + index:06d}" for number in range(3) for index in (*range(len(names)), 8, 9)],
        {*names, "none"},
    )
    assert {name: read(table.location, SEEN) == expected for name, read in BESIDE_SPARK.items()} == ALL_AGREE
    assert compact_parquet(job_spark, f"{tmp_path}/tables", days=[DAY], target_bytes=1 << 20).files_before == 15
    landed(received([message(99)]), 3)
    expected = by_spark(job_spark, table, SEEN)
    assert len(expected) == 19
    assert {name: read(table.location, SEEN) == expected for name, read in BESIDE_SPARK.items()} == ALL_AGREE


DAYS = timedelta(days=1)
ALL_AGREE = dict.fromkeys(BESIDE_SPARK, True)


def test_all_readers_see_new_columns_and_wider_numbers(job_spark: Any, tmp_path: Path) -> None:
    """A program of before goes on writing beside: its rows have no value there, its numbers are as wide as others'."""
    from pyspark.sql.types import StructType  # noqa: PLC0415  needs PySpark
    from sluice_jobs.table_log import Transaction  # noqa: PLC0415  as above
    from sluice_jobs.tables import Layout, ParquetTable  # noqa: PLC0415  as above

    def table(columns: str) -> Any:
        schema = StructType.fromDDL(f"message_id string, {columns}, date date")
        return ParquetTable(f"{tmp_path}/t", Layout(schema=schema, partition_columns=("date",)))

    old, new = "n int, ratio float", "n bigint, ratio double, tenant string"
    big = 1 << 40
    for number, (columns, row) in enumerate([(old, (1, 0.5)), (new, (big, 0.25, "acme")), (old, (3, None))]):
        frame = job_spark.createDataFrame([(f"{number}", *row, DAY)], f"message_id string, {columns}, date date")
        assert table(columns).append(frame, Transaction(app_id="q", version=number))
    seen = ("message_id", "n", "ratio", "tenant", "date")
    expected = [("0", 1, 0.5, None, DAY), ("1", big, 0.25, "acme", DAY), ("2", 3, None, None, DAY)]
    assert by_spark(job_spark, table(old), seen) == by_spark(job_spark, table(new), seen) == expected
    found = {name: read(f"{tmp_path}/t", seen) for name, read in BESIDE_SPARK.items()}
    assert found == dict.fromkeys(BESIDE_SPARK, expected)


# statistics


def poll(number: int, address: str | None, **more: Any) -> dict[str, Any]:
    given = {
        "address": address,
        "country": "DE",
        "proxy_type": "standalone",
        "nat": "restricted",
        "relay_extension": True,
    }
    return _event(number, given | {"kind": "poll", "outcome": "idle"} | more)


def offer(number: int, **more: Any) -> dict[str, Any]:
    given = {"kind": "offer", "outcome": "matched", "method": "sqs", "nat": "unknown", "country": "IR"}
    return _event(number, given | more)


def _event(number: int, fields: dict[str, Any]) -> dict[str, Any]:
    at = fields.pop("happened", NOON + timedelta(seconds=number))
    body = event(at, fields.pop("id", number), **fields)
    return message(number, body, sent_at=max(at, NOON) + timedelta(seconds=1), attributes=sealed("events"))


def scripted_day() -> list[dict[str, Any]]:
    return [
        poll(1, "p1"),
        poll(2, "p1", nat="unrestricted", country="FR"),  # moved: its country is the first
        poll(3, "p2", proxy_type="webext", relay_extension=False),
        poll(4, "p3", proxy_type="strange", country="Atlantis", nat="odd"),
        poll(5, "p4", outcome="rejected", relay_extension=False),  # its address isn't counted
        poll(6, None, outcome="matched"),
        *[offer(10 + each) for each in range(9)],  # two bins
        offer(20, country="BE", method="http", nat="unrestricted", outcome="denied"),
        offer(21, country="AT", method="http", outcome="denied"),
        *[offer(30 + each, country="CA", method="http", outcome="timeout") for each in range(9)],
        offer(40, country="??", method="ampcache", nat="restricted", outcome="denied"),
        offer(41, id=40, country="??", method="ampcache", nat="restricted", outcome="denied"),  # delivered twice
        offer(42, kind="answer", outcome="success"),
        offer(43, kind="unheard-of", outcome="odd"),
        offer(44, happened=NOON - timedelta(days=1)),  # of another day
        message(50, "no event", attributes=sealed("events")),
        message(51, event(NOON, 51), attributes=sealed("others")),
    ]


EXPECTED = """\
snowflake-stats-end 2026-11-21 00:00:00 (86400 s)
snowflake-ips DE=2,??=1
snowflake-ips-iptproxy 0
snowflake-ips-standalone 1
snowflake-ips-webext 1
snowflake-ips-badge 0
snowflake-ips-bloco 0
snowflake-ips-total 3
snowflake-idle-count 8
snowflake-proxy-poll-with-relay-url-count 8
snowflake-proxy-poll-without-relay-url-count 8
snowflake-proxy-rejected-for-relay-url-count 8
client-denied-count 8
client-restricted-denied-count 8
client-unrestricted-denied-count 8
client-nat-open-denied-count 0
client-nat-moderate-denied-count 0
client-nat-strict-denied-count 0
client-snowflake-match-count 16
client-snowflake-timeout-count 16
client-http-count 16
client-http-ips CA=16,AT=8,BE=8
client-ampcache-count 8
client-ampcache-ips ??=8
client-sqs-count 16
client-sqs-ips IR=16
snowflake-ips-nat-restricted 2
snowflake-ips-nat-unrestricted 1
snowflake-ips-nat-unknown 1
snowflake-ips-nat-open 0
snowflake-ips-nat-moderate 0
snowflake-ips-nat-strict 0
"""


@pytest.mark.slow
def test_a_scripted_days_log_is_snowflakes_line_by_line(
    job_spark: Any, received: Any, landed: Any, tmp_path: Path
) -> None:
    """Late events too, and again when more have come."""
    from sluice_jobs.statistics import SourceTables, hourly_layout, statistics  # noqa: PLC0415  needs PySpark
    from sluice_jobs.tables import ParquetTable  # noqa: PLC0415  as above

    source, output = (
        SourceTables(tables=f"{tmp_path}/tables", table_format="parquet", exchange="events"),
        f"{tmp_path}/out",
    )
    landed(received(scripted_day()), 0)
    found = statistics(job_spark, source, DAY, output)
    assert Path(found.log).read_text() == EXPECTED
    assert (found.events, found.repeated, found.bad) == (29, 1, 1)
    landed(received([message(60, event(NOON, 60), sent_at=NOON + timedelta(days=9), attributes=sealed("events"))]), 1)
    assert landed.totals.late == 1
    assert statistics(job_spark, source, DAY, output).events == found.events + 1
    hours = ParquetTable(f"{output}/hourly", hourly_layout()).read(job_spark).where("country <> 'CA'")
    sums = hours.groupBy("kind", "outcome").sum("events").toDF("kind", "outcome", "events").collect()
    assert {(row.kind, row.outcome): row.events for row in sums} == {
        ("poll", "idle"): 5,
        ("poll", "rejected"): 1,
        ("poll", "matched"): 1,
        ("offer", "matched"): 9,
        ("offer", "denied"): 3,
        ("answer", "success"): 1,
        ("unheard-of", "odd"): 1,
    }


@pytest.mark.slow
def test_a_sum_counts_as_the_polls_that_it_tells_of(job_spark: Any, received: Any, landed: Any, tmp_path: Path) -> None:
    from sluice_jobs.statistics import SourceTables, hourly_layout, statistics  # noqa: PLC0415  needs PySpark
    from sluice_jobs.tables import ParquetTable  # noqa: PLC0415  as above

    source, output = (
        SourceTables(tables=f"{tmp_path}/tables", table_format="parquet", exchange="events"),
        f"{tmp_path}/out",
    )
    others = [poll(0, "p1"), poll(1, "p3", outcome="rejected")]
    landed(received([*others, poll(2, None, polls=17, addresses=["p1", "p2"])]), 0)
    log = Path(statistics(job_spark, source, DAY, output).log).read_text().splitlines()
    assert {"snowflake-ips DE=2", "snowflake-ips-standalone 2", "snowflake-ips-total 2"} < set(log)
    assert "snowflake-idle-count 24" in log  # eighteen, rounded up
    hours = ParquetTable(f"{output}/hourly", hourly_layout()).read(job_spark).collect()
    assert sorted((row.outcome, row.events) for row in hours) == [("idle", 18), ("rejected", 1)]


# replay


@pytest.mark.parametrize("kind", [pytest.param("standard", marks=pytest.mark.slow), "fifo"])
def test_a_replay_brings_back_what_landed_with_its_id_but_for_what_cant_be_sent(  # noqa: PLR0917  fixtures
    job_spark: Any, received: Any, landed: Any, sqs: Any, tmp_path: Path, kind: str
) -> None:
    from sluice_jobs.replay import ReplayArguments, ReplayTotals, replay  # noqa: PLC0415  needs PySpark

    from tests.sqs.queues import Queue  # noqa: PLC0415  may be missing here

    name = "ingress.fifo" if kind == "fifo" else "ingress"
    sqs.queues[name] = Queue(name)
    rows = [
        message(1, "one", attributes=sealed("events", headers={"h": 5}, ttl=9)),
        message(2, "two", sent_at=NOON + timedelta(minutes=1), attributes={"colour": _text("red")}),
        message(3, "three", sent_at=NOON + timedelta(minutes=2)),
        message(4, "4" * (2**20 - 10)),  # as SQS took it; with its id beside it is too large
    ]
    landed(received(rows), 0)
    wanted = ReplayArguments(
        queue_url=sqs.queue_url(name),
        endpoint=sqs.url,
        exchange="again",
        start=NOON,
        end=NOON + timedelta(minutes=2),
        tables=f"{tmp_path}/tables",
        rate=1000,
    )
    assert replay(job_spark, wanted) == ReplayTotals(replayed=2, unsendable=1)
    found = {each["Body"]: each["MessageAttributes"] for each in bodies_of(sqs.queues[name])}
    assert sorted(found) == ["one", "two"]
    known = {body: attributes["sluice-replayed"]["StringValue"] for body, attributes in found.items()}
    assert known == {"one": f"SITE1.{ULID}", "two": "000002"}
    says = json.loads(found["one"]["x-qpid"]["StringValue"])
    assert says == {"exchange": "again", "key": "a.b", "headers": {"h": 5}, "id": f"SITE1.{ULID}"}
    assert found["two"]["colour"]["StringValue"] == "red"


@pytest.mark.slow
def test_a_replay_from_retained_segments_goes_back_to_the_exchange(job_spark: Any, sqs: Any, tmp_path: Path) -> None:
    """Without what can't be read."""
    from sluice_jobs.replay import ReplayArguments, ReplayTotals, replay  # noqa: PLC0415  needs PySpark

    sqs.queues["again"] = type(sqs.queues["q"])("again")
    for number, text in enumerate(['{"exchange": "e"}', '{"exchange": "other"}', "{"]):
        attributes = {"x-qpid": {"DataType": "String", "StringValue": text}}
        sqs.queues["q"].send({"MessageBody": f"{number}", "MessageAttributes": attributes}, time.time())
    options = {"queueUrl": sqs.queue_url("q"), "endpoint": sqs.url, "stagingLocation": f"{tmp_path}/staging"}
    received = job_spark.read.format("sqs").options(**options).load().collect()
    now = datetime.now(UTC)
    wanted = ReplayArguments(
        queue_url=sqs.queue_url("again"),
        endpoint=sqs.url,
        exchange="e",
        from_exchange="e",
        start=now - timedelta(hours=1),
        end=now + timedelta(hours=1),
        staging=f"{tmp_path}/staging",
    )
    assert replay(job_spark, wanted) == ReplayTotals(replayed=1, unsendable=0)
    (found,) = bodies_of(sqs.queues["again"])
    expected = next(row.message_id for row in received if row.body == "0")
    assert (found["Body"], found["MessageAttributes"]["sluice-replayed"]["StringValue"]) == ("0", expected)


def bodies_of(queue: Any) -> list[dict[str, Any]]:
    return [json.loads(queue.encoded(each)) for each in queue.receive(10, None, time.time())]
