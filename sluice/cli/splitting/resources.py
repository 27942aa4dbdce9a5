"""Converts mirrord's custom resources to entries of the parameter `splitting.queues`, without side effects.

The resources don't contain queues' names, but say where workloads read these, for example an environment variable.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import fields

from sluice.aws_rules import parse_queue_url
from sluice.codec import convert
from sluice.documents import read_json
from sluice.errors import BadConfiguration, Malformed

REGISTRY = "MirrordWorkloadQueueRegistry"
SPLIT_CONFIG = "MirrordSplitConfig"
PROPERTY_LIST = "MirrordPropertyList"
UNKNOWN_PLACE = "a place that the resource doesn't name"
LIST_KIND = "List"  # kubectl wraps several resources in a resource of this kind.
# A property list may be in mirrord's own namespace instead of its queue's, or in a file without namespaces.
OTHER_NAMESPACES = ("mirrord", "default")

_BOOLEANS = {"true": True, "false": False}

T = TypeVar("T")


class BadResource(BadConfiguration):
    """Raised if a mirrord resource can't be converted. Nothing is imported."""


@dataclass(slots=True)
class ImportedQueues:
    """Converted entries of `splitting.queues` and their Kubernetes namespaces, by queue id, with notes for the user."""

    queues: dict[str, dict[str, Any]] = field(default_factory=dict)
    namespaces: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


class _Metadata(Struct, frozen=True):
    name: str = "without a name"
    namespace: str = "default"


class _Resource(Struct, frozen=True):
    kind: str
    spec: Any = None
    metadata: _Metadata = _Metadata()

    @property
    def title(self) -> str:
        return f"{self.kind} {self.metadata.name}"


class _RegistryConsumer(Struct, frozen=True, rename="camel"):
    name: str
    workload_type: str = "workload"
    container: str | None = None


class _RegistryQueue(Struct, frozen=True, rename="camel"):
    queue_type: str
    name_source: dict[str, str] = {}
    fallback_name: str | None = None
    names_from_json_map: bool | None = None
    tags: dict[str, str] | None = None
    sns: bool | None = None
    s3_event: bool | None = None


class _Registry(Struct, frozen=True):
    queues: dict[str, dict[str, Any]]
    consumer: _RegistryConsumer


class _TargetWorkload(Struct, frozen=True):
    name: str
    kind: str = "workload"


class _QueueNameSource(Struct, frozen=True, rename="camel"):
    env: str | None = None
    env_like: str | None = None
    volume: dict[str, str] | None = None
    pod_file: dict[str, str] | None = None
    fallback: str | None = None
    value_selector: str | None = None
    value_pattern: str | None = None
    containers: list[str] | None = None

    @property
    def place(self) -> str:
        if self.env or self.env_like:
            return f"variable {self.env}" if self.env else f"the variables like {self.env_like}"
        at = self.volume or self.pod_file or {}
        return f"file {at.get('file') or at.get('path')}" if at else UNKNOWN_PLACE


class _QueueNameSources(Struct, frozen=True):
    queue: list[_QueueNameSource] = []


class _SplitConfigQueue(Struct, frozen=True, rename="camel"):
    id: str
    kind: str
    queue_config: str | None = None
    app_config: _QueueNameSources = _QueueNameSources()


class _SplitConfig(Struct, frozen=True, rename="camel"):
    target_ref: _TargetWorkload
    queues: list[dict[str, Any]]
    drain_timeout: int | None = None


class _QueueProperty(Struct, frozen=True):
    name: str
    value: str = ""


class _PropertyList(Struct, frozen=True):
    properties: list[_QueueProperty]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Queue:
    """A queue from a mirrord resource. `options` has further fields for its entry in `splitting.queues`."""

    queue_id: str
    kind: str
    workload: str
    namespace: str
    containers: tuple[str, ...]  # These containers are used for sources that name no containers.
    sources: tuple[_QueueNameSource, ...]
    options: Mapping[str, Any]


def import_queues(documents: Iterable[object], *, cluster: str | None = None, by_agent: bool = False) -> ImportedQueues:
    """Convert mirrord's resources among Kubernetes documents, in order. Raises `BadResource`, which names the resource.

    With `cluster`, the workloads become consumers that Sluice re-points in this cluster.
    """
    result = ImportedQueues()
    resources: list[_Resource] = []
    for document in documents:
        items = document.get("items") if isinstance(document, dict) and document.get("kind") == LIST_KIND else None
        # A YAML document that is empty, for example between two lines `---`, is None.
        listed = items if isinstance(items, list) else [] if document is None else [document]
        resources += [
            _convert(item, _Resource, of=f"resource {number}") for number, item in enumerate(listed, len(resources))
        ]
    lists = {resource.metadata: resource for resource in resources if resource.kind == PROPERTY_LIST}
    for resource in resources:
        if resource.kind == REGISTRY:
            queues = _read_registry(resource, result.notes)
        elif resource.kind == SPLIT_CONFIG:
            queues = _read_split_config(resource, lists, result.notes)
        else:
            if resource.kind != PROPERTY_LIST:
                result.notes.append(f"{resource.title}: skipped, as it contains no SQS queues")
            continue
        for queue in queues:
            consumers = [] if cluster is None else list(_list_consumers(queue, cluster, by_agent=by_agent))
            _add_queue_entry(result, queue, consumers, at=resource.title)
    if not result.queues:
        raise BadResource(f"the files contain no SQS queue of a {REGISTRY} or a {SPLIT_CONFIG}")
    return result


def _read_registry(resource: _Resource, notes: list[str]) -> Iterator[_Queue]:
    registry = _convert(resource.spec, _Registry, of=resource.title)
    _note_unknown_fields(resource.spec, _Registry, at=f"{resource.title}: spec", notes=notes)
    for queue_id, fields_ in registry.queues.items():
        at = f"{resource.title}: spec.queues.{queue_id}"
        if (queue_type := fields_.get("queueType", "SQS")) != "SQS":
            notes.append(f"{at}: its queues are of type {queue_type}, not SQS")
            continue
        queue = _convert(fields_, _RegistryQueue, of=at)
        _note_unknown_fields(fields_, _RegistryQueue, at=at, notes=notes)
        source = _QueueNameSource(
            env=queue.name_source.get("envVar"),
            env_like=queue.name_source.get("regexPattern"),
            fallback=queue.fallback_name,
            value_selector=".[]" if queue.names_from_json_map else None,
        )
        yield _Queue(
            queue_id=queue_id,
            kind=registry.consumer.workload_type,
            workload=registry.consumer.name,
            namespace=resource.metadata.namespace,
            containers=(registry.consumer.container,) if registry.consumer.container else (),
            sources=(source,),
            options={"sns": queue.sns, "s3_event": queue.s3_event, "tags": queue.tags},
        )


def _read_split_config(resource: _Resource, lists: Mapping[_Metadata, _Resource], notes: list[str]) -> Iterator[_Queue]:
    config = _convert(resource.spec, _SplitConfig, of=resource.title)
    _note_unknown_fields(resource.spec, _SplitConfig, at=f"{resource.title}: spec", notes=notes)
    for number, fields_ in enumerate(config.queues):
        at = f"{resource.title}: spec.queues.{number}"
        if (kind := fields_.get("kind", "sqs")) != "sqs":
            notes.append(f"{at}: {fields_.get('id')} is of kind {kind}, not sqs")
            continue
        queue = _convert(fields_, _SplitConfigQueue, of=at)
        _note_unknown_fields(fields_, _SplitConfigQueue, at=at, notes=notes)
        options: Mapping[str, Any] = {}
        if queue.queue_config is not None:
            places = [_Metadata(queue.queue_config, name) for name in (resource.metadata.namespace, *OTHER_NAMESPACES)]
            properties = next((lists[place] for place in places if place in lists), None)
            if properties is not None:
                options = _read_properties(properties, notes)
            else:
                missing = f"{PROPERTY_LIST} {queue.queue_config}, which isn't in these files"
                notes.append(f"{queue.id}: sns, s3_event and tags may be in {missing}")
        yield _Queue(
            queue_id=queue.id,
            kind=config.target_ref.kind,
            workload=config.target_ref.name,
            namespace=resource.metadata.namespace,
            containers=(),
            sources=tuple(queue.app_config.queue),
            options={**options, "drain_timeout_s": config.drain_timeout},
        )


def _read_properties(resource: _Resource, notes: list[str]) -> Mapping[str, Any]:
    """Read a queue's options from a mirrord property list, whose values are all strings."""
    options: dict[str, Any] = {}
    for property_ in _convert(resource.spec, _PropertyList, of=resource.title).properties:
        at = f"{resource.title}: property {property_.name}"
        if property_.name in {"sns", "s3_event"}:
            if property_.value not in _BOOLEANS:
                raise BadResource(f"{at}: {property_.value[:80]!r} is neither true nor false")
            options[property_.name] = _BOOLEANS[property_.value]
        elif property_.name == "tags":
            try:
                decoded = read_json(property_.value)
            except ValueError as error:
                raise BadResource(f"{at}: {error}") from error
            options["tags"] = _convert(decoded, dict[str, str], of=at)
        else:
            notes.append(f"{at} isn't converted")
    return options


def _list_consumers(queue: _Queue, cluster: str, *, by_agent: bool) -> Iterator[dict[str, Any]]:
    """Yield a consumer to re-point for each place that has the queue's name. Raises `BadResource` for some places."""
    for source in queue.sources:
        if source.pod_file is not None:
            raise BadResource(f"{queue.queue_id}: {source.place} isn't in a ConfigMap's volume: leave out --cluster")
        volume = source.volume or {}
        containers = [] if volume else source.containers or list(queue.containers)
        fields_ = {
            "cluster": cluster,
            "namespace": queue.namespace,
            "kind": queue.kind,
            "name": queue.workload,
            "containers": containers,
            "env": source.env,
            "env_like": source.env_like,
            "fallback": source.fallback if source.env and containers else None,  # Sluice refuses a lone fallback.
            "volume": volume.get("name") or volume.get("volume"),
            "file": volume.get("file"),
            "place": {
                name: value
                for name, value in (("path", parse_path(source.value_selector)), ("pattern", source.value_pattern))
                if value
            },
            "agent": by_agent,
        }
        yield {"type": "kubernetes"} | {name: value for name, value in fields_.items() if value}


def parse_path(selector: str | None) -> list[str]:
    """Split a jq-like selector, such as `.queues[].url` or `.queues.[].url`, into the steps of a path."""
    return [step for step in (selector or "").replace("[]", ".[]").split(".") if step]


def _add_queue_entry(result: ImportedQueues, queue: _Queue, consumers: Sequence[Mapping[str, Any]], *, at: str) -> None:
    """Add a queue's entry to the result, and notes on fields that the user has to add before the deployment."""
    namespace = result.namespaces.setdefault(queue.queue_id, queue.namespace)
    if namespace != queue.namespace:
        both = f"{queue.queue_id} is the id of a queue in the namespaces {namespace} and {queue.namespace}"
        raise BadResource(f"{at}: {both}: use a different id for each queue")
    fallbacks = [source.fallback for source in queue.sources if source.fallback]
    urls = [url for url in map(parse_queue_url, fallbacks) if url]
    entry: dict[str, Any] = {
        "queue_id": queue.queue_id,
        "fifo": any(fallback.endswith(".fifo") for fallback in fallbacks),
        **queue.options,
        "existing_source_queue_arn": urls[0].arn if len(urls) == 1 else None,
        "consumers": list(consumers) or None,
    }
    entry = {name: value for name, value in entry.items() if value is not None and value is not False and value != {}}
    if result.queues.setdefault(queue.queue_id, entry) != entry:
        raise BadResource(f"{at}: {queue.queue_id} is another queue's id already: use a different id for each queue")
    read_from = " and ".join(source.place for source in queue.sources) or UNKNOWN_PLACE
    then = "it is re-pointed while the queue is split" if consumers else "set it to the main queue's name"
    result.notes.append(
        f"{queue.queue_id}: {queue.kind} {queue.workload} has the queue's name from {read_from}: {then}"
    )
    if len(queue.sources) > 1 or any(
        source.env_like or "[]" in (source.value_selector or "") for source in queue.sources
    ):
        result.notes.append(f"{queue.queue_id}: may be several queues: add an entry with its own id for each")
    if "existing_source_queue_arn" not in entry:
        known = f", except its name {fallbacks[0]}" if fallbacks else ""
        result.notes.append(
            f"{queue.queue_id}: the resource doesn't tell which queue it is{known}: "
            "set existing_source_queue_arn (and fifo) to adopt it, or let the deployment create one"
        )


def _note_unknown_fields(given_fields: Mapping[str, Any], type_: type[Struct], *, at: str, notes: list[str]) -> None:
    """Add a note for each given field that the msgspec type doesn't have and that therefore isn't converted."""
    unknown = sorted(given_fields.keys() - {field_.encode_name for field_ in fields(type_)})
    notes += [f"{at}.{name} isn't converted" for name in unknown]


def _convert(value: object, type_: type[T], *, of: str) -> T:
    try:
        return convert(value, type_, of=of)
    except Malformed as error:
        raise BadResource(str(error)) from error
