"""What the control function is asked, and what it says of queues and sessions. Pure.

The command line is one asker, the schedule's rule, ticks and splitters are the others.
"""

from collections.abc import Mapping
from typing import Annotated, Literal

from msgspec import Meta

from sluice.codec import Struct
from sluice.operations import Operation
from sluice.splitting.filters.values import MAX_QUEUES, Mode, QueueFilter
from sluice.splitting.sessions.state import Status

MAX_TIME_LIMIT_S = 7 * 24 * 60 * 60

Text = Annotated[str, Meta(min_length=1)]


# What it says


class QueueView(Struct, frozen=True, kw_only=True):
    """A queue that can be split. `source` is the URL that producers send to, `main` that of its consumer now.

    `rules` are what policies ask of its sessions, each in a few words.
    """

    queue_id: str
    source: str
    main: str
    fifo: bool
    sns: bool
    s3_event: bool
    rules: tuple[str, ...] = ()


class SessionQueueView(Struct, frozen=True, kw_only=True):
    """A session's queue, without name and URL where it isn't there. `returned` counts messages put back."""

    queue_id: str
    mode: Mode
    name: str | None
    url: str | None
    returned: int


class SessionView(Struct, frozen=True, kw_only=True, tag_field="is", tag="known"):
    """A session that the registry knows. `messages` is how many it was sent."""

    session_id: str
    key: str
    owner: str
    status: Status
    reason: str
    started_at_ms: int
    heartbeat_at_ms: int
    messages: int
    filters: Mapping[str, QueueFilter]
    queues: tuple[SessionQueueView, ...]


class EndedSession(Struct, frozen=True, kw_only=True, tag_field="is", tag="ended"):
    """A session that is gone. `reason` is empty where nobody remembers, also of one that never was."""

    session_id: str
    status: Literal["Ended"] = "Ended"
    reason: str
    queues: tuple[()] = ()


AnySession = SessionView | EndedSession


class SessionsView(Struct, frozen=True, kw_only=True):
    """All sessions, in the order in which they stand before the consumer, at this version of the registry."""

    version: int
    sessions: tuple[SessionView, ...]


class SessionStatus(Struct, frozen=True, kw_only=True):
    """How far a session has come."""

    session_id: str
    status: Status
    reason: str


# What it is asked


class StartSession(Operation[AnySession], frozen=True, kw_only=True, tag="start"):
    """Start a session with filters by queue id, `*` for every queue that isn't named. Without a key it is the id."""

    changes = True
    filters: Annotated[Mapping[Text, QueueFilter], Meta(min_length=1, max_length=MAX_QUEUES)]
    owner: Text
    key: Text | None = None
    time_limit_s: Annotated[int, Meta(ge=1, le=MAX_TIME_LIMIT_S)] | None = None


class StopSession(Operation[AnySession], frozen=True, kw_only=True, tag="stop"):
    """End a session; what it hasn't read goes back."""

    changes = True
    session_id: Text
    reason: Text | None = None


class KeepSession(Operation[SessionStatus], frozen=True, kw_only=True, tag="heartbeat"):
    """Note that the session's owner is there."""

    session_id: Text


class FindSession(Operation[AnySession], frozen=True, kw_only=True, tag="find"):
    """Show a session, also one that has ended."""

    session_id: Text


class ListSessions(Operation[SessionsView], frozen=True, kw_only=True, tag="status"):
    """Show all sessions."""


class ListQueues(Operation[tuple[QueueView, ...]], frozen=True, kw_only=True, tag="list"):
    """Show the queues that can be split."""


class TickSessions(Operation[None], frozen=True, kw_only=True, tag="tick"):
    """Do what has fallen due."""

    changes = True


class SweepQueues(Operation[tuple[str, ...]], frozen=True, kw_only=True, tag="sweep"):
    """Do what has fallen due, and delete temporary queues that nobody knows; their names."""

    changes = True


ControlOperation = (
    StartSession | StopSession | KeepSession | FindSession | ListSessions | ListQueues | TickSessions | SweepQueues
)
