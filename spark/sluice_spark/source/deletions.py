"""Deletes durable messages from their queue, or keeps them invisible by heartbeats until Spark has committed."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from sluice_spark.errors import QueueBusy, SluiceSparkError, TooManyInFlight
from sluice_spark.log.planning import Position
from sluice_spark.source.receives import BackgroundTasks, ReportError
from sluice_spark.sqs.client import SqsClient
from sluice_spark.sqs.received import ReceiptHandles, handle_batches

log = logging.getLogger(__name__)

VISIBILITY = "VisibilityTimeout"


class Deletions:
    """Ordered by segment; `confirmed` has the number of a segment all of whose messages SQS deleted."""

    def __init__(
        self, client: SqsClient, *, at_once: int, confirmed: Callable[[int], None], failed: ReportError
    ) -> None:
        self._client, self._at_once, self._confirmed, self._fail = client, at_once, confirmed, failed
        self._orders: deque[tuple[_Deletion, str, Sequence[str]]] = deque()
        self._tasks = BackgroundTasks(failed)
        self._failed = 0
        self.remaining = 0  # messages that are to be deleted

    def order(self, number: int | None, staged: Sequence[ReceiptHandles]) -> None:
        """Delete these, soon: what is durable as segment `number`, or was before (None)."""
        tens = list(handle_batches(staged))
        deletion = _Deletion(number, len(tens))
        for queue_url, handles in tens:
            self.remaining += len(handles)
            self._orders.append((deletion, queue_url, handles))
        for _ in range(min(len(self._orders), self._at_once - len(self._tasks))):
            self._tasks.begin(self._delete_all())

    def take_failed(self) -> int:
        """Return the number of messages that SQS didn't delete since the last call: they will be redelivered."""
        failed, self._failed = self._failed, 0
        return failed

    async def wait(self) -> None:
        """Wait until all that is ordered is done."""
        while self._tasks:
            await self._tasks.wait()

    def cancel(self) -> None:
        """Let none of it go on."""
        self._tasks.cancel()

    async def _delete_all(self) -> None:
        while self._orders:
            deletion, queue_url, handles = self._orders.popleft()
            try:
                outcome = await self._client.delete(queue_url, handles)
                self._failed += len(outcome.failed) + len(outcome.expired)
                deletion.left -= 1
                deletion.whole &= not outcome.failed and not outcome.expired
                if not deletion.left and deletion.whole and deletion.number is not None:
                    self._confirmed(deletion.number)
            except SluiceSparkError as error:
                self._failed += len(handles)
                if not isinstance(error, QueueBusy | TooManyInFlight):
                    self._fail(error)
            finally:
                self.remaining -= len(handles)


@dataclass(slots=True)
class _Deletion:
    """The progress of a segment's deletion."""

    number: int | None
    left: int
    whole: bool = True


@dataclass(slots=True)
class UncommittedMessages:
    """Messages that are staged but stay in the queue until Spark has committed them: `deleteMode=afterCommit`.

    By segment, in the order of their numbers.
    """

    messages: int = 0
    _by_number: dict[int, list[ReceiptHandles]] = field(default_factory=dict)

    def hold(self, number: int, held: Sequence[ReceiptHandles]) -> None:
        """Keep messages until all of segment `number` is committed.

        A redelivered message comes with the newest segment that has rows: its own is committed no later.
        """
        self._by_number.setdefault(number, []).extend(held)
        self.messages += sum(len(queue_handles.receipt_handles) for queue_handles in held)

    def due(self, committed: Position) -> Iterator[tuple[int, Sequence[ReceiptHandles]]]:
        """Yield what may be deleted now, and hold it no longer."""
        for number in sorted(number for number in self._by_number if number < committed.segment):
            handles = self._by_number.pop(number)
            self.messages -= sum(len(queue_handles.receipt_handles) for queue_handles in handles)
            yield number, handles

    def all(self) -> Sequence[ReceiptHandles]:
        """List what must stay invisible."""
        return [queue_handles for handles in self._by_number.values() for queue_handles in handles]

    async def keep_invisible(self, client: SqsClient, queue_urls: Sequence[str], visibility_s: int | None) -> None:
        """Extend at half the time-out, by default the queues' own, until cancelled.

        A message that expires all the same is redelivered, and known. Raises what the client raises, but QueueBusy: the
        next heartbeat may make up for that.
        """
        if visibility_s is None:
            answers = [await client.attributes(url, VISIBILITY) for url in queue_urls]
            visibility_s = max(1, min(int(answer[VISIBILITY]) for answer in answers))
        while True:
            await asyncio.sleep(visibility_s / 2)
            for queue_url, handles in handle_batches(self.all()):
                try:
                    await client.hide(queue_url, handles, visibility_s)
                except QueueBusy as error:
                    log.warning("messages may become visible before they are committed: %s", error)
