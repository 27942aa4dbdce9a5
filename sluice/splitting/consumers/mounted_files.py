"""Finds the ConfigMap of a workload's volume, and builds a copy of it that names another queue. Pure.

The original ConfigMap may be shared and isn't changed. A copy is owned by one workload and is deleted with it. A copy's
name is a hash of its content, so that after a crash the same copy is built again; an annotation names its original.
"""

import hashlib
from copy import deepcopy
from typing import Any, cast

from sluice.codec import encode
from sluice.errors import BadConsumer
from sluice.splitting.consumers.targets import KubernetesWorkload, describe_target
from sluice.splitting.consumers.temporary_queues import PREFIX
from sluice.splitting.consumers.workloads import Json, get_pod_spec

COPY_OF = "sluice-copy-of"  # This annotation of a copy names the original ConfigMap.
VOLUME = "sluice-volume"  # All copies for the same volume have this label with the same value.
CHARACTERS = 20  # A hash has this many hexadecimal digits, 80 bits.


def find_config_map_name(workload: Json, target: KubernetesWorkload) -> str:
    """Return the name of the ConfigMap in the target's volume. Raises `BadConsumer` if the volume has none."""
    volume = _find_volume(workload, target)
    if volume is None:
        raise BadConsumer(describe_target(target), "there is no such volume")
    if "configMap" not in volume:
        kind = next((field for field in volume if field != "name"), "emptyDir")
        cause = "is of a Secret, which isn't read" if kind == "secret" else f"is {kind}, and not of a ConfigMap"
        raise BadConsumer(describe_target(target), f"the volume {cause}")
    return cast("str", volume["configMap"]["name"])


def get_original_name(config_map: Json) -> str:
    """Return the name of the original ConfigMap of a copy; for an original, its own name."""
    metadata = config_map["metadata"]
    return cast("str", (metadata.get("annotations") or {}).get(COPY_OF, metadata["name"]))


def read_file_text(config_map: Json, target: KubernetesWorkload) -> str:
    """Return the text of the target's file. Raises `BadConsumer` if the ConfigMap has no such text."""
    text = (config_map.get("data") or {}).get(target.file)
    if text is None:
        is_binary = target.file in (config_map.get("binaryData") or {})
        cause = "holds it as binary data" if is_binary else "doesn't have it"
        raise BadConsumer(describe_target(target), f"ConfigMap {config_map['metadata']['name']} {cause}")
    return str(text)


def is_temporary(text: str) -> bool:
    """Return whether the text names a temporary queue."""
    return PREFIX in text


def build_copy(config_map: Json, workload: Json, target: KubernetesWorkload, text: str) -> Json:
    """Build a copy of the ConfigMap with another text in the target's file. The workload owns the copy."""
    content: Json = {key: config_map[key] for key in ("data", "binaryData") if config_map.get(key)}
    content["data"] = content["data"] | {target.file: text}
    owner = workload["metadata"]
    return content | {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": PREFIX + _digest([build_volume_label(target), get_original_name(config_map), content]),
            "namespace": target.namespace,
            "labels": {VOLUME: build_volume_label(target)},
            "annotations": {COPY_OF: get_original_name(config_map)},
            "ownerReferences": [
                {"apiVersion": workload["apiVersion"], "kind": target.kind, "name": owner["name"], "uid": owner["uid"]}
            ],
        },
    }


def build_volume_label(target: KubernetesWorkload) -> str:
    """Return the label's value that identifies the workload's volume."""
    return _digest([target.kind, target.name, target.volume])


def with_config_map(workload: Json, target: KubernetesWorkload, name: str) -> Json:
    """Return a copy of the workload with another ConfigMap in the target's volume."""
    changed = deepcopy(workload)
    volume = _find_volume(changed, target)
    if volume is not None:
        volume["configMap"]["name"] = name
    return changed


def find_pod_config_map(pod: Json, target: KubernetesWorkload) -> str | None:
    """Return the name of the ConfigMap in the target's volume of a pod, given the pod's spec."""
    volumes = [volume for volume in pod.get("volumes") or [] if volume["name"] == target.volume]
    return volumes[0].get("configMap", {}).get("name") if volumes else None


def _find_volume(workload: Json, target: KubernetesWorkload) -> Json | None:
    volumes = get_pod_spec(workload).get("volumes") or []
    return next((volume for volume in volumes if volume["name"] == target.volume), None)


def _digest(value: Any) -> str:
    return hashlib.sha256(encode(value)).hexdigest()[:CHARACTERS]
