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
    """Deletes messages in segment order. `confirmed` is called with a segment's number once SQS deleted all."""

    def __init__(
        self, client: SqsClient, *, at_once: int, confirmed: Callable[[int], None], failed: ReportError
    ) -> None:
        self._client, self._at_once, self._confirmed, self._fail = client, at_once, confirmed, failed
        self._orders: deque[tuple[_Deletion, str, Sequence[str]]] = deque()
        self._tasks = BackgroundTasks(failed)
        self._failed = 0
        self.remaining = 0  # messages still to be deleted

    def order(self, number: int | None, staged: Sequence[ReceiptHandles]) -> None:
        """Delete messages in the background. Segment `number`, or for None an earlier one, has made them durable."""
        batches = list(handle_batches(staged))
        deletion = _Deletion(number, len(batches))
        for queue_url, handles in batches:
            self.remaining += len(handles)
            self._orders.append((deletion, queue_url, handles))
        for _ in range(min(len(self._orders), self._at_once - len(self._tasks))):
            self._tasks.begin(self._delete_all())

    def take_failed(self) -> int:
        """Return the number of failed deletions since the last call: these messages will be redelivered."""
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

    The messages are kept by segment number.
    """

    messages: int = 0
    _by_number: dict[int, list[ReceiptHandles]] = field(default_factory=dict)

    def hold(self, number: int, handles: Sequence[ReceiptHandles]) -> None:
        """Keep messages until all of segment `number` is committed.

        A redelivered message is held with the newest segment that has rows, which is committed after its own segment.
        """
        self._by_number.setdefault(number, []).extend(handles)
        self.messages += sum(len(queue_handles.receipt_handles) for queue_handles in handles)

    def due(self, committed: Position) -> Iterator[tuple[int, Sequence[ReceiptHandles]]]:
        """Yield and drop the committed segments' messages, which may be deleted now."""
        for number in sorted(number for number in self._by_number if number < committed.segment):
            handles = self._by_number.pop(number)
            self.messages -= sum(len(queue_handles.receipt_handles) for queue_handles in handles)
            yield number, handles

    def all(self) -> Sequence[ReceiptHandles]:
        """List the messages that must stay invisible."""
        return [queue_handles for handles in self._by_number.values() for queue_handles in handles]

    async def keep_invisible(self, client: SqsClient, queue_urls: Sequence[str], visibility_s: int | None) -> None:
        """Extend the visibility timeout, by default the queues' own, whenever half of it has passed, until cancelled.

        A message that becomes visible nevertheless is redelivered and recognised. Raises the client's errors except
        QueueBusy, as the next heartbeat may succeed.
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
