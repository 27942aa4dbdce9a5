"""All parameters of the stacks: what sections share, and how they are read; each section is a module beside this.

A parameter is on a line: name, type with its limits, default, what it is. No construct is here. They are context key
`sluice` of cdk.json, and `-c sluice.<section>.<name>=<value>` on top of it. cdk.json's part and the tables in `docs/`
are made of what stands here (`sluice.parameters.tables`). What is unknown or can't be used is refused.
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
from sluice.parameters.federation import FederationParameters
from sluice.parameters.operations import OperationsParameters
from sluice.parameters.pipeline import PipelineParameters
from sluice.parameters.rendezvous import RendezvousParameters
from sluice.parameters.splitting import SplittingParameters
from sluice.parameters.values import InconsistentParameter, Model, of
from sluice.stages import OURS, staged

ROOT = "sluice"
# https://docs.aws.amazon.com/AmazonCloudWatchLogs/latest/APIReference/API_PutRetentionPolicy.html
RetentionDays = Annotated[
    Literal[1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365, 400, 545, 731, 1096, 1827, 2192, 2557, 2922, 3288, 3653],
    v.NO_FLAG,
]


class Architecture(StrEnum):
    """What functions run on. `local` is this machine, for the embedded cloud, which runs them as its own processes."""

    ARM64 = "arm64"
    X86_64 = "x86_64"
    LOCAL = "local"


class LogLevel(StrEnum):
    """From which level on the functions log."""

    DEBUG = "DEBUG"
    INFO = "INFO"
    WARNING = "WARNING"
    ERROR = "ERROR"
    CRITICAL = "CRITICAL"


class Parameters(Model):
    """All of them. What every section shares stands before the sections."""

    architecture: Architecture = of(
        Architecture.ARM64, "of functions and jobs; `local` is this machine, for the embedded cloud"
    )
    log_level: LogLevel = of(LogLevel.INFO, "from which on functions log")
    log_retention_days: RetentionDays = of(30, "of all logs")
    stage: v.Stage | None = of(
        None,
        "what names begin with, so that several sites live in one account and region: see [Stages](deploy.md#stages)",
    )
    rendezvous: RendezvousParameters = RendezvousParameters()
    splitting: SplittingParameters = SplittingParameters()
    federation: FederationParameters = FederationParameters()
    pipeline: PipelineParameters = PipelineParameters()
    operations: OperationsParameters = OperationsParameters()

    @classmethod
    def read(cls, context: Mapping[str, object]) -> "Parameters":
        """From the whole context of a CDK app. Raises `BadParameter`, which names the key."""
        given = context.get(ROOT, {})
        if not isinstance(given, Mapping):
            raise BadParameter(ROOT, f"{given!r} is not an object of sections")
        document = {name: dict(each) if isinstance(each, Mapping) else each for name, each in given.items()}
        for key, value in context.items():
            if key.startswith(f"{ROOT}."):
                _override(document, key, value)
        try:
            return cls.model_validate_json(json.dumps(document))
        except ValidationError as error:
            raise _refusal(error.errors()[0]) from error

    @model_validator(mode="after")
    def _fits(self) -> Self:
        """Refuse an exchange for rendezvous events that can't be one, and a bound queue with the name of another."""
        offers = staged(self.rendezvous.offers_queue_name, self.stage)
        if len(offers) > v.QUEUE_NAME_CHARACTERS:
            raise InconsistentParameter(
                "rendezvous.offers_queue_name", f"{offers} has more than {v.QUEUE_NAME_CHARACTERS} characters"
            )
        self._check_peer_stages()
        exchange, queues = self.rendezvous.events_exchange, {queue.name for queue in self.federation.queues}
        types = {each.name: each.type for each in (*STANDARD_EXCHANGES, *self.federation.declared.exchanges)}
        if exchange is not None and (type_ := types.get(exchange, ExchangeType.TOPIC)) is not ExchangeType.TOPIC:
            raise InconsistentParameter(
                "rendezvous.events_exchange", f"{exchange} is of type {type_}, not {ExchangeType.TOPIC}"
            )
        for queue in self.splitting.queues:
            if queue.queue_id in queues:
                cause = f"{queue.queue_id} is the name of a queue that can be split, and bound by its queue_id"
                raise InconsistentParameter("federation.queues", cause)
            if queue.queue_id == self.pipeline.queue_id and queue.consumers:
                raise InconsistentParameter(
                    "pipeline.queue_id", f"{queue.queue_id} has consumers, and so no main queue to be landed"
                )
        # Both can be bound, and are told of by their names.
        v.check_names("federation.queues", [each.queue_id for each in self.splitting.queues] + sorted(queues))
        return self

    def _check_peer_stages(self) -> None:
        listed = {self.stage or "", *self.federation.peer_stages}
        for peer in self.federation.known_peers:
            stage = "" if peer.stage is UNSET else peer.stage
            if stage not in listed:
                raise InconsistentParameter("federation.peers", f"peer_stages doesn't list {stage!r}, {peer.tag}'s")

    @property
    def queue_names(self) -> tuple[str, ...]:
        """The patterns of other queues that may be bound or read; those of our own names are the stage's."""
        ours = f"{OURS}-"
        return tuple(
            staged(each, self.stage) if each.startswith(ours) else each for each in self.federation.queue_names
        )

    @property
    def declared(self) -> Declared:
        """What is declared of federation, with the exchange of rendezvous events where it isn't yet."""
        exchange, declared = self.rendezvous.events_exchange, self.federation.declared
        if exchange is None:
            return declared
        known = {each.name for each in (*STANDARD_EXCHANGES, *declared.exchanges)}
        new = () if exchange in known else (Exchange(name=exchange, type=ExchangeType.TOPIC),)
        return replace(declared, exchanges=(*declared.exchanges, *new))


@cache
def schema() -> Mapping[str, Any]:
    """All parameters as a JSON schema without references: what is generated from the models is made of it."""
    document = Parameters.model_json_schema()
    return dict(_resolved(document, document["$defs"]))


def _resolved(node: Any, definitions: Mapping[str, Any]) -> Any:
    if isinstance(node, list):
        return [_resolved(each, definitions) for each in node]
    if not isinstance(node, dict):
        return node
    own = {name: _resolved(each, definitions) for name, each in node.items() if name != "$ref"}
    return {**_resolved(definitions[node["$ref"].rsplit("/", 1)[1]], definitions), **own} if "$ref" in node else own


@cache
def known() -> Mapping[str, Mapping[str, Any]]:
    """Every parameter's schema by its key."""
    found: dict[str, Mapping[str, Any]] = {}
    for name, each in schema()["properties"].items():
        if each.get("type") == "object":
            found |= {f"{ROOT}.{name}.{inner}": field for inner, field in each["properties"].items()}
        else:
            found[f"{ROOT}.{name}"] = each
    return found


def _override(document: dict[str, Any], key: str, value: object) -> None:
    """Put a value of the command line in its place."""
    if key not in known():
        raise BadParameter(key, f"there is no such parameter; there are {', '.join(known())}")
    *within, name = key.split(".")[1:]
    place = document
    for section in within:
        place = place.setdefault(section, {})
    place[name] = v.of_text(value, known()[key]) if isinstance(value, str) else value


def _refusal(error: ErrorDetails) -> BadParameter:
    """Names the parameter and the place in it, and says what the value is not."""
    place, at, node = list(error["loc"]), ROOT, schema()
    while place and at not in known():
        name = place.pop(0)
        at, node = f"{at}.{name}", node.get("properties", {}).get(name, {})
    within = "".join(f"[{each}]" for each in place)
    for step in place:
        node = _within(node, step)
    fault = error.get("ctx", {}).get("error")
    if isinstance(fault, InconsistentParameter):
        at = f"{at}.{fault.name}"
    match error["type"]:
        case "value_error":
            cause = str(fault)
        case "extra_forbidden":
            cause = f"there is no such parameter; there are {', '.join(known())}"
        case "missing":
            cause = "is missing"
        case _:
            cause = f"{error['input']!r} is not {v.in_words(node)}".replace(" is not one of ", " is none of ")
    return BadParameter(at, f"{within}: {cause}" if within else cause)


def _within(node: Mapping[str, Any], step: int | str) -> Mapping[str, Any]:
    """Find the schema that a step of an error's place leads to: into a list, an object, or one of several types."""
    if isinstance(step, int):
        found = node.get("items", {})
    elif "oneOf" in node:
        found = next((each for each in node["oneOf"] if each["properties"]["type"]["const"] == step), {})
    else:
        found = node.get("properties", {}).get(step, {})
    return dict(found)
