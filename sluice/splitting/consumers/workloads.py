"""Finds environment variables of a workload's pods that name a queue, and rewrites them. Pure.

Objects are as the API server returns them, and aren't modified: functions return changed copies. A literal value is
rewritten in place. A ConfigMap may be shared and isn't changed. Instead, a variable that reads its value from a
ConfigMap becomes a literal of this workload: in place of its reference in `env`, or first in `env` if `envFrom` sets
it. Once the literal equals the ConfigMap's value again, the original reference is restored.

Variables follow Kubernetes's rules: `env` overrides `envFrom`, the last source of `envFrom` overrides earlier ones, and
a reference to a missing key is ignored. Secrets are never read. `ConfigMaps` maps names to ConfigMaps, or to None if
missing. https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/pod-v1/#environment-variables
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any, TypeAlias, cast

import msgspec

from sluice.codec import Format, Struct, decode, encode
from sluice.errors import BadConsumer, Malformed
from sluice.splitting.consumers.rewriting import check_named, rewrite
from sluice.splitting.consumers.targets import KubernetesWorkload, describe_target
from sluice.splitting.consumers.temporary_queues import PREFIX

Json: TypeAlias = dict[str, Any]
ConfigMaps: TypeAlias = Mapping[str, Json | None]

# This annotation of a workload has the original entries of variables that are literals during sessions.
ANNOTATION = "sluice-originals"
MAX_TEXT = 16_384  # The registry stores a value of at most this many characters.


class Entry(Struct, frozen=True, kw_only=True):
    """A variable of a container before any change. `was` is its entry in `env`, None if it has no entry there.

    `value` is its value in the form of a literal: if it wasn't one, `$` is doubled. `listed`: the container has a list
    `env`.
    """

    container: str
    variable: str
    was: Json | None
    value: str
    listed: bool = True


class Original(Struct, frozen=True, kw_only=True):
    """A workload before any change: the name of the `queue` that it reads, and the entries that name this queue.

    `config_map` is the name of the volume's ConfigMap, if a file names the queue.
    """

    queue: str
    entries: tuple[Entry, ...] = ()
    config_map: str | None = None


ORIGINAL = Format(kind="workload", version=1, type=Original)


class PointedWorkload(msgspec.Struct, frozen=True, kw_only=True):
    """The changed workload, and the variables that can't be changed, each with its reason."""

    workload: Json
    problems: tuple[BadConsumer, ...] = ()


def get_pod_spec(workload: Mapping[str, Any]) -> Json:
    """Return the spec of the workload's pods; {} if the workload has no pod template of its own."""
    return (workload["spec"].get("template") or {}).get("spec") or {}


def list_config_maps(workload: Json, target: KubernetesWorkload) -> frozenset[str]:
    """List the ConfigMaps that may set the containers' variables. Raises `BadConsumer` for a missing container."""
    return frozenset(name for container in _select_containers(workload, target) for name in list_map_names(container))


def find_entries(
    workload: Json, target: KubernetesWorkload, config_maps: ConfigMaps, *, queue: str
) -> tuple[Entry, ...]:
    """Find the variables that name the queue, given as an ARN. Each container in the target must have such a variable.

    If the target names no containers, containers without such a variable are skipped. Raises `BadConsumer` with the
    reason if no variable names the queue or a value can't be read.
    """
    try:
        pattern = re.compile(re.escape(target.env) if target.env is not None else target.env_like or "")
    except re.error as error:
        raise BadConsumer(describe_target(target), f"no pattern: {error}") from None
    kept, entries, problems = _read_annotation(workload, target), list[Entry](), list[BadConsumer]()
    for container in _select_containers(workload, target):
        before = len(entries)
        names = list_variables(container, config_maps) | ({target.env} if target.env is not None else set())
        for variable in sorted(filter(pattern.fullmatch, names)):
            entry = _read_entry(container, variable, target, config_maps)
            if entry is None:
                continue
            where, shared = (
                _describe_variable(target, container["name"], variable),
                kept.get((container["name"], variable)),
            )
            try:
                check_named(entry.value, target.place, queue=queue, of=where)
            except BadConsumer as error:
                more = ", but refers to other variables: name one of those" if "$(" in entry.value else ""
                problems.append(BadConsumer(error.place, error.cause + more))
                continue
            is_temporary_queue = shared is not None and PREFIX in entry.value
            entries.append(shared if shared is not None and is_temporary_queue else entry)
        if target.containers and len(entries) == before:
            raise problems[-1] if problems else BadConsumer(_describe_variable(target, container["name"]), "isn't set")
    if not entries:
        raise problems[0] if problems else BadConsumer(describe_target(target), "isn't set")
    return tuple(entries)


def point_workload(
    workload: Json, target: KubernetesWorkload, entries: Sequence[Entry], *, old: Collection[str], new: str
) -> PointedWorkload:
    """Replace the queues `old` by `new` in the variables. All queues are given as ARNs.

    Changes that others made to a variable are kept. A variable with its original value gets its original entry again. A
    variable that names none of the queues, or is no longer a literal, is returned as a problem.
    """
    changed, problems = deepcopy(workload), list[BadConsumer]()
    kept = _read_annotation(workload, target)
    for entry in entries:
        key = entry.container, entry.variable
        try:
            is_literal = _rewrite_variable(changed, target, entry, old=old, new=new)
        except BadConsumer as error:
            problems.append(error)
            is_literal = False
        if is_literal and (entry.was is None or "valueFrom" in entry.was):
            kept[key] = entry
        else:
            kept.pop(key, None)
    annotations = changed["metadata"].get("annotations") or {}
    if kept:
        text = encode([kept[key] for key in sorted(kept)]).decode()
        changed["metadata"]["annotations"] = {**annotations, ANNOTATION: text}
    elif annotations.pop(ANNOTATION, None) is not None and not annotations:
        del changed["metadata"]["annotations"]
    return PointedWorkload(workload=changed, problems=tuple(problems))


def have_equal_entries(pod: Json, other: Json, entries: Sequence[Entry]) -> bool:
    """Return whether the specs of two pods have the same entries for these variables."""
    return all(
        find_entry(find_container(pod, entry.container), entry.variable)
        == find_entry(find_container(other, entry.container), entry.variable)
        for entry in entries
    )


def read_values(workload: Json, entries: Sequence[Entry]) -> dict[str, str]:
    """Return the current values of these variables, by name."""
    values = {}
    for entry in entries:
        current = find_entry(find_container(get_pod_spec(workload), entry.container), entry.variable)
        is_literal = current is not None and "valueFrom" not in current
        values[entry.variable] = current.get("value", "") if current and is_literal else entry.value
    return values


def _select_containers(workload: Json, target: KubernetesWorkload) -> list[Json]:
    containers = list_containers(get_pod_spec(workload))
    for name in target.containers:
        if name not in {container["name"] for container in containers}:
            raise BadConsumer(describe_target(target), f"there is no container {name}")
    return [container for container in containers if not target.containers or container["name"] in target.containers]


def _describe_variable(target: KubernetesWorkload, container: str, variable: str | None = None) -> str:
    """Describe a variable of one container for error messages."""
    named = variable or target.env
    of = f"container {container} of {target.kind} {target.cluster}/{target.namespace}/{target.name}"
    return f"variable {named} of {of}" if named else f"a variable like {target.env_like} of {of}"


def _read_entry(container: Json, variable: str, target: KubernetesWorkload, config_maps: ConfigMaps) -> Entry | None:
    """Read a variable's entry and value. Returns None if nothing sets it. Raises `BadConsumer` if it can't be read."""
    where = _describe_variable(target, container["name"], variable)
    value = read_value(container, variable, config_maps, where=where, with_secrets=target.fallback is None)
    if value is None and target.fallback is not None:
        value = escape_literal(target.fallback)
    if value is None:
        return None
    if len(value) > MAX_TEXT:
        raise BadConsumer(where, f"has {len(value)} characters, more than {MAX_TEXT}")
    was = find_entry(container, variable)
    return Entry(container=container["name"], variable=variable, was=was, value=value, listed="env" in container)


def _rewrite_variable(
    workload: Json, target: KubernetesWorkload, entry: Entry, *, old: Collection[str], new: str
) -> bool:
    """Rewrite a variable in place. Returns whether the variable is now a literal that names a temporary queue."""
    where = _describe_variable(target, entry.container, entry.variable)
    container = find_container(get_pod_spec(workload), entry.container)
    if not container:
        raise BadConsumer(where, "there is no such container any more")
    current = find_entry(container, entry.variable)
    if current == entry.was:
        value = entry.value
    elif current is not None and "valueFrom" not in current:
        value = current.get("value", "")
    else:
        raise BadConsumer(where, "isn't set as it was")
    changed = rewrite(value, target.place, old=old, new=new, of=where)
    if changed != value:
        kept = {} if current is None or "valueFrom" in current else current
        made = {**kept, "name": entry.variable, "value": changed}
        _replace_entry(container, entry, entry.was if changed == entry.value else made)
    return PREFIX in changed and find_entry(container, entry.variable) != entry.was


def _replace_entry(container: Json, entry: Entry, made: Json | None) -> None:
    """Replace the variable's entry by `made`, or remove the entry if `made` is None."""
    entries: list[Json] = container.setdefault("env", [])
    place = find_index(container, entry.variable)
    if place is None and made is not None:
        entries.insert(0, made)  # Put it first, because later variables may refer to it by $(NAME).
    elif place is not None and made is not None:
        entries[place] = made
    elif place is not None:
        del entries[place]
    if not entries and not entry.listed:
        del container["env"]


def _read_annotation(workload: Json, target: KubernetesWorkload) -> dict[tuple[str, str], Entry]:
    """Parse the workload's annotation. Returns the original entries by container and variable."""
    text = (workload["metadata"].get("annotations") or {}).get(ANNOTATION, "[]")
    try:
        entries = decode(text, tuple[Entry, ...], of=ANNOTATION)
    except Malformed as error:
        raise BadConsumer(f"annotation {ANNOTATION} of {describe_target(target)}", str(error)) from None
    return {(entry.container, entry.variable): entry for entry in entries}


def list_containers(pod: Json) -> list[Json]:
    """List the containers of a pod's spec, init containers first."""
    return [*(pod.get("initContainers") or []), *(pod.get("containers") or [])]


def find_container(pod: Json, name: str) -> Json:
    """Find a container by its name. Returns {} if the pod has no such container."""
    return next((container for container in list_containers(pod) if container["name"] == name), {})


def find_index(container: Json, variable: str) -> int | None:
    """Find a variable's index in `env`. If several entries have its name, the last one counts."""
    entries = container.get("env") or []
    return next((place for place in reversed(range(len(entries))) if entries[place]["name"] == variable), None)


def find_entry(container: Json, variable: str) -> Json | None:
    """Find a variable's entry in `env`. Returns None if it has no entry."""
    place = find_index(container, variable)
    return None if place is None else container["env"][place]


def list_map_names(container: Json) -> Iterator[str]:
    """Yield the names of the ConfigMaps that set variables of the container."""
    refs = [entry.get("valueFrom", {}).get("configMapKeyRef") for entry in container.get("env") or []]
    refs += [source.get("configMapRef") for source in container.get("envFrom") or []]
    return (ref["name"] for ref in refs if ref and ref.get("name"))


def list_variables(container: Json, config_maps: ConfigMaps) -> set[str]:
    """Return the names of all variables of the container, except those that Secrets set."""
    names = {entry["name"] for entry in container.get("env") or []}
    for source in container.get("envFrom") or []:
        config_map = config_maps.get(source.get("configMapRef", {}).get("name", "")) or {}
        names |= {source.get("prefix", "") + key for key in config_map.get("data") or {}}
    return names


def read_value(
    container: Json, variable: str, config_maps: ConfigMaps, *, where: str, with_secrets: bool = True
) -> str | None:
    """Return a variable's value in the form of a literal; None if nothing sets the variable.

    Raises `BadConsumer`, whose message begins with `where`, if the variable is set twice, or by something other than a
    literal or a ConfigMap, or if a Secret of `envFrom` may set it. Without `with_secrets`, Secrets of `envFrom` are
    ignored.
    """
    if sum(env_entry["name"] == variable for env_entry in container.get("env") or []) > 1:
        raise BadConsumer(where, "is set more than once")
    entry = find_entry(container, variable)
    if entry is not None and "valueFrom" not in entry:
        return cast("str | None", entry.get("value", ""))
    text = None
    if entry is not None:
        ref = entry["valueFrom"].get("configMapKeyRef")
        if ref is None:
            kind = next(iter(entry["valueFrom"]), "nothing")
            cause = "is of a Secret, which isn't read" if kind == "secretKeyRef" else f"is by {kind}, which isn't read"
            raise BadConsumer(where, cause)
        text = ((config_maps.get(ref["name"]) or {}).get("data") or {}).get(ref["key"])
    for source in reversed(container.get("envFrom") or []):
        prefix = source.get("prefix", "")
        if text is not None or not variable.startswith(prefix):
            continue
        if "secretRef" in source and with_secrets:
            secret = source["secretRef"].get("name")
            raise BadConsumer(where, f"may be of Secret {secret}, which isn't read: give its fallback")
        config_map = config_maps.get(source.get("configMapRef", {}).get("name", "")) or {}
        text = (config_map.get("data") or {}).get(variable.removeprefix(prefix))
    return None if text is None else escape_literal(text)


def escape_literal(value: str) -> str:
    """Escape a value so that Kubernetes doesn't expand `$(NAME)` in it when it becomes a literal."""
    return value.replace("$", "$$")
