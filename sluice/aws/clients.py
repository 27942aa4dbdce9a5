"""AWS clients, the wall clock and unique ids for one execution environment.

Clients are made at the first call and shared by an environment's invocations. They are botocore's own, which boto3 only
hands on: a function doesn't load it, and starts a tenth sooner.
"""

import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from copy import copy
from functools import cache, cached_property
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from ssl import SSLContext, create_default_context
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

import botocore
import msgspec
from botocore.awsrequest import AWSResponse, create_request_object
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError
from botocore.hooks import first_non_none_response
from botocore.httpsession import get_cert_path
from botocore.session import Session, get_session
from botocore.utils import get_environ_proxies
from urllib3.util import wait_for_read

from sluice.errors import CallFailed, QueueGone

if TYPE_CHECKING:  # boto3-stubs are for the type checker: bundles don't hold them
    from botocore.compat import HTTPHeaders
    from mypy_boto3_dynamodb import DynamoDBClient
    from mypy_boto3_lambda import LambdaClient
    from mypy_boto3_sqs import SQSClient

MAX_CONNECTIONS = 32
HTTP_OK = 200
SEND_BATCH = "SendMessageBatch"
SPELLED = "sluice.spelled"  # where a call's context has its body
# The JSON protocol's code and the query protocol's, which botocore may report instead.
GONE = frozenset({"QueueDoesNotExist", "AWS.SimpleQueueService.NonExistentQueue"})
# botocore would build a text of its own twice for each call.
USER_AGENT = f"Botocore/{botocore.__version__} sluice"
# A long poll is 20 s. Three attempts with back-off are botocore's; what fails after them is the queue's to retry.
CONFIG = Config(
    max_pool_connections=MAX_CONNECTIONS,
    connect_timeout=2,
    read_timeout=25,
    retries={"mode": "standard", "total_max_attempts": 3},
    user_agent=USER_AGENT,
)

# Where somebody waits for seconds, a call that hangs is given up in time to make it again.
QUICK = CONFIG.merge(Config(connect_timeout=1, read_timeout=2))
# What is sent may depend on when, as a delay does: who sends it makes it anew each time.
ONCE = QUICK.merge(Config(retries={"mode": "standard", "total_max_attempts": 1}))
# A poll is held for ten seconds.
HOLDING = CONFIG.merge(Config(connect_timeout=1, read_timeout=13))

_ENCODER, _DECODER = msgspec.json.Encoder(), msgspec.json.Decoder(dict[str, Any])


class _Kept(threading.local):
    """State of one thread: its connection and, if the fast attempt of a call failed, its response or its error."""

    connection: HTTPConnection | None = None
    answer: AWSResponse | BotoCoreError | None = None


class FastBatches:
    """A client's SendMessageBatch by a shorter way: functions that pass messages on spend most of their time in it.

    botocore checks and spells each field of each message by its model of shapes, and reads the answer by it again. Here
    msgspec does, between botocore's own events, and each thread keeps a connection; botocore's signer signs. An answer
    that isn't plainly good, or none, is handed to botocore as that of its first attempt: what is tried again, and what
    is raised, is decided there alone. Safe for threads, as clients are.
    """

    def __init__(self, client: "SQSClient") -> None:
        # Who looks on at what botocore sends, or stands in for AWS, isn't passed over.
        self._onlookers = copy(client.meta.events)
        self._endpoint = botocore_endpoint(client)
        self._limits: Any = client.meta.config  # whose fields the stubs don't know
        self._kept = _Kept()

    @classmethod
    def install(cls, client: "SQSClient") -> "SQSClient":
        """Make the client send batches this way; its calls stay the same. With a proxy, botocore's own way stays."""
        if get_environ_proxies(client.meta.endpoint_url):
            return client
        fast, events = cls(client), cast("Any", client.meta.events)  # by the stubs handlers give nothing back
        events.register(f"provide-client-params.sqs.{SEND_BATCH}", fast.encode)
        events.register_last("before-call", fast.send)  # after all others: some add headers
        events.register(f"before-send.sqs.{SEND_BATCH}", fast.hand_over)
        return client

    def encode(self, params: Mapping[str, Any], context: dict[str, Any], **_: object) -> Mapping[str, Any] | None:
        """Serialize the request, and leave botocore no entry to serialize."""
        try:
            context[SPELLED] = _ENCODER.encode(params)
        except UnicodeEncodeError:
            return None  # half a surrogate pair: botocore has an escape for it, and SQS refuses that message alone
        return {**params, "Entries": []}

    def send(
        self, params: dict[str, Any], request_signer: Any, context: Mapping[str, Any], **_: object
    ) -> tuple[AWSResponse, Mapping[str, Any]] | None:
        """Send the serialized request. None if botocore should continue the call, as for calls of other kinds."""
        self._kept.answer = None
        if SPELLED not in context:
            return None
        params["body"] = context[SPELLED]
        request = create_request_object(params)
        request_signer.sign(SEND_BATCH, request)
        prepared = self._endpoint.prepare_request(request)
        kept = self._kept
        try:
            answers = self._onlookers.emit(f"before-send.sqs.{SEND_BATCH}", request=prepared)
            answer: AWSResponse | None = first_non_none_response(answers)
            if answer is None:
                if kept.connection is None or kept.connection.sock is None or wait_for_read(kept.connection.sock, 0):
                    kept.connection = self.connect()
                kept.connection.request(prepared.method, urlsplit(prepared.url).path, prepared.body, prepared.headers)
                came = kept.connection.getresponse()
                content = came.read()
                raw: Any = SimpleNamespace(stream=lambda: [content])
                answer = AWSResponse(prepared.url, came.status, cast("HTTPHeaders", came.headers), raw)
        except (BotoCoreError, HTTPException, OSError) as error:
            kept.connection = None
            kept.answer = error if isinstance(error, BotoCoreError) else HTTPClientError(error=error)
            return None
        with suppress(msgspec.DecodeError):
            if answer.status_code == HTTP_OK:
                metadata = {"HTTPStatusCode": HTTP_OK, "RequestId": answer.headers.get("x-amzn-requestid", "")}
                return answer, {**_DECODER.decode(answer.content), "ResponseMetadata": metadata}
        self._kept.answer = answer
        return None

    def connect(self) -> HTTPConnection:
        """Open a connection as botocore would: with the client's time limits, to whom its authorities vouch for."""
        parts, within_s = urlsplit(self._endpoint.host), self._limits.connect_timeout
        connection = HTTPConnection(parts.hostname or "", parts.port, timeout=within_s)
        if parts.scheme == "https":
            context = self.authorities
            connection = HTTPSConnection(parts.hostname or "", parts.port, timeout=within_s, context=context)
        connection.connect()
        connection.sock.settimeout(self._limits.read_timeout)
        return connection

    @cached_property
    def authorities(self) -> SSLContext:
        """The TLS context with the certificate authorities for which the client is configured."""
        verify = self._endpoint.http_session._verify  # noqa: SLF001 - there is no public way
        return create_default_context(cafile=get_cert_path(verify))

    def hand_over(self, **_: object) -> AWSResponse | None:
        """Return the fast attempt's response, or raise its error, in place of botocore's own first attempt."""
        answer: AWSResponse | BotoCoreError | None = self._kept.answer
        self._kept.answer = None
        if isinstance(answer, BotoCoreError):
            raise answer
        return answer


def botocore_endpoint(client: Any) -> Any:
    """Return the endpoint with which botocore prepares and sends a client's requests; it isn't public."""
    return client._endpoint  # noqa: SLF001 - see above


def make_client(service: str, *, config: Config = CONFIG) -> Any:
    """Create a client with the environment's region and credentials."""
    return _session().create_client(service, config=config)


@cache
def _session() -> Session:
    """Return the session of all clients, so that botocore reads the services' descriptions once."""
    return get_session()


@cache
def sqs_client() -> "SQSClient":
    """Return the environment's SQS client; safe for threads."""
    return FastBatches.install(make_client("sqs"))


@cache
def dynamodb_client() -> "DynamoDBClient":
    """Return the environment's DynamoDB client; safe for threads."""
    client: DynamoDBClient = make_client("dynamodb")
    return client


@cache
def quick_sqs_client() -> "SQSClient":
    """Return the environment's SQS client with short timeouts, for callers that retry themselves; safe for threads."""
    client: SQSClient = make_client("sqs", config=ONCE)
    return client


@cache
def holding_sqs_client() -> "SQSClient":
    """Return the environment's SQS client for receives of up to ten seconds; safe for threads."""
    client: SQSClient = make_client("sqs", config=HOLDING)
    return client


@cache
def quick_dynamodb_client() -> "DynamoDBClient":
    """Return the environment's DynamoDB client with short timeouts, for requests with a deadline; safe for threads."""
    client: DynamoDBClient = make_client("dynamodb", config=QUICK)
    return client


@cache
def lambda_client() -> "LambdaClient":
    """Return the environment's Lambda client; safe for threads."""
    client: LambdaClient = make_client("lambda")
    return client


def queue_arn_prefix(queue_url: str) -> str:
    """Return the ARN, without the name, of queues in this queue's account and the environment's region."""
    meta = sqs_client().meta
    account = queue_url.rsplit("/", 2)[-2]
    return f"arn:{meta.partition}:sqs:{meta.region_name}:{account}:"


@contextmanager
def calls(operation: str, *, queue: str | None = None) -> Iterator[None]:
    """Turn a call's errors into `CallFailed`, or into `QueueGone` if the `queue`, by URL or name, doesn't exist."""
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
