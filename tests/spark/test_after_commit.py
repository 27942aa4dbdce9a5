import time
from collections.abc import Collection
from functools import partial
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from sluice_spark.log.planning import Position
from sluice_spark.log.staging import StagedLog
from sluice_spark.log.store import FileStore
from sluice_spark.options import Options
from sluice_spark.source.deletions import UncommittedMessages
from sluice_spark.source.receiver import Receiver
from sluice_spark.sqs.received import ReceiptHandles

from tests.spark.clients import client_of


@given(st.lists(st.integers(0, 9), max_size=20), st.integers(0, 10))
def test_only_what_lies_in_committed_segments_is_let_go_and_once(numbers: list[int], committed: int) -> None:
    held = UncommittedMessages()
    for index, number in enumerate(numbers):
        held.hold(number, [ReceiptHandles("q", [str(index)])])
    gone = [h for _, part in held.due(Position(committed, 3)) for each in part for h in each.receipt_handles]
    assert sorted(gone, key=int) == [str(index) for index, number in enumerate(numbers) if number < committed]
    assert list(held.due(Position(committed))) == []
    assert held.messages == len(numbers) - len(gone) == sum(len(each.receipt_handles) for each in held.all())


def test_a_successor_deletes_what_was_staged_once_its_log_is_committed(sqs: Any, fill: Any, tmp_path: Path) -> None:
    sqs.queues["q"].visibility_s = 1
    fill(300)
    totals = []
    for done in (_staged, _committed):
        staged = StagedLog(FileStore(tmp_path))
        staged.take_over(staged.oldest())
        receiver = _receiver(sqs, staged)
        receiver.start(Position(0))
        _until(partial(done, receiver, staged, sqs))
        _ended(receiver)
        totals.append(staged.log.offset(staged.log.end).totals.messages)
    assert totals == [300, 300]


def test_a_successor_deletes_what_was_committed_before_it_though_no_batch_follows(
    sqs: Any, fill: Any, tmp_path: Path
) -> None:
    sqs.queues["q"].visibility_s = 1
    fill(30)
    position = Position(0)
    for done in (_staged, _empty):
        staged = StagedLog(FileStore(tmp_path))
        staged.take_over(position)
        receiver = _receiver(sqs, staged)
        receiver.start(position)
        _until(partial(done, receiver, staged, sqs))
        _ended(receiver)
        position = staged.log.end


def test_messages_that_wait_for_their_commit_stay_invisible(sqs: Any, fill: Any, tmp_path: Path) -> None:
    sqs.queues["q"].visibility_s = 1
    fill(30)
    staged = StagedLog(FileStore(tmp_path))
    staged.take_over(Position(0))
    receiver = _receiver(sqs, staged)
    receiver.start(Position(0))
    _until(partial(_staged, receiver, staged, sqs))
    prolonged = sqs.calls["ChangeMessageVisibilityBatch"]
    _until(lambda: sqs.calls["ChangeMessageVisibilityBatch"] > prolonged + 3)
    counts = sqs.queues["q"].counts(time.time())
    _ended(receiver)
    assert counts["ApproximateNumberOfMessagesNotVisible"] == 30
    assert staged.log.offset(staged.log.end).totals.messages == 30


def _receiver(sqs: Any, staged: StagedLog) -> Receiver:
    options = Options(queue_urls=(sqs.queue_url("q"),), connections=4, wait_s=1, after_commit=True)
    return Receiver(staged, lambda: client_of(sqs, connections=8), options)


def _ended(receiver: Receiver) -> None:
    receiver.stop()
    receiver.join(30)
    receiver.check()


def _committed(receiver: Receiver, staged: StagedLog, sqs: Any) -> bool:
    receiver.record_committed(staged.log.end)
    return _empty(receiver, staged, sqs)


def _staged(_: Receiver, staged: StagedLog, sqs: Any) -> bool:
    """All of the queue's messages, and none is deleted."""
    return staged.log.backlog(Position(0)).messages == sum(_counts(sqs)) > 0


def _empty(_: Receiver, __: StagedLog, sqs: Any) -> bool:
    return not any(_counts(sqs))


def _counts(sqs: Any) -> Collection[int]:
    return sqs.queues["q"].counts(time.time()).values()


def _until(condition: Any) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
