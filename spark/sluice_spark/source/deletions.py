"""Deletion of messages that are durable, many calls at once, and what is known of those that SQS didn't delete."""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from sluice_spark.errors import QueueBusy, SluiceSparkError, TooManyInFlight
from sluice_spark.sqs.client import SqsClient
from sluice_spark.sqs.received import Handles, in_tens

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


class Deletions:
    """Ordered by segment; `confirmed` has the number of a segment all of whose messages SQS deleted."""

    def __init__(self, client: SqsClient, *, at_once: int, confirmed: Callable[[int], None], failed: Failed) -> None:
        self._client, self._at_once, self._confirmed, self._fail = client, at_once, confirmed, failed
        self._orders: deque[tuple[_Deletion, str, Sequence[str]]] = deque()
        self._tasks = Tasks(failed)
        self._failed = 0
        self.left = 0  # messages that are to be deleted

    def order(self, number: int | None, staged: Sequence[Handles]) -> None:
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
                await self._delete(deletion, queue_url, handles)
            except SluiceSparkError as error:
                self._failed += len(handles)
                if not isinstance(error, QueueBusy | TooManyInFlight):
                    self._fail(error)
            finally:
                self.left -= len(handles)

    async def _delete(self, deletion: "_Deletion", queue_url: str, handles: Sequence[str]) -> None:
        outcome = await self._client.delete(queue_url, handles)
        self._failed += len(outcome.failed) + len(outcome.expired)
        deletion.left -= 1
        deletion.whole &= not outcome.failed and not outcome.expired
        if not deletion.left and deletion.whole and deletion.number is not None:
            self._confirmed(deletion.number)


@dataclass(slots=True)
class _Deletion:
    """How far a segment's deletion is."""

    number: int | None
    left: int
    whole: bool = True
