"""Unwraps the envelopes that SNS, EventBridge and S3 notifications put around a payload. Pure.

A body that isn't such an envelope raises ValueError with the reason: the caller reports it as a bad record.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any
from urllib.parse import unquote_plus

import orjson

Dereference = Callable[[str], str]  # from a body to what it stands for

TEST_EVENT = "s3:TestEvent"
REMOVED = "ObjectRemoved:"
CREATED = "ObjectCreated:"
PREFIX = "s3:"  # in the configuration's event names, not in the notifications'
# What EventBridge says of S3's events, by what notifications say: its names and fields are others
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
class S3Choice:
    """Selects the objects of S3's notifications that become rows."""

    glob: str = "*"  # `*` also takes slashes, as in Spark's pathGlobFilter applied to the whole key
    removed: bool = False


@dataclass(frozen=True, slots=True)
class Payload:
    """A payload, and what the envelope said of it."""

    body: str
    facts: Mapping[str, str]


def keep_body(body: str) -> str:
    """Follow nothing: a body stands for itself."""
    return body


def unwrap(body: str, envelopes: Sequence[str], choice: S3Choice, follow: Dereference = keep_body) -> Sequence[Payload]:
    """Unwrap the payloads: one, or with S3 as many as there are chosen objects; facts of inner envelopes win.

    `follow` has the body, and what each envelope held. Raises ValueError for a body that isn't such an envelope, and
    what `follow` raises.
    """
    payloads = [Payload(follow(body), {})]
    for name in envelopes:
        payloads = [
            Payload(follow(inner.body), {**outer.facts, **inner.facts})
            for outer in payloads
            for inner in _OPEN[name](_parse_object(outer.body), outer.facts, choice)
        ]
    return payloads


def _sns(envelope: Mapping[str, Any], _: Mapping[str, str], __: S3Choice) -> Sequence[Payload]:
    """https://docs.aws.amazon.com/sns/latest/dg/sns-message-and-json-formats.html."""
    if envelope.get("Type") != "Notification" or not isinstance(envelope.get("Message"), str):
        raise ValueError("not an SNS notification (is raw message delivery on?)")
    return [Payload(envelope["Message"], _select_facts(envelope, "TopicArn", "MessageId", "Subject", "Timestamp"))]


def _eventbridge(envelope: Mapping[str, Any], _: Mapping[str, str], __: S3Choice) -> Sequence[Payload]:
    """https://docs.aws.amazon.com/eventbridge/latest/ref/overiew-event-structure.html."""
    if "detail" not in envelope or "detail-type" not in envelope:
        raise ValueError("not an EventBridge event")
    facts = _select_facts(envelope, "id", "source", "detail-type", "account", "region", "time")
    return [Payload(orjson.dumps(envelope["detail"]).decode(), facts)]


def _s3(envelope: Mapping[str, Any], outer: Mapping[str, str], choice: S3Choice) -> Sequence[Payload]:
    """https://docs.aws.amazon.com/AmazonS3/latest/userguide/notification-content-structure.html.

    Or the detail of an event that S3 gave EventBridge: https://docs.aws.amazon.com/AmazonS3/latest/userguide/ev-events.html.
    An object that a notification lists twice comes once.
    """
    if envelope.get("Event") == TEST_EVENT:
        return []
    records = envelope.get("Records")
    if records is None and "detail-type" in outer:
        listed = [(envelope, _read_detail_facts(envelope, outer))]
    elif isinstance(records, list):
        listed = [(record, read_object_facts(record)) for record in records]
    else:
        raise ValueError("not an S3 notification")
    rows: dict[tuple[str | None, ...], Payload] = {}
    for record, facts in listed:
        if facts["event"].startswith(REMOVED) and not choice.removed:
            continue
        if fnmatchcase(facts["key"], choice.glob):
            names = ("event", "bucket", "key", "versionId", "eTag", "sequencer")
            identity = tuple(facts.get(name) for name in names)
            rows.setdefault(identity, Payload(orjson.dumps(record).decode(), facts))
    return list(rows.values())


def read_object_facts(record: Any) -> dict[str, str]:
    """Tell what one record of a notification says. Raises ValueError."""
    try:
        event = str(record["eventName"]).removeprefix(PREFIX)
        bucket, s3_object = str(record["s3"]["bucket"]["name"]), record["s3"]["object"]
        key = unquote_plus(s3_object["key"], errors="strict")  # keys come form-encoded: a space is a plus sign
        more = _select_facts(s3_object, "size", "eTag", "versionId", "sequencer")
    except (KeyError, TypeError, AttributeError, UnicodeDecodeError) as error:
        raise ValueError(f"not a record of an S3 notification: {error!r}") from error
    return {"event": event, "bucket": bucket, "key": key, **_select_facts(record, "eventTime"), **more}


def _read_detail_facts(detail: Mapping[str, Any], outer: Mapping[str, str]) -> dict[str, str]:
    """Tell the same of what S3 gave EventBridge, whose keys come as they are."""
    kind = outer["detail-type"]
    how = str(detail.get("deletion-type") or detail.get("reason") or "")
    event = BY_DETAIL_TYPE[kind] + BY_DETAIL.get(how, how) if kind in BY_DETAIL_TYPE else kind.replace(" ", "")
    try:
        bucket, s3_object = str(detail["bucket"]["name"]), detail["object"]
        key = str(s3_object["key"])
        more = {name: s3_object.get(theirs) for name, theirs in (("eTag", "etag"), ("versionId", "version-id"))}
        facts = {
            "eventTime": outer.get("time"),
            **more,
            "size": s3_object.get("size"),
            "sequencer": s3_object.get("sequencer"),
        }
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not an event of S3: {error!r}") from error
    return {"event": event, "bucket": bucket, "key": key, **_select_facts(facts, *facts)}


def _select_facts(values: Mapping[str, Any], *names: str) -> dict[str, str]:
    return {name: str(values[name]) for name in names if values.get(name) is not None}


def _parse_object(body: str) -> Mapping[str, Any]:
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")  # noqa: TRY004  a bad record, as every other
    return value


_OPEN: Mapping[str, Callable[[Mapping[str, Any], Mapping[str, str], S3Choice], Sequence[Payload]]] = {
    "sns": _sns,
    "eventbridge": _eventbridge,
    "s3": _s3,
}
ENVELOPES = tuple(_OPEN)
