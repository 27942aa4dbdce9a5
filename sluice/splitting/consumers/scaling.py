"""How KEDA is made to scale a workload by the queue that it reads. Pure.

A trigger that names its queue is rewritten. One that takes the name from a variable of the workload goes on with what
it has read as long as that queue is there, so it is given the name beside it, which comes first, until the way back.
https://keda.sh/docs/latest/scalers/aws-sqs/
"""

from collections.abc import Mapping
from copy import deepcopy

from sluice.errors import BadConsumer
from sluice.splitting.consumers.environments import Json
from sluice.splitting.consumers.rewriting import rewritten
from sluice.splitting.consumers.targets import KubernetesWorkload, Place
from sluice.splitting.sessions.temporary_queues import PREFIX

GROUPS = {"Deployment": "apps", "StatefulSet": "apps", "Rollout": "argoproj.io"}
NAMED, BY_VARIABLE = "queueURL", "queueURLFromEnv"


def scales(scaled: Json, target: KubernetesWorkload) -> bool:
    """Whether a ScaledObject is about the workload."""
    ref = scaled["spec"].get("scaleTargetRef") or {}
    group = ref.get("apiVersion", "apps/v1").partition("/")[0]
    same = ref.get("name") == target.name and ref.get("kind", "Deployment") == target.kind
    return bool(same and group == GROUPS[target.kind])


def check_scaled(scaled: Json, target: KubernetesWorkload) -> None:
    """Check that what is changed of it can be changed back. Raises `BadConsumer`."""
    for number, metadata in _triggers(scaled):
        if metadata.get(NAMED) and metadata.get(BY_VARIABLE):
            raise BadConsumer(_of(scaled, target, number), f"names its queue by both {NAMED} and {BY_VARIABLE}")


def rescaled(scaled: Json, target: KubernetesWorkload, values: Mapping[str, str], *, old: str, new: str) -> Json:
    """Let the triggers name the queue `new` wherever they name `old`, both ARNs; others stay as they are.

    `values` are those of the workload's variables that are rewritten, by name.
    """
    changed = deepcopy(scaled)
    for number, metadata in _triggers(changed):
        variable, named = metadata.get(BY_VARIABLE), metadata.get(NAMED)
        is_temporary = PREFIX in new.rpartition(":")[2]
        if named and variable and PREFIX in named and not is_temporary:
            del metadata[NAMED]
        elif variable and not named and is_temporary and variable in values:
            metadata[NAMED] = values[variable]
        elif named:
            try:
                metadata[NAMED] = rewritten(named, Place(), old=old, new=new, of=_of(changed, target, number))
            except BadConsumer:
                continue  # another queue's
    return changed


def _triggers(scaled: Json) -> list[tuple[int, Json]]:
    triggers = scaled["spec"].get("triggers") or []
    return [(number, each["metadata"]) for number, each in enumerate(triggers) if each.get("type") == "aws-sqs-queue"]


def _of(scaled: Json, target: KubernetesWorkload, number: int) -> str:
    return f"trigger {number} of ScaledObject {target.cluster}/{target.namespace}/{scaled['metadata']['name']}"
