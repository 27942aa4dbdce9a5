"""Receives from some queues: on as many connections as their answers ask for, as far as there is room.

What becomes of the messages is the receiver's.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

from sluice_spark.errors import QueueBusy, TooManyInFlight
from sluice_spark.log.planning import Admission
from sluice_spark.options import WAIT_LIMIT_S, Options
from sluice_spark.source.budget import LEAST_BYTES, Expectation, Lease, sizes_of
from sluice_spark.source.buffer import Buffer
from sluice_spark.source.fifo import attempt_id_for
from sluice_spark.source.rate import Limit, Rate
from sluice_spark.source.receive_health import ReceiveHealth
from sluice_spark.sqs.client import SqsClient
from sluice_spark.sqs.received import BATCH_LIMIT, Message

FULL_ANSWER = 0.8  # of the messages that were asked for: there is more where this came from
IDLE_CONNECTIONS = 1
BATCH_WAIT_S = 2  # a bounded read ends with an empty long poll: not the twenty seconds that suit a stream
BILLED_BYTES = 64 * 2**10  # https://aws.amazon.com/sqs/pricing/
TICK_S = 0.05  # how soon a stop, room in the backlog or a segment that is due by its age is noticed

Failed = Callable[[BaseException], None]  # told what ends the run


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
class QueueConnections:
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


class Receives:
    """Receives that are under way, and what each queue's answers say of the next. One event loop's.

    They go on for as long as Spark isn't too far behind, and at the rate that the user says. A receive is awaited,
    never cancelled: SQS would have handed out messages that no one took.
    """

    def __init__(
        self,
        client: SqsClient,
        buffer: Buffer,
        options: Options,
        *,
        until_empty: bool,
        enough: Admission,
        rate_limit: Limit | None,
        failed: Failed,
        ending: Callable[[], bool],
        may: Callable[[], bool],
    ) -> None:
        """Receive nothing yet. `ending`: whether no more begin. `may`: whether what is staged leaves room for more."""
        self.client, self.buffer, self._budget, self._options = client, buffer, buffer.budget, options
        self.fleets = [QueueConnections(queue_url) for queue_url in options.queue_urls]
        self._under_way = Tasks(failed)
        self._limit = max(1, options.connections // max(1, len(self.fleets)))  # of each queue
        self._wait_s = options.wait_s or (BATCH_WAIT_S if until_empty else WAIT_LIMIT_S)
        self._until_empty, self._enough, self._ending, self._may = until_empty, enough, ending, may
        self._rate = Rate(limit=rate_limit)
        self._messages = self._bytes = 0  # received
        self._payload_chunks = 0  # of what came, beyond the first 64 KiB of an answer: each is billed as a request
        self.reception = ReceiveHealth(options.queue_urls, time.monotonic())
        self.ripe = asyncio.Event()  # a segment may be due

    @property
    def received(self) -> int:
        """How many messages have come so far."""
        return self._messages

    @property
    def over(self) -> bool:
        """Whether a bounded read has all that it is to receive."""
        empty = self._until_empty and all(fleet.empty_answers and not fleet.running for fleet in self.fleets)
        return empty or (self._has_enough and not self._under_way)

    @property
    def billed(self) -> int:
        """How many requests SQS bills so far."""
        return sum(self.client.requests.values()) + self._payload_chunks

    def hire(self) -> None:
        """Begin receives where there is room: those first whose queues have the fewest."""
        for fleet in sorted(self.fleets, key=lambda fleet: fleet.running):
            while fleet.running < fleet.wanted and (ask := self._ask(fleet, fleet.running)):
                fleet.running += 1
                self._under_way.begin(self._receive_in_a_row(fleet, ask))

    async def drain(self) -> None:
        """Await receives under way, and give back what they bring: others of them may wait for the room it takes."""
        while self._under_way:
            await self._under_way.wait(TICK_S)
            await self._release_all()
        await self._release_all()

    async def _release_all(self) -> None:
        with self.buffer.emptied() as chunks:
            await self.client.release([each for chunk in chunks for each in chunk.handles])

    async def _receive_in_a_row(self, fleet: QueueConnections, ask: Ask | None) -> None:
        """Receive until there are too many of us, no room, or the end; then a segment may be due, which makes room."""
        attempt, attempt_id = 0, attempt_id_for(fleet.queue_url)
        try:
            while ask is not None:
                try:
                    messages = await self.client.receive(
                        fleet.queue_url,
                        most=ask.most,
                        wait_s=self._wait_s,
                        visibility_s=self._options.visibility_s,
                        attempt_id=attempt_id,
                        room=ask.lease.room,
                    )
                except (QueueBusy, TooManyInFlight) as error:
                    ask.lease.end()
                    self._note_failure(fleet, error)
                    attempt += 1
                    await self.client.back_off(attempt, error)
                    ask = self._ask_again(fleet, ask)
                    continue
                fleet.wanted = connections_wanted(fleet.wanted, len(messages), self._limit, asked=ask.most)
                self.reception.worked(fleet.queue_url, time.monotonic(), len(messages))
                if messages:
                    self._take(fleet, messages, ask)
                    del messages  # or they would be here until the next answer is
                else:
                    ask.lease.end()
                    await self._note_empty(fleet)
                attempt, attempt_id = 0, attempt_id_for(fleet.queue_url)
                ask = self._ask(fleet, fleet.running - 1) if fleet.running <= fleet.wanted else None
        finally:
            if ask is not None:
                ask.lease.end()
            fleet.running -= 1
        self.ripe.set()

    def _ask(self, fleet: QueueConnections, others: int) -> Ask | None:
        """Make one more receive of the queue, beside others of it; None where there is no room or nothing is wanted.

        The queue's first has no more of the budget than a small answer takes: else many that are idle, or of which one
        had large messages, would keep the others from being asked. A large answer waits for room as any does.
        """
        if self._ending() or (self._until_empty and fleet.empty_answers):
            return None
        size = fleet.expectation.size if others else LEAST_BYTES
        has_room = self._budget.open(size) if others else self._budget.fits(size)
        if not has_room or not self._may() or self._has_enough or not self._rate.open(time.monotonic()):
            return None
        return Ask(self._budget.lease(size), fleet.expectation.most)

    def _ask_again(self, fleet: QueueConnections, ask: Ask) -> Ask | None:
        """Ask in any case: a FIFO queue gives the messages of a receive that failed to none but its retry."""
        if self._ending() or fleet.running > fleet.wanted:
            return None
        return Ask(self._budget.lease(fleet.expectation.size), ask.most)

    def _note_failure(self, fleet: QueueConnections, error: QueueBusy | TooManyInFlight) -> None:
        """Tell how receiving goes. Raises NothingReceived where it has gone badly for too long."""
        if isinstance(error, QueueBusy):  # too many in flight are SQS's answer as any other
            self.reception.broke(fleet.queue_url, time.monotonic(), error)
            self.reception.check(time.monotonic(), self._options.patience_s)

    def _take(self, fleet: QueueConnections, messages: Sequence[Message], ask: Ask) -> None:
        """Put messages into the buffer, and end their lease."""
        fleet.empty_answers = 0
        sizes = sizes_of(messages)
        fleet.expectation.learn(sizes.memory, len(messages))
        self._messages, self._bytes = self._messages + len(messages), self._bytes + sizes.bodies
        self._payload_chunks += sizes.payload // BILLED_BYTES
        self._rate.took(len(messages))
        self.buffer.add(fleet.queue_url, messages, sizes)
        if self.buffer.whole:
            self.ripe.set()
        ask.lease.end()
        if fleet.running < fleet.wanted:
            self.hire()

    async def _note_empty(self, fleet: QueueConnections) -> None:
        """Ask the queue's own count: an empty answer alone ends nothing, as SQS may have asked too few of its hosts."""
        fleet.empty_answers += not self._until_empty or not await self.client.count([fleet.queue_url])

    @property
    def _has_enough(self) -> bool:
        messages, size = self._enough.messages, self._enough.size
        return (messages is not None and self._messages >= messages) or (size is not None and self._bytes >= size)
