"""The pipeline's jobs of a site on local Spark, and what they have landed."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from sluice.aws.clients import now_ms
from sluice.aws.connections import build_program_variables
from sluice.aws.deployment import read_stack_outputs
from sluice.local.jobs import LocalRuns
from sluice.local.pipeline import LocalPipeline, local_settings
from sluice.operator.pipelines import STACK, find_endpoint
from sluice.pipeline.operations import ShowPipeline
from tests.deployed import Deployed, send_all
from tests.waiting import wait_until

WITHIN_S = 180
VISIBLE_AGAIN_S = 20  # what a killed job was being sent while it died


class Landing:
    """The site's jobs, and what has landed."""

    def __init__(self, deployed: Deployed, folder: Path) -> None:
        self.sqs, self.folder = deployed.sqs, folder
        self.outputs = read_stack_outputs(deployed.connection, STACK)
        told = local_settings(
            folder,
            queue_url=self.outputs["QueueUrl"],
            ingress_url=self.outputs["IngressUrl"],
            sqs_endpoint=find_endpoint(deployed.connection),
        )
        runs = LocalRuns(folder=folder, given_python=None, variables=build_program_variables(deployed.connection))
        self.asked = LocalPipeline.create(runs, told, now_ms)
        self.sqs.set_queue_attributes(
            QueueUrl=self.outputs["QueueUrl"], Attributes={"VisibilityTimeout": str(VISIBLE_AGAIN_S)}
        )

    def send(self, url: str, first: int, number: int) -> set[str]:
        bodies = [json.dumps({"n": n}) for n in range(first, first + number)]
        send_all(self.sqs, url, [{"MessageBody": body} for body in bodies])
        return set(bodies)

    def has_more_than(self, number: int) -> bool:
        return len(self.landed()) > number

    def landed(self) -> list[str]:
        """Bodies: each row counts."""
        return [row["body"] for row in self.rows("body")]

    def rows(self, *columns: str, place: str = "tables/messages") -> list[dict[str, str]]:
        """Of the files that the log of the table at this place names."""
        table = self.folder / place
        files: set[str] = set()
        for version in sorted((table / "_delta_log").glob("*.json")):
            actions = [json.loads(line) for line in version.read_text().splitlines()]
            files |= {action["add"]["path"] for action in actions if "add" in action}
            files -= {action["remove"]["path"] for action in actions if "remove" in action}
        return [row for file in files for row in pq.ParquetFile(table / file).read(columns=list(columns)).to_pylist()]

    def state(self, run_id: str) -> str:
        [state] = [run.state for run in self.asked.ask(ShowPipeline()).runs if run.run == run_id]
        return str(state)

    def kill(self, run_id: str) -> None:
        record = json.loads((self.folder / "runs" / f"{run_id}.json").read_text())
        os.killpg(record["pid"], signal.SIGKILL)
        until(lambda: self.state(run_id) == "FAILED")


def until(holds: Callable[[], Any]) -> None:
    wait_until(holds, within_s=WITHIN_S)
