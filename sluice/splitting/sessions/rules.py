"""Derives the transitions that follow from the registry's state, and limits them to one write. Pure.

These rules make splitting safe:
- A queue's name is added to the registry before the queue is created, and removed after the queue is deleted.
- A splitter first announces the version that it has read, then reads the version again, and routes by it only if it is
  unchanged; otherwise it repeats this. A splitter without an announcement for `SPLITTER_LEASE_S`, longer than any batch
  takes, runs no batch. So once every live splitter has seen a version, none routes by an older one.
- A queue to which nothing is routed any more is emptied, and deleted only after it was seen empty.
"""

from collections import Counter
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from sluice.splitting.sessions.events import Event
from sluice.splitting.sessions.state import ALIVE, Phase, QueueState, Registry, Session, Split, Status

SPLITTER_READS_WITHIN_MS = 1_500  # A batch uses a registry at most a second old; half a second is for clock skew.
# "After you create a queue, you must wait at least one second after the queue is created to be able to use the queue":
# https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_CreateQueue.html
QUEUE_IS_USED_AFTER_MS = 1_200
DRAIN_QUIET_S = 60  # SQS's counts are correct within a minute of the last change.
# A DynamoDB transaction has 100 items. Besides these queues and sessions, each of 15 splits may add two items.
CHANGES_AT_ONCE = 60
KEEP_FAILED_S = 3_600  # Owners can read for this time why a session failed to start.


def apply(registry: Registry, event: Event, *, now_ms: int) -> Registry:
    """Apply the event, and all transitions that follow from it. Raises `SessionRefused`."""
    registry = event(registry, now_ms)
    while True:  # This loop ends, because no rule moves a state back.
        before = registry
        for rule in RULES:
            registry = rule(registry, now_ms)
        if registry == before:
            return registry


def make_resources_ready(registry: Registry, now_ms: int) -> Registry:
    """Begin to route messages to sessions whose queues exist and whose re-pointed consumers read the main queue."""
    for session in registry.sessions.values():
        if session.status is not Status.STARTING:
            continue
        splits = [registry.splits[queue_id] for queue_id in session.filters]
        are_moved = all(
            split.static or (split.may_forward and registry.find_consumers(split.queue_id).splitter_on)
            for split in splits
        )
        if are_moved and all(
            queue.state is QueueState.CREATED for queue in registry.list_session_queues(session.session_id)
        ):
            registry = registry.with_routing_changed()
            session_ready = replace(
                session, status=Status.RESOURCES_READY, changed_at_version=registry.version, changed_at_ms=now_ms
            )
            registry = registry.with_session(session_ready)
    return registry


def mark_sessions_ready(registry: Registry, now_ms: int) -> Registry:
    """Mark sessions as ready if messages will reach them. Idle splitters read the sessions before their next batch."""
    for session in registry.sessions.values():
        made_ms = now_ms - session.changed_at_ms
        if session.status is not Status.RESOURCES_READY or made_ms < QUEUE_IS_USED_AFTER_MS:
            continue
        all_have_seen = registry.all_route_by(session.changed_at_version, now_ms=now_ms)
        if all_have_seen or made_ms >= SPLITTER_READS_WITHIN_MS:
            registry = registry.with_session(replace(session, status=Status.READY, heartbeat_at_ms=now_ms))
    return registry


def move_splits(registry: Registry, now_ms: int) -> Registry:
    """Move each split to its next phase, if the phase is due."""
    for split in registry.splits.values():
        match split.phase:
            case Phase.ACTIVE if not _is_used(registry, split, now_ms) and split.static:
                moved = replace(split, phase=Phase.IDLE, phase_since_ms=now_ms, quiet_since_ms=None)
            case Phase.ACTIVE if not _is_used(registry, split, now_ms):
                moved = replace(split, phase=Phase.RELEASING, phase_since_ms=now_ms, lingers_until_ms=0)
            case Phase.RELEASING if registry.find_consumers(split.queue_id).splitter_on is False:
                registry = registry.with_routing_changed()
                moved = replace(
                    split,
                    phase=Phase.DRAINING,
                    phase_since_ms=now_ms,
                    quiet_since_ms=None,
                    released_at_version=registry.version,
                )
            case Phase.DRAINING if _is_drained(registry, split, now_ms):
                moved = replace(split, phase=Phase.RESTORING)
                main = registry.queues.get(split.main or "")
                registry = registry if main is None else registry.with_queues([replace(main, condemned=True)])
            case Phase.RESTORING if split.consumer_at == split.source and split.main not in registry.queues:
                registry = registry.with_routing_changed()  # A deployment may have configured a main queue.
                moved = replace(split, phase=Phase.IDLE, main=None)
            case _:
                continue
        registry = registry.with_split(moved)
    return registry


def _is_used(registry: Registry, split: Split, now_ms: int) -> bool:
    """Return whether the split is still needed: for a live session, a linger time, or a queue to be emptied."""
    if not split.static and now_ms < split.lingers_until_ms:
        return True
    lives = any(session.status in ALIVE and split.queue_id in session.filters for session in registry.sessions.values())
    return lives or any(
        queue.queue_id == split.queue_id and queue.session_id is not None for queue in registry.queues.values()
    )


def _is_drained(registry: Registry, split: Split, now_ms: int) -> bool:
    """Return whether main's remaining messages can be returned: no splitter sends to it, and order is kept."""
    if not registry.all_route_by(split.released_at_version, now_ms=now_ms):
        return False
    main = registry.queues.get(split.main or "")
    if main is None or main.state is QueueState.PLANNED:
        return True  # The first session failed before main was created.
    if not split.fifo or split.is_drain_over:
        return True
    if split.quiet_since_ms is not None and now_ms - split.quiet_since_ms >= DRAIN_QUIET_S * 1_000:
        return True
    return split.drain_timeout_s is not None and now_ms - split.phase_since_ms >= split.drain_timeout_s * 1_000


def forget(registry: Registry, now_ms: int) -> Registry:
    """Remove sessions whose queues are deleted. Sessions that failed to start are kept for a while."""
    owners = {queue.session_id for queue in registry.queues.values()}

    def is_removable(session: Session) -> bool:
        if session.status in ALIVE or session.session_id in owners:
            return False
        if session.status is not Status.START_ERROR or session.ended_at_ms is None:
            return True
        return now_ms - session.ended_at_ms >= KEEP_FAILED_S * 1_000

    left = {session_id: session for session_id, session in registry.sessions.items() if not is_removable(session)}
    return replace(registry, sessions=left)


RULES: Sequence[Callable[[Registry, int], Registry]] = (make_resources_ready, mark_sessions_ready, move_splits, forget)


def limit_changes(before: Registry, after: Registry, events: Sequence[Event]) -> Registry:
    """Limit the change to one write: whole sessions with their queues, first the sessions that the events are about.

    Other sessions stay as they were; the next event derives their transitions again from the state.
    """
    changed: Counter[str] = Counter()  # numbers of changed items by session id, with the session's queues
    for name in before.queues.keys() | after.queues.keys():
        old, new = before.queues.get(name), after.queues.get(name)
        changed[next(queue.session_id or "" for queue in (new, old) if queue)] += old != new
    for session_id in before.sessions.keys() | after.sessions.keys():
        changed[session_id] += before.sessions.get(session_id) != after.sessions.get(session_id)
    if changed.total() <= CHANGES_AT_ONCE:
        return after
    about = {getattr(event, "session_id", "") for event in events}
    for name in {getattr(event, "name", "") for event in events} & before.queues.keys():
        about.add(before.queues[name].session_id or "")
    left, room = set[str](), CHANGES_AT_ONCE
    for session_id in sorted(+changed, key=lambda session_id: (session_id not in about, session_id)):
        if changed[session_id] <= room or room == CHANGES_AT_ONCE:
            room -= changed[session_id]
        else:
            left.add(session_id)
    queues = {name: queue for name, queue in before.queues.items() if (queue.session_id or "") in left} | {
        name: queue for name, queue in after.queues.items() if (queue.session_id or "") not in left
    }
    sessions = {session_id: session for session_id, session in before.sessions.items() if session_id in left} | {
        session_id: session for session_id, session in after.sessions.items() if session_id not in left
    }
    return replace(after, sessions=sessions, queues=queues)
