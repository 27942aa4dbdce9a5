"""The simulation itself: a seed is one history, faults do what their names say, and a failure is told shortly."""

from functools import partial
from typing import Any

import pytest
from botocore.exceptions import ClientError, ConnectionClosedError, ReadTimeoutError

from tests.simulation.kernel import patches, scheduler
from tests.simulation.kernel.faults import CALM, Decision, Faults, Kind
from tests.simulation.kernel.shrinking import shrink
from tests.simulation.kernel.world import Failed, Scenario, World, run
from tests.simulation.models.sqs import redrive
from tests.simulation.scenarios.splitting import Splitting


class Quiet(Scenario):
    """A queue, one producer and one consumer, whose work each test gives."""

    faulty_s, settles_s = 10.0, 60.0

    def build(self) -> None:
        self.queue = self.world.queue("q", {"VisibilityTimeout": "20"})
        self.bodies: list[str] = []
        self.world.spawn("producer", self.produce)
        self.world.spawn("consumer", self.consume)

    def produce(self) -> None:
        for number in range(10):
            self.world.client("sqs").send_message(QueueUrl=self.queue.url, MessageBody=f"{number}")

    def consume(self) -> None:
        sqs = self.world.client("sqs")
        while True:
            found = sqs.receive_message(QueueUrl=self.queue.url, MaxNumberOfMessages=10, WaitTimeSeconds=20)
            for message in found.get("Messages", []):
                self.bodies.append(message["Body"])
                sqs.delete_message(QueueUrl=self.queue.url, ReceiptHandle=message["ReceiptHandle"])

    def at_rest(self) -> None:
        self.world.check(not self.queue.messages, "something is left")


class OncePlease(Quiet):
    """Demands what SQS doesn't promise."""

    def at_rest(self) -> None:
        self.world.check(len(self.bodies) == len(set(self.bodies)), f"delivered twice: {sorted(self.bodies)}")


def calls_of(world: World, work: Any) -> Any:
    """What an actor's work comes to, in a world of its own."""
    found: list[Any] = []

    def act() -> None:
        try:
            found.append(work())
        except (ClientError, ConnectionClosedError, ReadTimeoutError) as error:
            found.append(error)

    with patches.simulated(world):
        world.spawn("actor", act)
        world.scheduler.run(world.now + 600)
        world.scheduler.close()
    return found[0]


def test_a_seed_is_one_history(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(scheduler, "TRACED", 20_000)  # all of it
    histories = []
    for _ in range(2):
        world = run(Splitting, 3).world
        histories.append([event[:3] for event in world.scheduler.trace])
    assert len(histories[0]) > 500
    assert histories[0] == histories[1]


def test_another_seed_is_another_history():
    one, other = (run(Quiet, seed, faults=CALM).world.scheduler.trace for seed in (1, 2))
    assert [event[:3] for event in one] != [event[:3] for event in other]


def test_without_faults_everything_comes_once():
    result = run(OncePlease, 1, faults=CALM)
    assert result.faults == {}


def test_a_demand_that_sqs_does_not_meet_fails_with_its_seed():
    with pytest.raises(Failed, match=r"^seed 7: delivered twice: \['0', '0', "):
        run(OncePlease, 7, faults=Faults(duplicate=0.9))


def test_a_failure_shrinks_to_the_one_fault_that_it_takes():
    faults = Faults(duplicate=0.9)
    with pytest.raises(Failed) as failure:
        run(OncePlease, 7, faults=faults)

    def fails(only: frozenset[Decision]) -> bool:
        try:
            run(OncePlease, 7, faults=faults, only=only)
        except Failed:
            return True
        return False

    [left] = shrink(failure.value.taken, fails)
    assert left.kind is Kind.DUPLICATE


def test_an_answer_that_is_lost_leaves_done_what_was_asked():
    lost = set()
    for seed in range(10):
        world = World(seed, Faults(lost_answer=1.0))
        queue = world.queue("q")
        send = partial(world.client("sqs").send_message, QueueUrl=queue.url, MessageBody="b")
        lost.add(type(calls_of(world, send)))
        assert len(queue.messages) == 3  # botocore's three attempts
    assert lost == {ReadTimeoutError, ConnectionClosedError}


def test_a_throttled_call_is_not_done():
    world = World(1, Faults(throttle=1.0))
    queue = world.queue("q")
    error = calls_of(world, partial(world.client("sqs").send_message, QueueUrl=queue.url, MessageBody="b"))
    assert error.response["Error"]["Code"] == "RequestThrottled"
    assert not queue.messages


def test_a_transaction_whose_answer_was_lost_is_done_once():
    world = World(1, Faults(lost_answer=1.0))
    table = world.dynamodb.make_table("t")
    update = {
        "TableName": "t",
        "Key": {"pk": {"S": "p"}, "sk": {"S": "s"}},
        "UpdateExpression": "ADD n :one",
        "ExpressionAttributeValues": {":one": {"N": "1"}},
    }
    calls_of(world, partial(world.client("dynamodb").transact_write_items, TransactItems=[{"Update": update}]))
    assert table.items["p", "s"]["n"] == {"N": "1"}


def test_a_queue_that_was_just_made_may_not_be_found_for_a_second():
    world = World(1, Faults(new_queue_hidden_s=1.0))

    def work() -> str:
        sqs = world.client("sqs")
        url: str = sqs.create_queue(QueueName="q")["QueueUrl"]
        with pytest.raises(ClientError, match="does not exist"):
            sqs.send_message(QueueUrl=url, MessageBody="b")
        world.sleep(1)
        sqs.send_message(QueueUrl=url, MessageBody="b")
        return url

    url = calls_of(world, work)
    assert [message.body for message in world.sqs.queues[url].messages.values()] == ["b"]


def test_what_is_received_too_often_becomes_a_dead_letter():
    world = World(1, CALM)
    dead = world.queue("dead")
    queue = world.queue("q", {"VisibilityTimeout": "5", "RedrivePolicy": redrive(dead.arn, 2)})

    def work() -> list[int]:
        sqs = world.client("sqs")
        sqs.send_message(QueueUrl=queue.url, MessageBody="b")
        received = []
        for _ in range(4):
            received.append(len(sqs.receive_message(QueueUrl=queue.url).get("Messages", [])))
            world.sleep(6)
        return received

    assert calls_of(world, work) == [1, 1, 0, 0]
    assert [message.body for message in dead.messages.values()] == ["b"]
