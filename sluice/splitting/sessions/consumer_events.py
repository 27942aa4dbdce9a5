"""What happens to the deployed consumers of a split queue, and to the splitter's trigger. Pure, as all events are."""

from collections.abc import Mapping

import msgspec
from msgspec.structs import replace

from sluice.splitting.sessions.state import ALIVE, Registry


class ConsumersSeen(msgspec.Struct, frozen=True):
    """Somebody has looked what some of the consumers are, by their places, before anything of any is changed."""

    queue_id: str
    originals: Mapping[int, str]

    def __call__(self, registry: Registry, _now_ms: int) -> Registry:
        """Keep what they are, once: while the split is at rest they read the source."""
        known, split = registry.consumers_of(self.queue_id), registry.splits.get(self.queue_id)
        if split is None:
            return registry
        seen = tuple(
            replace(each, original=self.originals[place], at=split.source)
            if each.original is None and place in self.originals
            else each
            for place, each in enumerate(known.consumers)
        )
        return registry if seen == known.consumers else registry.with_consumers(replace(known, consumers=seen))


class ConsumersSent(msgspec.Struct, frozen=True):
    """The consumers of a split go to this queue from now on: from here they may be at either."""

    queue_id: str
    to: str

    def __call__(self, registry: Registry, _now_ms: int) -> Registry:
        """Remember where they go, and that nobody knows where they are."""
        known, split = registry.consumers_of(self.queue_id), registry.splits.get(self.queue_id)
        if split is None:
            return registry
        sent = tuple(
            replace(each, to=self.to) if each.to is None and each.at not in {None, self.to} else each
            for each in known.consumers
        )
        if sent == known.consumers:
            return registry
        return registry.with_consumers(replace(known, consumers=sent)).with_split(replace(split, consumer_at=None))


class ConsumerMoved(msgspec.Struct, frozen=True):
    """One of the consumers reads this queue, and every reader of it does."""

    queue_id: str
    place: int
    at: str

    def __call__(self, registry: Registry, _now_ms: int) -> Registry:
        """Remember where it is, unless it has been sent elsewhere meanwhile."""
        known = registry.consumers_of(self.queue_id)
        if self.place >= len(known.consumers) or self.at not in {
            known.consumers[self.place].at,
            known.consumers[self.place].to,
        }:
            return registry
        moved = list(known.consumers)
        moved[self.place] = replace(moved[self.place], at=self.at, to=None)
        return registry.with_consumers(replace(known, consumers=tuple(moved)))


class ConsumerStrayed(msgspec.Struct, frozen=True):
    """One of the consumers of a split reads the source again, as nobody here has told it to."""

    queue_id: str
    place: int

    def __call__(self, registry: Registry, _now_ms: int) -> Registry:
        """Remember where it is: splitters wait until it is back at main, or there would be two orders."""
        known, split = registry.consumers_of(self.queue_id), registry.splits.get(self.queue_id)
        if split is None or split.consumer_at is None or self.place >= len(known.consumers):
            return registry
        strayed = list(known.consumers)
        if split.consumer_at != split.main or strayed[self.place].at != split.main:
            return registry
        strayed[self.place] = replace(strayed[self.place], at=split.source)
        changed = registry.with_routing_changed() if split.forwards else registry
        return changed.with_consumers(replace(known, consumers=tuple(strayed))).with_split(
            replace(split, consumer_at=None)
        )


class ConsumerPointed(msgspec.Struct, frozen=True):
    """All deployed consumers of a split read this queue."""

    queue_id: str
    at: str

    def __call__(self, registry: Registry, _now_ms: int) -> Registry:
        """Remember where they are; whether splitters forward may follow from it."""
        split = registry.splits.get(self.queue_id)
        if split is None or split.consumer_at == self.at:
            return registry
        pointed = replace(split, consumer_at=self.at)
        changed = registry if pointed.forwards == split.forwards else registry.with_routing_changed()
        return changed.with_split(pointed)


class ConsumerRefused(msgspec.Struct, frozen=True):
    """A consumer can't be re-pointed, as somebody has to mend first: the sessions that wait for it can't go on."""

    queue_id: str
    reason: str

    def __call__(self, registry: Registry, now_ms: int) -> Registry:
        """End the sessions that wait for the consumer."""
        for session in registry.sessions.values():
            if session.status in ALIVE and self.queue_id in session.filters:
                registry = registry.with_ended(session, self.reason, now_ms=now_ms)
        return registry


class SplitterSwitched(msgspec.Struct, frozen=True):
    """The splitter's trigger has been seen on, or off; None where it is switched now, and may be either."""

    queue_id: str
    on: bool | None

    def __call__(self, registry: Registry, _now_ms: int) -> Registry:
        """Remember which."""
        known = registry.consumers_of(self.queue_id)
        if known.splitter_on is self.on:
            return registry
        return registry.with_consumers(replace(known, splitter_on=self.on))


class ConsumersHeld(msgspec.Struct, frozen=True):
    """An invocation is to change a split's consumers, and no other until then."""

    queue_id: str
    by: str
    until_ms: int

    def __call__(self, registry: Registry, now_ms: int) -> Registry:
        """Remember it, unless another was first."""
        known = registry.consumers_of(self.queue_id)
        if known.held_by not in {"", self.by} and now_ms < known.held_until_ms:
            return registry
        return registry.with_consumers(replace(known, held_by=self.by, held_until_ms=self.until_ms))


class ConsumersFreed(msgspec.Struct, frozen=True):
    """An invocation won't change a split's consumers any more."""

    queue_id: str
    by: str

    def __call__(self, registry: Registry, _now_ms: int) -> Registry:
        """Let the next one."""
        known = registry.consumers_of(self.queue_id)
        if known.held_by != self.by:
            return registry
        return registry.with_consumers(replace(known, held_by="", held_until_ms=0))
