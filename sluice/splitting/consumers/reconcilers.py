"""Who would undo a change of a Kubernetes object because it isn't in their repository: Argo CD and Flux. Pure."""

from collections.abc import Iterator, Sequence

import msgspec

from sluice.splitting.consumers.environments import Json

MANAGER = "sluice"  # the field manager, by which Argo CD can be told to leave our fields alone
TRACKED = "argocd.argoproj.io/tracking-id"
INSTANCE = "argocd.argoproj.io/instance"
COMMON = "app.kubernetes.io/instance"
FLUX = "kustomize.toolkit.fluxcd.io/"
OFF = frozenset({"disabled", "Ignore", "IfNotPresent"})


class Tracking(msgspec.Struct, frozen=True, kw_only=True):
    """An Application that an object says it is of. Where it isn't `certain`, the label is everybody's."""

    namespace: str
    application: str
    certain: bool


def tracked_by(found: Json, *, namespace: str) -> Iterator[Tracking]:
    """Yield the Applications that the object may be of; `namespace` has those whose own isn't written down.

    https://argo-cd.readthedocs.io/en/stable/user-guide/resource_tracking/
    """
    annotations, labels = found["metadata"].get("annotations") or {}, found["metadata"].get("labels") or {}
    texts = [
        (annotations.get(TRACKED, "").split(":")[0], True),
        (annotations.get(INSTANCE) or labels.get(INSTANCE, ""), True),
        (labels.get(COMMON, ""), False),
    ]
    for text, certain in texts:
        if text:
            # With Applications in any namespace it is theirs and the name; names have no underscores.
            of, _, name = text.rpartition("_")
            yield Tracking(namespace=of or namespace, application=name, certain=certain)


def heals(application: Json, found: Json) -> bool:
    """Whether Argo CD undoes what others change of the object, and isn't told to leave what `sluice` changed.

    https://argo-cd.readthedocs.io/en/stable/user-guide/auto_sync/#automatic-self-healing
    """
    automated = (application["spec"].get("syncPolicy") or {}).get("automated") or {}
    if not automated.get("selfHeal") or automated.get("enabled") is False:
        return False
    ignored: Sequence[Json] = application["spec"].get("ignoreDifferences") or []
    return not any(_is_left_alone(each, found) for each in ignored)


def applied_again(found: Json) -> str | None:
    """Name Flux's Kustomization that applies the object again and again, None where none does.

    https://fluxcd.io/flux/components/kustomize/kustomizations/#controlling-the-apply-behavior-of-resources
    """
    annotations, labels = found["metadata"].get("annotations") or {}, found["metadata"].get("labels") or {}
    told = {annotations.get(FLUX + "reconcile"), annotations.get(FLUX + "ssa")}
    name: str | None = labels.get(FLUX + "name")
    return None if told & OFF else name


def _is_left_alone(ignored: Json, found: Json) -> bool:
    group = found["apiVersion"].rpartition("/")[0]
    metadata = found["metadata"]
    return (
        MANAGER in (ignored.get("managedFieldsManagers") or [])
        and ignored.get("group", "") in {group, "*"}
        and ignored.get("kind") in {found["kind"], "*"}
        and ignored.get("name", metadata["name"]) == metadata["name"]
        and ignored.get("namespace", metadata["namespace"]) == metadata["namespace"]
    )
