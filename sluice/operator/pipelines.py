"""Which pipeline an operator asks: a deployed site's jobs function, or local processes on the embedded cloud."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from sluice.aws.clients import calls, now_ms
from sluice.aws.connections import Connection, program_variables
from sluice.aws.deployment import output, stack_outputs
from sluice.errors import BadConfiguration
from sluice.local.cloud import BUILD, FOLDER
from sluice.local.jobs import JOBS_FOLDER, LocalRuns
from sluice.local.pipeline import LocalPipeline, settings
from sluice.operations import Operation, R, request_of
from sluice.operator.functions import ControlClient
from sluice.pipeline.jobs import JOBS, Reach
from sluice.pipeline.operations import StartBatch, StartLand
from sluice.stages import staged

STACK = "SluicePipeline"
MAX_STREAMS = 100  # of one FilterLogEvents
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
class DeployedPipeline(ControlClient):
    """A site's: its jobs function is asked, and the jobs' log group is read."""

    log_group: str

    def text(self, run_id: str, *, lines: int) -> str:
        """Give the last lines of the driver's output of a run; nothing where it hasn't said anything yet."""
        # Streams are named by application, run and worker; a prefix of ours may stand before that.
        listed = self.connection.pages("logs", "describe_log_streams", logGroupName=self.log_group)
        names = [stream["logStreamName"] for page in listed for stream in page["logStreams"]]
        streams = [name for name in names if run_id in name.split("/")][:MAX_STREAMS]
        if not streams:
            return ""
        pages = self.connection.pages("logs", "filter_log_events", logGroupName=self.log_group, logStreamNames=streams)
        said = [event["message"].rstrip("\n") for page in pages for event in page["events"]]
        return "\n".join(said[-lines:])


def pipeline_of(
    connection: Connection, *, folder: Path | None, python: str | None, outputs: Mapping[str, str] | None = None
) -> AskedPipeline:
    """Find the site's; with a `folder` its jobs are processes that keep everything there. Raises `NotUsable`."""
    outputs = stack_outputs(connection, STACK) if outputs is None else outputs
    if folder is None:
        return DeployedPipeline(connection, output(outputs, *FUNCTION), outputs.get("JobLogGroupName", ""))
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


@dataclass(frozen=True, slots=True)
class BucketFiles:
    """The files of a bucket. `client` is boto3's for `s3`."""

    client: Any
    bucket: str

    def names(self, folder: str, *, after: str = "") -> Sequence[str]:
        """See the port: a request for each thousand names."""
        prefix = f"{folder}/"
        pages = self.client.get_paginator("list_objects_v2").paginate(
            Bucket=self.bucket, Prefix=prefix, StartAfter=f"{prefix}{after}", Delimiter="/"
        )
        with calls("ListObjectsV2"):
            return [each["Key"].removeprefix(prefix) for page in pages for each in page.get("Contents", [])]

    def read(self, path: str) -> bytes:
        """See the port."""
        with calls("GetObject"):
            found: bytes = self.client.get_object(Bucket=self.bucket, Key=path)["Body"].read()
        return found


def start_operation(job: str, fields: Mapping[str, Any]) -> "StartLand | StartBatch":
    """Read what is asked of a job. Raises `BadConfiguration`, or `BadRequest`."""
    if job not in JOBS:
        raise BadConfiguration(f"no such job: {job}; there are {', '.join(JOBS)}")
    operation: StartLand | StartBatch = request_of({"op": f"start-{job}", **fields}, StartLand | StartBatch)
    return operation
