"""Which pipeline a command asks: a deployed site's jobs function, or local processes on the embedded cloud."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from sluice.aws.clients import now_ms
from sluice.aws.operator.connections import Connection, program_variables
from sluice.aws.operator.control_client import ControlClient
from sluice.aws.operator.deployment import output, stack_outputs
from sluice.aws.operator.job_logs import JobLogs
from sluice.cli.site_names import SiteOptions
from sluice.errors import BadConfiguration
from sluice.local.cloud import BUILD, FOLDER
from sluice.local.jobs import JOBS_FOLDER, LocalRuns
from sluice.local.pipeline import LocalPipeline, settings
from sluice.operations import Operation, R
from sluice.pipeline.jobs import Reach
from sluice.stages import staged

STACK = "SluicePipeline"
FUNCTION = STACK, "JobsFunctionName"
QUEUE_VARIABLE = "SLUICE_QUEUE_URL"  # as `sluice split run` sets it
RUN_LOCAL_FOLDER = BUILD / "pipeline"


class NoQueue(BadConfiguration):
    """A local job isn't told which queue to read."""


class AskedPipeline(Protocol):
    """What answers a command."""

    def ask(self, operation: Operation[R], /) -> R:
        """Ask for one of `sluice.pipeline.operations`. Raises `RequestRefused`, `CallFailed` or `NoSpark`."""

    def text(self, run_id: str, *, lines: int) -> str:
        """Read the end of a run's log."""


@dataclass(frozen=True, slots=True)
class DeployedPipeline:
    """A site's."""

    client: ControlClient
    logs: JobLogs

    def ask(self, operation: Operation[R], /) -> R:
        """Ask the jobs function. Raises `RequestRefused`, or `CallFailed`."""
        return self.client.ask(operation)

    def text(self, run_id: str, *, lines: int) -> str:
        """Read from the jobs' log group."""
        return self.logs.text(run_id, lines=lines)


def pipeline(site: SiteOptions, *, python: str | None) -> AskedPipeline:
    """Find the one that the options mean. Raises `NotUsable` where it isn't deployed."""
    connection = site.connect()
    return pipeline_of(connection, folder=site_folder(connection) if site.is_local else None, python=python)


def pipeline_of(
    connection: Connection, *, folder: Path | None, python: str | None, outputs: Mapping[str, str] | None = None
) -> AskedPipeline:
    """Find the site's; with a `folder` its jobs are processes that keep everything there. Raises `NotUsable`."""
    outputs = stack_outputs(connection, STACK) if outputs is None else outputs
    if folder is None:
        client = ControlClient(connection, output(outputs, *FUNCTION))
        return DeployedPipeline(client, JobLogs(connection.client("logs"), outputs.get("JobLogGroupName", "")))
    told = settings(
        folder, queue_url=outputs["QueueUrl"], ingress_url=outputs["IngressUrl"], reach=reach_of(connection)
    )
    runs = LocalRuns(folder=folder, given_python=python, variables=program_variables(connection))
    return LocalPipeline.of(runs, told, now_ms)


def site_folder(connection: Connection) -> Path:
    """Where the jobs of a site of the embedded cloud keep what they keep: it goes with the cloud's own state."""
    account = connection.client("sts").get_caller_identity()["Account"]
    return FOLDER / JOBS_FOLDER / staged(f"{account}-{connection.region}", connection.stage)


def reach_of(connection: Connection) -> Reach:
    """For jobs that run here."""
    return Reach(region=connection.region, endpoint=connection.endpoint_url)


def queue_url(given: str | None, connection: Connection, *, local: bool) -> str:
    """Find the queue of a local job. Raises `NoQueue`: a deployed site's main queue has its own consumer."""
    said = given or os.environ.get(QUEUE_VARIABLE)
    if said:
        return said
    if not local:
        raise NoQueue(
            f"which queue? `sluice split run -- sluice pipeline run-local` sets {QUEUE_VARIABLE}; or pass --queue-url"
        )
    return stack_outputs(connection, STACK)["QueueUrl"]
