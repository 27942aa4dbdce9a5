"""Derives the transitions that follow from the registry's state, and limits them to one write. Pure.

What makes it safe:
- A queue's name is in the registry before the queue is made, and leaves it after the queue is gone.
- A splitter first announces itself with the version it has read, then reads the version again, and only then routes by
  it (again, if it changed). One that hasn't announced itself for `SPLITTER_LEASE_S`, which is more than a batch may
  take, runs no batch. So once every live splitter has seen a version, nobody routes by an older one.
- A queue that is no longer routed to is emptied, and deleted only once it has been seen empty after that.
"""

from collections import Counter
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from sluice.splitting.sessions.events import Event
from sluice.splitting.sessions.state import ALIVE, Phase, QueueState, Registry, Session, Split, Status

SPLITTER_READS_WITHIN_MS = 1_500  # a batch begins with a version at most a second old; clocks differ
# "After you create a queue, you must wait at least one second after the queue is created to be able to use the queue":
# https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_CreateQueue.html
QUEUE_IS_USED_AFTER_MS = 1_200
DRAIN_QUIET_S = 60  # SQS's counts are right within a minute of the last change
# Of queues and sessions in one write: a DynamoDB transaction has 100 items, and each of 15 splits may have two.
CHANGES_AT_ONCE = 60
KEEP_FAILED_S = 3_600  # how long a session that failed to start can be looked at


def apply(registry: Registry, event: Event, *, now_ms: int) -> Registry:
    """Take the event and all that follows from it into the registry. Raises `SessionRefused`."""
    registry = event(registry, now_ms)
    while True:  # each rule moves things forward only, so this ends
        before = registry
        for rule in RULES:
            registry = rule(registry, now_ms)
        if registry == before:
            return registry


def make_resources_ready(registry: Registry, now_ms: int) -> Registry:
    """Route to sessions whose queues are there, and whose consumers read main."""
    for session in registry.sessions.values():
        if session.status is not Status.STARTING:
            continue
        splits = [registry.splits[queue_id] for queue_id in session.filters]
        are_moved = all(
            split.static or (split.forwards and registry.find_consumers(split.queue_id).splitter_on) for split in splits
        )
        if are_moved and all(
            queue.state is QueueState.CREATED for queue in registry.list_session_queues(session.session_id)
        ):
            registry = registry.with_routing_changed()
            ready = replace(
                session,
                status=Status.RESOURCES_READY,
                changed_at_version=registry.version,
                changed_at_ms=now_ms,
            )
            registry = registry.with_session(ready)
    return registry


def make_ready(registry: Registry, now_ms: int) -> Registry:
    """Make those ready whom messages will find: a splitter at rest announces itself with its next batch."""
    for session in registry.sessions.values():
        made_ms = now_ms - session.changed_at_ms
        if session.status is not Status.RESOURCES_READY or made_ms < QUEUE_IS_USED_AFTER_MS:
            continue
        all_have_seen = registry.all_have_seen(session.changed_at_version, now_ms=now_ms)
        if all_have_seen or made_ms >= SPLITTER_READS_WITHIN_MS:
            registry = registry.with_session(replace(session, status=Status.READY, heartbeat_at_ms=now_ms))
    return registry


def move_splits(registry: Registry, now_ms: int) -> Registry:
    """Take each split one phase on, where it is time."""
    for split in registry.splits.values():
        match split.phase:
            case Phase.ACTIVE if not _is_used(registry, split) and split.static:
                moved = replace(split, phase=Phase.IDLE, phase_since_ms=now_ms, quiet_since_ms=None)
            case Phase.ACTIVE if not _is_used(registry, split):
                moved = replace(split, phase=Phase.RELEASING, phase_since_ms=now_ms)
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
                registry = registry.with_routing_changed()  # a deployment may have given it a main queue meanwhile
                moved = replace(split, phase=Phase.IDLE, main=None)
            case _:
                continue
        registry = registry.with_split(moved)
    return registry


def _is_used(registry: Registry, split: Split) -> bool:
    """Whether a session lives, or the queue of one that ended still has to be emptied into main."""
    lives = any(session.status in ALIVE and split.queue_id in session.filters for session in registry.sessions.values())
    return lives or any(
        queue.queue_id == split.queue_id and queue.session_id is not None for queue in registry.queues.values()
    )


def _is_drained(registry: Registry, split: Split, now_ms: int) -> bool:
    """Whether the consumer has read what is in main, as far as order asks for it: the rest goes back to the source.

    Nobody forwards to main any more by then, nor will.
    """
    if not registry.all_have_seen(split.released_at_version, now_ms=now_ms):
        return False
    main = registry.queues.get(split.main or "")
    if main is None or main.state is QueueState.PLANNED:
        return True  # the first session failed before there was a main queue
    quiet_s = DRAIN_QUIET_S if split.fifo else 0
    if split.quiet_since_ms is not None and now_ms - split.quiet_since_ms >= quiet_s * 1_000:
        return True
    return split.drain_timeout_s is not None and now_ms - split.phase_since_ms >= split.drain_timeout_s * 1_000


def forget(registry: Registry, now_ms: int) -> Registry:
    """Let sessions go whose queues are gone; those that failed to start stay to be looked at."""
    owners = {queue.session_id for queue in registry.queues.values()}

    def is_over(session: Session) -> bool:
        if session.status in ALIVE or session.session_id in owners:
            return False
        if session.status is not Status.START_ERROR or session.ended_at_ms is None:
            return True
        return now_ms - session.ended_at_ms >= KEEP_FAILED_S * 1_000

    left = {session_id: session for session_id, session in registry.sessions.items() if not is_over(session)}
    return replace(registry, sessions=left)


RULES: tuple[Callable[[Registry, int], Registry], ...] = (make_resources_ready, make_ready, move_splits, forget)


def within_a_write(before: Registry, after: Registry, events: Sequence[Event]) -> Registry:
    """Take as much of the change as one write: whole sessions with their queues, first those the events are about.

    The other sessions stay as they were: what follows from a state follows again at the next event.
    """
    changed: Counter[str] = Counter()  # items by session id, those of its queues too
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
