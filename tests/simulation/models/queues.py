"""One SQS queue: what is visible, in flight and delayed, groups in order, what was sent lately. Times come in.

https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/welcome.html
"""

import hashlib
import heapq
import json
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from random import Random
from typing import Any

from benchmarks.quotas import quota
from tests.simulation.models.errors import ServiceError

DEDUPLICATION_S = 300.0
IN_FLIGHT_LIMIT = quota("in_flight")
REMEMBERED_COUNTS = 64
DEFAULTS = {
    "VisibilityTimeout": "30",
    "MaximumMessageSize": "1048576",
    "MessageRetentionPeriod": "345600",
    "DelaySeconds": "0",
    "ReceiveMessageWaitTimeSeconds": "0",
    "SqsManagedSseEnabled": "true",
}
FIFO_DEFAULTS = {
    "ContentBasedDeduplication": "false",
    "DeduplicationScope": "queue",
    "FifoThroughputLimit": "perQueue",
}


@dataclass(slots=True, eq=False)
class Stored:
    """A message in a queue."""

    message_id: str
    body: str
    attributes: Mapping[str, Any]
    system: dict[str, str]
    sent_at: float
    visible_at: float
    order: int
    group: str | None = None
    receives: int = 0
    first_received_at: float = 0.0
    received_at: float = 0.0
    kept_since: float = 0.0
    handle: str = ""
    in_flight: bool = False
    deleted: bool = False
    copies: int = 0
    size: int = 0

    def __post_init__(self) -> None:
        self.kept_since = self.kept_since or self.sent_at

    def api(self) -> dict[str, Any]:
        """Spell it as ReceiveMessage answers."""
        made = {
            "MessageId": self.message_id,
            "ReceiptHandle": self.handle,
            "Body": self.body,
            "Attributes": self.all_system(),
        }
        if self.attributes:
            made["MessageAttributes"] = dict(self.attributes)
        return made

    def all_system(self) -> dict[str, str]:
        """Give the system attributes, all of them."""
        return {
            **self.system,
            "SentTimestamp": str(int(self.sent_at * 1000)),
            "ApproximateReceiveCount": str(self.receives),
            "ApproximateFirstReceiveTimestamp": str(int(self.first_received_at * 1000)),
        }


@dataclass(slots=True, eq=False)
class Queue:
    """A queue of one account and region."""

    name: str
    url: str
    arn: str
    attributes: dict[str, str]
    made_at: float
    tags: dict[str, str] = field(default_factory=dict)
    messages: dict[int, Stored] = field(default_factory=dict)  # by order: all that aren't deleted
    waiting: list[Stored] = field(default_factory=list)  # standard: visible
    groups: dict[str, list[Stored]] = field(default_factory=dict)  # FIFO: all, in order
    hidden: list[tuple[float, int, Stored]] = field(default_factory=list)
    handles: dict[str, Stored] = field(default_factory=dict)
    # What was answered, by scope and deduplication id.
    known: dict[tuple[str, str], tuple[float, Mapping[str, str]]] = field(default_factory=dict)
    counts: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=REMEMBERED_COUNTS))
    waiters: list[Any] = field(default_factory=list)
    listeners: list[Callable[[], None]] = field(default_factory=list)
    sent: int = 0
    received: int = 0
    # read often
    fifo: bool = False
    visibility_s: float = 30.0
    retention_s: float = 345_600.0
    delay_s: float = 0.0
    dead_letters_arn: str = ""
    max_receives: int = 0

    def __post_init__(self) -> None:
        self.fifo = self.name.endswith(".fifo")
        self.configured()

    def settings(self) -> dict[str, str]:
        """Give its attributes, with those that it has without being given any."""
        return {**DEFAULTS, **(FIFO_DEFAULTS if self.fifo else {}), **self.attributes}

    def configured(self) -> None:
        """Take over what the attributes say."""
        given = self.settings()
        self.visibility_s = float(given["VisibilityTimeout"])
        self.retention_s = float(given["MessageRetentionPeriod"])
        self.delay_s = float(given["DelaySeconds"])
        redrive = json.loads(given.get("RedrivePolicy") or "{}")
        self.dead_letters_arn = redrive.get("deadLetterTargetArn", "")
        self.max_receives = int(redrive.get("maxReceiveCount", 0))

    def repeated(self, group: str | None, deduplication_id: str, now: float) -> Mapping[str, str] | None:
        """Give what was answered when a message was sent with this deduplication id in the last five minutes."""
        scope = (group or "") if self.attributes.get("DeduplicationScope") == "messageGroup" else ""
        seen = self.known.get((scope, deduplication_id))
        return seen[1] if seen is not None and now - seen[0] < DEDUPLICATION_S else None

    def deduplication_id(self, entry: Mapping[str, Any]) -> str:
        """Find what a FIFO message is known by."""
        given = entry.get("MessageDeduplicationId")
        if given is None and self.attributes.get("ContentBasedDeduplication") == "true":
            return hashlib.sha256(entry["MessageBody"].encode()).hexdigest()
        if given is None:
            raise ServiceError(
                "InvalidParameterValue", "The queue should either have ContentBasedDeduplication enabled"
            )
        return str(given)

    def add(self, message: Stored, now: float) -> None:
        """Take a message in."""
        self.messages[message.order] = message
        self.counts.append((now, len(self.messages)))
        if self.fifo:
            self.groups.setdefault(message.group or "", []).append(message)
        if message.visible_at > now:
            heapq.heappush(self.hidden, (message.visible_at, message.order, message))
        elif not self.fifo:
            self.waiting.append(message)

    def remember(self, group: str | None, deduplication_id: str, answer: Mapping[str, str], now: float) -> None:
        """Know it for five minutes."""
        scope = (group or "") if self.attributes.get("DeduplicationScope") == "messageGroup" else ""
        self.known[scope, deduplication_id] = now, answer

    def reveal(self, now: float) -> None:
        """Show again what has been hidden for long enough."""
        while self.hidden and self.hidden[0][0] <= now:
            _, _, message = heapq.heappop(self.hidden)
            if not message.deleted and message.visible_at <= now:
                was_hidden = message.in_flight or message.receives == 0
                message.in_flight = False
                if not self.fifo and was_hidden and message not in self.waiting:
                    self.waiting.append(message)

    def next_visible_s(self, now: float) -> float | None:
        """Find when there is something to receive: now, later, or None for never."""
        self.reveal(now)
        if self.fifo:
            if any(self._ready(group, now) for group in self.groups.values()):
                return now
        elif self.waiting:
            return now
        return self.hidden[0][0] if self.hidden else None

    def take(self, limit: int, now: float, *, chance: Random, shuffled: bool) -> list[Stored]:
        """Choose what a receive gets, the oldest first.

        FIFO: of a group as many as there are, in order, and none of one in flight.
        """
        self.reveal(now)
        if not self.fifo:
            if shuffled:
                chance.shuffle(self.waiting)
            else:
                self.waiting.sort(key=_order)
            taken, self.waiting = self.waiting[:limit], self.waiting[limit:]
            return taken
        groups = sorted(self._receivable(now), key=lambda group: group[0].order)
        if shuffled:
            chance.shuffle(groups)
        return [message for group in groups for message in group][:limit]

    def exhausted(self, now: float) -> list[Stored]:
        """List what could be received, and has been as often as it may."""
        if not self.max_receives:
            return []
        self.reveal(now)
        receivable = [each for group in self._receivable(now) for each in group] if self.fifo else self.waiting
        return sorted((each for each in receivable if each.receives >= self.max_receives), key=_order)

    def _receivable(self, now: float) -> list[list[Stored]]:
        """Of each group that isn't in flight what is visible, up to the first that isn't."""
        ready = (group for group in self.groups.values() if self._ready(group, now))
        return [list(takewhile(lambda message: message.visible_at <= now, group)) for group in ready]

    @staticmethod
    def _ready(group: list[Stored], now: float) -> bool:
        return bool(group) and group[0].visible_at <= now and not any(message.in_flight for message in group)

    def hold(self, message: Stored, visible_at: float, now: float) -> None:
        """Put it in flight."""
        message.receives += 1
        message.first_received_at = message.first_received_at or now
        message.received_at = now
        message.in_flight = True
        message.visible_at = visible_at
        message.handle = f"{self.name}#{message.order}#{message.receives}"
        self.handles[message.handle] = message
        self.received += 1
        heapq.heappush(self.hidden, (visible_at, message.order, message))

    def remove(self, message: Stored, now: float) -> None:
        """Forget a message."""
        message.deleted = True
        self.messages.pop(message.order, None)
        self.counts.append((now, len(self.messages)))
        if self.fifo:
            group = self.groups[message.group or ""]
            group.remove(message)
            if not group:
                del self.groups[message.group or ""]
        elif message in self.waiting:
            self.waiting.remove(message)

    def expired(self, now: float) -> list[Stored]:
        """List what is older than the queue keeps anything."""
        return [message for message in self.messages.values() if now - message.kept_since >= self.retention_s]


def _order(message: Stored) -> int:
    return message.order
