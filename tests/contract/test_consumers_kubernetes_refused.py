"""Workloads of a Kubernetes cluster that can't be re-pointed, or whose rollout doesn't end: said with the reason.

And who else is at them: KEDA follows, Argo CD and Flux mustn't undo it.
"""

from typing import Any

import pytest

from sluice.errors import BadConsumer, CallFailed
from tests.kubernetes.cluster import ARGO, KEDA, Cluster, Json, documented_roles, target_of
from tests.kubernetes.servers import Server
from tests.kubernetes.workloads import (
    FILE,
    KINDS,
    LITERAL,
    MAIN,
    MOUNTED,
    SCALED,
    SOURCE,
    URL,
    back,
    consumers,
    made,
    scaled,
    state,
    there,
)


def test_keda_scales_by_the_queue_that_is_read(cluster: Cluster) -> None:
    cluster.deploy(LITERAL)
    cluster.put(KEDA, "scaledobjects", SCALED)
    target, ours = target_of(cluster, env="QUEUE"), consumers(cluster.role)
    original = ours.read_original(target, queue=SOURCE)
    there(ours, target, original, cluster)
    assert scaled(cluster) == [
        {"timezone": "UTC"},
        {"queueURL": URL + MAIN, "queueLength": "5"},
        {"queueURL": URL + "others"},
        {"queueURLFromEnv": "QUEUE", "queueURL": URL + MAIN},
    ]
    back(ours, target, original, cluster)
    assert scaled(cluster) == [trigger["metadata"] for trigger in SCALED["spec"]["triggers"]]


@pytest.mark.parametrize("ref", [{"name": "others"}, {"name": "orders", "kind": "StatefulSet"}])
def test_what_keda_scales_beside_it_stays(cluster: Cluster, ref: Json) -> None:
    cluster.deploy(LITERAL)
    cluster.put(KEDA, "scaledobjects", {**SCALED, "spec": {**SCALED["spec"], "scaleTargetRef": ref}})
    target, ours = target_of(cluster, env="QUEUE"), consumers(cluster.role)
    there(ours, target, ours.read_original(target, queue=SOURCE), cluster)
    assert scaled(cluster) == [trigger["metadata"] for trigger in SCALED["spec"]["triggers"]]


def test_a_trigger_that_names_its_queue_twice_is_refused(cluster: Cluster) -> None:
    cluster.deploy(LITERAL)
    twice = {"type": "aws-sqs-queue", "metadata": {"queueURL": URL + SOURCE, "queueURLFromEnv": "QUEUE"}}
    cluster.put(KEDA, "scaledobjects", {**SCALED, "spec": {**SCALED["spec"], "triggers": [twice]}})
    cause = "trigger 0 of ScaledObject theirs/.*/orders: names its queue by both queueURL and queueURLFromEnv"
    with pytest.raises(BadConsumer, match=cause):
        consumers(cluster.role).read_original(target_of(cluster, env="QUEUE"), queue=SOURCE)


HEALS: Json = {"syncPolicy": {"automated": {"selfHeal": True}}}
OURS = {"group": "apps", "kind": "Deployment", "managedFieldsManagers": ["sluice"]}
LABEL, INSTANCE = "app.kubernetes.io/instance", "argocd.argoproj.io/instance"
TRACKED = "argocd.argoproj.io/tracking-id"


@pytest.mark.parametrize(
    ("metadata", "spec", "refused"),
    [
        ({"labels": {LABEL: "shop"}}, HEALS, True),
        ({"labels": {INSTANCE: "shop"}}, HEALS, True),
        ({"annotations": {TRACKED: "shop:apps/Deployment:shop/orders"}}, HEALS, True),
        ({"annotations": {TRACKED: "{argo}_shop:apps/Deployment:shop/orders"}}, HEALS, True),
        ({}, HEALS, False),
        ({"labels": {LABEL: "others"}}, HEALS, False),
        ({"labels": {LABEL: "shop"}}, {"syncPolicy": {"automated": {"prune": True}}}, False),
        ({"labels": {LABEL: "shop"}}, {"syncPolicy": {"automated": {"selfHeal": True, "enabled": False}}}, False),
        ({"labels": {LABEL: "shop"}}, {}, False),
        ({"labels": {LABEL: "shop"}}, {**HEALS, "ignoreDifferences": [OURS]}, False),
        ({"labels": {LABEL: "shop"}}, {**HEALS, "ignoreDifferences": [{**OURS, "name": "orders"}]}, False),
        ({"labels": {LABEL: "shop"}}, {**HEALS, "ignoreDifferences": [{**OURS, "name": "others"}]}, True),
        ({"labels": {LABEL: "shop"}}, {**HEALS, "ignoreDifferences": [{**OURS, "kind": "StatefulSet"}]}, True),
        ({"labels": {LABEL: "shop"}}, {**HEALS, "ignoreDifferences": [{**OURS, "managedFieldsManagers": []}]}, True),
    ],
)
def test_what_argo_cd_would_undo_is_refused(cluster: Cluster, metadata: Json, spec: Json, refused: bool) -> None:
    """`refused` where the Application heals itself, and doesn't leave alone what we change."""
    told: Json = {
        of: {key: text.format(argo=cluster.argo) for key, text in each.items()} for of, each in metadata.items()
    }
    cluster.deploy(LITERAL, **told)
    application = {"kind": "Application", "metadata": {"name": "shop"}, "spec": spec}
    cluster.put(ARGO, "applications", application, namespace=cluster.argo)
    target, ours = target_of(cluster, env="QUEUE"), consumers(cluster.role)
    if not refused:
        ours.read_original(target, queue=SOURCE)
        return
    with pytest.raises(BadConsumer) as raised:
        ours.read_original(target, queue=SOURCE)
    assert str(raised.value) == (
        f"Deployment theirs/{cluster.namespace}/orders: Argo CD's Application {cluster.argo}/shop heals itself and "
        "would undo the change: turn selfHeal off, or ignore what manager sluice has changed"
    )


def test_an_application_that_is_not_where_it_is_looked_for_is_asked_for(cluster: Cluster) -> None:
    cluster.deploy(LITERAL, annotations={TRACKED: "shop:apps/Deployment:shop/orders"})
    cause = f"it is of Argo CD's Application {cluster.argo}/shop, which isn't there: set argo_cd_namespace"
    with pytest.raises(BadConsumer, match=cause):
        consumers(cluster.role).read_original(target_of(cluster, env="QUEUE"), queue=SOURCE)


def test_what_argo_cd_does_has_to_be_known(cluster: Cluster) -> None:
    cluster.deploy(LITERAL, labels={LABEL: "shop"})
    cause = "whether Argo CD's Application nowhere/shop would undo the change can't be read: .*: Forbidden: "
    with pytest.raises(BadConsumer, match=cause):
        consumers(cluster.role).read_original(
            target_of(cluster, env="QUEUE", argo_cd_namespace="nowhere"), queue=SOURCE
        )


@pytest.mark.parametrize("annotation", [{}, {"kustomize.toolkit.fluxcd.io/reconcile": "disabled"}])
def test_what_flux_applies_again_is_refused_unless_it_is_told_not_to(cluster: Cluster, annotation: Json) -> None:
    cluster.deploy(LITERAL, labels={"kustomize.toolkit.fluxcd.io/name": "shop"}, annotations=annotation)
    target, ours = target_of(cluster, env="QUEUE"), consumers(cluster.role)
    if annotation:
        ours.read_original(target, queue=SOURCE)
        return
    with pytest.raises(BadConsumer, match="Flux's Kustomization shop would undo the change: annotate it kustomize"):
        ours.read_original(target, queue=SOURCE)


LATE_MS = 10**15  # any time after


@pytest.mark.parametrize("kind", KINDS)
def test_a_rollout_that_takes_too_long_is_given_up_and_on_the_way_back_waited_for(cluster: Cluster, kind: str) -> None:
    cluster.deploy(LITERAL, kind=kind)
    target = target_of(cluster, kind=kind, env="QUEUE", timeout_s=90)
    soon, late = consumers(cluster.role), consumers(cluster.role, now_ms=LATE_MS)
    original = soon.read_original(target, queue=SOURCE)
    assert not late.point(target, original, queue=MAIN, instead_of=(SOURCE,))
    cluster.begin(kind)
    assert not soon.point(target, original, queue=MAIN, instead_of=(SOURCE,))
    with pytest.raises(BadConsumer, match="not rolled out after 90 s: 2 of 2 pods are new, 4 available, 4 in all"):
        late.point(target, original, queue=MAIN, instead_of=(SOURCE,))
    assert not late.point(target, original, queue=SOURCE, instead_of=(MAIN,))
    cluster.begin(kind)
    with pytest.raises(CallFailed, match=r"rollout of variable QUEUE of .*: TimedOut: not rolled out after 90 s: "):
        late.point(target, original, queue=SOURCE, instead_of=(MAIN,))
    cluster.roll(kind)
    assert late.point(target, original, queue=SOURCE, instead_of=(MAIN,))


@pytest.mark.parametrize(
    ("kind", "status", "reason"),
    [
        (
            "Deployment",
            {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded", "message": "no image"},
            "ProgressDeadlineExceeded: no image",
        ),
        ("Rollout", {"phase": "Degraded", "message": "aborted"}, "Degraded: aborted"),
    ],
)
def test_what_a_controller_gives_up_is_given_up(cluster: Cluster, kind: str, status: Json, reason: str) -> None:
    cluster.deploy(LITERAL, kind=kind)
    target, ours = target_of(cluster, kind=kind, env="QUEUE"), consumers(cluster.role)
    original = ours.read_original(target, queue=SOURCE)
    assert not ours.point(target, original, queue=MAIN, instead_of=(SOURCE,))
    cluster.begin(kind)
    cluster.tell(kind, **({"conditions": [status]} if kind == "Deployment" else status))
    with pytest.raises(BadConsumer, match=reason):
        ours.point(target, original, queue=MAIN, instead_of=(SOURCE,))
    assert not ours.point(target, original, queue=SOURCE, instead_of=(MAIN,))
    cluster.begin(kind)
    cluster.tell(kind, **({"conditions": [status]} if kind == "Deployment" else status))
    with pytest.raises(CallFailed, match=reason):
        ours.point(target, original, queue=SOURCE, instead_of=(MAIN,))


def test_a_rollout_that_pauses_says_so(cluster: Cluster) -> None:
    cluster.deploy(LITERAL, kind="Rollout")
    target, ours = target_of(cluster, kind="Rollout", env="QUEUE"), consumers(cluster.role)
    original = ours.read_original(target, queue=SOURCE)
    assert not ours.point(target, original, queue=MAIN, instead_of=(SOURCE,))
    cluster.begin("Rollout")
    cluster.tell("Rollout", phase="Paused", message="CanaryPauseStep")
    assert not ours.point(target, original, queue=MAIN, instead_of=(SOURCE,))
    with pytest.raises(BadConsumer, match="not rolled out after 600 s: Paused: CanaryPauseStep: 2 of 2 pods are new"):
        consumers(cluster.role, now_ms=LATE_MS).point(target, original, queue=MAIN, instead_of=(SOURCE,))


@pytest.mark.parametrize(
    ("kind", "spec", "cause"),
    [
        ("Deployment", {"paused": True}, "it is paused, and replaces no pods"),
        ("StatefulSet", {"updateStrategy": {"type": "OnDelete"}}, "OnDelete: pods stay until somebody deletes them"),
        (
            "StatefulSet",
            {"updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 1}}},
            "its rolling update stops at partition 1",
        ),
        (
            "Rollout",
            {"workloadRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "their"}},
            "it takes its pods from Deployment their by workloadRef, which is not followed",
        ),
    ],
)
def test_what_would_not_replace_its_pods_is_refused(cluster: Cluster, kind: str, spec: Json, cause: str) -> None:
    cluster.deploy(LITERAL, kind=kind, spec=spec)
    with pytest.raises(BadConsumer, match=cause):
        consumers(cluster.role).read_original(target_of(cluster, kind=kind, env="QUEUE"), queue=SOURCE)


@pytest.mark.parametrize(
    ("pod", "told", "cause"),
    [
        (LITERAL, {"env": "QUEUE", "name": "other"}, "Deployment theirs/{}/other: there is no such Deployment"),
        (LITERAL, {"env": "QUEUE", "containers": ("x",)}, "there is no container x"),
        (LITERAL, {"env": "X"}, "variable X of Deployment theirs/{}/orders: isn't set"),
        (LITERAL, {"env": "A"}, "variable A of container app of Deployment theirs/{}/orders: doesn't name orders"),
        (
            LITERAL,
            {"env": "QUEUE", "containers": ("app", "side")},
            "QUEUE of container side of .*: doesn't name orders",
        ),
        (LITERAL, {"env_like": "Q("}, "no pattern: "),
        (MOUNTED, {"volume": "x", "file": "y"}, "file y of volume x of .*: there is no such volume"),
        (MOUNTED, {"volume": "config", "file": "y"}, "ConfigMap files doesn't have it"),
        (MOUNTED, {"volume": "config", "file": "logo"}, "doesn't name orders"),
        (
            {**MOUNTED, "volumes": [{"name": "config", "secret": {"secretName": "s"}}]},
            FILE,
            "the volume is of a Secret, which isn't read",
        ),
        (
            {**MOUNTED, "volumes": [{"name": "config", "emptyDir": {}}]},
            FILE,
            "the volume is emptyDir, and not of a Conf",
        ),
        (
            {**MOUNTED, "volumes": [{"name": "config", "configMap": {"name": "none"}}]},
            FILE,
            "there is no ConfigMap none",
        ),
    ],
)
def test_what_does_not_read_the_queue_is_refused(cluster: Cluster, pod: Json, told: dict[str, Any], cause: str) -> None:
    cluster.deploy(pod)
    before = state(cluster)
    with pytest.raises(BadConsumer, match=cause.format(cluster.namespace)):
        consumers(cluster.role).read_original(target_of(cluster, **told), queue=SOURCE)
    assert state(cluster) == before


@pytest.mark.parametrize("missing", ["get", "update", "list"])
def test_what_the_role_may_not_do_fails_with_the_servers_own_reason(server: Server, missing: str) -> None:
    roles = documented_roles()
    for role in roles:
        for rule in role.get("rules", []):
            if rule["resources"] != ["applications"] and "pods" not in rule["resources"]:
                rule["verbs"] = [verb for verb in rule["verbs"] if verb != missing]
    cluster = made(server, roles)
    cluster.deploy(LITERAL)
    target, ours = target_of(cluster, env="QUEUE"), consumers(cluster.role)
    with pytest.raises(CallFailed, match=r"(deployments|scaledobjects).* is forbidden: User .*sluice") as raised:
        ours.point(target, ours.read_original(target, queue=SOURCE), queue=MAIN, instead_of=(SOURCE,))
    assert raised.value.code == "Forbidden"


def test_who_is_unknown_to_the_cluster_is_told_so(server: Server) -> None:
    stranger = Server(server.url, server.authority, role_token="unknown")
    with pytest.raises(CallFailed) as raised:
        consumers(stranger.role).read_original(target_of(made(server), env="QUEUE"), queue=SOURCE)
    assert raised.value.code == "Unauthorized"
