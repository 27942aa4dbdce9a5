"""Takes the deployed consumers of split queues from queue to queue, and the splitter's triggers with them.

What a step may change is in the registry before it is taken, and it is safe to take again: whoever comes by, after
whatever crash, goes on where the last one stopped, or back. One invocation at a time takes steps, for longer than it
can live: a call of another, that was late, would undo what is known.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from sluice.errors import BadConsumer, CallFailed
from sluice.splitting.consumers.targets import Consumer, Consumers, name_of
from sluice.splitting.ports import Consumers as ConsumersPort
from sluice.splitting.ports import NowMs, SplitterTriggers
from sluice.splitting.sessions.actions import PointConsumer, SwitchSplitter
from sluice.splitting.sessions.consumer_events import (
    ConsumerMoved,
    ConsumerPointed,
    ConsumerRefused,
    ConsumersFreed,
    ConsumersHeld,
    ConsumersSeen,
    ConsumersSent,
    ConsumerStrayed,
    SplitterSwitched,
)
from sluice.splitting.sessions.events import Event
from sluice.splitting.sessions.state import Registry
from sluice.splitting.settings import Repointed

# Nobody waits for these to pass, but on the way back. The last three are a Kubernetes API server's.
DENIED = frozenset({"AccessDenied", "AccessDeniedException", "Forbidden", "Unauthorized", "Invalid"})
HELD_MS = 100_000  # the function's time limit is 60 s; clocks differ, and what it asked for last comes after it

Warn = Callable[[str, str, str], None]  # what, of which split queue by its id, and why


@dataclass(frozen=True, slots=True, kw_only=True)
class Pointing:
    """What one invocation, the `holder`, does of it. `repointed` is by queue id. All of it raises `CallFailed`."""

    repointed: Mapping[str, Repointed]
    consumers: ConsumersPort
    triggers: SplitterTriggers
    holder: str
    now_ms: NowMs
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
            case PointConsumer():
                held = self._held(known)
                yield from self._pointed(action, known, registry) if held is None else held

    def strayed(self, registry: Registry) -> Iterator[Event]:
        """Look for consumers that were moved and read their source again, as owners' deployments have them do."""
        for known in registry.consumers.values():
            split = registry.splits.get(known.queue_id)
            if split is None or split.consumer_at is None or split.consumer_at != split.main:
                continue
            for place, each in enumerate(known.consumers):
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
                yield ConsumersFreed(known.queue_id, self.holder)

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
        source = registry.splits[action.queue_id].source
        legs = {place: leg for place, each in enumerate(known.consumers) if (leg := each.leg(action.at)) is not None}
        if any(each.original is None for each in known.consumers):
            try:
                with _told(DENIED):
                    originals = [self.consumers.original(each.target, queue=source) for each in known.consumers]
                yield ConsumersSeen(known.queue_id, tuple(originals))
            except BadConsumer as error:
                yield ConsumerRefused(known.queue_id, str(error))
        elif not legs:
            yield ConsumerPointed(known.queue_id, action.at)
        elif any(known.consumers[place].to is None for place in legs):
            yield ConsumersSent(known.queue_id, action.at)
        else:
            for place, (queue, other) in legs.items():
                target, original = known.consumers[place].target, known.consumers[place].original or ""
                try:
                    with _told(frozenset() if queue == source else DENIED):
                        is_there = self.consumers.point(target, original, queue=queue, instead_of=other)
                except BadConsumer as error:
                    if queue != source:
                        yield ConsumerRefused(known.queue_id, str(error))
                        continue
                    # Its owner has changed it since: theirs stays.
                    self.warn("ConsumerNotPutBack", known.queue_id, str(error))
                    is_there = True
                except CallFailed as error:  # the others needn't wait for it; it is tried again at the next tick
                    self.warn("ConsumerNotMoved", known.queue_id, str(error))
                    continue
                if is_there:
                    yield ConsumerMoved(known.queue_id, place, queue)


@contextmanager
def _told(codes: Collection[str]) -> Iterator[None]:
    """Turn calls that AWS refuses with these codes into `BadConsumer`."""
    try:
        yield
    except CallFailed as error:
        if error.code not in codes:
            raise
        raise BadConsumer(error.operation, f"{error.code}: {error}") from error
