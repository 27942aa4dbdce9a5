import asyncio
import time
from collections import Counter
from collections.abc import Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sluice_spark.errors import QueueBusy
from sluice_spark.log.planning import Position
from sluice_spark.log.staging import StagedLog
from sluice_spark.log.store import FileStore
from sluice_spark.options import Options
from sluice_spark.source.deletions import Deletions, UncommittedMessages
from sluice_spark.source.receiver import Receiver
from sluice_spark.sqs.client import ALL_DONE, BatchOutcome
from sluice_spark.sqs.received import ReceiptHandles

from tests.spark.clients import client_of


@given(st.lists(st.integers(0, 9), max_size=20), st.integers(0, 10))
def test_only_what_lies_in_committed_segments_is_let_go_and_once(numbers: list[int], committed: int) -> None:
    held = UncommittedMessages(1)
    for index, number in enumerate(numbers):
        held.hold(number, [ReceiptHandles("q", [str(index)], [str(index)])])
    gone = [h for _, part in held.take_committed(Position(committed, 3)) for each in part for h in each.receipt_handles]
    assert sorted(gone, key=int) == [str(index) for index, number in enumerate(numbers) if number < committed]
    assert list(held.take_committed(Position(committed))) == []
    assert held.messages == len(numbers) - len(gone) == sum(len(each.receipt_handles) for each in held.list_held())


def test_a_redelivered_message_has_one_handle_the_newest_and_stays_with_its_segment() -> None:
    held = UncommittedMessages(1)
    held.hold(1, [ReceiptHandles("q", ["a1", "b1"], ["a", "b"]), ReceiptHandles("r", ["a2"], ["a"])])
    held.hold(3, [ReceiptHandles("q", ["b2", "c1"], ["b", "c"])])
    assert held.messages == 4
    assert list(held.take_committed(Position(2))) == [
        (1, [ReceiptHandles("q", ["a1", "b2"]), ReceiptHandles("r", ["a2"])])
    ]
    assert (held.messages, held.list_held()) == (1, [ReceiptHandles("q", ["c1"])])


def test_what_is_ordered_as_the_last_deletion_ends_is_deleted_too() -> None:
    """Its task has no more orders then, but asyncio hasn't told yet that it is done."""
    deleted: list[str] = []
    errors: list[BaseException] = []

    class Client:
        async def delete(self, queue_url: str, handles: Sequence[str]) -> BatchOutcome:
            await answered
            deleted.extend(handles)
            return ALL_DONE

    async def run() -> Deletions:
        client: Any = Client()
        deletions = Deletions(client, at_once=1, confirmed=lambda _: None, failed=errors.append)
        deletions.order(1, [ReceiptHandles("q", ["a"], ["a"])])
        await asyncio.sleep(0)  # it asks
        answered.set_result(None)
        await asyncio.sleep(0)  # it has its answer, and ends
        assert deleted == ["a"]
        deletions.order(2, [ReceiptHandles("q", ["b"], ["b"])])
        await deletions.wait()
        return deletions

    with asyncio.Runner() as runner:
        answered: asyncio.Future[None] = runner.get_loop().create_future()
        assert runner.run(run()).remaining == 0
    assert (deleted, errors) == (["a", "b"], [])


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to the next timer: nothing waits."""

    now = 0.0

    def time(self) -> float:
        return self.now

    def _run_once(self) -> None:
        if not self._ready and self._scheduled:  # type: ignore[attr-defined]  # asyncio's
            self.now = max(self.now, self._scheduled[0]._when)  # type: ignore[attr-defined]  # asyncio's
        super()._run_once()  # type: ignore[misc]  # asyncio's


class SlowQueue:
    """A queue whose every call takes `call_s`: when each message becomes visible, and those that did too early."""

    def __init__(self, call_s: float, visibility_s: float) -> None:
        self.call_s, self.visibility_s = call_s, visibility_s
        self.visible_at: dict[str, float] = {}
        self.late: list[str] = []
        self.extended: Counter[str] = Counter()
        self.at_once = self.most_at_once = 0

    async def get_attributes(self, queue_url: str, *names: str) -> dict[str, str]:
        await asyncio.sleep(self.call_s)
        return {"VisibilityTimeout": str(self.visibility_s)}

    async def set_visibility(self, queue_url: str, handles: Sequence[str], visibility_s: int) -> BatchOutcome:
        now = asyncio.get_running_loop().time
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await asyncio.sleep(self.call_s)
        self.at_once -= 1
        known = [handle for handle in handles if handle in self.visible_at]
        self.late += [handle for handle in known if self.visible_at[handle] <= now()]
        self.visible_at |= dict.fromkeys(known, now() + visibility_s)
        self.extended.update(known)
        return BatchOutcome()


@pytest.mark.parametrize(
    ("connections", "call_s", "visibility_s"),
    [(64, 0.02, 10), pytest.param(64, 0.02, 30, marks=pytest.mark.slow), (8, 0.5, 30), (1, 0.02, 1), (512, 0.5, 4)],
)
@pytest.mark.parametrize("from_queue", [False, True])
def test_as_many_as_can_be_held_stay_invisible(
    connections: int, call_s: float, visibility_s: int, *, from_queue: bool
) -> None:
    queue, held = SlowQueue(call_s, visibility_s), UncommittedMessages(connections)

    async def whole() -> None:
        await held.measure_heartbeat(queue, ["q"], None if from_queue else visibility_s)  # type: ignore[arg-type]  # as a client
        handles = [f"{number}" for number in range(min(held.limit, 100_000))]
        held.hold(1, [ReceiptHandles("q", handles, handles)])
        queue.visible_at = dict.fromkeys(handles, asyncio.get_running_loop().time() + visibility_s)
        beating = asyncio.create_task(held.keep_invisible(queue))  # type: ignore[arg-type]  # as a client
        await asyncio.sleep(4 * visibility_s)
        beating.cancel()

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(whole())
    formula = connections * 10 * visibility_s / 4 / call_s
    assert min(100_000, 0.95 * formula) <= held.messages <= formula
    assert queue.late == []
    assert len(queue.extended) == held.messages
    assert min(queue.extended.values()) >= 7
    assert queue.most_at_once == min(connections, -(-held.messages // 10))


def test_slower_calls_lower_what_is_held_and_the_log_says_why(caplog: pytest.LogCaptureFixture) -> None:
    queue, held = SlowQueue(0.02, 10), UncommittedMessages(8)

    async def whole() -> tuple[int, int]:
        await held.measure_heartbeat(queue, ["q"], 10)  # type: ignore[arg-type]  # as a client
        before = held.limit
        held.hold(1, [ReceiptHandles("q", ["h"], ["m"])])
        beating = asyncio.create_task(held.keep_invisible(queue))  # type: ignore[arg-type]  # as a client
        queue.call_s = 0.2
        await asyncio.sleep(10)
        beating.cancel()
        return before, held.limit

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        assert runner.run(whole()) == (10_000, 960)
    first, second = (record.getMessage() for record in caplog.records)
    assert "10000 messages" in first
    for part in ("960 messages", "200 ms", "8 connections", "10 s", "maxConnections", "visibilityTimeout"):
        assert part in second


def test_calls_that_are_too_slow_to_hold_anything_are_measured_again() -> None:
    queue, held, limits = SlowQueue(2, 4), UncommittedMessages(8), list[int]()

    async def whole() -> None:
        await held.measure_heartbeat(queue, ["q"], 4)  # type: ignore[arg-type]  # as a client
        limits.append(held.limit)
        beating = asyncio.create_task(held.keep_invisible(queue))  # type: ignore[arg-type]  # as a client
        queue.call_s = 0.5
        await asyncio.sleep(10)
        beating.cancel()
        limits.append(held.limit)

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(whole())
    assert limits == [0, 160]


def test_a_call_that_is_tried_again_delays_no_other_heartbeat() -> None:
    class Stuck(SlowQueue):
        async def set_visibility(self, queue_url: str, handles: Sequence[str], visibility_s: int) -> BatchOutcome:
            if "0" in handles:
                await asyncio.sleep(30)
                raise QueueBusy("ChangeMessageVisibilityBatch", "Timeout", "no answer")
            return await super().set_visibility(queue_url, handles, visibility_s)

    queue, held = Stuck(0.02, 10), UncommittedMessages(8)

    async def whole() -> None:
        await held.measure_heartbeat(queue, ["q"], 10)  # type: ignore[arg-type]  # as a client
        handles = [f"{number}" for number in range(100)]
        held.hold(1, [ReceiptHandles("q", handles, handles)])
        queue.visible_at = dict.fromkeys(handles, asyncio.get_running_loop().time() + 10)
        beating = asyncio.create_task(held.keep_invisible(queue))  # type: ignore[arg-type]  # as a client
        await asyncio.sleep(40)
        beating.cancel()

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(whole())
    assert (queue.late, len(queue.extended)) == ([], 90)
    assert held.limit <= 80  # of 10,000: no more is received while calls fail


def test_no_more_is_received_than_heartbeats_can_hold(sqs: Any, fill: Any, tmp_path: Path) -> None:
    sqs.latency_s = 0.02
    fill(1_000)
    staged = StagedLog(FileStore(tmp_path))
    staged.take_over(Position(0))
    options = Options(queue_urls=(sqs.queue_url("q"),), connections=2, wait_s=1, after_commit=True, visibility_s=2)
    receiver = Receiver(staged, lambda: client_of(sqs, connections=4), options)
    most = 0

    def watch(action: str, *, done: bool) -> None:
        nonlocal most
        if action == "ReceiveMessage" and done:
            most = max(most, len(sqs.queues["q"].held))

    sqs.watch = watch
    receiver.start(Position(0))
    _until(lambda: _committed(receiver, staged, sqs))
    _ended(receiver)
    assert 0 < most < 2 * 10 * 2 / 4 / 0.02 + 10  # a call takes at least 20 ms
    assert staged.log.offset(staged.log.end).totals.messages == 1_000


def test_a_successor_deletes_what_was_staged_once_its_log_is_committed(sqs: Any, fill: Any, tmp_path: Path) -> None:
    sqs.queues["q"].visibility_s = 1
    fill(300)
    totals = []
    for done in (_staged, _committed):
        staged = StagedLog(FileStore(tmp_path))
        staged.take_over(staged.find_oldest_position())
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
    return staged.log.count_backlog(Position(0)).messages == sum(_counts(sqs)) > 0


def _empty(_: Receiver, __: StagedLog, sqs: Any) -> bool:
    return not any(_counts(sqs))


def _counts(sqs: Any) -> Collection[int]:
    return sqs.queues["q"].counts(time.time()).values()


def _until(condition: Any) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
