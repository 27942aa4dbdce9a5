"""The land job as a program of its own: what it is told, how it is killed, and the table that it leaves."""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.spark.with_spark.driver import kill_session

ENTRY = Path(__file__).parents[3] / "spark" / "sluice_job.py"
WITHIN_S = 180


def told(sqs: Any, place: Path) -> dict[str, str]:
    """What a program is told of this test's queue and places."""
    return {
        "--queue-url": sqs.queue_url("q"),
        "--endpoint": sqs.url,
        "--staging": f"{place}/staging",
        "--checkpoint": f"{place}/checkpoint",
        "--tables": f"{place}/tables",
        "--table-format": "parquet",
        "--quarantine": f"{place}/bad",
        "--trigger-seconds": "0",
    }


def program(arguments: dict[str, str]) -> list[str]:
    return [sys.executable, str(ENTRY), "land", *[each for pair in arguments.items() for each in pair]]


def killed_when(reached: Callable[[], bool], program: list[str], *, within_s: float = WITHIN_S) -> None:
    driver = subprocess.Popen(program, start_new_session=True, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + within_s
    try:
        while not reached():
            assert driver.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        kill_session(driver.pid)
        _, said = driver.communicate()
        sys.stderr.buffer.write(said[-4000:])  # pytest shows it if the test fails


def table_at(place: Path, name: str) -> Any:
    from sluice_jobs.landing import messages_layout, quarantine_layout  # noqa: PLC0415  needs PySpark
    from sluice_jobs.tables import ParquetTable  # noqa: PLC0415  as above

    layout = quarantine_layout() if name.endswith("quarantine") else messages_layout()
    return ParquetTable(f"{place}/{name}", layout)
