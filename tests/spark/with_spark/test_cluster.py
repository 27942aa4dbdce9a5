"""On a cluster, whose executors are programs of their own: tasks that fail and have speculative twins, and executors
that are killed, lose and double nothing."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.spark.with_spark.cluster import Cluster, cluster
from tests.spark.with_spark.killed import Drivers, bodies, until
from tests.sqs.queues import Queue

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

MESSAGES = 30_000  # three tasks
EXPECTED = [f"{number:06d}" for number in range(MESSAGES)]
WITHIN_S = 600
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.3",
    "spark.speculation.minTaskRuntime": "100ms",
}


@pytest.fixture
def hosts(spark: Any, tmp_path: Path) -> Iterator[Cluster]:  # spark: it sets the environment that programs inherit
    with cluster(tmp_path) as running:
        yield running


@pytest.fixture
def given(sqs: Any, tmp_path: Path, hosts: Cluster) -> dict[str, Any]:
    sqs.queues["q"] = Queue("q", visibility_s=30.0)
    options = {"queueUrl": sqs.queue_url("q"), "endpoint": sqs.url, "stagingLocation": str(tmp_path / "staging")}
    places = {"checkpoint": str(tmp_path / "checkpoint"), "out": str(tmp_path / "out")}
    return {**hosts.settings, **places, "options": options}


def has_rows(spark: Any, given: dict[str, Any], count: int) -> bool:
    return len(bodies(spark, given)) >= count


def test_a_twin_beside_tasks_that_fail_reads_the_same_rows(  # noqa: PLR0917  fixtures
    spark: Any, sqs: Any, fill: Any, given: Any, drivers: Drivers, tmp_path: Path
) -> None:
    fill(MESSAGES)
    given["conf"] |= SPECULATION
    driver = drivers.start({**given, "twin_in": str(tmp_path)})
    until(lambda: driver.poll() is not None or len(bodies(spark, given)) >= MESSAGES, within_s=WITHIN_S)
    assert (tmp_path / "failed").exists()
    assert (tmp_path / "twin").exists()
    assert bodies(spark, given) == EXPECTED


def test_executors_that_are_killed_lose_and_double_nothing(  # noqa: PLR0917  fixtures
    spark: Any, sqs: Any, fill: Any, given: Any, drivers: Drivers, hosts: Cluster
) -> None:
    """Twice, while there is more to read."""
    given["options"]["maxMessagesPerTrigger"] = "3000"
    fill(MESSAGES)
    driver = drivers.start(given)
    for rows in (3000, 9000):
        until(partial(has_rows, spark, given, rows), within_s=WITHIN_S)
        assert hosts.kill_executors()
    until(lambda: driver.poll() is not None or len(bodies(spark, given)) >= MESSAGES, within_s=WITHIN_S)
    assert bodies(spark, given) == EXPECTED
