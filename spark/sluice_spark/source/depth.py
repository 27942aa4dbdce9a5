"""How many messages the queues hold: `mode=executors` plans by it."""

import asyncio
import logging
import math
import time
from collections.abc import Callable

from sluice_spark.errors import QueueBusy, TooManyInFlight
from sluice_spark.log.planning import Position
from sluice_spark.options import Options
from sluice_spark.source.reception import Reception
from sluice_spark.sqs.client import SqsClient

log = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0
LOOK_IDLE_S = 5.0
WITHIN_S = 5.0  # of Spark's time: where the queues don't answer, the count before holds


class Depth:
    """Asks where Spark does: each second at most, and less often while there is nothing."""

    def __init__(self, client: Callable[[], SqsClient], options: Options) -> None:
        """Ask nothing yet."""
        self._client, self._options = client, options
        self._reception = Reception(options.queue_urls, time.monotonic())
        self._position: Position | None = None
        self._asked_at, self._pause_s = -math.inf, 0.0
        self.last = 0

    def visible(self, position: Position) -> int:
        """Count the messages that can be received, for a new position as it is now: a batch took some since.

        The first time it is tried whether messages may be deleted. Raises what asking again won't mend.
        """
        if position != self._position or time.monotonic() - self._asked_at >= self._pause_s:
            asyncio.run(self._look(is_first=self._position is None))
            self._position, self._asked_at = position, time.monotonic()
            self._pause_s = LOOK_EVERY_S if self.last else min(LOOK_IDLE_S, self._pause_s + LOOK_EVERY_S)
        return self.last

    async def _look(self, *, is_first: bool) -> None:
        visible = 0
        async with self._client() as client:
            if is_first and self._options.delete:
                await client.check_deletion(self._options.queue_urls)
            for queue_url in self._options.queue_urls:
                try:
                    async with asyncio.timeout(WITHIN_S):
                        visible += await client.count([queue_url])
                except (QueueBusy, TooManyInFlight, TimeoutError) as error:
                    log.warning("the queues' depth stays unknown: %s", error)
                    late = QueueBusy("GetQueueAttributes", "Timeout", f"no answer within {WITHIN_S} s")
                    busy = late if isinstance(error, TimeoutError) else error
                    self._reception.broke(queue_url, time.monotonic(), busy)
                    self._reception.check(time.monotonic(), self._options.patience_s)
                    return
                self._reception.worked(queue_url, time.monotonic(), 0)
        self.last = visible
