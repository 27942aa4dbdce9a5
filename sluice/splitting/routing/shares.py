"""Sessions as routing sees them: each one's share in one split queue, in order. Pure."""

import msgspec

from sluice.splitting.filters.values import Filter, Mode

MAX_SESSIONS = 1_000


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """What one session asks of one split queue. `key` is the session's, as its copies carry it.

    `since_ms`: since when messages are routed to it.
    """

    session_id: str
    key: str
    started_at_ms: int
    since_ms: int = 0
    filter: Filter
    mode: Mode = Mode.STEAL

    @property
    def order(self) -> tuple[int, str]:
        """The session that started first gets the message."""
        return self.started_at_ms, self.session_id
