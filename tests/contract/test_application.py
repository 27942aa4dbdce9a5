"""A pipeline's application and network are at rest before their stack goes: through stubbed clients."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, cast

import boto3
import pytest
from botocore.stub import ANY, Stubber

from sluice.aws.connections import Connection
from sluice.operator.deployments import MAX_POLLS, POLL_INTERVAL_S, NotStopped, end_application
from sluice.pipeline.jobs import JobMode

TIME = datetime(2026, 11, 24, tzinfo=UTC)
DESCRIBED = {"applicationId": "app", "arn": "a" * 60, "createdBy": "c" * 20, "executionRole": "r" * 20}


class Emr:
    """EMR Serverless, whose answers are given beforehand; botocore checks each request by its own model."""

    def __init__(self) -> None:
        self._client: Any = boto3.client(
            "emr-serverless", region_name="eu-central-1", aws_access_key_id="t", aws_secret_access_key="t"
        )
        self.stub = Stubber(self._client)
        self._ec2: Any = boto3.client(
            "ec2", region_name="eu-central-1", aws_access_key_id="t", aws_secret_access_key="t"
        )
        self.network = Stubber(self._ec2)
        self.slept: list[float] = []

    def client(self, service: str) -> Any:
        return self._ec2 if service == "ec2" else self._client

    def has_endpoints(self, *states: str) -> None:
        endpoints = [
            {
                "VpcEndpointId": f"vpce-{number}",
                "ServiceName": "com.amazonaws.r.sqs",
                "State": state,
                "CreationTimestamp": TIME,
            }
            for number, state in enumerate(states)
        ]
        self.network.add_response("describe_vpc_endpoints", {"VpcEndpoints": endpoints})

    def has_run(self, state: str | None) -> None:
        """Say so to the next look: of each mode live ones, and all."""
        fields = {"id": "00g1", "name": "land/3f2a51c09d8e7b64", "stateDetails": "d", "releaseLabel": "l"}
        run = {**DESCRIBED, **fields, "createdAt": TIME, "updatedAt": TIME}
        found = [run | {"state": state}] if state else []
        for runs in (*([[]] * len(JobMode)), found, *([[]] * (len(JobMode) - 1))):
            self.stub.add_response("list_job_runs", {"jobRuns": runs})

    def is_in(self, state: str) -> None:
        application = {
            "applicationId": "app", "arn": "a" * 60, "releaseLabel": "l", "type": "SPARK", "state": state,
            "createdAt": TIME, "updatedAt": TIME,
        }  # fmt: skip
        self.stub.add_response("get_application", {"application": application}, {"applicationId": "app"})

    def end(self) -> None:
        end_application(cast("Connection", self), "app", now_ms=lambda: 0, sleep=self.slept.append)
        self.stub.assert_no_pending_responses()
        self.network.assert_no_pending_responses()


@pytest.fixture
def emr() -> Iterator[Emr]:
    made = Emr()
    with made.stub, made.network:
        yield made


def test_runs_are_cancelled_and_have_ended_before_the_application_is_stopped(emr: Emr) -> None:
    emr.has_run("RUNNING")
    cancelled = {"applicationId": "app", "jobRunId": "00g1", "shutdownGracePeriodInSeconds": ANY}
    emr.stub.add_response("cancel_job_run", {"applicationId": "app", "jobRunId": "00g1"}, cancelled)
    emr.has_run("CANCELLING")
    emr.has_run("CANCELLED")
    emr.is_in("STARTED")
    emr.stub.add_response("stop_application", {}, {"applicationId": "app"})
    emr.is_in("STOPPING")
    emr.is_in("STOPPED")
    emr.has_endpoints()
    emr.end()
    assert emr.slept == [POLL_INTERVAL_S] * 3


@pytest.mark.parametrize("state", ["CREATED", "STOPPED"])
def test_an_application_at_rest_is_left_as_it_is(emr: Emr, state: str) -> None:
    emr.has_run(None)
    emr.is_in(state)
    emr.has_endpoints()
    emr.end()


def test_endpoints_that_are_left_are_deleted_as_their_network_could_not_be(emr: Emr) -> None:
    emr.has_run(None)
    emr.is_in("STOPPED")
    emr.has_endpoints("available", "deleting")
    emr.network.add_response("delete_vpc_endpoints", {"Unsuccessful": []}, {"VpcEndpointIds": ["vpce-0"]})
    emr.has_endpoints("deleting")
    emr.has_endpoints()
    emr.end()
    assert emr.slept == [POLL_INTERVAL_S] * 2


def test_one_that_goes_on_is_said(emr: Emr) -> None:
    emr.has_run(None)
    emr.is_in("STARTED")
    emr.stub.add_response("stop_application", {}, {"applicationId": "app"})
    for _ in range(MAX_POLLS):
        emr.is_in("STOPPING")
    with pytest.raises(NotStopped, match="application app can't be deleted: it has not stopped"):
        emr.end()
