"""How a link lives: what has happened to it, and so its state and what to do. Pure: time and jitter come in.

State follows from evidence: the peer's answers to heartbeats, forwards that succeed, the age of what is queued. Actions
follow from the change of state, so a step that is repeated, or comes late, does nothing twice.

    Waiting ─▶ Connecting ─▶ Operational ◀─▶ Stalled         any but Closed ─▶ Paused, Closing
       ▲            │             │             │             Paused ─▶ Connecting
       ├────────────┴─────────────┴─────────────┤ unreachable
    Failed ◀────────────────────────────────────┘ refused     Closing ─▶ Closed
"""

from dataclasses import dataclass, replace
from enum import StrEnum

BACK_OFF_MIN_S = 2
BACK_OFF_MAX_S = 64
JITTER_SHARE = 0.25  # of a wait, at most, is taken off, so that links don't come back all at once
PROBE_MS = 15 * 60_000
HEARTBEAT_MS = 60_000
STALLED_AFTER_MS = 2 * HEARTBEAT_MS
ANSWER_MS = 60_000  # a peer that hasn't answered for so long is unreachable


class State(StrEnum):
    """A link's state, by Qpid's names and two more."""

    WAITING = "Waiting"
    CONNECTING = "Connecting"
    OPERATIONAL = "Operational"
    STALLED = "Stalled"
    FAILED = "Failed"
    PAUSED = "Paused"
    CLOSING = "Closing"
    CLOSED = "Closed"


CARRYING = frozenset({State.OPERATIONAL, State.STALLED})  # the event source mapping is on
_TRYING = CARRYING | {State.CONNECTING}
_IDLE = frozenset({State.WAITING, State.FAILED})
_ENDING = frozenset({State.CLOSING, State.CLOSED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """What is known of a link, and all that must survive a restart. `endpoint` is the one in use, or the next one.

    `due_at_ms` is when it is tried again, or given up on; `failures` are those in a row.
    """

    state: State = State.WAITING
    endpoint: int = 0
    failures: int = 0
    due_at_ms: int = 0
    carrying_since_ms: int = 0
    heartbeat_sent_ms: int | None = None
    last_answer_ms: int | None = None
    last_forward_ms: int | None = None
    last_error: str | None = None
    draining: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """Time has gone by. `queued` are the messages in the link's queues, `oldest_age_ms` the age of the oldest."""

    queued: int = 0
    oldest_age_ms: int = 0


@dataclass(frozen=True, slots=True)
class Unreachable:
    """A call failed in a way that may pass."""

    error: str


@dataclass(frozen=True, slots=True)
class Refused:
    """A call was refused: access denied, no such queue."""

    error: str


class Happening(StrEnum):
    """What else happens to a link."""

    ANSWERED = "answered"  # by the peer: to the hello or to a heartbeat
    FORWARDED = "forwarded"
    PAUSE = "pause"
    RESUME = "resume"
    DRAIN = "drain"  # take in no more, and pause when the queues are empty
    RETRY = "retry"
    CLOSE = "close"
    TORN_DOWN = "torn down"


Event = Tick | Unreachable | Refused | Happening


class Action(StrEnum):
    """What the shell does."""

    CONNECT = "connect"  # says hello to the endpoint in use
    HEARTBEAT = "heartbeat"
    MAPPING_ON = "mapping on"
    MAPPING_OFF = "mapping off"
    INTAKE_ON = "intake on"  # binds the bridge queues to their exchanges
    INTAKE_OFF = "intake off"
    TEAR_DOWN = "tear down"


@dataclass(frozen=True, slots=True)
class Step:
    """What comes of an event."""

    status: Status
    actions: tuple[Action, ...]


def back_off_ms(failures: int, *, jitter: float) -> int:
    """How long to wait after so many failures in a row: 2 to 64 s, less some jitter (0 to 1)."""
    whole_s = min(BACK_OFF_MIN_S << min(max(failures, 1) - 1, BACK_OFF_MAX_S), BACK_OFF_MAX_S)
    return round(whole_s * 1_000 * (1 - JITTER_SHARE * jitter))


def step(status: Status, event: Event, *, endpoints: int, now_ms: int, jitter: float) -> Step:
    """The link after the event, and what to do.

    `endpoints` is how many the link has, `jitter` a random number from 0 to 1.
    """
    if status.state is State.CLOSED:
        return Step(status, ())
    after = _after(status, event, _Now(endpoints, now_ms, jitter))
    return Step(after, _actions(status, after))


@dataclass(frozen=True, slots=True)
class _Now:
    endpoints: int
    ms: int
    jitter: float


def _after(status: Status, event: Event, now: _Now) -> Status:
    if isinstance(event, Tick):
        return _ticked(status, event, now)
    if isinstance(event, Unreachable):
        return _unreachable(status, event.error, now)
    if isinstance(event, Refused):
        return _refused(status, event.error, now)
    if event in {Happening.ANSWERED, Happening.FORWARDED}:
        return _proved(status, event, now)
    return _told(status, event, now)


def _ticked(status: Status, tick: Tick, now: _Now) -> Status:
    if status.state in CARRYING:
        return _carried_on(status, tick, now)
    if status.state is State.PAUSED:
        return replace(status, heartbeat_sent_ms=_heartbeat_ms(status, now))
    if status.state is State.CONNECTING and now.ms >= status.due_at_ms:
        return _unreachable(status, "no answer", now)
    if status.state in _IDLE and now.ms >= status.due_at_ms:
        return _connecting(status, now)
    return status


def _carried_on(status: Status, tick: Tick, now: _Now) -> Status:
    if status.draining and tick.queued == 0:
        return replace(status, state=State.PAUSED)
    stalled = _is_silent(status, now.ms) or _is_stuck(status, tick, now.ms)
    return replace(
        status,
        state=State.STALLED if stalled else State.OPERATIONAL,
        heartbeat_sent_ms=_heartbeat_ms(status, now),
    )


def _heartbeat_ms(status: Status, now: _Now) -> int:
    """When the last heartbeat was sent: now, where one is due. Paused links have them too: a pause may get lost."""
    sent_ms = status.heartbeat_sent_ms
    return now.ms if sent_ms is None or now.ms - sent_ms >= HEARTBEAT_MS else sent_ms


def _is_silent(status: Status, now_ms: int) -> bool:
    heard = max(status.carrying_since_ms, status.last_answer_ms or 0, status.last_forward_ms or 0)
    return now_ms - heard > STALLED_AFTER_MS


def _is_stuck(status: Status, tick: Tick, now_ms: int) -> bool:
    moved = max(status.carrying_since_ms, status.last_forward_ms or 0)
    return tick.oldest_age_ms > STALLED_AFTER_MS and now_ms - moved > STALLED_AFTER_MS


def _connecting(status: Status, now: _Now) -> Status:
    return replace(status, state=State.CONNECTING, due_at_ms=now.ms + ANSWER_MS)


def _unreachable(status: Status, error: str, now: _Now) -> Status:
    # Many batches report one outage: only the first is a failure.
    if status.state not in _TRYING:
        return status
    failures = status.failures + 1
    return replace(
        status,
        state=State.WAITING,
        endpoint=(status.endpoint + 1) % now.endpoints,
        failures=failures,
        due_at_ms=now.ms + back_off_ms(failures, jitter=now.jitter),
        last_error=error,
    )


def _refused(status: Status, error: str, now: _Now) -> Status:
    if status.state not in _TRYING | {State.WAITING}:
        return status
    return replace(
        status,
        state=State.FAILED,
        endpoint=(status.endpoint + 1) % now.endpoints,
        failures=status.failures + 1,
        due_at_ms=now.ms + PROBE_MS,
        last_error=error,
    )


def _proved(status: Status, event: Happening, now: _Now) -> Status:
    """The peer is there. A forward says so only of a link that carries: it may have been long under way."""
    if event is Happening.FORWARDED:
        noted = replace(status, last_forward_ms=now.ms)
        return replace(noted, state=State.OPERATIONAL) if status.state in CARRYING else noted
    noted = replace(status, last_answer_ms=now.ms)
    if status.state is State.CONNECTING:
        # The hello was a heartbeat, too.
        return replace(
            noted,
            state=State.OPERATIONAL,
            failures=0,
            last_error=None,
            carrying_since_ms=now.ms,
            heartbeat_sent_ms=now.ms,
        )
    return noted


def _told(status: Status, event: Event, now: _Now) -> Status:
    """What an operator asks for."""
    if status.state in _ENDING:
        return replace(status, state=State.CLOSED) if event is Happening.TORN_DOWN else status
    if event is Happening.CLOSE:
        return replace(status, state=State.CLOSING)
    if event is Happening.PAUSE:
        return replace(status, state=State.PAUSED)
    if event is Happening.RETRY:
        return _connecting(status, now) if status.state in _IDLE else status
    if event is Happening.DRAIN or event is Happening.RESUME:
        flowing = _connecting(status, now) if status.state is State.PAUSED else status
        return replace(flowing, draining=event is Happening.DRAIN)
    return status


def _actions(before: Status, after: Status) -> tuple[Action, ...]:
    """What the change asks for: stop before anything else starts."""
    carried, carries = before.state in CARRYING, after.state in CARRYING
    asked = {
        Action.MAPPING_OFF: carried and not carries,
        Action.INTAKE_OFF: after.draining and not before.draining,
        Action.INTAKE_ON: before.draining and not after.draining,
        Action.MAPPING_ON: carries and not carried,
        Action.CONNECT: after.state is State.CONNECTING and before.state is not State.CONNECTING,
        Action.HEARTBEAT: _is_kept_up(before, after) and after.heartbeat_sent_ms != before.heartbeat_sent_ms,
        Action.TEAR_DOWN: after.state is State.CLOSING and before.state is not State.CLOSING,
    }
    return tuple(action for action, is_asked in asked.items() if is_asked)


def _is_kept_up(before: Status, after: Status) -> bool:
    """Whether the link carried on, or stayed paused."""
    return (before.state in CARRYING and after.state in CARRYING) or before.state is after.state is State.PAUSED
