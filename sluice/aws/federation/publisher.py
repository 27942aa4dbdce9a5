"""Publishes messages to a site's exchanges. `sluice.publish` is its public name.

A message goes to the site's ingress queue. Its attribute `x-qpid` has the exchange, the key, and headers of types that
SQS lacks. Each message is checked as far as possible before any message of its batch is sent.
"""

import hashlib
import os
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import NoReturn

import msgspec

from sluice.aws.client_types import SQSClient
from sluice.aws.clients import CONFIG, calls
from sluice.aws.queues import send_batch
from sluice.aws_rules import parse_queue_url
from sluice.batches import MAX_ENTRIES, Entry, Request, build_standard_round
from sluice.errors import BadSetting, CallFailed, DestinationFault, Malformed, SluiceError, TooLarge
from sluice.federation.matching.exchanges import MAX_NAME_CHARACTERS
from sluice.federation.matching.indexes import MAX_KEY_CHARACTERS
from sluice.federation.matching.metadata import (
    ATTRIBUTE,
    MAX_HEADERS,
    MAX_MS,
    MAX_OVERFLOW,
    Metadata,
    open_attributes,
    seal_attributes,
)
from sluice.federation.matching.typed_values import Headers, TypedValue, parse_attribute
from sluice.message import FIFO_SUFFIX, NOT_TEXT, Outgoing, Value, is_attribute_name

INGRESS_VARIABLE = "SLUICE_INGRESS_URL"
# https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_MessageAttributeValue.html
MAX_INTEGER = 10**38  # SQS accepts numbers of at most 38 digits.
MIN_NUMBER, MAX_NUMBER = 1e-128, 1e126
_GROUP = re.compile(r"[!-~]{1,128}")  # the message group ids that SQS accepts

Attribute = str | int | float | bytes | Value


class PublishRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A message to be published.

    Headers exchanges match `headers`, which become attributes if SQS has their type. `group` is the message group at a
    FIFO ingress; None selects a group for the exchange and key, so messages with one key stay in order. A FIFO ingress
    accepts each `deduplication_id` once in five minutes, so a failed message can be published again unchanged.
    `trace_header` is X-Ray's; None selects the header of the publishing Lambda function, if there is one.
    """

    exchange: str
    key: str = ""
    body: str
    headers: Headers = msgspec.field(default_factory=dict)
    attributes: Mapping[str, Attribute] = msgspec.field(default_factory=dict)
    ttl_ms: int | None = None
    group: str | None = None
    deduplication_id: str = msgspec.field(default_factory=lambda: uuid.uuid4().hex)
    trace_header: str | None = None

    def to_message(self, *, fifo: bool) -> Outgoing:
        """Build the SQS message. Raises `Malformed` or `TooLarge`, whose text names the invalid part."""
        self._check_request()
        attributes = {name: _encode_attribute(name, value) for name, value in self.attributes.items()}
        typed_headers: dict[str, TypedValue] = {}
        for name, header in self.headers.items():
            value = _decode_attribute(name, header)
            if name in attributes:
                raise Malformed(f"header {name}: there is an attribute of this name")
            if value is None:
                typed_headers[name] = header
            else:
                attributes[name] = value
        if len(typed_headers) > MAX_HEADERS:
            raise Malformed(f"{len(typed_headers)} headers that SQS has no type for, more than {MAX_HEADERS}")
        if len(attributes) > MAX_OVERFLOW:
            raise Malformed(f"{len(attributes)} attributes, more than {MAX_OVERFLOW}")
        metadata = Metadata(exchange=self.exchange, key=self.key, ttl_ms=self.ttl_ms, headers=typed_headers)
        try:
            sealed = seal_attributes(self.body, attributes, metadata)
        except (ValueError, TypeError) as error:
            raise Malformed(f"headers: {error}") from None
        open_attributes(sealed)  # this raises an error if no site could read the attributes
        of_key = hashlib.sha256(f"{self.exchange}\0{self.key}".encode()).hexdigest()[:32] if fifo else None
        return Outgoing(
            body=self.body,
            attributes=sealed,
            group_id=of_key if self.group is None else self.group,
            deduplication_id=self.deduplication_id if fifo else None,
            trace_header=self.trace_header,
        )

    def _check_request(self) -> None:
        """Check all of the message except headers and attributes. Raises `Malformed`."""
        if not 1 <= len(self.exchange) <= MAX_NAME_CHARACTERS:
            raise Malformed(f"an exchange's name of {len(self.exchange)} characters, not 1 to {MAX_NAME_CHARACTERS}")
        if len(self.key) > MAX_KEY_CHARACTERS:
            raise Malformed(f"a key of {len(self.key)} characters, more than {MAX_KEY_CHARACTERS}")
        if any("\ud800" <= character <= "\udfff" for character in self.key):
            raise Malformed("key is no Unicode text")
        if not self.body:
            raise Malformed("an empty body: SQS takes none")
        if match := NOT_TEXT.search(self.body):
            raise Malformed(f"the body has {match[0]!r} at character {match.start()}, which SQS doesn't take")
        if self.ttl_ms is not None and not 1 <= self.ttl_ms <= MAX_MS:
            raise Malformed(f"a TTL of {self.ttl_ms} ms, not 1 to {MAX_MS}")
        if self.group is not None and not _GROUP.fullmatch(self.group):
            raise Malformed(f"a group of {len(self.group)} characters: SQS takes 1 to 128 of printable ASCII")


def _encode_attribute(name: str, value: Attribute) -> Value:
    """Convert a user's attribute to SQS's form. Raises `Malformed` if SQS has no type for the value."""
    made = value if isinstance(value, Value) else _decode_attribute(name, value)
    if made is None or name == ATTRIBUTE:
        raise Malformed(f"attribute {name}: {'the name is taken' if name == ATTRIBUTE else 'SQS has none such'}")
    return made


def _decode_attribute(name: str, value: TypedValue) -> Value | None:
    """Convert a header's value to an attribute; None if SQS has no type from which the value can be restored."""
    if name == ATTRIBUTE or not is_attribute_name(name):
        return None
    match value:
        case bool():
            return None
        case bytes():
            return Value("Binary", value) if value else None
        case str():
            return Value("String", value) if value and not NOT_TEXT.search(value) else None
        case int():
            fits = abs(value) < MAX_INTEGER
        case float():
            fits = value == 0 or MIN_NUMBER <= abs(value) <= MAX_NUMBER
        case _:
            return None
    # Sites recognize a float by its point or exponent, so the attribute's text must keep the value's type.
    made = Value("Number", repr(value)) if fits else None
    return made if made is not None and type(parse_attribute(made)) is type(value) else None


class BadPublishRequest(SluiceError):
    """One of several messages is invalid. Neither this message nor any later one was sent."""

    def __init__(self, place: int, fault: Malformed | TooLarge) -> None:
        """Record the error of the message at position `place`, counted from 0."""
        super().__init__(f"message {place}: {fault}")
        self.place = place
        self.fault = fault


class NotPublished(DestinationFault):
    """SQS temporarily refused the messages in `failed`. Messages from position `tried` on weren't sent at all."""

    def __init__(self, failed: Mapping[int, str], *, tried: int) -> None:
        """Record the reasons of failures, by position from 0. `tried` counts messages that were sent or failed."""
        first, reason = next(iter(failed.items()))
        super().__init__(f"{len(failed)} of {tried} messages failed, the first is message {first}: {reason}")
        self.failed = failed
        self.tried = tried


class Publisher(msgspec.Struct, frozen=True):
    """Publishes to one ingress queue, standard or FIFO. Thread-safe."""

    ingress_url: str
    client: SQSClient

    @classmethod
    def from_environment(cls) -> "Publisher":
        """Return a publisher for the queue URL in the variable `SLUICE_INGRESS_URL`. Raises `BadSetting` if unset."""
        return cls.for_url(os.environ.get(INGRESS_VARIABLE) or _raise_no_ingress())

    @classmethod
    def for_url(cls, ingress_url: str) -> "Publisher":
        """Return a publisher with the environment's credentials, in the region that the queue's URL names, if any."""
        queue = parse_queue_url(ingress_url)
        return cls(ingress_url, _get_client(None if queue is None else queue.region))

    @property
    def fifo(self) -> bool:
        """Whether the ingress is a FIFO queue, which keeps messages in order."""
        return self.ingress_url.endswith(FIFO_SUFFIX)

    def publish(self, request: PublishRequest) -> str:
        """Publish a message, and return SQS's id. Raises `Malformed`, `TooLarge`, `QueueGone`, or `CallFailed`."""
        fields = request.to_message(fifo=self.fifo).fields()
        with calls("SendMessage", queue=self.ingress_url):
            return self.client.send_message(QueueUrl=self.ingress_url, **fields)["MessageId"]

    def publish_all(self, requests: Iterable[PublishRequest]) -> int:
        """Publish messages in order, up to ten or 1 MiB in each request, and return their number.

        Stops after the first request with a failed message. Raises `BadPublishRequest`, `NotPublished`, or `QueueGone`.
        """
        tried = 0
        for batch in self._build_batches(requests):
            tried += len(batch.entries)
            places = [entry.position for entry in batch.entries]
            try:
                refused = send_batch(self.client, self.ingress_url, batch.api())
            except CallFailed as error:
                raise NotPublished(dict.fromkeys(places, str(error)), tried=tried) from error
            if refused:
                failed = {places[int(place)]: reason for place, reason in refused.items()}
                raise NotPublished(dict(sorted(failed.items())), tried=tried)
        return tried

    def _build_batches(self, requests: Iterable[PublishRequest]) -> Iterator[Request]:
        """Yield send requests lazily. Messages before an invalid one are sent before its error is raised."""
        entries: list[Entry] = []
        for place, request in enumerate(requests):
            try:
                outgoing = request.to_message(fifo=self.fifo)
            except (Malformed, TooLarge) as fault:
                yield from build_standard_round(entries)
                raise BadPublishRequest(place, fault) from fault
            entries.append(Entry(position=place, target=self.ingress_url, outgoing=outgoing))
            if len(entries) == MAX_ENTRIES:  # few messages are kept in memory, as each may have a megabyte
                yield from build_standard_round(entries)
                entries = []
        yield from build_standard_round(entries)


def publish(
    exchange: str,
    key: str,
    body: str,
    *,
    headers: Headers | None = None,
    attributes: Mapping[str, Attribute] | None = None,
    ttl_ms: int | None = None,
    group: str | None = None,
    trace_header: str | None = None,
    ingress_url: str | None = None,
    client: SQSClient | None = None,
) -> str:
    """Publish one message to an exchange of the site that has this ingress queue, and return SQS's message id.

    `ingress_url` is the output `IngressUrl` of the stack `SluiceFederation`, or `FifoIngressUrl`, which keeps the order
    of each `group`. None selects the environment variable `SLUICE_INGRESS_URL`. `PublishRequest` describes the other
    arguments. Raises `Malformed` or `TooLarge` for an invalid message, `QueueGone`, `CallFailed`, or `BadSetting`.
    """
    publishing = PublishRequest(
        exchange=exchange,
        key=key,
        body=body,
        headers=headers or {},
        attributes=attributes or {},
        ttl_ms=ttl_ms,
        group=group,
        trace_header=trace_header,
    )
    url = ingress_url or os.environ.get(INGRESS_VARIABLE) or _raise_no_ingress()
    publisher = Publisher.for_url(url) if client is None else Publisher(url, client)
    return publisher.publish(publishing)


def _raise_no_ingress() -> NoReturn:
    raise BadSetting(INGRESS_VARIABLE, "isn't set, and no ingress_url is given")


@cache
def _get_client(region: str | None) -> SQSClient:
    import boto3  # noqa: PLC0415 - functions bring a client, and start without it

    return boto3.client("sqs", region_name=region, config=CONFIG)
