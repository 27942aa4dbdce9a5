import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import count, islice
from pathlib import Path
from typing import Any

import botocore.session
import pyarrow as pa
import pytest
from botocore.config import Config
from hypothesis import given
from hypothesis import strategies as st
from sluice_spark.errors import Fenced, LogError, QueueRefused, SegmentMissing, SegmentTaken, UnknownFormat
from sluice_spark.log.planning import DEDUPLICATION_LIMIT, Position, divide_into_tasks
from sluice_spark.log.segments import (
    HEAD_BYTES,
    LARGE_BODY,
    Header,
    encode_segment,
    parse_header,
    read_batches,
    read_message_ids,
    read_rows,
    segment_name,
)
from sluice_spark.log.staging import StagedLog, read_slices
from sluice_spark.log.store import FileStore, S3Store, Store, open_store
from sluice_spark.options import Options
from sluice_spark.source.buffer import find_earliest_ms
from sluice_spark.source.receiver import Receiver
from sluice_spark.sqs.received import Received, parse_messages, split_by_size

from tests.spark.clients import client_of, table
from tests.spark.conftest import ROOT


@pytest.fixture(params=["files", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    if request.param == "files":
        yield FileStore(tmp_path / "log")
        return
    moto = pytest.importorskip("moto", reason="S3 in memory")
    with moto.mock_aws():
        client: Any = botocore.session.Session().create_client("s3", region_name="us-east-1")
        client.create_bucket(Bucket="bucket")
        yield S3Store(client, "bucket", "some/log")


def message(number: int, **more: Any) -> dict[str, Any]:
    return {"MessageId": f"id-{number}", "Body": f"body {number}", "ReceiptHandle": f"h{number}", **more}


def received(messages: list[dict[str, Any]]) -> Received:
    return Received("http://q/1/q", parse_messages(json.dumps({"Messages": messages}).encode()))


def some(*numbers: int) -> pa.Table:
    return table([received([message(number) for number in numbers])])


def ids(log: StagedLog) -> list[str]:
    view = log.read_log()
    parts = [part for task in divide_into_tasks(view.list_ranges(Position(view.first), view.end)) for part in task]
    return [i for batch in read_slices(log.store, parts) for i in batch.column("message_id").to_pylist()]


def received_all(staged: StagedLog, sqs: Any, **options: Any) -> Receiver:
    """A bounded run of the receiver on the in-memory SQS."""
    whole = Options(queue_urls=(sqs.queue_url("q"),), connections=8, wait_s=1, **options)
    receiver = Receiver(staged, lambda: client_of(sqs, connections=16), whole, until_empty=True)
    receiver.start(staged.log.end)
    receiver.join(30)
    receiver.check()
    return receiver


def begun(store: Store) -> StagedLog:
    log = StagedLog(store)
    log.take_over(log.find_oldest_position())
    return log


def test_the_last_of_a_driver_are_known_however_many_others_stage_and_are_killed(store: Store) -> None:
    """Its deletions were cut off, and come to nothing but the visibility timeout: the messages come again."""
    for driver in range(3):
        log = begun(store)
        log.append(some(driver))
        log.append(many(DEDUPLICATION_LIMIT // 2 + 1, f"of-{driver}"))
        log.append(some(10 + driver))
    last = begun(store)
    assert all(f"id-{10 + driver}" in last.deduplicator for driver in range(3))
    for number in range(3):
        ids = [f"{number}-{each}" for each in range(DEDUPLICATION_LIMIT)]
        last.deduplicator.add_new(ids)
        last.deduplicator.add_segment(100 + number, ids)
        last.deduplicator.confirm_deletion(100 + number)
    assert all(f"id-{10 + driver}" in last.deduplicator for driver in range(3))
    assert "0-0" not in last.deduplicator


def many(count: int, name: str) -> pa.Table:
    rows = some(0).take([0] * count)
    return rows.set_column(0, "message_id", pa.array([f"{name}-{number}" for number in range(count)]))


def test_a_name_is_published_once(store: Store) -> None:
    store.publish("segments/a", pa.py_buffer(b"one"))
    with pytest.raises(SegmentTaken):
        store.publish("segments/a", pa.py_buffer(b"two"))
    assert store.read("segments/a").to_pybytes() == b"one"
    assert store.read("segments/a", 2) == b"on"
    assert list(store.list_names("segments")) == ["segments/a"]
    store.remove(["segments/a"])
    with pytest.raises(SegmentMissing):
        store.read("segments/a")


def test_a_segment_says_everything_of_a_message() -> None:
    attributes = {
        "n": {"DataType": "Number", "StringValue": "7"},
        "b": {"DataType": "Binary", "BinaryValue": "AAE="},
    }
    system = {
        "SentTimestamp": "1700000000123",
        "ApproximateReceiveCount": "2",
        "SenderId": "me",
        "MessageGroupId": "g",
        "MessageDeduplicationId": "d",
        "SequenceNumber": "42",
        "AWSTraceHeader": "Root=1",
        "DeadLetterQueueSourceArn": "arn",
        "ApproximateFirstReceiveTimestamp": "1700000000999",
    }
    rows = table([received([message(1, Attributes=system, MessageAttributes=attributes), message(2)])])
    first, second = rows.to_pylist()
    assert first["attributes"] == [
        ("n", {"type": "Number", "string": "7", "binary": None}),
        ("b", {"type": "Binary", "string": None, "binary": b"\x00\x01"}),
    ]
    assert first["sent_at"].isoformat() == "2023-11-14T22:13:20.123000+00:00"
    assert (first["receive_count"], first["message_group_id"], first["trace_header"]) == (2, "g", "Root=1")
    assert (first["message_deduplication_id"], first["dead_letter_queue_source_arn"]) == ("d", "arn")
    assert (second["attributes"], second["sent_at"], second["queue_url"]) == ([], None, "http://q/1/q")


def test_a_header_is_read_from_the_head_alone(store: Store) -> None:
    log = begun(store)
    header = log.append(some(*range(2000)))
    assert parse_header(store.read(segment_name(header.number), HEAD_BYTES)) == header
    assert (header.messages, header.size) == (2000, sum(len(f"body {number}") for number in range(2000)))


def test_another_format_is_refused(store: Store) -> None:
    header = begun(store).append(some(1))
    foreign = encode_segment(some(1), header).to_pybytes().replace(b'"version": 3', b'"version": 9')
    for content in (b"nonsense", foreign):
        with pytest.raises(UnknownFormat):
            parse_header(content)
    for read in (read_rows, read_message_ids, lambda content: list(read_batches(content, 0, 1))):
        with pytest.raises(UnknownFormat):
            read(pa.py_buffer(foreign))


@given(pieces=st.lists(st.integers(0, 5), max_size=5), low=st.integers(0, 30), count=st.integers(0, 30))
def test_rows_are_read_whatever_pieces_they_were_written_in(pieces: list[int], low: int, count: int) -> None:
    numbers = iter(range(sum(pieces)))
    written = pa.concat_tables([some(), *(some(*islice(numbers, piece)) for piece in pieces)])
    content = encode_segment(written, Header(number=0, writer="w", published_ms=0))
    assert list(read_message_ids(content)) == written.column("message_id").to_pylist()
    found = [row for batch in read_batches(content, low, low + count) for row in batch.to_pylist()]
    assert found == written.slice(low, count).to_pylist() == read_rows(content).slice(low, count).to_pylist()


def test_what_shrinks_is_written_compressed_and_what_does_not_as_it_is() -> None:
    chance = random.Random(1)
    plain = [json.dumps({"order": number, "kind": "of which there are many"}) for number in range(1000)]
    ciphered = [chance.randbytes(500).hex() for _ in range(1000)]
    for bodies, shrinks in ((plain, True), (ciphered, False)):
        rows = table([received([message(number, Body=body) for number, body in enumerate(bodies)])])
        assert (encode_segment(rows, Header(number=0, writer="w", published_ms=0)).size < rows.nbytes / 2) is shrinks


@pytest.mark.parametrize(
    "name",
    [
        "segments/",  # as the console's "Create folder" leaves it
        "segments/README.txt",
        "segments/00000000000000000007.arrow.part",
        "segments/old/00000000000000000007.arrow",
        "segments/7.arrow",
    ],
)
def test_what_others_put_beside_segments_is_passed_over(store: Store, name: str) -> None:
    log = begun(store)
    log.append(some(1))
    if isinstance(store, S3Store):
        store._client.put_object(Bucket="bucket", Key=f"some/log/{name}")
    elif not name.endswith("/"):
        store.publish(name, pa.py_buffer(b""))
    assert ids(log) == ["id-1"]
    begun(store).append(some(2))
    assert log.remove_old_segments(Position(2), retention_s=-2) == 2
    assert ids(log) == ["id-2"]


def test_what_has_no_exclusive_create_is_refused() -> None:
    with pytest.raises(LogError, match="create-exclusive"):
        open_store("hdfs://name/log")


def test_an_s3_that_is_not_there_is_the_log_s_error() -> None:
    client: Any = botocore.session.Session().create_client(
        "s3",
        region_name="us-east-1",
        endpoint_url="http://127.0.0.1:1",
        aws_access_key_id="A",
        aws_secret_access_key="s",
        config=Config(retries={"total_max_attempts": 1}),
    )
    store = S3Store(client, "bucket", "log")
    for asked in (
        lambda: store.publish("a", pa.py_buffer(b"")),
        lambda: store.read("a"),
        lambda: store.read("a", 1),
        lambda: store.list_names("segments"),
        lambda: store.remove(["a"]),
    ):
        with pytest.raises(LogError, match="Could not connect"):
            asked()


def test_what_s3_does_not_remove_is_said() -> None:
    class Denying:
        def delete_objects(self, **_: Any) -> dict[str, Any]:
            return {"Errors": [{"Key": "log/a", "Code": "AccessDenied", "Message": "Access Denied"}]}

    with pytest.raises(LogError, match="s3://bucket/log/a: AccessDenied"):
        S3Store(Denying(), "bucket", "log").remove(["a", "b"])


def test_the_newest_driver_fences_the_one_before(store: Store) -> None:
    first = begun(store)
    first.append(some(1))
    second = begun(store)
    with pytest.raises(Fenced):
        first.append(some(2))
    second.append(some(3))
    assert ids(second) == ["id-1", "id-3"]


def test_orphans_are_adopted_with_their_totals(store: Store) -> None:
    begun(store).append(some(1, 2))
    later = StagedLog(store)
    later.take_over(later.find_oldest_position())
    assert later.log.offset(later.log.end).totals.messages == 2
    assert "id-2" in later.deduplicator


def test_a_restart_goes_on_counting(store: Store) -> None:
    log = begun(store)
    log.append(some(1, 2), deletions_failed=3)
    end = log.log.offset(log.log.end)
    again = StagedLog(store)
    again.take_over(end.position)
    assert again.log.offset(end.position) == end
    assert again.append(some(5)).deletions_failed == 3


def test_an_offset_beyond_the_log_is_an_error(store: Store) -> None:
    begun(store)
    with pytest.raises(SegmentMissing):
        StagedLog(store).take_over(Position(9))


def test_retention_keeps_what_is_not_committed(store: Store) -> None:
    log = begun(store)
    for number in range(3):
        log.append(some(number))
    time.sleep(0.01)  # file times, which the store takes from the system
    assert log.remove_old_segments(Position(2), retention_s=-2) == 2
    assert ids(log) == ["id-1", "id-2"]
    with pytest.raises(SegmentMissing):
        StagedLog(store).take_over(Position(1))


def test_everything_is_staged_once_and_deleted(tmp_path: Path, sqs: Any, fill: Callable[[int], None]) -> None:
    fill(2345)
    log = begun(FileStore(tmp_path))
    received_all(log, sqs)
    assert len(ids(log)) == len(set(ids(log))) == 2345
    assert set(sqs.queues["q"].counts(time.time()).values()) == {0}


def test_a_redelivered_message_is_removed_and_deleted(tmp_path: Path, sqs: Any, fill: Callable[[int], None]) -> None:
    """A driver that died between stage and delete, and its successor."""
    fill(50)
    first = begun(FileStore(tmp_path))
    received_all(first, sqs, delete=False, visibility_s=2)
    time.sleep(2.1)  # until they reappear, in the real server's time
    successor = begun(FileStore(tmp_path))
    received_all(successor, sqs)
    assert len(ids(successor)) == len(set(ids(successor))) == 50
    assert sqs.calls["ReceiveMessage"] > 10
    assert set(sqs.queues["q"].counts(time.time()).values()) == {0}


def test_a_fenced_receiver_releases_what_it_holds(tmp_path: Path, sqs: Any, fill: Callable[[int], None]) -> None:
    old = begun(FileStore(tmp_path))
    begun(FileStore(tmp_path))
    fill(30)
    with pytest.raises(Fenced):
        received_all(old, sqs)
    assert sqs.queues["q"].counts(time.time())["ApproximateNumberOfMessages"] == 30


def stopped_amid_receives(staged: StagedLog, sqs: Any, *, after: int, **options: Any) -> Receiver:
    """A run that is stopped when the in-memory SQS has answered so many receives; others are under way then."""
    sqs.queues["q"].visibility_s = 3600
    whole = Options(queue_urls=(sqs.queue_url("q"),), connections=8, wait_s=1, **options)
    receiver = Receiver(staged, lambda: client_of(sqs, connections=16), whole)
    answered = count(1)

    def watch(action: str, *, done: bool) -> None:
        if action == "ReceiveMessage" and done and next(answered) == after:
            receiver.stop()

    sqs.watch = watch
    receiver.start(staged.log.end)
    receiver.join(30)
    return receiver


@pytest.mark.parametrize("after_commit", [False, True])
def test_stops_cost_no_receive(tmp_path: Path, sqs: Any, fill: Callable[[int], None], *, after_commit: bool) -> None:
    """With maxReceiveCount 1, SQS would move to the dead-letter queue what was received and isn't staged."""
    fill(2_000)
    for _ in range(10):
        stopped_amid_receives(begun(FileStore(tmp_path)), sqs, after=5, after_commit=after_commit).check()
    staged = ids(begun(FileStore(tmp_path)))
    assert len(staged) == len(set(staged)) >= 10 * 5
    left = sqs.queues["q"].known.values()
    assert {message.id for message in left if message.received} == (set(staged) if after_commit else set())


ENDING = """
import signal, sys, threading, time
from sluice_spark.log.planning import Position
from sluice_spark.options import parse_options
from sluice_spark.source.readers import SqsStreamReader
from sluice_spark.source.receiver import Receiver

url, staging, how = sys.argv[1:]
options = parse_options({"queueUrl": url, "endpoint": url, "stagingLocation": staging, "waitTimeSeconds": "1"})
reader = SqsStreamReader(options)
reader.initialOffset()
while not reader._staged.log.count_backlog(Position(0)).messages:
    time.sleep(0.01)
if how == "late":
    threading._register_atexit(signal.raise_signal, signal.SIGTERM)
    reader.stop()
if how == "twice":
    threading._register_atexit(signal.raise_signal, signal.SIGTERM)
if how in ("signal", "twice"):
    signal.raise_signal(signal.SIGTERM)
if how == "both":
    stop = Receiver.stop
    Receiver.stop = lambda receiver: [stop(receiver), signal.raise_signal(signal.SIGTERM)]
"""


@pytest.mark.parametrize(  # the slow ones are the beginning of others
    "how",
    [
        pytest.param("signal", marks=pytest.mark.slow),
        "twice",
        pytest.param("end", marks=pytest.mark.slow),
        "both",
        "late",
    ],
)
def test_the_end_of_sparks_process_costs_no_receive(
    tmp_path: Path, sqs: Any, fill: Callable[[int], None], how: str
) -> None:
    """Spark sends a signal, or closes the socket so that the main thread returns, or does both, in any order.

    Python's executors then take no more work, which asyncio needs for blocking calls and to find an address."""
    pytest.importorskip("pyspark", reason="make test-spark has it")
    fill(30_000)
    url = sqs.queue_url("q").replace("127.0.0.1", "localhost")
    path = os.pathsep.join([str(ROOT / "spark"), str(ROOT)])
    ended = subprocess.run(
        [sys.executable, "-c", ENDING, url, str(tmp_path), how],
        env={**os.environ, "PYTHONPATH": path},
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert (ended.stderr, ended.returncode) == ("", 143 if how in ("signal", "twice") else 0)
    staged = ids(begun(FileStore(tmp_path)))
    left = sqs.queues["q"].known.values()
    assert (len(set(staged)), [m.id for m in left if m.received]) == (30_000 - len(left), [])


def test_what_a_stopped_driver_still_receives_is_released_once_another_has_the_log(
    tmp_path: Path, sqs: Any, fill: Callable[[int], None]
) -> None:
    old = begun(FileStore(tmp_path))
    begun(FileStore(tmp_path))
    fill(500)
    with pytest.raises(Fenced):
        stopped_amid_receives(old, sqs, after=5).check()
    assert ids(old) == []
    assert sqs.queues["q"].counts(time.time())["ApproximateNumberOfMessages"] == 500


def test_a_stopped_driver_writes_nothing_into_a_location_that_was_emptied(
    tmp_path: Path, sqs: Any, fill: Callable[[int], None]
) -> None:
    """To start over one empties it after the stop: a segment of the old log would be a gap in the new one."""
    old = begun(FileStore(tmp_path))
    old.append(some(1))
    shutil.rmtree(tmp_path / "segments")
    fill(500)
    with pytest.raises(SegmentMissing):
        stopped_amid_receives(old, sqs, after=1).check()
    assert ids(begun(FileStore(tmp_path))) == []
    assert sqs.queues["q"].counts(time.time())["ApproximateNumberOfMessages"] == 500


def test_trouble_loses_and_doubles_nothing(tmp_path: Path, sqs: Any, fill: Callable[[int], None]) -> None:
    sqs.queues["q"].visibility_s = 1
    fill(500)
    for action, how in (
        ("ReceiveMessage", "refuse"),
        ("ReceiveMessage", "lose"),
        ("DeleteMessageBatch", "lose"),
        ("DeleteMessageBatch", "partial"),
    ):
        sqs.script.add({"action": action, "how": how, "count": 3, "skip": 2})
    log = begun(FileStore(tmp_path))
    received_all(log, sqs)
    time.sleep(1.1)  # the lost answers' messages reappear in the real server's time
    received_all(log, sqs)
    assert len(ids(log)) == len(set(ids(log))) == 500


def test_no_right_to_delete_is_said_before_anything_is_staged(
    tmp_path: Path, sqs: Any, fill: Callable[[int], None]
) -> None:
    fill(5)
    sqs.script.add({"action": "DeleteMessageBatch", "status": 403, "code": "AccessDenied"})
    log = begun(FileStore(tmp_path))
    with pytest.raises(QueueRefused, match="AccessDenied"):
        received_all(log, sqs)
    assert ids(log) == []
    assert "ReceiveMessage" not in sqs.calls


@given(st.lists(st.text(), max_size=5))
def test_large_bodies_are_what_small_ones_are(bodies: list[str]) -> None:
    large = [message(0, Body="é" * LARGE_BODY * (len(bodies) + 1))] + [
        message(n, Body=body) for n, body in enumerate(bodies)
    ]
    rows = table([received(large)])
    rows.validate(full=True)
    assert rows.column("body").to_pylist() == [each["Body"] for each in large]


@given(st.lists(st.lists(st.binary(max_size=3000), min_size=1, max_size=4), max_size=5), st.booleans())
def test_what_is_encoded_has_room_whether_it_shrinks_or_not(batches: list[list[bytes]], shrinks: bool) -> None:
    first = [message(0, Body="x" * 100_000)] if shrinks else []
    answers = [received([message(n, Body=body.hex()) for n, body in enumerate(bodies)]) for bodies in batches]
    rows = pa.concat_tables([table([received(first)]), *(table([answer]) for answer in answers)])
    content = encode_segment(rows, Header(number=0, writer="w", published_ms=0))
    assert read_rows(content).equals(rows)


def test_the_first_of_times_is_found_in_whichever_column_it_is() -> None:
    given: list[list[str | None]] = [["5", "3"], [None, "1"], ["2"], [None]]
    columns = [
        table([received([message(n, Attributes={"SentTimestamp": at} if at else {}) for n, at in enumerate(times)])])
        .column("sent_at")
        .chunk(0)
        for times in given
    ]
    assert find_earliest_ms(columns) == 1
    assert find_earliest_ms(columns[3:]) is None
    assert find_earliest_ms(()) is None


@given(st.lists(st.lists(st.integers(0, 30), max_size=10), max_size=6), st.integers(1, 60))
def test_pieces_are_of_some_size_and_lose_nothing(sizes: list[list[int]], size: int) -> None:
    taken = [received([message(n, Body="x" * length) for n, length in enumerate(lengths)]) for lengths in sizes]
    cut = list(split_by_size(taken, size))
    assert [m for piece in cut for answer in piece for m in answer.messages] == [
        m for each in taken for m in each.messages
    ]
    for piece in cut:
        lengths = [len(m.body) for answer in piece for m in answer.messages]
        assert lengths
        assert sum(lengths[:-1]) < size
