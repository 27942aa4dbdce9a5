"""What an environment gives its shells: AWS clients, the wall clock, and ids that nobody else draws.

Clients are made at the first call and shared by an environment's invocations. They are botocore's own, which boto3 only
hands on: a function doesn't load it, and starts a tenth sooner.
"""

import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from botocore.session import Session, get_session

from sluice.errors import CallFailed, QueueGone

if TYPE_CHECKING:  # boto3-stubs are for the type checker: bundles don't hold them
    from mypy_boto3_dynamodb import DynamoDBClient
    from mypy_boto3_lambda import LambdaClient
    from mypy_boto3_sqs import SQSClient

MAX_CONNECTIONS = 32
# The JSON protocol's code and the query protocol's, which botocore may report instead.
GONE = frozenset({"QueueDoesNotExist", "AWS.SimpleQueueService.NonExistentQueue"})
# A long poll is 20 s. Three attempts with back-off are botocore's; what fails after them is the queue's to retry.
CONFIG = Config(
    max_pool_connections=MAX_CONNECTIONS,
    connect_timeout=2,
    read_timeout=25,
    retries={"mode": "standard", "total_max_attempts": 3},
)

# Where somebody waits for seconds, a call that hangs is given up in time to make it again.
QUICK = CONFIG.merge(Config(connect_timeout=1, read_timeout=2))
# What is sent may depend on when, as a delay does: who sends it makes it anew each time.
ONCE = QUICK.merge(Config(retries={"mode": "standard", "total_max_attempts": 1}))
# A poll is held for ten seconds.
HOLDING = CONFIG.merge(Config(connect_timeout=1, read_timeout=13))


def make_client(service: str, *, config: Config = CONFIG) -> Any:
    """Make a client of the environment's region and credentials."""
    return _session().create_client(service, config=config)


@cache
def _session() -> Session:
    """One for all clients: it reads the services' descriptions once."""
    return get_session()


@cache
def sqs_client() -> "SQSClient":
    """Give the environment's SQS client; safe for threads."""
    client: SQSClient = make_client("sqs")
    return client


@cache
def dynamodb_client() -> "DynamoDBClient":
    """Give the environment's DynamoDB client; safe for threads."""
    client: DynamoDBClient = make_client("dynamodb")
    return client


@cache
def quick_sqs_client() -> "SQSClient":
    """Give the environment's SQS client for calls that somebody waits for, and makes again; safe for threads."""
    client: SQSClient = make_client("sqs", config=ONCE)
    return client


@cache
def holding_sqs_client() -> "SQSClient":
    """Give the environment's SQS client for receives of up to ten seconds; safe for threads."""
    client: SQSClient = make_client("sqs", config=HOLDING)
    return client


@cache
def quick_dynamodb_client() -> "DynamoDBClient":
    """Give the environment's DynamoDB client for calls that somebody waits for; safe for threads."""
    client: DynamoDBClient = make_client("dynamodb", config=QUICK)
    return client


@cache
def lambda_client() -> "LambdaClient":
    """Give the environment's Lambda client; safe for threads."""
    client: LambdaClient = make_client("lambda")
    return client


def queue_arn_prefix(queue_url: str) -> str:
    """Give the ARN without the name that the queues of this queue's account have, in the environment's region."""
    meta = sqs_client().meta
    account = queue_url.rsplit("/", 2)[-2]
    return f"arn:{meta.partition}:sqs:{meta.region_name}:{account}:"


@contextmanager
def calls(operation: str, *, queue: str | None = None) -> Iterator[None]:
    """Turn what a call raises into `CallFailed`, or `QueueGone` where the `queue`, by URL or name, isn't there."""
    try:
        yield
    except ClientError as error:
        if queue is not None and error_code(error) in GONE:
            raise QueueGone(queue) from error
        raise CallFailed(operation, error_code(error), error.response["Error"].get("Message", "")) from error
    except BotoCoreError as error:
        raise CallFailed(operation, type(error).__name__, str(error)) from error


def error_code(error: ClientError) -> str:
    """AWS's name of the error."""
    return error.response["Error"].get("Code", "")


def now_ms() -> int:
    """Read the wall clock, in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def now_s() -> float:
    """Read the clock that only goes on, in seconds since some moment."""
    return time.monotonic()


def new_id() -> str:
    """Draw 32 hex characters."""
    return uuid.uuid4().hex
