"""Queues whose consumers are re-pointed, as deployed: from the first session to the put-back, each kind of target."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.deployed import Deployed, delete_all
from tests.e2e.functions_deployed import deploy
from tests.e2e.sessions import Splitting, by_attribute, url_of
from tests.repointed import CLUSTER, CONSUMER, CONTAINER, FUNCTION, NAMED, PARAMETER, SERVICE, TRIGGERED, VARIABLE

MESSAGES = 5_000
KEPT = """
import json
def handler(event, context):
    with open({file!r}, "a") as taken:
        for record in event["Records"]:
            print(json.dumps([record["eventSourceARN"].rsplit(":", 1)[1], record["body"]]), file=taken)
"""


# A splitter's lease and a main queue's minute of quiet are real time; the simulation has them in none.
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def splitting(deployed: Deployed) -> Splitting:
    return Splitting(deployed)


class Named:
    """What names a queue, three times."""

    def __init__(self, deployed: Deployed, url: str) -> None:
        self.lambdas = deployed.connection.client("lambda")
        self.parameters = deployed.connection.client("ssm")
        self.services = deployed.connection.client("ecs")
        deploy(deployed, FUNCTION, "def handler(*_): pass", Environment={"Variables": {VARIABLE: url, "OTHER": "o"}})
        text = json.dumps({"queues": [{"url": url}, {"url": "another"}]}, indent=2)
        self.parameters.put_parameter(Name=PARAMETER, Value=text, Type="String")
        self.services.create_cluster(clusterName=CLUSTER)
        container = {
            "name": CONTAINER,
            "image": "app",
            "memory": 128,
            "environment": [{"name": VARIABLE, "value": f"region=eu;queue={url};"}],
        }
        definition = self.services.register_task_definition(family="orders", containerDefinitions=[container])
        self.definition: str = definition["taskDefinition"]["taskDefinitionArn"]
        self.services.create_service(
            cluster=CLUSTER, serviceName=SERVICE, taskDefinition=self.definition, desiredCount=0
        )

    def texts(self) -> list[str]:
        """What each says now."""
        configured = self.lambdas.get_function_configuration(FunctionName=FUNCTION)["Environment"]["Variables"]
        parameter = self.parameters.get_parameter(Name=PARAMETER)["Parameter"]["Value"]
        [service] = self.services.describe_services(cluster=CLUSTER, services=[SERVICE])["services"]
        definition = self.services.describe_task_definition(taskDefinition=service["taskDefinition"])["taskDefinition"]
        [container] = definition["containerDefinitions"]
        return [
            json.dumps(configured, sort_keys=True),
            parameter,
            next(each["value"] for each in container["environment"] if each["name"] == VARIABLE),
        ]


@contextmanager
def consuming(deployed: Deployed) -> Iterator[list[str]]:
    """What a consumer has that asks the parameter for its queue again and again, until nothing more comes."""
    parameters, over, taken = deployed.connection.client("ssm"), threading.Event(), list[str]()

    def consume() -> None:
        idle = 0
        while not over.is_set() or idle < 3:
            text = parameters.get_parameter(Name=PARAMETER)["Parameter"]["Value"]
            url = json.loads(text)["queues"][0]["url"]
            try:
                received = deployed.sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=1)
            except deployed.sqs.exceptions.QueueDoesNotExist:
                continue  # it has gone since it was asked for
            messages = received.get("Messages", [])
            delete_all(deployed.sqs, url, messages)
            taken.extend(message["Body"] for message in messages)
            idle = 0 if messages else idle + 1

    thread = threading.Thread(target=consume)
    thread.start()
    try:
        yield taken
    finally:
        over.set()
        thread.join(60)


def until(done: Callable[[], bool], *, within_s: float = 180) -> None:
    deadline = time.monotonic() + within_s
    while not done():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.2)


def test_what_names_a_queue_names_a_main_queue_while_it_is_split(deployed: Deployed, splitting: Splitting) -> None:
    """Numbered messages go all the while: none is lost, and the session has its own."""
    source = splitting.queues[NAMED].source
    named = Named(deployed, source)
    before = named.texts()
    bodies = [f"{'mine' if number % 5 == 0 else 'others'}-{number}" for number in range(MESSAGES)]
    first, last = MESSAGES // 5, MESSAGES * 4 // 5
    with consuming(deployed) as taken:
        splitting.send(NAMED, bodies[:first], lambda body: {"whose": body.split("-")[0]})
        until(lambda: {*taken} == {*bodies[:first]})  # what waits at the source when a session begins is the session's
        session = splitting.start({NAMED: by_attribute("whose", "^mine$")})
        texts = named.texts()
        assert all("sluice-tmp-" in text and "-main-" in text for text in texts), texts
        assert all(text != old for text, old in zip(texts, before, strict=True))
        assert "another" in texts[1]
        splitting.send(NAMED, bodies[first:last], lambda body: {"whose": body.split("-")[0]})
        mine = splitting.bodies(url_of(session, NAMED), MESSAGES // 10, within_s=180)
        splitting.stop(session.session_id)
        splitting.send(NAMED, bodies[last:], lambda body: {"whose": body.split("-")[0]})
        until(lambda: named.texts() == before)
        until(lambda: not splitting.temporary_queues())
        until(lambda: {*taken, *mine} == {*bodies})
    # SQS may deliver a message a second time that the consumer had before the session.
    assert {body for body in bodies[first:last] if body.startswith("mine")} >= set(mine) - {*bodies[:first]}
    assert len(mine) >= MESSAGES // 10
    [service] = named.services.describe_services(cluster=CLUSTER, services=[SERVICE])["services"]
    assert service["taskDefinition"] == named.definition


def test_a_trigger_reads_a_main_queue_while_its_own_is_split(
    deployed: Deployed, splitting: Splitting, tmp_path: Path
) -> None:
    file = tmp_path / "taken"
    file.touch()
    deploy(deployed, CONSUMER, KEPT.format(file=str(file)))
    lambdas = deployed.connection.client("lambda")
    source = splitting.queues[TRIGGERED].source
    arn = deployed.sqs.get_queue_attributes(QueueUrl=source, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    made = lambdas.create_event_source_mapping(EventSourceArn=arn, FunctionName=CONSUMER, BatchSize=7)

    def taken() -> list[tuple[str, str]]:
        return [tuple(json.loads(line)) for line in file.read_text().splitlines()]

    def state() -> str:
        found: str = lambdas.get_event_source_mapping(UUID=made["UUID"])["State"]
        return found

    until(lambda: state() == "Enabled")
    bodies = [f"{'mine' if number % 5 == 0 else 'others'}-{number:03}" for number in range(60)]
    splitting.send(TRIGGERED, bodies[:20], lambda body: {"whose": body.split("-")[0]})
    until(lambda: len(taken()) == 20)
    session = splitting.start({TRIGGERED: by_attribute("whose", "^mine$")})
    assert state() == "Disabled"
    splitting.send(TRIGGERED, bodies[20:40], lambda body: {"whose": body.split("-")[0]})
    assert splitting.bodies(url_of(session, TRIGGERED), 4) == [body for body in bodies[20:40] if "mine" in body]
    until(lambda: len(taken()) == 36)
    splitting.stop(session.session_id)
    until(lambda: state() == "Enabled")
    splitting.send(TRIGGERED, bodies[40:], lambda body: {"whose": body.split("-")[0]})
    until(lambda: len(taken()) == 56)
    until(lambda: not splitting.temporary_queues())
    theirs = [body for number, body in enumerate(bodies) if not (20 <= number < 40 and "mine" in body)]
    assert [body for _, body in taken()] == theirs
    assert len({queue for queue, _ in taken()}) == 2
    assert len(lambdas.list_event_source_mappings(FunctionName=CONSUMER)["EventSourceMappings"]) == 1
