"""Nothing is lost, whatever breaks: drivers come and go over one queue and one log, with calls that fail, answers that
get lost and ends at any moment. The queue is the in-memory one on a clock of its own; the oracle is what it was sent.
"""

import asyncio
import itertools
import random
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import orjson
from hypothesis import given, settings
from hypothesis import strategies as st
from sluice_spark.errors import QueueBusy, QueueRefused, SluiceSparkError
from sluice_spark.log.planning import Offset, ReadLimit, divide_into_tasks, find_batch_end
from sluice_spark.log.segments import read_rows
from sluice_spark.log.staging import StagedLog, read_slices
from sluice_spark.log.store import FileStore
from sluice_spark.options import Options
from sluice_spark.source.buffer import BufferLimits
from sluice_spark.source.receiver import Receiver
from sluice_spark.sqs.client import VISIBLE, BatchOutcome
from sluice_spark.sqs.received import BATCH_LIMIT, Message, ReceiptHandles, batch_receipt_handles, parse_messages

from tests.sqs.queues import Queue, SqsError

VISIBILITY_S = 30.0
WITHIN_S = 120


@dataclass
class World:
    """What outlives a driver: the queue with its clock, the log, Spark's checkpoint, and an idempotent sink."""

    staging: Path
    queue: Queue
    chance: random.Random
    now: float = 1_000_000.0
    sent: list[str] = field(default_factory=list)
    planned: list[tuple[dict[str, Any], dict[str, Any]]] = field(default_factory=list)
    committed: int = 0
    sink: dict[int, list[str]] = field(default_factory=dict)

    @property
    def store(self) -> FileStore:
        return FileStore(self.staging)

    def send(self, count: int) -> None:
        for _ in range(count):
            number = len(self.sent)
            entry = {"MessageBody": f"{number:06d}", "MessageGroupId": f"g{number % 7}"}
            self.queue.send({**entry, "MessageDeduplicationId": f"{number}"}, self.now)
            self.sent.append(f"{number:06d}")

    def staged(self) -> list[str]:
        """Every durable row, in the log's order."""
        names = sorted(name for name in self.store.list_names("segments"))
        return [body for name in names for body in read_rows(self.store.read(name)).column("body").to_pylist()]

    def queued(self) -> set[str]:
        return {orjson.loads(self.queue.encoded(message))["Body"] for message in self.queue.known.values()}

    def delivered(self) -> list[str]:
        return [body for number in sorted(self.sink) for body in self.sink[number]]


class Line:
    """The queue as a client sees it over a bad line: `faults` is how often a call goes wrong, `calls_left` when the
    driver is gone: from then on nothing reaches the queue, nor comes back. Deletes only what is durable, or fails the
    test."""

    def __init__(self, world: World, *, faults: float, calls_left: int | None) -> None:
        self.world, self.faults, self.calls_left = world, faults, calls_left
        self.requests: Counter[str] = Counter()
        self.wrong: list[str] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        return

    def _reached(self, action: str) -> None:
        """Before the queue does what it is asked."""
        if self.calls_left is not None:
            self.calls_left -= 1
            if self.calls_left < 0:
                raise QueueRefused(action, "Dead", "the driver is gone")
        if self.world.chance.random() < self.faults / 2:
            raise QueueBusy(action, "InternalError", "by chance")

    def _answered(self, action: str) -> None:
        """After."""
        if self.calls_left == 0 or self.world.chance.random() < self.faults / 2:
            raise QueueBusy(action, "Timeout", "done, and the answer lost")

    async def check_deletion(self, queue_urls: Sequence[str]) -> None:
        return

    async def back_off(self, attempt: int, error: Exception) -> None:
        await asyncio.sleep(0)

    async def count(self, queue_urls: Sequence[str], name: str = VISIBLE) -> int:
        self._reached("GetQueueAttributes")
        return self.world.queue.counts(self.world.now)[name]

    async def receive(
        self,
        queue_url: str,
        *,
        wait_s: int,
        most: int = BATCH_LIMIT,
        visibility_s: int | None = None,
        attempt_id: str | None = None,
        **how: Any,
    ) -> Sequence[Message]:
        self._reached("ReceiveMessage")
        self.world.now += self.world.chance.choice([0, 0, 0, 0.1, VISIBILITY_S / 3])
        limit = self.world.chance.randint(1, most)
        messages = self.world.queue.receive(limit, visibility_s, self.world.now, attempt_id)
        answer = parse_messages(f'{{"Messages":[{",".join(map(self.world.queue.encoded, messages))}]}}'.encode())
        await asyncio.sleep(0 if answer else 0.002)  # a poll that brings nothing takes its time
        self._answered("ReceiveMessage")
        return answer

    async def delete(self, queue_url: str, handles: Sequence[str]) -> BatchOutcome:
        self._reached("DeleteMessageBatch")
        durable = {
            identity
            for name in self.world.store.list_names("segments")
            for identity in read_rows(self.world.store.read(name)).column("message_id").to_pylist()
        }
        self.wrong += [handle for handle in handles if handle.rpartition(":")[0] not in durable]
        failed, expired = [], []
        for handle in handles:
            if self.world.chance.random() < self.faults:
                failed.append(handle)
                continue
            try:
                self.world.queue.delete(handle, self.world.now)
            except SqsError:
                expired.append(handle)
        self._answered("DeleteMessageBatch")
        return BatchOutcome(tuple(expired), tuple(failed))

    async def set_visibility(self, queue_url: str, handles: Sequence[str], visibility_s: float) -> BatchOutcome:
        self._reached("ChangeMessageVisibilityBatch")
        for handle in handles:
            with suppress(SqsError):
                self.world.queue.change_visibility(handle, visibility_s, self.world.now)
        return BatchOutcome()

    async def make_visible(self, held: Iterable[ReceiptHandles]) -> None:
        for queue_url, handles in batch_receipt_handles(held):
            with suppress(SluiceSparkError):
                await self.set_visibility(queue_url, handles, 0.0)


class Driver:
    """What Spark and the source do in a micro-batch, without Spark: plan, log the offset, read, write, commit."""

    def __init__(self, world: World, line: Line, *, after_commit: bool) -> None:
        self.world = world
        start = Offset.parse(world.planned[-1][1]).position if world.planned else None
        if len(world.planned) > world.committed:
            start = Offset.parse(world.planned[-1][0]).position
        self.staged = StagedLog(world.store)
        self.start = start or self.staged.find_oldest_position()
        self.staged.take_over(self.start)
        url = f"http://localhost/1/{world.queue.name}"
        limits = BufferLimits(segment_messages=25, segment_age_s=0.0, undeleted_messages=200)
        options = Options(queue_urls=(url,), connections=4, after_commit=after_commit, visibility_s=int(VISIBILITY_S))
        self.receiver = Receiver(self.staged, lambda: line, options, limits=limits)  # type: ignore[arg-type, return-value]  # as a client
        self.receiver.start(self.start)

    def batch(self, *, until: str) -> bool:
        """One micro-batch, as far as the step `until`; whether there was one."""
        world = self.world
        if len(world.planned) == world.committed:
            log = self.staged.log
            self.receiver.record_committed(self.start)
            end = find_batch_end(log, self.start, ReadLimit(messages=world.chance.choice([None, 1, 7, 40])))
            if end == self.start:
                return False
            world.planned.append((log.offset(self.start).json(), log.offset(end).json()))
        if until == "planned":
            return True
        first, last = (Offset.parse(each).position for each in world.planned[-1])
        tasks = divide_into_tasks(self.staged.log.list_ranges(first, last), rows_per_task=world.chance.randint(1, 30))
        found = [body for task in tasks for rows in read_slices(world.store, task) for body in rows["body"].to_pylist()]
        world.sink[len(world.planned) - 1] = found
        if until == "written":
            return True
        world.committed = len(world.planned)
        self.receiver.record_planned(last)
        self.staged.forget_before(last)
        self.start = last
        return True

    def run(self, batches_left: int, until: str) -> None:
        """So many micro-batches, the last as far as `until`; or until the receiver ends, or nothing is left to do."""
        deadline = time.monotonic() + WITHIN_S
        while batches_left:
            assert time.monotonic() < deadline
            if self.batch(until=until if batches_left == 1 else "committed"):
                batches_left -= 1
                continue
            self.receiver.check()
            self.receiver.record_committed(self.start)
            if not self.world.queue.known:
                return
            if not self.world.queue.counts(self.world.now)["ApproximateNumberOfMessages"]:
                self.world.now += VISIBILITY_S / 10
            time.sleep(0.001)


@dataclass(frozen=True)
class Life:
    """One driver's."""

    sent: int
    faults: float
    calls_left: int | None
    batches: int
    until: str
    awaited: bool  # whether the next driver starts only once this one's receiver has drained
    passes_s: float


LIVES = st.lists(
    st.builds(
        Life,
        sent=st.integers(0, 60),
        faults=st.sampled_from([0.0, 0.1, 0.4]),
        calls_left=st.one_of(st.none(), st.integers(0, 40)),
        batches=st.integers(1, 6),
        until=st.sampled_from(["planned", "written", "committed"]),
        awaited=st.booleans(),
        passes_s=st.sampled_from([0.0, VISIBILITY_S + 1]),
    ),
    min_size=1,
    max_size=4,
)


def lived(world: World, life: Life, *, after_commit: bool) -> tuple[Driver, Line]:
    world.send(life.sent)
    line = Line(world, faults=life.faults, calls_left=life.calls_left)
    driver = Driver(world, line, after_commit=after_commit)
    with suppress(SluiceSparkError):
        driver.run(life.batches, life.until)
    driver.receiver.stop()
    if life.awaited:
        driver.receiver.join(WITHIN_S)
    world.now += life.passes_s
    return driver, line


def whole(world: World) -> None:
    """Each message is in the queue or in the log, and at most once in the log."""
    staged = world.staged()
    assert len(staged) == len(set(staged))
    assert set(world.sent) == set(staged) | world.queued()


@settings(max_examples=12)  # each lives some drivers with threads of their own
@given(LIVES, st.sampled_from(["q", "q.fifo"]), st.booleans(), st.integers(0, 2**32))
def test_drivers_that_break_in_any_way_lose_and_double_nothing(
    lives: list[Life], name: str, after_commit: bool, seed: int
) -> None:
    with tempfile.TemporaryDirectory() as staging:
        world = World(Path(staging), Queue(name, visibility_s=VISIBILITY_S), random.Random(seed))
        past = [lived(world, life, after_commit=after_commit) for life in lives]
        for driver, _ in past:
            driver.receiver.join(WITHIN_S)
        whole(world)
        world.now += VISIBILITY_S + 1
        last = Life(sent=5, faults=0.0, calls_left=None, batches=10_000, until="committed", awaited=True, passes_s=0.0)
        past.append(lived(world, last, after_commit=after_commit))
        whole(world)
        assert [wrong for _, line in past for wrong in line.wrong] == []
        assert not world.queue.known
        found = world.delivered()
        assert sorted(found) == world.sent
        if world.queue.fifo:
            groups = itertools.groupby(sorted(found, key=lambda body: int(body) % 7), key=lambda body: int(body) % 7)
            assert all(bodies == sorted(bodies) for bodies in map(list, (bodies for _, bodies in groups)))
