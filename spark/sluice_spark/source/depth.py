"""How many messages the queues hold, asked in the background.

`mode=executors` plans by it, and never waits for a message.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from sluice_spark.errors import QueueBusy, TooManyInFlight
from sluice_spark.log.planning import Position
from sluice_spark.options import Options
from sluice_spark.source.planned import Looks
from sluice_spark.source.reception import Reception
from sluice_spark.sqs.client import SqsClient

log = logging.getLogger(__name__)

FIRST_WITHIN_S = 30.0  # once, at the start: a queue that is not there is said so then
FRESH_WITHIN_S = 0.5


class Depth:
    """A thread of its own, which ends with the process or with `stop`.

    An error that asking again won't mend is raised by `visible`.
    """

    def __init__(self, client: Callable[[], SqsClient], options: Options) -> None:
        """Begin to ask, and where messages are to be deleted try first whether we may."""
        self._client, self._options = client, options
        self._reception = Reception(options.queue_urls, time.monotonic())
        self._changed = threading.Condition()
        self._questions = self._answered = 0  # an answer is to all questions before it was asked for
        self._wake: Callable[[], None] = lambda: None
        self._error: BaseException | None = None
        self._position: Position | None = None
        self._ending = False
        self.last = 0
        threading.Thread(target=self._thread_main, name="sluice-spark-depth", daemon=True).start()

    def visible(self, position: Position) -> int:
        """How many messages can be received.

        For a new position as it is now, as a batch took some since the last look; or, where that isn't answered soon,
        as it was.
        """
        if position != self._position:
            within_s = FIRST_WITHIN_S if self._position is None else FRESH_WITHIN_S
            self._position = position
            with self._changed:
                self._questions += 1
                wanted = self._questions
                self._wake()
                self._changed.wait_for(lambda: self._answered >= wanted or self._error is not None, within_s)
        if self._error:
            raise self._error
        return self.last

    def stop(self) -> None:
        """Asks no more."""
        with self._changed:
            self._ending = True
            self._wake()

    def _thread_main(self) -> None:
        try:
            asyncio.run(self._run())
        except BaseException as error:  # noqa: BLE001  raised by visible(), in the thread that Spark listens to
            with self._changed:
                self._error = error
                self._changed.notify_all()

    async def _run(self) -> None:
        loop, woken, looks = asyncio.get_running_loop(), asyncio.Event(), Looks()

        def wake() -> None:
            with suppress(RuntimeError):  # the loop has ended, with an error or by `stop`
                loop.call_soon_threadsafe(woken.set)

        self._wake = wake
        async with self._client() as client:
            if self._options.delete:
                await client.check_deletion(self._options.queue_urls)
            while not self._ending:
                woken.clear()
                await self._look(client)
                try:
                    await asyncio.wait_for(woken.wait(), looks.after(self.last))
                except TimeoutError:
                    continue

    async def _look(self, client: SqsClient) -> None:
        questions = self._questions
        visible = 0
        for queue_url in self._options.queue_urls:
            try:
                visible += await client.count([queue_url])
            except (QueueBusy, TooManyInFlight) as error:
                log.warning("the queues' depth stays unknown: %s", error)
                self._reception.broke(queue_url, time.monotonic(), error)
                self._reception.check(time.monotonic(), self._options.patience_s)
                return
            self._reception.worked(queue_url, time.monotonic(), 0)
        with self._changed:
            self.last = visible
            self._answered = questions
            self._changed.notify_all()
