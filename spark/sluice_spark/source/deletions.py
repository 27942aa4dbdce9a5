"""Deletes durable messages from their queue, or extends their visibility timeouts until Spark has committed."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from sluice_spark.errors import QueueBusy, SluiceSparkError, TooManyInFlight
from sluice_spark.log.planning import Position
from sluice_spark.source.receives import BackgroundTasks, ReportError
from sluice_spark.sqs.client import SqsClient
from sluice_spark.sqs.received import BATCH_LIMIT, ReceiptHandles, batch_receipt_handles

log = logging.getLogger(__name__)

VISIBILITY = "VisibilityTimeout"
PROBE = "sluice-permission-probe"  # an invalid receipt handle, for tests of permissions
CALL_LEAST_S = 0.001
LIMITED = (
    "at most %d messages are held until they are committed, as a call takes %.0f ms, on %d connections, and the "
    "visibility timeout is %d s: for more, raise maxConnections or visibilityTimeout"
)
UNMEASURED = 2**31
RECEIVED_LIMIT = 100_000  # maximum messages that the receiver holds, by other limits

_Identity = tuple[str, str]  # a message's queue URL and id


class Deletions:
    """Deletes messages in segment order. Calls `confirmed` with a segment's number after deleting all its messages."""

    def __init__(
        self, client: SqsClient, *, at_once: int, confirmed: Callable[[int], None], failed: ReportError
    ) -> None:
        self._client, self._at_once, self._confirmed, self._fail = client, at_once, confirmed, failed
        self._orders: deque[tuple[_Deletion, str, Sequence[str]]] = deque()
        self._tasks = BackgroundTasks(failed)
        self._failed = self._running = 0
        self.remaining = 0  # number of messages to delete

    def order(self, number: int | None, messages: Sequence[ReceiptHandles]) -> None:
        """Delete messages in the background. They are durable in segment `number`; if None, in an earlier segment."""
        batches = list(batch_receipt_handles(messages))
        deletion = _Deletion(number, len(batches))
        for queue_url, handles in batches:
            self.remaining += len(handles)
            self._orders.append((deletion, queue_url, handles))
        # Running tasks are counted, because the set of tasks can contain a finished task, which takes no order.
        for _ in range(min(len(self._orders), self._at_once - self._running)):
            self._running += 1
            self._tasks.begin(self._delete_all())

    def take_failed(self) -> int:
        """Return the number of failed deletions since the last call. SQS will redeliver these messages."""
        failed, self._failed = self._failed, 0
        return failed

    async def wait(self) -> None:
        """Wait until all ordered deletions are done."""
        while self._tasks:
            await self._tasks.wait()

    def cancel(self) -> None:
        """Cancel all running deletions."""
        self._tasks.cancel()

    async def _delete_all(self) -> None:
        while self._orders:
            deletion, queue_url, handles = self._orders.popleft()
            try:
                outcome = await self._client.delete(queue_url, handles)
                self._failed += len(outcome.failed_handles) + len(outcome.expired_handles)
                deletion.pending_batches -= 1
                deletion.all_succeeded &= not outcome.failed_handles and not outcome.expired_handles
                if not deletion.pending_batches and deletion.all_succeeded and deletion.number is not None:
                    self._confirmed(deletion.number)
            except SluiceSparkError as error:
                self._failed += len(handles)
                if not isinstance(error, QueueBusy | TooManyInFlight):
                    self._fail(error)
            finally:
                self.remaining -= len(handles)
        self._running -= 1


@dataclass(slots=True)
class _Deletion:
    """The progress of deleting a segment's messages."""

    number: int | None
    pending_batches: int
    all_succeeded: bool = True


@dataclass(slots=True)
class UncommittedMessages:
    """Messages that are staged but stay in the queue until Spark has committed them: `deleteMode=afterCommit`.

    Heartbeats extend the visibility timeouts, on at most `connections` connections. Used in one event loop.
    """

    connections: int
    limit: int = UNMEASURED  # maximum messages that heartbeats can keep invisible
    _visibility_s: int = 0
    _queue_url: str = ""  # URL of one of the queues
    _warned_limit: int = 2 * RECEIVED_LIMIT  # the limit that the last warning named
    _by_number: dict[int, dict[_Identity, str]] = field(default_factory=dict)  # receipt handles by segment
    _numbers: dict[_Identity, int] = field(default_factory=dict)

    @property
    def messages(self) -> int:
        """The number of messages that heartbeats keep invisible."""
        return len(self._numbers)

    def hold(self, number: int, handles: Sequence[ReceiptHandles]) -> None:
        """Keep messages invisible until segment `number` is committed as a whole. Redelivered messages get new handles.

        For a message that an earlier driver staged, it is the newest segment with rows, which is committed later.
        """
        for queue_handles in handles:
            for pair in zip(queue_handles.message_ids, queue_handles.receipt_handles, strict=True):
                identity = queue_handles.queue_url, pair[0]
                self._by_number.setdefault(self._numbers.setdefault(identity, number), {})[identity] = pair[1]

    def take_committed(self, committed: Position) -> Iterator[tuple[int, Sequence[ReceiptHandles]]]:
        """Yield the messages of committed segments, which can be deleted now, and stop keeping them invisible."""
        for number in sorted(number for number in self._by_number if number < committed.segment):
            held = self._by_number.pop(number)
            for identity in held:
                del self._numbers[identity]
            yield number, _list_handles([held])

    def list_held(self) -> Sequence[ReceiptHandles]:
        """List the messages that must stay invisible."""
        return _list_handles(self._by_number.values())

    async def measure_heartbeat(self, client: SqsClient, queue_urls: Sequence[str], visibility_s: int | None) -> None:
        """Measure how long a heartbeat takes. Sets the visibility timeout: `visibility_s`, or else the queues' lowest.

        Raises QueueRefused if a heartbeat isn't permitted, now instead of after messages are staged.
        """
        if visibility_s is None:
            answers = [await client.get_attributes(url, VISIBILITY) for url in queue_urls]
            visibility_s = max(1, min(int(answer[VISIBILITY]) for answer in answers))
        self._visibility_s, self._queue_url = visibility_s, queue_urls[0]
        began = asyncio.get_running_loop().time()
        for queue_url in queue_urls:
            await client.set_visibility(queue_url, [PROBE], visibility_s)
        self._set_limit((asyncio.get_running_loop().time() - began) / len(queue_urls))

    async def keep_invisible(self, client: SqsClient) -> None:
        """Extend the visibility timeout of all messages whenever half of it has passed, until cancelled.

        If a message becomes visible nevertheless, SQS redelivers the message, and the deduplicator recognises it.
        Raises the client's errors except QueueBusy, as the next heartbeat may succeed.
        """
        clock = asyncio.get_running_loop().time

        async def extend(batches: Iterator[tuple[str, Sequence[str]]]) -> None:
            for queue_url, handles in batches:
                try:
                    await client.set_visibility(queue_url, handles, self._visibility_s)
                except QueueBusy as error:
                    log.warning("messages may become visible before they are committed: %s", error)

        due = clock()
        while True:
            due = max(due + self._visibility_s / 2, clock())
            await asyncio.sleep(due - clock())
            batches = list(batch_receipt_handles(self.list_held()))
            # While heartbeats are too slow nothing is received: measure a probe instead.
            if not self.limit:
                batches.append((self._queue_url, [PROBE]))
            if batches:
                lanes, remaining, began = min(len(batches), self.connections), iter(batches), clock()
                tasks = [asyncio.create_task(extend(remaining)) for _ in range(lanes)]
                # The next round doesn't wait for calls that are retried.
                for task in (await asyncio.wait(tasks, timeout=self._visibility_s / 2))[0]:
                    task.result()
                self._set_limit((clock() - began) / -(-len(batches) // lanes))

    def _set_limit(self, call_s: float) -> None:
        """Limit messages to as many as heartbeats extend in a quarter of the timeout. After a half it would be late."""
        calls = int(self._visibility_s / 4 / max(call_s, CALL_LEAST_S))
        self.limit = self.connections * BATCH_LIMIT * calls
        if self.limit <= self._warned_limit // 2:
            self._warned_limit = self.limit
            log.warning(LIMITED, self.limit, 1000 * call_s, self.connections, self._visibility_s)


def _list_handles(segments: Iterable[Mapping[_Identity, str]]) -> list[ReceiptHandles]:
    by_queue: dict[str, list[str]] = {}
    for held in segments:
        for (queue_url, _), handle in held.items():
            by_queue.setdefault(queue_url, []).append(handle)
    return [ReceiptHandles(queue_url, handles) for queue_url, handles in by_queue.items()]
