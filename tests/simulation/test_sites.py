"""Several accounts and regions in one simulated world: who may do what to whose queues, and who is away."""

from functools import partial
from typing import Any

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError

from tests.simulation.kernel import patches
from tests.simulation.kernel.faults import CALM
from tests.simulation.kernel.outages import Answer, Outage
from tests.simulation.kernel.world import HOME, Site, World
from tests.simulation.models.policies import policy_for

OTHER = Site("us-east-1", "222222222222")


def outcome(world: World, site: Site, operation: str, **parameters: Any) -> Any:
    """What a call from a site comes to."""
    found: list[Any] = []

    def act() -> None:
        try:
            found.append(getattr(world.client("sqs"), operation)(**parameters))
        except (ClientError, EndpointConnectionError) as error:
            found.append(error)

    with patches.simulated(world):
        world.spawn("actor", act, site=site)
        world.scheduler.run(world.now + 60)
        world.scheduler.close()
    return found[0]


def test_another_account_does_to_a_queue_what_its_policy_lets_it_and_nothing_else():
    world = World(1, CALM)
    open_ = world.queue("open", {"Policy": policy_for([OTHER.account], "SendMessage")})
    closed = world.queue("closed")
    assert outcome(world, OTHER, "send_message", QueueUrl=open_.url, MessageBody="b")["MessageId"]
    assert len(open_.messages) == 1
    for operation, parameters in [
        ("send_message", {"QueueUrl": closed.url, "MessageBody": "b"}),
        ("receive_message", {"QueueUrl": open_.url}),
        ("delete_queue", {"QueueUrl": open_.url}),
    ]:
        error = outcome(world, OTHER, operation, **parameters)
        assert error.response["Error"]["Code"] == "AccessDenied"


@pytest.mark.parametrize("answer", Answer)
def test_nobody_reaches_a_site_that_is_away_and_then_everybody_does(answer: Answer):
    world = World(1, CALM)
    queue = world.queue("q", {"Policy": policy_for([OTHER.account], "SendMessage")})
    world.outages.begin(HOME, Outage(until_s=world.now + 50, answer=answer, to_others=True))
    send = partial(outcome, operation="send_message", QueueUrl=queue.url, MessageBody="b")
    assert isinstance(send(world, OTHER), ClientError | EndpointConnectionError)
    assert not queue.messages
    assert send(world, OTHER)["MessageId"]
    assert len(queue.messages) == 1


@pytest.mark.parametrize(("to_others", "is_sent"), [(True, True), (False, False)])
def test_a_site_that_is_away_for_others_alone_reaches_itself(to_others: bool, is_sent: bool):
    world = World(1, CALM)
    queue = world.queue("q")
    world.outages.begin(HOME, Outage(until_s=world.now + 50, answer=Answer.UNAVAILABLE, to_others=to_others))
    outcome(world, HOME, "send_message", QueueUrl=queue.url, MessageBody="b")
    assert bool(queue.messages) is is_sent
