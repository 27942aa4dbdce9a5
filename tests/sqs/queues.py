"""What a queue does: visibility, receipt handles, FIFO locks and deduplication. No HTTP, no clock of its own."""

import hashlib
import heapq
import json
import uuid
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks.quotas import quota

IN_FLIGHT_LIMIT = quota("in_flight")
BATCH_LIMIT = quota("batch_messages")
DEDUPLICATION_S = 300.0
SENDER_ID = "AIDAINMEMORY"


class SqsError(Exception):
    """An answer other than success. `code` as in the JSON protocol's `__type`."""

    def __init__(self, code: str, message: str = "", status: int = 400) -> None:
        super().__init__(message or code)
        self.code, self.status = code, status


@dataclass(slots=True, eq=False)
class Stored:
    """A message in a queue. `fixed` is the part of its JSON that never changes, encoded once, when first wanted."""

    id: str
    body: str
    sent_ms: int
    fixed: str = ""
    group: str | None = None
    extra: str = ""
    attributes: str = ""
    received: int = 0
    first_received_ms: int = 0
    visible_at: float = 0.0
    in_flight: bool = False
    deleted: bool = False


@dataclass(slots=True)
class Queue:
    """One queue; every method takes the time `now`, in epoch seconds."""

    name: str
    visibility_s: float = 30.0
    in_flight_limit: int = IN_FLIGHT_LIMIT
    waiting: deque[Stored] = field(default_factory=deque)
    held: dict[str, Stored] = field(default_factory=dict)  # in flight, by message id
    groups: dict[str, deque[Stored]] = field(default_factory=dict)  # FIFO: undeleted, in order
    hidden: list[tuple[float, int, Stored]] = field(default_factory=list)  # heap by the time of reappearing
    known: dict[str, Stored] = field(default_factory=dict)  # every undeleted message
    deduplication: dict[str, tuple[float, str]] = field(default_factory=dict)
    attempts: dict[str, tuple[float, list[str]]] = field(default_factory=dict)
    sequence: int = 0
    prefix: str = field(default_factory=lambda: str(uuid.uuid4())[:-12])  # of its messages' ids

    @property
    def fifo(self) -> bool:
        """As in SQS, the name says it."""
        return self.name.endswith(".fifo")

    def send(self, entry: Mapping[str, Any], now: float) -> str:
        """The new message's id, or the earlier one's where FIFO deduplication finds one."""
        body = entry["MessageBody"]
        group, deduplication = entry.get("MessageGroupId"), None
        if self.fifo:
            if not group:
                raise SqsError("MissingParameter", "The request must contain the parameter MessageGroupId.")
            deduplication = entry.get("MessageDeduplicationId") or hashlib.sha256(body.encode()).hexdigest()
            seen = self.deduplication.get(deduplication)
            if seen and now - seen[0] < DEDUPLICATION_S:
                return seen[1]
        message = self._stored(entry, body, group, deduplication, now)
        if deduplication:
            self.deduplication[deduplication] = (now, message.id)
        delay = float(entry.get("DelaySeconds", 0))
        self._admit(message, now + delay if delay else 0.0)
        return message.id

    def receive(self, limit: int, visibility_s: float | None, now: float, attempt: str | None = None) -> list[Stored]:
        """At most `limit` messages, now in flight. A FIFO group with a message in flight is locked.

        A repeated `attempt` id answers as the first time, as long as none of it became visible or was deleted.
        """
        self._reveal(now)
        again = self._repeated(attempt)
        if again:
            return again
        if len(self.held) >= self.in_flight_limit:
            if self.fifo:
                return []
            raise SqsError("OverLimit", "Too many messages in flight.", 403)
        timeout = self.visibility_s if visibility_s is None else visibility_s
        taken = list(self._next_fifo(limit)) if self.fifo else list(self._next(limit))
        for message in taken:
            self._hold(message, now, timeout)
        if attempt and taken:
            self.attempts[attempt] = (now, [message.id for message in taken])
        return taken

    def delete(self, handle: str, now: float) -> None:
        """As in SQS: a standard queue takes any handle of the message, a FIFO queue only one that still holds it."""
        self._reveal(now)
        identity, _, generation = handle.rpartition(":")
        if not identity or not generation.isdigit():
            raise SqsError("ReceiptHandleIsInvalid", f"The input receipt handle is invalid: {handle[:40]}", 404)
        message = self.known.get(identity)
        if message is None:
            return
        if self.fifo and (not message.in_flight or message.received != int(generation)):
            raise SqsError("InvalidParameterValue", "The receipt handle has expired.")
        message.deleted = True
        del self.known[identity]
        self.held.pop(identity, None)
        if message.group is not None and self.fifo:
            self._forget_in_group(message)

    def change_visibility(self, handle: str, timeout_s: float, now: float) -> None:
        """Zero makes it visible now. Refused when it isn't in flight."""
        self._reveal(now)
        message = self.held.get(handle.rpartition(":")[0])
        if message is None:
            raise SqsError("MessageNotInflight", "The message is not in flight.")
        message.visible_at = now + timeout_s
        heapq.heappush(self.hidden, (message.visible_at, id(message), message))
        self._reveal(now)

    def counts(self, now: float) -> dict[str, int]:
        """Visible, in flight, delayed: these numbers are exact, as SQS's are not."""
        self._reveal(now)
        visible = sum(1 for message in self.known.values() if not message.in_flight and not message.visible_at)
        return {
            "ApproximateNumberOfMessages": visible,
            "ApproximateNumberOfMessagesNotVisible": len(self.held),
            "ApproximateNumberOfMessagesDelayed": len(self.known) - visible - len(self.held),
        }

    def fill(self, bodies: Iterable[str], now: float) -> None:
        """Sends many, quickly."""
        for body in bodies:
            entry = {"MessageBody": body, "MessageGroupId": "fill", "MessageDeduplicationId": uuid.uuid4().hex}
            self._fix(self.known[self.send(entry, now)])  # not while a benchmark receives

    def next_change(self) -> float | None:
        """When a hidden message may reappear: a waiting receive looks again then."""
        return self.hidden[0][0] if self.hidden else None

    def encoded(self, message: Stored) -> str:
        """The message as ReceiveMessage answers it."""
        if not message.fixed:
            self._fix(message)
        return (
            f'{message.fixed},"ReceiptHandle":"{message.id}:{message.received}","Attributes":{{'
            f'"SenderId":"{SENDER_ID}","SentTimestamp":"{message.sent_ms}",'
            f'"ApproximateReceiveCount":"{message.received}",'
            f'"ApproximateFirstReceiveTimestamp":"{message.first_received_ms}"{message.extra}}}{message.attributes}}}'
        )

    def _stored(
        self, entry: Mapping[str, Any], body: str, group: str | None, deduplication: str | None, now: float
    ) -> Stored:
        self.sequence += 1
        identity = f"{self.prefix}{self.sequence:012x}"
        system = {name: value["StringValue"] for name, value in entry.get("MessageSystemAttributes", {}).items()}
        if group:
            system["MessageGroupId"] = group
        if deduplication:
            system["MessageDeduplicationId"] = deduplication
            system["SequenceNumber"] = f"{self.sequence:020d}"
        attributes = entry.get("MessageAttributes")
        return Stored(
            id=identity,
            body=body,
            sent_ms=int(now * 1000),
            group=group,
            extra="".join(f",{json.dumps(name)}:{json.dumps(value)}" for name, value in system.items()),
            attributes=f',"MessageAttributes":{json.dumps(attributes)}' if attributes else "",
        )

    def _fix(self, message: Stored) -> None:
        digest = hashlib.md5(message.body.encode(), usedforsecurity=False).hexdigest()
        message.fixed = f'{{"MessageId":"{message.id}","MD5OfBody":"{digest}","Body":{json.dumps(message.body)}'

    def _admit(self, message: Stored, visible_at: float) -> None:
        self.known[message.id] = message
        if self.fifo and message.group is not None:
            self.groups.setdefault(message.group, deque()).append(message)
        if visible_at:
            message.visible_at = visible_at
            heapq.heappush(self.hidden, (visible_at, id(message), message))
        elif not self.fifo:
            self.waiting.append(message)

    def _hold(self, message: Stored, now: float, timeout_s: float) -> None:
        message.received += 1
        message.first_received_ms = message.first_received_ms or int(now * 1000)
        message.in_flight, message.visible_at = True, now + timeout_s
        self.held[message.id] = message
        heapq.heappush(self.hidden, (message.visible_at, id(message), message))

    def _reveal(self, now: float) -> None:
        while self.hidden and self.hidden[0][0] <= now:
            due, _, message = heapq.heappop(self.hidden)
            if message.deleted or message.visible_at != due:
                continue  # deleted, or its time was changed: a later entry speaks for it
            message.in_flight, message.visible_at = False, 0.0
            self.held.pop(message.id, None)
            if not self.fifo:
                self.waiting.append(message)

    def _next(self, limit: int) -> Iterable[Stored]:
        found = 0
        while self.waiting and found < limit:
            message = self.waiting.popleft()
            if not message.deleted:
                found += 1
                yield message

    def _next_fifo(self, limit: int) -> Iterable[Stored]:
        found = 0
        for group in self.groups.values():
            if any(message.in_flight or message.visible_at for message in group):
                continue
            for message in group:
                if found == limit:
                    return
                found += 1
                yield message

    def _repeated(self, attempt: str | None) -> list[Stored]:
        if attempt is None or attempt not in self.attempts:
            return []
        messages = [self.held.get(identity) for identity in self.attempts[attempt][1]]
        return [message for message in messages if message] if all(messages) else []

    def _forget_in_group(self, message: Stored) -> None:
        group = self.groups[message.group or ""]
        group.remove(message)
        if not group:
            del self.groups[message.group or ""]
