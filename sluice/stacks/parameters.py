"""The parameters of the stacks, each on a line: name, type with its limits, default, what it is. No construct is here.

They are the context key `sluice` of cdk.json, and `-c sluice.<section>.<name>=<value>` on top of it. cdk.json's part
and the tables in `docs/` are made of what stands here (`sluice.stacks.tables`). What is unknown or can't be used is
refused.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from enum import StrEnum
from functools import cache
from typing import Annotated, Any, Literal, Self

from msgspec import UNSET
from msgspec.structs import replace
from pydantic import ValidationError, model_validator
from pydantic_core import ErrorDetails

from sluice.codec import convert, encode
from sluice.errors import BadParameter, BadRoute, Malformed
from sluice.federation.declared import Declared
from sluice.federation.links.peers import Peer, check_peer
from sluice.federation.matching.exchanges import STANDARD_EXCHANGES, Exchange, ExchangeType
from sluice.pipeline.jobs import TableFormat
from sluice.rendezvous.protocol.messages import DEFAULT_FINGERPRINT, Bridge
from sluice.stacks import values as v
from sluice.stacks.splits import SplittingParameters
from sluice.stacks.values import Misfit, Model, of
from sluice.stages import OURS, staged

ROOT = "sluice"
COUNTERS_QUEUE = "rendezvous-counters"  # an earlier version bound it to the exchange of rendezvous events
DECLARED_MAX_BYTES = 16_000  # as JSON, of the 40 KB that a function is told of what grows with a site
# https://docs.aws.amazon.com/emr-serverless/latest/APIReference/API_NetworkConfiguration.html
SUBNETS_MOST, SECURITY_GROUPS_MOST = 16, 5
PEER_PLACES_MOST = 51  # accounts, each with every stage: a role's policies name them all, and hold 10,240 characters
DEFAULT_BRIDGE = {
    "displayName": "default",
    "webSocketAddress": "wss://snowflake.torproject.net/",
    "fingerprint": DEFAULT_FINGERPRINT,
}
# Gigabytes of memory by vCPUs: https://docs.aws.amazon.com/emr/latest/EMR-Serverless-UserGuide/app-behavior.html
WORKER_SIZES: Mapping[int, range] = {
    1: range(2, 9),
    2: range(4, 17),
    4: range(8, 31),
    8: range(16, 61, 4),
    16: range(32, 121, 8),
}
VpcEndpoint = Literal["sqs", "sts", "logs", "kms", "s3"]
GATEWAY: VpcEndpoint = "s3"  # a route; the others are addresses in subnets
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


class Access(StrEnum):
    """How peers in other accounts may send here."""

    POLICY = "policy"  # the queues' own policies let the accounts in
    ROLE = "role"  # a role that they assume, with the external id


class JobPython(StrEnum):
    """The interpreters that EMR Serverless images have for jobs."""

    PYTHON_3_11 = "3.11"
    PYTHON_3_13 = "3.13"


class RendezvousParameters(Model):
    """The offers queue, the bridges, how many proxies are held, where events go."""

    offers_queue_name: v.OffersQueueName = of(
        "snowflake-broker", "clients know the queue by its URL, so its name is fixed"
    )
    existing_offers_queue_arn: v.OffersQueueArn | None = of(
        None,
        "adopt a queue of yours instead of making one; its retention should be 300 s, its visibility timeout 60 s, "
        "and it needs a dead-letter queue",
    )
    bridges: v.BridgeList = of((DEFAULT_BRIDGE,), "offers for others are refused")
    allowed_relay_pattern: v.RelayPattern = of(
        "snowflake.torproject.net$",
        "proxies whose own pattern doesn't cover it are refused; must cover the bridges' hosts",
    )
    held_proxies_min: int = of(
        1, "polls held at rest, on the average of a day, where too few come for offers to wait for one", ge=1, le=10_000
    )
    held_proxies_max: int = of(
        200, "and held at most; each holds a function's environment for ten seconds", ge=1, le=10_000
    )
    trusted_proxy: bool = of(
        False,
        "something of yours is in front of the broker's URL and writes `Forwarded` or `X-Forwarded-For` anew: "
        "a proxy's address is the first public one there",
    )
    broker_max_concurrency: v.Concurrency = of(10, "brokers side by side")
    proxy_max_concurrency: v.ReservedConcurrency | None = of(
        300,
        "proxy functions side by side. So many of the account's are reserved, and a flood takes no other function's; "
        "AWS wants 100 left to those. Null: neither",
    )
    broker_memory_mb: v.Memory = of(512, "of the function")
    proxy_memory_mb: v.Memory = of(256, "of the function")
    sweeper_memory_mb: v.Memory = of(256, "of the function")
    counters_memory_mb: v.Memory = of(256, "of the function")
    counters_window_s: v.Window = of(120, "how long events may wait to be counted, and published, together")
    events_exchange: v.ExchangeName | None = of(
        "events",
        "the topic exchange that [events](#events) are published to where a queue is bound, declared where it isn't "
        "yet; null: no events, no counters",
    )
    geoip_file: v.CountriesFile | None = of(
        None, "a MaxMind database in the project; without one every country is `??`"
    )
    keep_state: bool = of(
        True, "tables, bucket and users' queues are kept when their stack or parameter goes, tables protected"
    )

    @property
    def bridge_list(self) -> tuple[Bridge, ...]:
        """The bridges, as functions know them."""
        return v.bridges_of(self.bridges)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        least, most = self.held_proxies_min, self.held_proxies_max
        if least > most:
            raise Misfit("held_proxies_min", f"{least} is over held_proxies_max {most}")
        reserved = self.proxy_max_concurrency
        if reserved is not None and reserved < most:
            raise Misfit("proxy_max_concurrency", f"{reserved} is under held_proxies_max {most}")
        return self


class BoundQueueParameters(Model):
    """One queue that exchanges are bound to and queue routes read. It is made, or adopted by its ARN."""

    name: v.QueueId = of(..., "by which it is bound")
    fifo: bool = of(False, "the queue is FIFO")
    existing_arn: v.QueueArn | None = of(None, "adopt a queue of yours instead of making one")


class IngressParameters(Model):
    """An ingress queue of one exchange's own, for producers that can't say which exchange they mean."""

    exchange: str = of(..., "whose it is")
    fifo: bool = of(False, "the queue is FIFO")


class FederationParameters(Model):
    """A site's name, peers, queues and ingresses, and what it declares."""

    tag: v.Tag | None = of(
        None,
        "the site's name for life; else `<region>-<account>`, at a stage `<stage>-<account><region>`. Two peers with "
        "one tag are refused",
    )
    # A queue's policy has 50 principals, of which one is everybody, refused without TLS:
    # https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/quotas-policies.html
    peer_accounts: tuple[v.Account, ...] = of((), "of peer sites, beside the site's own", max_length=49)
    peer_stages: tuple[v.PeerStage, ...] = of(
        (), "of peer sites, beside the site's own; an empty text is of sites without one", max_length=20
    )
    peers: tuple[dict[str, Any], ...] = of(
        (),
        "`{tag, account, region, stage, senders, pulls, pushes, queues}`: sites that may link to this one, and what "
        "they may, as `peer list --json` shows them",
        max_length=50,
    )
    access: Access = of(Access.POLICY, "how peers in other accounts may send: their queues' policies, or a role")
    external_id: v.ExternalId = of("sluice", "with which that role is assumed")
    sqs_url: v.SqsUrl | None = of(None, "where peers reach the site's SQS, if not at its usual address")
    kms_key_arn: v.KmsKeyArn | None = of(
        None, "your own key for queues made at run time, bridge queues among them; else SQS's own encrypts"
    )
    queues: tuple[BoundQueueParameters, ...] = of(
        (),
        "`{name, fifo, existing_arn}`: queues to bind, made or adopted. A split queue is bound by its `queue_id`; as "
        "the splitter reads it, no route does",
        max_length=15,
    )
    queue_names: tuple[v.QueuePattern, ...] = of(
        ("sluice-queue-*",),
        "of other queues that may be bound or read, with wildcards: the functions' roles have these and no others",
        max_length=20,
    )
    ingresses: tuple[IngressParameters, ...] = of(
        (), "`{exchange, fifo}`: ingress queues of one exchange's own", max_length=8
    )
    exchanges: tuple[dict[str, Any], ...] = of(
        ({"name": "events", "type": "topic"},), "`{name, type, alternate}`", max_length=100
    )
    bindings: tuple[dict[str, Any], ...] = of((), "`{exchange, queue, key, arguments}`", max_length=100)
    links: tuple[dict[str, Any], ...] = of((), "`{name, peer, endpoints}`", max_length=100)
    routes: tuple[dict[str, Any], ...] = of((), "the fields of `route list --json`", max_length=100)
    trust_publishers: bool = of(False, "to say where a message has been")
    counts_settle_s: int = of(
        60,
        "how long a closing route's queue is to be empty before it goes: SQS's counts are right within a minute",
        ge=0,
        le=600,
    )
    batch_size: v.Batch = of(100, "of standard ingress queues; FIFO queues have ten at most")
    batching_window_s: v.Window = of(1, "of standard ingress queues; how long a batch may wait to be filled")
    max_concurrency: v.Concurrency = of(10, "exchange functions of one ingress side by side")
    exchange_memory_mb: v.Memory = of(512, "of the function")
    bridge_memory_mb: v.Memory = of(512, "of the function")
    links_memory_mb: v.Memory = of(256, "of the function")

    @property
    def known_peers(self) -> tuple[Peer, ...]:
        """The peers, as functions know them. Raises `Misfit`.

        The site's own account isn't known before it is deployed: it may be the one that `peer_accounts` doesn't list.
        """
        try:
            peers = convert(self.peers, tuple[Peer, ...], of="federation.peers")
            for place, peer in enumerate(peers):
                check_peer(peer, here=self.tag or "", accounts=[peer.account], existing=peers[:place])
        except (Malformed, BadRoute) as error:
            raise Misfit("peers", str(error)) from None
        twice = [tag for tag, number in Counter(peer.tag for peer in peers).items() if number > 1]
        if twice:
            raise Misfit("peers", f"{', '.join(twice)}: no two sites have one tag")
        unlisted = sorted({peer.account for peer in peers}.difference(self.peer_accounts))
        if len(unlisted) > 1:
            raise Misfit("peers", f"peer_accounts lists none of {', '.join(unlisted)}; one may be the site's own")
        return tuple(replace(peer, declared=True) for peer in peers)

    @property
    def declared(self) -> Declared:
        """Exchanges, bindings, links and routes, as functions know them. Raises `BadRoute`."""
        return Declared.of({name: list(getattr(self, name)) for name in ("exchanges", "bindings", "links", "routes")})

    @model_validator(mode="after")
    def _fits(self) -> Self:
        v.check_names("queues", [v.of_kind(each.name, fifo=each.fifo) for each in self.queues])
        places = (1 + len(self.peer_accounts)) * (1 + len(self.peer_stages))
        if self.peer_stages and places > PEER_PLACES_MOST:
            cause = f"with peer_accounts there are {places} places of peers; a role's policy names {PEER_PLACES_MOST}"
            raise Misfit("peer_stages", cause)
        v.check_names("ingresses", [v.of_kind(each.exchange, fifo=each.fifo) for each in self.ingresses])
        try:
            size = len(self.declared.to_json().encode()) + (len(encode(self.known_peers)) if self.peers else 0)
        except BadRoute as error:
            raise ValueError(str(error)) from error
        v.check_names("routes", [each.name for each in self.declared.routes])
        if size > DECLARED_MAX_BYTES:
            raise ValueError(
                f"peers, exchanges, bindings, links and routes have {size} bytes as JSON, of {DECLARED_MAX_BYTES} at "
                "most: make the rest with `sluice`"
            )
        return self


class PipelineParameters(Model):
    """The EMR Serverless application, its job runs and network: where a split queue has its queue_id."""

    queue_id: v.QueueId = of("pipeline", "of the split queue whose main queue the land job reads")
    release_label: v.ReleaseLabel = of("emr-spark-8.1.0", "the image; its architecture is the one of the functions")
    python: JobPython = of(JobPython.PYTHON_3_11, "which of the image's Pythons")
    table_format: TableFormat = of(
        TableFormat.PARQUET,
        "`parquet` (with a log as Delta Lake's, read by everything that reads Delta), `delta`, `iceberg` (catalog "
        "`sluice`, namespace `pipeline`, kept in the bucket). Choose before the first start",
    )
    streaming: bool = of(False, "whether the land job runs from the first deployment on")
    resting: bool = of(
        False,
        "no endpoint that costs leads anywhere, and no job runs. What is queued waits, two weeks at most",
    )
    trigger_s: int = of(30, "from one batch of the land job to the next: longer makes larger files", ge=1, le=3_600)
    worker_vcpu: Annotated[Literal[1, 2, 4, 8, 16], v.NO_FLAG] = of(1, "of the driver, and of each executor")
    worker_memory_gb: int = of(4, "the same; half of it is Python's and Arrow's", ge=2, le=120)
    worker_disk_gb: int = of(20, "the same", ge=20, le=200)
    max_executors: int = of(4, "of a job run", ge=1, le=1_000)
    max_vcpu: int = of(16, "of all job runs together: what can be spent", ge=1, le=10_000)
    max_memory_gb: int = of(64, "the same", ge=2, le=80_000)
    max_disk_gb: int = of(400, "the same", ge=20, le=200_000)
    max_concurrent_runs: int = of(5, "of the application", ge=1, le=1_000)
    queue_timeout_minutes: int = of(360, "how long a run waits for capacity", ge=15, le=720)
    idle_timeout_minutes: int = of(15, "after which an application without runs stops", ge=1, le=10_080)
    failed_attempts_per_hour: int = of(5, "of the stream, before it counts as failed", ge=1, le=10)
    restart_after_failure_s: int = of(1_800, "when a stream that failed is tried again", ge=0, le=86_400)
    shutdown_grace_s: int = of(120, "what a run has to end its batch", ge=15, le=1_800)
    batch_attempts: int = of(2, "of the daily jobs, of replays and drains", ge=1, le=10)
    batch_timeout_minutes: int = of(120, "the same", ge=5, le=1_440)
    statistics_at: v.TimeOfDay | None = of("00:30", "UTC; of the day before. Null is never")
    compaction_at: v.TimeOfDay | None = of("01:30", "UTC. Null is never")
    compaction_days: int = of(2, "the last closed days whose partitions are compacted", ge=1, le=3_650)
    assume_role_arns: tuple[v.RoleArn, ...] = of(
        (),
        "roles that jobs may take on, for queues of other accounts. Keys of adopted queues: `splitting.kms_key_arns`",
        max_length=20,
    )
    zones: tuple[v.ZonePlace, ...] = of(
        (0, 1),
        "of the VPC that is made for workers, by their place in the region's list, from 0 on. A run is in one of them",
        max_length=3,
    )
    vpc_id: v.VpcId | None = of(None, "a VPC of yours in its place, whose endpoints of AWS are listed here, or exist")
    subnet_ids: tuple[v.SubnetId, ...] = of((), "where workers are in it", max_length=SUBNETS_MOST)
    security_group_ids: tuple[v.SecurityGroupId, ...] = of((), "which they have", max_length=SECURITY_GROUPS_MOST)
    route_table_ids: tuple[v.RouteTableId, ...] = of((), "of these subnets, for `s3`", max_length=SUBNETS_MOST)
    vpc_endpoints: tuple[VpcEndpoint, ...] = of(
        (),
        "those to make there, of `sqs sts logs kms s3`. All of the VPC calls them; `security_group_ids` alone get in",
        max_length=5,
    )
    own_way_to_sqs: bool = of(
        False, "these subnets lead to SQS by themselves: by a NAT gateway, or an endpoint that is there"
    )
    endpoint_subnets: int = of(
        1,
        "endpoints that cost by the hour are in the first so many of the subnets, each of another zone",
        ge=1,
        le=SUBNETS_MOST,
    )
    jobs_memory_mb: v.Memory = of(256, "of the function")

    @model_validator(mode="after")
    def _fits(self) -> Self:
        for name, cause in self._misfits():
            raise Misfit(name, cause)
        return self

    def _misfits(self) -> Iterator[tuple[str, str]]:
        sizes = WORKER_SIZES[self.worker_vcpu]
        if self.worker_memory_gb not in sizes:
            steps = f" in steps of {sizes.step}" if sizes.step > 1 else ""
            of_size = f"workers of {self.worker_vcpu} vCPU have {sizes.start} to {sizes[-1]} GB{steps}"
            yield "worker_memory_gb", f"{self.worker_memory_gb}: {of_size}"
        for part in ("vcpu", "memory_gb", "disk_gb"):
            most, least = getattr(self, f"max_{part}"), 2 * getattr(self, f"worker_{part}")
            if most < least:
                yield f"max_{part}", f"{most} is less than a driver and an executor have, {least}"
        if self.resting and self.streaming:
            yield "resting", "streaming is true"
        for name in ("zones", "subnet_ids", "security_group_ids", "route_table_ids", "vpc_endpoints"):
            for value, times in Counter(getattr(self, name)).items():
                if times > 1:
                    yield name, f"{value} is listed twice"
        yield from self._misfits_of_own_subnets() if self.subnet_ids else self._misfits_of_made_subnets()
        subnets = len(self.subnet_ids or self.zones)
        if self.endpoint_subnets > subnets:
            yield "endpoint_subnets", f"{self.endpoint_subnets} is more than there are subnets, {subnets}"

    def _misfits_of_own_subnets(self) -> Iterator[tuple[str, str]]:
        if not self.security_group_ids:
            yield "security_group_ids", "subnet_ids need them"
        if self.vpc_endpoints and not self.vpc_id:
            yield "vpc_id", "vpc_endpoints need it"
        if "sqs" not in self.vpc_endpoints and not self.own_way_to_sqs:
            yield "vpc_endpoints", "jobs in subnet_ids don't reach SQS: list sqs here, or say own_way_to_sqs"
        if (GATEWAY in self.vpc_endpoints) != bool(self.route_table_ids):
            yield "route_table_ids", "they go together with s3 in vpc_endpoints"

    def _misfits_of_made_subnets(self) -> Iterator[tuple[str, str]]:
        if not self.zones:
            yield "zones", "workers are in one at least"
        for name in ("vpc_id", "security_group_ids", "route_table_ids", "vpc_endpoints", "own_way_to_sqs"):
            if getattr(self, name):
                yield name, "it is about subnet_ids, of which there are none"


class SiteParameters(Model):
    """A site that the dashboard over several draws."""

    name: v.SiteName = of(..., "as the dashboard calls it")
    region: v.RegionName = of(..., "where it is")
    stage: v.Stage | None = of(None, "its stage, where it has one")
    account: v.Account | None = of(
        None, "another account's twelve digits; it shares its metrics with this one (CloudWatch cross-account access)"
    )


class OperationsParameters(Model):
    """Who is told of what, and from which figures on. Ages and lags are of the oldest message."""

    alarm_email: v.Email | None = of(
        None, "an address; AWS sends it a link to confirm. The topic is in `SluiceState`, so that it is confirmed once"
    )
    alarm_topic_arn: v.TopicArn | None = of(
        None,
        "a topic of yours in place of that. Its policy has to let `cloudwatch.amazonaws.com`, `events.amazonaws.com` "
        "and `budgets.amazonaws.com` publish; it is no FIFO topic",
    )
    budget_usd: int | None = of(
        100,
        "they are told as well when a month's costs of the account reach it, or are expected to. Null: no budget",
        ge=1,
        le=10_000_000,
    )
    budget_daily_usd: int | None = of(
        10, "the same of a day's costs, as AWS knows them: hours later. Null: no such budget", ge=1, le=1_000_000
    )
    dashboard: bool = of(
        False, "what the alarms hold on to, drawn: $3 a month, but for the account's first three of up to 50 metrics"
    )
    sites: tuple[SiteParameters, ...] = of(
        (), "`{name, region, stage, account}`: a second dashboard, with a row for each of these sites", max_length=20
    )
    tracing: bool = of(False, "functions send segments to X-Ray: see [Traces](#traces)")
    offers_age_s: v.Age = of(10, "of the offers queue, for three minutes: clients wait five seconds")
    queue_age_s: v.Age = of(
        300, "of the queues that users and peers send to, for five minutes; and of the events that wait to be counted"
    )
    bridge_lag_s: v.Age = of(900, "of what routes forward, for a quarter of an hour")
    pipeline_age_s: v.Age = of(
        900,
        "of the queue that the land job reads, for five minutes. Where `pipeline.streaming` is false it is a week, "
        "half of what the queue keeps",
    )
    unanswered_percent: int = of(50, "of offers, denied or timed out, for a quarter of an hour", ge=1, le=100)
    unanswered_least_offers: int = of(20, "five minutes with fewer offers count as all answered", ge=1, le=1_000_000)
    dead_letters: int = of(1, "messages that come to a queue of dead letters in five minutes", ge=1, le=1_000_000)
    errors: int = of(3, "of a capability's functions in five minutes, twice on end", ge=1, le=1_000_000)
    concurrency_percent: int = of(
        80, "of the functions that may run at once: the account's, and those reserved for proxies", ge=1, le=100
    )
    account_concurrency: int = of(
        1_000, "how many functions the account may run at once, as Service Quotas shows it", ge=10, le=1_000_000
    )

    @model_validator(mode="after")
    def _fits(self) -> Self:
        v.check_names("sites", [each.name for each in self.sites])
        if self.alarm_email is not None and self.alarm_topic_arn is not None:
            raise Misfit("alarm_email", "either an address or alarm_topic_arn, not both")
        return self


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
            raise Misfit("rendezvous.offers_queue_name", f"{offers} has more than {v.QUEUE_NAME_CHARACTERS} characters")
        self._check_peer_stages()
        exchange, queues = self.rendezvous.events_exchange, {queue.name for queue in self.federation.queues}
        if exchange is not None and COUNTERS_QUEUE in queues:
            raise Misfit("federation.queues", f"{COUNTERS_QUEUE} is the queue where rendezvous events were counted")
        types = {each.name: each.type for each in (*STANDARD_EXCHANGES, *self.federation.declared.exchanges)}
        if exchange is not None and (type_ := types.get(exchange, ExchangeType.TOPIC)) is not ExchangeType.TOPIC:
            raise Misfit("rendezvous.events_exchange", f"{exchange} is of type {type_}, not {ExchangeType.TOPIC}")
        for queue in self.splitting.queues:
            if queue.queue_id in queues | {COUNTERS_QUEUE}:
                cause = f"{queue.queue_id} is the name of a queue that can be split, and bound by its queue_id"
                raise Misfit("federation.queues", cause)
            if queue.queue_id == self.pipeline.queue_id and queue.consumers:
                raise Misfit("pipeline.queue_id", f"{queue.queue_id} has consumers, and so no main queue to be landed")
        # Both can be bound, and are told of by their names.
        v.check_names("federation.queues", [each.queue_id for each in self.splitting.queues] + sorted(queues))
        return self

    def _check_peer_stages(self) -> None:
        listed = {self.stage or "", *self.federation.peer_stages}
        for peer in self.federation.known_peers:
            stage = "" if peer.stage is UNSET else peer.stage
            if stage not in listed:
                raise Misfit("federation.peers", f"peer_stages doesn't list {stage!r}, {peer.tag}'s")

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
    if isinstance(fault, Misfit):
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
