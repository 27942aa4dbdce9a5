"""The registry of sessions and their queues: its values and queries. Pure.

What is stored of it has a `Format` beside its type. What happens to it is in `events`, what follows in `rules`, and
what is to be done about it in `actions`.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum

import msgspec
from msgspec import field
from msgspec.structs import replace

from sluice.codec import Format, Struct
from sluice.splitting.consumers.targets import Consumers
from sluice.splitting.consumers.temporary_queues import FIFO_SUFFIX
from sluice.splitting.filters.values import QueueFilter, Share

SPLITTER_LEASE_S = 30


class Status(StrEnum):
    """How far a session has come."""

    STARTING = "Starting"
    RESOURCES_READY = "ResourcesReady"
    READY = "Ready"
    CLOSING = "Closing"
    START_ERROR = "StartError"
    CLEANUP_ERROR = "CleanupError"


ROUTED = frozenset({Status.RESOURCES_READY, Status.READY})
ALIVE = ROUTED | {Status.STARTING}


class Reason(StrEnum):
    """Why a session ended, beside what AWS says."""

    STOPPED = "Stopped"
    SETUP_DEADLINE_EXCEEDED = "SetupDeadlineExceeded"
    UNUSED = "Unused"
    TIME_LIMIT_EXCEEDED = "TimeLimitExceeded"
    FILTER_TIMED_OUT = "FilterTimedOut"  # a jq program, on one message
    PATTERN_TIMED_OUT = "PatternTimedOut"  # on one message
    PATTERN_FAILED = "PatternFailed"  # it doesn't compile any more, or takes all memory
    FILTER_TOO_SLOW = "FilterTooSlow"  # on the messages of a batch together, twice
    QUEUE_REFUSED = "QueueRefused"  # with SQS's words
    QUEUE_GONE = "QueueGone"  # somebody has deleted it


class QueueState(StrEnum):
    """How far a temporary queue has come."""

    PLANNED = "planned"  # recorded; it may or may not be there
    CREATED = "created"
    EMPTIED = "emptied"  # no longer routed to, and seen empty since


class Phase(StrEnum):
    """How far a split queue has come. With a static consumer only the first two occur."""

    IDLE = "idle"  # no sessions
    ACTIVE = "active"
    RELEASING = "releasing"  # the splitter is switched off; what it has read still goes to main
    DRAINING = "draining"  # the deployed consumer reads main until it is empty, and messages wait at the source
    RESTORING = "restoring"  # the consumer goes back to the source, and what is left of main too


class TemporaryQueue(Struct, frozen=True, kw_only=True):
    """A queue that was made for sessions. Without a session it is a main queue. `returned` counts messages put back.

    `quiet_since_ms`: since when nobody sends to it any more, of a session's queue that is condemned.
    """

    name: str
    queue_id: str
    session_id: str | None = None
    mirror: bool = False
    state: QueueState = QueueState.PLANNED
    condemned: bool = False
    quiet_since_ms: int | None = None
    returned: int = 0


class Split(Struct, frozen=True, kw_only=True):
    """A split queue. `main` is the deployed consumer's: the stacks' own with a static consumer, else a temporary one.

    `consumer_at` is the queue that the consumer has been seen to be pointed at, None while it is on its way.
    `drain_timeout_s` None is no limit.
    """

    queue_id: str
    source: str
    static: bool
    main: str | None = None
    consumer_at: str | None = None
    drain_timeout_s: int | None = None
    phase: Phase = Phase.IDLE
    phase_since_ms: int = 0
    quiet_since_ms: int | None = None
    released_at_version: int = 0

    @property
    def wanted_consumer_at(self) -> str | None:
        """The queue that the consumer should read."""
        return self.source if self.phase in {Phase.IDLE, Phase.RESTORING} else self.main

    @property
    def forwards(self) -> bool:
        """Whether a splitter may forward what it reads. It waits until the deployed consumer reads main."""
        is_moved = self.main is not None and self.consumer_at == self.main
        return self.static or (self.phase in {Phase.ACTIVE, Phase.RELEASING} and is_moved)

    @property
    def wants_splitter(self) -> bool:
        """Whether a splitter is to read this split's source."""
        return self.forwards and self.phase is not Phase.RELEASING

    @property
    def fifo(self) -> bool:
        """Whether its queues keep order."""
        return self.source.endswith(FIFO_SUFFIX)

    @property
    def is_at_rest(self) -> bool:
        """Whether it is as it was before anybody split it."""
        return self.phase is Phase.IDLE and (self.static or self.consumer_at == self.source)


class Session(Struct, frozen=True, kw_only=True):
    """A session: who, since when, its filter for each of its queues, and when it was last heard of."""

    session_id: str
    key: str
    owner: str
    started_at_ms: int
    filters: Mapping[str, QueueFilter]
    heartbeat_at_ms: int
    time_limit_s: int | None = None
    status: Status = Status.STARTING
    reason: str = ""
    changed_at_version: int = 0
    changed_at_ms: int = 0
    ended_at_ms: int | None = None


SPLITS = Format(kind="split", version=1, type=Split)
SESSIONS = Format(kind="session", version=1, type=Session)
TEMPORARY_QUEUES = Format(kind="temporary queue", version=1, type=TemporaryQueue)


class Sighting(msgspec.Struct, frozen=True):
    """A splitter's last announcement: the version that it routes by, and when."""

    version: int
    at_ms: int

    def is_live(self, now_ms: int) -> bool:
        """Whether the splitter may still be at a batch. One that is silent for its lease runs none."""
        return now_ms - self.at_ms < SPLITTER_LEASE_S * 1_000


class Registry(Struct, frozen=True, kw_only=True):
    """Everything that is known. `version` changes with everything that splitters have to know."""

    version: int = 0
    splits: Mapping[str, Split] = field(default_factory=dict)
    sessions: Mapping[str, Session] = field(default_factory=dict)
    queues: Mapping[str, TemporaryQueue] = field(default_factory=dict)
    consumers: Mapping[str, Consumers] = field(default_factory=dict)  # by queue id, of those that are re-pointed
    splitters: Mapping[str, Sighting] = field(default_factory=dict)

    # What it says

    def list_session_queues(self, session_id: str) -> list[TemporaryQueue]:
        """List the session's queues."""
        return [queue for queue in self.queues.values() if queue.session_id == session_id]

    def find_session_queue(self, session_id: str, queue_id: str) -> TemporaryQueue | None:
        """Find the session's queue for this split queue."""
        return next((queue for queue in self.list_session_queues(session_id) if queue.queue_id == queue_id), None)

    def list_shares(self, queue_id: str) -> list[Share]:
        """List the shares that the splitter of this queue routes by, at this version."""
        return [
            Share(
                session_id=session.session_id,
                key=session.key,
                started_at_ms=session.started_at_ms,
                since_ms=session.changed_at_ms,
                filter=session.filters[queue_id].filter,
                mode=session.filters[queue_id].mode,
            )
            for session in self.sessions.values()
            if session.status in ROUTED and queue_id in session.filters
        ]

    def all_have_seen(self, version: int, *, now_ms: int) -> bool:
        """Whether every live splitter routes by this version or a later one."""
        return all(seen.version >= version for seen in self.splitters.values() if seen.is_live(now_ms))

    def find_consumers(self, queue_id: str) -> Consumers:
        """Give what is re-pointed for a split."""
        return self.consumers.get(queue_id) or Consumers(queue_id=queue_id)

    def is_there(self, split: Split, name: str) -> bool:
        """Whether a queue that the split's consumer may read exists."""
        queue = self.queues.get(name)
        return name == split.source or (queue is not None and queue.state is QueueState.CREATED)

    # What changes it

    def with_session(self, session: Session) -> "Registry":
        """Add or replace the session."""
        return replace(self, sessions={**self.sessions, session.session_id: session})

    def with_split(self, split: Split) -> "Registry":
        """Add or replace the split."""
        return replace(self, splits={**self.splits, split.queue_id: split})

    def with_consumers(self, consumers: Consumers) -> "Registry":
        """Add or replace what is re-pointed for a split."""
        return replace(self, consumers={**self.consumers, consumers.queue_id: consumers})

    def with_queues(self, queues: Iterable[TemporaryQueue]) -> "Registry":
        """Add or replace the queues."""
        return replace(self, queues={**self.queues, **{queue.name: queue for queue in queues}})

    def with_routing_changed(self) -> "Registry":
        """Count the version up: splitters have something to learn."""
        return replace(self, version=self.version + 1)

    def with_ended(self, session: Session, reason: str, *, now_ms: int) -> "Registry":
        """End the session: nothing is routed to it any more, and its queues are condemned."""
        failed = session.status is not Status.READY and reason not in {Reason.STOPPED, Reason.TIME_LIMIT_EXCEEDED}
        changed = self.with_routing_changed()
        ended = replace(
            session,
            status=Status.START_ERROR if failed else Status.CLOSING,
            reason=reason,
            changed_at_version=changed.version,
            changed_at_ms=now_ms,
            ended_at_ms=now_ms,
        )
        condemned = [replace(queue, condemned=True) for queue in self.list_session_queues(session.session_id)]
        return changed.with_session(ended).with_queues(condemned)
