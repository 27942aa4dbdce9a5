"""The background receiver: receive on many connections, stage, publish, delete.

A thread with its own event loop, beside Spark's calls.

The order is the guarantee: a message is deleted only once its segment is durable. Spark never waits for this.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Sequence

import pyarrow as pa

from sluice_spark.errors import QueueBusy, SluiceSparkError, TooManyInFlight
from sluice_spark.log.latest import Status, write_status
from sluice_spark.log.planning import Admission, Position
from sluice_spark.log.staging import StagedLog
from sluice_spark.options import WAIT_LIMIT_S, Options
from sluice_spark.source.backfill import Backfilling
from sluice_spark.source.budget import LEAST_BYTES, sizes_of
from sluice_spark.source.buffer import Buffer, Chunk, Limits
from sluice_spark.source.deletions import Deletions, Held
from sluice_spark.source.rate import Limit, Rate, limit_of
from sluice_spark.source.receives import Ask, Failed, Fleet, Receives, Tasks
from sluice_spark.source.reception import Reception
from sluice_spark.sqs.client import SqsClient
from sluice_spark.sqs.received import Message
from sluice_spark.workers import answer_soon, run, spare_collections, waited

log = logging.getLogger(__name__)

BATCH_WAIT_S = 2  # a bounded read ends with an empty long poll: not the twenty seconds that suit a stream
BILLED_BYTES = 64 * 2**10  # https://aws.amazon.com/sqs/pricing/
STATUS_LOOK_S = 1.0
STATUS_EVERY_S, STATUS_QUIET_S = 10.0, 60.0
TICK_S = 0.05  # how soon a stop, room in the backlog or a segment that is due by its age is noticed
NO_LIMITS = Limits()
ALL = Admission()


class Receiver:
    """Starts with `start`, ends with `stop` or an error, which `check` raises.

    `staged.log` says what there is to read.
    """

    def __init__(
        self,
        staged: StagedLog,
        client: Callable[[], SqsClient],
        options: Options,
        *,
        until_empty: bool = False,
        enough: Admission = ALL,
        limits: Limits = NO_LIMITS,
        backfilling: Backfilling | None = None,
    ) -> None:
        """Start nothing yet. `until_empty`: a bounded read, which ends when every queue has answered with nothing.

        `enough`: where a bounded read ends before that, or a little beyond. Raises InvalidOption for a function that
        doesn't say the rate.
        """
        self.staged, self._client, self._options, self._limits = staged, client, options, limits
        self._until_empty, self._enough, self._backfilling = until_empty, enough, backfilling
        self._rate_limit = limit_of(options.rate_limit)
        self._thread = threading.Thread(target=self._thread_main, name="sluice-spark-receiver")
        self._stopping = False  # no Event: whoever is killed amid setting one has its lock for good
        self._error: BaseException | None = None
        self._receive_limit = 0  # messages, of all that are ever received
        self._position = self._committed = Position(0)

    def start(self, position: Position) -> None:
        """`position`: where Spark has read to."""
        self._position = self._committed = position
        self._thread.start()

    def stop(self) -> None:
        """Start no more receives. Those under way are awaited and their messages released, in the background.

        Not staged: the query's next driver may run already, and must not find its next segment taken by one that is
        leaving.
        """
        self._stopping = True

    def join(self, timeout_s: float | None = None) -> None:
        """Wait until all is received, staged and deleted, or released."""
        self._thread.join(timeout_s)

    def consumed(self, position: Position) -> None:
        """Spark's batches reach to here: makes room in the backlog."""
        self._position = position

    def committed(self, position: Position) -> None:
        """Spark has committed what lies before."""
        self._committed = position

    @property
    def running(self) -> bool:
        """Not yet at its end."""
        return self._thread.is_alive()

    def check(self) -> None:
        """Raise what ended the receiver, if anything did."""
        if self._error:
            raise self._error

    def _thread_main(self) -> None:
        spare_collections()
        answer_soon()
        try:
            run(self._run())
        except BaseException as error:  # noqa: BLE001  reported by check(), in the thread that Spark listens to
            self._error = error

    async def _run(self) -> None:
        options = self._options
        async with self._client() as client:
            if options.delete:
                await client.check_deletion(options.queue_urls)
            if self._backfilling:
                await self._backfilling.run(self.staged, room=lambda: self._free_messages() > 0, ending=self._ends)
            await self._receive(client)

    async def _receive(self, client: SqsClient) -> None:
        """Receive until told to end, then drain."""
        options, staging = self._options, Staging(client, self.staged, self._options)
        buffer = Buffer(self.staged, self._limits, options.buffer_bytes, options.queue_urls)
        receives = QueueReceives(
            client,
            buffer,
            options,
            until_empty=self._until_empty,
            enough=self._enough,
            rate_limit=self._rate_limit,
            failed=staging.fail,
            ending=lambda: self._stopping or staging.failed is not None,
            may=lambda: receives.received < self._receive_limit and staging.undeleted < self._limits.undeleted,
        )
        beside = Tasks(staging.fail)
        beside.begin(keep_status(self.staged, receives, lambda: self._position))
        if options.after_commit:
            beside.begin(staging.held.keep_invisible(client, options.queue_urls, options.visibility_s))
        try:
            while not (self._ends() or staging.failed):
                if receives.over and not (buffer.messages or staging.held.messages):
                    break
                # What is in the buffer will be staged, too, however long that takes.
                self._receive_limit = receives.received - buffer.messages + self._free_messages()
                receives.hire()
                staging.delete_committed(self._committed)
                if buffer.due([fleet.expectation.size for fleet in receives.fleets]):
                    with buffer.emptied() as chunks:
                        await staging.stage(chunks)
                else:
                    receives.ripe.clear()
                    await waited(receives.ripe, TICK_S)
            await receives.drain()
            await staging.deletions.wait()
        finally:
            beside.cancel()
            staging.deletions.cancel()
        if staging.failed:
            raise staging.failed

    def _free_messages(self) -> int:
        """Return how many messages may be staged before Spark is too far behind; 0 if it is."""
        ahead = self.staged.log.backlog(self._position)
        if ahead.size >= self._limits.backlog_bytes:
            return 0
        return max(0, self._limits.backlog_messages - ahead.messages)

    def _ends(self) -> bool:
        """Find out whether to stop: as asked, or with the process.

        Spark ends that by closing its socket or with a signal: then the main thread is gone, and nobody asks us.
        """
        if not threading.main_thread().is_alive():
            self._stopping = True
        return self._stopping


class QueueReceives(Receives):
    """A receiver's: for as long as Spark isn't too far behind, and at the rate that the user says."""

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
        super().__init__(
            client,
            options.queue_urls,
            buffer.budget,
            connections=options.connections,
            wait_s=options.wait_s or (BATCH_WAIT_S if until_empty else WAIT_LIMIT_S),
            visibility_s=options.visibility_s,
            failed=failed,
        )
        self.buffer, self._until_empty, self._enough, self._ending, self._may = buffer, until_empty, enough, ending, may
        self._rate = Rate(limit=rate_limit)
        self._patience_s = options.patience_s
        self._messages = self._bytes = 0  # received
        self._payload_chunks = 0  # of what came, beyond the first 64 KiB of an answer: each is billed as a request
        self.reception = Reception(options.queue_urls, time.monotonic())
        self.ripe = asyncio.Event()  # a segment may be due

    @property
    def received(self) -> int:
        """How many messages have come so far."""
        return self._messages

    @property
    def over(self) -> bool:
        """Whether a bounded read has all that it is to receive."""
        empty = self._until_empty and all(fleet.empty_answers and not fleet.running for fleet in self.fleets)
        return empty or (self._has_enough and not self.under_way)

    @property
    def billed(self) -> int:
        """How many requests SQS bills so far."""
        return sum(self.client.requests.values()) + self._payload_chunks

    def ask(self, fleet: Fleet, others: int) -> Ask | None:
        """Ask where there is room.

        The queue's first has no more of the budget than a small answer takes: else many that are idle, or of which one
        had large messages, would keep the others from being asked. A large answer waits for room as any does.
        """
        if self._ending() or (self._until_empty and fleet.empty_answers):
            return None
        size = fleet.expectation.size if others else LEAST_BYTES
        has_room = self.budget.open(size) if others else self.budget.fits(size)
        if not has_room or not self._may() or self._has_enough or not self._rate.open(time.monotonic()):
            return None
        return Ask(self.budget.lease(size), fleet.expectation.most)

    def ask_again(self, fleet: Fleet, ask: Ask) -> Ask | None:
        """Ask in any case: a FIFO queue gives the messages of a receive that failed to none but its retry."""
        if self._ending() or fleet.running > fleet.wanted:
            return None
        return Ask(self.budget.lease(fleet.expectation.size), ask.most)

    def note_failure(self, fleet: Fleet, ask: Ask, error: QueueBusy | TooManyInFlight) -> None:
        """Tell how receiving goes. Raises NothingReceived where it has gone badly for too long."""
        del ask
        if isinstance(error, QueueBusy):  # too many in flight are SQS's answer as any other
            self.reception.broke(fleet.queue_url, time.monotonic(), error)
            self.reception.check(time.monotonic(), self._patience_s)

    def take(self, fleet: Fleet, messages: Sequence[Message], ask: Ask, since: float) -> Awaitable[None] | None:
        """Put messages into the buffer."""
        del since
        self.reception.worked(fleet.queue_url, time.monotonic(), len(messages))
        if not messages:
            ask.lease.end()
            return self._note_empty(fleet)
        sizes = sizes_of(messages)
        fleet.expectation.learn(sizes.memory, len(messages))
        self._messages, self._bytes = self._messages + len(messages), self._bytes + sizes.bodies
        self._payload_chunks += sizes.payload // BILLED_BYTES
        self._rate.took(len(messages))
        self.buffer.add(fleet.queue_url, messages, sizes)
        if self.buffer.whole:
            self.ripe.set()
        del messages
        ask.lease.end()
        if fleet.running < fleet.wanted:
            self.hire()
        return None

    async def _note_empty(self, fleet: Fleet) -> None:
        """Ask the queue's own count: an empty answer alone ends nothing, as SQS may have asked too few of its hosts."""
        fleet.empty_answers += not self._until_empty or not await self.client.count([fleet.queue_url])

    async def receive_in_a_row(self, fleet: Fleet, ask: Ask | None) -> None:
        """Receive, and then have it looked whether a segment is due, which makes room."""
        await super().receive_in_a_row(fleet, ask)
        self.ripe.set()

    async def drain(self) -> None:
        """Await receives under way, and give back what they bring: others of them may wait for the room it takes."""
        while self.under_way:
            await self.under_way.wait(TICK_S)
            await self._release_all()
        await self._release_all()

    async def _release_all(self) -> None:
        with self.buffer.emptied() as chunks:
            await self.client.release([each for chunk in chunks for each in chunk.handles])

    @property
    def _has_enough(self) -> bool:
        messages, size = self._enough.messages, self._enough.size
        return (messages is not None and self._messages >= messages) or (size is not None and self._bytes >= size)


class Staging:
    """Makes what has come durable, and then orders its deletion. One event loop's."""

    def __init__(self, client: SqsClient, staged: StagedLog, options: Options) -> None:
        self._client, self._staged, self._options = client, staged, options
        self.deletions = Deletions(
            client, at_once=options.connections, confirmed=staged.seen.confirmed, failed=self.fail
        )
        self.held = Held()
        self.failed: BaseException | None = None

    def fail(self, error: BaseException) -> None:
        """Note what ends the run."""
        self.failed = error

    @property
    def undeleted(self) -> int:
        """How many messages are durable and still in their queue."""
        return self.deletions.left + self.held.messages

    def delete_committed(self, committed: Position) -> None:
        """With `deleteMode=afterCommit`: delete what Spark has committed."""
        for number, handles in self.held.due(committed):
            self.deletions.order(number, handles)

    async def stage(self, chunks: Sequence[Chunk]) -> None:
        """Publish a segment of them; where that fails, release them."""
        handles = [each for chunk in chunks for each in chunk.handles]
        batches = [piece for chunk in chunks for piece in chunk.rows]
        number = None
        if batches:
            failed = self.deletions.take_failed()
            columns = pa.Table.from_batches(batches)
            try:
                header = await asyncio.to_thread(self._staged.append, columns, deletions_failed=failed)
            except (SluiceSparkError, OSError) as error:
                await self._client.release([each for chunk in chunks for each in chunk.fresh])
                self.failed = error
                return
            number = header.number
            self._staged.seen.staged(number, *(chunk.ids for chunk in chunks))
        if self._options.after_commit:
            self.held.hold(self._staged.log.newest, handles)
        elif self._options.delete:
            self.deletions.order(number, handles)


async def keep_status(staged: StagedLog, receives: QueueReceives, position: Callable[[], Position]) -> None:
    """Write how it goes, whenever that changes, and now and then: in a place that the query's metrics look at."""
    began_ms, last = int(time.time() * 1000), None
    while True:
        await asyncio.sleep(STATUS_LOOK_S)
        now_ms = int(time.time() * 1000)
        state = receives.reception.state(time.monotonic())
        every_ms = 1000 * (STATUS_EVERY_S if state == "receiving" else STATUS_QUIET_S)
        if last and last.state == state and now_ms - last.at_ms < every_ms:
            continue
        backlog, sent = staged.log.backlog(position()), receives.buffer.take_sent_ms()
        last = Status(
            at_ms=now_ms,
            began_ms=began_ms,
            state=state,
            reason=receives.reception.reason,
            receives_failed=receives.reception.failed,
            since_good_ms=int(1000 * receives.reception.since_good_s(time.monotonic())),
            requests=receives.billed,
            staged_messages=backlog.messages,
            staged_bytes=backlog.size,
            oldest_ms=max(0, now_ms - sent) if sent is not None else None,
            waiting=await _count_waiting(receives) if state != "failing" else None,
        )
        try:
            await asyncio.to_thread(write_status, staged.store, last)
        except (SluiceSparkError, OSError) as error:
            log.warning("what the receiver does isn't told: %s", error)


async def _count_waiting(receives: QueueReceives) -> int | None:
    """Count what the queues say can be received; None where they don't say."""
    try:
        return await receives.client.count([fleet.queue_url for fleet in receives.fleets])
    except SluiceSparkError:
        return None
