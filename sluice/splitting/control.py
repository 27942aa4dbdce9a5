"""Looks after sessions: takes requests and the passage of time into the registry, and does what falls due.

Every operation is load, decide, save, act; who loses a race to save begins again. Acting is safe to repeat, so whatever
was cut off is done at the next tick.
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import singledispatchmethod
from typing import TypeVar

from sluice.batches import Dispatcher, Entry
from sluice.errors import BadConfiguration, CallFailed, DestinationFault, QueueGone, SluiceError
from sluice.message import Message
from sluice.splitting.filters.files import EVERY_QUEUE, QueueFilters, filter_of
from sluice.splitting.ports import ControlledQueues, NowMs, RegistryStore, TargetQueues
from sluice.splitting.routing.configs import SplitConfig
from sluice.splitting.routing.copies import returned
from sluice.splitting.routing.names import FIFO_SUFFIX, prefix_of, session_queue_name
from sluice.splitting.routing.queues import temporary_attributes, temporary_tags
from sluice.splitting.sessions.lifecycle import (
    ALIVE,
    Action,
    CleanupFailed,
    CountMain,
    CreateQueue,
    DeleteQueue,
    Event,
    LeftoversReturned,
    MainCounted,
    PointConsumer,
    QueueCreated,
    QueueDeleted,
    QueueNotCreated,
    Registry,
    ReturnLeftovers,
    Session,
    Split,
    Start,
    StartRefused,
    Status,
    Stop,
    Tick,
    apply,
    due,
    orphans,
)

MAX_RACES = 50  # lost in a row to others that write the registry
MAX_ROUNDS = 5  # of acting and looking again, in one invocation
# What a session's consumer has in flight when the session ends is in SQS's counts within a minute:
# https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/confirm-queue-is-empty.html
COUNTS_SETTLE_MS = 60_000
EVENTS_AT_ONCE = 20  # taken in by one write
CHANGES_AT_ONCE = 90  # of queues and sessions in one write: a DynamoDB transaction has 100 items, splits are a few
KEY = re.compile(r"[A-Za-z0-9_.@-]{1,64}", re.ASCII)  # of a session: it goes into an attribute
SOON_S = 1  # until the next tick while something moves
LATER_S = 10  # while sessions only live: a third of what a heartbeat may be late

_V = TypeVar("_V")


class SessionRefused(BadConfiguration):
    """A session that can't be started; nothing was created."""


class NoSuchSession(BadConfiguration):
    """There is no session of this id, or no longer."""


class TooBusy(SluiceError):
    """The registry is written by too many at once; the request may be repeated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """One invocation's control. Raises `CallFailed` for what AWS refuses."""

    store: RegistryStore
    queues: ControlledQueues
    targets: TargetQueues
    configs: Mapping[str, SplitConfig]
    deployment: str  # the tag in the names of its temporary queues
    now_ms: NowMs
    new_token: Callable[[], str]  # twelve of a-z0-9
    may_go_on: Callable[[], bool]  # False when the function's time is nearly up
    counts_settle_ms: int = COUNTS_SETTLE_MS
    returned: Counter[str] = field(default_factory=Counter)  # messages put back in this invocation, by queue id

    def start(
        self, filters: QueueFilters, *, owner: str, key: str | None = None, time_limit_s: int | None = None
    ) -> str:
        """Starts a session; its id. It is ready when its status says so. Raises `SessionRefused`."""
        session_id = self.new_token()
        key = session_id if key is None else key
        if not KEY.fullmatch(key):
            raise SessionRefused(f"key {key[:80]!r} is not 1 to 64 letters, digits and _.@-")
        chosen = self._chosen(filters)
        event = Start(
            session_id=session_id,
            key=key,
            owner=owner,
            filters=chosen,
            names={queue_id: self._queue_name(queue_id) for queue_id in chosen},
            time_limit_s=time_limit_s,
        )
        try:
            self.advance([event], only=set(event.names.values()))
        except StartRefused as error:
            raise SessionRefused(str(error)) from error
        return session_id

    def _chosen(self, filters: QueueFilters) -> QueueFilters:
        """The filters by queue id, with `*` for every queue that isn't named."""
        unknown = filters.keys() - self.configs.keys() - {EVERY_QUEUE}
        if unknown:
            known = ", ".join(sorted(self.configs)) or "none"
            raise SessionRefused(f"no such queue: {', '.join(sorted(unknown))}; there are {known}")
        found = {queue_id: filter_of(filters, queue_id) for queue_id in self.configs}
        return {queue_id: filter_ for queue_id, filter_ in found.items() if filter_ is not None}

    def _queue_name(self, queue_id: str) -> str:
        original = self.configs[queue_id].source
        return session_queue_name(original, deployment=self.deployment, token=self.new_token())

    def stop(self, session_id: str, *, reason: str | None = None) -> None:
        """Ends a session. Raises `NoSuchSession`; one that is ending already goes on ending."""
        self._session(session_id)
        self.advance([Stop(session_id) if reason is None else Stop(session_id, reason)], only=set())

    def view(self) -> Registry:
        """The registry as it stands now, time passed included; nothing is written, and nothing done."""
        registry, _ = self.store.load()
        return apply(self._configured(registry), Tick(), now_ms=self.now_ms())

    def heartbeat(self, session_id: str) -> Session:
        """Notes that the session's owner is there; the session as it stands. Raises `NoSuchSession`."""
        session = self._session(session_id)
        if session.status in ALIVE:
            self.store.heartbeat(session_id, at_ms=self.now_ms())
        return session

    def _session(self, session_id: str) -> Session:
        session = self.store.session(session_id)
        if session is None:
            reason = self.store.ended_reason(session_id)
            cause = f"it has ended: {reason}" if reason else "it was never started here, or ended long ago"
            raise NoSuchSession(f"no session {session_id}: {cause}")
        return session

    def sweep(self) -> Sequence[str]:
        """Deletes temporary queues of this deployment that the registry doesn't know; their names."""
        # Listed before the registry is read: a queue that is being made now is known by then.
        existing = list(self.queues.names(prefix_of(self.deployment)))
        registry, _ = self.store.load()
        found = orphans(existing, registry, deployment=self.deployment)
        for name in found:
            self.queues.delete(name)
        return found

    def advance(self, events: Sequence[Event] = (Tick(),), *, only: Collection[str] | None = None) -> None:
        """Takes events in and does what falls due, until nothing more can be done now.

        `only` are the names of the queues to act on, for who is in a hurry; all of them, and others' work too, is for
        ticks, of which there is one at a time. Side by side, everybody would do everybody's work.
        """
        done: set[tuple[Action, object]] = set()
        for _ in range(MAX_ROUNDS):
            registry = self._take_in(events)
            events = [event for action in self._undone(registry, done, only) for event in self._done(action)]
            if not events:
                return
        self._take_in(events)

    def _undone(
        self, registry: Registry, done: set[tuple[Action, object]], only: Collection[str] | None
    ) -> Iterator[Action]:
        """Each action once in a given state of its queue: what isn't settled by doing it again must wait."""
        for action in due(registry, now_ms=self.now_ms()):
            name = action.name if not isinstance(action, PointConsumer) else ""
            queue = registry.queues.get(name)
            key = (action, queue and queue.state)
            if key not in done and (only is None or name in only) and self.may_go_on():
                done.add(key)
                yield action

    def _take_in(self, events: Sequence[Event]) -> Registry:
        for start in range(0, len(events), EVENTS_AT_ONCE):
            registry = self._take_in_few(events[start : start + EVENTS_AT_ONCE])
        return registry

    def _take_in_few(self, events: Sequence[Event]) -> Registry:
        for _ in range(MAX_RACES):
            before, revision = self.store.load()
            after = self._configured(before)
            for event in events:
                after = apply(after, event, now_ms=self.now_ms())
            after = _within_a_write(before, after, events)
            if self.store.save(before, after, revision=revision):
                self._remember_ended(before, after)
                return after
        raise TooBusy(f"lost {MAX_RACES} races to write the registry of sessions")

    def _remember_ended(self, before: Registry, after: Registry) -> None:
        """Their owners still ask for them."""
        for session_id in before.sessions.keys() - after.sessions.keys():
            self.store.note_ended(session_id, before.sessions[session_id].reason, at_ms=self.now_ms())

    def _configured(self, registry: Registry) -> Registry:
        """With the splits that are configured now; one that isn't any more stays while it is used."""
        used = {queue.queue_id for queue in registry.queues.values()}
        kept = {queue_id: split for queue_id, split in registry.splits.items() if queue_id in used}
        configured = {queue_id: _split(config) for queue_id, config in self.configs.items()}
        return _with_splits(registry, {**configured, **kept})

    @singledispatchmethod
    def _do(self, action: Action) -> Iterable[Event]:
        raise TypeError(f"no action for queues with a static consumer: {action!r}")

    def _done(self, action: Action) -> list[Event]:
        try:
            return list(self._do(action))
        except CallFailed as error:
            return _failed(action, error)

    @_do.register
    def _(self, action: CreateQueue) -> Iterable[Event]:
        config = self.configs.get(action.queue_id)
        if config is None:  # by a deployment in between
            return [QueueNotCreated(action.name, f"no such queue: {action.queue_id}")]
        try:
            attributes, tags = self.queues.describe(config.source)
        except QueueGone as error:
            return [QueueNotCreated(action.name, str(error))]
        self.queues.create(
            action.name,
            temporary_attributes(attributes, original_name=config.source, name=action.name),
            temporary_tags(tags, configured=config.tags),
        )
        return [QueueCreated(action.name)]

    @_do.register
    def _(self, action: ReturnLeftovers) -> Iterable[Event]:
        number, (queue_id, key) = 0, self._owner_of(action.name)
        try:
            while self.may_go_on() and (messages := self.queues.receive_batch(action.name)):
                sent = self._return(messages, action, key=key)
                number += sent
                self.returned[queue_id] += sent
                if not sent:
                    break  # without a visibility timeout they'd be received again at once, for ever
            return [LeftoversReturned(action.name, number, empty=action.final and self._is_empty(action.name))]
        except DestinationFault as error:
            if isinstance(error, QueueGone) and error.queue == action.name:
                return [LeftoversReturned(action.name, number, empty=action.final)]
            # Also where main is gone: then what is left stays where it is.
            return [LeftoversReturned(action.name, number, empty=False), CleanupFailed(action.name, str(error))]

    def _is_empty(self, name: str) -> bool:
        """Whether nothing is in it for certain."""
        registry, _ = self.store.load()
        queue = registry.queues.get(name)
        session = registry.sessions.get(queue.session_id or "") if queue else None
        ended_at_ms = session.ended_at_ms if session else None
        if ended_at_ms is not None and self.now_ms() - ended_at_ms < self.counts_settle_ms:
            return False
        return self.queues.count(name) == 0

    def _owner_of(self, queue_name: str) -> tuple[str, str]:
        """The split queue's id and the session's key; both empty for a queue that left the registry meanwhile."""
        registry, _ = self.store.load()
        queue = registry.queues.get(queue_name)
        session = registry.sessions.get(queue.session_id or "") if queue else None
        return queue.queue_id if queue else "", session.key if session else ""

    def _return(self, messages: Sequence[Message], action: ReturnLeftovers, *, key: str) -> int:
        """Sends, then deletes what was sent; what wasn't is received again after its visibility timeout."""
        fifo = action.name.endswith(FIFO_SUFFIX)
        entries = [
            Entry(position=position, target=action.to, outgoing=returned(message, key=key, fifo=fifo))
            for position, message in enumerate(messages)
        ]
        dispatcher = Dispatcher(fifo=fifo, send=self.targets.send_batch, executor=None)
        stopped = dispatcher.dispatch(entries)
        if stopped.gone:
            raise QueueGone(action.to)
        sent = [messages[entry.position] for entry in dispatcher.sent]
        if sent:
            self.queues.delete_batch(action.name, sent)
        elif dispatcher.failures:
            raise next(iter(dispatcher.failures.values()))
        return len(sent)

    @_do.register
    def _(self, action: DeleteQueue) -> Iterable[Event]:
        self.queues.delete(action.name)
        return [QueueDeleted(action.name)]

    @_do.register
    def _(self, action: CountMain) -> Iterable[Event]:
        return [MainCounted(action.queue_id, self.queues.count(action.name))]


def _split(config: SplitConfig) -> Split:
    """As the lifecycle begins with it: its consumer always reads main."""
    return Split(
        queue_id=config.queue_id,
        source=config.source,
        static=True,
        main=config.main,
        consumer_at=config.main,
        drain_timeout_s=config.drain_timeout_s,
    )


def next_tick_s(registry: Registry) -> int | None:
    """Seconds until the registry wants to be looked at again, None where nobody uses it."""
    moving = any(session.status is not Status.READY for session in registry.sessions.values())
    if moving or any(queue.condemned for queue in registry.queues.values()):
        return SOON_S
    return LATER_S if registry.sessions else None


def _failed(action: Action, error: CallFailed) -> list[Event]:
    """What the lifecycle is told of an action that AWS refused; most are just tried again at the next tick."""
    match action:
        case CreateQueue(name=name):
            return [QueueNotCreated(name, str(error))]
        case DeleteQueue(name=name):
            return [CleanupFailed(name, str(error))]
        case _:
            return []


def _within_a_write(before: Registry, after: Registry, events: Sequence[Event]) -> Registry:
    """As much of the change as one write takes: whole sessions with their queues, first those the events are about.

    The other sessions stay as they were: what follows from a state follows again at the next event.
    """
    changed = _changed(before, after)
    if sum(changed.values()) <= CHANGES_AT_ONCE:
        return after
    about, taken, room = _about(events, before), set[str](), CHANGES_AT_ONCE
    for session_id in sorted(changed, key=lambda session_id: (session_id not in about, session_id)):
        if not taken or changed[session_id] <= room:
            taken.add(session_id)
            room -= changed[session_id]
    left = changed.keys() - taken
    return replace(
        after,
        sessions=_mixed(before.sessions, after.sessions, lambda session: session.session_id in left),
        queues=_mixed(before.queues, after.queues, lambda queue: (queue.session_id or "") in left),
    )


def _changed(before: Registry, after: Registry) -> Counter[str]:
    """How many items of each session differ, its queues' too, by session id."""
    changed: Counter[str] = Counter()
    for name in before.queues.keys() | after.queues.keys():
        old, new = before.queues.get(name), after.queues.get(name)
        changed[next(queue.session_id or "" for queue in (new, old) if queue)] += old != new
    for session_id in before.sessions.keys() | after.sessions.keys():
        changed[session_id] += before.sessions.get(session_id) != after.sessions.get(session_id)
    return +changed


def _about(events: Iterable[Event], registry: Registry) -> set[str]:
    """The sessions that the events name, or whose queues they name."""
    named = {getattr(event, "name", "") for event in events}
    owners = {registry.queues[name].session_id or "" for name in named if name in registry.queues}
    return owners | {getattr(event, "session_id", "") for event in events}


def _mixed(before: Mapping[str, _V], after: Mapping[str, _V], is_left: Callable[[_V], bool]) -> dict[str, _V]:
    return {key: value for key, value in before.items() if is_left(value)} | {
        key: value for key, value in after.items() if not is_left(value)
    }


def _with_splits(registry: Registry, splits: Mapping[str, Split]) -> Registry:
    return replace(registry, splits=splits)
