"""What the receiver asks for: every queue, whatever the others bring, and nothing while Spark is far behind."""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sluice_spark.log.staging import StagedLog
from sluice_spark.log.store import FileStore
from sluice_spark.options import BUFFER_DEFAULT_BYTES, Options
from sluice_spark.source.buffer import BufferLimits
from sluice_spark.source.receiver import Receiver

from tests.spark.clients import client_of
from tests.spark.test_memory import WITHIN_S, until
from tests.sqs.queues import Queue

CONNECTIONS = 24


@contextmanager
def receiving(
    sqs: Any,
    folder: Path,
    queues: int,
    *,
    buffer_bytes: int = BUFFER_DEFAULT_BYTES,
    store: FileStore | None = None,
    **limits: Any,
) -> Iterator[Receiver]:
    """Of queues q0 and so on."""
    staged = StagedLog(store or FileStore(folder))
    staged.take_over(staged.find_oldest_position())
    urls = tuple(sqs.queue_url(f"q{number}") for number in range(queues))
    options = Options(queue_urls=urls, connections=CONNECTIONS, wait_s=1, buffer_bytes=buffer_bytes)
    receiver = Receiver(
        staged, lambda: client_of(sqs, connections=2 * CONNECTIONS), options, limits=BufferLimits(**limits)
    )
    receiver.start(staged.log.end)
    try:
        yield receiver
        receiver.check()
    finally:
        receiver.stop()
        receiver.join(WITHIN_S)


def made(sqs: Any, count: int) -> list[Queue]:
    names = [f"q{number}" for number in range(count)]
    sqs.queues.update({name: Queue(name) for name in names})
    return [sqs.queues[name] for name in names]


def staged_by(receiver: Receiver) -> int:
    return receiver.staged.log.count_backlog(receiver.staged.find_oldest_position()).messages


def test_large_messages_of_some_queues_keep_no_other_from_being_asked(sqs: Any, tmp_path: Path) -> None:
    """More queues than have room for answers of that size: each still has what comes to it received."""
    queues = made(sqs, 4)
    for queue in queues:
        queue.fill(["x" * 200_000] * 10, time.time())
    with receiving(sqs, tmp_path, len(queues), buffer_bytes=2 * 2**20) as receiver:
        until(lambda: staged_by(receiver) == 40)
        for number, queue in enumerate(reversed(queues), 41):
            queue.fill(["y"], time.time())
            until(lambda number=number: staged_by(receiver) == number)  # type: ignore[misc]  # of each


def test_nothing_is_received_while_spark_is_far_behind_and_all_once_it_is_not(sqs: Any, tmp_path: Path) -> None:
    [queue] = made(sqs, 1)
    queue.fill(map(str, range(20_000)), time.time())
    with receiving(sqs, tmp_path, 1, backlog_messages=1_000, segment_messages=100) as receiver:
        until(lambda: staged_by(receiver) >= 1_000)
        receiver.join(1)  # it has time to receive more, and doesn't
        assert staged_by(receiver) < 5_000
        while (there := staged_by(receiver)) < 20_000:
            receiver.record_planned(receiver.staged.log.end)
            until(lambda there=there: staged_by(receiver) > there)  # type: ignore[misc]  # of each
        until(lambda: set(queue.counts(time.time()).values()) == {0})


class SlowStore(FileStore):
    """A store that takes half a second for a file."""

    def publish(self, name: str, content: Any) -> None:
        time.sleep(0.5)
        super().publish(name, content)


def test_what_waits_to_be_staged_counts_as_received_also_by_a_slow_store(sqs: Any, tmp_path: Path) -> None:
    [queue] = made(sqs, 1)
    queue.fill(map(str, range(20_000)), time.time())
    slow = SlowStore(tmp_path)
    with receiving(sqs, tmp_path, 1, store=slow, backlog_messages=1_000, segment_messages=100) as receiver:
        until(lambda: staged_by(receiver) >= 1_000)
        receiver.join(1)  # it has time to stage more, and has nothing
        in_flight_at_most = CONNECTIONS * 10
        assert staged_by(receiver) <= 1_000 + in_flight_at_most


class Killed(Exception):
    """What a signal raises, wherever a thread is."""


@pytest.mark.parametrize("after", range(12))
def test_who_is_killed_amid_stopping_it_keeps_no_receiver_from_its_end(sqs: Any, tmp_path: Path, after: int) -> None:
    """Spark stops a source, and ends its process with a signal at the same time: the receiver must not stay."""
    made(sqs, 1)
    with receiving(sqs, tmp_path, 1) as receiver:
        events = iter(range(after))

        def trace(*_: Any) -> Any:
            if next(events, None) is None:
                raise Killed
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            receiver.stop()
        except Killed:  # not suppress(): that would be killed, too
            pass
        finally:
            sys.settrace(before)
        stopping = threading.Thread(target=receiver.stop, daemon=True)
        stopping.start()
        stopping.join(WITHIN_S)
        assert not stopping.is_alive()
