"""How far a workload is with replacing its pods, as its controller says it. Pure."""

from collections.abc import Mapping
from typing import Any

import msgspec

from sluice.splitting.consumers.environments import Json

GAVE_UP = "ProgressDeadlineExceeded"


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """Whether all pods are of the workload as it is and serve, and if not for what it waits.

    `gave_up`: its controller says that it doesn't get there.
    """

    waits_for: str = ""
    gave_up: bool = False

    @property
    def is_done(self) -> bool:
        """Nothing is waited for."""
        return not self.waits_for


def obstacle(workload: Json) -> str | None:
    """Say why the workload wouldn't replace its pods by itself, None where it does."""
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


def progress(workload: Json) -> Progress:
    """Read how far the workload is, as its own kind says it."""
    status: Json = workload.get("status") or {}
    if not _is_seen(workload, status):
        return Progress(waits_for="its controller")
    given_up = _given_up(status)
    if given_up:
        return Progress(waits_for=given_up, gave_up=True)
    replicas = workload["spec"].get("replicas")
    wanted = 1 if replicas is None else replicas
    total, updated = status.get("replicas") or 0, status.get("updatedReplicas") or 0
    # Of a StatefulSet since 1.22 only.
    available = status.get("availableReplicas", status.get("readyReplicas")) or 0
    if updated < wanted or total != updated or available < wanted:
        counts = f"{updated} of {wanted} pods are new, {available} available, {total} in all"
        return Progress(waits_for=f"{_phase(status)}{counts}")
    if status.get("updateRevision", "") != status.get("currentRevision", status.get("updateRevision", "")):
        return Progress(waits_for="its last revision's pods")
    if status.get("phase", "Healthy") != "Healthy":
        return Progress(waits_for=_phase(status).removesuffix(": "))
    return Progress()


def _is_seen(workload: Json, status: Mapping[str, Any]) -> bool:
    """Whether the status is about the workload as it is. Argo Rollouts writes the number as a text."""
    return str(status.get("observedGeneration", "")) == str(workload["metadata"].get("generation"))


def _given_up(status: Mapping[str, Any]) -> str | None:
    for condition in status.get("conditions") or []:
        if condition.get("type") == "Progressing" and condition.get("reason") == GAVE_UP:
            return f"{GAVE_UP}: {condition.get('message', '')}"
    if status.get("abort") or status.get("phase") == "Degraded":
        return _phase(status).removesuffix(": ") or "it was aborted"
    return None


def _phase(status: Mapping[str, Any]) -> str:
    """Write an Argo Rollout's phase, which says what it waits for."""
    phase, message = status.get("phase"), status.get("message")
    return "".join(f"{each}: " for each in (phase, message) if each)
