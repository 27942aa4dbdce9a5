"""All parameters of the stacks. Each section has a module in this package; this module parses and checks them together.

A parameter's field has its name, type with limits, default and description. Values come from the context key `sluice`
of cdk.json, and `-c sluice.<section>.<name>=<value>` overrides them. `make parameters` generates that part of cdk.json
and the tables in `docs/`. Unknown parameters and invalid values are refused. No module of this package needs the CDK.
"""

import json
from collections.abc import Mapping
from enum import StrEnum
from functools import cache
from typing import Annotated, Any, Literal, Self

from msgspec import UNSET
from msgspec.structs import replace
from pydantic import ValidationError, model_validator
from pydantic_core import ErrorDetails

from sluice.errors import BadParameter
from sluice.federation.declared import Declared
from sluice.federation.matching.exchanges import STANDARD_EXCHANGES, Exchange, ExchangeType
from sluice.parameters import values as v
from sluice.parameters.federation import Access, FederationParameters
from sluice.parameters.operations import OperationsParameters
from sluice.parameters.pipeline import PipelineParameters
from sluice.parameters.rendezvous import RendezvousParameters
from sluice.parameters.splitting import SplittingParameters
from sluice.parameters.values import InconsistentParameter, Model, param
from sluice.stages import OURS, add_stage_prefix

ROOT = "sluice"
# CloudWatch Logs accepts these numbers of days: https://docs.aws.amazon.com/AmazonCloudWatchLogs/latest/APIReference/API_PutRetentionPolicy.html
RetentionDays = Annotated[
    Literal[1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365, 400, 545, 731, 1096, 1827, 2192, 2557, 2922, 3288, 3653],
    v.REJECT_BOOLEAN,
]


class Architecture(StrEnum):
    """Processor architectures of functions. `local` is the architecture of this machine, for the embedded cloud."""

    ARM64 = "arm64"
    X86_64 = "x86_64"
    LOCAL = "local"


class LogLevel(StrEnum):
    """The least severe level that functions log."""

    DEBUG = "DEBUG"
    INFO = "INFO"
    WARNING = "WARNING"
    ERROR = "ERROR"
    CRITICAL = "CRITICAL"


class Parameters(Model):
    """All parameters: first those outside any section, then the sections."""

    architecture: Architecture = param(
        Architecture.ARM64,
        "Processor architecture of the functions and jobs. `local`: this machine's, only for the embedded cloud",
    )
    kms_key_arn: v.KmsKeyArn | None = param(
        None,
        "ARN of your KMS key that encrypts queues, tables, bucket, topics, logs and functions' variables: see "
        "[Governed accounts](deploy.md#governed-accounts). Null: keys of AWS",
    )
    log_level: LogLevel = param(LogLevel.INFO, "Least severe level that the functions log")
    log_retention_days: RetentionDays = param(30, "Days that CloudWatch keeps the logs of functions and jobs")
    stage: v.Stage | None = param(
        None,
        "Prefix of all resource names, so that several sites fit into one account and region: see "
        "[Stages](deploy.md#stages). Null: no prefix",
    )
    rendezvous: RendezvousParameters = RendezvousParameters()
    splitting: SplittingParameters = SplittingParameters()
    federation: FederationParameters = FederationParameters()
    pipeline: PipelineParameters = PipelineParameters()
    operations: OperationsParameters = OperationsParameters()

    @classmethod
    def from_context(cls, context: Mapping[str, object]) -> "Parameters":
        """Parse the parameters in the context of a CDK app. Raises `BadParameter`, which names the context key."""
        sections = context.get(ROOT, {})
        if not isinstance(sections, Mapping):
            raise BadParameter(ROOT, f"{sections!r} is not an object of sections")
        document = {name: dict(value) if isinstance(value, Mapping) else value for name, value in sections.items()}
        for key, value in context.items():
            if key.startswith(f"{ROOT}."):
                _apply_override(document, key, value)
        try:
            return cls.model_validate_json(json.dumps(document))
        except ValidationError as error:
            raise _to_bad_parameter(error.errors()[0]) from error

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        """Raise `InconsistentParameter` if parameters of different sections contradict each other."""
        offers = add_stage_prefix(self.rendezvous.offers_queue_name, self.stage)
        if len(offers) > v.QUEUE_NAME_CHARACTERS:
            raise InconsistentParameter(
                "rendezvous.offers_queue_name", f"{offers} has more than {v.QUEUE_NAME_CHARACTERS} characters"
            )
        if self.kms_key_arn and self.federation.peer_accounts and self.federation.access is not Access.ROLE:
            cause = "with kms_key_arn, peers in other accounts can't send to queues themselves: set it to role"
            raise InconsistentParameter("federation.access", cause)
        stages = {self.stage or "", *self.federation.peer_stages}
        for peer in self.federation.known_peers:
            stage = "" if peer.stage is UNSET else peer.stage
            if stage not in stages:
                raise InconsistentParameter(
                    "federation.peers", f"peer_stages doesn't list {stage!r}, the stage of {peer.tag}"
                )
        exchange, queues = self.rendezvous.events_exchange, {queue.name for queue in self.federation.queues}
        types = {known.name: known.type for known in (*STANDARD_EXCHANGES, *self.federation.declared.exchanges)}
        if exchange is not None and (type_ := types.get(exchange, ExchangeType.TOPIC)) is not ExchangeType.TOPIC:
            raise InconsistentParameter(
                "rendezvous.events_exchange", f"{exchange} is of type {type_}, not {ExchangeType.TOPIC}"
            )
        for queue in self.splitting.queues:
            if queue.queue_id in queues:
                cause = f"{queue.queue_id} is a split queue, which is already bound by its queue_id"
                raise InconsistentParameter("federation.queues", cause)
            if queue.queue_id == self.pipeline.queue_id and queue.consumers:
                raise InconsistentParameter(
                    "pipeline.queue_id",
                    f"{queue.queue_id} has consumers, so it has no main queue that the land job could read",
                )
        # Both split queues and federation's own queues can be bound, and a binding distinguishes them only by name.
        v.check_construct_ids("federation.queues", [queue.queue_id for queue in self.splitting.queues] + sorted(queues))
        return self

    @property
    def held_polls_range(self) -> tuple[int, int]:
        """Fewest and most polls to hold. The rest of the concurrency is for answers and other functions."""
        rendezvous, account = self.rendezvous, self.operations.account_concurrency
        reserved = rendezvous.proxy_max_concurrency
        most = max(1, account // 2 if reserved is None else reserved * 2 // 3)
        return min(rendezvous.held_proxies_min, most), min(rendezvous.held_proxies_max, most)

    @property
    def queue_names(self) -> tuple[str, ...]:
        """The patterns of `federation.queue_names`. Patterns of Sluice's names get the stage's prefix."""
        own_prefix = f"{OURS}-"
        return tuple(
            add_stage_prefix(pattern, self.stage) if pattern.startswith(own_prefix) else pattern
            for pattern in self.federation.queue_names
        )

    @property
    def declared(self) -> Declared:
        """The declarations of federation, with the exchange of the rendezvous' events added if it is missing."""
        name, declared = self.rendezvous.events_exchange, self.federation.declared
        if name is None:
            return declared
        known = {exchange.name for exchange in (*STANDARD_EXCHANGES, *declared.exchanges)}
        new = () if name in known else (Exchange(name=name, type=ExchangeType.TOPIC),)
        return replace(declared, exchanges=(*declared.exchanges, *new))


@cache
def json_schema() -> Mapping[str, Any]:
    """Build the JSON schema of all parameters, with references replaced by their definitions."""
    document = Parameters.model_json_schema()
    return dict(_inline_references(document, document["$defs"]))


def _inline_references(node: Any, definitions: Mapping[str, Any]) -> Any:
    if isinstance(node, list):
        return [_inline_references(item, definitions) for item in node]
    if not isinstance(node, dict):
        return node
    own = {name: _inline_references(value, definitions) for name, value in node.items() if name != "$ref"}
    return (
        {**_inline_references(definitions[node["$ref"].rsplit("/", 1)[1]], definitions), **own}
        if "$ref" in node
        else own
    )


@cache
def parameter_schemas() -> Mapping[str, Mapping[str, Any]]:
    """Map each parameter's context key to its JSON schema."""
    schemas: dict[str, Mapping[str, Any]] = {}
    for name, section in json_schema()["properties"].items():
        if section.get("type") == "object":
            schemas |= {f"{ROOT}.{name}.{inner}": field for inner, field in section["properties"].items()}
        else:
            schemas[f"{ROOT}.{name}"] = section
    return schemas


def _apply_override(document: dict[str, Any], key: str, value: object) -> None:
    """Apply option `-c`: put its value into the document of parameters. Raises `BadParameter`."""
    if key not in parameter_schemas():
        raise BadParameter(key, f"there is no such parameter; there are {', '.join(parameter_schemas())}")
    *sections, name = key.split(".")[1:]
    target = document
    for section in sections:
        target = target.setdefault(section, {})
        if not isinstance(target, dict):
            raise BadParameter(f"{ROOT}.{section}", "it is not an object, so -c can't set a parameter in it")
    target[name] = v.parse_option_value(value, parameter_schemas()[key]) if isinstance(value, str) else value


def _to_bad_parameter(error: ErrorDetails) -> BadParameter:
    """Convert pydantic's error to one that names the parameter, the path within its value, and the expected type."""
    path, key, node = list(error["loc"]), ROOT, json_schema()
    parent = node
    while path and key not in parameter_schemas():
        name = path.pop(0)
        key, node, parent = f"{key}.{name}", node.get("properties", {}).get(name, {}), node
    subscripts = "".join(f"[{step}]" for step in path)
    for step in path:
        node, parent = _find_schema(node, step), node
    reason = error.get("ctx", {}).get("error")
    if isinstance(reason, InconsistentParameter):
        key = f"{key}.{reason.name}"
    match error["type"]:
        case "value_error":
            cause = str(reason)
        case "extra_forbidden":
            cause = f"there is no such parameter; there are {', '.join(parent.get('properties', ()))}"
        case "missing":
            cause = "is missing"
        case _:
            cause = f"{error['input']!r} is not {v.describe_type(node)}"
    return BadParameter(key, f"{subscripts}: {cause}" if subscripts else cause)


def _find_schema(node: Mapping[str, Any], step: int | str) -> Mapping[str, Any]:
    """Find the schema at one step of a validation error's path: a list index, a field, or the type in a union."""
    if isinstance(step, int):
        schema = node.get("items", {})
    elif "oneOf" in node:
        schema = next((option for option in node["oneOf"] if option["properties"]["type"]["const"] == step), {})
    else:
        schema = node.get("properties", {}).get(step, {})
    return dict(schema)
