"""What a task does with `mode=executors`: it makes sure that its segment exists, by receiving it if nobody has.

The order is the guarantee, as in the receiver: receive, publish create-exclusive, delete. Any number of tasks may do
this for one number, at once or one after the other: one publishes, all read what that one published.

Redelivered messages (of a segment whose publisher died before it deleted them) are known by their ids. Which segments
can hold them follows from two bounds, without comparing clocks of two machines: messages are published at most three
quarters of the visibility timeout after they were received, so none is seen again within a quarter after its segment
could be listed; and a task receives for at most a quarter. So what wasn't listed when the task began holds nothing of
what it receives. A segment counts as deleted only if all of it was deleted while nobody else could receive it.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from random import Random
from typing import Any, NamedTuple

import pyarrow as pa

from sluice_spark.errors import (
    Fenced,
    LogError,
    OutOfTime,
    QueueBusy,
    SegmentMissing,
    SegmentTaken,
    SluiceSparkError,
    TooManyInFlight,
)
from sluice_spark.log.notes import note, notes
from sluice_spark.log.planning import Admission
from sluice_spark.log.segment_files import EMPTY, header_at, numbers_since, planned_header, publish, segment_name
from sluice_spark.log.segments import Header, encoded, ids_of, table
from sluice_spark.log.store import Store
from sluice_spark.options import BUFFER_DEFAULT_BYTES, EXECUTORS_VISIBILITY_S, Options
from sluice_spark.source.budget import ByteBudget, Lease, careful, sizes_of
from sluice_spark.source.fleet import Fleet, connections_wanted
from sluice_spark.source.planned import accepted
from sluice_spark.sqs.client import SqsClient
from sluice_spark.sqs.received import Handles, Message, Received, handles_of, in_tens
from sluice_spark.workers import fewer_collections, run, waited

log = logging.getLogger(__name__)

DELETIONS = "deletions"
WAIT_S = 1  # a task ends when the queues are empty
TURNS = 5  # a task that took too long before it could publish begins again
RECEIVE_LIMIT_S = 10.0
SPARE = 5  # of what a task may hold, a part for answers that turn out larger than those before: it frees nothing

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One segment to have. Names places and amounts; never a key."""

    number: int
    epoch: int  # of the driver that planned it
    driver: str  # its name, to no one else's
    since: int  # the first number of its batch
    witness: int  # a number up to this one that stays until the batch is committed
    unconfirmed: tuple[int, ...] = ()  # of earlier batches: their messages may come again
    seen: str | None = None  # an object of ids that may come again, of before the driver began
    admission: Admission = field(default_factory=Admission)
    mean_size: float = 0.0  # of a message lately, in bytes; 0: not known


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskIntake:
    """How a task receives."""

    queue_urls: tuple[str, ...]
    connections: int = 64
    wait_s: int = WAIT_S
    visibility_s: float = EXECUTORS_VISIBILITY_S
    delete: bool = True
    retention_s: float = 3600.0
    buffer_bytes: int = BUFFER_DEFAULT_BYTES  # in memory, with all copies

    @property
    def receive_s(self) -> float:
        """How long to receive: see the module."""
        return min(RECEIVE_LIMIT_S, self.visibility_s / 4)


def task_intake(options: Options) -> TaskIntake:
    """Take from the options how a task receives."""
    return TaskIntake(
        queue_urls=options.queue_urls,
        connections=options.connections,
        wait_s=min(options.wait_s or WAIT_S, WAIT_S),
        visibility_s=options.visibility_s or EXECUTORS_VISIBILITY_S,
        delete=options.delete,
        retention_s=options.retention_s,
        buffer_bytes=options.buffer_bytes,
    )


def segment(
    order: Order, store: Store, client: Callable[[], SqsClient], intake: TaskIntake, clock: Clock = time.monotonic
) -> pa.Buffer:
    """Have the content of the order's segment, the same for every caller: as published already, or as we do now.

    Raises Fenced if it is a newer driver's, or if the batch was over long ago; LogError if the visibility timeout is
    never long enough.
    """
    for _ in range(TURNS):
        content = published(order, store)
        if content is not None:
            return content
        try:
            with fewer_collections():
                return run(_Turn(order, store, intake, clock).taken(client))
        except OutOfTime as error:
            log.warning("segment %d: %s", order.number, error)
    raise LogError(f"segment {order.number} can't be published within visibilityTimeout, {intake.visibility_s} s")


def deletions(store: Store, since: int) -> Mapping[int, int]:
    """Tell how many deletions failed, by number from `since` on, of segments whose publisher came to its end.

    All of such a segment's messages but those were deleted, in time. Raises UnknownFormat.
    """
    return {each.numbers[0]: each.numbers[1] for each in notes(store, DELETIONS, since)}


def message_ids(store: Store, name: str) -> Sequence[str]:
    """Of a segment, or another object of such rows; none if retention has removed it."""
    try:
        return ids_of(store.read(name))
    except SegmentMissing:
        return ()


def published(order: Order, store: Store) -> pa.Buffer | None:
    """Read the content of the order's segment, if it exists. Raises Fenced if it is a newer driver's."""
    try:
        accepted(header_at(store, order.number), order.epoch)
        return store.read(segment_name(order.number))
    except SegmentMissing:
        return None


class _Turn:
    """One attempt to receive and publish a segment. Inside one event loop."""

    def __init__(self, order: Order, store: Store, intake: TaskIntake, clock: Clock) -> None:
        self._order, self._store, self._intake, self._clock = order, store, intake, clock
        self._taken: list[_Taken] = []
        self._messages = self._size = 0  # taken
        self._asked = 0  # messages that receives under way may bring
        # An answer for which there is no room is read in its turn, one at a time, and given back
        limit, spare = intake.buffer_bytes, intake.buffer_bytes // SPARE
        self._budget = ByteBudget(limit=limit, spare=spare, overflow=ByteBudget(limit=0))
        chance = Random(order.number)  # noqa: S311  of turns, as there may be room for few
        urls = chance.sample(intake.queue_urls, len(intake.queue_urls))
        self._fleets = [Fleet(url) for url in urls]
        self._expect(self._fleets, order.mean_size)
        self._failed: SluiceSparkError | None = None
        self._began_at = 0.0

    async def taken(self, client: Callable[[], SqsClient]) -> pa.Buffer:
        """Have the published content: ours, or that of another who was first."""
        checked_at = self._clock()
        await asyncio.to_thread(self._check_witness)
        before = await asyncio.to_thread(numbers_since, self._store, self._order.since)
        self._began_at = self._clock()
        async with client() as sqs:
            over = asyncio.Event()
            heart = asyncio.create_task(self._keep_invisible(sqs, over))
            try:
                return await self._staged(sqs, before, checked_at, over)
            finally:
                over.set()
                await heart

    async def _staged(
        self, sqs: SqsClient, before: Collection[int], checked_at: float, over: asyncio.Event
    ) -> pa.Buffer:
        try:
            await self._receive(sqs)
            known = await asyncio.to_thread(self._known, before)
            found = _sifted(self._taken, known)
            content, header = await asyncio.to_thread(self._encoded, found.fresh)
            self._check_time()
        except BaseException:
            over.set()
            await _release(sqs, handles_of(taken.received for taken in self._taken))
            raise
        try:
            await asyncio.to_thread(publish, self._store, header, content)
        except SegmentTaken:
            over.set()
            await _release(sqs, handles_of(found.ours))
            await self._delete(sqs, found.known)
            return await asyncio.to_thread(self._winners)
        over.set()
        await self._published(sqs, found, checked_at)
        return content

    async def _published(self, sqs: SqsClient, found: "_Sifted", checked_at: float) -> None:
        held_until = self._held_since + self._intake.visibility_s
        if self._clock() - checked_at >= self._intake.retention_s:
            raise Fenced(f"segment {self._order.number} was published so late that it may have been read and removed")
        failed = await self._delete(sqs, [*found.ours, *found.known])
        if self._intake.delete and (failed or self._clock() < held_until):
            await asyncio.to_thread(self._note_deletion, failed)

    def _note_deletion(self, failed: int) -> None:
        try:
            note(self._store, DELETIONS, self._order.number, failed)
        except (LogError, OSError) as error:  # then the segment's ids stay known: it costs time, no message
            log.warning("segment %d counts as not deleted: %s", self._order.number, error)

    def _check_witness(self) -> None:
        """Check that the batch isn't over and removed: what we would publish, nobody would read. Raises Fenced."""
        try:
            self._store.head(segment_name(self._order.witness), 1)
        except SegmentMissing as error:
            raise Fenced(f"segment {self._order.number} was removed: its batch was committed long ago") from error

    async def _receive(self, sqs: SqsClient) -> None:
        async with asyncio.TaskGroup() as group:
            self._hire(group, sqs)
        if self._failed:
            raise self._failed

    def _hire(self, group: asyncio.TaskGroup, sqs: SqsClient) -> None:
        """Begin receives where there is room: those first whose queues have the fewest."""
        for fleet in sorted(self._fleets, key=lambda fleet: fleet.running):
            while not fleet.empty_answers and fleet.running < fleet.wanted and (ask := self._ask(fleet)):
                fleet.running += 1
                group.create_task(self._receive_in_a_row(group, sqs, fleet, ask))

    async def _receive_in_a_row(
        self, group: asyncio.TaskGroup, sqs: SqsClient, fleet: Fleet, ask: "_Ask | None"
    ) -> None:
        """Until the queue is empty, there are too many of us, no room, or no time.

        Raises nothing: receives under way are never cancelled.
        """
        limit = max(1, self._intake.connections // len(self._fleets))
        attempt = 0
        try:
            while ask:
                try:
                    messages = await self._receive_once(sqs, fleet, ask)
                except (QueueBusy, TooManyInFlight) as error:
                    attempt += 1
                    await sqs.back_off(attempt, error)
                else:
                    attempt, fleet.empty_answers = 0, 0 if messages else fleet.empty_answers + 1
                    if messages:
                        fleet.wanted = connections_wanted(fleet.wanted, messages, limit, asked=ask.most)
                self._hire(group, sqs)
                may = not fleet.empty_answers and fleet.running <= fleet.wanted
                ask = self._ask(fleet) if may else None
        except SluiceSparkError as error:
            self._failed = error
        finally:
            fleet.running -= 1

    async def _receive_once(self, sqs: SqsClient, fleet: Fleet, ask: "_Ask") -> int:
        """How many messages came. Those for which there is no room go back."""
        since = self._clock()  # earlier than SQS hands them out: what it means for their visibility is on the safe side
        try:
            messages = await sqs.receive(
                fleet.queue_url,
                most=ask.most,
                wait_s=self._intake.wait_s,
                visibility_s=int(self._intake.visibility_s),
                room=ask.lease.room,
            )
        finally:
            self._asked -= ask.most
            ask.lease.end()
        received, count = Received(fleet.queue_url, messages), len(messages)
        if not count or (not ask.lease.moved and self._take(_Taken(received, since, self._clock()), fleet)):
            return count
        handles = handles_of([received])
        del messages, received  # the next for which there is no room is being read
        self._budget.close()
        await _release(sqs, handles)
        return count

    def _take(self, taken: "_Taken", fleet: Fleet) -> bool:
        """Keep them; False if there is no room."""
        sizes, count = sizes_of(taken.received.messages), len(taken.received.messages)
        fleet.expectation.learn(sizes.memory, count)
        if not self._budget.fits(sizes.copied):
            return False
        self._budget.hold(sizes.copied)
        self._taken.append(taken)
        if not (self._messages or self._order.mean_size):
            self._expect([each for each in self._fleets if each is not fleet], sizes.bodies / count)
        self._messages += count
        self._size += sizes.bodies
        return True

    def _expect(self, fleets: Iterable[Fleet], mean_size: float) -> None:
        limit = self._budget.limit - self._budget.spare
        for fleet in fleets:
            fleet.expectation = careful(limit, len(self._fleets), mean_size)

    def _ask(self, fleet: Fleet) -> "_Ask | None":
        """Make one more receive, which is under way from now on; None where there is no room, or nothing is wanted."""
        most, size, wanted = fleet.expectation.most, fleet.expectation.size, self._order.admission.messages
        if wanted is not None:
            most = min(most, wanted - self._messages - self._asked)
        if most <= 0 or not (self._room and self._budget.open(size)):
            return None
        self._asked += most
        return _Ask(self._budget.lease(size), most)

    @property
    def _room(self) -> bool:
        """For one more receive. What is under way is expected to bring messages as those so far."""
        if self._failed:
            return False
        if self._clock() - self._began_at >= self._intake.receive_s - self._intake.wait_s:
            return False
        wanted = self._order.admission.size
        expected = self._asked * self._size // max(1, self._messages)
        return wanted is None or self._size + expected < wanted

    def _known(self, before: Collection[int]) -> Collection[str]:
        """Ids of messages that are in the log and may come again."""
        if not self._taken:
            return ()
        order = self._order
        noted = deletions(self._store, order.since)
        suspects = {number for number in before if noted.get(number) != 0} - {order.number}
        names = [*(segment_name(number) for number in {*order.unconfirmed, *suspects}), order.seen]
        known: set[str] = set()
        for name in filter(None, names):
            known.update(_ids(self._store, order.driver, name))  # type: ignore[arg-type]  # a store is hashed by identity
        return known

    def _encoded(self, fresh: Sequence[Received]) -> tuple[pa.Buffer, Header]:
        rows = table(fresh) if fresh else EMPTY
        header = planned_header(self._order.number, self._order.epoch, rows)
        return encoded(rows, header), header

    @property
    def _held_since(self) -> float:
        """When the first of our messages became invisible, or was made so again."""
        return min((taken.since for taken in self._taken), default=self._clock())

    def _check_time(self) -> None:
        """Check the two bounds that the module's docstring names; of the first a quarter is left to publish in.

        Raises OutOfTime.
        """
        visibility_s = self._intake.visibility_s
        if self._clock() - self._held_since > visibility_s / 2:
            raise OutOfTime("its messages were received too long ago")
        if max((taken.at for taken in self._taken), default=0.0) - self._began_at > visibility_s / 4:
            raise OutOfTime("receiving took too long")

    def _winners(self) -> pa.Buffer:
        content = published(self._order, self._store)
        if content is None:
            raise Fenced(f"segment {self._order.number} was published by another and removed: its batch is over")
        return content

    async def _delete(self, sqs: SqsClient, taken: Sequence[Received]) -> int:
        """How many stay in the queue. What can't be deleted comes again, and is known then."""
        if not self._intake.delete:
            return 0
        failed = 0

        async def one(queue_url: str, handles: Sequence[str]) -> None:
            nonlocal failed
            try:
                outcome = await sqs.delete(queue_url, handles)
                failed += len(outcome.failed) + len(outcome.expired)
            except SluiceSparkError as error:
                failed += len(handles)
                log.warning("messages of segment %d stay in the queue: %s", self._order.number, error)

        await _in_tens(handles_of(taken), one)
        return failed

    async def _keep_invisible(self, sqs: SqsClient, over: asyncio.Event) -> None:
        """Extend at half the visibility timeout, which is rarely reached: only a slow store or queue gets there."""
        timeout_s = self._intake.visibility_s
        while not over.is_set():
            left_s = self._held_since + timeout_s / 2 - self._clock()
            if left_s > 0:
                await waited(over, left_s)
                continue
            held, now = list(self._taken), self._clock()
            if await self._extended(sqs, held):
                for taken in held:
                    taken.since = now
            else:
                await waited(over, timeout_s / 8)

    async def _extended(self, sqs: SqsClient, held: Sequence["_Taken"]) -> bool:
        async def one(queue_url: str, handles: Sequence[str]) -> None:
            entries = [
                {"Id": str(index), "ReceiptHandle": handle, "VisibilityTimeout": int(self._intake.visibility_s)}
                for index, handle in enumerate(handles)
            ]
            answer = await sqs.call("ChangeMessageVisibilityBatch", {"QueueUrl": queue_url, "Entries": entries})
            if answer.get("Failed"):
                raise OutOfTime("a message is no longer ours")

        try:
            await _in_tens(handles_of(taken.received for taken in held), one)
        except SluiceSparkError as error:
            log.warning("messages of segment %d may become visible: %s", self._order.number, error)
            return False
        return True


class _Ask(NamedTuple):
    """One receive: the room that it has, and how many messages it asks for."""

    lease: Lease
    most: int


@dataclass(slots=True)
class _Taken:
    """One answer. Invisible to others `since`, at the earliest; ours `at`, at the latest."""

    received: Received
    since: float
    at: float


@dataclass(frozen=True, slots=True)
class _Sifted:
    """What becomes of what was received."""

    fresh: Sequence[Received] = ()  # to publish, each id once
    ours: Sequence[Received] = ()  # that, and what came twice: deleted once it is published
    known: Sequence[Received] = ()  # in the log already: deleted in any case


def _sifted(taken: Iterable[_Taken], known: Collection[str]) -> _Sifted:
    sorts: dict[str, list[Received]] = {"fresh": [], "twice": [], "known": []}
    ids: set[str] = set()
    for answer in taken:
        parts: dict[str, list[Message]] = {}
        for message in answer.received.messages:
            identity = message.message_id
            if identity in known:
                sort = "known"
            elif identity in ids:
                sort = "twice"
            else:
                sort = "fresh"
                ids.add(identity)
            parts.setdefault(sort, []).append(message)
        for sort, messages in parts.items():
            sorts[sort].append(Received(answer.received.queue_url, messages))
    return _Sifted(sorts["fresh"], [*sorts["fresh"], *sorts["twice"]], sorts["known"])


@lru_cache(maxsize=64)  # workers are reused, and what is unconfirmed stays so until retention removes it
def _ids(store: Store, driver: str, name: str) -> frozenset[str]:  # noqa: ARG001  `driver`: a new log may use old names
    return frozenset(message_ids(store, name))


async def _release(sqs: SqsClient, held: Iterable[Handles]) -> None:
    try:
        await _in_tens(held, sqs.release)
    except SluiceSparkError as error:
        log.warning("messages stay invisible until their time-out: %s", error)


async def _in_tens(held: Iterable[Handles], call: Callable[[str, Sequence[str]], Awaitable[Any]]) -> None:
    """All calls at once: the client has a limit of connections."""
    await asyncio.gather(*(call(queue_url, handles) for queue_url, handles in in_tens(held)))
