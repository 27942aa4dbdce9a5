"""What outlives a deployment of functions: the rendezvous table and the queues between its parts."""

from aws_cdk import Duration, RemovalPolicy, Stack
from aws_cdk import aws_dynamodb as dynamodb
from aws_cdk import aws_sqs as sqs
from constructs import Construct

from stacks.parameters import RendezvousParameters

# The broker function's longest run. Lambda asks for a visibility timeout of six times as much:
# https://docs.aws.amazon.com/lambda/latest/dg/services-sqs-configure.html
BROKER_TIMEOUT = Duration.seconds(10)
BROKER_VISIBILITY_TIMEOUT = Duration.seconds(6 * 10)
RETENTION = Duration.seconds(300)  # the protocol's, for offers; a tick is no use for longer than an offer
MAX_RECEIVES = 3
DEAD_LETTERS_RETENTION = Duration.days(14)  # the longest that SQS keeps anything


class StateStack(Stack):
    """Stack `SluiceState`."""

    def __init__(self, scope: Construct, parameters: RendezvousParameters) -> None:
        super().__init__(scope, "SluiceState", description="Sluice: state that is kept, and queues")
        self.table = _table(self, keep=parameters.keep_state)
        self.dead_letters = _dead_letters(self)
        self.timeouts_queue: sqs.IQueue = _queue(self, "TimeoutsQueue", dead_letters=self.dead_letters)
        self.offers_queue = _offers_queue(self, parameters, dead_letters=self.dead_letters)


def _table(scope: Construct, *, keep: bool) -> dynamodb.Table:
    return dynamodb.Table(
        scope,
        "Table",
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


def _dead_letters(scope: Construct) -> sqs.Queue:
    return sqs.Queue(
        scope,
        "DeadLetters",
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
