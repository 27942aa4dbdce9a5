"""The parameters of the stacks: typed, checked before anything is made of them. No construct is made here.

They are the context key `sluice` of cdk.json, and `-c sluice.<section>.<name>=<value>` on top of it. A value that comes
as text where another type is asked for is read as JSON. Whatever is unknown or can't be used raises `BadParameter`.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from sluice.errors import BadBinding, BadBridgeList, BadParameter, BadRoute
from sluice.federation.bindings import Binding
from sluice.federation.declared import Declared
from sluice.federation.exchanges import STANDARD_EXCHANGES, Exchange, ExchangeType
from sluice.federation.tracing import is_tag
from sluice.pipeline.jobs import TableFormat
from sluice.pipeline.schedule import Daily
from sluice.rendezvous.bridges import DEFAULT_FINGERPRINT, parse_bridges
from sluice.rendezvous.broker import ANSWER_QUEUE_PREFIX
from sluice.rendezvous.events import TOPIC
from sluice.rendezvous.mailbox import PREFIX as MAILBOX_PREFIX

ROOT = "sluice"
EVENTS_EXCHANGE = "events"
DECLARED_DEFAULT = {"exchanges": [{"name": EVENTS_EXCHANGE, "type": "topic"}]}
DECLARED = Declared.of(DECLARED_DEFAULT)
COUNTERS_QUEUE = "rendezvous-counters"  # bound to it, so that what is published is counted
Parse = Callable[[object], object]  # raises ValueError

DEFAULT_BRIDGE = {
    "displayName": "default",
    "webSocketAddress": "wss://snowflake.torproject.net/",
    "fingerprint": DEFAULT_FINGERPRINT,
}


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
class RendezvousParameters:
    """Section `rendezvous`."""

    offers_queue_name: str = "snowflake-broker"
    existing_offers_queue_arn: str | None = None  # then no offers queue is made, and its name is this one's
    bridges: str = json.dumps(DEFAULT_BRIDGE)  # in JSON lines, as the functions read them
    allowed_relay_pattern: str = "snowflake.torproject.net$"
    held_proxies_min: int = 4
    held_proxies_max: int = 200
    broker_max_concurrency: int = 2  # of each of its two queues
    broker_memory_mb: int = 512
    proxy_memory_mb: int = 256
    sweeper_memory_mb: int = 256
    counters_memory_mb: int = 256
    counters_window_s: int = 5  # how long events may wait to be counted together
    events_exchange: str | None = EVENTS_EXCHANGE  # what offers, polls and answers are published to; None is nothing
    geoip_file: str | None = None  # a MaxMind database of countries in the project; else every country is unknown
    keep_state: bool = True  # false deletes the table with its stack: for trials


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitQueueParameters:
    """One queue that can be split. Its source and main queue are made, or adopted by their ARNs."""

    queue_id: str
    fifo: bool = False
    sns: bool = False  # bodies are SNS notifications, whose attributes count
    s3_event: bool = False  # bodies are S3 event notifications, whose objects' metadata jq sees
    drain_timeout_s: int | None = None
    tags: Mapping[str, str] = field(default_factory=dict)  # of the queues that sessions get
    existing_source_queue_arn: str | None = None
    existing_main_queue_arn: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SplittingParameters:
    """Section `splitting`."""

    queues: tuple[SplitQueueParameters, ...] = (SplitQueueParameters(queue_id="pipeline"),)
    batch_size: int = 1_000  # of standard queues; FIFO queues have ten at most
    batching_window_s: int = 1  # of standard queues; how long a batch may wait to be filled
    max_concurrency: int = 10  # splitters of one queue side by side
    splitter_memory_mb: int = 512
    control_memory_mb: int = 256
    kms_key_arns: tuple[str, ...] = ()  # of adopted queues
    s3_bucket_arns: tuple[str, ...] = ()  # of objects that S3 events are about


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundQueueParameters:
    """One queue that exchanges are bound to and queue routes read. It is made, or adopted by its ARN."""

    name: str
    fifo: bool = False
    existing_arn: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class IngressParameters:
    """An ingress queue of one exchange's own, for producers that can't say which exchange they mean."""

    exchange: str
    fifo: bool = False


class Access(StrEnum):
    """How peers in other accounts may send here."""

    POLICY = "policy"  # the queues' own policies let the accounts in
    ROLE = "role"  # a role that they assume, with the external id


@dataclass(frozen=True, slots=True, kw_only=True)
class FederationParameters:
    """Section `federation`."""

    tag: str | None = None  # the site's; else its region and account
    peer_accounts: tuple[str, ...] = ()  # beside the site's own
    access: Access = Access.POLICY
    external_id: str = "sluice"
    sqs_url: str | None = None  # where peers reach the site's SQS, if not at its usual address
    queues: tuple[BoundQueueParameters, ...] = ()
    queue_names: tuple[str, ...] = ("sluice-queue-*",)  # of other queues that may be bound or read, with wildcards
    ingresses: tuple[IngressParameters, ...] = ()
    declared: Declared = DECLARED  # exchanges, bindings, links and routes
    trust_publishers: bool = False  # to say where a message has been
    counts_settle_s: int = 60  # after which SQS's counts are right: how long a route's queue is to be empty to go
    batch_size: int = 100  # of standard queues; FIFO queues have ten at most
    batching_window_s: int = 1  # of standard queues; how long a batch may wait to be filled
    max_concurrency: int = 10  # exchange functions of one ingress side by side
    exchange_memory_mb: int = 512
    bridge_memory_mb: int = 512
    links_memory_mb: int = 256


class JobPython(StrEnum):
    """The interpreters that EMR Serverless images have for jobs."""

    PYTHON_3_11 = "3.11"
    PYTHON_3_13 = "3.13"


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineParameters:
    """Section `pipeline`. Without a split queue of its queue_id there is no pipeline."""

    queue_id: str = "pipeline"  # of the split queue whose main queue the land job reads
    release_label: str = "emr-spark-8.1.0"
    python: JobPython = JobPython.PYTHON_3_11
    table_format: TableFormat = TableFormat.PARQUET
    streaming: bool = False  # whether the land job runs from the first deployment on
    trigger_s: int = 30  # from one batch to the next
    worker_vcpu: int = 1  # of the driver, and of each executor
    worker_memory_gb: int = 4
    worker_disk_gb: int = 20
    max_executors: int = 4  # of a job run
    max_vcpu: int = 16  # of all job runs together: what can be spent
    max_memory_gb: int = 64
    max_disk_gb: int = 400
    max_concurrent_runs: int = 5
    queue_timeout_minutes: int = 360  # how long a run waits for capacity
    idle_timeout_minutes: int = 15  # after which an application without runs stops
    failed_attempts_per_hour: int = 5  # of the stream, before it counts as failed
    restart_after_failure_s: int = 1_800  # when a stream that failed is tried again
    shutdown_grace_s: int = 120  # that a run has to end its batch
    batch_attempts: int = 2
    batch_timeout_minutes: int = 120
    statistics_at: str | None = "00:30"  # UTC; of the day before. None is never
    compaction_at: str | None = "01:30"
    compaction_days: int = 2
    assume_role_arns: tuple[str, ...] = ()  # that jobs may take on, for queues of other accounts
    vpc_id: str | None = None  # with subnets the workers are in that VPC
    subnet_ids: tuple[str, ...] = ()
    security_group_ids: tuple[str, ...] = ()
    route_table_ids: tuple[str, ...] = ()  # of these subnets, for S3
    vpc_endpoints: tuple[str, ...] = ()  # that are made there: of sqs, sts, logs, kms, s3
    budget_usd: int | None = None  # a month, of the whole account; None is no budget
    budget_email: str | None = None
    jobs_memory_mb: int = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationsParameters:
    """Section `operations`. Ages and lags are of the oldest message, in seconds."""

    alarm_email: str | None = None  # who is told of alarms; it gets a message to confirm
    alarm_topic_arn: str | None = None  # or a topic of yours, which lets CloudWatch and EventBridge publish
    tracing: bool = False  # whether functions send segments to X-Ray; trace headers are passed on anyway
    offers_age_s: int = 10  # clients wait five
    queue_age_s: int = 300  # of every other queue that a function reads
    bridge_lag_s: int = 900  # of what routes forward
    pipeline_age_s: int = 900  # of the queue that the land job reads, where it streams; else a week
    denied_percent: int = 50  # of offers, over a quarter of an hour
    denied_least_offers: int = 20  # in five minutes: of fewer the rate says nothing
    dead_letters: int = 1


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
            rendezvous=_read_rendezvous(given),
            splitting=SplittingParameters(**_parsed(given, SPLITTING, SPLITTING_PARSERS)),
            federation=_read_federation(given),
            pipeline=_read_pipeline(given),
            operations=_read_operations(given),
            **_parsed(given, ROOT, SHARED),
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


def _read_rendezvous(given: Mapping[str, object]) -> RendezvousParameters:
    read = RendezvousParameters(**_parsed(given, RENDEZVOUS, RENDEZVOUS_PARSERS))
    if read.held_proxies_min > read.held_proxies_max:
        raise BadParameter(
            f"{RENDEZVOUS}.held_proxies_min",
            f"{read.held_proxies_min} is over held_proxies_max {read.held_proxies_max}",
        )
    return read


def _read_federation(given: Mapping[str, object]) -> FederationParameters:
    read = _parsed(given, FEDERATION, FEDERATION_PARSERS)
    sections = {name: read.pop(name) for name in DECLARED_SECTIONS if name in read}
    try:
        declared = Declared.of(DECLARED_DEFAULT | sections)
    except BadRoute as error:
        raise BadParameter(FEDERATION, str(error)) from error
    size = len(declared.to_json().encode())
    if size > DECLARED_MAX_BYTES:
        raise BadParameter(
            FEDERATION,
            f"exchanges, bindings, links and routes have {size} bytes as JSON; a function's environment holds "
            f"{DECLARED_MAX_BYTES}: make the rest with `sluice`",
        )
    return FederationParameters(**read, declared=declared)


def _check_events(parameters: "Parameters") -> None:
    """That the exchange for rendezvous events can be one, and the name of the counters' queue isn't taken."""
    exchange, federation = parameters.rendezvous.events_exchange, parameters.federation
    if exchange is None:
        return
    if COUNTERS_QUEUE in {queue.name for queue in federation.queues}:
        raise BadParameter(f"{FEDERATION}.queues", f"{COUNTERS_QUEUE} is the queue where rendezvous events are counted")
    types = {each.name: each.type for each in (*STANDARD_EXCHANGES, *federation.declared.exchanges)}
    type_ = types.get(exchange, ExchangeType.TOPIC)
    if type_ is not ExchangeType.TOPIC:
        cause = f"{exchange} is of type {type_}, not {ExchangeType.TOPIC}"
        raise BadParameter(f"{RENDEZVOUS}.events_exchange", cause)


def _check_split_names(parameters: "Parameters") -> None:
    """Split queues are bound by their queue_id: no other bound queue may have that name."""
    names = {queue.name for queue in parameters.federation.queues} | {COUNTERS_QUEUE}
    for queue in parameters.splitting.queues:
        if queue.queue_id in names:
            cause = f"{queue.queue_id} is the name of a queue that can be split, and bound by its queue_id"
            raise BadParameter(f"{FEDERATION}.queues", cause)


def _parsed(given: Mapping[str, object], section: str, parsers: Mapping[str, Parse]) -> dict[str, Any]:
    """What is given of a section; the rest keeps its default."""
    return {
        name: _parse(f"{section}.{name}", given[f"{section}.{name}"], parse)
        for name, parse in parsers.items()
        if f"{section}.{name}" in given
    }


def _parse(key: str, value: object, parse: Parse) -> object:
    try:
        return parse(value)
    except (ValueError, BadBridgeList, BadBinding) as error:
        raise BadParameter(key, str(error)) from error


def _json(value: object) -> object:
    """A value of another type than text, which came as text from the command line; what isn't JSON stays text."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not a text")  # noqa: TRY004 - one type for whatever is wrong with a value
    return value


def _flag(value: object) -> bool:
    flag = _json(value)
    if not isinstance(flag, bool):
        raise ValueError(f"{value!r} is not true or false")  # noqa: TRY004 - one type for whatever is wrong with a value
    return flag


def _number(least: int, most: int) -> Parse:
    def parse(value: object) -> int:
        number = _json(value)
        # Python counts true as a number.
        if not isinstance(number, int) or isinstance(number, bool) or not least <= number <= most:
            raise ValueError(f"{value!r} is not a whole number from {least} to {most}")
        return number

    return parse


def _one_of(choices: type[StrEnum]) -> Parse:
    def parse(value: object) -> StrEnum:
        if not isinstance(value, str) or value not in list(choices):
            raise ValueError(f"{value!r} is none of {', '.join(choices)}")
        return choices(value)

    return parse


# What CloudWatch Logs takes: https://docs.aws.amazon.com/AmazonCloudWatchLogs/latest/APIReference/API_PutRetentionPolicy.html
RETENTION_DAYS = (
    *(1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180),
    *(365, 400, 545, 731, 1096, 1827, 2192, 2557, 2922, 3288, 3653),
)


def _retention_days(value: object) -> int:
    days = _json(value)
    if isinstance(days, bool) or days not in RETENTION_DAYS:
        raise ValueError(f"{value!r} is none of {', '.join(map(str, RETENTION_DAYS))}")
    return int(str(days))


# https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_CreateQueue.html: 80 characters. FIFO queues
# end in .fifo, and rendezvous clients can't send to them.
QUEUE_NAME = re.compile(r"[A-Za-z0-9_-]{1,80}")
QUEUE_ARN = re.compile(r"arn:aws[a-z-]*:sqs:[a-z0-9-]+:\d{12}:(.+)")


def _queue_name(value: object) -> str:
    name = _text(value)
    if not QUEUE_NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not 1 to 80 letters, digits, hyphens and underscores")
    for prefix in (ANSWER_QUEUE_PREFIX, MAILBOX_PREFIX):
        if name.startswith(prefix):
            raise ValueError(f"{name!r} begins with {prefix}, as queues do that the sweeper deletes and clients read")
    return name


def _queue_arn(value: object) -> str | None:
    if value is None:
        return None
    arn = _text(value)
    found = QUEUE_ARN.fullmatch(arn)
    if not found:
        raise ValueError(f"{arn!r} is not the ARN of an SQS queue")
    _queue_name(found[1])
    return arn


# All variables of a function share 4 KB: https://docs.aws.amazon.com/lambda/latest/dg/gettingstarted-limits.html
BRIDGES_MAX_BYTES = 3_000


def _bridges(value: object) -> str:
    listed = json.loads(value) if isinstance(value, str) else value
    if not isinstance(listed, list):
        raise ValueError(f"{value!r} is not a list")  # noqa: TRY004 - one type for whatever is wrong with a value
    lines = "\n".join(json.dumps(bridge) for bridge in listed)
    parse_bridges(lines)
    if len(lines.encode()) > BRIDGES_MAX_BYTES:
        raise ValueError(
            f"the list has {len(lines.encode())} bytes; a function's environment holds {BRIDGES_MAX_BYTES}"
        )
    return lines


RELAY_PATTERN = re.compile(r"\^?[A-Za-z0-9.-]{0,253}\$?")


def _relay_pattern(value: object) -> str:
    pattern = _text(value)
    if not pattern or not RELAY_PATTERN.fullmatch(pattern):
        raise ValueError(
            f"{pattern!r} is not the end of a host name, with ^ before it or $ after it; $ alone is any host"
        )
    return pattern


def _exchange_name(value: object) -> str | None:
    name = _json(value)  # null, from the command line
    return None if name is None else Exchange(name=_text(value), type=ExchangeType.TOPIC).name


PROJECT_FILE = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_./-]{0,250}\.mmdb")


def _project_file(value: object) -> str | None:
    if value is None:
        return None
    path = _text(value)
    if not PROJECT_FILE.fullmatch(path) or ".." in path.split("/"):
        raise ValueError(f"{path!r} is not the path of a .mmdb file within the project")
    return path


HELD_PROXIES_MOST = 10_000  # each holds an execution environment for up to ten seconds
MEMORY_MB = _number(128, 10_240)  # https://docs.aws.amazon.com/lambda/latest/dg/gettingstarted-limits.html

RENDEZVOUS = f"{ROOT}.rendezvous"
RENDEZVOUS_PARSERS: Mapping[str, Parse] = {
    "offers_queue_name": _queue_name,
    "existing_offers_queue_arn": _queue_arn,
    "bridges": _bridges,
    "allowed_relay_pattern": _relay_pattern,
    "held_proxies_min": _number(1, HELD_PROXIES_MOST),
    "held_proxies_max": _number(1, HELD_PROXIES_MOST),
    # https://docs.aws.amazon.com/lambda/latest/dg/services-sqs-scaling.html
    "broker_max_concurrency": _number(2, 1_000),
    "broker_memory_mb": MEMORY_MB,
    "proxy_memory_mb": MEMORY_MB,
    "sweeper_memory_mb": MEMORY_MB,
    "counters_memory_mb": MEMORY_MB,
    "counters_window_s": _number(0, 300),
    "events_exchange": _exchange_name,
    "geoip_file": _project_file,
    "keep_state": _flag,
}
SHARED: Mapping[str, Parse] = {
    "architecture": _one_of(Architecture),
    "log_retention_days": _retention_days,
    "log_level": _one_of(LogLevel),
}

SPLITTING = f"{ROOT}.splitting"
MAX_SPLIT_QUEUES = 15  # of all of them the names must go into a function's environment of 4 KB
MAX_DRAIN_TIMEOUT_S = 14 * 24 * 60 * 60  # as long as SQS keeps a message
MAX_TAGS = 50  # of a queue
QUEUE_ID = re.compile(r"[^*\s:](?:[^*:]{0,126}[^*\s:])?")  # a colon ends it in `--filter`, and `*` is every queue


def _queue_id(value: object) -> str:
    queue_id = _text(value)
    if not QUEUE_ID.fullmatch(queue_id):
        raise ValueError(f"{queue_id!r} is not 1 to 128 characters without `:` and `*`, nor space at its ends")
    return queue_id


ADOPTED_ARN = re.compile(r"arn:aws[a-z-]*:sqs:[a-z0-9-]+:\d{12}:[A-Za-z0-9_-]{1,80}(\.fifo)?")


def _existing_arn(value: object) -> str | None:
    if value is not None and not ADOPTED_ARN.fullmatch(_text(value)):
        raise ValueError(f"{value!r} is not the ARN of an SQS queue")
    return None if value is None else _text(value)


def _tags(value: object) -> Mapping[str, str]:
    if not isinstance(value, Mapping) or len(value) > MAX_TAGS:
        raise ValueError(f"{value!r} is not a map of at most {MAX_TAGS} tags")
    return {_text(name): _text(tag) for name, tag in value.items()}


def _optional(parse: Parse) -> Parse:
    return lambda value: None if _json(value) is None else parse(value)


def _texts(value: object) -> tuple[str, ...]:
    listed = _json(value)
    if not isinstance(listed, list):
        raise ValueError(f"{value!r} is not a list")  # noqa: TRY004 - one type for whatever is wrong with a value
    return tuple(_text(each) for each in listed)


SPLIT_QUEUE_PARSERS: Mapping[str, Parse] = {
    "queue_id": _queue_id,
    "fifo": _flag,
    "sns": _flag,
    "s3_event": _flag,
    "drain_timeout_s": _optional(_number(0, MAX_DRAIN_TIMEOUT_S)),
    "tags": _tags,
    "existing_source_queue_arn": _existing_arn,
    "existing_main_queue_arn": _existing_arn,
}


def _split_queues(value: object) -> tuple[SplitQueueParameters, ...]:
    listed = _json(value)
    if not isinstance(listed, list) or len(listed) > MAX_SPLIT_QUEUES:
        raise ValueError(f"{value!r} is not a list of at most {MAX_SPLIT_QUEUES} queues")
    queues = tuple(_split_queue(number, entry) for number, entry in enumerate(listed))
    ids = [queue.queue_id for queue in queues]
    if len(set(ids)) < len(ids):
        raise ValueError(f"a queue_id is listed twice: {', '.join(ids)}")
    return queues


def _split_queue(number: int, entry: object) -> SplitQueueParameters:
    if not isinstance(entry, Mapping) or "queue_id" not in entry:
        raise ValueError(f"queue {number} is not an object with queue_id")
    unknown = entry.keys() - SPLIT_QUEUE_PARSERS.keys()
    if unknown:
        raise ValueError(f"queue {number} has unknown fields: {', '.join(sorted(unknown))}")
    try:
        read = SplitQueueParameters(**{name: SPLIT_QUEUE_PARSERS[name](value) for name, value in entry.items()})  # type: ignore[arg-type]  # each parser gives its field's type
    except ValueError as error:
        raise ValueError(f"queue {number}: {error}") from error
    for arn in (read.existing_source_queue_arn, read.existing_main_queue_arn):
        if arn is not None and arn.endswith(".fifo") != read.fifo:
            raise ValueError(f"queue {number}: {arn} and fifo {read.fifo} don't fit")
    return read


SPLITTING_PARSERS: Mapping[str, Parse] = {
    "queues": _split_queues,
    # https://docs.aws.amazon.com/lambda/latest/dg/services-sqs-configure.html
    "batch_size": _number(1, 10_000),
    "batching_window_s": _number(0, 300),
    "max_concurrency": _number(2, 1_000),
    "splitter_memory_mb": MEMORY_MB,
    "control_memory_mb": MEMORY_MB,
    "kms_key_arns": _texts,
    "s3_bucket_arns": _texts,
}

FEDERATION = f"{ROOT}.federation"
DECLARED_SECTIONS = ("exchanges", "bindings", "links", "routes")
DECLARED_MAX_BYTES = 2_000
MAX_BOUND_QUEUES = 15  # of all of them the names must go into a function's environment of 4 KB
MAX_INGRESSES = 8
ACCOUNT = re.compile(r"\d{12}")
EXTERNAL_ID = re.compile(r"[A-Za-z0-9+=,.@:/_-]{2,128}")
SQS_URL = re.compile(r"https?://[A-Za-z0-9.:-]{1,253}/?")
QUEUE_PATTERN = re.compile(r"[A-Za-z0-9_*?-]{1,80}(\.fifo)?")


def _tag(value: object) -> str | None:
    if value is None:
        return None
    tag = _text(value)
    if not is_tag(tag):
        raise ValueError(f"{tag!r} is not 1 to 32 letters, digits, hyphens and underscores")
    return tag


def _matching(pattern: re.Pattern[str], what: str) -> Parse:
    def parse(value: object) -> str:
        if not pattern.fullmatch(_text(value)):
            raise ValueError(f"{value!r} is not {what}")
        return _text(value)

    return parse


def _listed(parse: Parse, *, most: int) -> Parse:
    def parse_all(value: object) -> tuple[object, ...]:
        listed = _json(value)
        if not isinstance(listed, list) or len(listed) > most:
            raise ValueError(f"{value!r} is not a list of at most {most}")
        return tuple(parse(each) for each in listed)

    return parse_all


def _object_of(type_: Callable[..., object], parsers: Mapping[str, Parse], required: str) -> Parse:
    def parse(value: object) -> object:
        if not isinstance(value, Mapping) or required not in value:
            raise ValueError(f"{value!r} is not an object with {required}")
        unknown = value.keys() - parsers.keys()
        if unknown:
            raise ValueError(f"{value!r} has unknown fields: {', '.join(sorted(unknown))}")
        return type_(**{name: parsers[name](each) for name, each in value.items()})

    return parse


def _objects(value: object) -> object:
    listed = _json(value)
    if not isinstance(listed, list):
        raise ValueError(f"{value!r} is not a list")  # noqa: TRY004 - one type for whatever is wrong with a value
    return listed


BOUND_QUEUE = _object_of(
    BoundQueueParameters, {"name": _queue_id, "fifo": _flag, "existing_arn": _existing_arn}, required="name"
)
INGRESS = _object_of(IngressParameters, {"exchange": _text, "fifo": _flag}, required="exchange")

FEDERATION_PARSERS: Mapping[str, Parse] = {
    "tag": _tag,
    "peer_accounts": _listed(_matching(ACCOUNT, "an account's twelve digits"), most=50),
    "access": _one_of(Access),
    "external_id": _matching(EXTERNAL_ID, "an external id"),
    "sqs_url": _optional(_matching(SQS_URL, "an http or https URL")),
    "queues": _listed(BOUND_QUEUE, most=MAX_BOUND_QUEUES),
    "queue_names": _listed(_matching(QUEUE_PATTERN, "a queue's name with wildcards"), most=20),
    "ingresses": _listed(INGRESS, most=MAX_INGRESSES),
    **dict.fromkeys(DECLARED_SECTIONS, _objects),
    "trust_publishers": _flag,
    "counts_settle_s": _number(0, 600),
    "batch_size": _number(1, 10_000),
    "batching_window_s": _number(0, 300),
    "max_concurrency": _number(2, 1_000),
    "exchange_memory_mb": MEMORY_MB,
    "bridge_memory_mb": MEMORY_MB,
    "links_memory_mb": MEMORY_MB,
}
PIPELINE = f"{ROOT}.pipeline"
RELEASE_LABEL = re.compile(r"emr-[a-z0-9.-]{1,59}")
ROLE_ARN = re.compile(r"arn:aws[a-z-]*:iam::\d{12}:role/[\w+=,.@/-]{1,576}")
EMAIL = re.compile(r"[^@\s]{1,64}@[^@\s]{1,190}")
MAX_NETWORK_PARTS = 16  # https://docs.aws.amazon.com/emr-serverless/latest/APIReference/API_NetworkConfiguration.html
# Gigabytes of memory by vCPUs: https://docs.aws.amazon.com/emr/latest/EMR-Serverless-UserGuide/app-behavior.html
WORKER_SIZES: Mapping[int, range] = {
    1: range(2, 9),
    2: range(4, 17),
    4: range(8, 31),
    8: range(16, 61, 4),
    16: range(32, 121, 8),
}
VPC_ENDPOINTS = ("sqs", "sts", "logs", "kms", "s3")


def _time_of_day(value: object) -> str:
    Daily.parse(_text(value))
    return _text(value)


def _vpc_endpoint(value: object) -> str:
    if value not in VPC_ENDPOINTS:
        raise ValueError(f"{value!r} is none of {', '.join(VPC_ENDPOINTS)}")
    return _text(value)


def _ids(prefix: str) -> Parse:
    return _listed(_matching(re.compile(rf"{prefix}-[0-9a-f]{{8,17}}"), f"an id, {prefix}-…"), most=MAX_NETWORK_PARTS)


PIPELINE_PARSERS: Mapping[str, Parse] = {
    "queue_id": _queue_id,
    "release_label": _matching(RELEASE_LABEL, "a release label of EMR"),
    "python": _one_of(JobPython),
    "table_format": _one_of(TableFormat),
    "streaming": _flag,
    "trigger_s": _number(1, 3_600),
    "worker_vcpu": _number(1, max(WORKER_SIZES)),
    "worker_memory_gb": _number(2, 120),
    "worker_disk_gb": _number(20, 200),
    "max_executors": _number(1, 1_000),
    "max_vcpu": _number(1, 10_000),
    "max_memory_gb": _number(2, 80_000),
    "max_disk_gb": _number(20, 200_000),
    "max_concurrent_runs": _number(1, 1_000),
    "queue_timeout_minutes": _number(15, 720),
    "idle_timeout_minutes": _number(1, 10_080),
    "failed_attempts_per_hour": _number(1, 10),
    "restart_after_failure_s": _number(0, 86_400),
    "shutdown_grace_s": _number(15, 1_800),
    "batch_attempts": _number(1, 10),
    "batch_timeout_minutes": _number(5, 1_440),
    "statistics_at": _optional(_time_of_day),
    "compaction_at": _optional(_time_of_day),
    "compaction_days": _number(1, 3_650),
    "assume_role_arns": _listed(_matching(ROLE_ARN, "the ARN of a role"), most=20),
    "vpc_id": _optional(_matching(re.compile(r"vpc-[0-9a-f]{8,17}"), "an id, vpc-…")),
    "subnet_ids": _ids("subnet"),
    "security_group_ids": _ids("sg"),
    "route_table_ids": _ids("rtb"),
    "vpc_endpoints": _listed(_vpc_endpoint, most=len(VPC_ENDPOINTS)),
    "budget_usd": _optional(_number(1, 10_000_000)),
    "budget_email": _optional(_matching(EMAIL, "an e-mail address")),
    "jobs_memory_mb": MEMORY_MB,
}


def _read_pipeline(given: Mapping[str, object]) -> PipelineParameters:
    read = PipelineParameters(**_parsed(given, PIPELINE, PIPELINE_PARSERS))
    for name, cause in _misfits(read):
        raise BadParameter(f"{PIPELINE}.{name}", cause)
    return read


def _misfits(read: PipelineParameters) -> Iterator[tuple[str, str]]:
    """What is right by itself and wrong beside the others."""
    sizes = WORKER_SIZES.get(read.worker_vcpu)
    if sizes is None:
        yield "worker_vcpu", f"{read.worker_vcpu} is none of {', '.join(map(str, WORKER_SIZES))}"
    elif read.worker_memory_gb not in sizes:
        yield (
            "worker_memory_gb",
            f"{read.worker_memory_gb}: workers of {read.worker_vcpu} vCPU have {sizes.start} to {sizes[-1]} GB"
            f"{f' in steps of {sizes.step}' if sizes.step > 1 else ''}",
        )
    for part in ("vcpu", "memory_gb", "disk_gb"):
        most, least = getattr(read, f"max_{part}"), 2 * getattr(read, f"worker_{part}")
        if most < least:
            yield f"max_{part}", f"{most} is less than a driver and an executor have, {least}"
    if bool(read.subnet_ids) != bool(read.security_group_ids):
        yield "subnet_ids", "subnets and security_group_ids go together"
    if read.vpc_endpoints and not (read.vpc_id and read.subnet_ids):
        yield "vpc_endpoints", "endpoints need vpc_id and subnet_ids"
    if "s3" in read.vpc_endpoints and not read.route_table_ids:
        yield "vpc_endpoints", "s3 needs route_table_ids"
    if (read.budget_usd is None) != (read.budget_email is None):
        yield "budget_usd", "a budget needs budget_usd and budget_email"


OPERATIONS = f"{ROOT}.operations"
# CloudWatch alarms can't publish to FIFO topics.
TOPIC_ARN = re.compile(r"arn:aws[a-z-]*:sns:[a-z0-9-]+:\d{12}:[A-Za-z0-9_-]{1,256}")
MAX_AGE_S = 14 * 24 * 60 * 60  # as long as SQS keeps a message

OPERATIONS_PARSERS: Mapping[str, Parse] = {
    "alarm_email": _optional(_matching(EMAIL, "an e-mail address")),
    "alarm_topic_arn": _optional(_matching(TOPIC_ARN, "the ARN of an SNS standard topic")),
    "tracing": _flag,
    "offers_age_s": _number(1, MAX_AGE_S),
    "queue_age_s": _number(1, MAX_AGE_S),
    "bridge_lag_s": _number(1, MAX_AGE_S),
    "pipeline_age_s": _number(1, MAX_AGE_S),
    "denied_percent": _number(1, 100),
    "denied_least_offers": _number(1, 1_000_000),
    "dead_letters": _number(1, 1_000_000),
}


def _read_operations(given: Mapping[str, object]) -> OperationsParameters:
    read = OperationsParameters(**_parsed(given, OPERATIONS, OPERATIONS_PARSERS))
    if read.alarm_email is not None and read.alarm_topic_arn is not None:
        raise BadParameter(f"{OPERATIONS}.alarm_email", "either an address or alarm_topic_arn, not both")
    return read


SECTIONS: Mapping[str, Mapping[str, Parse]] = {
    ROOT: SHARED,
    RENDEZVOUS: RENDEZVOUS_PARSERS,
    SPLITTING: SPLITTING_PARSERS,
    FEDERATION: FEDERATION_PARSERS,
    PIPELINE: PIPELINE_PARSERS,
    OPERATIONS: OPERATIONS_PARSERS,
}
