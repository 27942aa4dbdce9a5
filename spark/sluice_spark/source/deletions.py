"""What becomes of durable messages in their queue: many deletions at once, or heartbeats until Spark has committed."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from sluice_spark.errors import QueueBusy, SluiceSparkError, TooManyInFlight
from sluice_spark.log.planning import Position
from sluice_spark.source.receives import Failed, Tasks
from sluice_spark.sqs.client import SqsClient
from sluice_spark.sqs.received import ReceiptHandles, in_tens

log = logging.getLogger(__name__)

VISIBILITY = "VisibilityTimeout"


class Deletions:
    """Ordered by segment; `confirmed` has the number of a segment all of whose messages SQS deleted."""

    def __init__(self, client: SqsClient, *, at_once: int, confirmed: Callable[[int], None], failed: Failed) -> None:
        self._client, self._at_once, self._confirmed, self._fail = client, at_once, confirmed, failed
        self._orders: deque[tuple[_Deletion, str, Sequence[str]]] = deque()
        self._tasks = Tasks(failed)
        self._failed = 0
        self.left = 0  # messages that are to be deleted

    def order(self, number: int | None, staged: Sequence[ReceiptHandles]) -> None:
        """Delete these, soon: what is durable as segment `number`, or was before (None)."""
        tens = list(in_tens(staged))
        deletion = _Deletion(number, len(tens))
        for queue_url, handles in tens:
            self.left += len(handles)
            self._orders.append((deletion, queue_url, handles))
        for _ in range(min(len(self._orders), self._at_once - len(self._tasks))):
            self._tasks.begin(self._delete_all())

    def take_failed(self) -> int:
        """Count messages that SQS didn't delete, since this was asked last: they will come again."""
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
                self.left -= len(handles)


@dataclass(slots=True)
class _Deletion:
    """How far a segment's deletion is."""

    number: int | None
    left: int
    whole: bool = True


@dataclass(slots=True)
class Held:
    """Messages that are staged but stay in the queue until Spark has committed them: `deleteMode=afterCommit`.

    By segment, in the order of their numbers.
    """

    messages: int = 0
    _by_number: dict[int, list[ReceiptHandles]] = field(default_factory=dict)

    def hold(self, number: int, held: Sequence[ReceiptHandles]) -> None:
        """Until all of segment `number` is committed.

        A redelivered message comes with the newest segment that has rows: its own is committed no later.
        """
        self._by_number.setdefault(number, []).extend(held)
        self.messages += sum(len(each.receipt_handles) for each in held)

    def due(self, committed: Position) -> Iterator[tuple[int, Sequence[ReceiptHandles]]]:
        """Yield what may be deleted now, and hold it no longer."""
        for number in sorted(number for number in self._by_number if number < committed.segment):
            held = self._by_number.pop(number)
            self.messages -= sum(len(each.receipt_handles) for each in held)
            yield number, held

    def all(self) -> Sequence[ReceiptHandles]:
        """List what must stay invisible."""
        return [each for held in self._by_number.values() for each in held]

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
            for queue_url, handles in in_tens(self.all()):
                try:
                    await client.hide(queue_url, handles, visibility_s)
                except QueueBusy as error:
                    log.warning("messages may become visible before they are committed: %s", error)
