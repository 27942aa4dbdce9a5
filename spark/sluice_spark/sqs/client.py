"""A lean SQS client: asyncio, own transport, own signatures, orjson. Only the calls that the source and the sink make.

boto3 spends 176 µs of CPU per message on receive and delete, this a twentieth: the JSON protocol needs no model of
shapes, and a receive that is the same as the one before not even a new signature.
"""

import asyncio
import logging
import random
import ssl
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Self, TypeVar

import msgspec
import orjson

from sluice_spark.errors import InvalidOption, QueueBusy, QueueError, QueueRefused, TooManyInFlight
from sluice_spark.sqs.access import CredentialsNow, Endpoint
from sluice_spark.sqs.answers import HttpAnswer
from sluice_spark.sqs.received import BATCH_LIMIT, Message, messages_in
from sluice_spark.sqs.signing import Credentials, signed_headers
from sluice_spark.sqs.transport import Room, Transport

log = logging.getLogger(__name__)

ATTEMPTS = 8  # of calls that may give up; with the waits below some 30 seconds
BACK_OFF_FIRST_S = 0.1
BACK_OFF_LIMIT_S = 20.0
ANSWER_WITHIN_S = 10.0  # beyond a receive's own wait
CREDENTIALS_FRESH_S = 60.0  # how often botocore is asked for the key; it refreshes 15 minutes before expiry
SIGNATURE_FRESH_S = 60.0  # a receive's signature is used again: AWS takes one that is up to five minutes old
WARN_EVERY_S = 60.0
HTTP_OK = 200
HTTP_TOO_MANY_REQUESTS = 429
HTTP_SERVER_ERROR = 500

# https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/CommonErrors.html and each call's own list
BUSY = {
    "InternalError", "InternalFailure", "KmsThrottled", "RequestThrottled", "RequestTimeout", "RequestTimeoutException",
    "ServiceUnavailable", "SlowDown", "Throttling", "ThrottlingException", "TooManyRequestsException",
}  # fmt: skip
EXPIRED = {"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired"}
# Done twice they have done the same: sent once more if a kept connection breaks before it answers. Of what is received
# or sent the caller's own attempts decide.
REPEATABLE = {"ChangeMessageVisibilityBatch", "DeleteMessageBatch", "GetQueueAttributes", "GetQueueUrl"}
HANDLE_EXPIRED = {"ReceiptHandleIsInvalid", "InvalidParameterValue", "MessageNotInflight", "InvalidReceiptHandle"}

IDS = tuple(map(str, range(BATCH_LIMIT)))  # of a batch call's entries

Sleep = Callable[[float], Awaitable[None]]
Outcome = TypeVar("Outcome")


@dataclass(frozen=True, slots=True)
class BatchOutcome:
    """What a batch call did not do: `expired` handles are of no use any more, `failed` ones were given up on."""

    expired: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()


ALL_DONE = BatchOutcome()


@dataclass(slots=True)
class Warnings:
    """One line a minute at most of each kind of trouble."""

    clock: Callable[[], float] = time.monotonic
    _said: dict[str, float] = field(default_factory=dict)
    _unsaid: Counter[str] = field(default_factory=Counter)

    def say(self, kind: str, error: Exception) -> None:
        """Log, or count for the next line."""
        now = self.clock()
        if now - self._said.get(kind, -WARN_EVERY_S) < WARN_EVERY_S:
            self._unsaid[kind] += 1
            return
        self._said[kind] = now
        log.warning("retrying: %s (%d more since the last such line)", error, self._unsaid.pop(kind, 0))


class SqsClient:
    """Calls one endpoint on at most `connections` connections. Made and used inside one event loop; `async with`.

    Refusals raise QueueRefused at once. Trouble that may pass is retried with full jitter, ATTEMPTS times and then
    QueueBusy; a receive is left to its caller's loop. Leaving the `async with` waits for the calls under way, and
    cancels none: SQS would have handed out messages that no one took.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        credentials: CredentialsNow,
        *,
        connections: int,
        sleep: Sleep = asyncio.sleep,
        chance: Callable[[], float] = random.random,
        answer_within_s: float = ANSWER_WITHIN_S,
    ) -> None:
        self._endpoint, self._credentials, self._connections = endpoint, credentials, connections
        self._host = endpoint.host
        self._sleep, self._chance, self._answer_within_s = sleep, chance, answer_within_s
        self._key: Credentials | None = None
        self._key_asked = 0.0
        self._asking = asyncio.Lock()
        self._signed: dict[bytes, _Signed] = {}
        self._transport: Transport | None = None
        self._warnings = Warnings()
        self.requests: Counter[str] = Counter()
        self.retries: Counter[str] = Counter()

    async def __aenter__(self) -> Self:
        try:
            self._transport = Transport(
                self._endpoint.url, connections=self._connections, ca_bundle=self._endpoint.ca_bundle
            )
        except ValueError as error:
            raise InvalidOption("endpoint", str(error)) from error
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._transport:
            await self._transport.close()

    async def receive(
        self,
        queue_url: str,
        *,
        wait_s: int,
        most: int = BATCH_LIMIT,
        visibility_s: int | None = None,
        attempt_id: str | None = None,
        room: Room | None = None,
    ) -> Sequence[Message]:
        """Up to `most` messages after at most `wait_s`; a large answer is read once there is `room` for it.

        One attempt: raises QueueBusy, TooManyInFlight or QueueRefused.
        """
        body = (
            _receive_again(queue_url, wait_s, most, visibility_s)
            if attempt_id is None
            else _receive(queue_url, wait_s, most, visibility_s, attempt_id)
        )
        answer = await self._answered("ReceiveMessage", body, wait_s, room, same_again=attempt_id is None)
        return _read("ReceiveMessage", answer, messages_in)

    def delete(self, queue_url: str, handles: Sequence[str]) -> Awaitable[BatchOutcome]:
        """Delete up to ten; what fails is retried by id. No call for none."""
        return self._batch("DeleteMessageBatch", queue_url, handles)

    def release(self, queue_url: str, handles: Sequence[str]) -> Awaitable[BatchOutcome]:
        """Make up to ten visible at once, for whoever receives next."""
        return self._batch("ChangeMessageVisibilityBatch", queue_url, handles, VisibilityTimeout=0)

    async def attributes(self, queue_url: str, *names: str) -> Mapping[str, str]:
        """Ask for the queue's attributes; SQS answers without those that it doesn't have."""
        answer = await self.call("GetQueueAttributes", {"QueueUrl": queue_url, "AttributeNames": list(names)})
        attributes: Mapping[str, str] = answer.get("Attributes") or {}
        return attributes

    async def check_deletion(self, queue_url: str) -> None:
        """Raise QueueRefused unless we may delete: said at the start, not once messages are staged and come back.

        A made-up receipt handle: SQS looks at permissions first, and then refuses the handle, which is all we want to
        hear.
        """
        outcome = await self.delete(queue_url, ["sluice-permission-probe"])
        del outcome  # the entry fails, always: the call's not being refused is the answer

    async def call(self, action: str, request: Mapping[str, Any]) -> dict[str, Any]:
        """One call, with retries."""
        return await self.asked(action, request, _parsed)

    async def asked(
        self, action: str, request: Mapping[str, Any], read: Callable[[str, HttpAnswer], Outcome]
    ) -> Outcome:
        """One call, with retries; `read` makes of its answer what is wanted."""
        body, attempt = orjson.dumps(request), 0
        while True:
            try:
                return read(action, await self._answered(action, body, 0))
            except (QueueBusy, TooManyInFlight) as error:
                attempt += 1
                if attempt == ATTEMPTS:
                    raise
                await self.back_off(attempt, error)

    async def back_off(self, attempt: int, error: QueueError) -> None:
        """Wait before attempt `attempt` + 1, and warn, once a minute per kind."""
        self.retries[error.code] += 1
        self._warnings.say(f"{error.action}:{error.code}", error)
        await self._sleep(back_off_s(attempt, self._chance()))

    async def _batch(self, action: str, queue_url: str, handles: Sequence[str], **more: int) -> BatchOutcome:
        ids = IDS[: len(handles)]
        pending: list[dict[str, Any]] = [
            {"Id": id_, "ReceiptHandle": handle, **more} for id_, handle in zip(ids, handles, strict=True)
        ]
        expired: list[str] = []
        for attempt in range(1, ATTEMPTS + 1):
            if not pending:
                break
            failures = await self.asked(action, {"QueueUrl": queue_url, "Entries": pending}, _failures)
            if not failures:
                return BatchOutcome(expired=tuple(expired)) if expired else ALL_DONE
            by_id = {failure.id: failure for failure in failures}
            failed = [(entry, by_id[entry["Id"]]) for entry in pending if entry["Id"] in by_id]
            expired += [entry["ReceiptHandle"] for entry, failure in failed if failure.is_final]
            pending = [entry for entry, failure in failed if not failure.is_final]
            if pending and attempt < ATTEMPTS:
                await self.back_off(attempt, QueueBusy(action, failures[0].code, f"{len(pending)} entries failed"))
        return BatchOutcome(expired=tuple(expired), failed=tuple(entry["ReceiptHandle"] for entry in pending))

    async def _answered(
        self, action: str, body: bytes, wait_s: float, room: Room | None = None, *, same_again: bool = False
    ) -> HttpAnswer:
        """Have an answer of success. `same_again`: the same bytes are asked often, and keep their signature."""
        if self._transport is None:
            raise RuntimeError("use `async with`")
        key = self._key_kept() or await self._key_now()
        request = self._request(self._transport, key, action, body, same_again=same_again)
        self.requests[action] += 1
        within_s = wait_s + self._answer_within_s
        try:
            answer = await self._transport.exchange(
                request, within_s=within_s, repeatable=action in REPEATABLE, room=room
            )
        except TimeoutError as error:
            raise QueueBusy(action, "Timeout", f"within {within_s} s: {error}") from error
        except ssl.SSLCertVerificationError as error:  # asking again won't make the peer another
            raise QueueRefused(action, type(error).__name__, f"{self._host}: {error}") from error
        except OSError as error:
            raise QueueBusy(action, type(error).__name__, str(error)) from error
        if answer.status == HTTP_OK:
            return self._accepted(action, body, answer)
        refusal = classified(action, answer.status, answer.headers, answer.body)
        if refusal.code in EXPIRED:
            self._key = None  # ask botocore again before the retry, or say that it can't help
        raise refusal

    def _accepted(self, action: str, body: bytes, answer: HttpAnswer) -> HttpAnswer:
        """Look at an answer of success to `body` before it is read. May raise QueueBusy."""
        del action, body
        return answer

    def _request(self, transport: Transport, key: Credentials, action: str, body: bytes, *, same_again: bool) -> bytes:
        now = time.time()
        if same_again and (kept := self._signed.get(body)) and kept.fresh(key, now):
            return kept.request
        headers = signed_headers(
            key,
            host=self._host,
            path="/",
            region=self._endpoint.region,
            service="sqs",
            target=f"AmazonSQS.{action}",
            body=body,
            at_s=int(now),
        )
        request = transport.encoded(headers, body)
        if same_again:
            self._signed[body] = _Signed(now, key, request)
        return request

    async def _key_now(self) -> Credentials:
        if kept := self._key_kept():
            return kept
        async with self._asking:  # one asks, the others wait: botocore may be on the network for this
            if kept := self._key_kept():
                return kept
            key = await asyncio.to_thread(self._credentials)
            self._key_asked = time.monotonic()
            if self._key is None or key != self._key:  # the same object while it is the same: kept signatures go by it
                self._key = key
            return self._key

    def _key_kept(self) -> Credentials | None:
        return self._key if time.monotonic() - self._key_asked < CREDENTIALS_FRESH_S else None


class _Failure(msgspec.Struct, frozen=True, rename="pascal"):
    """Of one entry of a batch call."""

    id: str
    code: str = ""
    sender_fault: bool = False

    @property
    def is_final(self) -> bool:
        """Another try would fail as well."""
        return self.sender_fault or _short(self.code) in HANDLE_EXPIRED


class _Outcome(msgspec.Struct, frozen=True, rename="pascal"):
    """A batch call's answer, as far as it is asked for: what worked is not."""

    failed: tuple[_Failure, ...] | None = None


_OUTCOME = msgspec.json.Decoder(_Outcome)


@dataclass(frozen=True, slots=True)
class _Signed:
    """A request that may be sent again."""

    signed_at: float
    key: Credentials
    request: bytes

    def fresh(self, key: Credentials, now: float) -> bool:
        """Signed with this key, and not long before or (the clock was set) after now."""
        return self.key is key and abs(now - self.signed_at) < SIGNATURE_FRESH_S


def _receive(queue_url: str, wait_s: int, most: int, visibility_s: int | None, attempt_id: str | None = None) -> bytes:
    request: dict[str, Any] = {
        "QueueUrl": queue_url,
        "MaxNumberOfMessages": most,
        "WaitTimeSeconds": wait_s,
        "MessageSystemAttributeNames": ["All"],
        "MessageAttributeNames": ["All"],
    }
    if visibility_s is not None:
        request["VisibilityTimeout"] = visibility_s
    if attempt_id is not None:
        request["ReceiveRequestAttemptId"] = attempt_id
    return orjson.dumps(request)


_receive_again = lru_cache(maxsize=256)(_receive)  # the same bytes, thousands of times a second


def _failures(action: str, answer: HttpAnswer) -> Sequence[_Failure]:
    return (_read(action, answer, _OUTCOME.decode).failed or ()) if answer.body else ()


def _read(action: str, answer: HttpAnswer, decode: Callable[[bytes | memoryview], Outcome]) -> Outcome:
    try:
        return decode(answer.body)
    except ValueError as error:
        raise QueueBusy(action, "NoJson", f"an answer that is none: {bytes(answer.body[:80])!r}") from error


def _parsed(action: str, answer: HttpAnswer) -> dict[str, Any]:
    if not answer.body:
        return {}
    try:
        parsed = orjson.loads(answer.body)
    except orjson.JSONDecodeError as error:
        raise QueueBusy(action, "NoJson", f"an answer that is no JSON: {bytes(answer.body[:80])!r}") from error
    if not isinstance(parsed, dict):
        raise QueueBusy(action, "NoJson", f"an answer that is no JSON object: {bytes(answer.body[:80])!r}")
    return parsed


def back_off_s(attempt: int, chance: float) -> float:
    """Full jitter: https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/."""
    limit: float = min(BACK_OFF_LIMIT_S, BACK_OFF_FIRST_S * 2.0**attempt)
    return chance * limit


def classified(action: str, status: int, headers: Mapping[str, str], body: bytes | memoryview) -> QueueError:
    """Make the error that an answer other than 200 is, with header names in lower case.

    What isn't known is judged by its status.
    """
    try:
        said = orjson.loads(body)
    except orjson.JSONDecodeError:
        said = {}
    if not isinstance(said, dict):
        said = {}
    code = _short(str(said.get("__type") or f"HTTP{status}"))
    message = str(said.get("message") or said.get("Message") or "")
    kind: type[QueueError] = QueueRefused
    if code == "OverLimit":
        kind = TooManyInFlight
    elif code in BUSY or code in EXPIRED or status >= HTTP_SERVER_ERROR or status == HTTP_TOO_MANY_REQUESTS:
        kind = QueueBusy
    return kind(action, code, message, request_id=headers.get("x-amzn-requestid", ""))


def _short(code: str) -> str:
    """`com.amazonaws.sqs#QueueDoesNotExist` and `AWS.SimpleQueueService.NonExistentQueue` by their last word."""
    return code.rpartition("#")[2].rpartition(".")[2]
