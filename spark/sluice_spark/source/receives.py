"""Receives messages from queues, and adapts the number of connections to how full the responses are."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

from sluice_spark.errors import QueueBusy, TooManyInFlight
from sluice_spark.log.planning import ReadLimit
from sluice_spark.options import WAIT_LIMIT_S, Options
from sluice_spark.source.budget import MINIMUM_BYTES, Lease, ResponseEstimate, measure_sizes
from sluice_spark.source.buffer import Buffer, Chunk
from sluice_spark.source.fifo import create_attempt_id
from sluice_spark.source.rate import RateLimit, TokenBucket
from sluice_spark.source.receive_health import ReceiveHealth
from sluice_spark.sqs.client import SqsClient
from sluice_spark.sqs.received import BATCH_LIMIT, Message

FULL_ANSWER = 0.8  # A queue that returns this share of the requested messages probably has more messages.
IDLE_CONNECTIONS = 1
BATCH_WAIT_S = 2  # seconds of a bounded read's long polls; an empty poll ends the read
BILLED_BYTES = 64 * 2**10  # https://aws.amazon.com/sqs/pricing/
TICK_S = 0.05  # how often a stop, room in the backlog and the segment's age are checked

ReportError = Callable[[BaseException], None]  # Its argument is the error that ends the run.


class BackgroundTasks:
    """Background tasks in the event loop. Calls `failed` with each task's error."""

    def __init__(self, failed: ReportError) -> None:
        self._failed = failed
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def begin(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Start a coroutine as a background task."""
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._finish)

    async def wait(self, timeout_s: float | None = None) -> None:
        """Wait until all background tasks are done, or until the timeout."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_s)

    def cancel(self) -> None:
        """Cancel all background tasks."""
        for task in self._tasks:
            task.cancel()

    def _finish(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed(error)


@dataclass(slots=True)
class QueueConnections:
    """One queue's receives: number of running and wanted connections, empty responses, and expected response size."""

    queue_url: str
    desired: int = 1
    running: int = 0
    empty_responses: int = 0
    estimate: ResponseEstimate = field(default_factory=ResponseEstimate)


def compute_connections(connections: int, received: int, limit: int, *, asked: int = BATCH_LIMIT) -> int:
    """Return the wanted number of connections after a response: two more if it was full, half if it was empty."""
    if received >= FULL_ANSWER * asked:
        return min(limit, connections + 2)
    return max(IDLE_CONNECTIONS, connections // 2) if not received else connections


@dataclass(frozen=True, slots=True)
class ReceiveRequest:
    """A receive to send: its leased bytes, and the maximum number of messages."""

    lease: Lease
    max_messages: int


class Receives:
    """Runs the receives of all queues and adapts their number. Used in one event loop.

    Receives continue while Spark isn't too far behind, at the user's rate limit. A receive is awaited and never
    cancelled, because SQS would hide its messages from all consumers for their visibility timeout.
    """

    def __init__(
        self,
        client: SqsClient,
        buffer: Buffer,
        options: Options,
        *,
        until_empty: bool,
        enough: ReadLimit,
        rate_limit: RateLimit | None,
        failed: ReportError,
        ending: Callable[[], bool],
        may: Callable[[], bool],
    ) -> None:
        """Create an idle instance. `ending` returns whether the run ends, `may` whether to receive more messages."""
        self.client, self.buffer, self._budget, self._options = client, buffer, buffer.budget, options
        self.queues = [QueueConnections(queue_url) for queue_url in options.queue_urls]
        self._under_way = BackgroundTasks(failed)
        self._limit = max(1, options.connections // max(1, len(self.queues)))  # maximum connections per queue
        self._wait_s = options.wait_s or (BATCH_WAIT_S if until_empty else WAIT_LIMIT_S)
        self._until_empty, self._enough, self._ending, self._may = until_empty, enough, ending, may
        self._rate = TokenBucket(limit=rate_limit)
        self._messages = self._bytes = 0  # totals of received messages and bytes
        self._billed_payload_chunks = 0  # 64 KiB chunks billed like additional requests
        self.health = ReceiveHealth(options.queue_urls, time.monotonic())
        self.ripe = asyncio.Event()  # set if a segment might be due

    @property
    def received_messages(self) -> int:
        """The number of messages received so far."""
        return self._messages

    @property
    def max_unanswered_messages(self) -> int:
        """The number of messages that running receives can return."""
        return BATCH_LIMIT * len(self._under_way)

    @property
    def is_complete(self) -> bool:
        """Whether a bounded read has received enough messages, or emptied the queues."""
        empty = self._until_empty and all(queue.empty_responses and not queue.running for queue in self.queues)
        return empty or (self._has_enough and not self._under_way)

    @property
    def billed_requests(self) -> int:
        """The number of requests that SQS bills for the calls so far."""
        return sum(self.client.requests.values()) + self._billed_payload_chunks

    def start_receives(self) -> None:
        """Start receives as long as there is room, first for the queues with the fewest running receives."""
        for queue in sorted(self.queues, key=lambda queue: queue.running):
            while queue.running < queue.desired and (request := self._request_receive(queue, queue.running)):
                queue.running += 1
                self._under_way.begin(self._receive_repeatedly(queue, request))

    async def drain(self, stage: Callable[[Sequence[Chunk]], Awaitable[None]]) -> None:
        """Await running receives and stage their messages. Staging also makes room for waiting responses."""
        while True:
            ending = not self._under_way
            with self.buffer.take_all() as chunks:
                if chunks:
                    await stage(chunks)
            if ending:
                return
            await self._under_way.wait(TICK_S)

    async def _receive_repeatedly(self, queue: QueueConnections, request: ReceiveRequest | None) -> None:
        """Receive repeatedly from one queue, until it has too many connections, there is no room, or the run ends.

        At the end, a segment might be due, which makes room. Raises NothingReceived if receives failed for too long.
        """
        attempt, attempt_id = 0, create_attempt_id(queue.queue_url)
        try:
            while request is not None:
                try:
                    messages = await self.client.receive(
                        queue.queue_url,
                        most=request.max_messages,
                        wait_s=self._wait_s,
                        visibility_s=self._options.visibility_s,
                        attempt_id=attempt_id,
                        room=request.lease.await_room,
                    )
                except (QueueBusy, TooManyInFlight) as error:
                    request.lease.end()
                    if isinstance(error, QueueBusy):  # TooManyInFlight is no failure
                        self.health.record_failure(queue.queue_url, time.monotonic(), error)
                        self.health.check(time.monotonic(), self._options.failure_timeout_s)
                    attempt += 1
                    await self.client.back_off(attempt, error)
                    if self._ending() or queue.running > queue.desired:
                        request = None
                    # The retry needs no room, because only a retry gets the messages of a failed FIFO receive.
                    else:
                        request = ReceiveRequest(self._budget.lease(queue.estimate.size), request.max_messages)
                    continue
                queue.desired = compute_connections(
                    queue.desired, len(messages), self._limit, asked=request.max_messages
                )
                self.health.record_success(queue.queue_url, time.monotonic(), len(messages))
                if messages:
                    self._buffer_messages(queue, messages, request)
                    del messages  # Free memory before the next response.
                else:
                    request.lease.end()
                    # An empty response doesn't prove an empty queue: SQS might have asked only some servers.
                    is_empty = not self._until_empty or not await self.client.count([queue.queue_url])
                    queue.empty_responses += is_empty
                attempt, attempt_id = 0, create_attempt_id(queue.queue_url)
                request = self._request_receive(queue, queue.running - 1) if queue.running <= queue.desired else None
        finally:
            if request is not None:
                request.lease.end()
            queue.running -= 1
        self.ripe.set()

    def _request_receive(self, queue: QueueConnections, running_receives: int) -> ReceiveRequest | None:
        """Prepare a receive from the queue, besides `running_receives` running receives; None without room or need.

        A queue's first receive leases only the bytes of a small response. Otherwise many idle queues, or a queue with
        large messages, could take all bytes from other queues. If the response is large, it waits for room.
        """
        if self._ending() or (self._until_empty and queue.empty_responses):
            return None
        size = queue.estimate.size if running_receives else MINIMUM_BYTES
        has_room = self._budget.has_room_to_lease(size) if running_receives else self._budget.fits(size)
        if not has_room or not self._may() or self._has_enough or not self._rate.can_receive(time.monotonic()):
            return None
        return ReceiveRequest(self._budget.lease(size), queue.estimate.max_messages)

    def _buffer_messages(self, queue: QueueConnections, messages: Sequence[Message], request: ReceiveRequest) -> None:
        """Add a response's messages to the buffer, and release the bytes that were leased for its request."""
        queue.empty_responses = 0
        sizes = measure_sizes(messages)
        queue.estimate.update_estimate(sizes.memory, len(messages))
        self._messages, self._bytes = self._messages + len(messages), self._bytes + sizes.bodies
        self._billed_payload_chunks += sizes.payload // BILLED_BYTES
        self._rate.take(len(messages))
        self.buffer.add(queue.queue_url, messages, sizes)
        if self.buffer.is_full:
            self.ripe.set()
        request.lease.end()
        if queue.running < queue.desired:
            self.start_receives()

    @property
    def _has_enough(self) -> bool:
        messages, size = self._enough.messages, self._enough.size
        return (messages is not None and self._messages >= messages) or (size is not None and self._bytes >= size)
