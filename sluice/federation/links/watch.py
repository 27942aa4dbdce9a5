"""What looks at a site's queues and routes have shown: what is missing, since when, and what was made anew. Pure.

Apart from the registry, which says what should be there: this is what was found, and nothing is carried by it.
"""

from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from sluice.codec import Format, Struct

# SQS says of a queue in its first second that it doesn't exist, so one answer is no proof:
# https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_CreateQueue.html
GONE_AFTER_MS = 5_000
# A name is taken for a minute after its queue was deleted: who makes that anew then finds it bound.
UNBOUND_AFTER_MS = 65_000
# Longer than any of a queue's dead letters is held by who has it in hand, as is one that couldn't be put back.
NOTHING_LEFT_AFTER_MS = 65_000


class QueueWatch(Struct, frozen=True, kw_only=True):
    """A queue that was looked at. `messages` were in it at the last look.

    `waiting_since_ms` is of the first look that found some, `missing_since_ms` of the first that didn't find it: of
    those without another in between. `undelivered` are copies that became dead letters for want of it, and
    `none_found_since_ms` is of the first look that found no more of these to put back. `unbound` where its bindings are
    gone with it.
    """

    messages: int = 0
    waiting_since_ms: int | None = None
    missing_since_ms: int | None = None
    undelivered: int = 0
    none_found_since_ms: int | None = None
    unbound: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether there is nothing to remember of it."""
        return self == _PLAIN


_PLAIN = QueueWatch()


class Mends(Struct, frozen=True, kw_only=True):
    """What of a route was found missing, and so made anew: how often, and what and when it was the last time.

    `lost` are the messages that went with its queues, by the last count before: SQS counts them a minute late.
    """

    number: int = 0
    last: str = ""
    last_ms: int = 0
    lost: int = 0


class SiteWatch(Struct, frozen=True, kw_only=True):
    """Of all queues there is something to remember of, by name, and of all routes that were mended."""

    queues: Mapping[str, QueueWatch] = {}
    mends: Mapping[str, Mends] = {}

    def of(self, queue: str) -> QueueWatch:
        """Say what is known of a queue."""
        return self.queues.get(queue, _PLAIN)

    def with_queue(self, name: str, queue: QueueWatch) -> "SiteWatch":
        """With what is known of a queue now."""
        others = {each: known for each, known in self.queues.items() if each != name}
        return replace(self, queues=others if queue.is_plain else {**others, name: queue})

    def seen(self, counts: Mapping[str, int | None], *, now_ms: int) -> "SiteWatch":
        """After a look at some queues: how many messages each has, None where it isn't there."""
        watch = self
        for name, messages in counts.items():
            known = self.of(name)
            if messages is not None:
                since_ms = (known.waiting_since_ms or now_ms) if messages else None
                known = replace(
                    known, messages=messages, waiting_since_ms=since_ms, missing_since_ms=None, unbound=False
                )
            elif known.missing_since_ms is None:
                known = replace(known, missing_since_ms=now_ms)
            watch = watch.with_queue(name, known)
        return watch

    def missed(self, name: str, copies: int) -> "SiteWatch":
        """After so many more copies became dead letters for want of a queue."""
        known = self.of(name)
        return self.with_queue(name, replace(known, undelivered=known.undelivered + copies, none_found_since_ms=None))

    def put_back(self, name: str, number: int, *, now_ms: int) -> "SiteWatch":
        """After a look for its dead letters put so many back. Once no look has found any for a minute, it has all."""
        known = self.of(name)
        if number:
            return self.with_queue(name, replace(known, none_found_since_ms=None))
        since_ms = now_ms if known.none_found_since_ms is None else known.none_found_since_ms
        if now_ms - since_ms >= NOTHING_LEFT_AFTER_MS:
            return self.with_queue(name, replace(known, undelivered=0, none_found_since_ms=None))
        return self.with_queue(name, replace(known, none_found_since_ms=since_ms))

    @property
    def waiting_since_ms(self) -> Mapping[str, int]:
        """Say since when, at least, queues haven't been empty."""
        return {name: since_ms for name, each in self.queues.items() if (since_ms := each.waiting_since_ms) is not None}

    def is_gone(self, name: str, *, after_ms: int, now_ms: int) -> bool:
        """Whether a queue has been missing for so long."""
        since_ms = self.of(name).missing_since_ms
        return since_ms is not None and now_ms - since_ms >= after_ms

    def mended(self, routes: Iterable[str], what: str, *, lost: int = 0, now_ms: int) -> "SiteWatch":
        """After something of these routes was found missing; what was `lost` counts for the first."""
        mends = dict(self.mends)
        for place, name in enumerate(routes):
            before = mends.get(name, Mends())
            mends[name] = Mends(
                number=before.number + 1, last=what, last_ms=now_ms, lost=before.lost + (0 if place else lost)
            )
        return replace(self, mends=mends)


WATCH = Format(kind="watch", version=1, type=SiteWatch)
