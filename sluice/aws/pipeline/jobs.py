"""Job runs on EMR Serverless, and their desired states in DynamoDB: adapters for the ports of `pipeline.reconciler`."""

from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

import msgspec
from botocore.exceptions import ClientError

from sluice.aws.client_types import DynamoDBClient
from sluice.aws.clients import calls, get_error_code
from sluice.aws.items import get_item
from sluice.pipeline.jobs import Job, JobMode
from sluice.pipeline.runs import DESIRED_STATE, LIVE, DesiredState, Run, build_start_request
from sluice.pipeline.schedule import convert_to_utc

LISTED_FOR = timedelta(days=7)
PAGE = 50
GONE = frozenset({"ValidationException", "ResourceNotFoundException", "ConflictException"})


class EmrRuns(msgspec.Struct, frozen=True, kw_only=True):
    """The job runs of an EMR Serverless application. `client` is boto3's client of `emr-serverless`."""

    client: Any
    application_id: str
    role_arn: str

    def list_runs(self, *, now_ms: int) -> Sequence[Run]:
        """List all live runs that Sluice has started, and those that ended in the last days. Raises `CallFailed`."""
        listed = {run["id"]: run for run in self._list_pages(states=[state.value for state in LIVE])}
        # The second list replaces the first, so that a run that ended in between counts as ended.
        listed |= {run["id"]: run for run in self._list_pages(createdAtAfter=convert_to_utc(now_ms) - LISTED_FOR)}
        return [run for fields in listed.values() if (run := Run.parse(fields))]

    def start(self, job: Job, *, token: str) -> str:
        """Start a job run, once for each token, and return the run's id. Raises `CallFailed`."""
        arguments = build_start_request(job, application_id=self.application_id, role_arn=self.role_arn, token=token)
        with calls("StartJobRun"):
            return str(self.client.start_job_run(**arguments)["jobRunId"])

    def cancel(self, run_id: str, *, grace_s: int) -> None:
        """Cancel a live run, which is killed after the grace period. Raises `CallFailed`."""
        with calls("CancelJobRun"):
            try:
                self.client.cancel_job_run(
                    applicationId=self.application_id, jobRunId=run_id, shutdownGracePeriodInSeconds=grace_s
                )
            except ClientError as error:
                if get_error_code(error) not in GONE:
                    raise

    def _list_pages(self, **only: Any) -> Iterator[dict[str, Any]]:
        """List runs mode by mode: AWS doesn't document a list without a mode, and a missed stream would start twice.

        https://docs.aws.amazon.com/emr-serverless/latest/APIReference/API_ListJobRuns.html
        """
        for mode in JobMode:
            with calls("ListJobRuns"):
                pages = self.client.get_paginator("list_job_runs").paginate(
                    applicationId=self.application_id, mode=mode.value, PaginationConfig={"PageSize": PAGE}, **only
                )
                for page in pages:
                    yield from page["jobRuns"]


class DynamoDesiredStates(msgspec.Struct, frozen=True, kw_only=True):
    """Stores the desired states in one item of a table: an adapter for `sluice.pipeline.reconciler.DesiredStates`."""

    client: DynamoDBClient
    table: str

    def load(self) -> DesiredState | None:
        """Read the last desired state. Raises `CallFailed`, and `BadSnapshot` if another format version wrote it."""
        item = get_item(self.client, self.table, KEY)
        return DESIRED_STATE.from_text(item["value"]["S"]) if item else None

    def save(self, state: DesiredState) -> None:
        """Replace the stored desired state. Raises `CallFailed`."""
        with calls("PutItem"):
            self.client.put_item(TableName=self.table, Item={**KEY, "value": {"S": DESIRED_STATE.text(state)}})


KEY = {"pk": {"S": "desired-state"}, "sk": {"S": "land"}}
