"""The pipeline on the embedded cloud: from the deployed main queue into tables, by the jobs on local Spark."""

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from sluice.aws.clients import now_ms
from sluice.aws.operator.deployment import stack_outputs
from sluice.cli.pipeline.pipelines import STACK, reach_of, variables_of
from sluice.local.jobs import LocalRuns
from sluice.local.pipeline import LocalPipeline, settings
from sluice.pipeline.operations import DrainQueue, ShowPipeline, StartLand, StopJob
from tests.deployed import Deployed

pytestmark = [
    pytest.mark.slow,  # `make test-slow` makes Spark first
    pytest.mark.timeout(900),  # Spark starts five times
]

WITHIN_S = 180
VISIBLE_AGAIN_S = 20  # what a killed job was being sent while it died
BATCH = 10
KILLS, PART = 3, 150


class Landing:
    """The site's jobs, and what has landed."""

    def __init__(self, deployed: Deployed, folder: Path) -> None:
        self.sqs, self.folder = deployed.sqs, folder
        self.outputs = stack_outputs(deployed.connection, STACK)
        told = settings(
            folder,
            queue_url=self.outputs["QueueUrl"],
            ingress_url=self.outputs["IngressUrl"],
            reach=reach_of(deployed.connection),
        )
        runs = LocalRuns(folder=folder, given_python=None, variables=variables_of(deployed.connection))
        self.asked = LocalPipeline.of(runs, told, now_ms)
        self.sqs.set_queue_attributes(
            QueueUrl=self.outputs["QueueUrl"], Attributes={"VisibilityTimeout": str(VISIBLE_AGAIN_S)}
        )

    def send(self, url: str, first: int, number: int) -> set[str]:
        bodies = [json.dumps({"n": n}) for n in range(first, first + number)]
        for start in range(0, number, BATCH):
            entries: Any = [{"Id": str(n), "MessageBody": body} for n, body in enumerate(bodies[start : start + BATCH])]
            assert not self.sqs.send_message_batch(QueueUrl=url, Entries=entries).get("Failed")
        return set(bodies)

    def has_more_than(self, number: int) -> bool:
        return len(self.landed()) > number

    def landed(self) -> list[str]:
        """Bodies, of the files that the tables' log names: each row counts."""
        table = self.folder / "tables" / "messages"
        files: set[str] = set()
        for version in sorted((table / "_delta_log").glob("*.json")):
            actions = [json.loads(line) for line in version.read_text().splitlines()]
            files |= {action["add"]["path"] for action in actions if "add" in action}
            files -= {action["remove"]["path"] for action in actions if "remove" in action}
        return [
            body for file in files for body in pq.ParquetFile(table / file).read(columns=["body"])["body"].to_pylist()
        ]

    def state(self, run_id: str) -> str:
        [state] = [run.state for run in self.asked.ask(ShowPipeline()).runs if run.run == run_id]
        return str(state)

    def kill(self, run_id: str) -> None:
        record = json.loads((self.folder / "runs" / f"{run_id}.json").read_text())
        os.killpg(record["pid"], signal.SIGKILL)
        until(lambda: self.state(run_id) == "FAILED")


def until(holds: Callable[[], Any]) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.2)


@pytest.fixture
def landing(deployed: Deployed, tmp_path: Path) -> Iterator[Landing]:
    found = Landing(deployed, tmp_path / "site")
    yield found
    found.asked.ask(StopJob())


def test_what_is_sent_lands_once_over_three_kills_restarts_and_a_drain(landing: Landing) -> None:
    url, sent = landing.outputs["QueueUrl"], set[str]()
    for part in range(KILLS):
        sent |= landing.send(url, part * PART, PART)
        run = landing.asked.ask(StartLand()).run
        assert landing.asked.ask(StartLand()).step == "keep"
        until(partial(landing.has_more_than, part * PART))  # some of it, or all
        landing.kill(run)
    last = landing.asked.ask(StartLand()).run
    until(lambda: len(landing.landed()) >= KILLS * PART)
    sent |= landing.send(url, KILLS * PART, PART)
    drain = landing.asked.ask(DrainQueue()).run
    until(lambda: landing.state(drain) != "RUNNING")
    assert (landing.state(last), landing.state(drain)) == ("CANCELLED", "SUCCESS"), landing.asked.text(drain, lines=50)
    assert sorted(landing.landed()) == sorted(sent)
