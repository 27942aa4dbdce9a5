"""Re-points Deployments, StatefulSets and Argo Rollouts whose pods read a queue.

The pod template names the queue, so changing the queue starts a rollout; pods aren't changed directly. An object is
replaced only if it wasn't changed since it was read: after a concurrent change the call fails, and the next call starts
from the changed object.
"""

from collections.abc import Callable, Collection, Iterator
from datetime import datetime

import msgspec

from sluice.errors import BadConsumer, CallFailed
from sluice.kubernetes.api import ALREADY_EXISTS, NOT_FOUND, Api, api_path
from sluice.splitting.consumers.controllers import (
    MANAGER,
    check_scaled_object,
    find_kustomization,
    find_obstacle,
    find_trackings,
    is_scaling,
    read_progress,
    reverts_changes,
    rewrite_triggers,
)
from sluice.splitting.consumers.mounted_files import (
    VOLUME,
    build_copy,
    build_volume_label,
    find_config_map_name,
    find_pod_config_map,
    get_original_name,
    is_temporary,
    read_file_text,
    with_config_map,
)
from sluice.splitting.consumers.rewriting import check_named, rewrite
from sluice.splitting.consumers.targets import KubernetesWorkload, describe_target
from sluice.splitting.consumers.workloads import (
    ORIGINAL,
    Json,
    Original,
    PointedWorkload,
    find_entries,
    get_pod_spec,
    have_equal_entries,
    list_config_maps,
    point_workload,
    read_values,
)

CORE, ARGO, KEDA = "v1", "argoproj.io/v1alpha1", "keda.sh/v1alpha1"
KINDS = {
    "Deployment": ("apps/v1", "deployments"),
    "StatefulSet": ("apps/v1", "statefulsets"),
    "Rollout": (ARGO, "rollouts"),
}
ENDED = frozenset({"Succeeded", "Failed"})  # Pods in these phases have stopped.
DENIED = frozenset({"Forbidden", "Unauthorized"})


class KubernetesWorkloads(msgspec.Struct, frozen=True, kw_only=True):
    """Re-points workloads. `cluster` connects to clusters by name; `arn_prefix` is a queue's ARN without its name."""

    cluster: Callable[[str], Api]
    arn_prefix: str
    now_ms: Callable[[], int]

    def read_original(self, target: KubernetesWorkload, *, queue: str) -> str:
        """Return the settings that name the queue, after checking that Sluice can change them. Changes nothing.

        Raises `BadConsumer`, also if another controller would undo a change, and `CallFailed`.
        """
        workload = self._read_workload(target)
        hindrance = find_obstacle(workload)
        if hindrance is not None:
            raise BadConsumer(describe_target(target), hindrance)
        kept = self._find_original(target, workload, queue)
        self._check_no_controller_reverts(target, workload)
        for scaled in self._list_scaled_objects(target):
            check_scaled_object(scaled, target)
            self._check_no_controller_reverts(target, scaled)
        return ORIGINAL.text(kept)

    def point(self, target: KubernetesWorkload, original: str, *, queue: str, instead_of: Collection[str]) -> bool:
        """Make the workload read `queue`, not one of `instead_of`.

        Returns True once no pod reads another queue. A terminating pod counts too, because it may still process a
        message. Raises `BadConsumer`, for example if a rollout to a temporary queue takes too long. Raises
        `CallFailed`, for example if a rollout to the original queue takes too long, or if the workload was changed
        since it was read.
        """
        kept, workload = ORIGINAL.from_text(original), self._read_workload(target)
        if target.volume is None:
            old, new = [self.arn_prefix + name for name in instead_of], self.arn_prefix + queue
            change = point_workload(workload, target, kept.entries, old=old, new=new)
        else:
            change = self._replace_volume(target, kept, workload, queue=queue, instead_of=instead_of)
        if change.problems and queue != kept.queue:
            raise change.problems[0]
        changed = change.workload != workload
        if changed:
            self.cluster(target.cluster).replace_object(_workload_path(target), change.workload)
        if self._rewrite_scaled_objects(target, kept, change.workload, queue=queue, instead_of=instead_of) or changed:
            return False
        if not self._is_rolled_out(target, kept, workload, is_back=queue == kept.queue):
            return False
        if target.volume is not None:
            api, current = self.cluster(target.cluster), find_pod_config_map(get_pod_spec(workload), target)
            path = api_path(CORE, target.namespace, "configmaps")
            for copy in api.list_objects(path, labelSelector=f"{VOLUME}={build_volume_label(target)}"):
                if copy["metadata"]["name"] != current:  # No pod uses this copy any more.
                    api.delete_object(api_path(CORE, target.namespace, "configmaps", copy["metadata"]["name"]))
        if change.problems:  # The workload's owner changed it in the meantime.
            raise change.problems[0]
        return True

    def reads(self, target: KubernetesWorkload, *, queue: str) -> bool:
        """Return whether new pods of the workload will read this queue. Raises `CallFailed`."""
        try:
            self._find_original(target, self._read_workload(target), queue)
        except BadConsumer:
            return False
        return True

    def _find_original(self, target: KubernetesWorkload, workload: Json, queue: str) -> Original:
        """Find the settings of the workload that name the queue. Raises `BadConsumer` if no setting names it."""
        arn = self.arn_prefix + queue
        if target.volume is None:
            maps = {name: self._find_config_map(target, name) for name in sorted(list_config_maps(workload, target))}
            return Original(queue=queue, entries=find_entries(workload, target, maps, queue=arn))
        name = find_config_map_name(workload, target)
        config_map = self._find_config_map(target, name)
        if config_map is None:
            raise BadConsumer(describe_target(target), f"there is no ConfigMap {name}")
        check_named(read_file_text(config_map, target), target.place, queue=arn, of=describe_target(target))
        return Original(queue=queue, config_map=get_original_name(config_map))

    def _read_workload(self, target: KubernetesWorkload) -> Json:
        workload = self.cluster(target.cluster).find_object(_workload_path(target))
        if workload is None:
            raise BadConsumer(describe_target(target), f"there is no such {target.kind}")
        # The API server omits both fields from items of a list.
        return {"apiVersion": KINDS[target.kind][0], "kind": target.kind, **workload}

    def _find_config_map(self, target: KubernetesWorkload, name: str) -> Json | None:
        return self.cluster(target.cluster).find_object(api_path(CORE, target.namespace, "configmaps", name))

    def _replace_volume(
        self, target: KubernetesWorkload, kept: Original, workload: Json, *, queue: str, instead_of: Collection[str]
    ) -> PointedWorkload:
        """Create a copy of the ConfigMap that names the queue, and return the workload with this copy as its volume."""
        old, new = [self.arn_prefix + name for name in instead_of], self.arn_prefix + queue
        try:
            name = find_config_map_name(workload, target)
            config_map = self._find_config_map(target, name)
            if config_map is None and kept.config_map not in {None, name}:  # Sluice's copy was deleted.
                return PointedWorkload(workload=with_config_map(workload, target, str(kept.config_map)))
            if config_map is None:
                raise BadConsumer(describe_target(target), f"there is no ConfigMap {name}")  # noqa: TRY301 - as the others here
            text = read_file_text(config_map, target)
            changed = rewrite(text, target.place, old=old, new=new, of=describe_target(target))
        except BadConsumer as error:
            return PointedWorkload(workload=workload, problems=(error,))
        if changed == text:
            return PointedWorkload(workload=workload)
        if not is_temporary(changed):
            return PointedWorkload(workload=with_config_map(workload, target, get_original_name(config_map)))
        made = build_copy(config_map, workload, target, changed)
        try:
            self.cluster(target.cluster).create_object(api_path(CORE, target.namespace, "configmaps"), made)
        except CallFailed as error:
            if error.code != ALREADY_EXISTS:
                raise
        return PointedWorkload(workload=with_config_map(workload, target, made["metadata"]["name"]))

    def _list_scaled_objects(self, target: KubernetesWorkload) -> Iterator[Json]:
        """Yield the KEDA ScaledObjects that scale the workload; none if KEDA isn't installed."""
        try:
            for scaled in self.cluster(target.cluster).list_objects(api_path(KEDA, target.namespace, "scaledobjects")):
                if is_scaling(scaled, target):
                    yield {"apiVersion": KEDA, "kind": "ScaledObject", **scaled}
        except CallFailed as error:
            if error.code != NOT_FOUND:
                raise

    def _rewrite_scaled_objects(
        self, target: KubernetesWorkload, kept: Original, workload: Json, *, queue: str, instead_of: Collection[str]
    ) -> bool:
        """Make KEDA scale the workload by the new queue. Returns whether a ScaledObject was changed."""
        old, new = [self.arn_prefix + name for name in instead_of], self.arn_prefix + queue
        values, changed = read_values(workload, kept.entries), False
        for scaled in list(self._list_scaled_objects(target)):
            rescaled = rewrite_triggers(scaled, target, values, old=old, new=new)
            if rescaled != scaled:
                path = api_path(KEDA, target.namespace, "scaledobjects", scaled["metadata"]["name"])
                self.cluster(target.cluster).replace_object(path, rescaled)
                changed = True
        return changed

    def _is_rolled_out(self, target: KubernetesWorkload, kept: Original, workload: Json, *, is_back: bool) -> bool:
        """Return whether all pods from before the change are gone. Raises as `point` does if that takes too long."""
        done = read_progress(workload)
        waits_for = done.waits_for or self._describe_old_pods(target, kept, workload)
        if not waits_for:
            return True
        # These are the times at which Sluice changed the workload, by the server's clock; without any, nothing is late.
        changed_s = [
            datetime.fromisoformat(field["time"]).timestamp()
            for field in workload["metadata"].get("managedFields") or []
            if field.get("manager") == MANAGER and field.get("time") and not field.get("subresource")
        ]
        is_late = bool(changed_s) and self.now_ms() > (max(changed_s) + target.timeout_s) * 1_000
        if not done.gave_up and not is_late:
            return False
        reason = waits_for if done.gave_up else f"not rolled out after {target.timeout_s} s: {waits_for}"
        if is_back:
            raise CallFailed(f"rollout of {describe_target(target)}", "TimedOut", reason)
        raise BadConsumer(describe_target(target), reason)

    def _describe_old_pods(self, target: KubernetesWorkload, kept: Original, workload: Json) -> str:
        """Describe the pods that still read another queue. Returns "" if no pod does."""
        pod, names = get_pod_spec(workload), []
        path, selector = api_path(CORE, target.namespace, "pods"), _format_label_selector(target, workload)
        for old_pod in self.cluster(target.cluster).list_objects(path, labelSelector=selector):
            if (old_pod.get("status") or {}).get("phase") in ENDED:
                continue
            alike = have_equal_entries(pod, old_pod["spec"], kept.entries)
            if not alike or (
                target.volume and find_pod_config_map(pod, target) != find_pod_config_map(old_pod["spec"], target)
            ):
                names.append(old_pod["metadata"]["name"])
        return f"pods that were there before, such as {names[0]}" if names else ""

    def _check_no_controller_reverts(self, target: KubernetesWorkload, resource: Json) -> None:
        """Check that neither Flux nor Argo CD would revert a change of the object. Raises `BadConsumer`."""
        what = f"{resource['kind']} {target.cluster}/{target.namespace}/{resource['metadata']['name']}"
        kustomization = find_kustomization(resource)
        if kustomization is not None:
            cause = f"Flux's Kustomization {kustomization} would undo the change"
            raise BadConsumer(what, f"{cause}: annotate it kustomize.toolkit.fluxcd.io/reconcile=disabled")
        for tracking in find_trackings(resource, namespace=target.argo_cd_namespace):
            named = f"{tracking.namespace}/{tracking.application}"
            try:
                path = api_path(ARGO, tracking.namespace, "applications", tracking.application)
                application = self.cluster(target.cluster).find_object(path)
            except CallFailed as error:
                if error.code not in DENIED:
                    raise
                cause = f"whether Argo CD's Application {named} would undo the change can't be read"
                raise BadConsumer(what, f"{cause}: {error}") from error
            if application is None and tracking.certain:
                cause = f"it is of Argo CD's Application {named}, which isn't there"
                raise BadConsumer(what, f"{cause}: set argo_cd_namespace")
            if application is not None and reverts_changes(application, resource):
                cause = f"Argo CD's Application {named} heals itself and would undo the change"
                raise BadConsumer(what, f"{cause}: turn selfHeal off, or ignore what manager {MANAGER} has changed")


def _workload_path(target: KubernetesWorkload) -> str:
    group_version, plural = KINDS[target.kind]
    return api_path(group_version, target.namespace, plural, target.name)


def _format_label_selector(target: KubernetesWorkload, workload: Json) -> str:
    """Return the workload's selector as a query. Raises `BadConsumer` without a selector, which would match any pod."""
    selector = workload["spec"].get("selector") or {}
    terms = [f"{key}={value}" for key, value in (selector.get("matchLabels") or {}).items()]
    for expression in selector.get("matchExpressions") or []:
        key, values = expression["key"], ",".join(expression.get("values") or [])
        terms.append({"Exists": key, "DoesNotExist": f"!{key}"}.get(expression["operator"], ""))
        if not terms[-1]:
            terms[-1] = f"{key} {expression['operator'].lower()} ({values})"
    if not terms:
        raise BadConsumer(describe_target(target), "it has no selector, by which its pods are known")
    return ",".join(terms)
