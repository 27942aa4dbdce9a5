"""What is configured and stored of consumers comes back equal, and what can't be is refused."""

from typing import Any

import pytest

from sluice.codec import decode
from sluice.errors import BadSnapshot, Malformed
from sluice.splitting.consumers.targets import (
    CONSUMERS,
    Consumer,
    Consumers,
    EcsVariable,
    KubernetesWorkload,
    LambdaTrigger,
    LambdaVariable,
    Place,
    SystemsManagerParameter,
    Target,
    describe_target,
)

PLACE = Place(path=("queues", "[]"), pattern="q=(.+)")
WORKLOAD: dict[str, Any] = {"cluster": "shop", "namespace": "prod", "name": "orders"}
TARGETS: dict[str, Target] = {
    "trigger of function orders": LambdaTrigger(function="orders"),
    "variable QUEUE of function orders": LambdaVariable(function="orders", variable="QUEUE", place=PLACE),
    "parameter /orders": SystemsManagerParameter(name="/orders", refresh_s=60),
    "variable QUEUE of container app of service shop/orders": EcsVariable(
        cluster="shop", service="orders", container="app", variable="QUEUE"
    ),
    "variable QUEUE of Deployment shop/prod/orders": KubernetesWorkload(**WORKLOAD, kind="Deployment", env="QUEUE"),
    "variables like Q.* of containers a, b of Rollout shop/prod/orders": KubernetesWorkload(
        **WORKLOAD, kind="Rollout", containers=("a", "b"), env_like="Q.*", place=PLACE
    ),
    "variable QUEUE of container a of StatefulSet shop/prod/orders": KubernetesWorkload(
        **WORKLOAD, kind="StatefulSet", containers=("a",), env="QUEUE", fallback="orders"
    ),
    "file shop.json of volume config of Deployment shop/prod/orders": KubernetesWorkload(
        **WORKLOAD, kind="Deployment", volume="config", file="shop.json", timeout_s=60, argo_cd_namespace="argo"
    ),
}


def test_what_is_stored_comes_back_equal() -> None:
    known = tuple(Consumer(target=target, original="ä\n") for target in TARGETS.values())
    value = Consumers(queue_id="orders", consumers=(*known, Consumer(target=TARGETS["parameter /orders"])))
    assert CONSUMERS.from_text(CONSUMERS.text(value)) == value


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
        CONSUMERS.from_text('{"kind":"consumers","version":2,"value":{"queue_id":"q"}}')


@pytest.mark.parametrize("name", TARGETS)
def test_an_operator_knows_a_target_by_its_name(name: str) -> None:
    assert describe_target(TARGETS[name]) == name


@pytest.mark.parametrize(
    "text",
    [
        '{"type":"docker"}',
        *(
            f'{{"type":"kubernetes","cluster":"c","namespace":"n","name":"o",{where}}}'
            for where in (
                '"kind":"DaemonSet","env":"Q"',
                '"kind":"Deployment"',
                '"kind":"Deployment","env":"Q","env_like":"Q"',
                '"kind":"Deployment","env":"Q","volume":"v","file":"f"',
                '"kind":"Deployment","volume":"v"',
                '"kind":"Deployment","env":"Q","file":"f"',
                '"kind":"Deployment","volume":"v","file":"f","containers":["a"]',
                '"kind":"Deployment","env":"Q","fallback":"orders"',
                '"kind":"Deployment","env_like":"Q","containers":["a"],"fallback":"orders"',
                '"kind":"Deployment","env":"Q","timeout_s":0',
            )
        ),
        '{"type":"parameter","name":""}',
        '{"type":"parameter","name":"/a","refresh_s":-1}',
        '{"type":"parameter","name":"/a","place":{"pattern":""}}',
        '{"type":"lambda trigger","function":"f","variable":"V"}',
    ],
)
def test_what_cannot_be_configured_is_refused(text: str) -> None:
    with pytest.raises(Malformed):
        decode(f'{{"target":{text}}}', Consumer, of="consumer")
