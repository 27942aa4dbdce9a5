"""Deployments, StatefulSets and Argo Rollouts whose pods read a queue.

What says which one is part of the pod template, so that to change it is a rollout, as any deployment of theirs: no pod
is touched, and what was there first is kept by `original`. Objects are replaced as they were read: who changes one at
the same time fails the call, and the next one goes on with theirs.
"""

from collections.abc import Callable, Iterator
from datetime import datetime

import msgspec

from sluice.errors import BadConsumer, CallFailed
from sluice.kubernetes.api import ALREADY_EXISTS, NOT_FOUND, Api, path_of
from sluice.splitting.consumers.controllers import (
    MANAGER,
    applied_again,
    check_scaled,
    heals,
    obstacle,
    progress,
    rescaled,
    scales,
    tracked_by,
)
from sluice.splitting.consumers.mounted_files import (
    VOLUME,
    config_map_of,
    copy_of,
    is_temporary,
    label_of,
    mounted,
    root_of,
    text_of,
    with_config_map,
)
from sluice.splitting.consumers.rewriting import check_named, rewritten
from sluice.splitting.consumers.targets import KubernetesWorkload, name_of
from sluice.splitting.consumers.workloads import (
    ORIGINAL,
    Json,
    Original,
    Pointed,
    config_maps_of,
    entries_of,
    is_alike,
    pod_of,
    pointed,
    values_of,
)

CORE, ARGO, KEDA = "v1", "argoproj.io/v1alpha1", "keda.sh/v1alpha1"
KINDS = {
    "Deployment": ("apps/v1", "deployments"),
    "StatefulSet": ("apps/v1", "statefulsets"),
    "Rollout": (ARGO, "rollouts"),
}
ENDED = frozenset({"Succeeded", "Failed"})  # phases of pods that run no more
DENIED = frozenset({"Forbidden", "Unauthorized"})


class KubernetesWorkloads(msgspec.Struct, frozen=True, kw_only=True):
    """Through connections by the clusters' names. `arn_prefix` is an ARN of the site's queues without the name."""

    cluster: Callable[[str], Api]
    arn_prefix: str
    now_ms: Callable[[], int]

    def original(self, target: KubernetesWorkload, *, queue: str) -> str:
        """Read what says that the workload reads the queue, and whether it can be changed. Changes nothing.

        Raises `BadConsumer`, where somebody would undo it too, and `CallFailed`.
        """
        workload = self._workload(target)
        hindrance = obstacle(workload)
        if hindrance is not None:
            raise BadConsumer(name_of(target), hindrance)
        kept = self._read(target, workload, queue)
        self._check_left_alone(target, workload)
        for scaled in self._scaled(target):
            check_scaled(scaled, target)
            self._check_left_alone(target, scaled)
        return ORIGINAL.text(kept)

    def point(self, target: KubernetesWorkload, original: str, *, queue: str, instead_of: str) -> bool:
        """Let the workload read a queue instead of another; True once no pod of it reads anything else.

        A pod that is terminating may still be at a message, and counts. Raises `BadConsumer`, also where its new pods
        don't come up in time on the way from the queue that it read first; and `CallFailed`, also where somebody has
        changed it since it was read, and where the old pods don't come back in time.
        """
        kept, workload = ORIGINAL.of_text(original), self._workload(target)
        if target.volume is None:
            old, new = self.arn_prefix + instead_of, self.arn_prefix + queue
            wanted = pointed(workload, target, kept.entries, old=old, new=new)
        else:
            wanted = self._remounted(target, kept, workload, queue=queue, instead_of=instead_of)
        if wanted.problems and queue != kept.queue:
            raise wanted.problems[0]
        changed = wanted.workload != workload
        if changed:
            self.cluster(target.cluster).replace(_path(target), wanted.workload)
        if self._rescale(target, kept, wanted.workload, queue=queue, instead_of=instead_of) or changed:
            return False
        if not self._is_through(target, kept, workload, is_back=queue == kept.queue):
            return False
        if target.volume is not None:
            self._tidy(target, mounted(pod_of(workload), target))
        if wanted.problems:  # its owner has changed it since
            raise wanted.problems[0]
        return True

    def reads(self, target: KubernetesWorkload, *, queue: str) -> bool:
        """Whether new pods are to read this queue, as the workload is now. Raises `CallFailed`."""
        try:
            self._read(target, self._workload(target), queue)
        except BadConsumer:
            return False
        return True

    def _read(self, target: KubernetesWorkload, workload: Json, queue: str) -> Original:
        """Find what says that the queue is read. Raises `BadConsumer` where nothing does."""
        arn = self.arn_prefix + queue
        if target.volume is None:
            maps = {name: self._config_map(target, name) for name in sorted(config_maps_of(workload, target))}
            return Original(queue=queue, entries=entries_of(workload, target, maps, queue=arn))
        name = config_map_of(workload, target)
        config_map = self._config_map(target, name)
        if config_map is None:
            raise BadConsumer(name_of(target), f"there is no ConfigMap {name}")
        check_named(text_of(config_map, target), target.place, queue=arn, of=name_of(target))
        return Original(queue=queue, config_map=root_of(config_map))

    def _workload(self, target: KubernetesWorkload) -> Json:
        found = self._found(target, _path(target))
        if found is None:
            raise BadConsumer(name_of(target), f"there is no such {target.kind}")
        # Of a list's items the server doesn't say these.
        return {"apiVersion": KINDS[target.kind][0], "kind": target.kind, **found}

    def _found(self, target: KubernetesWorkload, path: str) -> Json | None:
        try:
            return self.cluster(target.cluster).get(path)
        except CallFailed as error:
            if error.code != NOT_FOUND:
                raise
            return None

    def _config_map(self, target: KubernetesWorkload, name: str) -> Json | None:
        return self._found(target, path_of(CORE, target.namespace, "configmaps", name))

    def _remounted(
        self, target: KubernetesWorkload, kept: Original, workload: Json, *, queue: str, instead_of: str
    ) -> Pointed:
        """Let the volume be of a ConfigMap that names the queue, made before the workload names it."""
        old, new = self.arn_prefix + instead_of, self.arn_prefix + queue
        try:
            name = config_map_of(workload, target)
            config_map = self._config_map(target, name)
            if config_map is None and kept.config_map not in {None, name}:  # a copy that somebody has deleted
                return Pointed(workload=with_config_map(workload, target, str(kept.config_map)))
            if config_map is None:
                raise BadConsumer(name_of(target), f"there is no ConfigMap {name}")  # noqa: TRY301 - as the others here
            text = text_of(config_map, target)
            changed = rewritten(text, target.place, old=old, new=new, of=name_of(target))
        except BadConsumer as error:
            return Pointed(workload=workload, problems=(error,))
        if changed == text:
            return Pointed(workload=workload)
        if not is_temporary(changed):
            return Pointed(workload=with_config_map(workload, target, root_of(config_map)))
        made = copy_of(config_map, workload, target, changed)
        try:
            self.cluster(target.cluster).create(path_of(CORE, target.namespace, "configmaps"), made)
        except CallFailed as error:
            if error.code != ALREADY_EXISTS:
                raise
        return Pointed(workload=with_config_map(workload, target, made["metadata"]["name"]))

    def _tidy(self, target: KubernetesWorkload, current: str | None) -> None:
        """Delete the copies that no pod has any more."""
        path = path_of(CORE, target.namespace, "configmaps")
        for copy in self.cluster(target.cluster).list(path, labelSelector=f"{VOLUME}={label_of(target)}"):
            name = copy["metadata"]["name"]
            if name != current:
                try:
                    self.cluster(target.cluster).delete(path_of(CORE, target.namespace, "configmaps", name))
                except CallFailed as error:
                    if error.code != NOT_FOUND:
                        raise

    def _scaled(self, target: KubernetesWorkload) -> Iterator[Json]:
        """Yield KEDA's objects that scale the workload; none where there is no KEDA."""
        try:
            for scaled in self.cluster(target.cluster).list(path_of(KEDA, target.namespace, "scaledobjects")):
                if scales(scaled, target):
                    yield {"apiVersion": KEDA, "kind": "ScaledObject", **scaled}
        except CallFailed as error:
            if error.code != NOT_FOUND:
                raise

    def _rescale(
        self, target: KubernetesWorkload, kept: Original, workload: Json, *, queue: str, instead_of: str
    ) -> bool:
        """Let KEDA look at the queue too; whether there was something to change."""
        old, new = self.arn_prefix + instead_of, self.arn_prefix + queue
        values, changed = values_of(workload, kept.entries), False
        for scaled in list(self._scaled(target)):
            wanted = rescaled(scaled, target, values, old=old, new=new)
            if wanted != scaled:
                name = scaled["metadata"]["name"]
                self.cluster(target.cluster).replace(path_of(KEDA, target.namespace, "scaledobjects", name), wanted)
                changed = True
        return changed

    def _is_through(self, target: KubernetesWorkload, kept: Original, workload: Json, *, is_back: bool) -> bool:
        """Whether no pod is left that was made before the change. Raises as `point` does where that takes too long."""
        done = progress(workload)
        waits_for = done.waits_for or self._old_pods(target, kept, workload)
        if not waits_for:
            return True
        is_late = self.now_ms() > _changed_ms(workload) + target.timeout_s * 1_000
        if not done.gave_up and not is_late:
            return False
        reason = waits_for if done.gave_up else f"not rolled out after {target.timeout_s} s: {waits_for}"
        if is_back:
            raise CallFailed(f"rollout of {name_of(target)}", "TimedOut", reason)
        raise BadConsumer(name_of(target), reason)

    def _old_pods(self, target: KubernetesWorkload, kept: Original, workload: Json) -> str:
        """Say which pods still read something else, nothing where none does."""
        pod, names = pod_of(workload), []
        path = path_of(CORE, target.namespace, "pods")
        for each in self.cluster(target.cluster).list(path, labelSelector=_selector(target, workload)):
            if (each.get("status") or {}).get("phase") in ENDED:
                continue
            alike = is_alike(pod, each["spec"], kept.entries)
            if not alike or (target.volume and mounted(pod, target) != mounted(each["spec"], target)):
                names.append(each["metadata"]["name"])
        return f"pods that were there before, such as {names[0]}" if names else ""

    def _check_left_alone(self, target: KubernetesWorkload, found: Json) -> None:
        """Check that nobody applies the object again as it was. Raises `BadConsumer`."""
        what = f"{found['kind']} {target.cluster}/{target.namespace}/{found['metadata']['name']}"
        kustomization = applied_again(found)
        if kustomization is not None:
            cause = f"Flux's Kustomization {kustomization} would undo the change"
            raise BadConsumer(what, f"{cause}: annotate it kustomize.toolkit.fluxcd.io/reconcile=disabled")
        for tracking in tracked_by(found, namespace=target.argo_cd_namespace):
            named = f"{tracking.namespace}/{tracking.application}"
            try:
                application = self._found(
                    target, path_of(ARGO, tracking.namespace, "applications", tracking.application)
                )
            except CallFailed as error:
                if error.code not in DENIED:
                    raise
                cause = f"whether Argo CD's Application {named} would undo the change can't be read"
                raise BadConsumer(what, f"{cause}: {error}") from error
            if application is None and tracking.certain:
                cause = f"it is of Argo CD's Application {named}, which isn't there"
                raise BadConsumer(what, f"{cause}: set argo_cd_namespace")
            if application is not None and heals(application, found):
                cause = f"Argo CD's Application {named} heals itself and would undo the change"
                raise BadConsumer(what, f"{cause}: turn selfHeal off, or ignore what manager {MANAGER} has changed")


def _path(target: KubernetesWorkload) -> str:
    group_version, plural = KINDS[target.kind]
    return path_of(group_version, target.namespace, plural, target.name)


def _selector(target: KubernetesWorkload, workload: Json) -> str:
    """Write the workload's selector as a query has it. Raises `BadConsumer` where it has none: that is any pod."""
    selector = workload["spec"].get("selector") or {}
    terms = [f"{key}={value}" for key, value in (selector.get("matchLabels") or {}).items()]
    for each in selector.get("matchExpressions") or []:
        key, values = each["key"], ",".join(each.get("values") or [])
        terms.append({"Exists": key, "DoesNotExist": f"!{key}"}.get(each["operator"], ""))
        if not terms[-1]:
            terms[-1] = f"{key} {each['operator'].lower()} ({values})"
    if not terms:
        raise BadConsumer(name_of(target), "it has no selector, by which its pods are known")
    return ",".join(terms)


def _changed_ms(workload: Json) -> int:
    """Say when we changed the workload last, as the server has written it down; far away where it hasn't."""
    times = [
        each["time"]
        for each in workload["metadata"].get("managedFields") or []
        if each.get("manager") == MANAGER and each.get("time") and not each.get("subresource")
    ]
    if not times:
        return 2**62  # nobody knows: it isn't late
    return max(round(datetime.fromisoformat(time).timestamp() * 1_000) for time in times)
