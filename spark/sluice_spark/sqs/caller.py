"""Makes signed calls to one endpoint. Keeps connections, current credentials, and signatures for reuse."""

import asyncio
import ssl
import time
from collections import Counter
from dataclasses import dataclass

import orjson

from sluice_spark.errors import InvalidOption, QueueBusy, QueueError, QueueRefused, TooManyInFlight
from sluice_spark.sqs.access import Place
from sluice_spark.sqs.responses import HTTP_OK, HttpResponse
from sluice_spark.sqs.signing import Credentials, sign_headers
from sluice_spark.sqs.transport import Transport, WaitForRoom

CREDENTIALS_FRESH_S = 60.0  # seconds after which botocore is asked for credentials again
SIGNATURE_FRESH_S = 60.0  # maximum age of a reused signature in seconds; AWS accepts five minutes
SEND_WITHIN_S = 60.0  # as in boto3; after a time-out messages are sent again, though SQS might have them
HTTP_TOO_MANY_REQUESTS = 429
HTTP_SERVER_ERROR = 500

# Also in each action's own list: https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/CommonErrors.html
BUSY = {
    "InternalError", "InternalFailure", "KmsThrottled", "RequestThrottled", "RequestTimeout", "RequestTimeoutException",
    "ServiceUnavailable", "SlowDown", "Throttling", "ThrottlingException", "TooManyRequestsException",
}  # fmt: skip
EXPIRED = {"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired"}
# If a reused connection breaks, these calls are sent again, which has no further effect. Callers retry other calls.
REPEATABLE = {"ChangeMessageVisibilityBatch", "DeleteMessageBatch", "GetQueueAttributes", "GetQueueUrl"}


class Caller:
    """Calls one endpoint on at most `connections` connections. Created, used and closed in one event loop."""

    def __init__(self, place: Place, requests: Counter[str], connections: int, *, answer_within_s: float) -> None:
        """Create without connecting. `requests` counts calls. Raises InvalidOption for an invalid endpoint or proxy."""
        self._requests = requests
        self._endpoint, self._credentials, self._answer_within_s = place.endpoint, place.credentials, answer_within_s
        self._host = place.endpoint.host
        self._key: Credentials | None = None
        self._key_asked = 0.0
        self._asking = asyncio.Lock()
        self._signed: dict[bytes, _SignedRequest] = {}
        try:
            self._transport = Transport(place.endpoint.url, connections=connections, ca_bundle=place.endpoint.ca_bundle)
        except ValueError as error:
            raise InvalidOption("endpoint", str(error)) from error

    async def close(self) -> None:
        """Wait for running calls, without cancelling: SQS would hide the messages of a cancelled receive."""
        await self._transport.close()

    async def call(
        self, action: str, body: bytes, *, wait_s: float = 0, room: WaitForRoom | None = None, repeated: bool = False
    ) -> HttpResponse:
        """Make one attempt of a call, and return its response. Raises QueueBusy, TooManyInFlight or QueueRefused.

        With `repeated` the signature is kept for later calls with the same body.
        """
        request = self._build_request(self._get_kept_key() or await self._get_key(), action, body, repeated=repeated)
        self._requests[action] += 1
        within_s = SEND_WITHIN_S if action == "SendMessageBatch" else wait_s + self._answer_within_s
        try:
            answer = await self._transport.exchange(
                request, within_s=within_s, repeatable=action in REPEATABLE, room=room
            )
        except TimeoutError as error:
            raise QueueBusy(action, "Timeout", f"within {within_s} s: {error}") from error
        except ssl.SSLCertVerificationError as error:  # Retries would fail.
            raise QueueRefused(action, type(error).__name__, f"{self._host}: {error}") from error
        except OSError as error:
            raise QueueBusy(action, type(error).__name__, str(error)) from error
        if answer.status == HTTP_OK:
            return answer
        refusal = classify_error(action, answer)
        if refusal.code in EXPIRED:
            self._key = None  # The retry asks botocore for new credentials.
        raise refusal

    def _build_request(self, key: Credentials, action: str, body: bytes, *, repeated: bool) -> bytes:
        now = time.time()
        if repeated and (kept := self._signed.get(body)) and kept.is_fresh(key, now):
            return kept.request
        headers = sign_headers(
            key,
            host=self._host,
            path="/",
            region=self._endpoint.region,
            service="sqs",
            target=f"AmazonSQS.{action}",
            body=body,
            at_s=int(now),
        )
        request = self._transport.encode_request(headers, body)
        if repeated:
            self._signed[body] = _SignedRequest(now, key, request)
        return request

    async def _get_key(self) -> Credentials:
        async with self._asking:  # One call at a time asks botocore, which can use the network.
            if kept := self._get_kept_key():
                return kept
            key = await asyncio.to_thread(self._credentials)
            self._key_asked = time.monotonic()
            if self._key is None or key != self._key:  # Kept signatures depend on the key object.
                self._key = key
            return self._key

    def _get_kept_key(self) -> Credentials | None:
        return self._key if time.monotonic() - self._key_asked < CREDENTIALS_FRESH_S else None


@dataclass(frozen=True, slots=True)
class _SignedRequest:
    """A signed request that may be sent again."""

    signed_at: float
    key: Credentials
    request: bytes

    def is_fresh(self, key: Credentials, now: float) -> bool:
        """Whether the request was signed with this key at most SIGNATURE_FRESH_S before or after `now`."""
        return self.key is key and abs(now - self.signed_at) < SIGNATURE_FRESH_S


def classify_error(action: str, answer: HttpResponse) -> QueueError:
    """Build the error for a response other than 200. An unknown error code is classified by its HTTP status."""
    try:
        error_body = orjson.loads(answer.body)
    except orjson.JSONDecodeError:
        error_body = {}
    if not isinstance(error_body, dict):
        error_body = {}
    code = strip_code_prefix(str(error_body.get("__type") or f"HTTP{answer.status}"))
    message = str(error_body.get("message") or error_body.get("Message") or "")
    is_server_s = answer.status >= HTTP_SERVER_ERROR or answer.status == HTTP_TOO_MANY_REQUESTS
    kind: type[QueueError] = QueueRefused
    if code == "OverLimit":
        kind = TooManyInFlight
    elif code in BUSY or code in EXPIRED or is_server_s:
        kind = QueueBusy
    return kind(action, code, message, request_id=answer.headers.get("x-amzn-requestid", ""))


def strip_code_prefix(error_code: str) -> str:
    """Return an error code without a prefix such as `com.amazonaws.sqs#` or `AWS.SimpleQueueService.`."""
    return error_code.rpartition("#")[2].rpartition(".")[2]
