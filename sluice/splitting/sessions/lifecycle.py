"""What becomes of sessions and their queues: the registry's state and its transitions. Pure: clock readings come in.

`apply` takes an event into the registry; `due` says what is to be done next. What is due follows from the state alone,
and every action may be done twice: so whoever comes by, after whatever crash, goes on where the last one stopped.

What makes it safe:
- A queue's name is in the registry before the queue is made, and leaves it after the queue is gone.
- A splitter first announces itself with the version it has read, then reads the version again, and only then routes by
  it (again, if it changed). One that hasn't announced itself for `SPLITTER_LEASE_S`, which is more than a batch may
  take, runs no batch. So once every live splitter has seen a version, nobody routes by an older one.
- A queue that is no longer routed to is emptied, and deleted only once it has been seen empty after that.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import singledispatch
from typing import TypeVar

from sluice.splitting.filters.files import Mode, QueueFilter
from sluice.splitting.routing.names import is_ours
from sluice.splitting.routing.shares import MAX_SESSIONS, Share

SETUP_LIMIT_S = 180
HEARTBEAT_LIMIT_S = 30
SPLITTER_LEASE_S = 30
SPLITTER_READS_WITHIN_MS = 1_500  # a batch begins with a version at most a second old; clocks differ
DRAIN_QUIET_S = 60  # SQS's counts are right within a minute of the last change
KEEP_FAILED_S = 3_600  # how long a session that failed to start can be looked at

_V = TypeVar("_V")


class Status(StrEnum):
    """How far a session has come."""

    STARTING = "Starting"
    RESOURCES_READY = "ResourcesReady"
    READY = "Ready"
    CLOSING = "Closing"
    START_ERROR = "StartError"
    CLEANUP_ERROR = "CleanupError"


ROUTED = frozenset({Status.RESOURCES_READY, Status.READY})
ALIVE = ROUTED | {Status.STARTING}


class Reason(StrEnum):
    """Why a session ended, beside what AWS says."""

    STOPPED = "Stopped"
    SETUP_DEADLINE_EXCEEDED = "SetupDeadlineExceeded"
    UNUSED = "Unused"
    TIME_LIMIT_EXCEEDED = "TimeLimitExceeded"
    FILTER_TIMED_OUT = "FilterTimedOut"


class QueueState(StrEnum):
    """How far a temporary queue has come."""

    PLANNED = "planned"  # recorded; it may or may not be there
    CREATED = "created"
    EMPTIED = "emptied"  # no longer routed to, and seen empty since


class Phase(StrEnum):
    """How far a split queue has come. With a static consumer only the first two occur."""

    IDLE = "idle"  # no sessions
    ACTIVE = "active"
    DRAINING = "draining"  # the deployed consumer reads main until it is empty
    RELEASING = "releasing"  # splitters are to stop forwarding to main
    RESTORING = "restoring"  # what is left of main goes back to the source, the consumer too


@dataclass(frozen=True, slots=True, kw_only=True)
class TemporaryQueue:
    """A queue that the lifecycle made. Without a session it is a main queue. `returned` counts messages put back."""

    name: str
    queue_id: str
    session_id: str | None = None
    mirror: bool = False
    state: QueueState = QueueState.PLANNED
    condemned: bool = False
    returned: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """A split queue. `main` is the deployed consumer's: the stacks' own with a static consumer, else a temporary one.

    `consumer_at` is the queue that the consumer has been seen to be pointed at. `drain_timeout_s` None is no limit.
    """

    queue_id: str
    source: str
    static: bool
    main: str | None = None
    consumer_at: str | None = None
    drain_timeout_s: int | None = None
    phase: Phase = Phase.IDLE
    phase_since_ms: int = 0
    quiet_since_ms: int | None = None
    released_at_version: int = 0

    @property
    def wanted_consumer_at(self) -> str | None:
        """The queue that the consumer should read."""
        return self.source if self.phase in {Phase.IDLE, Phase.RESTORING} else self.main


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """A session: who, since when, its filter for each of its queues, and when it was last heard of."""

    session_id: str
    key: str
    owner: str
    started_at_ms: int
    filters: Mapping[str, QueueFilter]
    heartbeat_at_ms: int
    time_limit_s: int | None = None
    status: Status = Status.STARTING
    reason: str = ""
    changed_at_version: int = 0
    changed_at_ms: int = 0
    ended_at_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Sighting:
    """A splitter's last announcement: the version that it routes by, and when."""

    version: int
    at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Registry:
    """Everything that the lifecycle knows. `version` changes with everything that splitters have to know."""

    version: int = 0
    splits: Mapping[str, Split] = field(default_factory=dict)
    sessions: Mapping[str, Session] = field(default_factory=dict)
    queues: Mapping[str, TemporaryQueue] = field(default_factory=dict)
    splitters: Mapping[str, Sighting] = field(default_factory=dict)


# Events


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """A session is asked for, with its queues' names; `main_names` are used where a split has no main queue yet."""

    session_id: str
    key: str
    owner: str
    filters: Mapping[str, QueueFilter]
    names: Mapping[str, str]
    main_names: Mapping[str, str] = field(default_factory=dict)
    time_limit_s: int | None = None


@dataclass(frozen=True, slots=True)
class QueueCreated:
    """A planned queue is there."""

    name: str


@dataclass(frozen=True, slots=True)
class QueueNotCreated:
    """A planned queue can't be made: the sessions that wait for it fail."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class ConsumerPointed:
    """The deployed consumer of a split reads this queue."""

    queue_id: str
    at: str


@dataclass(frozen=True, slots=True)
class SplitterSaw:
    """A splitter announces itself: it routes by this version."""

    splitter_id: str
    version: int


@dataclass(frozen=True, slots=True)
class SplitterGone:
    """A splitter says that it will run no more."""

    splitter_id: str


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A session's owner is there."""

    session_id: str


@dataclass(frozen=True, slots=True)
class Stop:
    """A session is to end."""

    session_id: str
    reason: str = Reason.STOPPED


@dataclass(frozen=True, slots=True)
class LeftoversReturned:
    """A pass over a condemned queue put so many messages back; `empty` where then not even one in flight was left."""

    name: str
    number: int
    empty: bool


@dataclass(frozen=True, slots=True)
class QueueDeleted:
    """A queue is gone, or never was."""

    name: str


@dataclass(frozen=True, slots=True)
class CleanupFailed:
    """A condemned queue can't be emptied or deleted for now; it will be tried again."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class MainCounted:
    """SQS's counts of a draining main queue: visible, in flight and delayed together."""

    queue_id: str
    messages: int


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


Event = (
    Start | QueueCreated | QueueNotCreated | ConsumerPointed | SplitterSaw | SplitterGone | Heartbeat | Stop
    | LeftoversReturned | QueueDeleted | CleanupFailed | MainCounted | Tick
)  # fmt: skip


# Actions


@dataclass(frozen=True, slots=True)
class CreateQueue:
    """Make it like the split's source. Answer with `QueueCreated` or `QueueNotCreated`."""

    name: str
    queue_id: str


@dataclass(frozen=True, slots=True)
class PointConsumer:
    """Let the deployed consumer read this queue. Answer with `ConsumerPointed`."""

    queue_id: str
    at: str


@dataclass(frozen=True, slots=True)
class ReturnLeftovers:
    """Send what is in the queue to `to`, then delete it from the queue. Answer with `LeftoversReturned`.

    Where it isn't `final`, somebody may still send to the queue: whether it was empty then means nothing.
    """

    name: str
    to: str
    final: bool = True


@dataclass(frozen=True, slots=True)
class DeleteQueue:
    """Answer with `QueueDeleted`, also where it didn't exist, or with `CleanupFailed`."""

    name: str


@dataclass(frozen=True, slots=True)
class CountMain:
    """Answer with `MainCounted`."""

    queue_id: str
    name: str


Action = CreateQueue | PointConsumer | ReturnLeftovers | DeleteQueue | CountMain


@dataclass(frozen=True, slots=True)
class Step:
    """An event's outcome: the registry to be written, then what to do."""

    registry: Registry
    actions: tuple[Action, ...]


class StartRefused(ValueError):  # translated by the control function, which knows how to say it
    """The session can't be taken on; nothing was changed."""


def step(registry: Registry, event: Event, *, now_ms: int) -> Step:
    """Takes the event in. The registry is to be written, on the condition that it is as it was read, before acting."""
    after = apply(registry, event, now_ms=now_ms)
    return Step(after, tuple(due(after, now_ms=now_ms)))


def apply(registry: Registry, event: Event, *, now_ms: int) -> Registry:
    """The registry after the event and all that follows from it. Events that come late or twice change nothing.

    Raises `StartRefused`.
    """
    return _settled(_apply(event, registry, now_ms), now_ms)


# What is due


def due(registry: Registry, *, now_ms: int) -> Iterator[Action]:
    """Everything to be done in this state, all of it safe to do again."""
    for split in registry.splits.values():
        yield from _due_of_split(registry, split)
    for queue in registry.queues.values():
        yield from _due_of_queue(registry, queue, now_ms=now_ms)


def _due_of_split(registry: Registry, split: Split) -> Iterator[Action]:
    wanted = split.wanted_consumer_at
    if not split.static and wanted is not None and split.consumer_at != wanted and _is_there(registry, split, wanted):
        yield PointConsumer(split.queue_id, wanted)
    if split.phase is Phase.DRAINING and split.main is not None:
        yield CountMain(split.queue_id, split.main)


def _is_there(registry: Registry, split: Split, name: str) -> bool:
    queue = registry.queues.get(name)
    return name == split.source or (queue is not None and queue.state is QueueState.CREATED)


def _due_of_queue(registry: Registry, queue: TemporaryQueue, *, now_ms: int) -> Iterator[Action]:
    if not queue.condemned:
        if queue.state is QueueState.PLANNED:
            yield CreateQueue(queue.name, queue.queue_id)
    elif not _is_quiet(registry, queue, now_ms=now_ms):
        if queue.session_id is not None and not queue.mirror and queue.state is QueueState.CREATED:
            # The deployed consumer needn't wait for splitters at rest to have seen the end.
            yield ReturnLeftovers(queue.name, _home(registry, queue), final=False)
    elif queue.mirror or queue.state is not QueueState.CREATED:
        # A mirroring session's messages were copies: the deployed consumer has had them.
        yield DeleteQueue(queue.name)
    else:
        yield ReturnLeftovers(queue.name, _home(registry, queue))


def _is_quiet(registry: Registry, queue: TemporaryQueue, *, now_ms: int) -> bool:
    """Whether nobody sends to the condemned queue any more, nor is pointed at it."""
    if queue.session_id is not None:
        session = registry.sessions.get(queue.session_id)
        return session is None or all_have_seen(registry, session.changed_at_version, now_ms=now_ms)
    # A main queue is condemned only once every splitter has let go of it.
    return registry.splits[queue.queue_id].consumer_at != queue.name


def _home(registry: Registry, queue: TemporaryQueue) -> str:
    """Where leftovers go: to main, and from main itself, or where main never came to be, to the source."""
    split = registry.splits[queue.queue_id]
    if queue.session_id is None or split.main is None:
        return split.source
    return split.main if split.static or _is_there(registry, split, split.main) else split.source


def all_have_seen(registry: Registry, version: int, *, now_ms: int) -> bool:
    """Whether every live splitter routes by this version or a later one."""
    return all(sighting.version >= version for sighting in _live(registry, now_ms))


def _live(registry: Registry, now_ms: int) -> Iterable[Sighting]:
    return (sighting for sighting in registry.splitters.values() if now_ms - sighting.at_ms < SPLITTER_LEASE_S * 1_000)


# What splitters read


def shares_of(registry: Registry, queue_id: str) -> list[Share]:
    """The shares that the splitter of this queue routes by, at the registry's version."""
    return [
        Share(
            session_id=session.session_id,
            key=session.key,
            started_at_ms=session.started_at_ms,
            filter=session.filters[queue_id].filter,
            mode=session.filters[queue_id].mode,
        )
        for session in registry.sessions.values()
        if session.status in ROUTED and queue_id in session.filters
    ]


def queue_of(registry: Registry, session_id: str, queue_id: str) -> str | None:
    """The name of the session's queue for this split queue."""
    return next(
        (
            queue.name
            for queue in registry.queues.values()
            if queue.session_id == session_id and queue.queue_id == queue_id
        ),
        None,
    )


def forwards(split: Split) -> bool:
    """Whether a splitter reads this split's source at all; else the deployed consumer does."""
    return split.static or split.phase in {Phase.ACTIVE, Phase.DRAINING}


# The sweep


def orphans(existing: Iterable[str], registry: Registry, *, deployment: str) -> list[str]:
    """Of the queues that exist, those of this deployment that the registry doesn't know: to be deleted.

    The queues are to be listed before the registry is read: then a queue that has just been made is known.
    """
    return [name for name in existing if is_ours(name, deployment=deployment) and name not in registry.queues]


# Transitions


@singledispatch
def _apply(event: Event, _registry: Registry, _now_ms: int) -> Registry:
    raise TypeError(f"no event: {event!r}")


@_apply.register
def _(event: Start, registry: Registry, now_ms: int) -> Registry:
    if event.session_id in registry.sessions:
        return registry
    _refuse(event, registry)
    session = Session(
        session_id=event.session_id,
        key=event.key,
        owner=event.owner,
        started_at_ms=now_ms,
        filters=dict(event.filters),
        heartbeat_at_ms=now_ms,
        time_limit_s=event.time_limit_s,
    )
    for queue_id in event.filters:
        registry = _opened(registry, queue_id, main_name=event.main_names.get(queue_id), now_ms=now_ms)
    planned = [
        TemporaryQueue(
            name=event.names[queue_id],
            queue_id=queue_id,
            session_id=event.session_id,
            mirror=filter_.mode is Mode.MIRROR,
        )
        for queue_id, filter_ in event.filters.items()
    ]
    return _with_queues(_with_session(registry, session), planned)


def _refuse(event: Start, registry: Registry) -> None:
    if len(registry.sessions) >= MAX_SESSIONS:
        raise StartRefused(f"there are {MAX_SESSIONS} sessions already")
    unknown = [queue_id for queue_id in event.filters if queue_id not in registry.splits]
    if unknown:
        raise StartRefused(f"no such queue: {', '.join(sorted(unknown))}")
    names = [*event.names.values(), *event.main_names.values()]
    if event.names.keys() < event.filters.keys() or len({*names, *registry.queues}) < len(names) + len(registry.queues):
        raise StartRefused("each queue needs a new name")


def _opened(registry: Registry, queue_id: str, *, main_name: str | None, now_ms: int) -> Registry:
    """The split with a main queue. One that drains, or has let go of nothing yet, is taken over as it is."""
    split = registry.splits[queue_id]
    if split.phase is Phase.ACTIVE:
        return registry
    opened = replace(split, phase=Phase.ACTIVE, phase_since_ms=now_ms, quiet_since_ms=None)
    if split.phase in {Phase.IDLE, Phase.RESTORING} and not split.static:
        if main_name is None:
            raise StartRefused(f"{queue_id} needs a name for its main queue")
        opened = replace(opened, main=main_name)
        registry = _with_queues(registry, [TemporaryQueue(name=main_name, queue_id=queue_id)])
    return _routing_changed(_with_split(registry, opened))


@_apply.register
def _(event: QueueCreated, registry: Registry, _now_ms: int) -> Registry:
    queue = registry.queues.get(event.name)
    if queue is None or queue.state is not QueueState.PLANNED:
        return registry
    return _with_queues(registry, [replace(queue, state=QueueState.CREATED)])


@_apply.register
def _(event: QueueNotCreated, registry: Registry, now_ms: int) -> Registry:
    queue = registry.queues.get(event.name)
    if queue is None or queue.condemned:
        return registry
    waiting = [
        session
        for session in registry.sessions.values()
        if session.status is Status.STARTING
        and (session.session_id == queue.session_id or (queue.session_id is None and queue.queue_id in session.filters))
    ]
    for session in waiting:
        registry = _ended(registry, session, event.reason, now_ms)
    return registry


@_apply.register
def _(event: ConsumerPointed, registry: Registry, _now_ms: int) -> Registry:
    split = registry.splits.get(event.queue_id)
    return registry if split is None else _with_split(registry, replace(split, consumer_at=event.at))


@_apply.register
def _(event: SplitterSaw, registry: Registry, now_ms: int) -> Registry:
    seen = Sighting(min(event.version, registry.version), now_ms)
    return replace(registry, splitters={**registry.splitters, event.splitter_id: seen})


@_apply.register
def _(event: SplitterGone, registry: Registry, _now_ms: int) -> Registry:
    return replace(registry, splitters=_without(registry.splitters, {event.splitter_id}))


@_apply.register
def _(event: Heartbeat, registry: Registry, now_ms: int) -> Registry:
    session = registry.sessions.get(event.session_id)
    return registry if session is None else _with_session(registry, replace(session, heartbeat_at_ms=now_ms))


@_apply.register
def _(event: Stop, registry: Registry, now_ms: int) -> Registry:
    session = registry.sessions.get(event.session_id)
    if session is None or session.status not in ALIVE:
        return registry
    return _ended(registry, session, event.reason, now_ms)


@_apply.register
def _(event: LeftoversReturned, registry: Registry, _now_ms: int) -> Registry:
    queue = registry.queues.get(event.name)
    if queue is None or not queue.condemned:
        return registry
    state = QueueState.EMPTIED if event.empty else queue.state
    return _with_queues(registry, [replace(queue, returned=queue.returned + event.number, state=state)])


@_apply.register
def _(event: QueueDeleted, registry: Registry, _now_ms: int) -> Registry:
    queue = registry.queues.get(event.name)
    if queue is None or not queue.condemned:
        # Not by us: the splitter passes over a queue that has vanished, and its session ends by its own limits.
        return registry
    return replace(registry, queues=_without(registry.queues, {event.name}))


@_apply.register
def _(event: CleanupFailed, registry: Registry, _now_ms: int) -> Registry:
    queue = registry.queues.get(event.name)
    session = registry.sessions.get(queue.session_id or "") if queue is not None else None
    if session is None or session.status not in {Status.CLOSING, Status.CLEANUP_ERROR}:
        return registry
    return _with_session(registry, replace(session, status=Status.CLEANUP_ERROR, reason=event.reason))


@_apply.register
def _(event: MainCounted, registry: Registry, now_ms: int) -> Registry:
    split = registry.splits.get(event.queue_id)
    if split is None or split.phase is not Phase.DRAINING:
        return registry
    since_ms = now_ms if split.quiet_since_ms is None else split.quiet_since_ms
    return _with_split(registry, replace(split, quiet_since_ms=None if event.messages else since_ms))


@_apply.register
def _(_event: Tick, registry: Registry, now_ms: int) -> Registry:
    for session in registry.sessions.values():
        reason = _overdue(session, now_ms)
        if reason is not None:
            registry = _ended(registry, session, reason, now_ms)
    gone = {
        splitter_id
        for splitter_id, sighting in registry.splitters.items()
        if now_ms - sighting.at_ms >= SPLITTER_LEASE_S * 1_000
    }
    return replace(registry, splitters=_without(registry.splitters, gone))


def _overdue(session: Session, now_ms: int) -> Reason | None:
    """The limit that a session has exceeded. One that is being set up is waited for, not asked for heartbeats."""
    age_s = (now_ms - session.started_at_ms) / 1_000
    if session.status not in ALIVE:
        return None
    if session.status is not Status.READY and age_s >= SETUP_LIMIT_S:
        return Reason.SETUP_DEADLINE_EXCEEDED
    if session.time_limit_s is not None and age_s >= session.time_limit_s:
        return Reason.TIME_LIMIT_EXCEEDED
    if session.status is Status.READY and now_ms - session.heartbeat_at_ms >= HEARTBEAT_LIMIT_S * 1_000:
        return Reason.UNUSED
    return None


def _ended(registry: Registry, session: Session, reason: str, now_ms: int) -> Registry:
    """Nothing is routed to the session any more; its queues are condemned."""
    failed = session.status is not Status.READY and reason not in {Reason.STOPPED, Reason.TIME_LIMIT_EXCEEDED}
    registry = _routing_changed(registry)
    ended = replace(
        session,
        status=Status.START_ERROR if failed else Status.CLOSING,
        reason=reason,
        changed_at_version=registry.version,
        changed_at_ms=now_ms,
        ended_at_ms=now_ms,
    )
    condemned = [replace(queue, condemned=True) for queue in _queues_of(registry, session.session_id)]
    return _with_queues(_with_session(registry, ended), condemned)


# What follows from a state without any further event


def _settled(registry: Registry, now_ms: int) -> Registry:
    """Follows all consequences; each rule moves things forward only, so this ends."""
    while True:
        before = registry
        for rule in _RULES:
            registry = rule(registry, now_ms)
        if registry == before:
            return registry


def _resources_ready(registry: Registry, now_ms: int) -> Registry:
    for session in registry.sessions.values():
        if session.status is Status.STARTING and _has_resources(registry, session):
            registry = _routing_changed(registry)
            ready = replace(
                session,
                status=Status.RESOURCES_READY,
                changed_at_version=registry.version,
                changed_at_ms=now_ms,
            )
            registry = _with_session(registry, ready)
    return registry


def _has_resources(registry: Registry, session: Session) -> bool:
    splits = [registry.splits[queue_id] for queue_id in session.filters]
    return all(queue.state is QueueState.CREATED for queue in _queues_of(registry, session.session_id)) and all(
        split.static or (split.main is not None and split.consumer_at == split.main) for split in splits
    )


def _ready(registry: Registry, now_ms: int) -> Registry:
    ready = [
        replace(session, status=Status.READY, heartbeat_at_ms=now_ms)
        for session in registry.sessions.values()
        if session.status is Status.RESOURCES_READY and _is_seen(registry, session, now_ms)
    ]
    return replace(registry, sessions={**registry.sessions, **{session.session_id: session for session in ready}})


def _is_seen(registry: Registry, session: Session, now_ms: int) -> bool:
    """Whether messages sent from now on find the session: a splitter at rest announces itself with its next batch."""
    seen = all_have_seen(registry, session.changed_at_version, now_ms=now_ms)
    return seen or now_ms - session.changed_at_ms >= SPLITTER_READS_WITHIN_MS


def _forgotten(registry: Registry, now_ms: int) -> Registry:
    """Sessions leave when their queues are gone; those that failed to start stay to be looked at."""
    owners = {queue.session_id for queue in registry.queues.values()}
    gone = {
        session.session_id
        for session in registry.sessions.values()
        if session.status not in ALIVE and session.session_id not in owners and _may_be_forgotten(session, now_ms)
    }
    return replace(registry, sessions=_without(registry.sessions, gone)) if gone else registry


def _may_be_forgotten(session: Session, now_ms: int) -> bool:
    if session.status is not Status.START_ERROR or session.ended_at_ms is None:
        return True
    return now_ms - session.ended_at_ms >= KEEP_FAILED_S * 1_000


def _splits_moved(registry: Registry, now_ms: int) -> Registry:
    for split in registry.splits.values():
        registry = _moved(registry, split, now_ms)
    return registry


def _moved(registry: Registry, split: Split, now_ms: int) -> Registry:
    match split.phase:
        case Phase.ACTIVE if not _is_used(registry, split):
            phase = Phase.IDLE if split.static else Phase.DRAINING
            return _with_split(registry, replace(split, phase=phase, phase_since_ms=now_ms, quiet_since_ms=None))
        case Phase.DRAINING if _drained(registry, split, now_ms):
            registry = _routing_changed(registry)
            released = replace(split, phase=Phase.RELEASING, released_at_version=registry.version)
            return _with_split(registry, released)
        case Phase.RELEASING if all_have_seen(registry, split.released_at_version, now_ms=now_ms):
            return _restoring(registry, split)
        case Phase.RESTORING if split.consumer_at == split.source and split.main not in registry.queues:
            return _with_split(registry, replace(split, phase=Phase.IDLE, main=None))
        case _:
            return registry


def _restoring(registry: Registry, split: Split) -> Registry:
    registry = _with_split(registry, replace(split, phase=Phase.RESTORING))
    main = registry.queues.get(split.main or "")
    return registry if main is None else _with_queues(registry, [replace(main, condemned=True)])


def _is_used(registry: Registry, split: Split) -> bool:
    """Whether a session lives, or the queue of one that ended still has to be emptied into main."""
    lives = any(session.status in ALIVE and split.queue_id in session.filters for session in registry.sessions.values())
    return lives or any(
        queue.queue_id == split.queue_id and queue.session_id is not None for queue in registry.queues.values()
    )


def _drained(registry: Registry, split: Split, now_ms: int) -> bool:
    main = registry.queues.get(split.main or "")
    if main is None or main.state is QueueState.PLANNED:
        return True  # the first session failed before there was a main queue
    if split.quiet_since_ms is not None and now_ms - split.quiet_since_ms >= DRAIN_QUIET_S * 1_000:
        return True
    return split.drain_timeout_s is not None and now_ms - split.phase_since_ms >= split.drain_timeout_s * 1_000


_RULES: tuple[Callable[[Registry, int], Registry], ...] = (_resources_ready, _ready, _splits_moved, _forgotten)


# Changes


def _routing_changed(registry: Registry) -> Registry:
    return replace(registry, version=registry.version + 1)


def _queues_of(registry: Registry, session_id: str) -> list[TemporaryQueue]:
    return [queue for queue in registry.queues.values() if queue.session_id == session_id]


def _with_session(registry: Registry, session: Session) -> Registry:
    return replace(registry, sessions={**registry.sessions, session.session_id: session})


def _with_split(registry: Registry, split: Split) -> Registry:
    return replace(registry, splits={**registry.splits, split.queue_id: split})


def _with_queues(registry: Registry, queues: Iterable[TemporaryQueue]) -> Registry:
    return replace(registry, queues={**registry.queues, **{queue.name: queue for queue in queues}})


def _without(mapping: Mapping[str, _V], keys: Collection[str]) -> dict[str, _V]:
    return {key: value for key, value in mapping.items() if key not in keys}
