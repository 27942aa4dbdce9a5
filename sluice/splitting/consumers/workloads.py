"""Which environment variables of a workload's pods name a queue, and how they are made to name another. Pure.

Objects are as the API server gives them, and are never changed: another comes back. A literal is rewritten. What comes
out of a ConfigMap is shared with others and stays: the variable becomes a literal of this workload, in the place of its
reference, or before all others where `envFrom` gave it, and is what it was once the literal says what the ConfigMap
did.

Variables are by Kubernetes' own rules: `envFrom` comes first, of which the last one counts, then `env`, in which a
reference to what isn't there says nothing. Secrets are never read. ConfigMaps are by name, None where there is none.
https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/pod-v1/#environment-variables
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any, TypeAlias

import msgspec

from sluice.codec import Format, Struct, decode, encode
from sluice.errors import BadConsumer, Malformed
from sluice.splitting.consumers.rewriting import check_named, rewritten
from sluice.splitting.consumers.targets import KubernetesWorkload, name_of
from sluice.splitting.consumers.temporary_queues import PREFIX

Json: TypeAlias = dict[str, Any]
ConfigMaps: TypeAlias = Mapping[str, Json | None]

# Of the workload: what its variables were that are literals now, for whoever comes while they are.
ANNOTATION = "sluice-originals"
MAX_TEXT = 16_384  # characters of a value: the registry keeps it


class Entry(Struct, frozen=True, kw_only=True):
    """A variable of a container before it is changed: its entry in `env`, None where it has none, and its value.

    The value is as a literal has it, `$` doubled where it was no literal. `listed`: the container has an `env` at all.
    """

    container: str
    variable: str
    was: Json | None
    value: str
    listed: bool = True


class Original(Struct, frozen=True, kw_only=True):
    """What a workload is before anything is changed: the `queue` that it reads, by name, and where it says so.

    `config_map` is the name of the one that the volume is of, where a file says so.
    """

    queue: str
    entries: tuple[Entry, ...] = ()
    config_map: str | None = None


ORIGINAL = Format(kind="workload", version=1, type=Original)


class Pointed(msgspec.Struct, frozen=True, kw_only=True):
    """A workload as it is to be, and what of it can't be, each with its reason."""

    workload: Json
    problems: tuple[BadConsumer, ...] = ()


def pod_of(workload: Mapping[str, Any]) -> Json:
    """Take the spec of the pods that the workload makes, an empty one where it has no template of its own."""
    pod: Json = (workload["spec"].get("template") or {}).get("spec") or {}
    return pod


def config_maps_of(workload: Json, target: KubernetesWorkload) -> frozenset[str]:
    """Name the ConfigMaps out of which variables may come. Raises `BadConsumer` for a container that isn't there."""
    return frozenset(name for container in _chosen(workload, target) for name in refers_to(container))


def entries_of(workload: Json, target: KubernetesWorkload, config_maps: ConfigMaps, *, queue: str) -> tuple[Entry, ...]:
    """Find the variables that name the queue, an ARN.

    Each container that the target names has one; where it names none, those that don't are passed over. Raises
    `BadConsumer`, which says where nothing names the queue, and what isn't read.
    """
    try:
        pattern = re.compile(re.escape(target.env) if target.env is not None else target.env_like or "")
    except re.error as error:
        raise BadConsumer(name_of(target), f"no pattern: {error}") from None
    kept, found, problems = _kept(workload, target), list[Entry](), list[BadConsumer]()
    for container in _chosen(workload, target):
        before = len(found)
        names = variables_of(container, config_maps) | ({target.env} if target.env is not None else set())
        for variable in sorted(filter(pattern.fullmatch, names)):
            entry = _entry(container, variable, target, config_maps)
            if entry is None:
                continue
            where, shared = _of(target, container["name"], variable), kept.get((container["name"], variable))
            try:
                check_named(entry.value, target.place, queue=queue, of=where)
            except BadConsumer as error:
                more = ", but refers to other variables: name one of those" if "$(" in entry.value else ""
                problems.append(BadConsumer(error.place, error.cause + more))
                continue
            is_ours = shared is not None and PREFIX in entry.value
            found.append(shared if shared is not None and is_ours else entry)
        if target.containers and len(found) == before:
            raise problems[-1] if problems else BadConsumer(_of(target, container["name"]), "isn't set")
    if not found:
        raise problems[0] if problems else BadConsumer(name_of(target), "isn't set")
    return tuple(found)


def pointed(workload: Json, target: KubernetesWorkload, entries: Sequence[Entry], *, old: str, new: str) -> Pointed:
    """Let variables name the queue `new` wherever they name `old`. Both are ARNs.

    What others made of a variable stays, but for the queue's name; one that is what it was in all is its old entry
    again. A variable that names neither, or that isn't a literal any more, is a problem.
    """
    changed, problems = deepcopy(workload), list[BadConsumer]()
    kept = _kept(workload, target)
    for entry in entries:
        key = entry.container, entry.variable
        try:
            is_literal = _put(changed, target, entry, old=old, new=new)
        except BadConsumer as error:
            problems.append(error)
            is_literal = False
        if is_literal and (entry.was is None or "valueFrom" in entry.was):
            kept[key] = entry
        else:
            kept.pop(key, None)
    _keep(changed, kept)
    return Pointed(workload=changed, problems=tuple(problems))


def is_alike(pod: Json, other: Json, entries: Sequence[Entry]) -> bool:
    """Whether two pods' specs have the same entries for these variables."""
    return all(
        entry_of(container_of(pod, each.container), each.variable)
        == entry_of(container_of(other, each.container), each.variable)
        for each in entries
    )


def values_of(workload: Json, entries: Sequence[Entry]) -> dict[str, str]:
    """Take the variables' values as they are now, by name."""
    values = {}
    for entry in entries:
        current = entry_of(container_of(pod_of(workload), entry.container), entry.variable)
        is_literal = current is not None and "valueFrom" not in current
        values[entry.variable] = current.get("value", "") if current and is_literal else entry.value
    return values


def _chosen(workload: Json, target: KubernetesWorkload) -> list[Json]:
    containers = containers_of(pod_of(workload))
    for name in target.containers:
        if name not in {each["name"] for each in containers}:
            raise BadConsumer(name_of(target), f"there is no container {name}")
    return [each for each in containers if not target.containers or each["name"] in target.containers]


def _of(target: KubernetesWorkload, container: str, variable: str | None = None) -> str:
    """Name a variable of one container, for whoever configured it."""
    named = variable or target.env
    of = f"container {container} of {target.kind} {target.cluster}/{target.namespace}/{target.name}"
    return f"variable {named} of {of}" if named else f"a variable like {target.env_like} of {of}"


def _entry(container: Json, variable: str, target: KubernetesWorkload, config_maps: ConfigMaps) -> Entry | None:
    """Find what a variable is, None where nothing sets it. Raises `BadConsumer` where that can't be read."""
    where = _of(target, container["name"], variable)
    value = value_of(container, variable, config_maps, where=where, with_secrets=target.fallback is None)
    if value is None and target.fallback is not None:
        value = literal(target.fallback)
    if value is None:
        return None
    if len(value) > MAX_TEXT:
        raise BadConsumer(where, f"has {len(value)} characters, more than {MAX_TEXT}")
    was = entry_of(container, variable)
    return Entry(container=container["name"], variable=variable, was=was, value=value, listed="env" in container)


def _put(workload: Json, target: KubernetesWorkload, entry: Entry, *, old: str, new: str) -> bool:
    """Change a variable in place; whether it is a literal then that names a temporary queue."""
    where = _of(target, entry.container, entry.variable)
    container = container_of(pod_of(workload), entry.container)
    if not container:
        raise BadConsumer(where, "there is no such container any more")
    current = entry_of(container, entry.variable)
    if current == entry.was:
        value = entry.value
    elif current is not None and "valueFrom" not in current:
        value = current.get("value", "")
    else:
        raise BadConsumer(where, "isn't set as it was")
    changed = rewritten(value, target.place, old=old, new=new, of=where)
    if changed != value:
        kept = {} if current is None or "valueFrom" in current else current
        made = {**kept, "name": entry.variable, "value": changed}
        _replace(container, entry, entry.was if changed == entry.value else made)
    return PREFIX in changed and entry_of(container, entry.variable) != entry.was


def _replace(container: Json, entry: Entry, made: Json | None) -> None:
    """Put another entry in the variable's place, or none."""
    entries: list[Json] = container.setdefault("env", [])
    place = place_of(container, entry.variable)
    if place is None and made is not None:
        entries.insert(0, made)  # what refers to it by $(NAME) comes after it
    elif place is not None and made is not None:
        entries[place] = made
    elif place is not None:
        del entries[place]
    if not entries and not entry.listed:
        del container["env"]


def _kept(workload: Json, target: KubernetesWorkload) -> dict[tuple[str, str], Entry]:
    """Read the annotation, by container and variable."""
    text = (workload["metadata"].get("annotations") or {}).get(ANNOTATION, "[]")
    try:
        entries = decode(text, tuple[Entry, ...], of=ANNOTATION)
    except Malformed as error:
        raise BadConsumer(f"annotation {ANNOTATION} of {name_of(target)}", str(error)) from None
    return {(each.container, each.variable): each for each in entries}


def _keep(workload: Json, entries: Mapping[tuple[str, str], Entry]) -> None:
    """Write the annotation, where there is anything to say."""
    metadata = workload["metadata"]
    annotations = metadata.get("annotations") or {}
    if entries:
        text = encode([entries[key] for key in sorted(entries)]).decode()
        metadata["annotations"] = {**annotations, ANNOTATION: text}
    elif annotations.pop(ANNOTATION, None) is not None and not annotations:
        del metadata["annotations"]


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
