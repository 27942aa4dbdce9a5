"""Controls sessions: applies requests and elapsed time to the registry, and runs the actions that are due.

Every operation loads the registry, decides, saves and acts. If another writer saves first, the operation begins again.
Actions can be repeated, so the next tick completes interrupted actions.
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from sluice.batches import Dispatcher, Entry
from sluice.errors import BadConfiguration, CallFailed, DestinationFault, QueueGone, TooBusy
from sluice.message import Message
from sluice.splitting.consumers.temporary_queues import (
    FIFO_SUFFIX,
    build_name_prefix,
    merge_tags,
    select_attributes,
    temporary_queue_name,
)
from sluice.splitting.filters.values import EVERY_QUEUE, QueueFilters, select_filter
from sluice.splitting.operations import ConsumerStep, StepReport
from sluice.splitting.pointing import Pointing
from sluice.splitting.routing.router import build_returned_message
from sluice.splitting.sessions import actions, events
from sluice.splitting.sessions.events import Event
from sluice.splitting.sessions.rules import apply, limit_changes
from sluice.splitting.sessions.state import ALIVE, Reason, Registry, Session, Split, Status, TemporaryQueue
from sluice.splitting.settings import ControlSettings

if TYPE_CHECKING:  # These imports are only for type hints: the adapters are passed in as arguments.
    from sluice.aws.splitting.queues import SplitQueues
    from sluice.aws.splitting.registry_store import DynamoRegistryStore

MAX_RACES = 50  # If others write the registry first, saving is attempted at most this often.
MAX_ROUNDS = 5  # An invocation runs at most this many rounds of due actions.
EVENTS_AT_ONCE = 20  # One write of the registry applies at most this many events.
WRITTEN_EVERY_MS = 5_000  # While actions run, the registry is written at least this often.
KEY = re.compile(r"[A-Za-z0-9_.@-]{1,64}", re.ASCII)  # A session's key becomes a message attribute.
SOON_S = 1  # While a session or queue changes its state, the next tick is due after one second.
LATER_S = 10  # If all sessions are ready, the next tick is due after a third of the heartbeat limit.


class NoSuchSession(BadConfiguration):
    """No session with this id exists, or it has ended."""


@dataclass(slots=True)
class RegistryCache:
    """Caches the registry for an environment of the control function, with one read per invocation. Not thread-safe.

    The cached state is kept for the next step and for the next invocation. An invocation first reads the revision. If
    the revision is unchanged, the invocation reads only heartbeats and splitters, which have no revision. After a write
    that changes the version, splitters are read again, because only then is it known which splitters may still route by
    the previous version (`sessions.rules`). Every method raises `CallFailed`.
    """

    store: "DynamoRegistryStore"
    _registry: Registry = field(default_factory=Registry)
    _revision: int | None = None  # the revision of `_registry`; None before the first read
    _is_current: bool = False

    def begin(self) -> None:
        """Begin an invocation. Other writers may have changed the registry since the last invocation."""
        self._is_current = False

    def load(self) -> Registry:
        """Return the registry, which an invocation reads only once unless it writes."""
        if not self._is_current:
            if self._revision is not None and self.store.read_revision() == self._revision:
                self._registry = self.store.refresh(self._registry)
            else:
                self._registry, self._revision = self.store.load()
            self._is_current = True
        return self._registry

    def save(self, after: Registry) -> bool:
        """Write the differences from the loaded registry. Returns False if another writer was faster: load again."""
        before, revision = self.load(), self._revision or 0
        self._is_current = False
        saved = self.store.save(before, after, revision=revision)
        if saved is None:
            return False
        self._registry, self._revision = after, saved
        self._is_current = after.version == before.version
        return True


class Control(msgspec.Struct, frozen=True, kw_only=True):
    """Controls sessions during one invocation. All methods raise `CallFailed` if AWS refuses a request."""

    registry_cache: RegistryCache
    queues: "SplitQueues"
    pointing: Pointing
    settings: ControlSettings
    now_ms: Callable[[], int]
    new_token: Callable[[], str]  # returns 12 characters of a-z0-9
    may_go_on: Callable[[], bool]  # returns False shortly before the function's time limit
    returned: Counter[str] = msgspec.field(default_factory=Counter)  # numbers of returned messages by queue id

    def __post_init__(self) -> None:
        self.registry_cache.begin()

    def start(self, filters: QueueFilters, *, key: str | None = None, **fields: Any) -> str:
        """Start a session. Returns its id, by which callers can wait for its status `Ready`. Raises `SessionRefused`.

        `fields` are further fields of `SessionRequested`, at least its `owner`.
        """
        session_id = self.new_token()
        key = session_id if key is None else key
        if not KEY.fullmatch(key):
            raise events.SessionRefused(f"key {key[:80]!r} is not 1 to 64 letters, digits and _.@-")
        unknown = filters.keys() - self.settings.splits.keys() - {EVERY_QUEUE}
        if unknown:
            known = ", ".join(sorted(self.settings.splits)) or "none"
            raise events.SessionRefused(f"no such queue: {', '.join(sorted(unknown))}; there are {known}")
        selected = {queue_id: select_filter(filters, queue_id) for queue_id in self.settings.splits}
        chosen = {queue_id: queue_filter for queue_id, queue_filter in selected.items() if queue_filter is not None}

        def new_name(queue_id: str, token: str, *, is_main: bool = False) -> str:
            source = self.settings.splits[queue_id].source
            return temporary_queue_name(source, deployment=self.settings.deployment, token=token, is_main=is_main)

        names: dict[str, str] = {}
        for queue_id in chosen:  # The shortened names of two queues may be equal.
            own = new_name(queue_id, session_id)
            names[queue_id] = new_name(queue_id, self.new_token()) if own in names.values() else own
        repointed = chosen.keys() & self.pointing.repointed.keys()
        main_names = {queue_id: new_name(queue_id, self.new_token(), is_main=True) for queue_id in repointed}
        requested = events.SessionRequested(
            session_id=session_id,
            key=key,
            filters=chosen,
            names=names,
            main_names=main_names,
            policies=self.settings.policies,
            **fields,
        )
        self.advance([requested], only={*names.values(), *main_names.values()})
        return session_id

    def stop(self, session_id: str, reason: str) -> None:
        """End the session with this id. Raises `NoSuchSession`."""
        self._get_session(session_id)
        self.advance([events.SessionStopped(session_id, reason)], only=set())

    def release_queue(self, queue_id: str) -> None:
        """End the drain or linger time of a queue; the next ticks move its consumers. Raises `BadConfiguration`."""
        split = self.view().splits.get(queue_id)
        if split is None:
            raise BadConfiguration(f"no such queue: {queue_id}")
        if not split.is_releasable:
            raise BadConfiguration(f"{queue_id} isn't being drained: it is {split.phase}")
        self.advance([events.DrainEnded(queue_id)], only=set())

    def view(self) -> Registry:
        """Return the registry with the effects of the time since it was written. Writes nothing and runs no actions."""
        registry = self.registry_cache.load()
        return apply(self._with_configured_splits(registry), events.TimePassed(), now_ms=self.now_ms())

    def heartbeat(self, session_id: str) -> Session:
        """Store a heartbeat of the session's owner. Returns the session. Raises `NoSuchSession`."""
        session = self._get_session(session_id)
        if session.status in ALIVE:
            self.registry_cache.store.record_heartbeat(session_id, at_ms=self.now_ms())
        return session

    def _get_session(self, session_id: str) -> Session:
        session = self.registry_cache.store.read_session(session_id)
        if session is None:
            reason = self.registry_cache.store.find_ended_reason(session_id)
            cause = f"it has ended: {reason}" if reason else "it was never started here, or ended long ago"
            raise NoSuchSession(f"no session {session_id}: {cause}")
        return session

    def sweep(self) -> Sequence[str]:
        """Delete this deployment's temporary queues that aren't in the registry. Returns the deleted queues' names.

        Also finds consumers that read their source again, so that the next ticks re-point these consumers.
        """
        if strayed := list(self.pointing.find_strayed(self.registry_cache.load())):
            self._apply_events(strayed)
        # List queues before reading the registry: a queue that is created in between is then in the registry.
        existing = list(self.queues.names(build_name_prefix(self.settings.deployment)))
        self.registry_cache.begin()
        registered = self.registry_cache.load().queues
        orphaned = [name for name in existing if name not in registered]
        for name in orphaned:
            self.queues.delete(name)
        return orphaned

    def take_steps(self, agent: str, clusters: Collection[str]) -> tuple[ConsumerStep, ...]:
        """Return the steps that are due for an agent in these clusters, and hold their consumers for the agent."""
        pointing = msgspec.structs.replace(self.pointing, holder=agent)
        hold_events = list(pointing.hold_for_agents(self.view(), clusters))
        return pointing.list_steps(self._apply_events(hold_events) if hold_events else self.view(), clusters)

    def report_steps(self, agent: str, reports: Sequence[StepReport]) -> None:
        """Apply an agent's reports of its steps. Raises `StepsLost` if the agent's hold has expired."""
        pointing = replace(self.pointing, holder=agent)
        self._apply_events([*pointing.apply_reports(self.registry_cache.load(), reports)])

    def advance(
        self, pending: Sequence[Event] = (events.TimePassed(),), *, only: Collection[str] | None = None
    ) -> None:
        """Apply events, and run due actions until no action can run now. Raises `TooBusy`.

        `only` limits the actions to these queues, so that callers don't wait for others. Ticks act on all queues, and
        complete other invocations' work. Only one tick runs at a time, since concurrent ticks would duplicate the work.
        """
        done: set[tuple[actions.Action, object]] = set()
        for _ in range(MAX_ROUNDS):
            registry, pending, written_at_ms = self._apply_events(pending), [], self.now_ms()
            is_settled = True
            for action in actions.find_due_actions(registry):
                name, state = _find_action_subject(registry, action)
                # An action runs once per state of its queue or consumers. A later tick repeats the action if necessary.
                key = (action, state)
                if key not in done and (only is None or name in only) and self.may_go_on():
                    done.add(key)
                    pending += self._try_action(action)
                is_settled = is_settled and not pending
                # Write progress early: an invocation that ends too soon would otherwise lose all of its work.
                if len(pending) >= EVENTS_AT_ONCE or self.now_ms() - written_at_ms >= WRITTEN_EVERY_MS:
                    self._apply_events(pending)
                    pending, written_at_ms = [], self.now_ms()
            if is_settled:
                break
        else:
            registry = self._apply_events(pending)
        if freed := list(self.pointing.release_holds(registry)):
            self._apply_events(freed)

    def _apply_events(self, pending: Sequence[Event]) -> Registry:
        after = self.registry_cache.load()
        for start in range(0, len(pending), EVENTS_AT_ONCE):
            few = pending[start : start + EVENTS_AT_ONCE]
            for _ in range(MAX_RACES):
                before = self.registry_cache.load()
                after = self._with_configured_splits(before)
                for event in few:
                    after = apply(after, event, now_ms=self.now_ms())
                after = limit_changes(before, after, few)
                if self.registry_cache.save(after):
                    break
            else:
                raise TooBusy(f"lost {MAX_RACES} races to write the registry of sessions")
            # Owners may still ask why their session ended.
            for session_id in before.sessions.keys() - after.sessions.keys():
                self.registry_cache.store.record_end(
                    session_id, before.sessions[session_id].reason, at_ms=self.now_ms()
                )
        return after

    def _with_configured_splits(self, registry: Registry) -> Registry:
        """Return the registry with the configured splits. A split that is no longer configured stays while in use.

        No splitter reads the source of a split that isn't configured, so its sessions end.
        """
        for session in registry.sessions.values():
            if session.status in ALIVE and not session.filters.keys() <= self.settings.splits.keys():
                registry = registry.with_ended(session, Reason.QUEUE_REMOVED, now_ms=self.now_ms())
        configured = {
            config.queue_id: Split(
                queue_id=config.queue_id,
                source=config.source,
                static=config.queue_id not in self.pointing.repointed,
                main=config.main,
                consumer_at=config.source if config.queue_id in self.pointing.repointed else config.main,
                drain_timeout_s=config.drain_timeout_s,
            )
            for config in self.settings.splits.values()
        }
        used = {queue.queue_id for queue in registry.queues.values()}
        used |= {split.queue_id for split in registry.splits.values() if not split.is_at_rest}
        used |= {consumers.queue_id for consumers in registry.consumers.values() if consumers.splitter_on is not False}
        # A new deployment may have changed the time limit of a drain that has begun.
        kept = {
            queue_id: replace(split, drain_timeout_s=configured.get(queue_id, split).drain_timeout_s)
            for queue_id, split in registry.splits.items()
            if queue_id in used
        }
        kept_consumers = {queue_id: consumers for queue_id, consumers in registry.consumers.items() if queue_id in used}
        return replace(registry, splits={**configured, **kept}, consumers={**self.pointing.at_rest, **kept_consumers})

    def _try_action(self, action: actions.Action) -> Sequence[Event]:
        try:
            return list(self._run_action(action))
        except CallFailed as error:  # The next tick retries most failed actions.
            if isinstance(action, actions.CreateQueue) and not error.is_transient:
                return [events.QueueNotCreated(action.name, str(error))]
            if isinstance(action, actions.CreateQueue):
                return [events.ConsumerNotMoved(action.queue_id, str(error))]
            if isinstance(action, actions.PointConsumer | actions.SwitchSplitter):
                return [self.pointing.report_failure(action.queue_id, str(error))]
            return [events.CleanupFailed(action.name, str(error))] if isinstance(action, actions.DeleteQueue) else []

    def _run_action(self, action: actions.Action) -> Iterator[Event]:
        match action:
            case actions.CreateQueue():
                yield self._create_queue(action)
            case actions.ReturnLeftovers():
                yield from self._return_leftovers(action)
            case actions.DeleteQueue():
                self.queues.delete(action.name)
                yield events.QueueDeleted(action.name)
            case actions.CountMain():
                yield events.MainCounted(action.queue_id, self.queues.count(action.name))
            case actions.PointConsumer() | actions.SwitchSplitter():
                yield from self.pointing.run_action(action, self.registry_cache.load())

    def _create_queue(self, action: actions.CreateQueue) -> Event:
        config = self.settings.splits.get(action.queue_id)
        if config is None:  # A deployment has removed the split.
            return events.QueueNotCreated(action.name, f"no such queue: {action.queue_id}")
        try:
            attributes, tags = self.queues.describe(config.source)
        except QueueGone as error:
            return events.QueueNotCreated(action.name, str(error))
        queue, session = self._find_queue(action.name)
        of_session = queue is not None and queue.session_id is not None
        own = {"user_id": session.user_id, "session_id": session.session_id, "name": session.name} if session else {}
        self.queues.create(
            action.name,
            select_attributes(attributes, original_name=config.source, name=action.name, of_session=of_session),
            merge_tags(tags, configured=config.tags, **own),
        )
        return events.QueueCreated(action.name)

    def _return_leftovers(self, action: actions.ReturnLeftovers) -> Iterator[Event]:
        number, (queue, session) = 0, self._find_queue(action.name)
        try:
            while self.may_go_on() and (messages := self.queues.receive_batch(action.name)):
                sent = self._send_messages_back(messages, action, key=session.key if session else "")
                number += sent
                self.returned[queue.queue_id if queue else ""] += sent
                if not sent:
                    break  # Without a visibility timeout, the same messages would be received endlessly.
            yield events.LeftoversReturned(action.name, number, empty=action.final and self._is_empty(action.name))
        except DestinationFault as error:
            if isinstance(error, QueueGone) and error.queue == action.name:
                yield events.LeftoversReturned(action.name, number, empty=action.final)
                return
            # If the main queue is gone, the remaining messages stay in this queue.
            yield events.LeftoversReturned(action.name, number, empty=False)
            yield events.CleanupFailed(action.name, str(error))

    def _send_messages_back(self, messages: Sequence[Message], action: actions.ReturnLeftovers, *, key: str) -> int:
        """Send messages to the action's target, then delete the sent messages; SQS redelivers the rest."""
        fifo = action.name.endswith(FIFO_SUFFIX)
        entries = [
            Entry(position=position, target=action.to, outgoing=build_returned_message(message, key=key, fifo=fifo))
            for position, message in enumerate(messages)
        ]
        dispatcher = Dispatcher(fifo=fifo, send=self.queues.send_batch, executor=None)
        if dispatcher.dispatch(entries).refused:
            raise QueueGone(action.to)
        sent = [messages[entry.position] for entry in dispatcher.sent]
        if sent:
            self.queues.delete_batch(action.name, sent)
        elif dispatcher.failures:
            raise next(iter(dispatcher.failures.values()))
        return len(sent)

    def _is_empty(self, name: str) -> bool:
        """Return whether the queue is certainly empty, once SQS's counts have settled after the last message."""
        queue, _ = self._find_queue(name)
        since_ms = queue.quiet_since_ms if queue else None
        # For a while, SQS's counts may miss messages that an ended session's consumer still has in flight:
        # https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/confirm-queue-is-empty.html
        if since_ms is not None and self.now_ms() - since_ms < self.settings.counts_settle_s * 1000:
            return False
        return self.queues.count(name) == 0

    def _find_queue(self, queue_name: str) -> tuple[TemporaryQueue | None, Session | None]:
        """Find a temporary queue and its session. Returns None for each that isn't in the registry any more."""
        registry = self.registry_cache.load()
        queue = registry.queues.get(queue_name)
        return queue, registry.sessions.get(queue.session_id or "") if queue else None


def _find_action_subject(registry: Registry, action: actions.Action) -> tuple[str, object]:
    """Return the name of the queue that an action changes, or "", and the state for which the action is due."""
    if isinstance(action, actions.PointConsumer | actions.SwitchSplitter):
        return "", registry.find_consumers(action.queue_id)
    queue = registry.queues.get(action.name)
    return action.name, queue and queue.state


def compute_next_tick_s(registry: Registry) -> int | None:
    """Return the seconds until the next tick is due; None if no session or queue needs ticks."""
    if any(not (split.static or split.is_at_rest or split.may_forward) for split in registry.splits.values()):
        return SOON_S
    # A session that failed to start is kept only for its owner to read. The sweep removes it, so it needs no ticks.
    statuses = {session.status for session in registry.sessions.values()} - {Status.START_ERROR}
    if statuses - {Status.READY} or any(queue.condemned for queue in registry.queues.values()):
        return SOON_S
    lingers = any(split.lingers_until_ms for split in registry.splits.values())
    return LATER_S if statuses or lingers else None
