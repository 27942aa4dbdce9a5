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
from sluice_spark.log import segments
from sluice_spark.log.notes import note, notes
from sluice_spark.log.planning import Admission
from sluice_spark.log.store import Store
from sluice_spark.options import EXECUTORS_VISIBILITY_S, Options
from sluice_spark.source.budget import ByteBudget, careful, sizes_of
from sluice_spark.source.plan import accepted
from sluice_spark.source.receives import Ask, Clock, Fleet, Receives
from sluice_spark.sqs.client import BatchOutcome, SqsClient
from sluice_spark.sqs.received import Handles, Message, Received, divided, handles_of, in_tens
from sluice_spark.workers import fewer_collections, run, waited

log = logging.getLogger(__name__)

DELETIONS = "deletions"
WAIT_S = 1  # a task ends when the queues are empty
TURNS = 5  # a task that took too long before it could publish begins again
RECEIVE_LIMIT_S = 10.0
SPARE = 5  # of what a task may hold, a part for answers that turn out larger than those before: it frees nothing


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


def segment(
    order: Order, store: Store, client: Callable[[], SqsClient], options: Options, clock: Clock = time.monotonic
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
                return run(_Turn(order, store, options, clock).run(client))
        except OutOfTime as error:
            log.warning("segment %d: %s", order.number, error)
    raise LogError(f"segment {order.number} can't be published within visibilityTimeout, {_visibility_s(options)} s")


def _visibility_s(options: Options) -> int:
    return options.visibility_s or EXECUTORS_VISIBILITY_S


def deletions(store: Store, since: int) -> Mapping[int, int]:
    """Tell how many deletions failed, by number from `since` on, of segments whose publisher came to its end.

    All of such a segment's messages but those were deleted, in time. Raises UnknownFormat.
    """
    return {each.numbers[0]: each.numbers[1] for each in notes(store, DELETIONS, since)}


def message_ids(store: Store, name: str) -> Sequence[str]:
    """Of a segment, or another object of such rows; none if retention has removed it."""
    try:
        return segments.ids_of(store.read(name))
    except SegmentMissing:
        return ()


def published(order: Order, store: Store) -> pa.Buffer | None:
    """Read the content of the order's segment, if it exists. Raises Fenced if it is a newer driver's."""
    try:
        accepted(segments.header_at(store, order.number), order.epoch)
        return store.read(segments.segment_name(order.number))
    except SegmentMissing:
        return None


class _Turn:
    """One attempt to receive and publish a segment. Inside one event loop."""

    def __init__(self, order: Order, store: Store, options: Options, clock: Clock) -> None:
        self._order, self._store, self._options, self._clock = order, store, options, clock
        self._visibility_s = _visibility_s(options)
        self._began_at = 0.0

    async def run(self, client: Callable[[], SqsClient]) -> pa.Buffer:
        """Have the published content: ours, or that of another who was first."""
        checked_at = self._clock()
        await asyncio.to_thread(self._check_witness)
        before = await asyncio.to_thread(segments.numbers_since, self._store, self._order.since)
        self._began_at = self._clock()
        async with client() as sqs:
            receives = TaskReceives(sqs, self._order, self._options, self._clock)
            over = asyncio.Event()
            heart = asyncio.create_task(self._keep_invisible(receives, over))
            try:
                return await self._stage(receives, before, checked_at, over)
            finally:
                over.set()
                await heart

    async def _stage(
        self, receives: "TaskReceives", before: Collection[int], checked_at: float, over: asyncio.Event
    ) -> pa.Buffer:
        try:
            await receives.until_enough()
            known = await asyncio.to_thread(self._known, before) if receives.taken else ()
            found = _sifted(receives.taken, known)
            rows = await asyncio.to_thread(segments.table, found.fresh) if found.fresh else segments.EMPTY
            header = segments.planned_header(self._order.number, self._order.epoch, rows)
            content = await asyncio.to_thread(segments.encoded, rows, header)
            self._check_time(receives)
        except BaseException:
            over.set()
            await receives.client.release(handles_of(taken.received for taken in receives.taken))
            raise
        try:
            await asyncio.to_thread(segments.publish, self._store, header, content)
        except SegmentTaken:
            over.set()
            await receives.client.release(handles_of(found.ours))
            await self._delete(receives.client, found.known)
            return await asyncio.to_thread(self._winners)
        over.set()
        if self._clock() - checked_at >= self._options.retention_s:
            raise Fenced(f"segment {self._order.number} was published so late that it may have been read and removed")
        held_until = receives.held_since + self._visibility_s
        failed = await self._delete(receives.client, [*found.ours, *found.known])
        if self._options.delete and (failed or self._clock() < held_until):
            await asyncio.to_thread(self._note_deletion, failed)
        return content

    def _note_deletion(self, failed: int) -> None:
        try:
            note(self._store, DELETIONS, self._order.number, failed)
        except (LogError, OSError) as error:  # then the segment's ids stay known: it costs time, no message
            log.warning("segment %d counts as not deleted: %s", self._order.number, error)

    def _check_witness(self) -> None:
        """Check that the batch isn't over and removed: what we would publish, nobody would read. Raises Fenced."""
        try:
            self._store.read(segments.segment_name(self._order.witness), 1)
        except SegmentMissing as error:
            raise Fenced(f"segment {self._order.number} was removed: its batch was committed long ago") from error

    def _known(self, before: Collection[int]) -> Collection[str]:
        """Ids of messages that are in the log and may come again."""
        order = self._order
        noted = deletions(self._store, order.since)
        suspects = {number for number in before if noted.get(number) != 0} - {order.number}
        names = [*(segments.segment_name(number) for number in {*order.unconfirmed, *suspects}), order.seen]
        known: set[str] = set()
        for name in filter(None, names):
            known.update(_ids(self._store, order.driver, name))  # type: ignore[arg-type]  # a store is hashed by identity
        return known

    def _check_time(self, receives: "TaskReceives") -> None:
        """Check the two bounds that the module's docstring names; of the first a quarter is left to publish in.

        Raises OutOfTime.
        """
        if self._clock() - receives.held_since > self._visibility_s / 2:
            raise OutOfTime("its messages were received too long ago")
        if max((taken.at for taken in receives.taken), default=0.0) - self._began_at > self._visibility_s / 4:
            raise OutOfTime("receiving took too long")

    def _winners(self) -> pa.Buffer:
        content = published(self._order, self._store)
        if content is None:
            raise Fenced(f"segment {self._order.number} was published by another and removed: its batch is over")
        return content

    async def _delete(self, sqs: SqsClient, taken: Sequence[Received]) -> int:
        """How many stay in the queue. What can't be deleted comes again, and is known then."""
        if not self._options.delete:
            return 0

        async def one(queue_url: str, handles: Sequence[str]) -> int:
            try:
                outcome = await sqs.delete(queue_url, handles)
            except SluiceSparkError as error:
                log.warning("messages of segment %d stay in the queue: %s", self._order.number, error)
                return len(handles)
            return len(outcome.failed) + len(outcome.expired)

        return sum(await asyncio.gather(*(one(*tens) for tens in in_tens(handles_of(taken)))))

    async def _keep_invisible(self, receives: "TaskReceives", over: asyncio.Event) -> None:
        """Extend at half the visibility timeout, which is rarely reached: only a slow store or queue gets there."""
        while not over.is_set():
            left_s = receives.held_since + self._visibility_s / 2 - self._clock()
            if left_s > 0:
                await waited(over, left_s)
                continue
            held, now = list(receives.taken), self._clock()
            if await self._extended(receives.client, held):
                for taken in held:
                    taken.since = now
            else:
                await waited(over, self._visibility_s / 8)

    async def _extended(self, sqs: SqsClient, held: Sequence["_Taken"]) -> bool:
        tens = in_tens(handles_of(taken.received for taken in held))
        try:
            outcomes = await asyncio.gather(*(sqs.hide(url, handles, self._visibility_s) for url, handles in tens))
        except SluiceSparkError as error:
            log.warning("messages of segment %d may become visible: %s", self._order.number, error)
            return False
        if any(outcome != BatchOutcome() for outcome in outcomes):
            log.warning("messages of segment %d may become visible: some are no longer ours", self._order.number)
            return False
        return True


class TaskReceives(Receives):
    """A task's: until its segment is full, the queues are empty, or it has no more time. It keeps what it takes."""

    def __init__(self, client: SqsClient, order: Order, options: Options, clock: Clock) -> None:
        chance = Random(order.number)  # noqa: S311  of turns, as there may be room for few
        # An answer for which there is no room is read in its turn, one at a time, and given back
        limit, spare = options.buffer_bytes, options.buffer_bytes // SPARE
        super().__init__(
            client,
            chance.sample(options.queue_urls, len(options.queue_urls)),
            ByteBudget(limit=limit, spare=spare, overflow=ByteBudget(limit=0)),
            connections=options.connections,
            wait_s=WAIT_S if options.wait_s is None else min(options.wait_s, WAIT_S),
            visibility_s=_visibility_s(options),
            failed=self._fail,
            clock=clock,
        )
        self._order, self.taken = order, list[_Taken]()
        self._messages = self._size = 0  # taken
        self._asked = 0  # messages that receives under way may bring
        self._ends_at = clock() + min(RECEIVE_LIMIT_S, _visibility_s(options) / 4) - self._wait_s
        self._failed: BaseException | None = None
        self._expect(self.fleets, order.mean_size)

    async def until_enough(self) -> None:
        """Receive. Raises what a receive failed by, once none is under way."""
        self.hire()
        while self.under_way:
            await self.under_way.wait()
        if self._failed:
            raise self._failed

    @property
    def held_since(self) -> float:
        """When the first of our messages became invisible, or was made so again."""
        return min((taken.since for taken in self.taken), default=self.clock())

    def ask(self, fleet: Fleet, others: int) -> Ask | None:
        """Ask where there is room. What is under way is expected to bring messages as those so far."""
        del others
        most, wanted = fleet.expectation.most, self._order.admission
        if wanted.messages is not None:
            most = min(most, wanted.messages - self._messages - self._asked)
        if most <= 0 or fleet.empty_answers or self._failed or self.clock() >= self._ends_at:
            return None
        expected = self._size + self._asked * self._size // max(1, self._messages)
        if (wanted.size is not None and expected >= wanted.size) or not self.budget.open(fleet.expectation.size):
            return None
        self._asked += most
        return Ask(self.budget.lease(fleet.expectation.size), most)

    def ask_again(self, fleet: Fleet, ask: Ask) -> Ask | None:
        """Ask as if nothing had been asked for."""
        del ask
        self.hire()
        return self.ask(fleet, fleet.running - 1) if fleet.running <= fleet.wanted else None

    def note_failure(self, fleet: Fleet, ask: Ask, error: QueueBusy | TooManyInFlight) -> None:
        """Expect nothing of it any more."""
        del fleet, error
        self._asked -= ask.most

    def take(self, fleet: Fleet, messages: Sequence[Message], ask: Ask, since: float) -> Awaitable[None] | None:
        """Keep messages. Those for which there is no room go back."""
        self._asked -= ask.most
        ask.lease.end()
        if not messages:
            fleet.empty_answers += 1
        elif ask.lease.moved or not self._keep(_Taken(Received(fleet.queue_url, messages), since, self.clock()), fleet):
            self.budget.close()
            return self._give_back(handles_of([Received(fleet.queue_url, messages)]))
        self.hire()
        return None

    async def _give_back(self, handles: Sequence[Handles]) -> None:
        await self.client.release(handles)
        self.hire()

    def _keep(self, taken: "_Taken", fleet: Fleet) -> bool:
        """Keep them; False if there is no room."""
        sizes, count = sizes_of(taken.received.messages), len(taken.received.messages)
        fleet.expectation.learn(sizes.memory, count)
        if not self.budget.fits(sizes.copied):
            return False
        self.budget.hold(sizes.copied)
        self.taken.append(taken)
        if not (self._messages or self._order.mean_size):
            self._expect([each for each in self.fleets if each is not fleet], sizes.bodies / count)
        self._messages += count
        self._size += sizes.bodies
        return True

    def _expect(self, fleets: Iterable[Fleet], mean_size: float) -> None:
        limit = self.budget.limit - self.budget.spare
        for fleet in fleets:
            fleet.expectation = careful(limit, len(self.fleets), mean_size)

    def _fail(self, error: BaseException) -> None:
        self._failed = error


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
    ids: set[str] = set()

    def first(message: Message) -> Message | None:
        if message.message_id in ids:
            return None
        ids.add(message.message_id)
        return message

    received = (answer.received for answer in taken)
    ours, before = divided(received, lambda message: None if message.message_id in known else message)
    fresh, _ = divided(ours, first)
    return _Sifted(fresh, ours, before)


@lru_cache(maxsize=64)  # workers are reused, and what is unconfirmed stays so until retention removes it
def _ids(store: Store, driver: str, name: str) -> frozenset[str]:  # noqa: ARG001  `driver`: a new log may use old names
    return frozenset(message_ids(store, name))
