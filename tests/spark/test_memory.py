"""The receiver's memory is bounded by its byte limit, however slow the staging location is."""

import time
from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Any

import pyarrow as pa
import pytest
from sluice_spark.log.staging import StagedLog
from sluice_spark.log.store import FileStore
from sluice_spark.options import Options
from sluice_spark.source.budget import COPIES, OBJECTS_BYTES
from sluice_spark.source.buffer import BufferLimits
from sluice_spark.source.receiver import Receiver
from sluice_spark.sqs.received import BATCH_LIMIT

from tests.spark.clients import client_of

WITHIN_S = 120
CONNECTIONS = 8
LIMIT = 4 * 2**20


class Stuck(FileStore):
    """Publishes once it is let; the claim at the start goes through."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.let, self.asked = Event(), Event()

    def publish(self, name: str, content: pa.Buffer) -> None:
        if not name.endswith("0.arrow"):
            self.asked.set()
            self.let.wait(WITHIN_S)
        super().publish(name, content)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("body_bytes", [100, 4096, 200_000])
def test_receiving_stops_at_the_byte_limit_while_staging_is_stuck_and_goes_on_after(
    sqs: Any, tmp_path: Path, body_bytes: int
) -> None:
    count = 4 * LIMIT // (body_bytes + OBJECTS_BYTES)
    queue = sqs.queues["q"]
    queue.fill((f"{number:06d}".ljust(body_bytes, "x") for number in range(count)), time.time())
    store = Stuck(tmp_path)
    staged = StagedLog(store)
    staged.take_over(staged.find_oldest_position())
    limits = BufferLimits(segment_bytes=LIMIT // 8, segment_messages=100)
    options = Options(queue_urls=(sqs.queue_url("q"),), connections=CONNECTIONS, wait_s=1, buffer_bytes=LIMIT)
    receiver = Receiver(
        staged, lambda: client_of(sqs, connections=2 * CONNECTIONS), options, until_empty=True, limits=limits
    )
    receiver.start(staged.log.end)
    try:
        _bounded(sqs, receiver, store, body_bytes)
        assert staged.log.count_backlog(staged.find_oldest_position()).messages == count
    finally:
        store.let.set()
        receiver.stop()
        receiver.join(WITHIN_S)


def _bounded(sqs: Any, receiver: Receiver, store: Stuck, body_bytes: int) -> None:
    queue = sqs.queues["q"]
    assert store.asked.wait(WITHIN_S)

    def held() -> int:
        return int(queue.counts(time.time())["ApproximateNumberOfMessagesNotVisible"]) * (body_bytes + OBJECTS_BYTES)

    def still() -> bool:
        receives = sqs.calls["ReceiveMessage"]
        receiver.join(0.5)  # it has time to receive more, and doesn't
        return bool(receives == sqs.calls["ReceiveMessage"])

    until(lambda: held() >= LIMIT // 4 and still())  # what is staged is there as columns, and encoded
    assert held() <= max(LIMIT, COPIES * BATCH_LIMIT * body_bytes)
    store.let.set()
    receiver.join(WITHIN_S)
    receiver.check()
    assert set(queue.counts(time.time()).values()) == {0}
