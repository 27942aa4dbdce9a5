"""The registry of sessions and their queues: values, and methods that query or change them. Pure.

Stored types have a `Format` each. `events` change the registry, `rules` derive transitions, and `actions` list due
work.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum

import msgspec
from msgspec import field
from msgspec.structs import replace

from sluice.codec import Format, Struct
from sluice.splitting.consumers.targets import Consumers
from sluice.splitting.consumers.temporary_queues import FIFO_SUFFIX
from sluice.splitting.filters.values import Mode, QueueFilter, Share

SPLITTER_LEASE_S = 30


class Status(StrEnum):
    """The status of a session, from its start to its cleanup."""

    STARTING = "Starting"
    RESOURCES_READY = "ResourcesReady"
    READY = "Ready"
    CLOSING = "Closing"
    START_ERROR = "StartError"
    CLEANUP_ERROR = "CleanupError"


ROUTED = frozenset({Status.RESOURCES_READY, Status.READY})
ALIVE = ROUTED | {Status.STARTING}


class Reason(StrEnum):
    """The reasons for which a session ends, besides errors of AWS."""

    STOPPED = "Stopped"
    SETUP_DEADLINE_EXCEEDED = "SetupDeadlineExceeded"
    UNUSED = "Unused"
    TIME_LIMIT_EXCEEDED = "TimeLimitExceeded"
    FILTER_TIMED_OUT = "FilterTimedOut"  # A jq program was too slow on one message.
    PATTERN_TIMED_OUT = "PatternTimedOut"  # A pattern was too slow on one message.
    PATTERN_FAILED = "PatternFailed"  # A pattern doesn't compile any more, or exhausts the memory.
    FILTER_TOO_SLOW = "FilterTooSlow"  # A filter took too long for a whole batch, twice.
    QUEUE_REFUSED = "QueueRefused"  # SQS refused the session's messages; the reason ends with SQS's error.
    QUEUE_GONE = "QueueGone"  # Somebody deleted the session's queue.
    QUEUE_REMOVED = "QueueRemoved"  # A deployment has removed a split queue of the session.


class QueueState(StrEnum):
    """The state of a temporary queue in the registry."""

    PLANNED = "planned"  # The queue may or may not exist.
    CREATED = "created"
    EMPTIED = "emptied"  # Nothing is routed to the queue, and SQS's counts showed that it is empty.


class Phase(StrEnum):
    """The phase of a split queue. If its consumer isn't re-pointed, only the first two phases occur."""

    IDLE = "idle"  # The split has no sessions.
    ACTIVE = "active"
    RELEASING = "releasing"  # The splitter is disabled; messages that it has read still go to main.
    DRAINING = "draining"  # A FIFO queue's consumer empties main; a standard queue's reads the source.
    RESTORING = "restoring"  # The consumer and main's remaining messages return to the source.


class TemporaryQueue(Struct, frozen=True, kw_only=True):
    """A queue that was created for a session, or, without `session_id`, as a main queue.

    `returned` is the number of returned messages. `quiet_since_ms` is the time since which no splitter sends to a
    condemned session queue.
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
    """A split queue. `main` is the queue of the deployed consumer: a static queue of the stacks, or a temporary one.

    `consumer_at` is the queue that the consumer was last seen reading, None while it is being moved. If
    `drain_timeout_s` is None, draining has no time limit. `is_drain_over`: an operator has ended the drain. `not_moved`
    is the reason why consumers, the splitter's trigger or a temporary queue could last not be changed. After the last
    session, consumers keep reading main until `lingers_until_ms`.
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
    is_drain_over: bool = False
    not_moved: str = ""
    lingers_until_ms: int = 0

    @property
    def wanted_consumer_at(self) -> str | None:
        """Return the queue that the consumer should read: in a drain, main only if it is a FIFO queue."""
        reads_main = self.phase in {Phase.ACTIVE, Phase.RELEASING} or (self.phase is Phase.DRAINING and self.fifo)
        return self.main if reads_main else self.source

    @property
    def may_forward(self) -> bool:
        """Return whether splitters may forward messages, which needs a deployed consumer that reads main."""
        is_moved = self.main is not None and self.consumer_at == self.main
        return self.static or (self.phase in {Phase.ACTIVE, Phase.RELEASING} and is_moved)

    @property
    def wants_splitter(self) -> bool:
        """Return whether a splitter should read this split's source."""
        return self.may_forward and self.phase is not Phase.RELEASING

    @property
    def is_releasable(self) -> bool:
        """Return whether an operator may end the split's drain or linger time."""
        return self.phase in {Phase.RELEASING, Phase.DRAINING} or self.lingers_until_ms > 0

    @property
    def fifo(self) -> bool:
        """Return whether the queues of the split are FIFO queues."""
        return self.source.endswith(FIFO_SUFFIX)

    @property
    def waits_for(self) -> str:
        """Describe what the split's next phase waits for."""
        if self.phase is Phase.DRAINING:
            return "its consumers to empty the main queue" if self.fifo else "running splitters"
        if self.phase is Phase.RELEASING:
            return "the splitter to be switched off"
        if self.consumer_at != self.wanted_consumer_at:
            return f"its consumers to read {self.wanted_consumer_at}"
        sessions = "its sessions, or the end of their linger time" if self.lingers_until_ms else "its sessions"
        return sessions if self.phase is Phase.ACTIVE else "the main queue to be emptied"

    @property
    def is_consumer_away(self) -> bool:
        """Return whether the consumer doesn't read the source, although no session needs this."""
        is_needed = self.phase is Phase.ACTIVE or (self.phase is Phase.DRAINING and self.fifo)
        return not (self.static or is_needed or self.consumer_at == self.source)

    @property
    def is_at_rest(self) -> bool:
        """Return whether the split has no sessions and its consumer reads the source."""
        return self.phase is Phase.IDLE and (self.static or self.consumer_at == self.source)


class Session(Struct, frozen=True, kw_only=True):
    """A session: its owner, its start, its filter for each queue, and its last heartbeat.

    `user_id` is the owner's `aws:userid`, with which the session's queues are tagged. After the session's end,
    re-pointed consumers keep reading main for `linger_s` seconds.
    """

    session_id: str
    key: str
    owner: str
    started_at_ms: int
    filters: Mapping[str, QueueFilter]
    heartbeat_at_ms: int
    user_id: str | None = None
    time_limit_s: int | None = None
    status: Status = Status.STARTING
    reason: str = ""
    changed_at_version: int = 0
    changed_at_ms: int = 0
    ended_at_ms: int | None = None
    name: str = ""
    linger_s: int = 0


SPLITS = Format(kind="split", version=1, type=Split)
SESSIONS = Format(kind="session", version=1, type=Session)
TEMPORARY_QUEUES = Format(kind="temporary queue", version=1, type=TemporaryQueue)


class SplitterAnnouncement(msgspec.Struct, frozen=True):
    """The last announcement of a splitter: the version of the registry by which it routes, and the time."""

    version: int
    at_ms: int

    def is_live(self, now_ms: int) -> bool:
        """Return whether the splitter may still run a batch. A splitter that is silent for its lease runs none."""
        return now_ms - self.at_ms < SPLITTER_LEASE_S * 1_000


class Registry(Struct, frozen=True, kw_only=True):
    """The state of all splits and sessions. `version` changes with all changes that splitters must read."""

    version: int = 0
    splits: Mapping[str, Split] = field(default_factory=dict)
    sessions: Mapping[str, Session] = field(default_factory=dict)
    queues: Mapping[str, TemporaryQueue] = field(default_factory=dict)
    consumers: Mapping[str, Consumers] = field(default_factory=dict)  # keys: split queue ids
    splitters: Mapping[str, SplitterAnnouncement] = field(default_factory=dict)

    def list_session_queues(self, session_id: str) -> list[TemporaryQueue]:
        """List the temporary queues of a session."""
        return [queue for queue in self.queues.values() if queue.session_id == session_id]

    def find_session_queue(self, session_id: str, queue_id: str) -> TemporaryQueue | None:
        """Find a session's temporary queue for this split queue."""
        return next((queue for queue in self.list_session_queues(session_id) if queue.queue_id == queue_id), None)

    def list_shares(self, queue_id: str) -> list[Share]:
        """List the shares by which the splitter of this queue routes, at this version of the registry."""
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

    def find_shadow(self, session: Session, queue_id: str) -> str:
        """Find an earlier session that takes all messages of this session's filter. Returns its id, or ""."""
        share = session.filters[queue_id]
        earlier = (
            other.session_id
            for other in self.sessions.values()
            if (other.started_at_ms, other.session_id) < (session.started_at_ms, session.session_id)
            and other.status in ALIVE
            and other.filters.get(queue_id) == replace(share, mode=Mode.STEAL)
        )
        return "" if share.filter.matches_nothing else next(earlier, "")

    def all_route_by(self, version: int, *, now_ms: int) -> bool:
        """Return whether every live splitter routes by this version or a later one."""
        return all(seen.version >= version for seen in self.splitters.values() if seen.is_live(now_ms))

    def find_consumers(self, queue_id: str) -> Consumers:
        """Return the re-pointed consumers of a split. The value is empty if the split has no such consumers."""
        return self.consumers.get(queue_id) or Consumers(queue_id=queue_id)

    def has_queue(self, split: Split, name: str) -> bool:
        """Return whether this queue exists: the split's source, or a temporary queue that was created."""
        queue = self.queues.get(name)
        return name == split.source or (queue is not None and queue.state is QueueState.CREATED)

    def with_session(self, session: Session) -> "Registry":
        """Return the registry with this session added or replaced."""
        return replace(self, sessions={**self.sessions, session.session_id: session})

    def with_split(self, split: Split) -> "Registry":
        """Return the registry with this split added or replaced."""
        return replace(self, splits={**self.splits, split.queue_id: split})

    def with_consumers(self, consumers: Consumers) -> "Registry":
        """Return the registry with these re-pointed consumers of a split added or replaced."""
        return replace(self, consumers={**self.consumers, consumers.queue_id: consumers})

    def with_queues(self, queues: Iterable[TemporaryQueue]) -> "Registry":
        """Return the registry with these temporary queues added or replaced."""
        return replace(self, queues={**self.queues, **{queue.name: queue for queue in queues}})

    def with_routing_changed(self) -> "Registry":
        """Return the registry with the next version, so that splitters read it again."""
        return replace(self, version=self.version + 1)

    def with_ended(self, session: Session, reason: str, *, now_ms: int) -> "Registry":
        """Return the registry with the session ended: it gets no messages any more, and its queues are condemned."""
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
        for queue_id in session.filters if session.linger_s and not failed else ():
            split, until_ms = changed.splits[queue_id], now_ms + session.linger_s * 1_000
            changed = changed.with_split(replace(split, lingers_until_ms=max(split.lingers_until_ms, until_ms)))
        return changed.with_session(ended).with_queues(condemned)
