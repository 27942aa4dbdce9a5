"""Takes the deployed consumers of split queues from queue to queue, and the splitter's triggers with them.

What a step may change is in the registry before it is taken, and it is safe to take again: whoever comes by, after
whatever crash, goes on where the last one stopped, or back. One invocation at a time takes steps, for longer than it
can live: a call of another, that was late, would undo what is known.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec

from sluice.errors import BadConfiguration, BadConsumer, CallFailed
from sluice.splitting.consumers.targets import Consumer, Consumers, Target, name_of, of_agents
from sluice.splitting.operations import ConsumerStep, StepReport
from sluice.splitting.sessions.actions import PointConsumer, SwitchSplitter, due
from sluice.splitting.sessions.events import (
    ConsumerMoved,
    ConsumerPointed,
    ConsumerRefused,
    ConsumersHeld,
    ConsumersSeen,
    ConsumersSent,
    ConsumerStrayed,
    Event,
    SplitterSwitched,
)
from sluice.splitting.sessions.state import Registry
from sluice.splitting.settings import Repointed

if TYPE_CHECKING:  # at run time the shell is given its adapters, and imports none
    from sluice.aws.splitting.consumers.lambda_functions import LambdaSplitterTriggers
    from sluice.aws.splitting.consumers.targets import AwsConsumers

# Nobody waits for these to pass, but on the way back. The last three are a Kubernetes API server's.
DENIED = frozenset({"AccessDenied", "AccessDeniedException", "Forbidden", "Unauthorized", "Invalid"})
HELD_MS = 100_000  # the function's time limit is 60 s; clocks differ, and what it asked for last comes after it

Warn = Callable[[str, str, str], None]  # what, of which split queue by its id, and why


class StepsLost(BadConfiguration):
    """An agent was too slow: others may have changed the consumers meanwhile. It has to ask again."""


class Pointing(msgspec.Struct, frozen=True, kw_only=True):
    """What one invocation, the `holder`, does of it. `repointed` is by queue id. All of it raises `CallFailed`."""

    repointed: Mapping[str, Repointed]
    consumers: "AwsConsumers"
    triggers: "LambdaSplitterTriggers"
    holder: str
    now_ms: Callable[[], int]
    warn: Warn

    @property
    def at_rest(self) -> dict[str, Consumers]:
        """What is configured, as it is while nothing is split."""
        return {
            each.queue_id: Consumers(
                queue_id=each.queue_id, consumers=tuple(Consumer(target=target) for target in each.targets)
            )
            for each in self.repointed.values()
        }

    def act(self, action: PointConsumer | SwitchSplitter, registry: Registry) -> Iterator[Event]:
        """Take a step, in this registry as it is saved."""
        known = registry.consumers_of(action.queue_id)
        match action:
            case SwitchSplitter():
                yield from self._switched(action, known)
            case PointConsumer() if not _waits_for_agents(action, known):
                held = self._held(known)
                yield from self._pointed(action, known, registry) if held is None else held

    def strayed(self, registry: Registry) -> Iterator[Event]:
        """Look for consumers that were moved and read their source again, as owners' deployments have them do."""
        for known in registry.consumers.values():
            split = registry.splits.get(known.queue_id)
            if split is None or split.consumer_at is None or split.consumer_at != split.main:
                continue
            for place, each in enumerate(known.consumers):
                if of_agents(each.target) is not None:
                    continue
                try:
                    is_back = self.consumers.reads(each.target, queue=split.source)
                except CallFailed:  # the next look will tell
                    continue
                if is_back:
                    self.warn("ConsumerStrayed", known.queue_id, f"{name_of(each.target)} reads {split.source} again")
                    yield ConsumerStrayed(known.queue_id, place)

    def freed(self, registry: Registry) -> Iterator[Event]:
        """Let others take steps, at the end of the invocation."""
        for known in registry.consumers.values():
            if known.held_by == self.holder:
                yield ConsumersHeld(known.queue_id, self.holder)

    def _held(self, known: Consumers) -> tuple[Event, ...] | None:
        """Say what is to come first: None where this invocation may go on, nothing where another may."""
        now_ms = self.now_ms()
        if known.held_by == self.holder and now_ms < known.held_until_ms:
            return None
        if known.held_by and now_ms < known.held_until_ms:
            return ()
        return (ConsumersHeld(known.queue_id, self.holder, now_ms + HELD_MS),)

    def _switched(self, action: SwitchSplitter, known: Consumers) -> Iterator[Event]:
        found = self.repointed.get(action.queue_id)
        # One that isn't configured any more is gone with its deployment.
        is_on = self.triggers.is_on(found.trigger_id) if found else False
        if found is None or is_on == action.on:
            yield SplitterSwitched(action.queue_id, bool(is_on))
        elif is_on is not None:
            held = self._held(known)
            if held is not None:
                yield from held
            elif known.splitter_on is not None:
                yield SplitterSwitched(action.queue_id, None)
            else:
                self.triggers.switch(found.trigger_id, on=action.on)

    def _pointed(self, action: PointConsumer, known: Consumers, registry: Registry) -> Iterator[Event]:
        source, legs = registry.splits[action.queue_id].source, _legs(action, known)
        if unseen := _unseen(known):
            yield self._seen(known.queue_id, unseen, source)
        elif not legs:
            yield ConsumerPointed(known.queue_id, action.at)
        elif any(known.consumers[place].to is None for place in legs):
            yield ConsumersSent(known.queue_id, action.at)
        else:
            for place, (queue, other) in legs.items():
                target, original = known.consumers[place].target, known.consumers[place].original or ""
                if of_agents(target) is not None:
                    continue
                try:
                    with _told(frozenset() if queue == source else DENIED):
                        is_there = self.consumers.point(target, original, queue=queue, instead_of=other)
                except BadConsumer as error:
                    yield self._refused(known.queue_id, place, str(error), queue=queue, source=source)
                except CallFailed as error:  # the others needn't wait for it; it is tried again at the next tick
                    self.warn("ConsumerNotMoved", known.queue_id, str(error))
                else:
                    if is_there:
                        yield ConsumerMoved(known.queue_id, place, queue)

    def _seen(self, queue_id: str, unseen: Mapping[int, Target], source: str) -> Event:
        ours = {place: target for place, target in unseen.items() if of_agents(target) is None}
        try:
            with _told(DENIED):
                originals = {place: self.consumers.original(target, queue=source) for place, target in ours.items()}
        except BadConsumer as error:
            return ConsumerRefused(queue_id, str(error))
        return ConsumersSeen(queue_id, originals)

    def _refused(self, queue_id: str, place: int, reason: str, *, queue: str, source: str) -> Event:
        if queue != source:
            return ConsumerRefused(queue_id, reason)
        # Its owner has changed it since: theirs stays.
        self.warn("ConsumerNotPutBack", queue_id, reason)
        return ConsumerMoved(queue_id, place, queue)

    # What agents do

    def taken(self, registry: Registry, clusters: Collection[str]) -> Iterator[Event]:
        """Hold the consumers of which something is to be done in these clusters, if nobody else does."""
        for queue_id in dict.fromkeys(step.queue_id for step in _steps(registry, clusters)):
            yield from self._held(registry.consumers_of(queue_id)) or ()

    def steps(self, registry: Registry, clusters: Collection[str]) -> tuple[ConsumerStep, ...]:
        """List what is to be done in these clusters of the consumers that are held."""
        return tuple(
            step for step in _steps(registry, clusters) if registry.consumers_of(step.queue_id).held_by == self.holder
        )

    def reported(self, registry: Registry, reports: Sequence[StepReport]) -> Iterator[Event]:
        """Say what has happened by an agent's reports, and let go of what it has held. Raises `StepsLost`."""
        for each in reports:
            known, split = registry.consumers_of(each.queue_id), registry.splits.get(each.queue_id)
            if split is None or known.held_by != self.holder or self.now_ms() >= known.held_until_ms:
                raise StepsLost(f"{each.queue_id}: its consumers aren't held by {self.holder} any more")
            if each.place >= len(known.consumers) or of_agents(known.consumers[each.place].target) is None:
                raise StepsLost(f"{each.queue_id}: there is no consumer {each.place} that is for agents")
            is_new = each.place in _unseen(known)
            is_denied = each.code in DENIED and (is_new or each.queue != split.source)
            match "refused" if is_denied else each.outcome:
                case "seen":
                    yield ConsumersSeen(each.queue_id, {each.place: each.text})
                case "moved":
                    yield ConsumerMoved(each.queue_id, each.place, each.queue)
                case "refused" if is_new:
                    yield ConsumerRefused(each.queue_id, each.text)
                case "refused":
                    yield self._refused(each.queue_id, each.place, each.text, queue=each.queue, source=split.source)
                case "failed":
                    self.warn("ConsumerNotMoved", each.queue_id, each.text)
        for queue_id in dict.fromkeys(each.queue_id for each in reports):
            yield ConsumersHeld(queue_id, self.holder)


def _unseen(known: Consumers) -> dict[int, Target]:
    return {place: each.target for place, each in enumerate(known.consumers) if each.original is None}


def _legs(action: PointConsumer, known: Consumers) -> dict[int, tuple[str, str]]:
    return {place: leg for place, each in enumerate(known.consumers) if (leg := each.leg(action.at)) is not None}


def _waits_for_agents(action: PointConsumer, known: Consumers) -> bool:
    """Whether nothing is to be done but what agents do."""
    left = _unseen(known)
    if not left:
        legs = [known.consumers[place] for place in _legs(action, known)]
        left = dict(enumerate(each.target for each in legs))
        if any(each.to is None for each in legs):
            return False
    return bool(left) and all(of_agents(target) is not None for target in left.values())


def _steps(registry: Registry, clusters: Collection[str]) -> Iterator[ConsumerStep]:
    for action in due(registry):
        if not isinstance(action, PointConsumer):
            continue
        known, source = registry.consumers_of(action.queue_id), registry.splits[action.queue_id].source
        unseen, legs = _unseen(known), _legs(action, known)
        for place, each in enumerate(known.consumers):
            queue, other = (source, "") if unseen else legs.get(place, ("", ""))
            is_due = each.original is None if unseen else place in legs and each.to is not None
            if is_due and of_agents(each.target) in clusters:
                yield ConsumerStep(
                    queue_id=known.queue_id,
                    place=place,
                    target=each.target,
                    queue=queue,
                    instead_of=other,
                    original=each.original,
                )


@contextmanager
def _told(codes: Collection[str]) -> Iterator[None]:
    """Turn calls that AWS refuses with these codes into `BadConsumer`."""
    try:
        yield
    except CallFailed as error:
        if error.code not in codes:
            raise
        raise BadConsumer(error.operation, f"{error.code}: {error}") from error
