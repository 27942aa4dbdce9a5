"""What outlives a deployment of functions: tables, and the queues between functions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from aws_cdk import Aws, CfnOutput, Duration, Fn, RemovalPolicy, Stack
from aws_cdk import aws_dynamodb as dynamodb
from aws_cdk import aws_iam as iam
from aws_cdk import aws_s3 as s3
from aws_cdk import aws_sqs as sqs
from constructs import Construct

from sluice.splitting.adoption import SPLITTER_TIMEOUT_S
from sluice.stacks.functions import acknowledge
from sluice.stacks.parameters import (
    COUNTERS_QUEUE,
    BoundQueueParameters,
    Parameters,
)
from sluice.stacks.splits import SplitQueueParameters
from sluice.stacks.values import exact_id_of, id_of, of_kind
from sluice.stages import staged

# Functions' longest runs. For the queues that they read Lambda asks for a visibility timeout of six times as much, and
# what a batch waits to be filled: https://docs.aws.amazon.com/lambda/latest/dg/services-sqs-configure.html
BROKER_TIMEOUT = Duration.seconds(10)
COUNTERS_TIMEOUT = Duration.seconds(30)
SPLITTER_TIMEOUT = Duration.seconds(SPLITTER_TIMEOUT_S)
CONTROL_TIMEOUT = Duration.seconds(60)
EXCHANGE_TIMEOUT = Duration.seconds(30)
BRIDGE_TIMEOUT = Duration.seconds(30)  # as SQS's own default visibility timeout: any queue may feed a route
LINKS_TIMEOUT = Duration.seconds(60)
LONGEST = Duration.days(14)  # that SQS keeps anything
OFFERS_RETENTION = Duration.seconds(300)  # the protocol's; a tick is no use for longer than an offer
TICKS_RETENTION = Duration.hours(1)
FEW_RECEIVES = 3
OFFER_RECEIVES = 10  # more than its retention has time for: SQS would move an offer as it is, with its addresses
MANY_RECEIVES = 20  # more than the functions' own limits, after which they say why
LOGS_PREFIX = "logs/"  # of what EMR Serverless writes


class StateStack(Stack):
    """Stack `SluiceState`."""

    def __init__(self, scope: Construct, parameters: Parameters) -> None:
        super().__init__(
            scope, staged("SluiceState", parameters.stage), description="Sluice: state that is kept, and queues"
        )
        keep = parameters.rendezvous.keep_state
        self.table = _table(self, "Table", keep=keep, stream=dynamodb.StreamViewType.NEW_AND_OLD_IMAGES)
        self.waiting_table = _passing_table(self, "WaitingTable")
        self.stream_arn = str(self.table.table_stream_arn)
        self.dead_letters = _dead_letters(self, "DeadLetters", keep=keep)
        given = parameters.rendezvous
        self.offers_queue: sqs.IQueue = (
            sqs.Queue.from_queue_arn(self, "OffersQueue", given.existing_offers_queue_arn)
            if given.existing_offers_queue_arn
            else _offers(self, name=staged(given.offers_queue_name, parameters.stage))
        )
        self.splitting_table = _table(self, "SplittingTable", keep=keep)
        self.splitting_dead_letters = _dead_letters(self, "SplittingDeadLetters", keep=keep)
        self.control_queue = _queue(
            self,
            "ControlQueue",
            dead_letters=self.splitting_dead_letters,
            receives=FEW_RECEIVES,
            visibility=_visibility(CONTROL_TIMEOUT),
            retention=TICKS_RETENTION,
        )
        self.split_queues = [_split_queue(self, each, parameters) for each in parameters.splitting.queues]
        # Where an earlier version counted rendezvous events: nobody reads it. It goes when deployed sites have
        # withdrawn its binding, which takes its name, and import it no more.
        self.counters_queue = (
            None
            if given.events_exchange is None
            else _queue(
                self,
                "CountersQueue",
                dead_letters=self.dead_letters,
                receives=MANY_RECEIVES,
                visibility=_visibility(COUNTERS_TIMEOUT, given.counters_window_s),
            )
        )
        self.federation = _federation(self, parameters, keep=keep)
        self.pipeline = _pipeline(self, parameters, keep=keep)


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitQueues:
    """The two queues of a queue that can be split, which the stack made or adopted.

    `id` is what ids of its constructs begin with. Where consumers are re-pointed there is no `main`.
    """

    id: str
    parameters: SplitQueueParameters
    source: sqs.IQueue
    main: sqs.IQueue | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ingress:
    """A queue that messages are published to, known by its `id` to the stacks. `exchange` None is any."""

    id: str
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
    """What the jobs keep, and what is wanted of them. `main` is the main queue that the land job reads."""

    main: sqs.IQueue
    bucket: s3.Bucket
    bucket_arn: CfnOutput
    table: dynamodb.Table


def _table(scope: Construct, id_: str, *, keep: bool, stream: dynamodb.StreamViewType | None = None) -> dynamodb.Table:
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
        stream=stream,
        deletion_protection=keep,
        removal_policy=_removal(keep=keep),
    )


def _passing_table(scope: Construct, id_: str) -> dynamodb.Table:
    """Make a table of what is gone in minutes, and must be: with what identifies people, and without recovery."""
    table = dynamodb.Table(
        scope,
        id_,
        partition_key=dynamodb.Attribute(name="pk", type=dynamodb.AttributeType.STRING),
        sort_key=dynamodb.Attribute(name="sk", type=dynamodb.AttributeType.STRING),
        billing_mode=dynamodb.BillingMode.PAY_PER_REQUEST,
        time_to_live_attribute="expires_at",
        removal_policy=RemovalPolicy.DESTROY,
    )
    acknowledge(table, "AwsSolutions-DDB3", "What a recovery would bring back is what has to be gone: addresses, keys.")
    return table


def _dead_letters(scope: Construct, id_: str, *, keep: bool, fifo: bool = False) -> sqs.Queue:
    return sqs.Queue(
        scope,
        id_,
        fifo=fifo or None,  # CloudFormation refuses even `false` for a standard queue
        retention_period=LONGEST,
        encryption=sqs.QueueEncryption.SQS_MANAGED,
        enforce_ssl=True,
        removal_policy=_removal(keep=keep),
    )


def _removal(*, keep: bool) -> RemovalPolicy:
    return RemovalPolicy.RETAIN if keep else RemovalPolicy.DESTROY


def _queue(
    scope: Construct,
    id_: str,
    *,
    dead_letters: sqs.IQueue,
    receives: int,
    visibility: Duration,
    retention: Duration = LONGEST,
    fifo: bool = False,
    per_group: bool = False,
    name: str | None = None,
    keep: bool = False,
) -> sqs.Queue:
    """Make a queue that a function or a job reads. With `keep` it stays where it is in no stack any more.

    With `per_group` each group of a FIFO queue has its own limits, and is known by its own ids.
    """
    return sqs.Queue(
        scope,
        id_,
        queue_name=name,
        fifo=fifo or None,  # CloudFormation refuses even `false` for a standard queue
        deduplication_scope=sqs.DeduplicationScope.MESSAGE_GROUP if per_group else None,
        fifo_throughput_limit=sqs.FifoThroughputLimit.PER_MESSAGE_GROUP_ID if per_group else None,
        retention_period=retention,
        visibility_timeout=visibility,
        dead_letter_queue=sqs.DeadLetterQueue(queue=dead_letters, max_receive_count=receives),
        encryption=sqs.QueueEncryption.SQS_MANAGED,
        enforce_ssl=True,
        removal_policy=_removal(keep=keep),
    )


def _visibility(timeout: Duration, window_s: int = 0) -> Duration:
    return Duration.seconds(6 * int(timeout.to_seconds()) + window_s)


def _offers(stack: StateStack, *, name: str) -> sqs.Queue:
    return _queue(
        stack,
        exact_id_of("OffersQueue", name),  # who reads another one is deployed anew
        dead_letters=stack.dead_letters,
        receives=OFFER_RECEIVES,
        visibility=_visibility(BROKER_TIMEOUT),
        retention=OFFERS_RETENTION,
        name=name,
    )


def _federation(stack: StateStack, parameters: Parameters, *, keep: bool) -> FederationState:
    dead_letters = _dead_letters(stack, "FederationDeadLetters", keep=keep)
    fifo_dead_letters = _dead_letters(stack, "FederationFifoDeadLetters", keep=keep, fifo=True)

    def queue(
        id_: str, *, fifo: bool, visibility: Duration, retention: Duration = LONGEST, users: bool = False
    ) -> sqs.Queue:
        return _queue(
            stack,
            id_,
            dead_letters=fifo_dead_letters if fifo else dead_letters,
            receives=MANY_RECEIVES,
            visibility=visibility,
            retention=retention,
            fifo=fifo,
            per_group=fifo,
            keep=keep and users,
        )

    def ingress(id_: str, *, fifo: bool, from_links: bool = False, exchange: str | None = None) -> Ingress:
        visibility = _visibility(EXCHANGE_TIMEOUT, parameters.federation.batching_window_s)
        made = queue(f"Federation{id_}", fifo=fifo, visibility=visibility, users=True)
        return Ingress(id=id_, queue=made, fifo=fifo, from_links=from_links, exchange=exchange)

    def bound(each: BoundQueueParameters) -> sqs.IQueue:
        id_ = id_of("FederationBound", of_kind(each.name, fifo=each.fifo))
        if each.existing_arn is not None:
            return sqs.Queue.from_queue_arn(stack, id_, each.existing_arn)
        return queue(id_, fifo=each.fifo, visibility=BRIDGE_TIMEOUT, users=True)

    bound_queues = {each.name: bound(each) for each in parameters.federation.queues}
    counters = {COUNTERS_QUEUE: stack.counters_queue} if stack.counters_queue else {}
    # What an exchange sends to a split queue goes to its sessions, and the rest to its consumer.
    taken = counters | {each.parameters.queue_id: each.source for each in stack.split_queues}
    return FederationState(
        site=parameters.federation.tag or _default_tag(parameters.stage),
        table=_table(stack, "FederationTable", keep=keep),
        dead_letters=dead_letters,
        fifo_dead_letters=fifo_dead_letters,
        links_queue=queue("FederationLinks", fifo=True, visibility=_visibility(LINKS_TIMEOUT)),
        ticks_queue=queue(
            "FederationTicks", fifo=False, visibility=_visibility(LINKS_TIMEOUT), retention=TICKS_RETENTION
        ),
        ingresses=[
            ingress("Ingress", fifo=False),
            ingress("FifoIngress", fifo=True),
            ingress("LinkIngress", fifo=False, from_links=True),
            ingress("FifoLinkIngress", fifo=True, from_links=True),
            *(
                ingress(
                    id_of("Ingress", of_kind(each.exchange, fifo=each.fifo)), fifo=each.fifo, exchange=each.exchange
                )
                for each in parameters.federation.ingresses
            ),
        ],
        bound=bound_queues | taken,
        taken=frozenset(taken),
    )


def _default_tag(stage: str | None) -> str:
    """Call a site by where it is; a stage leaves no room for all of a region's hyphens."""
    if stage is None:
        return f"{Aws.REGION}-{Aws.ACCOUNT_ID}"
    return staged(f"{Aws.ACCOUNT_ID}{Fn.join('', Fn.split('-', Aws.REGION))}", stage)


def _pipeline(stack: StateStack, parameters: Parameters, *, keep: bool) -> PipelineState | None:
    """None where no split queue is the pipeline's."""
    queue_id = parameters.pipeline.queue_id
    main = next((each.main for each in stack.split_queues if each.parameters.queue_id == queue_id), None)
    if main is None:
        return None
    bucket = s3.Bucket(
        stack,
        "PipelineBucket",
        encryption=s3.BucketEncryption.S3_MANAGED,
        enforce_ssl=True,
        block_public_access=s3.BlockPublicAccess.BLOCK_ALL,
        removal_policy=_removal(keep=keep),
        lifecycle_rules=[
            # Staged segments go when the source's own retention says so: it alone knows which of them are still read.
            s3.LifecycleRule(id="unfinished-uploads", abort_incomplete_multipart_upload_after=Duration.days(1)),
            s3.LifecycleRule(id="logs", prefix=LOGS_PREFIX, expiration=Duration.days(parameters.log_retention_days)),
        ],
    )
    acknowledge(bucket, "AwsSolutions-S1", "Only the job role and EMR Serverless use it; CloudTrail has who did what.")
    arn = CfnOutput(stack, "PipelineBucketArn", value=bucket.bucket_arn)
    return PipelineState(main=main, bucket=bucket, bucket_arn=arn, table=_table(stack, "PipelineTable", keep=keep))


def _split_queue(stack: StateStack, queue: SplitQueueParameters, parameters: Parameters) -> SplitQueues:
    named, keep = id_of("Split", of_kind(queue.queue_id, fifo=queue.fifo)), parameters.rendezvous.keep_state
    dead_letters = stack.splitting_dead_letters
    mains = [] if queue.consumers else [queue.existing_main_queue_arn]
    if queue.fifo and None in (queue.existing_source_queue_arn, *mains):
        dead_letters = _dead_letters(stack, f"{named}DeadLetters", keep=keep, fifo=True)
    window_s = 0 if queue.fifo else parameters.splitting.batching_window_s

    def made_or_adopted(role: str, arn: str | None) -> sqs.IQueue:
        id_ = f"{named}{role}"
        if arn is not None:
            return sqs.Queue.from_queue_arn(stack, id_, arn)
        return _queue(
            stack,
            id_,
            dead_letters=dead_letters,
            receives=MANY_RECEIVES,
            visibility=_visibility(SPLITTER_TIMEOUT, window_s),
            fifo=queue.fifo,
            per_group=queue.fifo,
            keep=keep,
        )

    source = made_or_adopted("Source", queue.existing_source_queue_arn)
    for sender in queue.sender_arns:
        source.add_to_resource_policy(_may_send(sender, source))
    return SplitQueues(
        id=named,
        parameters=queue,
        source=source,
        main=None if queue.consumers else made_or_adopted("Main", queue.existing_main_queue_arn),
    )


def _may_send(sender: str, queue: sqs.IQueue) -> iam.PolicyStatement:
    """Let a topic, or a bucket of this account, send to the queue."""
    service = sender.split(":")[2]
    conditions = {"ArnEquals": {"aws:SourceArn": sender}}
    if service == "s3":  # a bucket's ARN doesn't say whose it is
        conditions["StringEquals"] = {"aws:SourceAccount": Aws.ACCOUNT_ID}
    return iam.PolicyStatement(
        principals=[iam.ServicePrincipal(f"{service}.amazonaws.com")],
        actions=["sqs:SendMessage"],
        resources=[queue.queue_arn],
        conditions=conditions,
    )
