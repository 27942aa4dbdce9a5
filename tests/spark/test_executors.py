"""What a task of `mode=executors` does, and the driver that plans it, against the in-memory SQS: without Spark."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from sluice_spark.errors import Fenced, LogError, QueueRefused, SegmentMissing
from sluice_spark.log.planning import Admission, Offset, Position
from sluice_spark.log.segments import HEAD_BYTES, header_of, rows_of, segment_name
from sluice_spark.log.staging import StagedLog
from sluice_spark.log.store import FileStore
from sluice_spark.options import Options
from sluice_spark.source.budget import COPIES
from sluice_spark.source.depth import Depth
from sluice_spark.source.dispatching import Dispatcher
from sluice_spark.source.executors import Order, deletions, segment
from sluice_spark.source.receiver import Receiver
from sluice_spark.sqs.client import SqsClient

from tests.spark.clients import client_of
from tests.sqs.queues import Queue

NO_LIMIT = Admission()


class Counted:
    """A depth that a test sets."""

    def __init__(self) -> None:
        self.last = 0

    def visible(self, position: Position) -> int:
        return self.last


class World:
    """A queue, a log, and drivers one after another."""

    def __init__(self, sqs: Any, staging: Path) -> None:
        self.sqs, self.store, self.depth = sqs, FileStore(staging), Counted()
        self.options = Options(queue_urls=(sqs.queue_url("q"),), connections=8, wait_s=0, visibility_s=30)
        self.given = Offset(position=Position(0))

    def driver(self, start: Position | None = None, **options: Any) -> Dispatcher:
        return Dispatcher(self.store, self.depth, start or self.given.position, **options)  # type: ignore[arg-type]  # a depth

    def client(self) -> SqsClient:
        return client_of(self.sqs, connections=16)

    def planned(self, driver: Dispatcher, visible: int, admission: Admission = NO_LIMIT) -> Offset:
        self.depth.last = visible
        end = driver.planned(self.given, admission)
        assert end is not None
        return end

    def task(self, order: Order, store: Any = None, **options: Any) -> list[str]:
        content = segment(order, store or self.store, self.client, replace(self.options, **options))
        return list(rows_of(content).column("body").to_pylist())

    def batch(self, driver: Dispatcher, visible: int, admission: Admission = NO_LIMIT) -> list[str]:
        """A whole one, committed."""
        end = self.planned(driver, visible, admission)
        tasks = driver.tasks(self.given.position, end.position, admission)
        found = [body for order in tasks.orders for body in self.task(order)]
        for part in (part for task in tasks.staged for part in task):
            rows = rows_of(self.store.read(segment_name(part.number)))
            found += rows.column("body").to_pylist()[part.low : part.high]
        self.given = end
        return found

    def order(self, driver: Dispatcher, visible: int = 1) -> Order:
        end = self.planned(driver, visible)
        return driver.tasks(self.given.position, end.position, NO_LIMIT).orders[0]

    @property
    def left(self) -> dict[str, int]:
        counts: dict[str, int] = self.sqs.queues["q"].counts(time.time())
        return counts

    @property
    def empty(self) -> bool:
        return set(self.left.values()) == {0}


@pytest.fixture
def world(sqs: Any, tmp_path: Path) -> World:
    return World(sqs, tmp_path / "log")


class Meddled(FileStore):
    """Something happens before a segment is published, or instead."""

    def __init__(self, world: World, before: Callable[[], None]) -> None:
        super().__init__(world.store._root)
        self.before, self.publishes = before, 0

    def publish(self, name: str, content: pa.Buffer) -> None:
        if name.startswith("segments/"):
            self.publishes += 1
            self.before()
        super().publish(name, content)


def bodies(count: int) -> list[str]:
    return [f"{number:06d}" for number in range(count)]


def test_a_task_receives_publishes_deletes_and_a_retry_reads_the_same(world: World, fill: Any) -> None:
    fill(300)
    order = world.order(world.driver(), 300)
    first = world.task(order)
    assert sorted(first) == bodies(300)
    assert world.empty
    receives = world.sqs.calls["ReceiveMessage"]
    fill(50)
    assert world.task(order) == first
    assert world.sqs.calls["ReceiveMessage"] == receives
    assert deletions(world.store, 0) == {order.number: 0}


def test_the_loser_of_a_publish_releases_its_messages_and_reads_the_winners(world: World, fill: Any) -> None:
    """The twin publishes while the first is about to: each holds messages that the other hasn't."""
    fill(60)
    order = world.order(world.driver(), 60)
    order = replace(order, admission=Admission(messages=30))
    won: list[list[str]] = []
    lost = world.task(order, Meddled(world, lambda: won.append(world.task(order))))
    assert [lost] == won
    assert len(lost) == 30
    assert world.left == {**world.left, "ApproximateNumberOfMessages": 30, "ApproximateNumberOfMessagesNotVisible": 0}


def test_a_limit_is_kept_and_no_more_is_asked_for(world: World, fill: Any) -> None:
    fill(100)
    order = replace(world.order(world.driver(), 100), admission=Admission(messages=37))
    assert len(world.task(order)) == 37
    assert world.left["ApproximateNumberOfMessages"] == 63
    assert "ChangeMessageVisibilityBatch" not in world.sqs.calls


def test_bytes_limit_what_is_received(world: World, fill: Any) -> None:
    fill(1000)
    order = replace(world.order(world.driver(), 1000), admission=Admission(size=600))  # six bytes each
    assert 100 <= len(world.task(order, connections=1)) <= 110


@pytest.mark.parametrize("before", [0, 7, 300])
def test_a_task_holds_no_more_than_it_may_whatever_comes_after_small_messages(
    world: World, fill: Any, before: int
) -> None:
    """What there is no room for is visible again at once, and the next batches', until nothing is left."""
    large, limit = 100_000, 2**21
    fill(before)
    world.sqs.queues["q"].fill((f"{number:06d}{'x' * (large - 6)}" for number in range(60)), time.time())
    world.options = replace(world.options, connections=32, buffer_bytes=limit)
    driver, found = world.driver(), list[str]()
    while left := world.left["ApproximateNumberOfMessages"]:
        task = world.batch(driver, 1)
        assert 0 < sum(map(len, task)) <= max(limit / COPIES, 10 * large)
        assert world.left["ApproximateNumberOfMessages"] == left - len(task)
        found += task
    assert len(found) == len(set(found)) == before + 60


def queues_of(world: World, count: int, bodies: Sequence[str]) -> list[Queue]:
    """Queues with these bodies each, which tasks receive instead."""
    queues = [Queue(f"q{number}") for number in range(count)]
    for number, queue in enumerate(queues):
        world.sqs.queues[queue.name] = queue
        queue.fill([f"{number:03d}{body}" for body in bodies], time.time())
    world.options = replace(world.options, queue_urls=tuple(world.sqs.queue_url(queue.name) for queue in queues))
    return queues


def all_batches(world: World, queues: Sequence[Queue]) -> list[str]:
    """Until nothing is left."""
    driver, found = world.driver(), list[str]()
    while any(any(queue.counts(time.time()).values()) for queue in queues):
        found += world.batch(driver, 1)
    return found


@pytest.mark.parametrize(("connections", "limit"), [(8, 2**26), (1, 2**26), (2, 2**22), (1, 2**20)])
def test_large_messages_of_several_queues_are_received_once(world: World, connections: int, limit: int) -> None:
    """Each receive counts towards a redrive policy's limit: what comes first has room, whatever its size."""
    queues = queues_of(world, 9, [f"{number:06d}".ljust(900_000, "x") for number in range(4)])
    world.options = replace(world.options, connections=connections, buffer_bytes=limit)
    found = all_batches(world, queues)
    assert len(found) == len(set(found)) == 36
    assert "ChangeMessageVisibilityBatch" not in world.sqs.calls


def test_of_more_queues_than_connections_whose_messages_grow_what_has_no_room_goes_back(world: World) -> None:
    """Those that wait for room have all connections: to give back what has none needs one of them."""
    queues = queues_of(
        world, 24, [*map(str, range(20)), *(str(number).ljust(200_000, "x") for number in range(20, 30))]
    )
    world.client = lambda: client_of(world.sqs, connections=4)  # type: ignore[method-assign]  # another
    world.options = replace(world.options, connections=4, buffer_bytes=2**21)
    found = all_batches(world, queues)
    assert len(found) == len(set(found)) == 24 * 30


def test_where_room_is_for_few_each_queue_has_its_turn(world: World) -> None:
    *_, last = queues_of(world, 5, [])
    last.fill(map(str, range(30)), time.time())
    world.options = replace(world.options, buffer_bytes=2**14, visibility_s=8)  # a task receives for two seconds
    driver = world.driver()
    assert sum(len(world.batch(driver, 1)) for _ in range(20)) > 0


def test_an_empty_queue_is_an_empty_segment_so_that_a_replay_is_empty_too(world: World, fill: Any) -> None:
    order = world.order(world.driver())
    assert world.task(order) == []
    fill(10)
    assert world.task(order) == []


def redelivered(world: World) -> None:
    """The visibility timeout passes."""
    queue = world.sqs.queues["q"]
    for message in list(queue.held.values()):
        queue.change_visibility(f"{message.id}:{message.received}", 0, time.time())


def abandoned(world: World, order: Order) -> None:
    """Its worker dies after the publish, before the first delete."""
    world.task(order, delete=False)
    redelivered(world)


def test_redelivered_messages_are_known_within_their_batch(world: World, fill: Any) -> None:
    """The batch's first task dies before it deletes; its second receives the same messages."""
    fill(20)
    driver = world.driver()
    end = world.planned(driver, 20_000)
    first, second = driver.tasks(Position(0), end.position, NO_LIMIT).orders
    abandoned(world, first)
    assert world.left["ApproximateNumberOfMessages"] == 20
    assert world.task(second) == []
    assert world.empty


def test_redelivered_messages_are_known_in_later_batches(world: World, fill: Any) -> None:
    fill(20)
    driver = world.driver()
    end = world.planned(driver, 20)
    (order,) = driver.tasks(Position(0), end.position, NO_LIMIT).orders
    abandoned(world, order)
    world.given = end
    assert world.batch(driver, 20) == []
    assert world.empty
    fill(5)
    assert len(world.batch(driver, 5)) == 5
    assert world.given.totals.messages == 20


def test_redelivered_messages_are_known_to_the_next_driver(world: World, fill: Any) -> None:
    fill(20)
    abandoned(world, world.order(world.driver(), 20))
    successor = world.driver()
    assert sorted(world.batch(successor, 20)) == bodies(20)  # adopted, not received
    assert world.batch(successor, 20) == []
    assert world.empty


def test_what_a_receiver_in_the_driver_left_undeleted_is_known(world: World, fill: Any) -> None:
    """`mode` was driver, and is executors now."""
    fill(30)
    staged = StagedLog(world.store)
    staged.take_over(staged.oldest())
    options = Options(queue_urls=world.options.queue_urls, connections=4, wait_s=1, delete=False)
    receiver = Receiver(staged, world.client, options, enough=Admission(messages=30))
    receiver.start(Position(0))
    receiver.join(30)
    receiver.check()
    redelivered(world)
    driver = world.driver()
    assert sorted(world.batch(driver, 30)) == bodies(30)
    assert world.batch(driver, 30) == []
    assert world.empty


def test_messages_that_failed_to_be_deleted_are_counted_and_known(world: World, fill: Any) -> None:
    fill(10)
    world.sqs.script.add({"action": "DeleteMessageBatch", "how": "partial", "status": 400, "code": "InvalidAddress"})
    driver = world.driver()
    assert sorted(world.batch(driver, 10)) == bodies(10)
    assert sum(world.left.values()) == 5
    redelivered(world)
    assert world.batch(driver, 5) == []
    assert world.given.deletions_failed == 5
    assert world.empty


def test_what_was_received_too_long_ago_is_released_and_not_published(world: World, fill: Any) -> None:
    """After each answer the task hangs for longer than half the visibility timeout."""
    fill(10)
    order = world.order(world.driver(), 10)
    hung_s = 0.0

    def hang(action: str, *, done: bool) -> None:
        nonlocal hung_s
        hung_s += 16.0 if (action, done) == ("ReceiveMessage", True) else 0.0

    world.sqs.watch = hang
    with pytest.raises(LogError, match="visibilityTimeout"):
        segment(order, world.store, world.client, world.options, lambda: time.monotonic() + hung_s)
    assert hung_s
    assert segment_name(order.number) not in world.store.names("segments")
    assert world.left["ApproximateNumberOfMessages"] == 10


def test_a_slow_publish_keeps_its_messages_invisible(world: World, fill: Any) -> None:
    fill(10)
    order = world.order(world.driver(), 10)
    extended = Meddled(world, lambda: wait_for(lambda: world.sqs.calls["ChangeMessageVisibilityBatch"] > 0))
    assert len(world.task(order, extended, visibility_s=4)) == 10
    assert world.empty


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


class Losing(FileStore):
    """The first segment's publish comes through, its answer doesn't."""

    lost = False

    def publish(self, name: str, content: pa.Buffer) -> None:
        super().publish(name, content)
        if name.startswith("segments/") and not self.lost:
            self.lost = True
            raise LogError("no answer")


def test_a_publish_whose_answer_is_lost_counts(world: World, fill: Any) -> None:
    fill(10)
    order = world.order(world.driver(), 10)
    assert len(world.task(order, Losing(world.store._root))) == 10
    assert world.empty


def test_a_task_of_a_batch_that_is_over_and_removed_receives_nothing(world: World, fill: Any) -> None:
    fill(10)
    order = world.order(world.driver())
    world.store.remove(list(world.store.names("segments")))
    with pytest.raises(Fenced):
        world.task(order)
    assert "ReceiveMessage" not in world.sqs.calls


def test_a_task_that_published_after_its_segment_may_have_been_removed_deletes_nothing(world: World, fill: Any) -> None:
    fill(10)
    order = world.order(world.driver(), 10)
    with pytest.raises(Fenced):
        world.task(order, retention_s=0.0)
    assert sum(world.left.values()) == 10


def test_an_older_drivers_task_is_fenced_by_the_newer_ones_claim(world: World, fill: Any) -> None:
    fill(10)
    order = world.order(world.driver(), 10)
    newer = world.driver()
    assert newer.epoch == order.number
    with pytest.raises(Fenced):
        world.task(order)
    assert "ReceiveMessage" not in world.sqs.calls


def test_a_task_that_is_overtaken_by_a_newer_driver_releases_what_it_holds(world: World, fill: Any) -> None:
    fill(10)
    order = world.order(world.driver(), 10)
    newer: list[Dispatcher] = []
    with pytest.raises(Fenced):
        world.task(order, Meddled(world, lambda: newer.append(world.driver())))
    assert world.left["ApproximateNumberOfMessages"] == 10
    assert [driver.epoch for driver in newer] == [order.number]


def test_a_driver_that_receives_fences_an_older_ones_tasks_too(world: World, fill: Any) -> None:
    fill(10)
    order = world.order(world.driver(), 10)
    staged = StagedLog(world.store)
    staged.take_over(staged.oldest())
    with pytest.raises(Fenced):
        world.task(order)


def test_a_newer_driver_reads_what_an_older_ones_tasks_published_ahead(world: World, fill: Any) -> None:
    """The older planned two segments; its second task is late, and publishes in the newer one's plan."""
    fill(40)
    older = world.driver()
    end = world.planned(older, 20_000)
    fenced, late = older.tasks(Position(0), end.position, NO_LIMIT).orders
    newer = world.driver()
    assert newer.epoch == fenced.number
    assert sorted(world.task(late)) == bodies(40)
    assert sorted(world.batch(newer, 1)) == bodies(40)
    with pytest.raises(Fenced):
        world.task(fenced)


def test_a_newer_drivers_replay_takes_what_is_there_and_receives_the_rest(world: World, fill: Any) -> None:
    """The older driver died amid a batch: one of its three tasks, the middle one, had published."""
    fill(15)
    older = world.driver()
    end = world.planned(older, 30_000)
    _, middle, _ = older.tasks(Position(0), end.position, NO_LIMIT).orders
    assert len(world.task(middle)) == 15
    fill(7)
    newer = world.driver(Position(0))  # its claim takes the place of the third
    tasks = newer.tasks(Position(0), end.position, NO_LIMIT)
    assert [[part.number for part in task] for task in tasks.staged] == [[middle.number]]
    (again,) = tasks.orders
    assert len(world.task(again)) == 7
    world.given = end
    assert newer.planned(world.given, NO_LIMIT) is not None
    assert world.batch(newer, 1) == []
    assert world.given.totals.messages == 22
    assert world.empty


def test_gaps_of_a_plan_that_nobody_follows_are_closed(world: World, fill: Any) -> None:
    """Planned, one task published, but never in Spark's offsets: the next driver begins before it."""
    fill(15)
    older = world.driver()
    end = world.planned(older, 20_000)
    first, second = older.tasks(Position(0), end.position, NO_LIMIT).orders
    assert len(world.task(second)) == 15
    assert sorted(world.batch(world.driver(Position(0)), 0)) == bodies(15)
    with pytest.raises(Fenced):
        world.task(first)


def test_totals_lag_by_a_batch_and_go_on_over_restarts(world: World, fill: Any) -> None:
    seen = []
    for count in (10, 20, 30):
        fill(count)
        world.batch(world.driver(), count)
        seen.append(Offset.parse(world.given.json()).totals.messages)
    seen.append(world.planned(world.driver(), 1).totals.messages)
    assert seen == [0, 10, 30, 60]


def test_a_driver_that_receives_goes_on_counting(world: World, fill: Any) -> None:
    """`mode` was executors, and is driver now."""
    for count in (10, 20):
        fill(count)
        world.batch(world.driver(), count)
    staged = StagedLog(world.store)
    staged.take_over(world.given.position, world.given)
    assert staged.log.offset(world.given.position).totals.messages == 30
    assert staged.log.offset(staged.log.end).totals.size == 180


def test_batches_by_limits_take_no_more_and_no_message_twice(world: World, fill: Any) -> None:
    fill(100)
    driver = world.driver()
    found = [world.batch(driver, 100, Admission(messages=33)) for _ in range(4)]
    assert [len(part) for part in found] == [33, 33, 33, 1]
    assert sorted(body for part in found for body in part) == bodies(100)


def test_a_run_that_ends_takes_what_was_there_at_its_start(world: World, fill: Any) -> None:
    fill(100)
    driver = world.driver(ending=True)
    assert len(world.batch(driver, 40, Admission(messages=30))) == 30
    assert len(world.batch(driver, 60, Admission(messages=30))) == 10
    assert driver.planned(world.given, NO_LIMIT) is None


def test_nothing_visible_is_no_batch(world: World) -> None:
    assert world.driver().planned(world.given, NO_LIMIT) is None


def test_the_depth_of_a_queue_is_asked_anew_for_each_batch(world: World, fill: Any) -> None:
    fill(7)
    depth = Depth(world.client, world.options)
    assert depth.visible(Position(0)) == 7
    fill(5)
    assert depth.visible(Position(1)) == 12
    fill(3)
    assert depth.visible(Position(1)) == 12  # it was asked within the last second


def test_a_queue_that_is_not_there_is_said_to_the_driver(world: World) -> None:
    del world.sqs.queues["q"]
    depth = Depth(world.client, replace(world.options, delete=False))
    with pytest.raises(QueueRefused, match="QueueDoesNotExist"):
        depth.visible(Position(0))


def test_old_segments_and_their_notes_go_once_they_are_counted(world: World, fill: Any) -> None:
    driver = world.driver()
    for _ in range(4):
        fill(3)
        world.batch(driver, 3)
    lowest = world.given.counted.segment - 1
    assert driver.retain(world.given, retention_s=-2) == lowest
    assert min(deletions(world.store, 0)) == lowest
    fill(3)
    assert len(world.batch(driver, 3)) == 3


def test_a_segment_that_is_gone_is_an_error(world: World, fill: Any) -> None:
    fill(3)
    driver = world.driver()
    world.batch(driver, 3)
    world.store.remove([segment_name(world.given.position.segment - 1)])
    with pytest.raises(SegmentMissing):
        world.planned(driver, 1)
    with pytest.raises(SegmentMissing):
        driver.tasks(Position(0), world.given.position, NO_LIMIT)


def test_a_refusal_fails_the_task_and_releases(world: World, fill: Any) -> None:
    fill(100)
    order = world.order(world.driver(), 100)
    world.sqs.script.add({"action": "ReceiveMessage", "status": 403, "code": "AccessDenied", "skip": 2})
    with pytest.raises(QueueRefused, match="AccessDenied"):
        world.task(order)
    assert world.left["ApproximateNumberOfMessages"] == 100


def test_trouble_loses_and_doubles_nothing(world: World, fill: Any) -> None:
    fill(500)
    for action, how in (("ReceiveMessage", "refuse"), ("DeleteMessageBatch", "lose"), ("DeleteMessageBatch", "refuse")):
        world.sqs.script.add({"action": action, "how": how, "count": 3, "skip": 2})
    driver = world.driver()
    found: list[str] = []
    while not world.empty:
        found += world.batch(driver, 500)
    assert sorted(found) == bodies(500)


def test_without_deletion_messages_stay_and_are_read_once(world: World, fill: Any) -> None:
    fill(30)
    world.options = replace(world.options, delete=False)
    driver = world.driver()
    assert sorted(world.batch(driver, 30)) == bodies(30)
    redelivered(world)
    assert world.batch(driver, 30) == []
    assert sum(world.left.values()) == 30


def test_a_segment_says_that_a_task_published_it(world: World, fill: Any) -> None:
    fill(3)
    order = world.order(world.driver(), 3)
    world.task(order)
    header = header_of(world.store.read(segment_name(order.number), HEAD_BYTES))
    assert (header.planned, header.messages, header.size, header.epoch) == (True, 3, 18, order.epoch)


def test_a_view_of_the_log_ends_where_tasks_are_at_work_and_a_receiver_does_not_begin_there(
    world: World, fill: Any
) -> None:
    fill(9)
    driver = world.driver()
    end = world.planned(driver, 20_000)
    _, second = driver.tasks(Position(0), end.position, NO_LIMIT).orders
    world.task(second)
    assert StagedLog(world.store).view().end == Position(1)
    with pytest.raises(LogError, match="executors"):
        StagedLog(world.store).take_over(Position(0))
