"""The parameters of the stacks: typed, checked before anything is made of them. No construct is made here.

They are the context key `sluice` of cdk.json, and `-c sluice.<section>.<name>=<value>` on top of it. A value that comes
as text where another type is asked for is read as JSON. Whatever is unknown or can't be used raises `BadParameter`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from sluice.errors import BadParameter
from sluice.federation.declared import Declared
from sluice.federation.matching.bindings import Binding
from sluice.federation.matching.exchanges import STANDARD_EXCHANGES, Exchange, ExchangeType
from sluice.rendezvous.counts.events import TOPIC
from stacks.sections import federation, operations, pipeline, rendezvous, splitting
from stacks.sections.federation import FederationParameters
from stacks.sections.operations import OperationsParameters
from stacks.sections.pipeline import PipelineParameters
from stacks.sections.rendezvous import RendezvousParameters
from stacks.sections.splitting import SplittingParameters
from stacks.sections.values import ROOT, Parse, as_json, one_of, parsed

COUNTERS_QUEUE = "rendezvous-counters"  # bound to the exchange of rendezvous events, so that they are counted


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """All of them. What every section shares stands beside the sections."""

    rendezvous: RendezvousParameters = field(default_factory=RendezvousParameters)
    splitting: SplittingParameters = field(default_factory=SplittingParameters)
    federation: FederationParameters = field(default_factory=FederationParameters)
    pipeline: PipelineParameters = field(default_factory=PipelineParameters)
    operations: OperationsParameters = field(default_factory=OperationsParameters)
    architecture: Architecture = Architecture.ARM64
    log_retention_days: int = 30
    log_level: LogLevel = LogLevel.INFO

    @classmethod
    def read(cls, context: Mapping[str, object]) -> "Parameters":
        """From the whole context of a CDK app. Raises `BadParameter`, which names the key."""
        given = dict(_flat(ROOT, context.get(ROOT, {}))) | _overrides(context)
        _refuse_unknown(given)
        read = cls(
            rendezvous=rendezvous.read(given),
            splitting=splitting.read(given),
            federation=federation.read(given),
            pipeline=pipeline.read(given),
            operations=operations.read(given),
            **parsed(given, ROOT, SHARED),
        )
        _check_events(read)
        _check_split_names(read)
        return read

    @property
    def declared(self) -> Declared:
        """What is declared of federation, with the binding of the queue where rendezvous events are counted.

        Their exchange is declared too where it isn't yet.
        """
        exchange, declared = self.rendezvous.events_exchange, self.federation.declared
        if exchange is None:
            return declared
        known = {each.name for each in (*STANDARD_EXCHANGES, *declared.exchanges)}
        new = () if exchange in known else (Exchange(name=exchange, type=ExchangeType.TOPIC),)
        binding = Binding(exchange=exchange, queue=COUNTERS_QUEUE, key=f"{TOPIC}.#")
        return replace(declared, exchanges=(*declared.exchanges, *new), bindings=(*declared.bindings, binding))


def _flat(key: str, value: object) -> Iterator[tuple[str, object]]:
    """The leaves of nested objects, by dotted key."""
    if not isinstance(value, Mapping):
        yield key, value
        return
    for name, inner in value.items():
        yield from _flat(f"{key}.{name}", inner)


def _overrides(context: Mapping[str, object]) -> dict[str, object]:
    return {key: value for key, value in context.items() if key.startswith(f"{ROOT}.")}


def _refuse_unknown(given: Mapping[str, object]) -> None:
    known = {f"{section}.{name}" for section, parsers in SECTIONS.items() for name in parsers}
    for key in given.keys() - known:
        raise BadParameter(key, f"there is no such parameter; there are {', '.join(sorted(known))}")


def _check_events(parameters: "Parameters") -> None:
    """That the exchange for rendezvous events can be one, and the name of the counters' queue isn't taken."""
    exchange = parameters.rendezvous.events_exchange
    if exchange is None:
        return
    if COUNTERS_QUEUE in {queue.name for queue in parameters.federation.queues}:
        cause = f"{COUNTERS_QUEUE} is the queue where rendezvous events are counted"
        raise BadParameter(f"{federation.KEY}.queues", cause)
    types = {each.name: each.type for each in (*STANDARD_EXCHANGES, *parameters.federation.declared.exchanges)}
    type_ = types.get(exchange, ExchangeType.TOPIC)
    if type_ is not ExchangeType.TOPIC:
        cause = f"{exchange} is of type {type_}, not {ExchangeType.TOPIC}"
        raise BadParameter(f"{rendezvous.KEY}.events_exchange", cause)


def _check_split_names(parameters: "Parameters") -> None:
    """Split queues are bound by their queue_id: no other bound queue may have that name."""
    names = {queue.name for queue in parameters.federation.queues} | {COUNTERS_QUEUE}
    for queue in parameters.splitting.queues:
        if queue.queue_id in names:
            cause = f"{queue.queue_id} is the name of a queue that can be split, and bound by its queue_id"
            raise BadParameter(f"{federation.KEY}.queues", cause)


# What CloudWatch Logs takes: https://docs.aws.amazon.com/AmazonCloudWatchLogs/latest/APIReference/API_PutRetentionPolicy.html
RETENTION_DAYS = (
    *(1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180),
    *(365, 400, 545, 731, 1096, 1827, 2192, 2557, 2922, 3288, 3653),
)


def _retention_days(value: object) -> int:
    days = as_json(value)
    if isinstance(days, bool) or days not in RETENTION_DAYS:
        raise ValueError(f"{value!r} is none of {', '.join(map(str, RETENTION_DAYS))}")
    return int(str(days))


SHARED: Mapping[str, Parse] = {
    "architecture": one_of(Architecture),
    "log_retention_days": _retention_days,
    "log_level": one_of(LogLevel),
}
SECTIONS: Mapping[str, Mapping[str, Parse]] = {
    ROOT: SHARED,
    rendezvous.KEY: rendezvous.PARSERS,
    splitting.KEY: splitting.PARSERS,
    federation.KEY: federation.PARSERS,
    pipeline.KEY: pipeline.PARSERS,
    operations.KEY: operations.PARSERS,
}
