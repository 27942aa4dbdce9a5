"""A task of `mode=executors`, in its own process: what it holds is bounded, whatever comes after small messages."""

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from sluice_spark.options import BUFFER_DEFAULT_BYTES

ROOT = Path(__file__).parents[2]
ALL_BYTES = 300 * 2**20
TASK = """
import sys
from pathlib import Path
from sluice_spark.log.planning import Offset, Position
from sluice_spark.log.planning import Admission
from sluice_spark.log.segments import rows_of
from sluice_spark.log.store import FileStore
from sluice_spark.source.dispatching import Dispatcher
from sluice_spark.source.executors import segment
from sluice_spark.options import Options
from tests.spark.clients import client_at
from tests.spark.test_executors import Counted

def peak_bytes():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))

server, queue_url, staging = sys.argv[1:]
client = lambda: client_at(server, connections=512)
options = Options(queue_urls=(queue_url,), connections=64)
depth = Counted()
depth.last = 1
driver, given = Dispatcher(FileStore(Path(staging)), depth, Position(0)), Offset(position=Position(0))
for _ in range(2):  # the first has small messages, and brings what a task imports
    end = driver.planned(given, Admission())
    [order] = driver.tasks(given.position, end.position, Admission()).orders
    before = peak_bytes()
    rows = rows_of(segment(order, driver._store, client, options))
    given = end
print(peak_bytes() - before, rows.num_rows)
"""


@pytest.mark.parametrize("size", [pytest.param(2**20, marks=pytest.mark.slow), 256 * 2**10])
def test_a_task_grows_by_what_it_may_hold(sqs: Any, tmp_path: Path, fill: Any, size: int) -> None:
    fill(15_000)  # the first task has 10,000 of them
    body = "x" * (size - 6)
    sqs.queues["q"].fill((f"{number:06d}{body}" for number in range(ALL_BYTES // size)), time.time())
    told = subprocess.run(
        [sys.executable, "-c", TASK, sqs.url, sqs.queue_url("q"), str(tmp_path / "log")],
        env={"PYTHONPATH": f"{ROOT}:{ROOT / 'spark'}"},
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    ).stdout
    grown, messages = map(int, told.split())
    assert messages > 5_000
    assert grown < 2 * BUFFER_DEFAULT_BYTES  # what malloc keeps included
