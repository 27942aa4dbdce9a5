"""AWS clients, the wall clock and unique ids for one execution environment.

A client is created at its first use and shared by the environment's invocations. The clients are botocore's, because
loading boto3 would make a function's start a tenth slower.
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

from sluice.aws.client_types import DynamoDBClient, LambdaClient, SQSClient
from sluice.errors import CallFailed, QueueGone

if TYPE_CHECKING:  # Only the type checker has boto3-stubs. The functions' bundles don't contain them.
    from botocore.compat import HTTPHeaders

MAX_CONNECTIONS = 32
HTTP_OK = 200
SEND_BATCH = "SendMessageBatch"
ENCODED_BODY = "sluice.spelled"  # key of the encoded request body in botocore's call context
# Error codes for a missing queue: of SQS's JSON protocol and of its query protocol. botocore may report either.
GONE = frozenset({"QueueDoesNotExist", "AWS.SimpleQueueService.NonExistentQueue"})
# A fixed user agent, because botocore would build its own twice for each call.
USER_AGENT = f"Botocore/{botocore.__version__} sluice"
# The read timeout is longer than a long poll of 20 s. After botocore's three attempts, SQS redelivers the message.
CONFIG = Config(
    max_pool_connections=MAX_CONNECTIONS,
    connect_timeout=2,
    read_timeout=25,
    retries={"mode": "standard", "total_max_attempts": 3},
    user_agent=USER_AGENT,
)

# Settings for callers with a deadline of seconds: a call without a response fails early enough for another attempt.
SHORT_TIMEOUTS = CONFIG.merge(Config(connect_timeout=1, read_timeout=2))
# Settings for callers that retry by themselves, because each of their attempts has to contain the current time.
WITHOUT_RETRIES = SHORT_TIMEOUTS.merge(Config(retries={"mode": "standard", "total_max_attempts": 1}))
# Settings for long polls of up to ten seconds.
LONG_POLLS = CONFIG.merge(Config(connect_timeout=1, read_timeout=13))

_ENCODER, _DECODER = msgspec.json.Encoder(), msgspec.json.Decoder(dict[str, Any])


class _ThreadState(threading.local):
    """A thread's connection to SQS, with the response or the error of its last fast attempt."""

    connection: HTTPConnection | None = None
    attempt_result: AWSResponse | BotoCoreError | None = None


class FastBatchSender:
    """Sends message batches faster than botocore, as forwarding functions spend most of their time with this.

    botocore validates and encodes each field by its service model, and decodes the response in the same way. This class
    uses msgspec instead, and keeps a connection for each thread. It hooks into botocore's events, and botocore still
    signs the request. A failed attempt is reported to botocore as botocore's own first attempt, so only botocore
    decides about retries and errors. Thread-safe, like the clients.
    """

    def __init__(self, client: SQSClient) -> None:
        # Handlers of botocore's events that observe requests, or that replace AWS, are still called.
        self._other_handlers = copy(client.meta.events)
        self._endpoint = cast("Any", client)._endpoint  # noqa: SLF001 - it prepares and sends a client's requests
        self._limits: Any = client.meta.config  # typed as Any, because the stubs lack its attributes
        self._kept = _ThreadState()

    @classmethod
    def install(cls, client: SQSClient) -> SQSClient:
        """Make the client send message batches with this class. A client that uses an HTTP proxy stays unchanged."""
        if get_environ_proxies(client.meta.endpoint_url):
            return client
        fast, events = cls(client), cast("Any", client.meta.events)  # The stubs allow only handlers that return None.
        events.register(f"provide-client-params.sqs.{SEND_BATCH}", fast.encode)
        events.register_last("before-call", fast.send)  # This handler is last, because other handlers add headers.
        events.register(f"before-send.sqs.{SEND_BATCH}", fast.return_attempt)
        return client

    def encode(self, params: Mapping[str, Any], context: dict[str, Any], **_: object) -> Mapping[str, Any] | None:
        """Encode the request. Returns parameters without entries, so that botocore has nothing left to encode."""
        try:
            context[ENCODED_BODY] = _ENCODER.encode(params)
        except UnicodeEncodeError:
            return None  # botocore escapes lone surrogates; then SQS refuses only these messages
        return {**params, "Entries": []}

    def send(
        self, params: dict[str, Any], request_signer: Any, context: Mapping[str, Any], **_: object
    ) -> tuple[AWSResponse, Mapping[str, Any]] | None:
        """Send the encoded request. Returns None for other operations, which botocore then sends."""
        self._kept.attempt_result = None
        if ENCODED_BODY not in context:
            return None
        params["body"] = context[ENCODED_BODY]
        request = create_request_object(params)
        request_signer.sign(SEND_BATCH, request)
        prepared = self._endpoint.prepare_request(request)
        state = self._kept
        try:
            answers = self._other_handlers.emit(f"before-send.sqs.{SEND_BATCH}", request=prepared)
            reply: AWSResponse | None = first_non_none_response(answers)
            if reply is None:
                if state.connection is None or state.connection.sock is None or wait_for_read(state.connection.sock, 0):
                    state.connection = self.connect()
                state.connection.request(prepared.method, urlsplit(prepared.url).path, prepared.body, prepared.headers)
                response = state.connection.getresponse()
                content = response.read()
                raw_response: Any = SimpleNamespace(stream=lambda: [content])
                reply = AWSResponse(prepared.url, response.status, cast("HTTPHeaders", response.headers), raw_response)
        except (BotoCoreError, HTTPException, OSError) as error:
            state.connection = None
            state.attempt_result = error if isinstance(error, BotoCoreError) else HTTPClientError(error=error)
            return None
        with suppress(msgspec.DecodeError):
            if reply.status_code == HTTP_OK:
                metadata = {"HTTPStatusCode": HTTP_OK, "RequestId": reply.headers.get("x-amzn-requestid", "")}
                return reply, {**_DECODER.decode(reply.content), "ResponseMetadata": metadata}
        self._kept.attempt_result = reply
        return None

    def connect(self) -> HTTPConnection:
        """Open a connection with the client's timeouts and certificate authorities, as botocore would."""
        parts, within_s = urlsplit(self._endpoint.host), self._limits.connect_timeout
        connection = HTTPConnection(parts.hostname or "", parts.port, timeout=within_s)
        if parts.scheme == "https":
            context = self.tls_context
            connection = HTTPSConnection(parts.hostname or "", parts.port, timeout=within_s, context=context)
        connection.connect()
        connection.sock.settimeout(self._limits.read_timeout)
        return connection

    @cached_property
    def tls_context(self) -> SSLContext:
        """The TLS context with the certificate authorities for which the client is configured."""
        verify = self._endpoint.http_session._verify  # noqa: SLF001 - there is no public way
        return create_default_context(cafile=get_cert_path(verify))

    def return_attempt(self, **_: object) -> AWSResponse | None:
        """Return the fast attempt's response, or raise its error, as the result of botocore's own first attempt."""
        result: AWSResponse | BotoCoreError | None = self._kept.attempt_result
        self._kept.attempt_result = None
        if isinstance(result, BotoCoreError):
            raise result
        return result


def make_client(service: str, *, config: Config = CONFIG) -> Any:
    """Create a client with the environment's region and credentials."""
    return _get_session().create_client(service, config=config)


@cache
def _get_session() -> Session:
    """Return the session shared by all clients, so that botocore reads the service models once."""
    return get_session()


@cache
def sqs_client() -> SQSClient:
    """Return the environment's SQS client; thread-safe."""
    return FastBatchSender.install(make_client("sqs"))


@cache
def dynamodb_client() -> DynamoDBClient:
    """Return the environment's DynamoDB client; thread-safe."""
    return cast("DynamoDBClient", make_client("dynamodb"))


@cache
def quick_sqs_client() -> SQSClient:
    """Return the environment's SQS client with short timeouts, for callers that retry by themselves; thread-safe."""
    return cast("SQSClient", make_client("sqs", config=WITHOUT_RETRIES))


@cache
def long_polling_sqs_client() -> SQSClient:
    """Return the environment's SQS client for long polls of up to ten seconds; thread-safe."""
    return cast("SQSClient", make_client("sqs", config=LONG_POLLS))


@cache
def quick_dynamodb_client() -> DynamoDBClient:
    """Return the environment's DynamoDB client with short timeouts, for requests with a deadline; thread-safe."""
    return cast("DynamoDBClient", make_client("dynamodb", config=SHORT_TIMEOUTS))


@cache
def lambda_client() -> LambdaClient:
    """Return the environment's Lambda client; thread-safe."""
    return cast("LambdaClient", make_client("lambda"))


def build_queue_arn_prefix(queue_url: str) -> str:
    """Return the ARN, without a queue's name, of queues in this queue's account and the environment's region."""
    meta = sqs_client().meta
    account = queue_url.rsplit("/", 2)[-2]
    return f"arn:{meta.partition}:sqs:{meta.region_name}:{account}:"


@contextmanager
def calls(operation: str, *, queue: str | None = None) -> Iterator[None]:
    """Convert a call's errors to `CallFailed`, or to `QueueGone` if the queue (a URL or name) doesn't exist."""
    try:
        yield
    except ClientError as error:
        if queue is not None and get_error_code(error) in GONE:
            raise QueueGone(queue) from error
        raise CallFailed(operation, get_error_code(error), error.response["Error"].get("Message", "")) from error
    except BotoCoreError as error:
        raise CallFailed(operation, type(error).__name__, str(error)) from error


def get_error_code(error: ClientError) -> str:
    """Return AWS's code for the error."""
    return error.response["Error"].get("Code", "")


def now_ms() -> int:
    """Return the wall clock's time in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def now_s() -> float:
    """Return the monotonic clock's time in seconds, for measuring durations."""
    return time.monotonic()


def new_id() -> str:
    """Return a random id of 32 hex characters."""
    return uuid.uuid4().hex
