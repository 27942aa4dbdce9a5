"""What a splitter remembers of how sessions behaved: whom it passes over, and whom it has cancelled. Time comes in."""

from collections.abc import Callable
from dataclasses import dataclass, field

from sluice.splitting.ports import NowS
from sluice.splitting.sessions.state import Reason

PASSED_OVER_S = (
    60.0  # after a cancellation: if control is late or its message lost, the session is tried, and told, again
)
AGAIN_AFTER_S = 2.0  # SQS doesn't find a queue in its first second; and one batch is one time
AGAIN_WITHIN_S = 600.0
MAX_TOLD = 50  # cancellations of one batch, each of them a request; the others are told of by the next
MAX_WORDS = 200  # characters of a queue's refusal

# What may happen to a session that does nothing wrong: a slow moment, a queue that isn't to be found yet.
FORGIVEN_ONCE = frozenset({Reason.FILTER_TOO_SLOW, Reason.QUEUE_GONE})

Tell = Callable[[str, str], None]  # has control cancel a session, by id, for this reason; raises nothing


@dataclass(slots=True, kw_only=True)
class Conduct:
    """What one splitter's environment keeps from batch to batch, of sessions by id. Not for threads."""

    now_s: NowS
    tell: Tell
    _passed_over: dict[str, float] = field(default_factory=dict)  # until when
    _noted: dict[tuple[str, Reason], float] = field(default_factory=dict)  # since when
    _told: int = 0

    def begin(self) -> set[str]:
        """Begin a batch: the sessions that it is to pass over."""
        now = self.now_s()
        self._told = 0
        self._passed_over = {session_id: until for session_id, until in self._passed_over.items() if until > now}
        self._noted = {each: at for each, at in self._noted.items() if at > now - AGAIN_WITHIN_S}
        return set(self._passed_over)

    def note(self, session_id: str, reason: Reason, words: str = "") -> None:
        """Have control cancel the session, at once or, of what is forgiven once, when it happens again."""
        now = self.now_s()
        if reason in FORGIVEN_ONCE and now - self._noted.setdefault((session_id, reason), now) < AGAIN_AFTER_S:
            return
        if session_id in self._passed_over or self._told >= MAX_TOLD:
            return
        self._told += 1
        self._passed_over[session_id] = now + PASSED_OVER_S
        self.tell(session_id, f"{reason}: {words[:MAX_WORDS]}" if words else reason)
