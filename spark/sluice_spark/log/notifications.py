"""Deduplicates the records of S3's event notifications. Pure.

S3 delivers a notification at least once, and two configurations may name one object. The receiver deduplicates before
staging, as only it sees all messages in one order; a retried task then reads the same objects from the staged log.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import orjson
from msgspec.structs import replace

from sluice_spark.formats.envelopes import CREATED, LISTED, S3Choice, parse_utc_time, read_object_facts, unwrap
from sluice_spark.sqs.received import Message, Received, split_messages

RECORDS_LIMIT = 250_000  # that are remembered, the oldest forgotten first
IDENTITY_BYTES = 16
LONG_UPLOAD_S = 24 * 3600.0  # from its beginning, which a list may say, to its end, which a notification says


@dataclass(frozen=True, slots=True, kw_only=True)
class Backfill:
    """The place that was listed, and the time range in epoch seconds of S3's clock, widened by a margin at both ends.

    Whatever was created before `since` is in the list, or was overwritten or removed by then: its notification brings
    nothing. What was created until `until` is in it if it is remembered.
    """

    bucket: str
    prefix: str
    since: float
    until: float | None = None  # not yet done

    def contains(self, facts: Mapping[str, str]) -> bool:
        """Whether the object is in the place that was listed, however it came there."""
        created = facts["event"].startswith(CREATED)
        return created and facts["bucket"] == self.bucket and facts["key"].startswith(self.prefix)

    def must_remember(self, facts: Mapping[str, str]) -> bool:
        """Whether its notification may say a time after `since`: of an upload in parts the list says when it began."""
        at = _epoch_s(facts)
        return at is None or at >= self.since - LONG_UPLOAD_S or "-" in facts.get("eTag", "")


class NotificationDeduplicator:
    """The records of one query's log. Not thread-safe: the receiver's."""

    def __init__(
        self,
        envelopes: Sequence[str],
        choice: S3Choice,
        limit: int = RECORDS_LIMIT,
        backfill: Backfill | None = None,
    ) -> None:
        self._envelopes, self._choice, self._limit = envelopes, choice, limit
        self.backfill = backfill
        self._known: set[bytes] = set()
        self._order: deque[bytes] = deque()

    def identities(self, bodies: Sequence[str]) -> Sequence[bytes | None]:
        """Return the identities of all records in the bodies, in order."""
        all_facts = (facts for body in bodies for facts in read_facts(body, self._envelopes, self._choice))
        return [None if self._can_skip(facts) else record_identity(facts) for facts in all_facts]

    def restore(self, staged: Iterable[bytes | None]) -> None:
        """Replace the known records by these, oldest first."""
        self._known, self._order = set(), deque()
        for identity in staged:
            self._remember(identity)

    def split_new(self, taken: Sequence[Received]) -> tuple[list[Received], list[Received]]:
        """Split messages into those with a new record, or no record, and those whose records are all known.

        The body of a partly known message is reduced to its new records, which are remembered: the caller must
        stage the first list or stop.
        """

        def new(message: Message) -> Message | None:
            body, identities = remove_known_records(message.body, self._envelopes, self._choice, self._knows)
            for identity in identities:
                self._remember(identity)
            return None if body is None else message if body == message.body else replace(message, body=body)

        return split_messages(taken, new)

    def remember_listed(self, found: Iterable[Mapping[str, str]]) -> None:
        """Remember objects of the backfill, as far as their notifications must be told apart from others."""
        for facts in found:
            if not self._can_skip(facts):
                self._remember(record_identity(facts))

    def _can_skip(self, facts: Mapping[str, str]) -> bool:
        return facts["event"] == LISTED and self.backfill is not None and not self.backfill.must_remember(facts)

    def _knows(self, each: bytes | None, facts: Mapping[str, str]) -> bool:
        if each in self._known:
            return True
        at = _epoch_s(facts)
        if self.backfill is None or at is None or not self.backfill.contains(facts):
            return False
        if at < self.backfill.since:
            return True
        until = self.backfill.until
        return until is not None and at <= until and record_identity({**facts, "event": LISTED}) in self._known

    def _remember(self, identity: bytes | None) -> None:
        if identity is None or identity in self._known:
            return
        self._known.add(identity)
        self._order.append(identity)
        while len(self._order) > self._limit:
            self._known.discard(self._order.popleft())


def read_facts(body: str, envelopes: Sequence[str], choice: S3Choice) -> Sequence[Mapping[str, str]]:
    """Read the facts of the selected records, in order; none if the body can't be read."""
    try:
        return [payload.facts for payload in unwrap(body, envelopes, choice)]
    except ValueError:
        return []


def record_identity(facts: Mapping[str, str]) -> bytes | None:
    """Compute an identity that is equal for two records of one event; the sequencer orders the events of a key.

    None if nothing distinguishes the record from a later event: such a record is always new. A listed object has no
    event, and is identified only by its content.
    """
    content = facts.get("versionId") or facts.get("eTag")
    order = facts.get("sequencer") or facts.get("eventTime")
    if facts["event"] == LISTED:
        content, order = facts.get("eTag"), None
    if not content and not order:
        return None
    event = facts["event"] if facts["event"] == LISTED else facts["event"].partition(":")[0]
    names = [event, facts["bucket"], facts["key"], content, order]
    return blake2b(orjson.dumps(names), digest_size=IDENTITY_BYTES).digest()


def remove_known_records(
    body: str,
    envelopes: Sequence[str],
    choice: S3Choice,
    known: Callable[[bytes | None, Mapping[str, str]], bool],
) -> tuple[str | None, Sequence[bytes | None]]:
    """Give a body its new records alone, None if it has none, and their identities.

    `known` has each record's identity and facts.
    Records that aren't chosen stay in it, for a later reader with another choice; so does a body without any.
    """
    records = [(record_identity(facts), facts) for facts in read_facts(body, envelopes, choice)]
    new: list[bytes | None] = []
    for record_id, facts in records:
        if not known(record_id, facts) and (record_id is None or record_id not in new):
            new.append(record_id)
    if records and not new:
        return None, ()
    if len(new) == len(records):
        return body, new
    had: set[bytes | None] = set()

    def is_new(record: Mapping[str, Any]) -> bool:
        facts = read_object_facts(record)
        record_id = record_identity(facts)
        if known(record_id, facts) or (record_id is not None and record_id in had):
            return False
        had.add(record_id)
        return True

    return _rewrite_body(body, envelopes, is_new), new


def _epoch_s(facts: Mapping[str, str]) -> float | None:
    try:
        return parse_utc_time(facts["eventTime"]).timestamp()
    except (KeyError, ValueError):
        return None


def _rewrite_body(body: str, envelopes: Sequence[str], is_new: Callable[[Mapping[str, Any]], bool]) -> str:
    """With the is_new records alone, in the envelopes that it came in."""
    value = orjson.loads(body)
    name, *inner = envelopes
    if name == "sns":
        value["Message"] = _rewrite_body(value["Message"], inner, is_new)
    elif name == "eventbridge":
        value["detail"] = orjson.loads(_rewrite_body(orjson.dumps(value["detail"]).decode(), inner, is_new))
    else:
        value["Records"] = [record for record in value["Records"] if is_new(record)]
    return orjson.dumps(value).decode()
