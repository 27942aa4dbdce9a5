"""What a container's environment variables are, by Kubernetes' own rules. Pure, on plain objects.

`envFrom` comes first, of which the last one counts, then `env`, in which a reference to what isn't there says nothing.
Secrets are never read. ConfigMaps are by name, None where there is none.
https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/pod-v1/#environment-variables
"""

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from sluice.errors import BadConsumer

Json: TypeAlias = dict[str, Any]
ConfigMaps: TypeAlias = Mapping[str, Json | None]


def containers_of(pod: Json) -> list[Json]:
    """List the containers of a pod's spec, first those that run before the others, or beside them."""
    return [*(pod.get("initContainers") or []), *(pod.get("containers") or [])]


def container_of(pod: Json, name: str) -> Json:
    """Find a container by its name, an empty one where there is none."""
    return next((each for each in containers_of(pod) if each["name"] == name), {})


def place_of(container: Json, variable: str) -> int | None:
    """Find a variable's place in `env`, of several the one that counts: the last."""
    entries = container.get("env") or []
    return next((place for place in reversed(range(len(entries))) if entries[place]["name"] == variable), None)


def entry_of(container: Json, variable: str) -> Json | None:
    """Find a variable's entry in `env`."""
    place = place_of(container, variable)
    entry: Json | None = None if place is None else container["env"][place]
    return entry


def refers_to(container: Json) -> Iterator[str]:
    """Name the ConfigMaps that the container's variables come out of."""
    refs = [entry.get("valueFrom", {}).get("configMapKeyRef") for entry in container.get("env") or []]
    refs += [source.get("configMapRef") for source in container.get("envFrom") or []]
    return (ref["name"] for ref in refs if ref and ref.get("name"))


def variables_of(container: Json, config_maps: ConfigMaps) -> set[str]:
    """Name the variables that are set, but for those that Secrets set."""
    names = {entry["name"] for entry in container.get("env") or []}
    for source in container.get("envFrom") or []:
        config_map = config_maps.get(source.get("configMapRef", {}).get("name", "")) or {}
        names |= {source.get("prefix", "") + key for key in config_map.get("data") or {}}
    return names


def value_of(
    container: Json, variable: str, config_maps: ConfigMaps, *, where: str, with_secrets: bool = True
) -> str | None:
    """Read a variable's value as a literal has it, None where nothing sets it.

    Raises `BadConsumer`, which says `where`, for a variable that comes of anything but a ConfigMap, that is set twice,
    or that a Secret of `envFrom` may set; the last one only `with_secrets`, else these are passed over.
    """
    if sum(each["name"] == variable for each in container.get("env") or []) > 1:
        raise BadConsumer(where, "is set more than once")
    entry = entry_of(container, variable)
    if entry is not None and "valueFrom" not in entry:
        value: str = entry.get("value", "")
        return value
    found = None
    if entry is not None:
        ref = entry["valueFrom"].get("configMapKeyRef")
        if ref is None:
            kind = next(iter(entry["valueFrom"]), "nothing")
            cause = "is of a Secret, which isn't read" if kind == "secretKeyRef" else f"is by {kind}, which isn't read"
            raise BadConsumer(where, cause)
        found = ((config_maps.get(ref["name"]) or {}).get("data") or {}).get(ref["key"])
    for source in reversed(container.get("envFrom") or []):
        prefix = source.get("prefix", "")
        if found is not None or not variable.startswith(prefix):
            continue
        if "secretRef" in source and with_secrets:
            secret = source["secretRef"].get("name")
            raise BadConsumer(where, f"may be of Secret {secret}, which isn't read: give its fallback")
        config_map = config_maps.get(source.get("configMapRef", {}).get("name", "")) or {}
        found = (config_map.get("data") or {}).get(variable.removeprefix(prefix))
    return None if found is None else literal(found)


def literal(value: str) -> str:
    """Write a value as a literal, in which Kubernetes would put other variables for `$(NAME)`."""
    return value.replace("$", "$$")
