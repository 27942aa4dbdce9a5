"""Publishes to a site's exchanges: what `sluice.publish` is.

A message goes to the site's ingress queue, with exchange, key and what SQS has no type for in `x-qpid`. All that can be
known of a message here is checked here, before anything of its batch is sent.
"""

import hashlib
import os
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, NoReturn
from urllib.parse import urlsplit

import msgspec

from sluice.aws.clients import CONFIG, calls
from sluice.batches import MAX_ENTRIES, Entry, Request, standard_round
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

if TYPE_CHECKING:  # boto3-stubs are for the type checker: no program needs them
    from mypy_boto3_sqs import SQSClient

INGRESS_VARIABLE = "SLUICE_INGRESS_URL"
WINDOW = MAX_ENTRIES  # messages that are in memory at once: each may have a megabyte
# https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_MessageAttributeValue.html
MAX_INTEGER = 10**38  # and more digits
MIN_NUMBER, MAX_NUMBER = 1e-128, 1e126
_GROUP = re.compile(r"[!-~]{1,128}")  # as SQS takes it

Attribute = str | int | float | bytes | Value


class Publishing(msgspec.Struct, frozen=True, kw_only=True):
    """A message to be published.

    `headers` are what headers exchanges match: those that SQS has a type for become attributes. `group` is the message
    group at a FIFO ingress; None is one of the exchange and the key, so what has one key stays in order. A FIFO ingress
    takes one `deduplication_id` once in five minutes: so what failed may be published again as it is. `trace_header` is
    of X-Ray; None is the one of the function that publishes, where it is one.
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

    def outgoing(self, *, fifo: bool) -> Outgoing:
        """Make it as SQS takes it. Raises `Malformed` or `TooLarge`, which say what of it can't be."""
        self._check()
        attributes = {name: _attribute(name, value) for name, value in self.attributes.items()}
        typed: dict[str, TypedValue] = {}
        for name, header in self.headers.items():
            value = _native(name, header)
            if name in attributes:
                raise Malformed(f"header {name}: there is an attribute of this name")
            if value is None:
                typed[name] = header
            else:
                attributes[name] = value
        if len(typed) > MAX_HEADERS:
            raise Malformed(f"{len(typed)} headers that SQS has no type for, more than {MAX_HEADERS}")
        if len(attributes) > MAX_OVERFLOW:
            raise Malformed(f"{len(attributes)} attributes, more than {MAX_OVERFLOW}")
        metadata = Metadata(exchange=self.exchange, key=self.key, ttl_ms=self.ttl_ms, headers=typed)
        try:
            sealed = seal_attributes(self.body, attributes, metadata)
        except (ValueError, TypeError) as error:
            raise Malformed(f"headers: {error}") from None
        open_attributes(sealed)  # so nothing is published that no site could read
        of_key = hashlib.sha256(f"{self.exchange}\0{self.key}".encode()).hexdigest()[:32] if fifo else None
        return Outgoing(
            body=self.body,
            attributes=sealed,
            group_id=of_key if self.group is None else self.group,
            deduplication_id=self.deduplication_id if fifo else None,
            trace_header=self.trace_header,
        )

    def _check(self) -> None:
        """Check what can be said without reading headers and attributes. Raises `Malformed`."""
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


def _attribute(name: str, value: Attribute) -> Value:
    """Make the user's attribute, which has to be one as it is. Raises `Malformed`."""
    made = value if isinstance(value, Value) else _native(name, value)
    if made is None or name == ATTRIBUTE:
        raise Malformed(f"attribute {name}: {'the name is taken' if name == ATTRIBUTE else 'SQS has none such'}")
    return made


def _native(name: str, value: TypedValue) -> Value | None:
    """Make the attribute that reads back as this value; None where SQS has none."""
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
    # Integers come back as such, and floats, which have a point or an exponent, too.
    made = Value("Number", repr(value)) if fits else None
    return made if made is not None and type(parse_attribute(made)) is type(value) else None


class BadPublishing(SluiceError):
    """One of several messages that can't be published: nothing from it on was sent."""

    def __init__(self, place: int, fault: Malformed | TooLarge) -> None:
        """`place` counts from 0."""
        super().__init__(f"message {place}: {fault}")
        self.place = place
        self.fault = fault


class NotPublished(DestinationFault):
    """SQS didn't take some of several messages, for now: these, and all from `tried` on, aren't published."""

    def __init__(self, failed: Mapping[int, str], *, tried: int) -> None:
        """`failed` has the reasons by place, from 0; `tried` is how many were sent or failed."""
        first, reason = next(iter(failed.items()))
        super().__init__(f"{len(failed)} of {tried} messages failed, the first is message {first}: {reason}")
        self.failed = failed
        self.tried = tried


class Publisher(msgspec.Struct, frozen=True):
    """Publishes to one ingress queue, of either kind. Safe for threads."""

    ingress_url: str
    client: "SQSClient"

    @classmethod
    def from_environment(cls) -> "Publisher":
        """Publish to the queue that variable `SLUICE_INGRESS_URL` names. Raises `BadSetting` where it doesn't."""
        url = os.environ.get(INGRESS_VARIABLE)
        return cls.at(url) if url else _no_ingress()

    @classmethod
    def at(cls, ingress_url: str) -> "Publisher":
        """Publish with the environment's credentials, in the queue's own region where its URL has one."""
        return cls(ingress_url, _client(_region(ingress_url)))

    @property
    def fifo(self) -> bool:
        """Whether the ingress keeps order."""
        return self.ingress_url.endswith(FIFO_SUFFIX)

    def publish(self, publishing: Publishing) -> str:
        """Publish one, and return SQS's id of it. Raises `Malformed`, `TooLarge`, `QueueGone`, or `CallFailed`."""
        fields = publishing.outgoing(fifo=self.fifo).fields()
        with calls("SendMessage", queue=self.ingress_url):
            return self.client.send_message(QueueUrl=self.ingress_url, **fields)["MessageId"]

    def publish_all(self, publishings: Iterable[Publishing]) -> int:
        """Publish them in order, ten or 1 MiB a request, and return how many there were.

        Stops at the first request that isn't taken whole. Raises `BadPublishing`, `NotPublished`, or `QueueGone`.
        """
        tried = 0
        for request in self._requests(publishings):
            tried += len(request.entries)
            places = [entry.position for entry in request.entries]
            try:
                with calls("SendMessageBatch", queue=self.ingress_url):
                    # boto3's type names every field of an entry; `sluice.message` makes them.
                    done = self.client.send_message_batch(QueueUrl=self.ingress_url, Entries=request.api())  # type: ignore[arg-type]
            except CallFailed as error:
                raise NotPublished(dict.fromkeys(places, str(error)), tried=tried) from error
            if refused := done.get("Failed"):
                failed = {places[int(error["Id"])]: f"{error['Code']}: {error.get('Message', '')}" for error in refused}
                raise NotPublished(dict(sorted(failed.items())), tried=tried)
        return tried

    def _requests(self, publishings: Iterable[Publishing]) -> Iterator[Request]:
        """Nothing is asked for before it is needed, and what comes before a bad message is sent."""
        window: list[Entry] = []
        for place, publishing in enumerate(publishings):
            try:
                outgoing = publishing.outgoing(fifo=self.fifo)
            except (Malformed, TooLarge) as fault:
                yield from standard_round(window)
                raise BadPublishing(place, fault) from fault
            window.append(Entry(position=place, target=self.ingress_url, outgoing=outgoing))
            if len(window) == WINDOW:
                yield from standard_round(window)
                window = []
        yield from standard_round(window)


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
    client: "SQSClient | None" = None,
) -> str:
    """Publish one message to an exchange of the site whose ingress queue this is, and return SQS's id of it.

    `ingress_url` is output `IngressUrl` of stack `SluiceFederation`, or `FifoIngressUrl`, which keeps the order of each
    `group`; None is what variable `SLUICE_INGRESS_URL` says. For the rest see `Publishing`. Raises `Malformed` or
    `TooLarge` for what can't be published, `QueueGone`, `CallFailed`, or `BadSetting`.
    """
    publishing = Publishing(
        exchange=exchange,
        key=key,
        body=body,
        headers=headers or {},
        attributes=attributes or {},
        ttl_ms=ttl_ms,
        group=group,
        trace_header=trace_header,
    )
    url = ingress_url or os.environ.get(INGRESS_VARIABLE) or _no_ingress()
    publisher = Publisher.at(url) if client is None else Publisher(url, client)
    return publisher.publish(publishing)


def _no_ingress() -> NoReturn:
    raise BadSetting(INGRESS_VARIABLE, "isn't set, and no ingress_url is given")


def _region(url: str) -> str | None:
    """From `https://sqs.REGION.amazonaws.com/…`; None for any other address."""
    match = re.fullmatch(r"sqs\.([a-z0-9-]+)\.amazonaws\.com(?:\.cn)?", urlsplit(url).hostname or "")
    return match[1] if match else None


@cache
def _client(region: str | None) -> "SQSClient":
    import boto3  # noqa: PLC0415 - functions bring a client, and start without it

    return boto3.client("sqs", region_name=region, config=CONFIG)
