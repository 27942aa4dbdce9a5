"""Deduplicates the records of S3's event notifications. Pure.

S3 delivers a notification at least once, and two configurations may name one object. The receiver deduplicates before
staging, because only the receiver sees all messages in one order. Retried tasks read the staged log.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any

import msgspec
import orjson
from msgspec.structs import replace

from sluice_spark.formats.envelopes import S3Selection, read_object_facts, unwrap
from sluice_spark.sqs.received import Message, Received, split_messages

RECORDS_LIMIT = 250_000  # maximum number of remembered record identities; the oldest are forgotten first
IDENTITY_BYTES = 16


class NotificationDeduplicator:
    """Remembers the S3 event records in one query's log. Not thread-safe: only the receiver uses this class."""

    def __init__(self, envelopes: Sequence[str], choice: S3Selection, limit: int = RECORDS_LIMIT) -> None:
        self._envelopes, self._choice, self._limit = envelopes, choice, limit
        self._known: set[bytes | None] = set()
        self._order: deque[bytes | None] = deque()

    def list_identities(self, bodies: Sequence[str]) -> Sequence[bytes | None]:
        """Return the identities of all S3 event records in the bodies, in order."""
        all_facts = (facts for body in bodies for facts in read_facts(body, self._envelopes, self._choice))
        return [record_identity(facts) for facts in all_facts]

    def restore(self, identities: Iterable[bytes | None]) -> None:
        """Replace the known record identities by these, oldest first."""
        self._known, self._order = set(), deque()
        for identity in identities:
            self._remember(identity)

    def split_new_messages(self, received: Sequence[Received]) -> tuple[list[Received], list[Received]]:
        """Split messages: returns messages with new records or no records, then messages with only known records.

        A body with both loses known records. New records are remembered: the caller must stage the first list or stop.
        """

        def keep_new_records(message: Message) -> Message | None:
            body, identities = remove_known_records(message.body, self._envelopes, self._choice, self._known)
            for identity in identities:
                self._remember(identity)
            return None if body is None else message if body == message.body else replace(message, body=body)

        return split_messages(received, keep_new_records)

    def _remember(self, identity: bytes | None) -> None:
        if identity is None or identity in self._known:
            return
        self._known.add(identity)
        self._order.append(identity)
        while len(self._order) > self._limit:
            self._known.discard(self._order.popleft())


def read_facts(body: str, envelopes: Sequence[str], choice: S3Selection) -> Sequence[Mapping[str, str]]:
    """Read the facts of a body's selected records, in order. Returns an empty list if the body can't be read."""
    try:
        return [payload.facts for payload in unwrap(body, envelopes, choice)]
    except ValueError:
        return []


def record_identity(facts: Mapping[str, str]) -> bytes | None:
    """Compute a record's identity, which is equal for two records of one event. The sequencer orders a key's events.

    Returns None if nothing distinguishes the record from a later event. Such a record always counts as new.
    """
    content = facts.get("versionId") or facts.get("eTag")
    order = facts.get("sequencer") or facts.get("eventTime")
    if not content and not order:
        return None
    names = [facts["event"].partition(":")[0], facts["bucket"], facts["key"], content, order]
    return blake2b(orjson.dumps(names), digest_size=IDENTITY_BYTES).digest()


def remove_known_records(
    body: str, envelopes: Sequence[str], choice: S3Selection, known: Collection[bytes | None]
) -> tuple[str | None, Sequence[bytes | None]]:
    """Remove known records from a body. Returns the body (None without new records), and the new records' identities.

    Records that `choice` doesn't select stay in the body, for a later reader with another choice. A body without any
    selected record is returned unchanged.
    """
    records = [record_identity(facts) for facts in read_facts(body, envelopes, choice)]
    seen: set[bytes | None] = set()

    def is_new(record_id: bytes | None) -> bool:
        is_known = record_id is not None and (record_id in known or record_id in seen)
        seen.add(record_id)
        return not is_known

    new = [record_id for record_id in records if is_new(record_id)]
    if records and not new:
        return None, ()
    if len(new) == len(records):
        return body, new
    seen.clear()
    return _cut_records(body, envelopes, lambda record: is_new(record_identity(read_object_facts(record)))), new


def _cut_records(body: str, envelopes: Sequence[str], is_new: Callable[[Mapping[str, Any]], bool]) -> str:
    """Remove the records for which `is_new` is false from the body. All other JSON values keep their text."""
    fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    name, *inner = envelopes
    if name == "sns":
        message = msgspec.json.decode(fields["Message"], type=str)
        fields["Message"] = msgspec.Raw(msgspec.json.encode(_cut_records(message, inner, is_new)))
    elif name == "eventbridge":
        fields["detail"] = msgspec.Raw(_cut_records(bytes(fields["detail"]).decode(), inner, is_new))
    else:
        records = msgspec.json.decode(fields["Records"], type=list[msgspec.Raw])
        new = [text for text in records if is_new(orjson.loads(bytes(text)))]
        fields["Records"] = msgspec.Raw(msgspec.json.encode(new))
    return msgspec.json.encode(fields).decode()
