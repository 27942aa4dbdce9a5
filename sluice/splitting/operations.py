"""Operations of the control function, and its views of queues and sessions. Pure.

Operations are sent by the command line, the scheduled rule, ticks and splitters.
"""

from collections.abc import Mapping
from typing import Annotated, Literal, TypeAlias

from msgspec import Meta

from sluice.codec import Struct
from sluice.operations import Operation
from sluice.splitting.consumers.targets import Target
from sluice.splitting.filters.texts import Envelope
from sluice.splitting.filters.values import MAX_QUEUES, Mode, QueueFilter
from sluice.splitting.sessions.state import Phase, Status

MAX_CLUSTERS = 100  # An agent can serve at most this many clusters.
MAX_REPORTS = 1_000  # A call has at most this many reports: ten consumers for each of a hundred queues.
# A consumer's state has at most this many characters: DynamoDB's limit of an item, 400 KB, has room for ten states.
MAX_REPORT_CHARACTERS = 16_384
MAX_LINGER_S = 3_600
MAX_TIME_LIMIT_S = 7 * 24 * 60 * 60

Text = Annotated[str, Meta(min_length=1)]
# AWS accepts these values of tags: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/Using_Tags.html#tag-restrictions
TagValue = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9 _.:/=+@-]{0,256}\Z")]
Outcome: TypeAlias = Literal["seen", "moved", "waits", "refused", "failed"]


class QueueView(Envelope, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A queue that can be split. `source` is the URL that producers send to, `main` the URL that its consumer reads.

    `rules` describe what policies require of its sessions, each in a few words. `variables` are the environment
    variables from which re-pointed consumers read the queue's name or URL.
    """

    queue_id: str
    source: str
    main: str
    fifo: bool
    rules: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()


class SessionQueueView(Struct, frozen=True, kw_only=True):
    """A session's queue; `name` and `url` are None if it doesn't exist. `returned` is the number of returned messages.

    `asks_for` describes the filter. `shadowed_by` is the id of an earlier session that takes all matching messages.
    """

    queue_id: str
    mode: Mode
    asks_for: str = ""
    shadowed_by: str = ""
    name: str | None
    url: str | None
    returned: int


class SessionView(Struct, frozen=True, kw_only=True, tag_field="is", tag="known"):
    """A session in the registry. `messages` is the number of messages sent to it."""

    session_id: str
    name: str = ""
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
    """A session that has ended. `reason` is empty if it isn't known, or if the session never existed."""

    session_id: str
    status: Literal["Ended"] = "Ended"
    reason: str
    queues: tuple[()] = ()


AnySession = SessionView | EndedSession


class SplitView(Struct, frozen=True, kw_only=True):
    """A split that isn't at rest: its phase, what it waits for, and which queue each consumer reads.

    `consumers` has the consumers' descriptions as keys. `not_moved` is why consumers, the splitter's trigger or a
    temporary queue could last not be changed; empty if they could.
    """

    queue_id: str
    phase: Phase
    phase_since_ms: int
    waits_for: str
    consumers: Mapping[str, str] = {}
    not_moved: str = ""


class SplittingView(Struct, frozen=True, kw_only=True):
    """The queues that can be split, and all sessions in the order in which messages are matched.

    `version` is the registry's version. `splits` are those that aren't at rest, even if no longer configured.
    """

    version: int = 0
    queues: tuple[QueueView, ...]
    sessions: tuple[SessionView, ...]
    splits: tuple[SplitView, ...] = ()


class SessionStatus(Struct, frozen=True, kw_only=True):
    """The status of a session, with the reason for its end."""

    session_id: str
    status: Status
    reason: str


class ConsumerStep(Struct, frozen=True, kw_only=True):
    """A step that an agent should take for a split queue's consumer, the one with this index (`place`).

    If `original` is None, the agent should read the consumer's state while it reads `queue`. Otherwise it should make
    the consumer read `queue`, whichever queue of `instead_of` it reads now.
    """

    queue_id: str
    place: int
    target: Target
    queue: str
    instead_of: tuple[str, ...] = ()
    original: str | None = None


class ConsumerSteps(Struct, frozen=True, kw_only=True):
    """Steps for one agent, which holds the steps' consumers exclusively for `lease_s` seconds after its request."""

    steps: tuple[ConsumerStep, ...]
    lease_s: int


class StepReport(Struct, frozen=True, kw_only=True):
    """The outcome of a step. `text` is the consumer's state or the reason of a failure, `code` the API's error code.

    `seen` and `moved` steps are complete; `waits` is in progress; `refused` needs an operator; `failed` can be retried.
    """

    queue_id: Text
    place: Annotated[int, Meta(ge=0)]
    queue: Text
    outcome: Outcome
    text: Annotated[str, Meta(max_length=MAX_REPORT_CHARACTERS)] = ""
    code: Annotated[str, Meta(max_length=MAX_REPORT_CHARACTERS)] = ""


class StartSession(Operation[AnySession], frozen=True, kw_only=True, tag="start"):
    """Start a session with filters by queue id; `*` means every other queue. The key defaults to the session's id.

    The session's queues are tagged with `name`, and with `user_id`, by which IAM policies can limit who reads the
    queues. After the session, re-pointed consumers keep reading their main queues for `linger_s` seconds.
    """

    changes = True
    filters: Annotated[Mapping[Text, QueueFilter], Meta(min_length=1, max_length=MAX_QUEUES)]
    owner: Text
    user_id: TagValue | None = None
    name: TagValue = ""
    linger_s: Annotated[int, Meta(ge=0, le=MAX_LINGER_S)] = 0
    key: Text | None = None
    time_limit_s: Annotated[int, Meta(ge=1, le=MAX_TIME_LIMIT_S)] | None = None


class StopSession(Operation[AnySession], frozen=True, kw_only=True, tag="stop"):
    """End a session, and return it. Messages that the session hasn't read go back to the deployed consumer."""

    changes = True
    session_id: Text
    reason: Text | None = None


class KeepSession(Operation[SessionStatus], frozen=True, kw_only=True, tag="heartbeat"):
    """Store a heartbeat of the session's owner, and return the session's status."""

    session_id: Text


class FindSession(Operation[AnySession], frozen=True, kw_only=True, tag="find"):
    """Return a session, even if it has ended."""

    only_reads = True
    session_id: Text


class ShowSplitting(Operation[SplittingView], frozen=True, kw_only=True, tag="show"):
    """Return all queues and sessions, as of the same time."""

    only_reads = True


class ReleaseQueue(Operation[None], frozen=True, kw_only=True, tag="release"):
    """End the drain or linger time of a queue: its consumers and its main queue's messages return to the source."""

    changes = True
    queue_id: Text


class TickSessions(Operation[None], frozen=True, kw_only=True, tag="tick"):
    """Run all actions that are due."""

    changes = True


class TakeSteps(Operation[ConsumerSteps], frozen=True, kw_only=True, tag="take steps"):
    """Request the steps that are due for consumers in these clusters, and hold these consumers for a while.

    `agent` identifies the running agent by a text that is new each time an agent starts.
    """

    changes = True
    agent: Text
    clusters: Annotated[tuple[Text, ...], Meta(min_length=1, max_length=MAX_CLUSTERS)]


class ReportSteps(Operation[None], frozen=True, kw_only=True, tag="report steps"):
    """Report the outcomes of steps, and release the steps' consumers."""

    changes = True
    agent: Text
    reports: Annotated[tuple[StepReport, ...], Meta(min_length=1, max_length=MAX_REPORTS)]


class SweepQueues(Operation[tuple[str, ...]], frozen=True, kw_only=True, tag="sweep"):
    """Run the actions that are due, and delete temporary queues that aren't registered. Returns their names."""

    changes = True


ControlOperation = (
    StartSession
    | StopSession
    | KeepSession
    | FindSession
    | ShowSplitting
    | ReleaseQueue
    | TickSessions
    | TakeSteps
    | ReportSteps
    | SweepQueues
)
