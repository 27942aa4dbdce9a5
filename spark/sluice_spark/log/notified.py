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

from sluice_spark.formats.envelopes import S3Choice, object_facts, unwrapped
from sluice_spark.sqs.received import Message, Received

RECORDS_LIMIT = 250_000  # that are remembered, the oldest forgotten first
IDENTITY_BYTES = 16


@dataclass(frozen=True, slots=True)
class _NewRecords:
    """A body with its new records alone, None if it has none, and their identities."""

    body: str | None
    identities: Sequence[bytes | None] = ()


class Notified:
    """The records of one query's log. Not thread-safe: the receiver's."""

    def __init__(self, envelopes: Sequence[str], choice: S3Choice, limit: int = RECORDS_LIMIT) -> None:
        self._envelopes, self._choice, self._limit = envelopes, choice, limit
        self._known: set[bytes] = set()
        self._order: deque[bytes] = deque()

    def __len__(self) -> int:
        return len(self._known)

    def identities(self, bodies: Sequence[str]) -> Sequence[bytes | None]:
        """Of all records in the bodies, in order."""
        return [each for body in bodies for each in identities(body, self._envelopes, self._choice)]

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
        fresh: list[Received] = []
        again: list[Received] = []
        for answer in taken:
            new: list[Message] = []
            old: list[Message] = []
            for message in answer.messages:
                found = sift(message.body, self._envelopes, self._choice, self._known.__contains__)
                for identity in found.identities:
                    self._remember(identity)
                if found.body is None:
                    old.append(message)
                else:
                    new.append(message if found.body == message.body else replace(message, body=found.body))
            fresh += [Received(answer.queue_url, new)] if new else []
            again += [Received(answer.queue_url, old)] if old else []
        return fresh, again

    def _remember(self, identity: bytes | None) -> None:
        if identity is None or identity in self._known:
            return
        self._known.add(identity)
        self._order.append(identity)
        while len(self._order) > self._limit:
            self._known.discard(self._order.popleft())


def identities(body: str, envelopes: Sequence[str], choice: S3Choice) -> Sequence[bytes | None]:
    """Of the records that are chosen, in order; of a body that can't be read none: none of it will be."""
    try:
        return [identity(each.facts) for each in unwrapped(body, envelopes, choice)]
    except ValueError:
        return []


def identity(facts: Mapping[str, str]) -> bytes | None:
    """Make the same for two records of one event: its sequencer orders the events of a key.

    None where nothing tells it from a later event: such a record is always new.
    """
    content = facts.get("versionId") or facts.get("eTag")
    order = facts.get("sequencer") or facts.get("eventTime")
    if not content and not order:
        return None
    event = facts["event"].partition(":")[0]
    names = [event, facts["bucket"], facts["key"], content, order]
    return blake2b(orjson.dumps(names), digest_size=IDENTITY_BYTES).digest()


def sift(body: str, envelopes: Sequence[str], choice: S3Choice, known: Callable[[bytes], bool]) -> _NewRecords:
    """Find what is new in a body.

    Records that aren't chosen stay in it, for a later reader with another choice; so does a body without any.
    """
    found = identities(body, envelopes, choice)
    new = [each for each in dict.fromkeys(found) if each is None or not known(each)]
    if found and not new:
        return _NewRecords(None)
    if len(new) == len(found):
        return _NewRecords(body, new)
    stale = set(found).difference(new)

    def wanted(record: Mapping[str, Any]) -> bool:
        each = identity(object_facts(record))
        if each is None or each not in stale:
            stale.add(each)  # a second one in this body
            return True
        return False

    return _NewRecords(_rewritten(body, envelopes, wanted), new)


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
