"""Events of sessions, their queues, the deployed consumers and the splitter's trigger. Pure.

A call of an event takes the registry and the current time, and returns the new registry. A late or repeated event
changes nothing. `rules` derive further transitions from the new state.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from sluice.codec import pick_shared_fields
from sluice.errors import BadConfiguration
from sluice.splitting.filters.values import MAX_SESSIONS, Mode, QueueFilter
from sluice.splitting.policies import Policy, list_refusals
from sluice.splitting.sessions.state import ALIVE, Phase, QueueState, Reason, Registry, Session, Status, TemporaryQueue

SETUP_LIMIT_S = 180
MOVING_SETUP_LIMIT_S = 900  # the limit for sessions that re-point consumers, for example by a rollout
HEARTBEAT_LIMIT_S = 30
MAX_REASON_CHARACTERS = 1_000

Event = Callable[[Registry, int], Registry]


class SessionRefused(BadConfiguration):
    """A session can't be started. Nothing was changed or created."""


class SessionRequested(msgspec.Struct, frozen=True, kw_only=True):
    """A session was requested. `names` are its queues' names; `main_names` are for splits without a main queue."""

    session_id: str
    key: str
    owner: str
    filters: Mapping[str, QueueFilter]
    names: Mapping[str, str]
    main_names: Mapping[str, str] = msgspec.field(default_factory=dict)
    user_id: str | None = None
    name: str = ""
    linger_s: int = 0
    time_limit_s: int | None = None
    policies: Sequence[Policy] = ()

    def __call__(self, registry: Registry, now_ms: int) -> Registry:
        """Add the session and its planned queues to the registry. Raises `SessionRefused`."""
        if self.session_id in registry.sessions:
            return registry
        self._refuse(registry)
        for queue_id in self.filters:
            registry = self._open_split(registry, queue_id, now_ms)
        session = Session(**pick_shared_fields(self, Session), started_at_ms=now_ms, heartbeat_at_ms=now_ms)
        planned = [
            TemporaryQueue(
                name=self.names[queue_id],
                queue_id=queue_id,
                session_id=self.session_id,
                mirror=queue_filter.mode is Mode.MIRROR,
            )
            for queue_id, queue_filter in self.filters.items()
        ]
        return registry.with_session(session).with_queues(planned)

    def _refuse(self, registry: Registry) -> None:
        if len(registry.sessions) >= MAX_SESSIONS:
            raise SessionRefused(f"there are {MAX_SESSIONS} sessions already")
        unknown = [queue_id for queue_id in self.filters if queue_id not in registry.splits]
        if unknown:
            raise SessionRefused(f"no such queue: {', '.join(sorted(unknown))}")
        alive = [session for session in registry.sessions.values() if session.status in ALIVE]
        broken = [
            refusal
            for queue_id, queue_filter in self.filters.items()
            for refusal in list_refusals(
                self.policies,
                queue_id,
                queue_filter,
                time_limit_s=self.time_limit_s,
                sessions=sum(queue_id in session.filters for session in alive),
            )
        ]
        if broken:
            raise SessionRefused("; ".join(broken))
        names = [*self.names.values(), *self.main_names.values()]
        are_new = len({*names, *registry.queues}) == len(names) + len(registry.queues)
        if self.names.keys() < self.filters.keys() or not are_new:
            raise SessionRefused("each queue needs a new name")

    def _open_split(self, registry: Registry, queue_id: str, now_ms: int) -> Registry:
        """Make the split active, with a main queue. A releasing or draining split keeps its main queue."""
        split = registry.splits[queue_id]
        if split.phase is Phase.ACTIVE:
            return registry
        opened = replace(split, phase=Phase.ACTIVE, phase_since_ms=now_ms, quiet_since_ms=None, is_drain_over=False)
        if split.phase in {Phase.IDLE, Phase.RESTORING} and not split.static:
            main = self.main_names.get(queue_id)
            if main is None:
                raise SessionRefused(f"{queue_id} needs a name for its main queue")
            opened = replace(opened, main=main)
            registry = registry.with_queues([TemporaryQueue(name=main, queue_id=queue_id)])
        return registry.with_split(opened).with_routing_changed()


class SessionStopped(msgspec.Struct, frozen=True):
    """A caller requested the end of a session."""

    session_id: str
    reason: str = Reason.STOPPED

    def __call__(self, registry: Registry, now_ms: int) -> Registry:
        """End the session, unless it is closing already."""
        session = registry.sessions.get(self.session_id)
        if session is None or session.status not in ALIVE:
            return registry
        return registry.with_ended(session, self.reason, now_ms=now_ms)


class QueueCreated(msgspec.Struct, frozen=True):
    """A planned temporary queue was created."""

    name: str

    def __call__(self, registry: Registry, _now_ms: int) -> Registry:
        """Mark the queue as created."""
        queue = registry.queues.get(self.name)
        if queue is None or queue.state is not QueueState.PLANNED:
            return registry
        split = replace(registry.splits[queue.queue_id], not_moved="")
        return registry.with_queues([replace(queue, state=QueueState.CREATED)]).with_split(split)


class QueueNotCreated(msgspec.Struct, frozen=True):
    """A planned temporary queue can't be created, so the sessions that wait for the queue fail."""

    name: str
    reason: str

    def __call__(self, registry: Registry, now_ms: int) -> Registry:
        """End the sessions that wait for the queue."""
        queue = registry.queues.get(self.name)
        if queue is None or queue.condemned:
            return registry
        for session in registry.sessions.values():
            is_main = queue.session_id is None and queue.queue_id in session.filters
            if session.status is Status.STARTING and (is_main or session.session_id == queue.session_id):
                registry = registry.with_ended(session, self.reason, now_ms=now_ms)
        return registry


class LeftoversReturned(msgspec.Struct, frozen=True):
    """Messages of a condemned queue were returned. `empty`: after this, the queue had none, not even in flight."""

    name: str
    number: int
    empty: bool

    def __call__(self, registry: Registry, _now_ms: int) -> Registry:
        """Add the number of returned messages, and mark the queue as emptied if it is empty."""
        queue = registry.queues.get(self.name)
        if queue is None or not queue.condemned:
            return registry
        state = QueueState.EMPTIED if self.empty else queue.state
        return registry.with_queues([replace(queue, returned=queue.returned + self.number, state=state)])


class QueueDeleted(msgspec.Struct, frozen=True):
    """A temporary queue was deleted, or never existed.

    If the queue isn't condemned, somebody else deleted it. Then it stays in the registry, the splitter skips it, and
    its session ends by other limits.
    """

    name: str

    def __call__(self, registry: Registry, _now_ms: int) -> Registry:
        """Remove the queue from the registry, if it was condemned."""
        queue = registry.queues.get(self.name)
        if queue is None or not queue.condemned:
            return registry
        return replace(registry, queues={name: kept for name, kept in registry.queues.items() if name != self.name})


class CleanupFailed(msgspec.Struct, frozen=True):
    """A condemned queue can't be emptied or deleted now. The next tick tries it again."""

    name: str
    reason: str

    def __call__(self, registry: Registry, _now_ms: int) -> Registry:
        """Append the first failure of this kind to the reason for the session's end."""
        queue = registry.queues.get(self.name)
        session = registry.sessions.get(queue.session_id or "") if queue is not None else None
        if session is None or session.status is not Status.CLOSING:
            return registry
        reason = f"{session.reason}; its queue isn't cleaned up yet: {self.reason}"
        return registry.with_session(replace(session, status=Status.CLEANUP_ERROR, reason=reason))


class MainCounted(msgspec.Struct, frozen=True):
    """SQS counted the messages of a draining main queue: visible, in flight and delayed messages together."""

    queue_id: str
    messages: int

    def __call__(self, registry: Registry, now_ms: int) -> Registry:
        """Store the time since which the main queue has been empty."""
        split = registry.splits.get(self.queue_id)
        if split is None or split.phase is not Phase.DRAINING:
            return registry
        since_ms = now_ms if split.quiet_since_ms is None else split.quiet_since_ms
        return registry.with_split(replace(split, quiet_since_ms=None if self.messages else since_ms))


class DrainEnded(msgspec.Struct, frozen=True):
    """An operator ended the drain or linger time of a queue: its main queue's messages return to the source."""

    queue_id: str

    def __call__(self, registry: Registry, _now_ms: int) -> Registry:
        """Mark the drain as over, even if it hasn't begun yet."""
        split = registry.splits.get(self.queue_id)
        if split is None or not split.is_releasable:
            return registry
        return registry.with_split(replace(split, is_drain_over=split.phase is not Phase.ACTIVE, lingers_until_ms=0))


class TimePassed(msgspec.Struct, frozen=True):
    """Time has passed since the registry was written."""

    def __call__(self, registry: Registry, now_ms: int) -> Registry:
        """End sessions that have exceeded a limit, and remove splitters that were silent for their lease.

        `splitters` has the announcements that were read before this change. A new splitter may still announce the
        previous version while this change creates the next version.
        """
        registry = registry.with_queues(self._find_unused_queues(registry, now_ms))
        for session in registry.sessions.values():
            are_static = all(registry.splits[queue_id].static for queue_id in session.filters)
            setup_limit_s = SETUP_LIMIT_S if are_static else MOVING_SETUP_LIMIT_S
            reason = self._find_exceeded_limit(session, now_ms, setup_limit_s=setup_limit_s)
            if reason is Reason.SETUP_DEADLINE_EXCEEDED:
                causes = filter(None, (registry.splits[queue_id].not_moved for queue_id in session.filters))
                text = ": ".join(filter(None, [reason, "; ".join(causes)]))[:MAX_REASON_CHARACTERS]
                registry = registry.with_ended(session, text, now_ms=now_ms)
            elif reason is not None:
                registry = registry.with_ended(session, reason, now_ms=now_ms)
        live = {splitter: seen for splitter, seen in registry.splitters.items() if seen.is_live(now_ms)}
        return replace(registry, splitters=live)

    @staticmethod
    def _find_unused_queues(registry: Registry, now_ms: int) -> Iterator[TemporaryQueue]:
        """Yield condemned queues to which no splitter sends any more, as all have seen the end of the session."""
        for queue in registry.queues.values():
            if queue.session_id is None or not queue.condemned or queue.quiet_since_ms is not None:
                continue
            session = registry.sessions.get(queue.session_id)
            if session is None or registry.all_route_by(session.changed_at_version, now_ms=now_ms):
                yield replace(queue, quiet_since_ms=now_ms)

    @staticmethod
    def _find_exceeded_limit(session: Session, now_ms: int, *, setup_limit_s: int) -> Reason | None:
        """Return the limit that a session has exceeded, if any. Only a ready session needs heartbeats."""
        age_s = (now_ms - session.started_at_ms) / 1_000
        if session.status not in ALIVE:
            return None
        if session.status is not Status.READY and age_s >= setup_limit_s:
            return Reason.SETUP_DEADLINE_EXCEEDED
        if session.time_limit_s is not None and age_s >= session.time_limit_s:
            return Reason.TIME_LIMIT_EXCEEDED
        if session.status is Status.READY and now_ms - session.heartbeat_at_ms >= HEARTBEAT_LIMIT_S * 1_000:
            return Reason.UNUSED
        return None


class ConsumersSeen(msgspec.Struct, frozen=True):
    """The original states of consumers were read, by index, before any of these consumers was changed."""

    queue_id: str
    originals: Mapping[int, str]

    def __call__(self, registry: Registry, _now_ms: int) -> Registry:
        """Store the original state of each consumer once. While the split is at rest, its consumers read the source."""
        known, split = registry.find_consumers(self.queue_id), registry.splits.get(self.queue_id)
        if split is None:
            return registry
        seen = tuple(
            replace(consumer, original=self.originals[place], at=split.source)
            if consumer.original is None and place in self.originals
            else consumer
            for place, consumer in enumerate(known.consumers)
        )
        return registry if seen == known.consumers else registry.with_consumers(replace(known, consumers=seen))


class ConsumersSent(msgspec.Struct, frozen=True):
    """The consumers of a split will be moved to the queue `to`. From now on they may read either queue."""

    queue_id: str
    to: str

    def __call__(self, registry: Registry, _now_ms: int) -> Registry:
        """Store the consumers' new queue, and mark their current queue as unknown."""
        known, split = registry.find_consumers(self.queue_id), registry.splits.get(self.queue_id)
        if split is None:
            return registry
        sent = tuple(
            replace(consumer, to=self.to) if consumer.to is None and consumer.at not in {None, self.to} else consumer
            for consumer in known.consumers
        )
        if sent == known.consumers:
            return registry
        return registry.with_consumers(replace(known, consumers=sent)).with_split(replace(split, consumer_at=None))


class ConsumerMoved(msgspec.Struct, frozen=True):
    """A consumer was moved: all its readers now read the queue `at`."""

    queue_id: str
    place: int
    at: str

    def __call__(self, registry: Registry, _now_ms: int) -> Registry:
        """Store the consumer's queue, unless it is being moved to another queue. The source is always accepted."""
        known, split = registry.find_consumers(self.queue_id), registry.splits.get(self.queue_id)
        if split is None or self.place >= len(known.consumers):
            return registry
        moved = list(known.consumers)
        if self.at not in {moved[self.place].at, moved[self.place].to, split.source}:
            return registry
        moved[self.place] = replace(moved[self.place], at=self.at, to=None)
        return registry.with_consumers(replace(known, consumers=tuple(moved)))


class ConsumerStrayed(msgspec.Struct, frozen=True):
    """A consumer of a split reads the source again, although Sluice didn't move it there."""

    queue_id: str
    place: int

    def __call__(self, registry: Registry, _now_ms: int) -> Registry:
        """Store the consumer's queue. Splitters pause until it is moved back: two readers would break the order."""
        known, split = registry.find_consumers(self.queue_id), registry.splits.get(self.queue_id)
        if split is None or split.consumer_at is None or self.place >= len(known.consumers):
            return registry
        strayed = list(known.consumers)
        if split.consumer_at != split.main or strayed[self.place].at != split.main:
            return registry
        strayed[self.place] = replace(strayed[self.place], at=split.source)
        changed = registry.with_routing_changed() if split.may_forward else registry
        return changed.with_consumers(replace(known, consumers=tuple(strayed))).with_split(
            replace(split, consumer_at=None)
        )


class ConsumerPointed(msgspec.Struct, frozen=True):
    """All deployed consumers of a split read the queue `at`."""

    queue_id: str
    at: str

    def __call__(self, registry: Registry, _now_ms: int) -> Registry:
        """Store the consumers' queue, which decides whether splitters forward messages."""
        split = registry.splits.get(self.queue_id)
        if split is None or split.consumer_at == self.at:
            return registry
        pointed = replace(split, consumer_at=self.at, not_moved="")
        changed = registry if pointed.may_forward == split.may_forward else registry.with_routing_changed()
        return changed.with_split(pointed)


class ConsumerNotMoved(msgspec.Struct, frozen=True):
    """A consumer, the splitter's trigger or a temporary queue can't be changed now. The next tick tries it again."""

    queue_id: str
    reason: str

    def __call__(self, registry: Registry, _now_ms: int) -> Registry:
        """Store the reason, which operators see until all consumers are moved, or the queue is created."""
        split = registry.splits.get(self.queue_id)
        if split is None:
            return registry
        return registry.with_split(replace(split, not_moved=self.reason[:MAX_REASON_CHARACTERS]))


class ConsumerRefused(msgspec.Struct, frozen=True):
    """A consumer can't be re-pointed until an operator fixes the reason, so the sessions that wait for it fail."""

    queue_id: str
    reason: str

    def __call__(self, registry: Registry, now_ms: int) -> Registry:
        """End the sessions that wait for the consumer."""
        for session in registry.sessions.values():
            if session.status in ALIVE and self.queue_id in session.filters:
                registry = registry.with_ended(session, self.reason, now_ms=now_ms)
        return registry


class SplitterSwitched(msgspec.Struct, frozen=True):
    """The splitter's trigger was seen enabled or disabled; None while it is being switched."""

    queue_id: str
    on: bool | None

    def __call__(self, registry: Registry, _now_ms: int) -> Registry:
        """Store the trigger's state."""
        known = registry.find_consumers(self.queue_id)
        if known.splitter_on is self.on:
            return registry
        return registry.with_consumers(replace(known, splitter_on=self.on))


class ConsumersHeld(msgspec.Struct, frozen=True):
    """An invocation holds a split's consumers exclusively until `until_ms`; 0 releases the consumers."""

    queue_id: str
    by: str
    until_ms: int = 0

    def __call__(self, registry: Registry, now_ms: int) -> Registry:
        """Store the hold, unless another invocation holds the consumers."""
        known = registry.find_consumers(self.queue_id)
        if known.held_by != self.by and (not self.until_ms or (known.held_by and now_ms < known.held_until_ms)):
            return registry
        return registry.with_consumers(
            replace(known, held_by=self.by if self.until_ms else "", held_until_ms=self.until_ms)
        )
