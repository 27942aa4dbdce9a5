"""Which records of S3's notifications are new. Pure.

S3 delivers a notification at least once, and two configurations may name one object: the receiver asks here before it
stages, as only it sees the messages in one order. Then what is staged says which object is read where, at each retry.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import orjson
from msgspec.structs import replace

from sluice_spark.formats.envelopes import CREATED, LISTED, S3Choice, object_facts, unwrapped, utc_time
from sluice_spark.sqs.received import Message, Received, divided

RECORDS_LIMIT = 250_000  # that are remembered, the oldest forgotten first
IDENTITY_BYTES = 16
LONG_UPLOAD_S = 24 * 3600.0  # from its beginning, which a list may say, to its end, which a notification says


@dataclass(frozen=True, slots=True, kw_only=True)
class Backfill:
    """What was listed, and when, in epoch seconds of S3's clock: both with a margin, on the side of remembering more.

    Whatever was created before `since` is in the list, or was overwritten or removed by then: its notification brings
    nothing. What was created until `until` is in it if it is remembered.
    """

    bucket: str
    prefix: str
    since: float
    until: float | None = None  # not yet done

    def holds(self, facts: Mapping[str, str]) -> bool:
        """Whether the object is in the place that was listed, however it came there."""
        created = facts["event"].startswith(CREATED)
        return created and facts["bucket"] == self.bucket and facts["key"].startswith(self.prefix)

    def must_remember(self, facts: Mapping[str, str]) -> bool:
        """Whether its notification may say a time after `since`: of an upload in parts the list says when it began."""
        at = _epoch_s(facts)
        return at is None or at >= self.since - LONG_UPLOAD_S or "-" in facts.get("eTag", "")


class Notified:
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
        """Of all records in the bodies, in order."""
        found = (facts for body in bodies for facts in facts_in(body, self._envelopes, self._choice))
        return [None if self._needless(facts) else identity(facts) for facts in found]

    def begin(self, staged: Iterable[bytes | None]) -> None:
        """Knows these, oldest first, and no others."""
        self._known, self._order = set(), deque()
        for identity in staged:
            self._remember(identity)

    def sifted(self, taken: Sequence[Received]) -> tuple[list[Received], list[Received]]:
        """First the messages that have something new, or no record at all; then those all of whose records are known.

        A message that is known in part comes with a body of its new records. Remembers them: whoever asks stages what
        comes first, or ends.
        """

        def new(message: Message) -> Message | None:
            body, identities = sift(message.body, self._envelopes, self._choice, self._knows)
            for identity in identities:
                self._remember(identity)
            return None if body is None else message if body == message.body else replace(message, body=body)

        return divided(taken, new)

    def listed(self, found: Iterable[Mapping[str, str]]) -> None:
        """Remember objects of the backfill, as far as their notifications must be told apart from others."""
        for facts in found:
            if not self._needless(facts):
                self._remember(identity(facts))

    def _needless(self, facts: Mapping[str, str]) -> bool:
        return facts["event"] == LISTED and self.backfill is not None and not self.backfill.must_remember(facts)

    def _knows(self, each: bytes | None, facts: Mapping[str, str]) -> bool:
        if each in self._known:
            return True
        at = _epoch_s(facts)
        if self.backfill is None or at is None or not self.backfill.holds(facts):
            return False
        if at < self.backfill.since:
            return True
        until = self.backfill.until
        return until is not None and at <= until and identity({**facts, "event": LISTED}) in self._known

    def _remember(self, identity: bytes | None) -> None:
        if identity is None or identity in self._known:
            return
        self._known.add(identity)
        self._order.append(identity)
        while len(self._order) > self._limit:
            self._known.discard(self._order.popleft())


def facts_in(body: str, envelopes: Sequence[str], choice: S3Choice) -> Sequence[Mapping[str, str]]:
    """Find the records that are chosen, in order; of a body that can't be read none: none of it will be."""
    try:
        return [each.facts for each in unwrapped(body, envelopes, choice)]
    except ValueError:
        return []


def identity(facts: Mapping[str, str]) -> bytes | None:
    """Make the same for two records of one event: its sequencer orders the events of a key.

    None where nothing tells it from a later event: such a record is always new. What was listed has no event, and is
    told by its content alone.
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


def sift(
    body: str,
    envelopes: Sequence[str],
    choice: S3Choice,
    known: Callable[[bytes | None, Mapping[str, str]], bool],
) -> tuple[str | None, Sequence[bytes | None]]:
    """Give a body its new records alone, None if it has none, and their identities.

    `known` has each record's identity and facts.
    Records that aren't chosen stay in it, for a later reader with another choice; so does a body without any.
    """
    found = [(identity(facts), facts) for facts in facts_in(body, envelopes, choice)]
    new: list[bytes | None] = []
    for each, facts in found:
        if not known(each, facts) and (each is None or each not in new):
            new.append(each)
    if found and not new:
        return None, ()
    if len(new) == len(found):
        return body, new
    had: set[bytes | None] = set()

    def wanted(record: Mapping[str, Any]) -> bool:
        facts = object_facts(record)
        each = identity(facts)
        if known(each, facts) or (each is not None and each in had):
            return False
        had.add(each)
        return True

    return _rewritten(body, envelopes, wanted), new


def _epoch_s(facts: Mapping[str, str]) -> float | None:
    try:
        return utc_time(facts["eventTime"]).timestamp()
    except (KeyError, ValueError):
        return None


def _rewritten(body: str, envelopes: Sequence[str], wanted: Callable[[Mapping[str, Any]], bool]) -> str:
    """With the wanted records alone, in the envelopes that it came in."""
    value = orjson.loads(body)
    name, *inner = envelopes
    if name == "sns":
        value["Message"] = _rewritten(value["Message"], inner, wanted)
    elif name == "eventbridge":
        value["detail"] = orjson.loads(_rewritten(orjson.dumps(value["detail"]).decode(), inner, wanted))
    else:
        value["Records"] = [record for record in value["Records"] if wanted(record)]
    return orjson.dumps(value).decode()
