"""Bytes that the receiver may hold, those that are on their way to it included. Pure: no clock, no loop.

Bytes count before they are asked for: each receive has a lease of what answers were like lately. An answer that turns
out larger is read no further than its head until there is room for it. So the limit holds whatever comes, and how many
receives are under way follows from it: many of small messages, few of large ones.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from sys import getsizeof
from typing import NamedTuple

from sluice_spark.sqs.received import BATCH_LIMIT, Message, attribute_values

OBJECTS_BYTES = 1024  # of a message beside its body: its id and receipt handle, which stay until it is deleted
# Of what a message takes: as it came and as text, then as text and columns, then as columns and encoded. The third is
# what is free between these in memory, in holes too small for the next
COPIES = 3
EXPECTATION_DECAY = 0.9  # how much of the largest message's size is still expected after the next answer
MINIMUM_BYTES = 16 * 2**10  # of a receive: what a connection keeps for its answers is not counted by itself
# Of large messages fewer are asked for than a receive may bring: at the same price, as SQS bills each 64 KiB, and what
# is held comes and goes in small pieces
ANSWER_BYTES = 2 * 2**20


@dataclass(slots=True)
class Expectation:
    """How many messages to ask a queue for, and the bytes that such a receive takes: by its answers lately."""

    most: int = BATCH_LIMIT
    size: int = MINIMUM_BYTES
    _message_bytes: float = 0.0  # of one: the largest lately, on average over its answer

    def learn(self, size: int, messages: int) -> None:
        """Expect such answers: of `messages`, whose bodies and attributes are of `size`."""
        self._message_bytes = max(size / messages, self._message_bytes * EXPECTATION_DECAY)
        self.most = max(1, min(BATCH_LIMIT, int(ANSWER_BYTES / self._message_bytes)))
        beside = (COPIES - 1) * OBJECTS_BYTES  # is there once
        self.size = max(MINIMUM_BYTES, int((COPIES * self._message_bytes - beside) * self.most))


@dataclass(slots=True, kw_only=True)
class ByteBudget:
    """At most `limit` bytes, but for one answer that is larger by itself."""

    limit: int
    held: int = 0  # in memory: answers that are being read, and what was made of them until it is durable
    leased: int = 0  # receives that aren't answered yet
    _waiting: deque["Lease"] = field(default_factory=deque)

    def full(self, size: int) -> bool:
        """Whether what is held leaves no room for another answer, however many receives wait for one."""
        return bool(self._waiting) or not self.fits(size)

    def open(self, size: int) -> bool:
        """Whether another receive may be asked for."""
        return not (self.held or self.leased) or self.held + self.leased + size <= self.limit

    def lease(self, size: int) -> "Lease":
        """Lease bytes for one receive, from before its request until `Lease.end`."""
        self.leased += size
        return Lease(self, size)

    def hold(self, size: int) -> None:
        """Count what is in memory from now on."""
        self.held += size

    def free(self, size: int) -> None:
        """Release bytes, and grant them to waiting leases in order."""
        self.held -= size
        while self._waiting and self.fits(self._waiting[0].wanted):
            self._waiting.popleft().grant()

    def wait(self, lease: "Lease") -> None:
        """Grant it now, or in its turn."""
        if not self._waiting and self.fits(lease.wanted):
            lease.grant()
        else:
            self._waiting.append(lease)

    def forget(self, lease: "Lease") -> None:
        """Remove the waiting lease of a receive that failed."""
        if lease in self._waiting:
            self._waiting.remove(lease)

    def fits(self, size: int) -> bool:
        """Whether there is room, leases aside: those of unanswered receives may be of empty answers."""
        return not self.held or self.held + size <= self.limit


class Lease:
    """The bytes that one receive may bring."""

    __slots__ = ("_budget", "_go_on", "_held", "size", "wanted")

    def __init__(self, budget: ByteBudget, size: int) -> None:
        self._budget, self.size, self.wanted, self._held = budget, size, 0, 0
        self._go_on: Callable[[], None] = lambda: None

    def room(self, size: int, go_on: Callable[[], None]) -> None:
        """Call `go_on`, now or later, once an answer of `size` bytes may be read."""
        self.wanted, self._go_on = COPIES * size, go_on
        self._budget.wait(self)

    def grant(self) -> None:
        """Count the lease's bytes as held, and let the response be read."""
        self._held = self.wanted
        self._budget.leased -= self.size
        self.size = 0
        self._budget.hold(self._held)
        self._go_on()

    def end(self) -> None:
        """Return all bytes of the lease, at most once: the buffer counts the received messages itself."""
        held, self._held = self._held, 0
        self._budget.leased -= self.size
        self.size = 0
        self._budget.forget(self)
        self._budget.free(held)


class Sizes(NamedTuple):
    """Sizes of messages: characters of bodies, characters with attribute values, and approximate bytes in memory."""

    bodies: int
    payload: int
    texts: int
    objects: int

    @property
    def memory(self) -> int:
        """Bytes of the messages in memory."""
        return self.texts + self.objects

    @property
    def copied(self) -> int:
        """Bytes including all copies of the texts, for messages that stay until those are made."""
        return COPIES * self.texts + self.objects


def measure_sizes(messages: Sequence[Message]) -> Sizes:
    """Measure messages."""
    bodies, attributes = [message.body for message in messages], attribute_values(messages)
    size = sum(map(len, bodies))
    return Sizes(
        bodies=size,
        payload=size + sum(map(len, attributes)),
        # One wide character makes all of a text so wide, and Python keeps its UTF-8 beside what isn't ASCII.
        texts=sum(getsizeof(body) * (1 if body.isascii() else 2) for body in bodies) + sum(map(getsizeof, attributes)),
        objects=OBJECTS_BYTES * (len(messages) + len(attributes)),
    )
