"""Predicts how a cluster's controllers treat a workload: its own controller, Argo CD, Flux and KEDA. Pure.

The workload's own controller reports the progress of replacing pods. Argo CD and Flux would undo changes that aren't in
their repository. KEDA scales the workload by the queue that it reads. A KEDA trigger that names the queue is rewritten.
A trigger that reads the name from a variable of the workload keeps using the old queue as long as this queue exists. So
the new name is added to the trigger, where it takes precedence, until the consumer is moved back.
https://keda.sh/docs/latest/scalers/aws-sqs/
"""

from collections.abc import Collection, Iterator, Mapping
from copy import deepcopy
from typing import Any

import msgspec

from sluice.errors import BadConsumer
from sluice.splitting.consumers.rewriting import rewrite
from sluice.splitting.consumers.targets import KubernetesWorkload, Place
from sluice.splitting.consumers.temporary_queues import PREFIX
from sluice.splitting.consumers.workloads import Json

MANAGER = "sluice"  # Argo CD can be told to ignore changes by this field manager.
TRACKED = "argocd.argoproj.io/tracking-id"
INSTANCE = "argocd.argoproj.io/instance"
COMMON = "app.kubernetes.io/instance"
FLUX = "kustomize.toolkit.fluxcd.io/"
OFF = frozenset({"disabled", "Ignore", "IfNotPresent"})
GROUPS = {"Deployment": "apps", "StatefulSet": "apps", "Rollout": "argoproj.io"}
NAMED, BY_VARIABLE = "queueURL", "queueURLFromEnv"
GAVE_UP = "ProgressDeadlineExceeded"


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of a rollout. `waits_for` is the reason to wait, empty once all pods are current and available.

    `gave_up`: the controller reports that the rollout failed.
    """

    waits_for: str = ""
    gave_up: bool = False


def find_obstacle(workload: Json) -> str | None:
    """Return the reason why the workload wouldn't replace its pods after a change; None if it would."""
    spec = workload["spec"]
    strategy = spec.get("updateStrategy") or {}
    partition = (strategy.get("rollingUpdate") or {}).get("partition") or 0
    if spec.get("workloadRef"):
        ref = spec["workloadRef"]
        return f"it takes its pods from {ref.get('kind')} {ref.get('name')} by workloadRef, which is not followed"
    if spec.get("paused"):
        return "it is paused, and replaces no pods"
    if strategy.get("type") == "OnDelete":
        return "its update strategy is OnDelete: pods stay until somebody deletes them"
    if partition:
        return f"its rolling update stops at partition {partition}"
    return None


def read_progress(workload: Json) -> Progress:
    """Read the progress of the workload's rollout from its status."""
    status: Json = workload.get("status") or {}
    # Argo Rollouts writes this number as a string.
    if str(status.get("observedGeneration", "")) != str(workload["metadata"].get("generation")):
        return Progress(waits_for="its controller")
    given_up = _find_failure_reason(status)
    if given_up:
        return Progress(waits_for=given_up, gave_up=True)
    replicas = workload["spec"].get("replicas")
    desired = 1 if replicas is None else replicas
    total, updated = status.get("replicas") or 0, status.get("updatedReplicas") or 0
    # StatefulSets have `availableReplicas` only since Kubernetes 1.22.
    available = status.get("availableReplicas", status.get("readyReplicas")) or 0
    if updated < desired or total != updated or available < desired:
        counts = f"{updated} of {desired} pods are new, {available} available, {total} in all"
        return Progress(waits_for=f"{_format_phase(status)}{counts}")
    if status.get("updateRevision", "") != status.get("currentRevision", status.get("updateRevision", "")):
        return Progress(waits_for="its last revision's pods")
    if status.get("phase", "Healthy") != "Healthy":
        return Progress(waits_for=_format_phase(status).removesuffix(": "))
    return Progress()


def _find_failure_reason(status: Mapping[str, Any]) -> str | None:
    for condition in status.get("conditions") or []:
        if condition.get("type") == "Progressing" and condition.get("reason") == GAVE_UP:
            return f"{GAVE_UP}: {condition.get('message', '')}"
    if status.get("abort") or status.get("phase") == "Degraded":
        return _format_phase(status).removesuffix(": ") or "it was aborted"
    return None


def _format_phase(status: Mapping[str, Any]) -> str:
    """Write an Argo Rollout's phase and message, which explain why the rollout waits."""
    phase, message = status.get("phase"), status.get("message")
    return "".join(f"{text}: " for text in (phase, message) if text)


class Tracking(msgspec.Struct, frozen=True, kw_only=True):
    """An Argo CD Application that may manage an object. It isn't `certain` if other tools use the same label too."""

    namespace: str
    application: str
    certain: bool


def find_trackings(resource: Json, *, namespace: str) -> Iterator[Tracking]:
    """Yield the Argo CD Applications that may manage the object. An Application without a namespace is in `namespace`.

    https://argo-cd.readthedocs.io/en/stable/user-guide/resource_tracking/
    """
    annotations, labels = resource["metadata"].get("annotations") or {}, resource["metadata"].get("labels") or {}
    texts = [
        (annotations.get(TRACKED, "").split(":")[0], True),
        (annotations.get(INSTANCE) or labels.get(INSTANCE, ""), True),
        (labels.get(COMMON, ""), False),
    ]
    for text, certain in texts:
        if text:
            # A name with a namespace is written `<namespace>_<name>`; names have no underscores.
            of, _, name = text.rpartition("_")
            yield Tracking(namespace=of or namespace, application=name, certain=certain)


def reverts_changes(application: Json, resource: Json) -> bool:
    """Return whether Argo CD reverts Sluice's changes of the object. It can be configured to ignore these changes."""
    automated = (application["spec"].get("syncPolicy") or {}).get("automated") or {}
    if not automated.get("selfHeal") or automated.get("enabled") is False:
        return False
    group, metadata = resource["apiVersion"].rpartition("/")[0], resource["metadata"]
    return not any(
        MANAGER in (ignored.get("managedFieldsManagers") or [])
        and ignored.get("group", "") in {group, "*"}
        and ignored.get("kind") in {resource["kind"], "*"}
        and ignored.get("name", metadata["name"]) == metadata["name"]
        and ignored.get("namespace", metadata["namespace"]) == metadata["namespace"]
        for ignored in application["spec"].get("ignoreDifferences") or []
    )


def find_kustomization(resource: Json) -> str | None:
    """Return the name of the Flux Kustomization that keeps reapplying the object; None if no Kustomization does."""
    annotations, labels = resource["metadata"].get("annotations") or {}, resource["metadata"].get("labels") or {}
    settings = {annotations.get(FLUX + "reconcile"), annotations.get(FLUX + "ssa")}
    name: str | None = labels.get(FLUX + "name")
    return None if settings & OFF else name


def is_scaling(scaled_object: Json, target: KubernetesWorkload) -> bool:
    """Return whether a KEDA ScaledObject scales the workload."""
    ref = scaled_object["spec"].get("scaleTargetRef") or {}
    group = ref.get("apiVersion", "apps/v1").partition("/")[0]
    same = ref.get("name") == target.name and ref.get("kind", "Deployment") == target.kind
    return bool(same and group == GROUPS[target.kind])


def check_scaled_object(scaled_object: Json, target: KubernetesWorkload) -> None:
    """Check that Sluice can revert its change of the ScaledObject. Raises `BadConsumer`."""
    for number, metadata in _list_sqs_triggers(scaled_object):
        if metadata.get(NAMED) and metadata.get(BY_VARIABLE):
            raise BadConsumer(
                _name_trigger(scaled_object, target, number), f"names its queue by both {NAMED} and {BY_VARIABLE}"
            )


def rewrite_triggers(
    scaled_object: Json, target: KubernetesWorkload, values: Mapping[str, str], *, old: Collection[str], new: str
) -> Json:
    """Make KEDA triggers that name a queue of `old` name `new` instead. Other triggers stay unchanged. Queues are ARNs.

    `values` has the current values of the workload's rewritten variables, by name.
    """
    changed = deepcopy(scaled_object)
    for number, metadata in _list_sqs_triggers(changed):
        variable, named = metadata.get(BY_VARIABLE), metadata.get(NAMED)
        is_temporary = PREFIX in new.rpartition(":")[2]
        if named and variable and PREFIX in named and not is_temporary:
            del metadata[NAMED]
        elif variable and not named and is_temporary and variable in values:
            metadata[NAMED] = values[variable]
        elif named:
            try:
                metadata[NAMED] = rewrite(named, Place(), old=old, new=new, of=_name_trigger(changed, target, number))
            except BadConsumer:
                continue  # This trigger names another queue.
    return changed


def _list_sqs_triggers(scaled_object: Json) -> list[tuple[int, Json]]:
    triggers = scaled_object["spec"].get("triggers") or []
    return [
        (number, trigger["metadata"])
        for number, trigger in enumerate(triggers)
        if trigger.get("type") == "aws-sqs-queue"
    ]


def _name_trigger(scaled_object: Json, target: KubernetesWorkload, number: int) -> str:
    return f"trigger {number} of ScaledObject {target.cluster}/{target.namespace}/{scaled_object['metadata']['name']}"
