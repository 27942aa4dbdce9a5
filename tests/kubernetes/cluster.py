"""A cluster for tests: a namespace with workloads, the role of the documents, and the controllers, which a test plays.

It is the same over any API server: nothing here knows which one it is.
"""

import itertools
import os
import re
import time
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from sluice.errors import CallFailed
from sluice.kubernetes.api import Api, api_path
from sluice.splitting.consumers.targets import KubernetesWorkload

Json = dict[str, Any]
DOCUMENT = Path(__file__).parents[2] / "docs" / "splitting.md"
APPS, ARGO, KEDA, RBAC = "apps/v1", "argoproj.io/v1alpha1", "keda.sh/v1alpha1", "rbac.authorization.k8s.io/v1"
PLURALS = {"Deployment": (APPS, "deployments"), "StatefulSet": (APPS, "statefulsets"), "Rollout": (ARGO, "rollouts")}
WAIT_S = 20  # for what a real server does in its own time
_numbers = itertools.count(1)


def documented_roles() -> list[Json]:
    """What docs/splitting.md has operators apply."""
    blocks = re.findall(r"```yaml\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    return [each for block in blocks for each in yaml.safe_load_all(block) if each.get("apiVersion") == RBAC]


@dataclass
class Cluster:
    """One namespace and one of Argo CD's, of their own: any number of tests share a server."""

    admin: Api
    role: Api
    namespace: str = ""
    argo: str = ""
    numbers: Any = field(default_factory=lambda: itertools.count(1))

    def __post_init__(self) -> None:
        name = f"{os.getpid()}-{next(_numbers)}"
        self.namespace, self.argo = f"shop-{name}", f"argocd-{name}"
        for each in (self.namespace, self.argo):
            self.admin.create_object("/api/v1/namespaces", {"metadata": {"name": each}})

    def allow(self, roles: list[Json] | None = None) -> None:
        """Apply the documents' roles, or others in their place, and wait until they hold."""
        names = {"shop": self.namespace, "argocd": self.argo}
        for each in deepcopy(documented_roles() if roles is None else roles):
            each["metadata"]["namespace"] = names[each["metadata"]["namespace"]]
            plural = f"{each['kind'].lower()}s"
            self.admin.create_object(api_path(RBAC, each["metadata"]["namespace"], plural), each)
        self.wait_for_rights(True)
        eventually(lambda: not is_forbidden(self.role, api_path(ARGO, self.argo, "applications", "none")))

    def wait_for_rights(self, there: bool) -> None:
        """Wait until the role has its rights, or none any more."""
        eventually(lambda: is_forbidden(self.role, api_path("v1", self.namespace, "pods")) is not there)

    def put(self, group_version: str, plural: str, body: Json, *, namespace: str | None = None) -> Json:
        where = namespace or self.namespace
        kind = body.get("kind") or {"configmaps": "ConfigMap", "pods": "Pod"}[plural]
        whole = {"apiVersion": group_version, "kind": kind, **body}
        return self.admin.create_object(api_path(group_version, where, plural), whole)

    def config_map(self, name: str, **data: str) -> None:
        self.put("v1", "configmaps", {"metadata": {"name": name}, "data": data})

    def config_maps(self) -> list[str]:
        found = self.admin.list_objects(api_path("v1", self.namespace, "configmaps"))
        return [each["metadata"]["name"] for each in found if each["metadata"]["name"] != "kube-root-ca.crt"]

    def deploy(self, pod: Json, *, kind: str = "Deployment", spec: Json | None = None, **metadata: Any) -> None:
        """Make a workload of this kind, with two pods that serve already."""
        group_version, plural = PLURALS[kind]
        labels = {"app": "orders"}
        whole: Json = {
            "replicas": 2,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
            **({"serviceName": "orders"} if kind == "StatefulSet" else {}),
            **(spec or {}),
        }
        self.put(group_version, plural, {"kind": kind, "metadata": {"name": "orders", **metadata}, "spec": whole})
        self.roll(kind)

    def workload(self, kind: str = "Deployment") -> Json:
        group_version, plural = PLURALS[kind]
        return self.admin.get_object(api_path(group_version, self.namespace, plural, "orders"))

    def change(self, kind: str, change: Callable[[Json], None]) -> None:
        """Change the workload as its owner does."""
        group_version, plural = PLURALS[kind]
        found = self.workload(kind)
        change(found)
        self.admin.replace_object(api_path(group_version, self.namespace, plural, "orders"), found)

    # What controllers do.

    def roll(self, kind: str = "Deployment") -> None:
        """Replace the pods, all the way."""
        self.begin(kind)
        self.retire(kind)
        self.reap(kind)

    def begin(self, kind: str = "Deployment") -> None:
        """Make the new pods that aren't there yet; the old ones run on."""
        workload = self.workload(kind)
        template = workload["spec"]["template"]
        new, _ = self.new_and_old(workload)
        for _ in range(len(new), workload["spec"]["replicas"]):
            metadata = {"name": f"orders-{next(self.numbers)}", "labels": template["metadata"]["labels"]}
            self.put("v1", "pods", {"metadata": metadata, "spec": {**template["spec"], "nodeName": "node"}})
        self.tell(kind)

    def retire(self, kind: str = "Deployment") -> None:
        """Let the old pods terminate, which the status doesn't count any more."""
        for each in self.new_and_old(self.workload(kind))[1]:
            self.admin.delete_object(api_path("v1", self.namespace, "pods", each["metadata"]["name"]))
        self.tell(kind)

    def reap(self, kind: str = "Deployment") -> None:
        """Let the old pods be gone."""
        for each in self.new_and_old(self.workload(kind))[1]:
            path = api_path("v1", self.namespace, "pods", each["metadata"]["name"])
            self.admin.send("DELETE", f"{path}?gracePeriodSeconds=0", None)

    def pods(self) -> list[Json]:
        return list(self.admin.list_objects(api_path("v1", self.namespace, "pods")))

    def new_and_old(self, workload: Json) -> tuple[list[Json], list[Json]]:
        """Tell pods of the workload's template from others."""
        wanted = workload["spec"]["template"]["spec"]
        sides: tuple[list[Json], list[Json]] = [], []
        for pod in self.pods():
            same = all(seen(pod["spec"].get(name)) == seen(wanted.get(name)) for name in ("containers", "volumes"))
            sides[0 if same else 1].append(pod)
        return sides

    def tell(self, kind: str = "Deployment", **more: Any) -> None:
        """Write the status: pods that terminate aren't counted."""
        workload = self.workload(kind)
        generation = workload["metadata"]["generation"]
        new, old = (
            sum("deletionTimestamp" not in each["metadata"] for each in side) for side in self.new_and_old(workload)
        )
        status = {
            "observedGeneration": str(generation) if kind == "Rollout" else generation,
            "replicas": new + old,
            "updatedReplicas": new,
            "readyReplicas": new + old,
            "availableReplicas": new + old,
            **more,
        }
        group_version, plural = PLURALS[kind]
        path = f"{api_path(group_version, self.namespace, plural, 'orders')}/status"
        self.admin.replace_object(path, {**workload, "status": status})


def seen(found: Any) -> Any:
    """Of containers and volumes only what tests set: servers put defaults beside it."""
    known = {"name", "image", "env", "envFrom", "configMap", "key", "value", "valueFrom"}
    if isinstance(found, list):
        return [seen(each) for each in found] or None
    if not isinstance(found, dict):
        return found
    return {key: seen(value) for key, value in found.items() if key in known or key.endswith("Ref")}


def eventually(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT_S
    while not holds():
        if time.monotonic() > end:
            raise AssertionError(f"not so after {WAIT_S} s")
        time.sleep(0.02)


def is_forbidden(api: Api, path: str) -> bool:
    try:
        api.get_object(path)
    except CallFailed as error:
        return error.code == "Forbidden"
    return False


def target_of(cluster: Cluster, **fields: Any) -> KubernetesWorkload:
    """A target in the cluster, of a Deployment unless said otherwise."""
    told = {"kind": "Deployment", "name": "orders", "argo_cd_namespace": cluster.argo, **fields}
    return KubernetesWorkload(cluster="theirs", namespace=cluster.namespace, **told)
