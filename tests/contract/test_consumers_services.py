"""ECS services run a revision that names another queue, and then the first again: on moto.

Moto doesn't roll over: what ECS says of deployments and tasks meanwhile is put into its answers.
"""

from types import SimpleNamespace
from typing import Any

import boto3
import pytest
from moto import mock_aws
from moto.ecs.models import EC2ContainerServiceBackend, TaskDefinition

from sluice.aws.splitting.consumers.targets import AwsConsumers
from sluice.errors import BadConsumer, CallFailed
from sluice.splitting.consumers.targets import EcsVariable
from tests.interruptions import Interruptions, each_interruption, until_true
from tests.many_cases import one_of

REGION = "eu-central-1"
PREFIX = f"arn:aws:sqs:{REGION}:123456789012:"
URL = f"https://sqs.{REGION}.amazonaws.com/123456789012/"
SOURCE, MAIN = "orders", "sluice-tmp-abcdef0123456789ab-main-orders"
TARGET = EcsVariable(cluster="shop", service="orders", container="app", variable="QUEUE")
OTHER = EcsVariable(cluster="shop", service="orders", container="side", variable="QUEUE_NAME")
DEFINITION: dict[str, Any] = {
    "family": "orders",
    "cpu": "256",
    "taskRoleArn": "arn:aws:iam::123456789012:role/orders",
    "volumes": [{"name": "scratch"}],
    "containerDefinitions": [
        {
            "name": "app",
            "image": "orders:1",
            "memory": 64,
            "environment": [{"name": "QUEUE", "value": URL + SOURCE}, {"name": "A", "value": "ä"}],
            "secrets": [{"name": "KEY", "valueFrom": "key"}],
        },
        {
            "name": "side",
            "image": "side:1",
            "memory": 64,
            "environment": [{"name": "QUEUE_NAME", "value": SOURCE}],
        },
    ],
    "tags": [{"key": "team", "value": "shop"}],
}


@pytest.fixture(autouse=True)
def aws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    of_any_state = EC2ContainerServiceBackend.describe_task_definition

    def latest_active(self: EC2ContainerServiceBackend, task_definition_str: str) -> TaskDefinition:
        """A family is its latest active revision; moto takes others too."""
        active = [
            each for each in self.task_definitions.get(task_definition_str, {}).values() if each.status == "ACTIVE"
        ]
        return of_any_state(self, active[-1].arn if active else task_definition_str)

    monkeypatch.setattr(EC2ContainerServiceBackend, "describe_task_definition", latest_active)


def client() -> Any:
    return boto3.client("ecs", region_name=REGION)  # its stubs aren't installed


def consumers(watched: Any = None) -> AwsConsumers:
    made = watched or client()
    return AwsConsumers(client=lambda _: made, arn_prefix=PREFIX, now_ms=lambda: 0)


def deploy(controller: str = "ECS") -> str:
    """Make a service that reads the first queue; the ARN of its task definition."""
    client().create_cluster(clusterName="shop")
    client().register_task_definition(**DEFINITION)
    service = client().create_service(
        cluster="shop",
        serviceName="orders",
        taskDefinition="orders",
        desiredCount=0,
        deploymentController={"type": controller},
    )["service"]
    return service["taskDefinition"]


def running() -> str:
    return client().describe_services(cluster="shop", services=["orders"])["services"][0]["taskDefinition"]


def definition(arn: str) -> tuple[dict[str, Any], list[dict[str, str]]]:
    """Read a revision, but for what every one has of its own."""
    found = client().describe_task_definition(taskDefinition=arn, include=["TAGS"])
    own = {"taskDefinitionArn", "revision"}
    return {key: value for key, value in found["taskDefinition"].items() if key not in own}, found["tags"]


def environment(container: int = 0) -> dict[str, str]:
    found = definition(running())[0]["containerDefinitions"][container]["environment"]
    return {variable["name"]: variable["value"] for variable in found}


def revisions() -> list[str]:
    return client().list_task_definitions(familyPrefix="orders")["taskDefinitionArns"]


@mock_aws
def test_a_service_runs_a_revision_with_one_value_changed_and_then_the_first() -> None:
    first = deploy()
    original = consumers().read_original(TARGET, queue=SOURCE)
    assert original == first
    before, tags = definition(first)
    until_true(lambda: consumers().point(TARGET, original, queue=MAIN, instead_of=(SOURCE,)))
    assert environment() == {"QUEUE": URL + MAIN, "A": "ä"}
    after, marked = definition(running())
    after["containerDefinitions"][0]["environment"] = before["containerDefinitions"][0]["environment"]
    assert after == before
    assert marked == [*tags, {"key": "sluice-temporary", "value": "true"}]
    until_true(lambda: consumers().point(TARGET, original, queue=SOURCE, instead_of=(MAIN,)))
    assert running() == first
    assert revisions() == [first]


@one_of(4)
def test_whatever_call_fails_it_gets_there_with_one_revision_and_back(every: int) -> None:
    @mock_aws
    def scenario(interruptions: Interruptions) -> None:
        first = deploy()
        ours = consumers(interruptions.watch(client()))
        until_true(lambda: ours.point(TARGET, first, queue=MAIN, instead_of=(SOURCE,)))
        assert environment()["QUEUE"] == URL + MAIN
        # One is registered; whose answer never came is found again.
        assert len(revisions()) == 2
        until_true(lambda: ours.point(TARGET, first, queue=SOURCE, instead_of=(MAIN,)))
        assert (running(), revisions()) == (first, [first])

    each_interruption(scenario, every=every)


@mock_aws
def test_two_variables_of_a_service_leave_nothing_behind() -> None:
    first = deploy()
    for target in (TARGET, OTHER):
        until_true(lambda: consumers().point(target, first, queue=MAIN, instead_of=(SOURCE,)))  # noqa: B023  # run at once
    assert (environment()["QUEUE"], environment(1)) == (URL + MAIN, {"QUEUE_NAME": MAIN})
    for target in (TARGET, OTHER):
        until_true(lambda: consumers().point(target, first, queue=SOURCE, instead_of=(MAIN,)))  # noqa: B023  # run at once
    assert (running(), revisions()) == (first, [first])


@mock_aws
def test_what_others_deploy_meanwhile_stays() -> None:
    first = deploy()
    until_true(lambda: consumers().point(TARGET, first, queue=MAIN, instead_of=(SOURCE,)))
    found, _ = definition(running())
    found["containerDefinitions"][0]["image"] = "orders:2"
    theirs = {key: found[key] for key in DEFINITION if key != "tags"}
    client().register_task_definition(**theirs)
    client().update_service(cluster="shop", service="orders", taskDefinition="orders")
    until_true(lambda: consumers().point(TARGET, first, queue=SOURCE, instead_of=(MAIN,)))
    assert environment()["QUEUE"] == URL + SOURCE
    assert definition(running())[0]["containerDefinitions"][0]["image"] == "orders:2"


@mock_aws
def test_an_original_that_was_deregistered_is_registered_again() -> None:
    first = deploy()
    before, tags = definition(first)
    until_true(lambda: consumers().point(TARGET, first, queue=MAIN, instead_of=(SOURCE,)))
    client().deregister_task_definition(taskDefinition=first)
    until_true(lambda: consumers().point(TARGET, first, queue=SOURCE, instead_of=(MAIN,)))
    after, still = definition(running())
    assert running() != first
    for each in (before, after):
        each["containerDefinitions"][0]["environment"].sort(key=lambda variable: variable["name"])
    assert (after, still) == (before, tags)


PRIMARY = {"status": "PRIMARY", "rolloutState": "COMPLETED", "desiredCount": 2, "runningCount": 2, "pendingCount": 0}


def pointed_with(deployments: list[dict[str, Any]], *tasks: dict[str, str]) -> bool:
    """Point once where the service names the queue already, and ECS says this of its deployments and tasks."""
    first, made = deploy(), client()
    until_true(lambda: consumers().point(TARGET, first, queue=MAIN, instead_of=(SOURCE,)))

    def services(parsed: dict[str, Any], **_: Any) -> None:
        parsed["services"][0]["deployments"] = deployments

    def listed(parsed: dict[str, Any], **_: Any) -> None:
        parsed["taskArns"] = [f"task/{number}" for number in range(len(tasks))]

    def described(parsed: dict[str, Any], **_: Any) -> None:
        parsed["tasks"] = [{"taskDefinitionArn": first, **task} for task in tasks]

    for operation, handler in (("DescribeServices", services), ("ListTasks", listed), ("DescribeTasks", described)):
        made.meta.events.register(f"after-call.ecs.{operation}", handler)
    return consumers(made).point(TARGET, first, queue=MAIN, instead_of=(SOURCE,))


@mock_aws
@pytest.mark.parametrize(
    ("deployments", "there"),
    [
        ([PRIMARY], True),
        ([{key: value for key, value in PRIMARY.items() if key != "rolloutState"}], True),
        ([PRIMARY | {"rolloutState": "IN_PROGRESS"}], False),
        ([PRIMARY | {"runningCount": 1}], False),
        ([PRIMARY | {"pendingCount": 1}], False),
        ([PRIMARY, {"status": "ACTIVE"}], False),
    ],
)
def test_it_is_there_when_one_deployment_is_left_and_complete(deployments: list[dict[str, Any]], there: bool) -> None:
    assert pointed_with(deployments) is there


@mock_aws
@pytest.mark.parametrize(("status", "there"), [("RUNNING", False), ("STOPPING", False), ("STOPPED", True)])
def test_it_is_there_when_the_last_task_of_another_revision_has_stopped(status: str, there: bool) -> None:
    assert pointed_with([PRIMARY], {"lastStatus": "STOPPED"}, {"lastStatus": status}) is there


@mock_aws
def test_a_roll_over_that_ecs_gives_up_says_why() -> None:
    with pytest.raises(CallFailed, match="UpdateService: FAILED: tasks failed to start"):
        pointed_with([PRIMARY | {"rolloutState": "FAILED", "rolloutStateReason": "tasks failed to start"}])


@mock_aws
@pytest.mark.parametrize(
    ("target", "cause"),
    [
        (EcsVariable(cluster="shop", service="other", container="app", variable="QUEUE"), "there is no such service"),
        (EcsVariable(cluster="shop", service="orders", container="app", variable="KEY"), "isn't set in the task"),
        (EcsVariable(cluster="shop", service="orders", container="x", variable="QUEUE"), "isn't set in the task"),
        (EcsVariable(cluster="shop", service="orders", container="app", variable="A"), "doesn't name orders"),
    ],
)
def test_what_does_not_read_the_queue_is_refused(target: EcsVariable, cause: str) -> None:
    deploy()
    with pytest.raises(BadConsumer, match=cause):
        consumers().read_original(target, queue=SOURCE)


ROLE = DEFINITION["taskRoleArn"]


def with_role(*allowed: str, error: str = "") -> AwsConsumers:
    """Consumers of an account whose IAM simulates that a role may read these queues, or refuses to simulate."""
    iam: Any = boto3.client("iam", region_name=REGION)

    def simulate(params: dict[str, Any], **_: Any) -> tuple[SimpleNamespace, dict[str, Any]]:
        asked = params["body"]
        assert asked["PolicySourceArn"] == ROLE
        decision = (
            "allowed" if asked["ResourceArns.member.1"] in {PREFIX + name for name in allowed} else "implicitDeny"
        )
        actions = [value for key, value in asked.items() if key.startswith("ActionNames")]
        results = [{"EvalActionName": action, "EvalDecision": decision} for action in actions]
        said: dict[str, Any] = {"Error": {"Code": error, "Message": ""}} if error else {"EvaluationResults": results}
        return SimpleNamespace(status_code=403 if error else 200), said | {"ResponseMetadata": {}}

    iam.meta.events.register("before-call.iam.SimulatePrincipalPolicy", simulate)
    made = {"iam": iam, "ecs": client()}
    return AwsConsumers(client=made.__getitem__, arn_prefix=PREFIX, now_ms=lambda: 0)


@mock_aws
def test_a_role_that_may_read_the_source_alone_is_refused_before_anything_is_changed() -> None:
    first = deploy()
    cause = f"{ROLE} lacks sqs:DeleteMessage, sqs:ReceiveMessage on {PREFIX}{MAIN}"
    with pytest.raises(BadConsumer, match=cause):
        with_role(SOURCE).check_role(TARGET, source=SOURCE, queue=MAIN)
    assert revisions() == [first]


@mock_aws
@pytest.mark.parametrize("allowed", [(SOURCE, MAIN), (MAIN,), ()])
def test_a_role_is_taken_that_reads_both_or_by_what_isnt_simulated(allowed: tuple[str, ...]) -> None:
    deploy()
    assert with_role(*allowed).check_role(TARGET, source=SOURCE, queue=MAIN) == ""


@mock_aws
def test_an_account_that_refuses_to_simulate_is_told_and_goes_on() -> None:
    deploy()
    assert "AccessDenied" in with_role(error="AccessDenied").check_role(TARGET, source=SOURCE, queue=MAIN)
    with pytest.raises(CallFailed):
        with_role(error="Throttling").check_role(TARGET, source=SOURCE, queue=MAIN)


@mock_aws
def test_a_service_that_others_deploy_is_refused() -> None:
    deploy("EXTERNAL")
    with pytest.raises(BadConsumer, match="the service is deployed by EXTERNAL, and not by ECS"):
        consumers().read_original(TARGET, queue=SOURCE)
