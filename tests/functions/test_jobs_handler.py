"""The jobs function on moto's EMR Serverless: it starts once, restarts what has changed, stops, says how things stand.

moto's runs have ended when they have begun, and it doesn't look at client tokens: tests say which state a run is in.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import boto3
import pytest
from botocore.stub import ANY, Stubber
from moto import mock_aws
from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.emrserverless.models import emrserverless_backends

from functions.jobs import handler as jobs
from sluice.aws.clients import dynamodb_client
from sluice.aws.pipeline.jobs import EmrRuns
from sluice.errors import CallFailed
from tests.functions.conftest import CONTEXT
from tests.tables import make_table
from tests.unit.pipeline.test_jobs import CATALOGUE, VARIABLES

REGION = "eu-central-1"
TABLE = "table"
ROLE = f"arn:aws:iam::{DEFAULT_ACCOUNT_ID}:role/job"


@dataclass
class Deployed:
    """The function, and the application that it looks after."""

    emr: Any
    application_id: str
    monkeypatch: pytest.MonkeyPatch

    def ask(self, op: str, **fields: Any) -> Any:
        return jobs.handler({"op": op, **fields}, CONTEXT)

    def look(self) -> Any:
        return {each["job"]: each["step"] for each in self.ask("reconcile")["result"]}

    def runs(self, job: str = "land") -> list[Any]:
        found = emrserverless_backends[DEFAULT_ACCOUNT_ID][REGION].job_runs.get(self.application_id, [])
        return [run for run in found if str(run.name).startswith(f"{job}/")]

    def states(self, state: str, job: str = "land") -> None:
        for run in self.runs(job):
            if run.state not in {"CANCELLED", "FAILED"}:
                run.state = state

    def deploy(self, **variables: str) -> None:
        for name, value in variables.items():
            self.monkeypatch.setenv(name, value)
        jobs.dependencies.cache_clear()


@pytest.fixture
def deployed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Deployed]:
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    with mock_aws():
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.setenv(name, "test")
        monkeypatch.setenv("AWS_DEFAULT_REGION", REGION)
        dynamodb_client.cache_clear()
        make_table(dynamodb_client(), TABLE)
        emr = boto3.client("emr-serverless")
        # moto doesn't know the labels of Spark's own releases.
        made = emr.create_application(name="a", releaseLabel="emr-7.9.0", type="SPARK", clientToken="t")
        found = Deployed(emr, made["applicationId"], monkeypatch)
        # moto refuses to list the runs of an application that has had none.
        emrserverless_backends[DEFAULT_ACCOUNT_ID][REGION].job_runs[found.application_id] = []
        found.deploy(**VARIABLES | {"APPLICATION_ID": found.application_id, "ROLE_ARN": ROLE})
        yield found
        jobs.dependencies.cache_clear()
        dynamodb_client.cache_clear()


def test_the_first_look_starts_the_stream_and_what_is_due(deployed: Deployed) -> None:
    assert deployed.look() == {"land": "start", "statistics": "start", "compact": "start"}
    [run] = deployed.runs()
    assert run.job_driver["sparkSubmit"]["entryPoint"] == "s3://assets/job.py"
    assert run.job_driver["sparkSubmit"]["entryPointArguments"] == list(CATALOGUE.build_land_job().arguments)
    assert "spark.archives=s3://assets/e.tgz#environment," in run.job_driver["sparkSubmit"]["sparkSubmitParameters"]
    assert run.execution_role_arn == ROLE


def test_a_run_starts_once_its_endpoints_are_there(deployed: Deployed) -> None:
    ec2 = boto3.client("ec2")
    vpc_id = ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
    subnet_id = ec2.create_subnet(VpcId=vpc_id, CidrBlock="10.0.0.0/20")["Subnet"]["SubnetId"]
    group_id = ec2.create_security_group(GroupName="g", Description="d", VpcId=vpc_id)["GroupId"]
    network = {"vpc_id": vpc_id, "subnet_ids": [subnet_id], "group_id": group_id, "services": ["sqs", "logs"]}
    deployed.deploy(ENDPOINTS=json.dumps({**network, "role_arns": [ROLE]}))
    assert deployed.ask("start-land")["result"]["step"] == "wait"
    found = ec2.describe_vpc_endpoints()["VpcEndpoints"]
    assert {each["ServiceName"].rpartition(".")[2] for each in found} == {"sqs", "logs"}
    assert deployed.runs() == []
    assert deployed.look()["land"] == "start"  # moto's endpoints are available at once
    assert len(ec2.describe_vpc_endpoints()["VpcEndpoints"]) == 2


def test_starting_twice_is_safe(deployed: Deployed) -> None:
    assert deployed.ask("start-land")["result"]["step"] == "start"
    deployed.states("RUNNING")
    assert deployed.ask("start-land")["result"]["step"] == "keep"
    assert deployed.look()["land"] == "keep"
    assert len(deployed.runs()) == 1


def test_two_starts_at_once_have_the_same_client_token(deployed: Deployed) -> None:
    deployed.ask("start-land")
    [first] = deployed.runs()
    emrserverless_backends[DEFAULT_ACCOUNT_ID][REGION].job_runs[deployed.application_id] = []  # not listed yet
    deployed.ask("start-land")
    [second] = deployed.runs()
    assert first.client_token == second.client_token


def test_a_changed_job_is_restarted_with_a_grace_period(deployed: Deployed) -> None:
    deployed.ask("start-land")
    deployed.states("RUNNING")
    deployed.deploy(PROGRAM=VARIABLES["PROGRAM"].replace("c.tgz", "new.tgz"))
    assert deployed.look()["land"] == "stop"
    assert [run.state for run in deployed.runs()] == ["CANCELLED"]
    assert deployed.look()["land"] == "start"
    [old, new] = deployed.runs()
    assert "new.tgz" in new.job_driver["sparkSubmit"]["sparkSubmitParameters"]
    assert old.client_token != new.client_token


def test_what_was_stopped_stays_stopped(deployed: Deployed) -> None:
    deployed.ask("start-land")
    deployed.states("RUNNING")
    assert deployed.ask("stop")["result"]["step"] == "stop"
    deployed.deploy(PROGRAM=VARIABLES["PROGRAM"].replace("c.tgz", "new.tgz"))
    assert deployed.look()["land"] == "rest"
    assert len(deployed.runs()) == 1


def test_a_drain_runs_once(deployed: Deployed) -> None:
    assert deployed.ask("drain")["result"]["step"] == "start"
    [run] = deployed.runs()
    assert run.job_driver["sparkSubmit"]["entryPointArguments"][-1] == "--drain"
    assert deployed.look()["land"] == "rest"
    assert deployed.ask("status")["result"]["wanted"] == "stopped"


def test_the_status_says_what_runs(deployed: Deployed) -> None:
    deployed.look()
    deployed.states("RUNNING")
    status = deployed.ask("status")["result"]
    assert json.loads(json.dumps(status)) == status
    assert (status["application"], status["wanted"]) == (deployed.application_id, "running")
    states = {run["job"]: run["state"] for run in status["runs"]}
    assert states == {"land": "RUNNING", "statistics": "SUCCESS", "compact": "SUCCESS"}


def test_runs_of_others_are_left_alone(deployed: Deployed) -> None:
    driver = {"sparkSubmit": {"entryPoint": "s3://theirs"}}
    theirs = deployed.emr.start_job_run(
        applicationId=deployed.application_id, clientToken="t", executionRoleArn=ROLE, jobDriver=driver, name="theirs"
    )
    deployed.ask("start-land")
    deployed.ask("stop")
    assert theirs["jobRunId"] not in {run["run"] for run in deployed.ask("status")["result"]["runs"]}


def test_what_can_t_be_is_said_and_nothing_is_started(deployed: Deployed) -> None:
    assert deployed.ask("stop", job="dance") == {"error": "request: Invalid enum value 'dance' - at `$.job`"}
    assert deployed.ask("dance") == {
        "error": "no such operation: 'dance'; there are reconcile, start-land, start-statistics, start-compact, "
        "start-replay, stop, drain, status"
    }
    assert deployed.runs("dance") == []


def published(capsys: pytest.CaptureFixture[str]) -> list[tuple[str, float]]:
    """The metrics since it was last asked, in their order."""
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines() if '"_aws"' in line]
    return [
        (metric["Name"], line[metric["Name"]][0])
        for line in lines
        for metric in line["_aws"]["CloudWatchMetrics"][0]["Metrics"]
    ]


def test_a_look_says_what_is_wrong_and_what_it_did(deployed: Deployed, capsys: pytest.CaptureFixture[str]) -> None:
    deployed.look()
    assert published(capsys) == [("RunsStarted", 1)] * 3
    deployed.states("FAILED")
    deployed.states("FAILED", "statistics")
    for run in deployed.runs():
        run.updated_at += timedelta(days=1)  # just now, whenever the test runs
    deployed.look()
    assert published(capsys) == [("StreamsDown", 1), ("JobsFailed", 2)]


@pytest.fixture
def stubbed() -> Iterator[tuple[EmrRuns, Stubber]]:
    client = boto3.client("emr-serverless", region_name=REGION, aws_access_key_id="t", aws_secret_access_key="t")
    with Stubber(client) as stub:
        yield EmrRuns(client=client, application_id="app", role_arn=ROLE), stub
        stub.assert_no_pending_responses()


def test_a_start_asks_for_what_moto_doesn_t_look_at(stubbed: tuple[EmrRuns, Stubber]) -> None:
    runs, stub = stubbed
    asked = {
        "applicationId": "app",
        "clientToken": "token",
        "executionRoleArn": ROLE,
        "name": ANY,
        "jobDriver": ANY,
        "tags": ANY,
        "mode": "STREAMING",
        "retryPolicy": {"maxFailedAttemptsPerHour": 5},
        "executionTimeoutMinutes": 0,
    }
    stub.add_response("start_job_run", {"applicationId": "app", "jobRunId": "1", "arn": "a" * 60}, asked)
    assert runs.start(CATALOGUE.build_land_job(), token="token") == "1"


def test_a_cancel_gives_the_run_its_grace_period(stubbed: tuple[EmrRuns, Stubber]) -> None:
    runs, stub = stubbed
    asked = {"applicationId": "app", "jobRunId": "1", "shutdownGracePeriodInSeconds": 120}
    stub.add_response("cancel_job_run", {"applicationId": "app", "jobRunId": "1"}, asked)
    runs.cancel("1", grace_s=120)


def test_a_run_that_has_ended_meanwhile_counts_as_cancelled(stubbed: tuple[EmrRuns, Stubber]) -> None:
    runs, stub = stubbed
    stub.add_client_error("cancel_job_run", "ValidationException")
    runs.cancel("1", grace_s=120)


def test_a_refused_call_is_said_with_its_name(stubbed: tuple[EmrRuns, Stubber]) -> None:
    runs, stub = stubbed
    stub.add_client_error("cancel_job_run", "AccessDeniedException", "no")
    with pytest.raises(CallFailed, match="CancelJobRun: AccessDeniedException"):
        runs.cancel("1", grace_s=120)


def test_runs_of_both_modes_come_from_all_pages_and_new_states_count_as_live(
    stubbed: tuple[EmrRuns, Stubber],
) -> None:
    runs, stub = stubbed

    def page(run_id: str, state: str, **more: Any) -> dict[str, Any]:
        at = datetime(2024, 10, 4, tzinfo=UTC)
        fields = {"id": run_id, "name": "land/d", "state": state, "createdAt": at, "updatedAt": at}
        described = {"applicationId": "app", "arn": "a" * 60, "createdBy": "c" * 20, "executionRole": ROLE}
        return {"jobRuns": [{**described, "stateDetails": "d", "releaseLabel": "l", **fields}], **more}

    live, since = {"states": ANY}, {"createdAtAfter": ANY}
    for mode, only, answer in (
        ("STREAMING", live, page("1", "RUNNING", nextToken="n")),
        ("STREAMING", live | {"nextToken": "n"}, page("2", "THINKING")),
        ("BATCH", live, page("3", "RUNNING")),
        ("STREAMING", since, page("1", "SUCCESS")),
        ("BATCH", since, {"jobRuns": []}),
    ):
        stub.add_response("list_job_runs", answer, {"applicationId": ANY, "mode": mode, "maxResults": ANY} | only)
    found = {run.run_id: run for run in runs.list_runs(now_ms=0)}
    assert {run_id: run.is_live for run_id, run in found.items()} == {"1": False, "2": True, "3": True}
