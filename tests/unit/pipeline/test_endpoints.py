"""VPC endpoints exist while jobs run: the decisions, without AWS."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from msgspec.structs import replace

from sluice.operations import Operation
from sluice.operator.pipelines import MAX_WAITS, PipelineClient, start_job
from sluice.pipeline.endpoints import EndpointSettings, EndpointState, VpcEndpoint
from sluice.pipeline.operations import (
    DrainQueue,
    JobOutcome,
    ReconcileJobs,
    StartBatch,
    StartLand,
    StartStatistics,
    StopJob,
)
from sluice.pipeline.runs import JobStep, RunState
from tests.unit.pipeline.test_jobs import NOON_MS, SETTINGS, Site

NETWORK = EndpointSettings(
    vpc_id="vpc-1", subnet_ids=("subnet-1",), security_group_id="sg-1", services=("sqs", "logs"), role_arns=("arn:job",)
)
MINUTE_MS = 60_000
IDLE_MS = SETTINGS.limits.idle_timeout_minutes * MINUTE_MS


@dataclass
class FakeEndpoints:
    """A VPC whose new endpoints are available when the test says so."""

    site: Site
    found: dict[str, VpcEndpoint] = field(default_factory=dict)
    tokens: list[str] = field(default_factory=list)

    def list_all(self) -> Sequence[VpcEndpoint]:
        return list(self.found.values())

    def create(self, service: str, settings: EndpointSettings, *, token: str) -> None:
        self.tokens.append(token)
        id_ = f"vpce-{len(self.tokens)}"
        self.found[id_] = VpcEndpoint(
            endpoint_id=id_,
            service=service,
            digest=settings.digest,
            state=EndpointState.PENDING,
            created_at_ms=self.site.at_ms,
        )

    def delete(self, endpoint_ids: Sequence[str]) -> None:
        self.set_state(EndpointState.DELETING, endpoint_ids)

    def set_state(self, state: EndpointState, endpoint_ids: Sequence[str] = ()) -> None:
        for id_ in endpoint_ids or [*self.found]:
            self.found[id_] = replace(self.found[id_], state=state)

    def services(self) -> list[str]:
        return [each.service for each in self.found.values() if each.state is not EndpointState.DELETING]


@dataclass
class Deployment:
    site: Site
    endpoints: FakeEndpoints

    def reconcile(self, *, after_ms: int = MINUTE_MS) -> Sequence[JobOutcome]:
        self.site.at_ms += after_ms
        return self.site.ask(ReconcileJobs())


@pytest.fixture
def deployed() -> Deployment:
    """The default deployment: nothing streams, daily jobs have their times."""
    limits = replace(SETTINGS.limits, streaming=False)
    site = Site(settings=replace(SETTINGS, limits=limits, endpoints=NETWORK))
    site.endpoints = FakeEndpoints(site)
    return Deployment(site, site.endpoints)


def test_a_site_whose_pipeline_was_never_started_has_no_endpoint_and_no_run(deployed: Deployment) -> None:
    for _ in range(3):
        assert [outcome.step for outcome in deployed.reconcile()] == ["rest"]
    deployed.site.ask(StopJob())
    deployed.reconcile()
    assert deployed.endpoints.found == {}
    assert deployed.site.names() == []


def test_the_first_start_creates_the_endpoints_and_a_run_starts_when_they_are_available(deployed: Deployment) -> None:
    waiting = deployed.site.ask(StartLand())
    assert (waiting.step, waiting.run) == ("wait", "")
    assert waiting.reason == "VPC endpoints are not available yet: sqs, logs"
    assert deployed.endpoints.services() == ["sqs", "logs"]
    assert deployed.reconcile()[0].step == "wait"
    assert deployed.endpoints.services() == ["sqs", "logs"]
    deployed.endpoints.set_state(EndpointState.AVAILABLE)
    assert deployed.reconcile()[0].step == "start"


def test_a_drain_waits_for_the_endpoints_too(deployed: Deployment) -> None:
    assert deployed.site.ask(DrainQueue()).step == "wait"
    deployed.endpoints.set_state(EndpointState.AVAILABLE)
    [drain, *_] = deployed.reconcile()
    assert drain.step == "start"
    assert deployed.site.runs.found[drain.run].name.slot


def test_a_batch_that_was_requested_by_hand_starts_at_the_next_request(deployed: Deployment) -> None:
    assert deployed.site.ask(StartStatistics()).step == "wait"
    deployed.reconcile()
    deployed.endpoints.set_state(EndpointState.AVAILABLE)
    assert deployed.site.ask(StartStatistics()).step == "start"


@dataclass
class Client:
    """A pipeline's client whose answers are given beforehand."""

    steps: list[str]
    said: list[str] = field(default_factory=list)

    def ask(self, operation: Operation[Any], /) -> Any:
        return JobOutcome(job="statistics", step=JobStep(self.steps.pop(0)), reason="not yet")

    def read_log(self, run_id: str, *, lines: int) -> str:
        raise NotImplementedError

    def start(self, operation: StartLand | StartBatch) -> str:
        return start_job(cast("PipelineClient", self), operation, sleep=lambda _: None, tell=self.said.append).step


def test_the_command_waits_with_a_batch_job_and_says_for_what() -> None:
    client = Client(["wait", "wait", "start"])
    assert client.start(StartStatistics()) == "start"
    assert client.said == ["statistics: not yet"] * 2


def test_the_command_gives_up_after_a_while_and_does_not_wait_with_the_land_job() -> None:
    """The jobs function starts the land job by itself."""
    assert Client(["wait"] * (MAX_WAITS + 1)).start(StartStatistics()) == "wait"
    assert Client(["wait"]).start(StartLand()) == "wait"


def run_and_end(deployed: Deployment) -> None:
    deployed.site.ask(StartStatistics())
    deployed.endpoints.set_state(EndpointState.AVAILABLE)
    run_id = deployed.site.ask(StartStatistics()).run
    deployed.site.runs.found[run_id] = replace(
        deployed.site.runs.found[run_id], state=RunState.SUCCESS, ended_at_ms=deployed.site.at_ms
    )


def test_endpoints_are_deleted_when_no_job_has_run_for_as_long_as_the_application_may_idle(
    deployed: Deployment,
) -> None:
    run_and_end(deployed)
    deployed.reconcile(after_ms=IDLE_MS - 1)
    assert deployed.endpoints.services() == ["sqs", "logs"]
    deployed.reconcile(after_ms=1)
    assert deployed.endpoints.services() == []


def test_a_stream_keeps_its_endpoints(deployed: Deployment) -> None:
    deployed.site.ask(StartLand())
    deployed.endpoints.set_state(EndpointState.AVAILABLE)
    deployed.reconcile()
    deployed.reconcile(after_ms=10 * IDLE_MS)
    assert deployed.endpoints.services() == ["sqs", "logs"]


def test_an_endpoint_that_somebody_deleted_is_created_again_while_a_job_runs(deployed: Deployment) -> None:
    deployed.site.ask(StartLand())
    deployed.endpoints.set_state(EndpointState.AVAILABLE)
    deployed.reconcile()
    deployed.endpoints.set_state(EndpointState.DELETING, ["vpce-1"])
    deployed.reconcile()  # its private name is still taken
    assert deployed.endpoints.services() == ["logs"]
    del deployed.endpoints.found["vpce-1"]
    deployed.reconcile()
    assert sorted(deployed.endpoints.services()) == ["logs", "sqs"]
    assert len(set(deployed.endpoints.tokens)) == 3


@pytest.mark.parametrize("change", ["settings", "state"])
def test_an_endpoint_that_is_not_as_deployed_or_failed_is_replaced(deployed: Deployment, change: str) -> None:
    deployed.site.ask(StartLand())
    deployed.endpoints.set_state(EndpointState.AVAILABLE)
    deployed.reconcile()
    if change == "settings":
        settings = replace(NETWORK, subnet_ids=("subnet-1", "subnet-2"))
        deployed.site.settings = replace(deployed.site.settings, endpoints=settings)
    else:
        deployed.endpoints.set_state(EndpointState.BROKEN)
    deployed.reconcile()
    assert deployed.endpoints.services() == []
    deployed.endpoints.found.clear()
    deployed.reconcile()
    assert deployed.endpoints.services() == ["sqs", "logs"]


def test_a_cancelled_run_ends_also_while_endpoints_are_missing(deployed: Deployment) -> None:
    deployed.site.ask(StartLand())
    deployed.endpoints.set_state(EndpointState.AVAILABLE)
    deployed.reconcile()
    deployed.endpoints.found.clear()
    assert deployed.site.ask(StopJob()).cancelled


def test_two_requests_in_one_minute_have_the_same_token(deployed: Deployment) -> None:
    deployed.site.at_ms = NOON_MS
    deployed.site.ask(StartLand())
    deployed.endpoints.found.clear()  # not listed yet
    deployed.site.ask(StartLand())
    assert len(set(deployed.endpoints.tokens)) == 2


def test_subnets_with_another_way_to_sqs_need_no_endpoints() -> None:
    site = Site()
    assert site.ask(StartLand()).step == "start"
