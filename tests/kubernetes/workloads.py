"""Workloads for tests: pods that name a queue in every way, and what is done with them."""

from typing import Any

from sluice.aws.splitting.consumers.targets import AwsConsumers
from sluice.kubernetes.api import Api, api_path
from sluice.splitting.consumers.targets import KubernetesWorkload, Place
from tests.interruptions import until_true
from tests.kubernetes.cluster import KEDA, Cluster, Json
from tests.kubernetes.servers import Server

PREFIX = "arn:aws:sqs:eu-central-1:123456789012:"
URL = "https://sqs.eu-central-1.amazonaws.com/123456789012/"
SOURCE, MAIN = "orders", "sluice-tmp-abcdef0123456789ab-main-orders"
RETURNS, MAIN_OF_RETURNS = "returns", "sluice-tmp-abcdef0123456789cd-main-returns"
KINDS = ("Deployment", "StatefulSet", "Rollout")
LITERAL: Json = {
    "containers": [
        {
            "name": "app",
            "image": "app:1",
            "env": [{"name": "A", "value": "ä"}, {"name": "QUEUE", "value": URL + SOURCE}],
        },
        {"name": "side", "image": "side:1", "env": [{"name": "QUEUE", "value": URL + "others"}]},
    ]
}
BY_KEY: Json = {
    "containers": [
        {
            "name": "app",
            "image": "app:1",
            "env": [{"name": "QUEUE", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "QUEUE"}}}],
        }
    ]
}
FROM_ALL: Json = {
    "containers": [
        {"name": "app", "image": "app:1", "envFrom": [{"prefix": "SHOP_", "configMapRef": {"name": "settings"}}]}
    ]
}
BARE: Json = {"containers": [{"name": "app", "image": "app:1"}]}
MOUNTED: Json = {
    "containers": [{"name": "app", "image": "app:1", "volumeMounts": [{"name": "config", "mountPath": "/etc/shop"}]}],
    "volumes": [{"name": "config", "configMap": {"name": "files"}}],
}
FILE: dict[str, Any] = {"volume": "config", "file": "shop.json", "place": Place(path=("queue",))}
# The pod, where it says which queue it reads, and what the first container of new pods sees then.
PLACES: dict[str, tuple[Json, dict[str, Any], dict[str, str]]] = {
    "a literal": (LITERAL, {"env": "QUEUE"}, {"A": "ä", "QUEUE": URL + MAIN}),
    "a literal of a named container": (
        LITERAL,
        {"env": "QUEUE", "containers": ("app",)},
        {"A": "ä", "QUEUE": URL + MAIN},
    ),
    "a key of a ConfigMap": (BY_KEY, {"env": "QUEUE"}, {"QUEUE": URL + MAIN}),
    "all of a ConfigMap": (FROM_ALL, {"env": "SHOP_QUEUE"}, {"SHOP_QUEUE": URL + MAIN, "SHOP_PRICE": "$1"}),
    "a pattern": (FROM_ALL, {"env_like": "SHOP_.*"}, {"SHOP_QUEUE": URL + MAIN, "SHOP_PRICE": "$1"}),
    "a fallback": (BARE, {"env": "QUEUE", "containers": ("app",), "fallback": SOURCE}, {"QUEUE": MAIN}),
    "a file": (MOUNTED, FILE, {"shop.json": f'{{"queue": "{URL + MAIN}"}}', "logo": "…"}),
}
SCALED: Json = {
    "kind": "ScaledObject",
    "metadata": {"name": "orders"},
    "spec": {
        "scaleTargetRef": {"name": "orders"},
        "triggers": [
            {"type": "cron", "metadata": {"timezone": "UTC"}},
            {"type": "aws-sqs-queue", "metadata": {"queueURL": URL + SOURCE, "queueLength": "5"}},
            {"type": "aws-sqs-queue", "metadata": {"queueURL": URL + "others"}},
            {"type": "aws-sqs-queue", "metadata": {"queueURLFromEnv": "QUEUE"}},
        ],
    },
}


def made(server: Server, roles: list[Json] | None = None) -> Cluster:
    cluster = Cluster(admin=server.admin, role=server.role)
    cluster.allow(roles)
    cluster.config_map("settings", QUEUE=URL + SOURCE, PRICE="$1")
    cluster.config_map("files", **{"shop.json": f'{{"queue": "{URL + SOURCE}"}}', "logo": "…"})
    return cluster


def consumers(api: Api, *, now_ms: int = 0) -> AwsConsumers:
    def refused(service: str) -> Any:
        raise AssertionError(f"asked for {service}")

    return AwsConsumers(client=refused, arn_prefix=PREFIX, now_ms=lambda: now_ms, cluster=lambda _: api)


def there(
    ours: AwsConsumers,
    target: KubernetesWorkload,
    original: str,
    cluster: Cluster,
    *,
    queues: tuple[str, str] = (MAIN, SOURCE),
) -> None:
    """Point it at the first of two queues instead of the second, while its controller does its part."""
    queue, instead_of = queues
    until_true(
        lambda: ours.point(target, original, queue=queue, instead_of=(instead_of,)),
        meanwhile=lambda: cluster.roll(target.kind),
    )


def back(ours: AwsConsumers, target: KubernetesWorkload, original: str, cluster: Cluster) -> None:
    there(ours, target, original, cluster, queues=(SOURCE, MAIN))


def read(cluster: Cluster, kind: str = "Deployment") -> dict[str, str]:
    """What the first container of new pods sees, its variables and its files, as a kubelet would have it."""
    pod = cluster.workload(kind)["spec"]["template"]["spec"]
    found, maps = dict[str, str](), api_path("v1", cluster.namespace, "configmaps")
    for source in pod["containers"][0].get("envFrom", []):
        data = cluster.admin.get_object(f"{maps}/{source['configMapRef']['name']}")["data"]
        found |= {source.get("prefix", "") + key: value for key, value in data.items()}
    for entry in pod["containers"][0].get("env", []):
        if "valueFrom" in entry:
            ref = entry["valueFrom"]["configMapKeyRef"]
            found[entry["name"]] = cluster.admin.get_object(f"{maps}/{ref['name']}")["data"][ref["key"]]
        else:
            found[entry["name"]] = entry["value"].replace("$$", "$")
    for volume in pod.get("volumes", []):
        found |= cluster.admin.get_object(f"{maps}/{volume['configMap']['name']}")["data"]
    return found


def state(cluster: Cluster, kind: str = "Deployment") -> tuple[Json, Json, list[str]]:
    """What may not have changed in the end."""
    workload = cluster.workload(kind)
    own = {"generation", "managedFields", "resourceVersion"}
    metadata = {key: value for key, value in workload["metadata"].items() if key not in own}
    return workload["spec"], metadata, cluster.config_maps()


def scaled(cluster: Cluster) -> list[Json]:
    found = cluster.admin.get_object(api_path(KEDA, cluster.namespace, "scaledobjects", "orders"))
    return [trigger["metadata"] for trigger in found["spec"]["triggers"]]
