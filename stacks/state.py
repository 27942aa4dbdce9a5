"""What outlives a deployment of functions: tables, and the queues between functions."""

from collections.abc import Sequence
from dataclasses import dataclass

from aws_cdk import Duration, RemovalPolicy, Stack
from aws_cdk import aws_dynamodb as dynamodb
from aws_cdk import aws_sqs as sqs
from constructs import Construct

from stacks.parameters import Parameters, RendezvousParameters, SplitQueueParameters

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


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitQueues:
    """The two queues of a queue that can be split, which the stack made or adopted."""

    parameters: SplitQueueParameters
    source: sqs.IQueue
    main: sqs.IQueue


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
