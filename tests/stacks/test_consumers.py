"""What is configured of consumers is what functions are told of them."""

import json
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from sluice.parameters.consumers import ConsumerParameters, to_targets
from sluice.splitting.consumers.targets import (
    MAX_STEPS,
    EcsVariable,
    KubernetesWorkload,
    LambdaTrigger,
    LambdaVariable,
    Place,
    SystemsManagerParameter,
    Target,
)

CONSUMER: TypeAdapter[ConsumerParameters] = TypeAdapter(ConsumerParameters)
FUNCTION = "arn:aws:lambda:eu-central-1:123456789012:function:orders"
PARAMETER = "arn:aws:ssm:eu-central-1:123456789012:parameter/orders"
OF_WORKLOAD: dict[str, Any] = {"cluster": "shop", "namespace": "prod", "kind": "Rollout", "name": "orders"}
OF_SERVICE = {"cluster": "shop", "service": "orders", "container": "app", "variable": "QUEUE"}


@pytest.mark.parametrize(
    ("given", "target"),
    [
        ({"type": "lambda trigger", "function": "orders:live"}, LambdaTrigger(function="orders:live")),
        ({"type": "lambda trigger", "function": f"{FUNCTION}:live"}, LambdaTrigger(function=f"{FUNCTION}:live")),
        (
            {"type": "lambda variable", "function": FUNCTION, "variable": "Q", "place": {"path": ["a", "[]"]}},
            LambdaVariable(function=FUNCTION, variable="Q", place=Place(path=("a", "[]"))),
        ),
        ({"type": "parameter", "name": "orders"}, SystemsManagerParameter(name="orders")),
        (
            {"type": "parameter", "name": PARAMETER, "refresh_s": 86_400, "place": {"pattern": "q=(.+)"}},
            SystemsManagerParameter(name=PARAMETER, refresh_s=86_400, place=Place(pattern="q=(.+)")),
        ),
        (
            {"type": "ecs variable", **OF_SERVICE, "role_arns": ["arn:aws:iam::123456789012:role/task"]},
            EcsVariable(cluster="shop", service="orders", container="app", variable="QUEUE"),
        ),
        (
            {"type": "kubernetes", **OF_WORKLOAD, "env": "QUEUE"},
            KubernetesWorkload(**OF_WORKLOAD, env="QUEUE"),
        ),
        (
            {
                "type": "kubernetes",
                **OF_WORKLOAD,
                "containers": ["app"],
                "env": "QUEUE",
                "fallback": "orders",
                "timeout_s": 60,
                "argo_cd_namespace": "argo",
            },
            KubernetesWorkload(
                **OF_WORKLOAD,
                containers=("app",),
                env="QUEUE",
                fallback="orders",
                timeout_s=60,
                argo_cd_namespace="argo",
            ),
        ),
        (
            {"type": "kubernetes", **OF_WORKLOAD, "volume": "config", "file": "shop.json", "place": {"path": ["q"]}},
            KubernetesWorkload(**OF_WORKLOAD, volume="config", file="shop.json", place=Place(path=("q",))),
        ),
    ],
)
def test_each_kind_becomes_its_target(given: dict[str, Any], target: Target) -> None:
    assert to_targets([CONSUMER.validate_json(json.dumps(given))]) == (target,)


def test_targets_keep_their_order() -> None:
    given = [{"type": "lambda trigger", "function": name} for name in ("b", "a")]
    targets = to_targets([CONSUMER.validate_json(json.dumps(each)) for each in given])
    assert targets == (LambdaTrigger(function="b"), LambdaTrigger(function="a"))


@pytest.mark.parametrize(
    "given",
    [
        {"type": "lambda trigger", "function": ""},
        {"type": "lambda trigger", "function": "orders", "variable": "QUEUE"},
        {"type": "lambda variable", "function": f"{FUNCTION}:live", "variable": "QUEUE"},
        {"type": "parameter", "name": "orders:3"},
        {"type": "parameter", "name": "orders", "refresh_s": 86_401},
        {"type": "parameter", "name": "orders", "place": {"path": ["a"] * (MAX_STEPS + 1)}},
        {"type": "kubernetes", **OF_WORKLOAD},
        {"type": "kubernetes", **OF_WORKLOAD, "env": "QUEUE", "cluster": "arn:aws:eks:eu-central-1:123456789012:c"},
        {"type": "kubernetes", **OF_WORKLOAD, "env": "QUEUE", "containers": ["a"] * 21},
        {"type": "kubernetes", **OF_WORKLOAD, "env": "QUEUE", "timeout_s": 86_401},
        {"type": "kubernetes", **OF_WORKLOAD, "env_like": "("},
        {"type": "ecs variable", **OF_SERVICE, "cluster": "arn:aws:ecs:eu-central-1:123456789012:cluster/shop"},
    ],
)
def test_what_is_no_target_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        CONSUMER.validate_json(json.dumps(given))
