"""What is configured and stored of consumers comes back equal, and what can't be is refused."""

import pytest

from sluice.codec import decode
from sluice.errors import BadSnapshot, Malformed
from sluice.splitting.consumers.targets import (
    CONSUMERS,
    Consumer,
    Consumers,
    EcsVariable,
    LambdaTrigger,
    LambdaVariable,
    Place,
    SystemsManagerParameter,
    Target,
    name_of,
)

PLACE = Place(path=("queues", "[]"), pattern="q=(.+)")
TARGETS: dict[str, Target] = {
    "trigger of function orders": LambdaTrigger(function="orders"),
    "variable QUEUE of function orders": LambdaVariable(function="orders", variable="QUEUE", place=PLACE),
    "parameter /orders": SystemsManagerParameter(name="/orders", refresh_s=60),
    "variable QUEUE of container app of service shop/orders": EcsVariable(
        cluster="shop", service="orders", container="app", variable="QUEUE"
    ),
}


def test_what_is_stored_comes_back_equal() -> None:
    known = tuple(Consumer(target=target, original="ä\n") for target in TARGETS.values())
    value = Consumers(queue_id="orders", consumers=(*known, Consumer(target=TARGETS["parameter /orders"])))
    assert CONSUMERS.of_text(CONSUMERS.text(value)) == value


def test_what_is_stored_looks_like_this() -> None:
    """A change here is a change of the stored format: then its version goes up."""
    target = LambdaVariable(function="orders", variable="QUEUE", place=PLACE)
    assert CONSUMERS.text(Consumers(queue_id="q", consumers=(Consumer(target=target, original="o"),))) == (
        '{"kind":"consumers","version":1,"value":{"queue_id":"q","consumers":[{"target":{"type":"lambda variable",'
        '"function":"orders","variable":"QUEUE","place":{"path":["queues","[]"],"pattern":"q=(.+)"}},'
        '"original":"o","at":null,"to":null}],"splitter_on":false,"held_by":"","held_until_ms":0}}'
    )


def test_another_version_is_refused() -> None:
    with pytest.raises(BadSnapshot, match="version 2"):
        CONSUMERS.of_text('{"kind":"consumers","version":2,"value":{"queue_id":"q"}}')


@pytest.mark.parametrize("name", TARGETS)
def test_an_operator_knows_a_target_by_its_name(name: str) -> None:
    assert name_of(TARGETS[name]) == name


@pytest.mark.parametrize(
    "text",
    [
        '{"type":"kubernetes"}',
        '{"type":"parameter","name":""}',
        '{"type":"parameter","name":"/a","refresh_s":-1}',
        '{"type":"parameter","name":"/a","place":{"pattern":""}}',
        '{"type":"lambda trigger","function":"f","variable":"V"}',
    ],
)
def test_what_cannot_be_configured_is_refused(text: str) -> None:
    with pytest.raises(Malformed):
        decode(f'{{"target":{text}}}', Consumer, of="consumer")
