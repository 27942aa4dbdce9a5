"""How much of a change goes into one write: a transaction takes so many items, and a change may be larger. Pure."""

from collections import Counter
from collections.abc import Sequence

from msgspec.structs import replace

from sluice.splitting.sessions.events import Event
from sluice.splitting.sessions.state import Registry

# Of queues and sessions in one write: a DynamoDB transaction has 100 items, and each of 15 splits may have two.
CHANGES_AT_ONCE = 60


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
