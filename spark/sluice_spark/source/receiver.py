"""The background receiver: receive on many connections, stage, publish, delete.

A thread with its own event loop, beside Spark's calls.

The order is the guarantee: a message is deleted only once its segment is durable. Spark never waits for this.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from sluice_spark.errors import QueueBusy, SluiceSparkError, TooManyInFlight
from sluice_spark.log.backfills import progress
from sluice_spark.log.notified import Notified
from sluice_spark.log.offsets import Position
from sluice_spark.log.planning import Admission
from sluice_spark.log.segments import first_ms, rows
from sluice_spark.log.staging import StagedLog
from sluice_spark.log.status import Status
from sluice_spark.log.store import open_store
from sluice_spark.options import WAIT_LIMIT_S, Options
from sluice_spark.source.after_commit import Held
from sluice_spark.source.backfill import Backfilling, backfilling_of
from sluice_spark.source.budget import COPIES, LEAST_BYTES, OBJECTS_BYTES, ByteBudget, Lease, sizes_of
from sluice_spark.source.deletions import Deletions, Tasks
from sluice_spark.source.fifo import attempt_id_for, is_fifo, ordered
from sluice_spark.source.fleet import Fleet, connections_wanted
from sluice_spark.source.intake import Intake, Limits
from sluice_spark.source.rate import Rate, limit_of
from sluice_spark.source.reception import Reception
from sluice_spark.source.sifting import Sieve
from sluice_spark.source.visibility import keep_invisible
from sluice_spark.sqs.client import SqsClient
from sluice_spark.sqs.clients import clients_of
from sluice_spark.sqs.received import Handles, Message, Received, handles_of, in_tens, pieces
from sluice_spark.workers import answer_soon, run, spare_collections, waited

log = logging.getLogger(__name__)

VISIBLE = "ApproximateNumberOfMessages"
CHUNK_MESSAGES = 4_000  # are made columns at once, amid receiving: some 5 ms, for which no thread need be woken
CHUNK_BYTES = 2**20
BATCH_WAIT_S = 2  # a bounded read ends with an empty long poll: not the twenty seconds that suit a stream
BILLED_BYTES = 64 * 2**10  # https://aws.amazon.com/sqs/pricing/
STATUS_LOOK_S = 1.0
STATUS_EVERY_S, STATUS_QUIET_S = 10.0, 60.0
TICK_S = 0.05  # how soon a stop, room in the backlog or a segment that is due by its age is noticed


class Receiver:
    """Starts with `start`, ends with `stop` or an error, which `check` raises.

    `staged.log` says what there is to read.
    """

    def __init__(
        self,
        staged: StagedLog,
        client: Callable[[], SqsClient],
        intake: Intake,
        backfilling: Backfilling | None = None,
    ) -> None:
        self.staged, self._client, self._intake, self._backfilling = staged, client, intake, backfilling
        self._thread = threading.Thread(target=self._thread_main, name="sluice-spark-receiver")
        self._stopping = False  # no Event: whoever is killed amid setting one has its lock for good
        self._error: BaseException | None = None
        self._position = self._committed = Position(0)
        self.duplicates = 0
        self.requests: dict[str, int] = {}

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
        async with self._client() as client:
            if self._intake.delete:
                for queue_url in self._intake.queue_urls:
                    await client.check_deletion(queue_url)
            if self._backfilling:
                await self._backfilling.run(self.staged, room=self._has_room, ending=self._ends)
            await _Run(self, client, self._intake).until_stopped()
            self.requests = dict(client.requests)

    def _has_room(self) -> bool:
        """Whether Spark isn't too far behind."""
        ahead, limits = self.staged.log.backlog(self._position), self._intake.limits
        return ahead.messages < limits.backlog_messages and ahead.size < limits.backlog_bytes

    def _ends(self) -> bool:
        """Find out whether to stop: as asked, or with the process.

        Spark ends that by closing its socket or with a signal: then the main thread is gone, and nobody asks us.
        """
        if not threading.main_thread().is_alive():
            self._stopping = True
        return self._stopping


def writable_log(options: Options) -> StagedLog:
    """Open the log to write: with what it takes to read no object twice."""
    store = open_store(options.staging_location, options.identity.profile)
    if not options.files.read:
        return StagedLog(store)
    made = progress(store)
    envelopes = options.deserialisation.envelopes
    return StagedLog(store, Notified(envelopes, options.s3, backfill=made.backfill if made else None))


def receiver_of(options: Options, staged: StagedLog, *, until_empty: bool, enough: Admission) -> Receiver:
    """Make a receiver as the options say. `enough`: where a bounded read ends, if the queues aren't empty before.

    Raises InvalidOption where nothing says the queues' region, or no key is found.
    """
    intake = Intake(
        queue_urls=options.queue_urls,
        connections=options.connections,
        wait_s=options.wait_s or (BATCH_WAIT_S if until_empty else WAIT_LIMIT_S),
        visibility_s=options.visibility_s,
        delete=options.delete,
        after_commit=options.after_commit,
        until_empty=until_empty,
        rate_limit=limit_of(options.rate_limit),
        patience_s=options.patience_s,
        limits=Limits(buffer_bytes=options.buffer_bytes),
        enough_messages=enough.messages,
        enough_bytes=enough.size,
    )
    clients = clients_of(
        options.queue_urls,
        region=options.region,
        endpoint=options.endpoint,
        identity=options.identity,
        connections=2 * options.connections,  # as many delete as receive
        check_md5=options.check_md5,
    )
    return Receiver(staged, clients, intake, backfilling_of(options, staged))


class _Run:
    """One run of the receiver, inside its event loop. Separate so that everything here is the loop's alone."""

    def __init__(self, receiver: Receiver, client: SqsClient, intake: Intake) -> None:
        self._receiver, self._client, self._intake = receiver, client, intake
        self._limits, self._staged = intake.limits, receiver.staged
        self._fleets = [Fleet(queue_url) for queue_url in intake.queue_urls]
        self._receives = Tasks(self._fail)
        self._deletions = Deletions(
            client, at_once=intake.connections, confirmed=self._staged.seen.confirmed, failed=self._fail
        )
        self._sieve = Sieve(self._staged)
        self._budget = ByteBudget(limit=intake.limits.buffer_bytes)
        self._fifo = any(is_fifo(queue_url) for queue_url in intake.queue_urls)
        self._unsettled: list[Received] = []
        self._unsettled_messages = self._unsettled_bytes = 0
        self._chunks: list[_Chunk] = []
        self._buffered = self._buffered_bytes = 0
        self._segment_bytes = min(self._limits.segment_bytes, self._limits.buffer_bytes // 4)
        self._ripe = asyncio.Event()  # a segment may be due
        self._has_room = True  # Spark isn't too far behind
        self._oldest = 0.0
        self._rate = Rate(limit=intake.rate_limit)
        self._taken = self._taken_bytes = 0
        self._held = Held()
        self._failed: BaseException | None = None
        self._reception = Reception(intake.queue_urls, time.monotonic())
        self._began_ms = int(time.time() * 1000)
        self._payload_chunks = 0  # of what came, beyond the first 64 KiB of an answer: each is billed as a request
        self._sent: Sequence[pa.Array] = ()  # when those were that came last

    async def until_stopped(self) -> None:
        """Receives until told to end, then drains."""
        beside = Tasks(self._fail)
        beside.begin(self._tell())
        if self._intake.after_commit:
            beside.begin(keep_invisible(self._held, self._client, self._intake))
        try:
            while not self._receiver._ends() and not self._over:  # noqa: SLF001  the other half of one thing
                self._has_room = self._receiver._has_room()  # noqa: SLF001  the other half
                self._hire()
                for number, committed in self._held.due(self._receiver._committed):  # noqa: SLF001  the other half
                    self._deletions.order(number, committed)
                if self._due:
                    await self._publish()
                else:
                    self._ripe.clear()
                    await waited(self._ripe, TICK_S)
            await self._drain()
        finally:
            beside.cancel()
            self._deletions.cancel()
        if self._failed:
            raise self._failed

    def _fail(self, error: BaseException) -> None:
        self._failed = error

    @property
    def _over(self) -> bool:
        if self._failed or self._receiver._stopping:  # noqa: SLF001  the other half of one thing
            return True
        empty = self._intake.until_empty and all(fleet.empty_answers and not fleet.running for fleet in self._fleets)
        ended = empty or (self._enough and not self._receives)
        return ended and not self._buffered and not self._held.messages

    @property
    def _enough(self) -> bool:
        messages, size = self._intake.enough_messages, self._intake.enough_bytes
        return (messages is not None and self._taken >= messages) or (size is not None and self._taken_bytes >= size)

    @property
    def _due(self) -> bool:
        if not self._buffered:
            return False
        most = self._limits.buffer_bytes // 4  # of what a queue brought long ago, too
        full = any(self._budget.full(min(fleet.expectation.size, most)) for fleet in self._fleets)
        return self._whole or full or time.monotonic() - self._oldest >= self._limits.segment_age_s

    @property
    def _whole(self) -> bool:
        return self._buffered >= self._limits.segment_messages or self._buffered_bytes >= self._segment_bytes

    @property
    def _may_receive(self) -> bool:
        undeleted = self._deletions.left + self._held.messages
        if not self._has_room or undeleted >= self._limits.undeleted or self._enough:
            return False
        return self._rate.open(time.monotonic())

    def _lease(self, fleet: Fleet, others: int) -> Lease | None:
        """For one more receive of the queue, beside others; None where there is no room for it.

        The queue's first has no more of the budget than a small answer takes: else many that are idle, or of which one
        had large messages, would keep the others from being asked. A large answer waits for room as any does.
        """
        size = fleet.expectation.size if others else LEAST_BYTES
        may = self._budget.open(size) if others else self._budget.fits(size)
        return self._budget.lease(size) if may and self._may_receive else None

    def _hire(self) -> None:
        for fleet in self._fleets:
            if self._intake.until_empty and fleet.empty_answers:
                continue
            while fleet.running < fleet.wanted and (lease := self._lease(fleet, fleet.running)):
                fleet.running += 1
                self._receives.begin(self._receive(fleet, lease))

    async def _receive(self, fleet: Fleet, lease: Lease) -> None:
        """Receives in a row until there are too many of us, or no room, or the end."""
        limit = max(1, self._intake.connections // len(self._fleets))
        attempt, attempt_id, most = 0, attempt_id_for(fleet.queue_url), fleet.expectation.most
        try:
            while not self._over and fleet.running <= fleet.wanted:
                try:
                    messages = await self._client.receive(
                        fleet.queue_url,
                        most=most,
                        wait_s=self._intake.wait_s,
                        visibility_s=self._intake.visibility_s,
                        attempt_id=attempt_id,
                        room=lease.room,
                    )
                except (QueueBusy, TooManyInFlight) as error:
                    lease.end()
                    if isinstance(error, QueueBusy):  # too many in flight are SQS's answer as any other
                        self._reception.broke(fleet.queue_url, time.monotonic(), error)
                        self._reception.check(time.monotonic(), self._intake.patience_s)
                    attempt += 1
                    await self._client.back_off(attempt, error)
                    lease = self._budget.lease(fleet.expectation.size)
                    continue
                self._reception.worked(fleet.queue_url, time.monotonic(), len(messages))
                fleet.wanted = connections_wanted(fleet.wanted, len(messages), limit, asked=most)
                if messages:
                    fleet.empty_answers = 0
                    self._take(fleet, messages)
                    del messages  # or they would be here until the next answer is
                    lease.end()
                    if fleet.running < fleet.wanted:
                        self._hire()
                else:
                    lease.end()
                    fleet.empty_answers += await self._emptied(fleet)
                    if fleet.empty_answers and self._intake.until_empty:
                        return
                following = self._lease(fleet, fleet.running - 1)
                if following is None:
                    self._ripe.set()
                    return
                lease = following
                attempt, attempt_id, most = 0, attempt_id_for(fleet.queue_url), fleet.expectation.most
        finally:
            lease.end()
            fleet.running -= 1

    async def _emptied(self, fleet: Fleet) -> bool:
        """Ask the queue's own count: an empty answer alone ends nothing, as SQS may have asked too few of its hosts."""
        if not self._intake.until_empty:
            return True
        count = await self._client.attributes(fleet.queue_url, VISIBLE)
        return int(count.get(VISIBLE, 0)) == 0

    def _take(self, fleet: Fleet, messages: Sequence[Message]) -> None:
        if not self._buffered:
            self._oldest = time.monotonic()
        count, sizes = len(messages), sizes_of(messages)
        fleet.expectation.learn(sizes.memory, count)
        # A FIFO queue's messages are put in order over the whole segment, and made columns then
        held = sizes.copied if self._fifo else sizes.memory
        self._budget.hold(held)
        self._unsettled.append(Received(fleet.queue_url, messages))
        self._unsettled_messages += count
        self._unsettled_bytes += held
        self._buffered += count
        self._buffered_bytes += sizes.bodies
        self._taken, self._taken_bytes = self._taken + count, self._taken_bytes + sizes.bodies
        self._payload_chunks += sizes.payload // BILLED_BYTES
        self._rate.took(count)
        if self._whole:
            self._ripe.set()
        chunk = self._unsettled_messages >= CHUNK_MESSAGES or self._unsettled_bytes >= CHUNK_BYTES
        if chunk and not self._fifo:
            self._settle()

    def _settle(self) -> None:
        """Make columns of what has come, and forget it but for ids and receipt handles."""
        taken, self._unsettled = self._unsettled, []
        size, self._unsettled_bytes, self._unsettled_messages = self._unsettled_bytes, 0, 0
        if not taken:
            return
        fresh, again, ids = self._sieve.sifted(ordered(taken))
        self._receiver.duplicates = self._sieve.duplicates
        columns = [rows(piece) for piece in pieces(fresh, CHUNK_BYTES)]
        if columns:
            self._sent = [piece.column("sent_at") for piece in columns]
        held = OBJECTS_BYTES * len(ids) + COPIES * sum([piece.nbytes for piece in columns])
        self._budget.hold(held)
        self._chunks.append(_Chunk(columns, ids, handles_of(fresh), handles_of(again), held))
        del taken, fresh, again
        self._budget.free(size)

    async def _publish(self) -> None:
        """Stage what has come; its memory counts until it is durable."""
        self._settle()
        chunks, self._chunks = self._chunks, []
        self._buffered = self._buffered_bytes = 0
        held = sum(chunk.held for chunk in chunks)
        try:
            await self._stage(chunks)
        finally:
            chunks.clear()
            self._budget.free(held)

    async def _stage(self, chunks: Sequence["_Chunk"]) -> None:
        handles = [each for chunk in chunks for each in (*chunk.fresh, *chunk.again)]
        batches = [piece for chunk in chunks for piece in chunk.rows]
        number = None
        if batches:
            failed = self._deletions.take_failed()
            columns = pa.Table.from_batches(batches)
            try:
                header = await asyncio.to_thread(self._staged.append, columns, deletions_failed=failed)
            except (SluiceSparkError, OSError) as error:
                await self._release([each for chunk in chunks for each in chunk.fresh])
                self._failed = error
                return
            number = header.number
            self._staged.seen.staged(number, *(chunk.ids for chunk in chunks))
        if self._intake.after_commit:
            self._held.hold(self._staged.log.newest, handles)
        elif self._intake.delete:
            self._deletions.order(number, handles)

    async def _drain(self) -> None:
        """Receives under way are awaited, never cancelled: SQS would have handed out messages that no one took.

        What they bring is released as it comes: others of them may wait for the room that it takes.
        """
        while self._receives:
            await self._receives.wait(TICK_S)
            await self._release_all()
        await self._release_all()
        await self._deletions.wait()

    async def _tell(self) -> None:
        """Say how it goes, whenever that changes, and now and then: in a place that the query's metrics look at."""
        last: Status | None = None
        while True:
            await asyncio.sleep(STATUS_LOOK_S)
            now = time.time() * 1000
            state = self._reception.state(time.monotonic())
            every_ms = 1000 * (STATUS_EVERY_S if state == "receiving" else STATUS_QUIET_S)
            if last and last.state == state and now - last.at_ms < every_ms:
                continue
            last = await self._status(state, int(now))
            try:
                await asyncio.to_thread(self._staged.tell, last)
            except (SluiceSparkError, OSError) as error:
                log.warning("what the receiver does isn't told: %s", error)

    async def _status(self, state: str, now_ms: int) -> Status:
        backlog = self._staged.log.backlog(self._receiver._position)  # noqa: SLF001  the other half of one thing
        waiting = await self._waiting() if state != "failing" else None
        oldest_ms, self._sent = first_ms(self._sent), ()
        return Status(
            at_ms=now_ms,
            began_ms=self._began_ms,
            state=state,
            reason=self._reception.reason,
            receives_failed=self._reception.failed,
            since_good_ms=int(1000 * self._reception.since_good_s(time.monotonic())),
            requests=sum(self._client.requests.values()) + self._payload_chunks,
            staged_messages=backlog.messages,
            staged_bytes=backlog.size,
            oldest_ms=max(0, now_ms - oldest_ms) if oldest_ms is not None else None,
            waiting=waiting,
        )

    async def _waiting(self) -> int | None:
        """Count what the queues say can be received; None where they don't say."""
        try:
            counts = [await self._client.attributes(url, VISIBLE) for url in self._intake.queue_urls]
        except SluiceSparkError:
            return None
        return sum(int(count.get(VISIBLE, 0)) for count in counts)

    async def _release_all(self) -> None:
        self._settle()
        chunks, self._chunks = self._chunks, []
        self._budget.free(sum(chunk.held for chunk in chunks))
        await self._release([each for chunk in chunks for each in (*chunk.fresh, *chunk.again)])

    async def _release(self, held: Sequence[Handles]) -> None:
        try:
            await asyncio.gather(*(self._client.release(url, handles) for url, handles in in_tens(held)))
        except SluiceSparkError as error:
            log.warning("messages stay invisible until their time-out: %s", error)


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Some messages as they will be staged: their columns, and what is to be known of them after.

    `again`: receipt handles of messages that were taken before. `held`: bytes.
    """

    rows: Sequence[pa.RecordBatch]
    ids: Sequence[str]
    fresh: Sequence[Handles]
    again: Sequence[Handles]
    held: int
