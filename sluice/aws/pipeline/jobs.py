"""Job runs on EMR Serverless: `sluice.pipeline.operations.Runs`, and what is wanted of them, kept in a table."""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from botocore.exceptions import ClientError

from sluice.aws.clients import calls, error_code
from sluice.pipeline.jobs import Job
from sluice.pipeline.operations import Wanted, Wish
from sluice.pipeline.runs import LIVE, Run, RunName, State, request
from sluice.pipeline.schedule import moment

if TYPE_CHECKING:  # boto3-stubs are for the type checker: bundles don't hold them
    from mypy_boto3_dynamodb import DynamoDBClient

LISTED_FOR = timedelta(days=7)
PAGE = 50
GONE = frozenset({"ValidationException", "ResourceNotFoundException", "ConflictException"})


@dataclass(frozen=True, slots=True, kw_only=True)
class EmrRuns:
    """The runs of one application. `client` is one of `emr-serverless`."""

    client: Any
    application_id: str
    role_arn: str

    def all(self, *, now_ms: int) -> Sequence[Run]:
        """See the port. Runs of others' jobs in the same application aren't in it."""
        listed = {run["id"]: run for run in self._pages(states=[state.value for state in LIVE])}
        # The second list is later, so that a run that ended in between is seen as ended.
        listed |= {run["id"]: run for run in self._pages(createdAtAfter=moment(now_ms) - LISTED_FOR)}
        return [run for fields in listed.values() if (run := _run(fields))]

    def start(self, job: Job, *, token: str) -> str:
        """See the port."""
        arguments = request(job, application_id=self.application_id, role_arn=self.role_arn, token=token)
        with calls("StartJobRun"):
            return str(self.client.start_job_run(**arguments)["jobRunId"])

    def cancel(self, run_id: str, *, grace_s: int) -> None:
        """See the port."""
        with calls("CancelJobRun"), _ended_is_fine():
            self.client.cancel_job_run(
                applicationId=self.application_id, jobRunId=run_id, shutdownGracePeriodInSeconds=grace_s
            )

    def _pages(self, **only: Any) -> Iterator[dict[str, Any]]:
        with calls("ListJobRuns"):
            pages = self.client.get_paginator("list_job_runs").paginate(
                applicationId=self.application_id, PaginationConfig={"PageSize": PAGE}, **only
            )
            for page in pages:
                yield from page["jobRuns"]


def _run(fields: dict[str, Any]) -> Run | None:
    name = RunName.parse(fields.get("name") or "")
    if name is None:
        return None
    return Run(
        run_id=fields["id"],
        name=name,
        state=_state(fields["state"]),
        created_at_ms=int(fields["createdAt"].timestamp() * 1000),
        ended_at_ms=int(fields["updatedAt"].timestamp() * 1000),
        detail=fields.get("stateDetails") or "",
    )


def _state(text: str) -> State:
    try:
        return State(text)
    except ValueError:
        return State.RUNNING  # a state that is new to us: as long as it isn't known to have ended, it may write


@contextlib.contextmanager
def _ended_is_fine() -> Iterator[None]:
    try:
        yield
    except ClientError as error:
        if error_code(error) not in GONE:
            raise


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamoWishes:
    """One item of a table: `sluice.pipeline.operations.Wishes`."""

    client: "DynamoDBClient"
    table: str

    def load(self) -> Wish | None:
        """See the port."""
        with calls("GetItem"):
            item = self.client.get_item(TableName=self.table, Key=dict(KEY), ConsistentRead=True).get("Item")
        return Wish(wanted=Wanted(item["wanted"]["S"]), since=item["since"]["S"]) if item else None

    def save(self, wish: Wish) -> None:
        """See the port."""
        with calls("PutItem"):
            self.client.put_item(
                TableName=self.table, Item={**KEY, "wanted": {"S": wish.wanted.value}, "since": {"S": wish.since}}
            )


KEY = {"pk": {"S": "wish"}, "sk": {"S": "land"}}
