"""Operations of the control function, and its views of queues and sessions. Pure.

The command line is one asker, the schedule's rule, ticks and splitters are the others.
"""

from collections.abc import Mapping
from typing import Annotated, Literal, TypeAlias

from msgspec import Meta

from sluice.codec import Struct
from sluice.operations import Operation
from sluice.splitting.consumers.targets import Target
from sluice.splitting.filters.texts import Envelope
from sluice.splitting.filters.values import MAX_QUEUES, Mode, QueueFilter
from sluice.splitting.sessions.events import Event, SessionStopped
from sluice.splitting.sessions.state import Reason, Status

MAX_CLUSTERS = 100  # of an agent
MAX_REPORTS = 1_000  # ten consumers of a hundred queues
MAX_REPORTED = 16_384  # characters of what a consumer is: of ten it becomes an item, which has 400 KB
MAX_TIME_LIMIT_S = 7 * 24 * 60 * 60

Text = Annotated[str, Meta(min_length=1)]
Outcome: TypeAlias = Literal["seen", "moved", "waits", "refused", "failed"]


# What it says


class QueueView(Envelope, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A queue that can be split. `source` is the URL that producers send to, `main` that of its consumer now.

    `rules` are what policies ask of its sessions, each in a few words.
    """

    queue_id: str
    source: str
    main: str
    fifo: bool
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
    """A session that has ended. `reason` is empty if it is unknown, or if the session never existed."""

    session_id: str
    status: Literal["Ended"] = "Ended"
    reason: str
    queues: tuple[()] = ()


AnySession = SessionView | EndedSession


class SessionsView(Struct, frozen=True, kw_only=True):
    """All sessions, in the order in which messages are matched, at this version of the registry."""

    version: int
    sessions: tuple[SessionView, ...]


class SplittingView(Struct, frozen=True, kw_only=True):
    """The queues that can be split, and all sessions in the order in which they stand before the consumers."""

    queues: tuple[QueueView, ...]
    sessions: tuple[SessionView, ...]


class SessionStatus(Struct, frozen=True, kw_only=True):
    """The progress of a session."""

    session_id: str
    status: Status
    reason: str


class ConsumerStep(Struct, frozen=True, kw_only=True):
    """A step that an agent should take for a split queue's consumer at this `place`.

    Without an `original` the agent should read the consumer's state while it reads `queue`. Otherwise it should make
    the consumer read `queue` instead of `instead_of`.
    """

    queue_id: str
    place: int
    target: Target
    queue: str
    instead_of: str = ""
    original: str | None = None


class ConsumerSteps(Struct, frozen=True, kw_only=True):
    """Steps for one agent. Their consumers are held for it for `held_s` after its request."""

    steps: tuple[ConsumerStep, ...]
    held_s: int


class StepReport(Struct, frozen=True, kw_only=True):
    """The outcome of a step. `text` is the consumer's state or the reason of a failure, `code` the API's error code.

    `seen` and `moved` are complete, `waits` is in progress. `refused` needs an operator, `failed` may be transient.
    """

    queue_id: Text
    place: Annotated[int, Meta(ge=0)]
    queue: Text
    outcome: Outcome
    text: Annotated[str, Meta(max_length=MAX_REPORTED)] = ""
    code: Annotated[str, Meta(max_length=MAX_REPORTED)] = ""


# What it is asked


class StartSession(Operation[AnySession], frozen=True, kw_only=True, tag="start"):
    """Start a session with filters by queue id, `*` for every queue that isn't named. Without a key it is the id."""

    changes = True
    filters: Annotated[Mapping[Text, QueueFilter], Meta(min_length=1, max_length=MAX_QUEUES)]
    owner: Text
    key: Text | None = None
    time_limit_s: Annotated[int, Meta(ge=1, le=MAX_TIME_LIMIT_S)] | None = None


class SessionChange(Operation[AnySession], frozen=True, kw_only=True):
    """Base class of operations that change one session by an event, and return the session."""

    changes = True
    session_id: Text

    @property
    def event(self) -> Event:
        """The change of the registry."""
        raise NotImplementedError


class StopSession(SessionChange, frozen=True, kw_only=True, tag="stop"):
    """End a session. Messages that it hasn't read are returned."""

    reason: Text | None = None

    @property
    def event(self) -> Event:
        """The end of the session."""
        return SessionStopped(self.session_id, self.reason or Reason.STOPPED)


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


class ShowSplitting(Operation[SplittingView], frozen=True, kw_only=True, tag="show"):
    """Show queues and sessions at once."""


class TickSessions(Operation[None], frozen=True, kw_only=True, tag="tick"):
    """Run the actions that are due."""

    changes = True


class TakeSteps(Operation[ConsumerSteps], frozen=True, kw_only=True, tag="take steps"):
    """Request the due steps for consumers in these clusters, and hold these consumers for a while.

    `agent` is who asks: another one each time that an agent begins.
    """

    changes = True
    agent: Text
    clusters: Annotated[tuple[Text, ...], Meta(min_length=1, max_length=MAX_CLUSTERS)]


class ReportSteps(Operation[None], frozen=True, kw_only=True, tag="report steps"):
    """Report the outcomes of the steps, and release their consumers."""

    changes = True
    agent: Text
    reports: Annotated[tuple[StepReport, ...], Meta(min_length=1, max_length=MAX_REPORTS)]


class SweepQueues(Operation[tuple[str, ...]], frozen=True, kw_only=True, tag="sweep"):
    """Run the actions that are due, and delete unknown temporary queues. Returns their names."""

    changes = True


ControlOperation = (
    StartSession
    | StopSession
    | KeepSession
    | FindSession
    | ListSessions
    | ListQueues
    | ShowSplitting
    | TickSessions
    | TakeSteps
    | ReportSteps
    | SweepQueues
)
