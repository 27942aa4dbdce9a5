"""Budget of the bytes that the receiver holds, including responses in transit. Pure: no clock, no event loop.

Bytes count before a request is sent: each receive leases as many bytes as recent responses took. If a response is
larger, only its head is read until there is room. So the limit holds for messages of any size, and the number of
concurrent receives follows from the limit: many for small messages, few for large ones.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from sys import getsizeof
from typing import NamedTuple

from sluice_spark.sqs.received import BATCH_LIMIT, Message, attribute_values

OBJECTS_BYTES = 1024  # bytes per message for id and receipt handle, kept until deletion
# A message is in memory twice: as response and text, as text and columns, or as columns and encoded.
# A third share is for free memory between these copies, in gaps too small for reuse.
COPIES = 3
EXPECTATION_DECAY = 0.9  # After each response the expected message size is multiplied by this factor.
MINIMUM_BYTES = 16 * 2**10  # minimum bytes that a receive leases, including the connection's buffer
# A receive asks for fewer large messages. This costs the same, as SQS bills each 64 KiB, and keeps allocations small.
ANSWER_BYTES = 2 * 2**20


@dataclass(slots=True)
class ResponseEstimate:
    """The number of messages to ask a queue for, and the bytes to lease, estimated from its recent responses."""

    max_messages: int = BATCH_LIMIT
    size: int = MINIMUM_BYTES
    _message_bytes: float = 0.0  # the highest bytes per message of a recent response

    def update_estimate(self, size: int, messages: int) -> None:
        """Update the estimate by a response with `messages` messages, whose bodies and attributes have `size` bytes."""
        self._message_bytes = max(size / messages, self._message_bytes * EXPECTATION_DECAY)
        self.max_messages = max(1, min(BATCH_LIMIT, int(ANSWER_BYTES / self._message_bytes)))
        uncopied_bytes = (COPIES - 1) * OBJECTS_BYTES  # Ids and receipt handles aren't copied.
        self.size = max(MINIMUM_BYTES, int((COPIES * self._message_bytes - uncopied_bytes) * self.max_messages))


@dataclass(slots=True, kw_only=True)
class ByteBudget:
    """A budget of `limit` bytes. Only a single response that is larger than the limit can exceed it."""

    limit: int
    used: int = 0  # bytes of responses being read, and of messages that aren't durable yet
    leased: int = 0  # bytes leased for unanswered receives
    _waiting: deque["Lease"] = field(default_factory=deque)

    def is_full_for(self, size: int) -> bool:
        """Whether there is no room for a response of `size` bytes, or another response already waits for room."""
        return bool(self._waiting) or not self.fits(size)

    def has_room_to_lease(self, size: int) -> bool:
        """Whether there is room to lease `size` bytes for another receive."""
        return not (self.used or self.leased) or self.used + self.leased + size <= self.limit

    def lease(self, size: int) -> "Lease":
        """Lease bytes for one receive, before its request is sent. `Lease.end` returns the bytes to the budget."""
        self.leased += size
        return Lease(self, size)

    def hold(self, size: int) -> None:
        """Count bytes as held in memory, until `free` is called."""
        self.used += size

    def free(self, size: int) -> None:
        """Release bytes, and grant waiting leases in order."""
        self.used -= size
        while self._waiting and self.fits(self._waiting[0].wanted):
            self._waiting.popleft().grant()

    def grant_when_free(self, lease: "Lease") -> None:
        """Grant the lease now if there is room, otherwise after the leases that wait already."""
        if not self._waiting and self.fits(lease.wanted):
            lease.grant()
        else:
            self._waiting.append(lease)

    def remove_waiting(self, lease: "Lease") -> None:
        """Remove the waiting lease of a receive that failed."""
        if lease in self._waiting:
            self._waiting.remove(lease)

    def fits(self, size: int) -> bool:
        """Whether `size` bytes fit besides the bytes in memory. Leased bytes don't count, as responses can be empty."""
        return not self.used or self.used + size <= self.limit


class Lease:
    """The budget's bytes that are reserved for the response to one receive."""

    __slots__ = ("_budget", "_go_on", "_held", "size", "wanted")

    def __init__(self, budget: ByteBudget, size: int) -> None:
        self._budget, self.size, self.wanted, self._held = budget, size, 0, 0
        self._go_on: Callable[[], None] = lambda: None

    def await_room(self, size: int, resume: Callable[[], None]) -> None:
        """Call `resume` when there is room to read a response of `size` bytes, now or later."""
        self.wanted, self._go_on = COPIES * size, resume
        self._budget.grant_when_free(self)

    def grant(self) -> None:
        """Count the bytes of the response as held in memory, and continue reading the response."""
        self._held = self.wanted
        self._budget.leased -= self.size
        self.size = 0
        self._budget.hold(self._held)
        self._go_on()

    def end(self) -> None:
        """Return the lease's bytes to the budget, at most once: the buffer counts received messages by itself."""
        held, self._held = self._held, 0
        self._budget.leased -= self.size
        self.size = 0
        self._budget.remove_waiting(self)
        self._budget.free(held)


class MessageSizes(NamedTuple):
    """Total sizes of messages: bodies' characters, characters including attribute values, estimated bytes in memory."""

    bodies: int
    payload: int
    texts: int
    objects: int

    @property
    def memory(self) -> int:
        """Estimated bytes of the messages in memory."""
        return self.texts + self.objects

    @property
    def memory_with_copies(self) -> int:
        """Estimated bytes of the messages and of later copies of their texts, which exist at the same time."""
        return COPIES * self.texts + self.objects


def measure_sizes(messages: Sequence[Message]) -> MessageSizes:
    """Measure the total sizes of messages."""
    bodies, attributes = [message.body for message in messages], attribute_values(messages)
    size = sum(map(len, bodies))
    return MessageSizes(
        bodies=size,
        payload=size + sum(map(len, attributes)),
        # One wide character widens all of a text in memory, and Python also keeps the UTF-8 form of non-ASCII text.
        texts=sum(getsizeof(body) * (1 if body.isascii() else 2) for body in bodies) + sum(map(getsizeof, attributes)),
        objects=OBJECTS_BYTES * (len(messages) + len(attributes)),
    )
