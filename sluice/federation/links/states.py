"""A link's state machine. Pure: time and jitter are arguments.

State follows from evidence: the peer's answers to heartbeats, and successful forwards. Hellos are sent only on a change
of state, so repeating a step sends nothing.

    Waiting ─▶ Connecting ─▶ Operational ◀─▶ Stalled         any ─▶ Paused, Closing
       ▲            │             │             │             Paused ─▶ Connecting
       ├────────────┴─────────────┴─────────────┤ unreachable
    Failed ◀────────────────────────────────────┘ refused
"""

from enum import StrEnum

import msgspec
from msgspec.structs import replace

from sluice.codec import Struct

BACK_OFF_MIN_S = 2
BACK_OFF_MAX_S = 64
JITTER_SHARE = 0.25  # Jitter shortens a pause by up to this share, so that links don't reconnect all at once.
PROBE_MS = 2 * 60_000
HEARTBEAT_INTERVAL_MS = 60_000  # pause between sweeps; each sweep sends heartbeats
HEARTBEAT_DUE_MS = HEARTBEAT_INTERVAL_MS * 3 // 4  # a heartbeat is due after this time, as a sweep may come early
STALL_CHECK_MS = 2 * HEARTBEAT_INTERVAL_MS  # a link that has shown no sign of life for longer is stalled
ANSWER_TIMEOUT_MS = 60_000  # a peer that hasn't answered a hello for longer is unreachable


class LinkState(StrEnum):
    """A link's state. Most names are Qpid's."""

    WAITING = "Waiting"
    CONNECTING = "Connecting"
    OPERATIONAL = "Operational"
    STALLED = "Stalled"
    FAILED = "Failed"
    PAUSED = "Paused"
    CLOSING = "Closing"


CARRYING = frozenset({LinkState.OPERATIONAL, LinkState.STALLED})  # The event source mapping is enabled in these states.
_TRYING = CARRYING | {LinkState.CONNECTING}
_IDLE = frozenset({LinkState.WAITING, LinkState.FAILED})


class LinkStatus(Struct, frozen=True, kw_only=True):
    """A link's stored status. `endpoint` is the index of the current or next endpoint.

    `due_at_ms` is the time of the next attempt to connect, or when the attempt times out. `failures` counts consecutive
    failures.
    """

    state: LinkState = LinkState.WAITING
    endpoint: int = 0
    failures: int = 0
    due_at_ms: int = 0
    carrying_since_ms: int = 0
    heartbeat_sent_ms: int | None = None
    last_answer_ms: int | None = None
    last_forward_ms: int | None = None
    last_error: str | None = None
    draining: bool = False

    @property
    def is_ending(self) -> bool:
        """Whether the link is closing. No route can be added to such a link."""
        return self.state is LinkState.CLOSING


class TimePassed(msgspec.Struct, frozen=True, kw_only=True):
    """A tick, after which actions may be due. `queued` is the number of messages in a draining link's queues.

    `waiting_since_ms` is the latest time at which the oldest waiting message can have arrived.
    """

    queued: int = 0
    waiting_since_ms: int | None = None


class Unreachable(msgspec.Struct, frozen=True):
    """A call to the peer failed with a transient error. `at_ms` is the time of the failure, None if it is current."""

    error: str
    at_ms: int | None = None


class AccessRefused(msgspec.Struct, frozen=True):
    """A call to the peer was refused (access denied or no such queue). `at_ms` is its time, None if it is current."""

    error: str
    at_ms: int | None = None


class Command(StrEnum):
    """A command of an operator for a link or a route."""

    PAUSE = "pause"
    RESUME = "resume"
    DRAIN = "drain"  # the link or route gets no new messages, and pauses when its queues are empty
    RETRY = "retry"


class Intent(StrEnum):
    """A route's desired state; its actual state also depends on its resources and link."""

    OPEN = "open"
    PAUSED = "paused"  # the route's queue keeps new messages
    DRAINING = "draining"  # the route's queue gets no new messages
    CLOSED = "closed"  # the route is removed when its queue is empty


class LinkEvent(StrEnum):
    """An event of a link that is neither a command nor a failure."""

    ANSWERED = "answered"  # the peer answered a hello or a heartbeat
    FORWARDED = "forwarded"
    CLOSE = "close"


LinkUpdate = TimePassed | Unreachable | AccessRefused | Command | LinkEvent


def backoff_ms(failures: int, *, jitter: float) -> int:
    """Return the pause after consecutive failures, in milliseconds: 2 to 64 seconds, shortened by jitter (0 to 1)."""
    whole_s = min(BACK_OFF_MIN_S << min(max(failures, 1) - 1, BACK_OFF_MAX_S), BACK_OFF_MAX_S)
    return round(whole_s * 1_000 * (1 - JITTER_SHARE * jitter))


def step(  # noqa: C901, PLR0911, PLR0912 - one case a kind of news
    status: LinkStatus, update: LinkUpdate, *, endpoints: int, now_ms: int, jitter: float
) -> LinkStatus:
    """Return a link's status after an update. The link has `endpoints` endpoints. `jitter` is random, 0 to 1."""
    state = status.state
    connecting = replace(status, state=LinkState.CONNECTING, due_at_ms=now_ms + ANSWER_TIMEOUT_MS)
    failing = replace(status, endpoint=(status.endpoint + 1) % endpoints, failures=status.failures + 1)
    waiting = replace(failing, state=LinkState.WAITING, due_at_ms=now_ms + backoff_ms(failing.failures, jitter=jitter))
    match update:
        case Unreachable(at_ms=int(at_ms)) | AccessRefused(at_ms=int(at_ms)) if at_ms < max(
            status.carrying_since_ms, status.last_answer_ms or 0
        ):
            return status  # this report is outdated, as the link has worked since then
        case TimePassed() if state in CARRYING or state is LinkState.PAUSED:
            return _check_heartbeat(status, update, now_ms)
        case TimePassed() if state is LinkState.CONNECTING and now_ms >= status.due_at_ms:
            return replace(waiting, last_error="no answer")
        case TimePassed() if state in _IDLE and now_ms >= status.due_at_ms:
            return connecting
        case Unreachable(error=error) if state in _TRYING:  # only an outage's first report counts
            return replace(waiting, last_error=error)
        case AccessRefused(error=error) if state in _TRYING or state is LinkState.WAITING:
            return replace(failing, state=LinkState.FAILED, due_at_ms=now_ms + PROBE_MS, last_error=error)
        case LinkEvent.FORWARDED:  # a late report can't reconnect a link
            return replace(status, state=LinkState.OPERATIONAL if state in CARRYING else state, last_forward_ms=now_ms)
        case LinkEvent.ANSWERED if state is LinkState.CONNECTING:
            return replace(
                status,
                state=LinkState.OPERATIONAL,
                failures=0,
                last_error=None,
                carrying_since_ms=now_ms,
                heartbeat_sent_ms=now_ms,  # the hello counts as a heartbeat
                last_answer_ms=now_ms,
            )
        case LinkEvent.ANSWERED:
            return replace(status, last_answer_ms=now_ms)
        case LinkEvent.CLOSE:
            return replace(status, state=LinkState.CLOSING)
        case Command.PAUSE if state is not LinkState.CLOSING:
            return replace(status, state=LinkState.PAUSED)
        case Command.RETRY if state in _IDLE:
            return connecting
        case Command.DRAIN | Command.RESUME if state is not LinkState.CLOSING:
            return replace(connecting if state is LinkState.PAUSED else status, draining=update is Command.DRAIN)
        case _:
            return status


def _check_heartbeat(status: LinkStatus, passed: TimePassed, now_ms: int) -> LinkStatus:
    """Apply a tick to an operational or paused link. A paused link sends heartbeats, too, as its hello may get lost."""
    if status.state in CARRYING and status.draining and passed.queued == 0:
        return replace(status, state=LinkState.PAUSED)
    state, sent_ms = status.state, status.heartbeat_sent_ms
    if state in CARRYING:
        heard_ms = max(status.carrying_since_ms, status.last_answer_ms or 0, status.last_forward_ms or 0)
        waits_since_ms = max(
            status.carrying_since_ms, now_ms if passed.waiting_since_ms is None else passed.waiting_since_ms
        )
        is_stalled = now_ms - min(heard_ms, waits_since_ms) > STALL_CHECK_MS
        state = LinkState.STALLED if is_stalled else LinkState.OPERATIONAL
    is_due = sent_ms is None or now_ms - sent_ms >= HEARTBEAT_DUE_MS
    return replace(status, state=state, heartbeat_sent_ms=now_ms if is_due else sent_ms)


def should_notify_peer(before: LinkStatus, after: LinkStatus, *, served: bool) -> bool:
    """Whether the change requires a hello to the peer. A `served` link relies on the peer's heartbeats."""
    if after.state is LinkState.CONNECTING and before.state is not LinkState.CONNECTING:
        return True
    was_paused, is_paused = before.state is LinkState.PAUSED, after.state is LinkState.PAUSED
    goes_on = {before.state, after.state} <= CARRYING or (was_paused and is_paused)
    beats = goes_on and after.heartbeat_sent_ms != before.heartbeat_sent_ms
    if served:
        # The peer's message that it closed the link may be lost. So a silent peer is asked if the link exists.
        return beats and after.state in {LinkState.STALLED, LinkState.PAUSED}
    return beats or after.draining != before.draining or was_paused is not is_paused
