"""Unwraps the envelopes that SNS, EventBridge and S3 notifications put around a payload. Pure.

A body that isn't such an envelope raises ValueError with the reason: the caller reports it as a bad record.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any
from urllib.parse import unquote_plus

import msgspec
import orjson

Dereference = Callable[[str], str]  # turns a body into its payload, perhaps from S3

CONFIRMATIONS = ("SubscriptionConfirmation", "UnsubscribeConfirmation")  # not a set: types can be unhashable
TEST_EVENT = "s3:TestEvent"
REMOVED = "ObjectRemoved:"
CREATED = "ObjectCreated:"
PREFIX = "s3:"  # S3's configuration has this prefix of event names, notifications don't.
# Maps EventBridge's names of S3 events to the names of the same events in S3's notifications.
BY_DETAIL_TYPE = {"Object Created": CREATED, "Object Deleted": REMOVED}
BY_DETAIL = {
    "PutObject": "Put",
    "POST Object": "Post",
    "CopyObject": "Copy",
    "CompleteMultipartUpload": "CompleteMultipartUpload",
    "Permanently Deleted": "Delete",
    "Delete Marker Created": "DeleteMarkerCreated",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Selection:
    """Selects the objects of S3's notifications that become rows."""

    glob: str = "*"  # `*` also matches slashes, unlike in a path
    removed: bool = False


@dataclass(frozen=True, slots=True)
class Payload:
    """A payload, and facts from the fields of its envelopes."""

    body: str
    facts: Mapping[str, str]


def keep_body(body: str) -> str:
    """Return the body unchanged. This function is the dereference function if no payloads are in S3."""
    return body


def unwrap(
    body: str, envelopes: Sequence[str], choice: S3Selection, follow: Dereference = keep_body
) -> Sequence[Payload]:
    """Unwrap a body's payload; with envelope `s3`, one payload for each chosen object. Facts of inner envelopes win.

    Calls `follow` with the body and with the content of each envelope. Raises ValueError for a body that isn't
    such an envelope, and the errors of `follow`.
    """
    payloads = [Payload(follow(body), {})]
    for name in envelopes:
        payloads = [
            Payload(follow(inner.body), {**outer.facts, **inner.facts})
            for outer in payloads
            for inner in _OPEN[name](outer, _parse_object(outer.body), choice)
        ]
    return payloads


def _unwrap_sns(outer: Payload, envelope: Mapping[str, Any], _: S3Selection) -> Sequence[Payload]:
    """Unwrap an SNS notification: https://docs.aws.amazon.com/sns/latest/dg/sns-message-and-json-formats.html."""
    kind, topic = envelope.get("Type"), envelope.get("TopicArn")
    if kind in CONFIRMATIONS:
        raise ValueError(f"SNS's {kind} of {topic}, not a notification: its SubscribeURL subscribes the queue")
    if kind != "Notification" or not isinstance(envelope.get("Message"), str):
        raise ValueError("not an SNS notification (is raw message delivery on?)")
    facts = _select_facts(envelope, "TopicArn", "MessageId", "Subject", "Timestamp", "SequenceNumber")
    return [Payload(envelope["Message"], {**facts, **_cut_fields(outer.body, "MessageAttributes")})]


def _unwrap_eventbridge(outer: Payload, envelope: Mapping[str, Any], _: S3Selection) -> Sequence[Payload]:
    """Unwrap an EventBridge event: https://docs.aws.amazon.com/eventbridge/latest/ref/overiew-event-structure.html."""
    if "detail" not in envelope or "detail-type" not in envelope:
        raise ValueError("not an EventBridge event")
    facts = _select_facts(envelope, "id", "source", "detail-type", "account", "region", "time")
    cut = _cut_fields(outer.body, "resources", "detail")
    return [Payload(cut.pop("detail", "null"), {**facts, **cut})]


def _unwrap_s3(outer: Payload, envelope: Mapping[str, Any], choice: S3Selection) -> Sequence[Payload]:
    """Unwrap a notification from S3, or from EventBridge about S3, into one payload for each distinct chosen object.

    https://docs.aws.amazon.com/AmazonS3/latest/userguide/notification-content-structure.html
    https://docs.aws.amazon.com/AmazonS3/latest/userguide/ev-events.html
    """
    if envelope.get("Event") == TEST_EVENT:
        return []
    records = envelope.get("Records")
    if records is None and "detail-type" in outer.facts:
        listed = [(outer.body, _read_detail_facts(envelope, outer.facts))]
    elif isinstance(records, list):
        texts = msgspec.json.decode(_cut_fields(outer.body, "Records")["Records"], type=list[msgspec.Raw])
        listed = [
            (bytes(text).decode(), read_object_facts(record)) for text, record in zip(texts, records, strict=True)
        ]
    else:
        raise ValueError("not an S3 notification")
    rows: dict[tuple[str | None, ...], Payload] = {}
    for text, facts in listed:
        if facts["event"].startswith(REMOVED) and not choice.removed:
            continue
        if fnmatchcase(facts["key"], choice.glob):
            names = ("event", "bucket", "key", "versionId", "eTag", "sequencer")
            identity = tuple(facts.get(name) for name in names)
            rows.setdefault(identity, Payload(text, facts))
    return list(rows.values())


def read_object_facts(record: Any) -> dict[str, str]:
    """Return facts of an S3 record: event, bucket, key; if present size, eTag, version, time. Raises ValueError."""
    try:
        event = str(record["eventName"]).removeprefix(PREFIX)
        bucket, s3_object = str(record["s3"]["bucket"]["name"]), record["s3"]["object"]
        key = unquote_plus(s3_object["key"], errors="strict")  # S3 form-encodes keys: a plus sign is a space.
        more = _select_facts(s3_object, "size", "eTag", "versionId", "sequencer")
    except (KeyError, TypeError, AttributeError, UnicodeDecodeError) as error:
        raise ValueError(f"not a record of an S3 notification: {error!r}") from error
    return {"event": event, "bucket": bucket, "key": key, **_select_facts(record, "eventTime"), **more}


def _read_detail_facts(detail: Mapping[str, Any], outer: Mapping[str, str]) -> dict[str, str]:
    """Return the facts of an EventBridge event of S3, whose keys aren't encoded."""
    kind = outer["detail-type"]
    how = str(detail.get("deletion-type") or detail.get("reason") or "")
    event = BY_DETAIL_TYPE[kind] + BY_DETAIL.get(how, how) if kind in BY_DETAIL_TYPE else kind.replace(" ", "")
    try:
        bucket, s3_object = str(detail["bucket"]["name"]), detail["object"]
        key = str(s3_object["key"])
        names = {"eTag": "etag", "versionId": "version-id", "size": "size", "sequencer": "sequencer"}
        facts = {"eventTime": outer.get("time"), **{name: s3_object.get(theirs) for name, theirs in names.items()}}
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not an event of S3: {error!r}") from error
    return {"event": event, "bucket": bucket, "key": key, **_select_facts(facts, *facts)}


def _select_facts(values: Mapping[str, Any], *names: str) -> dict[str, str]:
    return {name: str(values[name]) for name in names if values.get(name) is not None}


def _cut_fields(body: str, *names: str) -> dict[str, str]:
    """Cut the JSON of an object's fields out of the body's text, because parsing can change how numbers are written."""
    try:
        fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    return {name: text for name in names if name in fields and (text := bytes(fields[name]).decode()) != "null"}


def _parse_object(body: str) -> Mapping[str, Any]:
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")  # noqa: TRY004  a bad record, as every other
    return value


_OPEN: Mapping[str, Callable[[Payload, Mapping[str, Any], S3Selection], Sequence[Payload]]] = {
    "sns": _unwrap_sns,
    "eventbridge": _unwrap_eventbridge,
    "s3": _unwrap_s3,
}
ENVELOPES = tuple(_OPEN)
