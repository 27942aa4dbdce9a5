"""The process of a streaming source is within the driver's memory: it has little beside what it may hold."""

import base64
import random
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from sluice_spark.options import BUFFER_DEFAULT_BYTES
from sluice_spark.workers import SOURCE_RUNNER

from tests.spark.with_spark.killed import until
from tests.spark.with_spark.test_source import reader, rows_in
from tests.sqs.queues import Queue

LIMIT_BYTES = BUFFER_DEFAULT_BYTES + 128 * 10**6
ALL_BYTES = 96 * 2**20  # half as much again as it may hold
MIB = 2**20


def runners() -> set[int]:
    """The processes of streaming sources on this machine."""
    return {
        int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal() and SOURCE_RUNNER in said(entry)
    }


def said(process: Path) -> str:
    try:
        return (process / "cmdline").read_text()
    except OSError:
        return ""


def peak_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def noise(size: int, *, wide: bool) -> str:
    """Text of some bytes that doesn't compress; wide has three bytes a character, and two in Python."""
    chance = random.Random(size)
    if wide:
        return "".join(map(chr, chance.choices(range(0x4E00, 0x9FFF), k=size // 3)))
    return base64.b64encode(chance.randbytes(size)).decode()[:size]


def send(queue: Queue, bodies: Iterable[str]) -> None:
    """As a hundred groups, where the queue has groups."""
    for number, body in enumerate(bodies):
        entry = {"MessageBody": body}
        if queue.fifo:
            entry |= {"MessageGroupId": str(number % 100), "MessageDeduplicationId": str(number)}
        queue.send(entry, time.time())


@pytest.mark.parametrize(
    ("name", "size", "wide"),
    [
        ("q", 256 * 2**10, False),
        *[
            pytest.param("q", size, False, marks=pytest.mark.slow)
            for size in (16 * 2**10, 32 * 2**10, 100_000, 150_000, 700_000, MIB)
        ],
        *[pytest.param("q", size, True, marks=pytest.mark.slow) for size in (100_000, 700_000)],
        *[pytest.param("q.fifo", size, False, marks=pytest.mark.slow) for size in (16 * 2**10, 256 * 2**10, MIB)],
        pytest.param("q.fifo", 100_000, True, marks=pytest.mark.slow),
    ],
)
def test_large_messages_leave_it_within_the_limit_and_128_mb(
    spark: Any, sqs: Any, tmp_path: Path, *, name: str, size: int, wide: bool
) -> None:
    body = noise(size, wide=wide)
    count = ALL_BYTES // size
    others = runners()
    queue = sqs.queues[name] = Queue(name)
    url = sqs.queue_url(name)
    frame = reader(spark.readStream, sqs, tmp_path / "staging", queueUrl=url, maxConnections=256).load()
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.start()
    try:
        send(queue, (f"{number:06d}{body[6:]}" for number in range(count)))
        until(lambda: rows_in(query) == count)
        until(lambda: set(queue.counts(time.time()).values()) == {0})
        # By now that of an earlier test's query, which may begin late, has ended.
        until(lambda: len(runners() - others) == 1)
        (source,) = runners() - others
        assert peak_bytes(source) <= LIMIT_BYTES
    finally:
        query.stop()
