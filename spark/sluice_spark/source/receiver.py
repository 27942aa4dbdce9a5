"""The background receiver: receives on many connections, stages messages as segments, and deletes them.

The receiver is a thread with its own event loop, so that Spark never waits for receives. No message is lost, because a
message is deleted only after its segment is durable.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

import pyarrow as pa

from sluice_spark.errors import SluiceSparkError
from sluice_spark.log.latest import ReceiverStatus, write_status
from sluice_spark.log.planning import Position, ReadLimit
from sluice_spark.log.staging import StagedLog
from sluice_spark.options import Options
from sluice_spark.source.buffer import Buffer, BufferLimits, Chunk
from sluice_spark.source.deletions import Deletions, UncommittedMessages
from sluice_spark.source.rate import build_rate_limit
from sluice_spark.source.receives import TICK_S, BackgroundTasks, Receives
from sluice_spark.sqs.client import SqsClient
from sluice_spark.workers import collect_garbage_rarely, run, switch_threads_quickly, wait_for_event

log = logging.getLogger(__name__)

STATUS_LOOK_S = 1.0
STATUS_EVERY_S, STATUS_QUIET_S = 10.0, 60.0
NO_LIMITS = BufferLimits()
ALL = ReadLimit()


class Receiver:
    """Receives messages in a thread, from `start` until `stop` or an error. Method `check` raises the error.

    The staged log has the messages that can be read.
    """

    def __init__(
        self,
        staged: StagedLog,
        client: Callable[[], SqsClient],
        options: Options,
        *,
        until_empty: bool = False,
        enough: ReadLimit = ALL,
        limits: BufferLimits = NO_LIMITS,
    ) -> None:
        """Create a receiver without starting it. With `until_empty` it ends after every queue was empty.

        `enough` limits a bounded read, which can exceed it a little. Raises InvalidOption if the rate function fails.
        """
        self.staged, self._client, self._options, self._limits = staged, client, options, limits
        self._until_empty, self._enough = until_empty, enough
        self._rate_limit = build_rate_limit(options.rate_limit)
        self._thread = threading.Thread(target=self._thread_main, name="sluice-spark-receiver")
        self._stopping = False  # no Event, which a killed thread could leave locked
        self._error: BaseException | None = None
        self._receive_limit = 0  # maximum number of messages to receive, in total
        self._position = self._committed = Position(0)

    def start(self, position: Position) -> None:
        """Start the thread. Spark has read the log up to `position`."""
        self._position = self._committed = position
        self._thread.start()

    def stop(self) -> None:
        """Stop starting receives. In the background, receives in flight are awaited and their messages staged.

        If the query's next driver has already claimed the log, these messages are made visible instead.
        """
        self._stopping = True

    def join(self, timeout_s: float | None = None) -> None:
        """Wait until the receiver has ended: all received messages are staged and deleted, or visible again."""
        self._thread.join(timeout_s)

    def record_planned(self, position: Position) -> None:
        """Record the end of Spark's newest batch, which makes room in the backlog."""
        self._position = position

    def record_committed(self, position: Position) -> None:
        """Record the position up to which Spark has committed."""
        self._committed = position

    @property
    def is_running(self) -> bool:
        """Whether the receiver's thread is alive."""
        return self._thread.is_alive()

    def check(self) -> None:
        """Raise the error that ended the receiver, if it failed."""
        if self._error:
            raise self._error

    def _thread_main(self) -> None:
        collect_garbage_rarely()
        switch_threads_quickly()
        try:
            run(self._run())
        except BaseException as error:  # noqa: BLE001  reported by check(), in the thread that Spark listens to
            self._error = error

    async def _run(self) -> None:
        async with self._client() as client:
            if self._options.delete:
                await client.check_deletion(self._options.queue_urls)
            await self._receive(client)

    async def _receive(self, client: SqsClient) -> None:
        """Receive messages until the receiver is stopped, has failed or has received enough. Then drain."""
        options, staging = self._options, Staging(client, self.staged, self._options)
        buffer = Buffer(self.staged, self._limits, options.buffer_bytes, options.queue_urls)
        receives = Receives(
            client,
            buffer,
            options,
            until_empty=self._until_empty,
            enough=self._enough,
            rate_limit=self._rate_limit,
            failed=staging.fail,
            ending=lambda: self._stopping or staging.failed is not None,
            may=lambda: (
                receives.received_messages < self._receive_limit
                and receives.max_unanswered_messages + buffer.messages + staging.undeleted_messages
                < min(self._limits.undeleted_messages, staging.uncommitted.limit)
            ),
        )
        background = BackgroundTasks(staging.fail)
        background.begin(write_status_regularly(self.staged, receives, lambda: self._position))
        if options.after_commit:
            await staging.uncommitted.measure_heartbeat(client, options.queue_urls, options.visibility_s)
            background.begin(staging.uncommitted.keep_invisible(client))
        try:
            # An interrupted batch read ends its main thread without calling `stop`.
            while threading.main_thread().is_alive() and not (self._stopping or staging.failed):
                if receives.is_complete and not (buffer.messages or staging.uncommitted.messages):
                    break
                # Buffered messages count as part of the backlog, because they will be staged.
                ahead = self.staged.log.count_backlog(self._position)
                is_behind = ahead.size >= self._limits.backlog_bytes  # Spark lags behind.
                free = 0 if is_behind else max(0, self._limits.backlog_messages - ahead.messages)
                self._receive_limit = receives.received_messages - buffer.messages + free
                receives.start_receives()
                staging.delete_committed(self._committed)
                if buffer.is_stage_due([queue.estimate.size for queue in receives.queues]):
                    with buffer.take_all() as chunks:
                        await staging.stage(chunks)
                else:
                    receives.ripe.clear()
                    await wait_for_event(receives.ripe, TICK_S)
            self._stopping = True  # prevents new receives
            await receives.drain(staging.stage_last)
            await staging.deletions.wait()
        finally:
            background.cancel()
            staging.deletions.cancel()
        if staging.failed:
            raise staging.failed


class Staging:
    """Publishes received messages as segments, then deletes them from the queue. Used in one event loop."""

    def __init__(self, client: SqsClient, staged: StagedLog, options: Options) -> None:
        self._client, self._staged, self._options = client, staged, options
        self.deletions = Deletions(
            client, at_once=options.connections, confirmed=staged.deduplicator.confirm_deletion, failed=self.fail
        )
        self.uncommitted = UncommittedMessages(options.connections)
        self._publishing = 0  # number of messages in the segment being published
        self.failed: BaseException | None = None

    def fail(self, error: BaseException) -> None:
        """Record the error that ends the run."""
        self.failed = error

    @property
    def undeleted_messages(self) -> int:
        """The number of messages that are durable or being published, but still in their queue."""
        return self._publishing + self.deletions.remaining + self.uncommitted.messages

    def delete_committed(self, committed: Position) -> None:
        """With `deleteMode=afterCommit`, delete the messages that Spark has committed."""
        for number, handles in self.uncommitted.take_committed(committed):
            self.deletions.order(number, handles)

    async def stage(self, chunks: Sequence[Chunk]) -> None:
        """Publish the chunks as a segment, and schedule deletion. After an error, make the messages visible instead."""
        handles = [queue_handles for chunk in chunks for queue_handles in chunk.handles]
        batches = [piece for chunk in chunks for piece in chunk.rows]
        number = None
        if batches and not self.failed:
            failed = self.deletions.take_failed()
            columns = pa.Table.from_batches(batches)
            self._publishing = columns.num_rows
            try:
                header = await asyncio.to_thread(self._staged.append, columns, deletions_failed=failed)
            except (SluiceSparkError, OSError) as error:
                self.failed = error
            else:
                number = header.number
                self._staged.deduplicator.add_segment(number, *(chunk.ids for chunk in chunks))
        self._publishing = 0
        if self.failed and number is None:
            await self._client.make_visible(handles)
        elif self._options.after_commit:
            self.uncommitted.hold(self._staged.log.newest, handles)
        elif self._options.delete:
            self.deletions.order(number, handles)

    async def stage_last(self, chunks: Sequence[Chunk]) -> None:
        """Stage the last messages of a stopped driver. If the log was emptied meanwhile, make the messages visible."""
        try:
            await asyncio.to_thread(self._staged.check_newest)
        except (SluiceSparkError, OSError) as error:
            self.failed = self.failed or error
        await self.stage(chunks)


async def write_status_regularly(staged: StagedLog, receives: Receives, position: Callable[[], Position]) -> None:
    """Write the receiver's status for the query's metrics, at each change of the state and at intervals."""
    began_ms, last = int(time.time() * 1000), None
    while True:
        await asyncio.sleep(STATUS_LOOK_S)
        now_ms = int(time.time() * 1000)
        state = receives.health.state(time.monotonic())
        every_ms = 1000 * (STATUS_EVERY_S if state == "receiving" else STATUS_QUIET_S)
        if last and last.state == state and now_ms - last.at_ms < every_ms:
            continue
        backlog, sent = staged.log.count_backlog(position()), receives.buffer.take_sent_ms()
        waiting = None
        if state != "failing":
            with suppress(SluiceSparkError):
                waiting = await receives.client.count([queue.queue_url for queue in receives.queues])
        last = ReceiverStatus(
            at_ms=now_ms,
            began_ms=began_ms,
            state=state,
            reason=receives.health.reason,
            receives_failed=receives.health.failed_receives,
            since_good_ms=int(1000 * receives.health.seconds_since_success(time.monotonic())),
            requests=receives.billed_requests,
            staged_messages=backlog.messages,
            staged_bytes=backlog.size,
            oldest_ms=max(0, now_ms - sent) if sent is not None else None,
            waiting=waiting,
        )
        try:
            await asyncio.to_thread(write_status, staged.store, last)
        except (SluiceSparkError, OSError) as error:
            log.warning("the receiver's status can't be written; metrics show the last one: %s", error)
