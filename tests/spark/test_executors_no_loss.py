"""Nothing is lost and nothing doubled with `mode=executors`, whatever breaks: drivers and tasks come and go over one
queue and one log, with calls that fail, answers that get lost, workers that die, twins, and tasks of dead drivers that
go on. The queue is the in-memory one on a clock of its own; the oracle is what it was sent.
"""

import random
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from sluice_spark.errors import Fenced, SluiceSparkError
from sluice_spark.log.planning import Admission, Offset, Position
from sluice_spark.log.segments import rows_of, segment_name
from sluice_spark.options import Options
from sluice_spark.source.dispatching import Dispatcher, adopted
from sluice_spark.source.executors import Order, segment

from tests.spark.test_no_loss import VISIBILITY_S, Line, World, whole
from tests.sqs.queues import Queue

OPTIONS = Options(queue_urls=("http://localhost/1/q",), connections=3, wait_s=0, visibility_s=int(VISIBILITY_S))
ATTEMPTS = 4


@dataclass
class Depth:
    """What a look at the queue says: exactly what is so, times something, as a batch has several tasks so."""

    world: World
    times: int

    @property
    def last(self) -> int:
        return self.world.queue.counts(self.world.now)["ApproximateNumberOfMessages"] * self.times

    def visible(self, position: Position) -> int:
        return self.last


class SteadyLine(Line):
    """On which time passes by so little a call that tasks mostly come to their end, and by more between them."""

    async def receive(self, queue_url: str, **how: Any) -> Sequence[Any]:
        before = self.world.now
        answer = await super().receive(queue_url, **how)
        self.world.now = before + self.world.chance.choice([0, 0, 0, 0.1, VISIBILITY_S / 20])
        return answer


@dataclass(frozen=True)
class Life:
    """One driver's."""

    sent: int
    faults: float
    calls_left: int | None  # of each task that dies
    dying: float  # how many of its tasks do
    batches: int
    until: str
    passes_s: float


@dataclass
class Runs:
    """Spark, over its drivers: the checkpoint, and orders that tasks of dead drivers still have."""

    world: World
    late: list[Order] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def task(self, order: Order, life: Life) -> list[str]:
        """Raises what the task raises."""
        world, dies = self.world, self.world.chance.random() < life.dying
        line = SteadyLine(world, faults=life.faults, calls_left=life.calls_left if dies else None)
        try:
            content = segment(order, world.store, lambda: line, OPTIONS, lambda: world.now)  # type: ignore[arg-type, return-value]  # as a client
        finally:
            self.wrong += line.wrong
        return list(rows_of(content).column("body").to_pylist())

    def tried(self, order: Order, life: Life) -> list[str]:
        """A task with its retries, and now and then a twin."""
        if self.world.chance.random() < 0.2:
            with suppress(SluiceSparkError):
                self.task(order, life)
        for attempt in range(ATTEMPTS):
            try:
                return self.task(order, life)
            except Fenced:
                raise
            except SluiceSparkError:
                self.world.now += self.world.chance.choice([0.0, VISIBILITY_S + 1])
                if attempt == ATTEMPTS - 1:
                    raise
        raise AssertionError

    def live(self, life: Life) -> None:
        world = self.world
        start = Offset(position=adopted(world.store))
        if world.planned:
            start = Offset.parse(world.planned[-1][len(world.planned) == world.committed])
        driver = Dispatcher(world.store, Depth(world, world.chance.choice([1, 500])), start.position)  # type: ignore[arg-type]  # a depth
        for left in range(life.batches, 0, -1):
            if not self.batch(driver, start, life, until=life.until if left == 1 else "committed"):
                return
            start = Offset.parse(world.planned[-1][1])

    def batch(self, driver: Dispatcher, start: Offset, life: Life, *, until: str) -> bool:
        """One micro-batch, as far as the step `until`; whether there was one."""
        world = self.world
        admission = Admission(messages=world.chance.choice([None, 1, 7, 40]))
        if len(world.planned) == world.committed:
            end = driver.planned(start, admission)
            if end is None:
                return False
            world.planned.append((start.json(), end.json()))
        first, last = (Offset.parse(each).position for each in world.planned[-1])
        tasks = driver.tasks(first, last, admission)
        orders = list(tasks.orders)
        world.chance.shuffle(orders)
        self.late += orders
        if until == "planned":
            return True
        found = [body for order in orders for body in self.tried(order, life)]
        for part in (part for task in tasks.staged for part in task):
            rows = rows_of(world.store.read(segment_name(part.number)))
            found += rows.column("body").to_pylist()[part.low : part.high]
        world.sink[len(world.planned) - 1] = found
        if until == "committed":
            world.committed = len(world.planned)
        return True

    def zombies(self, life: Life) -> None:
        """Tasks of drivers that are gone, or done: none of them does harm."""
        for order in self.world.chance.sample(self.late, min(2, len(self.late))):
            with suppress(SluiceSparkError):
                self.task(order, life)


LIVES = st.lists(
    st.builds(
        Life,
        sent=st.integers(0, 60),
        faults=st.sampled_from([0.0, 0.05, 0.3]),
        calls_left=st.integers(0, 25),
        dying=st.sampled_from([0.0, 0.3, 1.0]),
        batches=st.integers(1, 4),
        until=st.sampled_from(["planned", "written", "committed"]),
        passes_s=st.sampled_from([0.0, VISIBILITY_S + 1]),
    ),
    min_size=1,
    max_size=4,
)


@settings(max_examples=40)  # each has some dozens of tasks with event loops of their own
@given(LIVES, st.integers(0, 2**32))
def test_drivers_and_tasks_that_break_in_any_way_lose_and_double_nothing(lives: list[Life], seed: int) -> None:
    with tempfile.TemporaryDirectory() as staging:
        world = World(Path(staging), Queue("q", visibility_s=int(VISIBILITY_S)), random.Random(seed))
        runs = Runs(world)
        for life in lives:
            world.send(life.sent)
            with suppress(SluiceSparkError):
                runs.live(life)
            runs.zombies(life)
            world.now += life.passes_s
            whole(world)
        rest = Life(sent=0, faults=0, calls_left=None, dying=0, batches=1000, until="committed", passes_s=0)
        for _ in range(1000):
            runs.live(rest)
            if not world.queue.known:
                break
            world.now += VISIBILITY_S + 1
        runs.live(rest)
        whole(world)
        assert runs.wrong == []
        assert sorted(world.delivered()) == world.sent
