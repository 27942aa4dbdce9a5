"""What outlives a deployment of functions: tables, and the queues between functions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from aws_cdk import Aws, Duration, RemovalPolicy, Stack
from aws_cdk import aws_dynamodb as dynamodb
from aws_cdk import aws_s3 as s3
from aws_cdk import aws_sqs as sqs
from constructs import Construct

from stacks.functions import acknowledge
from stacks.parameters import (
    COUNTERS_QUEUE,
    BoundQueueParameters,
    Parameters,
    RendezvousParameters,
    SplitQueueParameters,
)

# The broker function's longest run. Lambda asks for a visibility timeout of six times as much:
# https://docs.aws.amazon.com/lambda/latest/dg/services-sqs-configure.html
BROKER_TIMEOUT = Duration.seconds(10)
BROKER_VISIBILITY_TIMEOUT = Duration.seconds(6 * 10)
RETENTION = Duration.seconds(300)  # the protocol's, for offers; a tick is no use for longer than an offer
MAX_RECEIVES = 3
# The splitter's and the control function's longest runs; what a batch waits to be filled is the splitter's too.
SPLITTER_TIMEOUT = Duration.seconds(20)
CONTROL_TIMEOUT = Duration.seconds(60)
SPLIT_RETENTION = Duration.days(14)
SPLIT_MAX_RECEIVES = 20  # more than the splitter's own limit, after which it says why
COUNTERS_TIMEOUT = Duration.seconds(30)
EXCHANGE_TIMEOUT = Duration.seconds(30)
EXCHANGE_VISIBILITY = Duration.seconds(6 * 30 + 1)  # a batch may wait a second to be filled
BRIDGE_TIMEOUT = Duration.seconds(30)  # as SQS's own default visibility timeout: any queue may feed a route
LINKS_TIMEOUT = Duration.seconds(60)
LINKS_VISIBILITY = Duration.seconds(6 * 60)
FEDERATION_MAX_RECEIVES = 20  # more than the functions' own limits, after which they say why
LOGS_PREFIX = "logs/"  # of what EMR Serverless writes
DEAD_LETTERS_RETENTION = Duration.days(14)  # the longest that SQS keeps anything


class StateStack(Stack):
    """Stack `SluiceState`."""

    def __init__(self, scope: Construct, parameters: Parameters) -> None:
        super().__init__(scope, "SluiceState", description="Sluice: state that is kept, and queues")
        keep = parameters.rendezvous.keep_state
        self.table = _table(self, "Table", keep=keep)
        self.dead_letters = _dead_letters(self, "DeadLetters")
        self.timeouts_queue: sqs.IQueue = _queue(self, "TimeoutsQueue", dead_letters=self.dead_letters)
        self.offers_queue = _offers_queue(self, parameters.rendezvous, dead_letters=self.dead_letters)
        self.splitting_table = _table(self, "SplittingTable", keep=keep)
        self.splitting_dead_letters = _dead_letters(self, "SplittingDeadLetters")
        self.control_queue = _control_queue(self, dead_letters=self.splitting_dead_letters)
        self.split_queues = _split_queues(self, parameters)
        self.counters_queue = _counters_queue(self, parameters.rendezvous, dead_letters=self.dead_letters)
        self.federation = _federation(self, parameters, keep=keep)
        self.pipeline = _pipeline(self, parameters, keep=keep)


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitQueues:
    """The two queues of a queue that can be split, which the stack made or adopted."""

    parameters: SplitQueueParameters
    source: sqs.IQueue
    main: sqs.IQueue


@dataclass(frozen=True, slots=True, kw_only=True)
class Ingress:
    """A queue that messages are published to. `exchange` None is any."""

    queue: sqs.IQueue
    fifo: bool
    from_links: bool = False
    exchange: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FederationState:
    """A site's tag, table and queues.

    `bound` are by the names that people know them by; `taken` of them the site itself reads.
    """

    site: str
    table: dynamodb.Table
    dead_letters: sqs.IQueue
    fifo_dead_letters: sqs.IQueue
    links_queue: sqs.Queue
    ticks_queue: sqs.IQueue
    ingresses: Sequence[Ingress]
    bound: Mapping[str, sqs.IQueue]
    taken: frozenset[str]

    @property
    def open_to_peers(self) -> Sequence[sqs.Queue]:
        """The queues that peer sites send to."""
        ingresses = [cast("sqs.Queue", ingress.queue) for ingress in self.ingresses if ingress.from_links]
        return [self.links_queue, *ingresses]


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineState:
    """What the jobs keep, and what is wanted of them. `queues` are those whose main queue the land job reads."""

    queues: SplitQueues
    bucket: s3.Bucket
    table: dynamodb.Table


def _table(scope: Construct, id_: str, *, keep: bool) -> dynamodb.Table:
    return dynamodb.Table(
        scope,
        id_,
        partition_key=dynamodb.Attribute(name="pk", type=dynamodb.AttributeType.STRING),
        sort_key=dynamodb.Attribute(name="sk", type=dynamodb.AttributeType.STRING),
        billing_mode=dynamodb.BillingMode.PAY_PER_REQUEST,
        time_to_live_attribute="expires_at",
        point_in_time_recovery_specification=dynamodb.PointInTimeRecoverySpecification(
            point_in_time_recovery_enabled=True
        ),
        deletion_protection=keep,
        removal_policy=RemovalPolicy.RETAIN if keep else RemovalPolicy.DESTROY,
    )


def _dead_letters(scope: Construct, id_: str, *, fifo: bool = False) -> sqs.Queue:
    return sqs.Queue(
        scope,
        id_,
        fifo=fifo or None,  # CloudFormation refuses even `false` for a standard queue
        retention_period=DEAD_LETTERS_RETENTION,
        encryption=sqs.QueueEncryption.SQS_MANAGED,
        enforce_ssl=True,
    )


def _offers_queue(scope: Construct, parameters: RendezvousParameters, *, dead_letters: sqs.IQueue) -> sqs.IQueue:
    if parameters.existing_offers_queue_arn:
        return sqs.Queue.from_queue_arn(scope, "OffersQueue", parameters.existing_offers_queue_arn)
    return _queue(scope, "OffersQueue", dead_letters=dead_letters, name=parameters.offers_queue_name)


def _queue(scope: Construct, id_: str, *, dead_letters: sqs.IQueue, name: str | None = None) -> sqs.Queue:
    """A queue that the broker function consumes."""
    return sqs.Queue(
        scope,
        id_,
        queue_name=name,
        retention_period=RETENTION,
        visibility_timeout=BROKER_VISIBILITY_TIMEOUT,
        dead_letter_queue=sqs.DeadLetterQueue(queue=dead_letters, max_receive_count=MAX_RECEIVES),
        encryption=sqs.QueueEncryption.SQS_MANAGED,
        enforce_ssl=True,
    )


def _counters_queue(
    scope: Construct, parameters: RendezvousParameters, *, dead_letters: sqs.IQueue
) -> sqs.Queue | None:
    """Rendezvous events to be counted; none where none are published."""
    if parameters.events_exchange is None:
        return None
    visibility_s = 6 * int(COUNTERS_TIMEOUT.to_seconds()) + parameters.counters_window_s
    return sqs.Queue(
        scope,
        "CountersQueue",
        retention_period=SPLIT_RETENTION,
        visibility_timeout=Duration.seconds(visibility_s),
        dead_letter_queue=sqs.DeadLetterQueue(queue=dead_letters, max_receive_count=FEDERATION_MAX_RECEIVES),
        encryption=sqs.QueueEncryption.SQS_MANAGED,
        enforce_ssl=True,
    )


def _control_queue(scope: Construct, *, dead_letters: sqs.IQueue) -> sqs.Queue:
    """Ticks, and what splitters ask for."""
    return sqs.Queue(
        scope,
        "ControlQueue",
        retention_period=Duration.hours(1),
        visibility_timeout=Duration.seconds(6 * 60),
        dead_letter_queue=sqs.DeadLetterQueue(queue=dead_letters, max_receive_count=MAX_RECEIVES),
        encryption=sqs.QueueEncryption.SQS_MANAGED,
        enforce_ssl=True,
    )


def _federation(stack: StateStack, parameters: Parameters, *, keep: bool) -> FederationState:
    dead_letters = _dead_letters(stack, "FederationDeadLetters")
    fifo_dead_letters = _dead_letters(stack, "FederationFifoDeadLetters", fifo=True)

    def queue(id_: str, *, fifo: bool, visibility: Duration, retention: Duration = SPLIT_RETENTION) -> sqs.Queue:
        return sqs.Queue(
            stack,
            id_,
            fifo=fifo or None,
            # Each group has its own limits, and each is known by its own ids.
            deduplication_scope=sqs.DeduplicationScope.MESSAGE_GROUP if fifo else None,
            fifo_throughput_limit=sqs.FifoThroughputLimit.PER_MESSAGE_GROUP_ID if fifo else None,
            retention_period=retention,
            visibility_timeout=visibility,
            dead_letter_queue=sqs.DeadLetterQueue(
                queue=fifo_dead_letters if fifo else dead_letters, max_receive_count=FEDERATION_MAX_RECEIVES
            ),
            encryption=sqs.QueueEncryption.SQS_MANAGED,
            enforce_ssl=True,
        )

    def ingress(id_: str, *, fifo: bool, from_links: bool = False, exchange: str | None = None) -> Ingress:
        made = queue(id_, fifo=fifo, visibility=EXCHANGE_VISIBILITY)
        return Ingress(queue=made, fifo=fifo, from_links=from_links, exchange=exchange)

    def bound(number: int, each: BoundQueueParameters) -> sqs.IQueue:
        if each.existing_arn is not None:
            return sqs.Queue.from_queue_arn(stack, f"FederationBound{number}", each.existing_arn)
        return queue(f"FederationBound{number}", fifo=each.fifo, visibility=BRIDGE_TIMEOUT)

    bound_queues = {each.name: bound(number, each) for number, each in enumerate(parameters.federation.queues)}
    counters = {COUNTERS_QUEUE: stack.counters_queue} if stack.counters_queue else {}
    # What an exchange sends to a split queue goes to its sessions, and the rest to its consumer.
    taken = counters | {each.parameters.queue_id: each.source for each in stack.split_queues}
    return FederationState(
        site=parameters.federation.tag or f"{Aws.REGION}-{Aws.ACCOUNT_ID}",
        table=_table(stack, "FederationTable", keep=keep),
        dead_letters=dead_letters,
        fifo_dead_letters=fifo_dead_letters,
        links_queue=queue("FederationLinks", fifo=True, visibility=LINKS_VISIBILITY),
        ticks_queue=queue("FederationTicks", fifo=False, visibility=LINKS_VISIBILITY, retention=Duration.hours(1)),
        ingresses=[
            ingress("FederationIngress", fifo=False),
            ingress("FederationFifoIngress", fifo=True),
            ingress("FederationLinkIngress", fifo=False, from_links=True),
            ingress("FederationFifoLinkIngress", fifo=True, from_links=True),
            *(
                ingress(f"FederationIngress{number}", fifo=each.fifo, exchange=each.exchange)
                for number, each in enumerate(parameters.federation.ingresses)
            ),
        ],
        bound=bound_queues | taken,
        taken=frozenset(taken),
    )


def _pipeline(stack: StateStack, parameters: Parameters, *, keep: bool) -> PipelineState | None:
    """None where no split queue is the pipeline's."""
    queue_id = parameters.pipeline.queue_id
    queues = next((each for each in stack.split_queues if each.parameters.queue_id == queue_id), None)
    if queues is None:
        return None
    bucket = s3.Bucket(
        stack,
        "PipelineBucket",
        encryption=s3.BucketEncryption.S3_MANAGED,
        enforce_ssl=True,
        block_public_access=s3.BlockPublicAccess.BLOCK_ALL,
        removal_policy=RemovalPolicy.RETAIN if keep else RemovalPolicy.DESTROY,
        lifecycle_rules=[
            # Staged segments go when the source's own retention says so: it alone knows which of them are still read.
            s3.LifecycleRule(id="unfinished-uploads", abort_incomplete_multipart_upload_after=Duration.days(1)),
            s3.LifecycleRule(id="logs", prefix=LOGS_PREFIX, expiration=Duration.days(parameters.log_retention_days)),
        ],
    )
    acknowledge(bucket, "AwsSolutions-S1", "Only the job role and EMR Serverless use it; CloudTrail has who did what.")
    return PipelineState(queues=queues, bucket=bucket, table=_table(stack, "PipelineTable", keep=keep))


def _split_queues(stack: StateStack, parameters: Parameters) -> Sequence[SplitQueues]:
    return [_split_queue(stack, number, each, parameters) for number, each in enumerate(parameters.splitting.queues)]


def _split_queue(stack: StateStack, number: int, queue: SplitQueueParameters, parameters: Parameters) -> SplitQueues:
    """Ids are by place: a queue's own id may have any characters."""
    dead_letters = stack.splitting_dead_letters
    if queue.fifo:
        dead_letters = _dead_letters(stack, f"Split{number}DeadLetters", fifo=True)
    window_s = 0 if queue.fifo else parameters.splitting.batching_window_s
    visibility_timeout = Duration.seconds(6 * int(SPLITTER_TIMEOUT.to_seconds()) + window_s)

    def made_or_adopted(role: str, arn: str | None) -> sqs.IQueue:
        if arn is not None:
            return sqs.Queue.from_queue_arn(stack, f"Split{number}{role}", arn)
        return sqs.Queue(
            stack,
            f"Split{number}{role}",
            fifo=queue.fifo or None,
            retention_period=SPLIT_RETENTION,
            visibility_timeout=visibility_timeout,
            dead_letter_queue=sqs.DeadLetterQueue(queue=dead_letters, max_receive_count=SPLIT_MAX_RECEIVES),
            encryption=sqs.QueueEncryption.SQS_MANAGED,
            enforce_ssl=True,
        )

    return SplitQueues(
        parameters=queue,
        source=made_or_adopted("Source", queue.existing_source_queue_arn),
        main=made_or_adopted("Main", queue.existing_main_queue_arn),
    )
