"""Re-points the deployed consumers of split queues to other queues, and switches the splitter's triggers.

Each step is idempotent and is written to the registry before it is taken. So any invocation can continue or undo it
after a crash. Only one invocation at a time holds a queue's consumers, for longer than the function's time limit, so
that a late call of another invocation can't undo recorded changes.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec

from sluice.errors import BadConfiguration, BadConsumer, CallFailed
from sluice.splitting.consumers.targets import Consumer, Consumers, Target, describe_target, find_agent_cluster
from sluice.splitting.operations import ConsumerStep, StepReport
from sluice.splitting.sessions import events
from sluice.splitting.sessions.actions import PointConsumer, SwitchSplitter, find_due_actions
from sluice.splitting.sessions.events import Event
from sluice.splitting.sessions.state import Registry
from sluice.splitting.settings import Repointed

if TYPE_CHECKING:  # These imports are only for type hints: the adapters are passed in as arguments.
    from sluice.aws.splitting.consumers.lambda_functions import LambdaSplitterTriggers
    from sluice.aws.splitting.consumers.targets import AwsConsumers

# These error codes need an operator, so the sessions fail; on the way back to the source, the call is retried. ECS
# rolls back with FAILED, Lambda refuses a role with the next code, and the last three are from Kubernetes API servers.
DENIED = frozenset({"AccessDenied", "AccessDeniedException", "FAILED", "InvalidParameterValueException"})
DENIED |= {"Forbidden", "Unauthorized", "Invalid"}
NOT_YET = "NonExistentQueue"  # Lambda's error contains this word if the queue was created less than a second ago.
HOLD_MS = 100_000  # A hold lasts longer than the function's limit of 60 s, for clock skew and late effects.

Warn = Callable[[str, str, str], None]  # Parameters are the log event, the split's queue id and the reason.


class StepsLost(BadConfiguration):
    """The agent's hold has expired, so others may have changed the consumers. The agent must request steps again."""


class Pointing(msgspec.Struct, frozen=True, kw_only=True):
    """Re-points consumers for one invocation, the `holder`. `repointed` has queue ids as keys. Raises `CallFailed`."""

    repointed: Mapping[str, Repointed]
    consumers: "AwsConsumers"
    triggers: "LambdaSplitterTriggers"
    holder: str
    now_ms: Callable[[], int]
    warn: Warn

    @property
    def at_rest(self) -> dict[str, Consumers]:
        """Return the configured consumers by queue id, in their state without sessions."""
        return {
            config.queue_id: Consumers(
                queue_id=config.queue_id, consumers=tuple(Consumer(target=target) for target in config.targets)
            )
            for config in self.repointed.values()
        }

    def run_action(self, action: PointConsumer | SwitchSplitter, registry: Registry) -> Iterator[Event]:
        """Run an action of re-pointing, and yield the events that result. `registry` must be the saved registry."""
        consumers = registry.find_consumers(action.queue_id)
        match action:
            case SwitchSplitter():
                yield from self._switch_splitter(action, consumers)
            case PointConsumer() if not _waits_for_agents(action, consumers, registry):
                hold_events = self._acquire_hold(consumers)
                yield from (self._point_consumers(action, consumers, registry) if hold_events is None else hold_events)

    def find_strayed(self, registry: Registry) -> Iterator[Event]:
        """Find re-pointed consumers that read their source again, usually because their owner deployed them again."""
        for consumers in registry.consumers.values():
            split = registry.splits.get(consumers.queue_id)
            if split is None or split.consumer_at is None or split.consumer_at != split.main:
                continue
            for place, consumer in enumerate(consumers.consumers):
                if find_agent_cluster(consumer.target) is not None:
                    continue
                try:
                    is_back = self.consumers.reads(consumer.target, queue=split.source)
                except CallFailed:  # The next sweep checks again.
                    continue
                if is_back:
                    self.warn(
                        "ConsumerStrayed",
                        consumers.queue_id,
                        f"{describe_target(consumer.target)} reads {split.source} again",
                    )
                    yield events.ConsumerStrayed(consumers.queue_id, place)

    def report_failure(self, queue_id: str, reason: str) -> Event:
        """Log why a consumer or a trigger can't be changed now. Returns the event that shows the reason."""
        self.warn("ConsumerNotMoved", queue_id, reason)
        return events.ConsumerNotMoved(queue_id, reason)

    def release_holds(self, registry: Registry) -> Iterator[Event]:
        """Release all holds at the end of the invocation, so that other invocations can take steps."""
        for consumers in registry.consumers.values():
            if consumers.held_by == self.holder:
                yield events.ConsumersHeld(consumers.queue_id, self.holder)

    def _acquire_hold(self, consumers: Consumers) -> tuple[Event, ...] | None:
        """Return the events that acquire the hold: None if this holder has it already, () if another one has it."""
        now_ms = self.now_ms()
        if consumers.held_by and now_ms < consumers.held_until_ms:
            return None if consumers.held_by == self.holder else ()
        return (events.ConsumersHeld(consumers.queue_id, self.holder, now_ms + HOLD_MS),)

    def _switch_splitter(self, action: SwitchSplitter, consumers: Consumers) -> Iterator[Event]:
        config = self.repointed.get(action.queue_id)
        # If the split is no longer configured, the deployment has deleted its trigger.
        is_on = self.triggers.is_on(config.trigger_id) if config else False
        hold_events = self._acquire_hold(consumers)
        # The trigger's state may change at any time if another invocation has the hold and has announced a switch.
        is_stable = consumers.splitter_on is not None or hold_events != ()
        if config is None or (is_on == action.on and is_stable):
            yield events.SplitterSwitched(action.queue_id, bool(is_on))
        elif is_on is not None:
            if hold_events is not None:
                yield from hold_events
            elif consumers.splitter_on is not None:
                yield events.SplitterSwitched(action.queue_id, None)
            else:
                self.triggers.switch(config.trigger_id, on=action.on)

    def _point_consumers(self, action: PointConsumer, consumers: Consumers, registry: Registry) -> Iterator[Event]:
        source = registry.splits[action.queue_id].source
        moves = _list_moves(action, consumers, source)
        if unseen := _find_unread_targets(consumers):
            yield from self._inspect_consumers(action, unseen, source)
        elif not moves:
            yield events.ConsumerPointed(consumers.queue_id, action.at)
        elif any(consumers.consumers[place].to is None for place in moves):
            yield events.ConsumersSent(consumers.queue_id, action.at)
        else:
            for place, (queue, others) in moves.items():
                consumer = consumers.consumers[place]
                target, original = consumer.target, consumer.original or ""
                if find_agent_cluster(target) is not None:
                    continue
                try:
                    with _raise_bad_consumer(frozenset() if queue == source else DENIED):
                        is_moved = self.consumers.point(target, original, queue=queue, instead_of=others)
                except BadConsumer as error:
                    yield self._refuse_consumer(consumers.queue_id, place, str(error), queue=queue, source=source)
                except CallFailed as error:  # Other consumers don't wait for this one; the next tick retries.
                    yield self.report_failure(consumers.queue_id, str(error))
                else:
                    if is_moved:
                        yield events.ConsumerMoved(consumers.queue_id, place, queue)

    def _inspect_consumers(self, action: PointConsumer, unseen: Mapping[int, Target], source: str) -> Iterator[Event]:
        own_targets = {place: target for place, target in unseen.items() if find_agent_cluster(target) is None}
        try:
            with _raise_bad_consumer(DENIED):
                originals = {
                    place: self.consumers.read_original(target, queue=source) for place, target in own_targets.items()
                }
                unproved = [
                    self.consumers.check_role(target, source=source, queue=action.at) for target in own_targets.values()
                ]
        except BadConsumer as error:
            yield events.ConsumerRefused(action.queue_id, str(error))
            return
        for reason in filter(None, unproved):
            self.warn("RoleNotProved", action.queue_id, reason)
            yield events.ConsumerNotMoved(action.queue_id, reason)
        yield events.ConsumersSeen(action.queue_id, originals)

    def _refuse_consumer(self, queue_id: str, place: int, reason: str, *, queue: str, source: str) -> Event:
        if queue != source:
            return events.ConsumerRefused(queue_id, reason)
        # The consumer's owner has changed its configuration in the meantime. Keep that change.
        self.warn("ConsumerNotPutBack", queue_id, reason)
        return events.ConsumerMoved(queue_id, place, queue)

    def hold_for_agents(self, registry: Registry, clusters: Collection[str]) -> Iterator[Event]:
        """Lease the consumers with steps due in these clusters, except consumers that another invocation has leased."""
        for queue_id in dict.fromkeys(step.queue_id for step in _list_steps(registry, clusters)):
            yield from self._acquire_hold(registry.find_consumers(queue_id)) or ()

    def list_steps(self, registry: Registry, clusters: Collection[str]) -> tuple[ConsumerStep, ...]:
        """List the steps that are due in these clusters, for consumers that this invocation holds."""
        return tuple(
            step
            for step in _list_steps(registry, clusters)
            if registry.find_consumers(step.queue_id).held_by == self.holder
        )

    def apply_reports(self, registry: Registry, reports: Sequence[StepReport]) -> Iterator[Event]:
        """Turn an agent's reports into events and release the agent's holds. Raises `StepsLost`."""
        for report in reports:
            consumers, split = registry.find_consumers(report.queue_id), registry.splits.get(report.queue_id)
            if split is None or consumers.held_by != self.holder or self.now_ms() >= consumers.held_until_ms:
                raise StepsLost(f"{report.queue_id}: its consumers aren't held by {self.holder} any more")
            if (
                report.place >= len(consumers.consumers)
                or find_agent_cluster(consumers.consumers[report.place].target) is None
            ):
                raise StepsLost(f"{report.queue_id}: there is no consumer {report.place} that is for agents")
            is_new = report.place in _find_unread_targets(consumers)
            is_denied = report.code in DENIED and (is_new or report.queue != split.source)
            match "refused" if is_denied else report.outcome:
                case "seen":
                    yield events.ConsumersSeen(report.queue_id, {report.place: report.text})
                case "moved":
                    yield events.ConsumerMoved(report.queue_id, report.place, report.queue)
                case "refused" if is_new:
                    yield events.ConsumerRefused(report.queue_id, report.text)
                case "refused":
                    yield self._refuse_consumer(
                        report.queue_id, report.place, report.text, queue=report.queue, source=split.source
                    )
                case "failed":
                    yield self.report_failure(report.queue_id, report.text)
        for queue_id in dict.fromkeys(report.queue_id for report in reports):
            yield events.ConsumersHeld(queue_id, self.holder)


def _find_unread_targets(consumers: Consumers) -> dict[int, Target]:
    return {place: consumer.target for place, consumer in enumerate(consumers.consumers) if consumer.original is None}


def _list_moves(action: PointConsumer, consumers: Consumers, source: str) -> dict[int, tuple[str, tuple[str, ...]]]:
    return {
        place: move
        for place, consumer in enumerate(consumers.consumers)
        if (move := consumer.next_move(action.at, source=source)) is not None
    }


def _waits_for_agents(action: PointConsumer, consumers: Consumers, registry: Registry) -> bool:
    """Return whether only agents can do the remaining work of this action."""
    left = _find_unread_targets(consumers)
    if not left:
        source = registry.splits[action.queue_id].source
        moves = [consumers.consumers[place] for place in _list_moves(action, consumers, source)]
        left = dict(enumerate(consumer.target for consumer in moves))
        if any(consumer.to is None for consumer in moves):
            return False
    return bool(left) and all(find_agent_cluster(target) is not None for target in left.values())


def _list_steps(registry: Registry, clusters: Collection[str]) -> Iterator[ConsumerStep]:
    for action in find_due_actions(registry):
        if not isinstance(action, PointConsumer):
            continue
        consumers, source = registry.find_consumers(action.queue_id), registry.splits[action.queue_id].source
        unseen, moves = _find_unread_targets(consumers), _list_moves(action, consumers, source)
        for place, consumer in enumerate(consumers.consumers):
            queue, others = (source, ()) if unseen else moves.get(place, ("", ()))
            is_due = consumer.original is None if unseen else place in moves and consumer.to is not None
            if is_due and find_agent_cluster(consumer.target) in clusters:
                yield ConsumerStep(
                    queue_id=consumers.queue_id,
                    place=place,
                    target=consumer.target,
                    queue=queue,
                    instead_of=others,
                    original=consumer.original,
                )


@contextmanager
def _raise_bad_consumer(codes: Collection[str]) -> Iterator[None]:
    """Raise `BadConsumer` instead of `CallFailed` if a call in the context fails with one of these error codes."""
    try:
        yield
    except CallFailed as error:
        if error.code not in codes or NOT_YET in str(error):
            raise
        raise BadConsumer(error.operation, f"{error.code}: {error}") from error
