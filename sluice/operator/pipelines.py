"""Connects to a pipeline: a deployed site's jobs function, or local processes on the embedded cloud."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from sluice.aws.clients import now_ms
from sluice.aws.connections import Connection, build_program_variables
from sluice.aws.deployment import get_output, read_stack_outputs
from sluice.errors import BadConfiguration
from sluice.local.cloud import BUILD, FOLDER
from sluice.local.jobs import JOBS_FOLDER, LocalRuns
from sluice.local.pipeline import LocalPipeline, local_settings
from sluice.operations import Operation, R, parse_request
from sluice.operator.functions import ControlClient
from sluice.pipeline.jobs import JOBS, SqsEndpoint
from sluice.pipeline.operations import JobOutcome, StartBatch, StartLand
from sluice.pipeline.runs import JobStep
from sluice.stages import add_stage_prefix

STACK = "SluicePipeline"
WAIT_INTERVAL_S = 10.0
MAX_WAITS = 60  # Starting a job waits at most this often, ten minutes in all, which is enough for new VPC endpoints.
MAX_STREAMS = 100  # A request to CloudWatch Logs can name at most this number of log streams.
FUNCTION = STACK, "JobsFunctionName"
QUEUE_VARIABLE = "SLUICE_QUEUE_URL"  # `sluice split run` sets this environment variable.
RUN_LOCAL_FOLDER = BUILD / "pipeline"


class NoQueue(BadConfiguration):
    """Raised if no queue is given for a local Spark job to read."""


class PipelineClient(Protocol):
    """A deployed or local pipeline. Commands start, stop and show its Spark jobs."""

    def ask(self, operation: Operation[R], /) -> R:
        """Apply an operation of `sluice.pipeline.operations`. Raises `RequestRefused`, `CallFailed` or `NoSpark`."""

    def read_log(self, run_id: str, *, lines: int) -> str:
        """Read the last lines of the log of a job's run."""


@dataclass(frozen=True, slots=True)
class DeployedPipeline(ControlClient):
    """A deployed site's pipeline: invokes the jobs function and reads the jobs' log group."""

    log_group: str

    def read_log(self, run_id: str, *, lines: int) -> str:
        """Read the last lines of the log of a job's run; empty before the Spark driver's first output."""
        # The name of a log stream is the application, the run and the worker, perhaps after a prefix.
        listed = self.connection.pages("logs", "describe_log_streams", logGroupName=self.log_group)
        names = [stream["logStreamName"] for page in listed for stream in page["logStreams"]]
        streams = [name for name in names if run_id in name.split("/")][:MAX_STREAMS]
        if not streams:
            return ""
        pages = self.connection.pages("logs", "filter_log_events", logGroupName=self.log_group, logStreamNames=streams)
        log_lines = [event["message"].rstrip("\n") for page in pages for event in page["events"]]
        return "\n".join(log_lines[-lines:])


def connect_pipeline(
    connection: Connection, *, folder: Path | None, python: str | None, outputs: Mapping[str, str] | None = None
) -> PipelineClient:
    """Connect to the site's pipeline. With a `folder`, its jobs are local processes that store their data there.

    Raises `NotUsable`.
    """
    outputs = read_stack_outputs(connection, STACK) if outputs is None else outputs
    if folder is None:
        return DeployedPipeline(connection, get_output(outputs, *FUNCTION), outputs.get("JobLogGroupName", ""))
    settings = local_settings(
        folder, queue_url=outputs["QueueUrl"], ingress_url=outputs["IngressUrl"], sqs_endpoint=find_endpoint(connection)
    )
    runs = LocalRuns(folder=folder, given_python=python, variables=build_program_variables(connection))
    return LocalPipeline.create(runs, settings, now_ms)


def find_jobs_folder(connection: Connection) -> Path:
    """Return the data folder of a local site's Spark jobs. It is deleted together with the embedded cloud's state."""
    account = connection.client("sts").get_caller_identity()["Account"]
    return FOLDER / JOBS_FOLDER / add_stage_prefix(f"{account}-{connection.region}", connection.stage)


def find_endpoint(connection: Connection) -> SqsEndpoint:
    """Return the region and the endpoint of SQS for Spark jobs that run on this machine."""
    return SqsEndpoint(region=connection.region, endpoint=connection.endpoint_url)


def queue_url(option: str | None, connection: Connection, *, local: bool) -> str:
    """Return the URL of the queue that a local Spark job reads.

    Raises `NoQueue` if none is given for a deployed site, because that site's pipeline consumes the main queue.
    """
    url = option or os.environ.get(QUEUE_VARIABLE)
    if url:
        return url
    if not local:
        raise NoQueue(
            "no queue to read: a deployed site's queue has its own consumer; pass --queue-url, or use"
            f" `sluice split run -- sluice pipeline run-local`, which sets {QUEUE_VARIABLE}"
        )
    return read_stack_outputs(connection, STACK)["QueueUrl"]


def start_job(
    pipeline: PipelineClient,
    operation: StartLand | StartBatch,
    *,
    sleep: Callable[[float], None],
    tell: Callable[[str], None],
) -> JobOutcome:
    """Start a Spark job. If a batch job must wait for a run to end or for VPC endpoints, repeat the request.

    The jobs function would not start a batch job later. It stores only the land job's desired state. Raises the errors
    of `ask`.
    """
    outcome = pipeline.ask(operation)
    for _ in range(MAX_WAITS):
        if isinstance(operation, StartLand) or outcome.step is not JobStep.WAIT:
            break
        tell(f"{outcome.job}: {outcome.reason}")
        sleep(WAIT_INTERVAL_S)
        outcome = pipeline.ask(operation)
    return outcome


def parse_start_operation(job: str, fields: Mapping[str, Any]) -> "StartLand | StartBatch":
    """Parse the parameters of a Spark job to start. Raises `BadConfiguration` or `BadRequest`."""
    if job not in JOBS:
        raise BadConfiguration(f"no such job: {job}; there are {', '.join(JOBS)}")
    operation: StartLand | StartBatch = parse_request({"op": f"start-{job}", **fields}, StartLand | StartBatch)
    return operation
