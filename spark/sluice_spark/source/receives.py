"""Receives from some queues: on as many connections as their answers ask for, as far as there is room.

What becomes of the messages is the caller's: a receiver beside the driver goes on until it is told to end, a task until
its segment is full or the queues are empty.
"""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sluice_spark.errors import QueueBusy, TooManyInFlight
from sluice_spark.source.budget import ByteBudget, Expectation, Lease
from sluice_spark.source.fifo import attempt_id_for
from sluice_spark.sqs.client import SqsClient
from sluice_spark.sqs.received import BATCH_LIMIT, Message

FULL_ANSWER = 0.8  # of the messages that were asked for: there is more where this came from
IDLE_CONNECTIONS = 1

Failed = Callable[[BaseException], None]  # told what ends the run
Clock = Callable[[], float]


class Tasks:
    """Some work that is under way in the loop. What any of it fails by is told."""

    def __init__(self, failed: Failed) -> None:
        self._failed = failed
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Have it done."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    async def wait(self, timeout_s: float | None = None) -> None:
        """Wait until all of it is done, or for so long."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_s)

    def cancel(self) -> None:
        """Let none of it go on."""
        for task in self._tasks:
            task.cancel()

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed(error)


@dataclass(slots=True)
class Fleet:
    """One queue's receives: how many run, how many should, how many answers in a row were empty, and what comes."""

    queue_url: str
    wanted: int = 1
    running: int = 0
    empty_answers: int = 0
    expectation: Expectation = field(default_factory=Expectation)


def connections_wanted(now: int, received: int, limit: int, *, asked: int = BATCH_LIMIT) -> int:
    """Says how many should receive after one answer: more while answers are full, one scout when they are empty."""
    if received >= FULL_ANSWER * asked:
        return min(limit, now + 2)
    return max(IDLE_CONNECTIONS, now // 2) if not received else now


@dataclass(frozen=True, slots=True)
class Ask:
    """One receive: the room that it has, and how many messages it asks for."""

    lease: Lease
    most: int


class Receives(ABC):
    """Receives that are under way, and what each queue's answers say of the next. One event loop's.

    A receive is awaited, never cancelled: SQS would have handed out messages that no one took.
    """

    def __init__(
        self,
        client: SqsClient,
        queue_urls: Iterable[str],
        budget: ByteBudget,
        *,
        connections: int,
        wait_s: int,
        visibility_s: int | None,
        failed: Failed,
        clock: Clock = time.monotonic,
    ) -> None:
        """Receive nothing yet. `connections`: at once, all queues together."""
        self.client, self.budget, self.clock = client, budget, clock
        self.fleets = [Fleet(queue_url) for queue_url in queue_urls]
        self.under_way = Tasks(failed)
        self._limit = max(1, connections // max(1, len(self.fleets)))  # of each queue
        self._wait_s, self._visibility_s = wait_s, visibility_s

    @abstractmethod
    def ask(self, fleet: Fleet, others: int) -> Ask | None:
        """Make one more receive of the queue, beside others of it; None where there is no room or nothing is wanted."""

    @abstractmethod
    def ask_again(self, fleet: Fleet, ask: Ask) -> Ask | None:
        """Make one in the place of a receive that failed."""

    @abstractmethod
    def note_failure(self, fleet: Fleet, ask: Ask, error: QueueBusy | TooManyInFlight) -> None:
        """Note a receive that failed by trouble that may pass. May raise what ends the run."""

    @abstractmethod
    def take(self, fleet: Fleet, messages: Sequence[Message], ask: Ask, since: float) -> Awaitable[None] | None:
        """Have what was received, which may be nothing, and end its lease. `since`: when it was asked for.

        What it returns is awaited without the messages in memory.
        """

    def hire(self) -> None:
        """Begin receives where there is room: those first whose queues have the fewest."""
        for fleet in sorted(self.fleets, key=lambda fleet: fleet.running):
            while fleet.running < fleet.wanted and (ask := self.ask(fleet, fleet.running)):
                fleet.running += 1
                self.under_way.begin(self.receive_in_a_row(fleet, ask))

    async def receive_in_a_row(self, fleet: Fleet, ask: Ask | None) -> None:
        """Receive until there are too many of us, no room, or the end."""
        attempt, attempt_id = 0, attempt_id_for(fleet.queue_url)
        try:
            while ask is not None:
                since = self.clock()  # earlier than SQS hands them out, and so on the safe side of their visibility
                try:
                    messages = await self.client.receive(
                        fleet.queue_url,
                        most=ask.most,
                        wait_s=self._wait_s,
                        visibility_s=self._visibility_s,
                        attempt_id=attempt_id,
                        room=ask.lease.room,
                    )
                except (QueueBusy, TooManyInFlight) as error:
                    ask.lease.end()
                    self.note_failure(fleet, ask, error)
                    attempt += 1
                    await self.client.back_off(attempt, error)
                    ask = self.ask_again(fleet, ask)
                    continue
                fleet.wanted = connections_wanted(fleet.wanted, len(messages), self._limit, asked=ask.most)
                if messages:
                    fleet.empty_answers = 0
                work = self.take(fleet, messages, ask, since)
                del messages  # or they would be here until the next answer is
                if work is not None:
                    await work
                attempt, attempt_id = 0, attempt_id_for(fleet.queue_url)
                ask = self.ask(fleet, fleet.running - 1) if fleet.running <= fleet.wanted else None
        finally:
            if ask is not None:
                ask.lease.end()
            fleet.running -= 1
