import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from sluice_spark.log.planning import ReadLimit, divide_into_tasks
from sluice_spark.log.staging import StagedLog, read_slices
from sluice_spark.log.store import FileStore
from sluice_spark.options import Options
from sluice_spark.source.buffer import BufferLimits
from sluice_spark.source.fifo import GroupShare, select_group_share, sort_by_sequence
from sluice_spark.source.rate import TokenBucket
from sluice_spark.source.receiver import Receiver
from sluice_spark.sqs.received import Message, Received, SystemAttributes

from tests.spark.clients import client_of

GROUPS = st.lists(st.text("abc", min_size=1, max_size=2), max_size=60)


@given(GROUPS, st.integers(1, 5))
def test_each_group_is_in_one_share_in_its_order(groups: list[str], count: int) -> None:
    names = pa.array(groups, pa.string())
    rows = pa.array(range(len(groups)), pa.int64())
    batch = pa.RecordBatch.from_pydict(
        {"queue_url": ["q"] * len(groups), "message_group_id": names, "row": rows},
        schema=pa.schema([("queue_url", pa.string()), ("message_group_id", pa.string()), ("row", pa.int64())]),
    )
    shares = [select_group_share(batch, GroupShare(index, count)).to_pylist() for index in range(count)]
    assert sorted(row["row"] for share in shares for row in share) == list(range(len(groups)))
    for share in shares:
        assert [row["row"] for row in share] == sorted(row["row"] for row in share)
        others = {row["message_group_id"] for other in shares if other is not share for row in other}
        assert not others & {row["message_group_id"] for row in share}


def test_numbers_of_any_length_are_numbers() -> None:
    messages = [
        Message(message_id=number, body="", attributes=SystemAttributes(sequence_number=number))
        for number in ("10", "9", "00011")
    ]
    [answer] = sort_by_sequence([Received("http://h/1/q.fifo", messages)])
    assert [message.message_id for message in answer.messages] == ["9", "10", "00011"]


def received(sqs: Any, staging: Path, **more: Any) -> StagedLog:
    staged = StagedLog(FileStore(staging))
    staged.take_over(staged.find_oldest_position())
    options = Options(queue_urls=(sqs.queue_url("q.fifo"),), connections=4, wait_s=1)
    receiver = Receiver(staged, lambda: client_of(sqs, connections=8), options, until_empty=True, **more)
    receiver.start(staged.log.end)
    receiver.join(60)
    receiver.check()
    return staged


def by_group(staging: Path) -> dict[str, list[str]]:
    store = FileStore(staging)
    view = StagedLog(store).read_log()
    found: dict[str, list[str]] = defaultdict(list)
    for task in divide_into_tasks(view.list_ranges(view.offset(view.end.__class__(view.first)).position, view.end)):
        for batch in read_slices(store, task):
            for row in batch.select(["message_group_id", "body"]).to_pylist():
                found[row["message_group_id"]].append(row["body"])
    return found


def fill(sqs: Any, groups: int, each: int) -> None:
    from tests.sqs.queues import Queue  # noqa: PLC0415  may be missing here

    queue = sqs.queues.setdefault("q.fifo", Queue("q.fifo", visibility_s=2))
    for number in range(each):
        for group in range(groups):
            entry = {"MessageBody": f"{number:03d}", "MessageGroupId": f"g{group}"}
            queue.send({**entry, "MessageDeduplicationId": f"{group}-{number}"}, time.time())


def test_every_group_is_staged_whole_and_in_order(sqs: Any, tmp_path: Path) -> None:
    fill(sqs, groups=5, each=40)
    received(sqs, tmp_path)
    assert by_group(tmp_path) == {f"g{group}": [f"{number:03d}" for number in range(40)] for group in range(5)}
    assert set(sqs.queues["q.fifo"].counts(time.time()).values()) == {0}


def test_a_lost_answer_and_a_driver_that_died_keep_the_order(sqs: Any, tmp_path: Path) -> None:
    fill(sqs, groups=3, each=20)
    sqs.script.add({"action": "ReceiveMessage", "how": "lose", "count": 2, "skip": 1})
    sqs.script.add({"action": "DeleteMessageBatch", "how": "partial", "count": 2, "skip": 2})
    received(sqs, tmp_path, enough=ReadLimit(messages=10))
    received(sqs, tmp_path)  # a successor on the same log
    time.sleep(2.1)  # what was not deleted reappears in the server's real time
    received(sqs, tmp_path)
    assert by_group(tmp_path) == {f"g{group}": [f"{number:03d}" for number in range(20)] for group in range(3)}


def test_a_group_in_flight_elsewhere_blocks_no_other(sqs: Any, tmp_path: Path) -> None:
    fill(sqs, groups=2, each=3)
    queue = sqs.queues["q.fifo"]
    held = queue.receive(1, 3600, time.time())
    received(sqs, tmp_path, enough=ReadLimit(messages=3))
    assert by_group(tmp_path) == {"g1": ["000", "001", "002"]}
    assert held[0].group == "g0"


def test_a_message_that_comes_twice_before_it_is_staged_is_staged_once(sqs: Any, tmp_path: Path) -> None:
    """Its visibility time-out ended before the segment was durable: two answers of one buffer have it."""
    fill(sqs, groups=1, each=1)
    sqs.queues["q.fifo"].visibility_s = 0.1
    received(sqs, tmp_path, limits=BufferLimits(segment_age_s=0.5))
    assert sqs.queues["q.fifo"].known == {}
    assert by_group(tmp_path) == {"g0": ["000"]}


@given(st.lists(st.tuples(st.floats(0, 5), st.integers(0, 10)), max_size=40), st.integers(1, 50))
def test_a_rate_is_kept_on_average_whatever_was_under_way(steps: list[tuple[float, int]], per_second: int) -> None:
    rate, now, taken = TokenBucket(per_second=per_second), 0.0, 0
    for wait, messages in steps:
        now += wait
        if rate.can_receive(now):
            rate.take(messages)
            taken += messages
    assert taken <= per_second * (now + 1) + 10  # a second's worth at once, and one receive beyond


def test_without_a_rate_there_is_no_limit() -> None:
    rate = TokenBucket()
    rate.take(10**9)
    assert rate.can_receive(0.0)
