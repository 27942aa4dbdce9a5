"""The results of checks of a site's queues and routes: missing resources and repairs. Pure.

The results are stored apart from the registry, which holds the desired state.
"""

from collections.abc import Iterable, Mapping

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from sluice.codec import Format, Struct

# SQS may report a queue as missing in its first second. So one report doesn't prove that a queue was deleted:
# https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_CreateQueue.html
GONE_AFTER_MS = 5_000
# SQS reserves a deleted queue's name for a minute. A queue that is created again right after that keeps its bindings.
UNBOUND_AFTER_MS = 65_000
REFUSED_FOR_MS = 300_000  # a refusal is shown this long after its last report; reports are repeated
# A dead letter is hidden for a shorter time, by a redrive or after a redrive failed to move it.
NOTHING_LEFT_AFTER_MS = 65_000


class QueueWatch(Struct, frozen=True, kw_only=True):
    """The results of the checks of a queue. `messages` is its number of messages at the last check.

    `waiting_since_ms` is the time of the first of consecutive checks that found messages, `missing_since_ms` that of
    the first check that found no queue. `undelivered` counts copies that became dead letters, and `none_found_since_ms`
    is the time of the first redrive that found none of them. `unbound` is true if the missing queue's bindings were
    removed. `refusal` is SQS's reason for refusing messages, and the time of the last report.
    """

    messages: int = 0
    waiting_since_ms: int | None = None
    missing_since_ms: int | None = None
    undelivered: int = 0
    none_found_since_ms: int | None = None
    unbound: bool = False
    refusal: tuple[str, int] | UnsetType = UNSET


class Repairs(Struct, frozen=True, kw_only=True, rename={"lost_messages": "lost"}):
    """A route's repairs: their number, and the kind and time of the last repair.

    `lost_messages` were lost with the route's queues, by the last count before the loss. SQS's counts lag by a minute.
    """

    number: int = 0
    last: str = ""
    last_ms: int = 0
    lost_messages: int = 0


class SiteWatch(Struct, frozen=True, kw_only=True, rename={"repairs": "mends"}):
    """The results of checks by queue, and the repairs by route."""

    queues: Mapping[str, QueueWatch] = {}
    repairs: Mapping[str, Repairs] = {}

    def find_queue(self, queue: str) -> QueueWatch:
        """Return a queue's check results, which are empty for an unknown queue."""
        return self.queues.get(queue, QueueWatch())

    def with_queue(self, name: str, queue: QueueWatch) -> "SiteWatch":
        """Return the site's results with the new results of a queue."""
        others = {other: known for other, known in self.queues.items() if other != name}
        return replace(self, queues=others if queue == QueueWatch() else {**others, name: queue})

    def record_counts(self, counts: Mapping[str, int | None], *, now_ms: int) -> "SiteWatch":
        """Record the numbers of messages in checked queues. None means that a queue is missing."""
        watch = self
        for name, messages in counts.items():
            known = self.find_queue(name)
            if messages is not None:
                since_ms = (known.waiting_since_ms or now_ms) if messages else None
                known = replace(
                    known, messages=messages, waiting_since_ms=since_ms, missing_since_ms=None, unbound=False
                )
            elif known.missing_since_ms is None:
                known = replace(known, missing_since_ms=now_ms)
            watch = watch.with_queue(name, known)
        return watch

    def record_undelivered(self, name: str, copies: int) -> "SiteWatch":
        """Record copies that became dead letters because their queue is missing."""
        known = self.find_queue(name)
        return self.with_queue(name, replace(known, undelivered=known.undelivered + copies, none_found_since_ms=None))

    def record_refusals(self, refusals: Mapping[str, str], *, now_ms: int) -> "SiteWatch":
        """Record queues that refuse messages with SQS's reasons, and remove outdated reports."""
        watch = self
        for name, queue in self.queues.items():
            if queue.refusal and now_ms - queue.refusal[1] >= REFUSED_FOR_MS:
                watch = watch.with_queue(name, replace(queue, refusal=UNSET))
        for name, reason in refusals.items():
            watch = watch.with_queue(name, replace(watch.find_queue(name), refusal=(reason, now_ms)))
        return watch

    @property
    def refusals(self) -> Mapping[str, str]:
        """The queues that refuse messages, each with SQS's reason."""
        return {name: queue.refusal[0] for name, queue in self.queues.items() if queue.refusal}

    def record_redriven(self, name: str, number: int, *, now_ms: int) -> "SiteWatch":
        """Record how many dead letters a redrive found. After a minute without any, nothing is left to redrive."""
        known = self.find_queue(name)
        if number:
            return self.with_queue(name, replace(known, none_found_since_ms=None))
        since_ms = now_ms if known.none_found_since_ms is None else known.none_found_since_ms
        if now_ms - since_ms >= NOTHING_LEFT_AFTER_MS:
            return self.with_queue(name, replace(known, undelivered=0, none_found_since_ms=None))
        return self.with_queue(name, replace(known, none_found_since_ms=since_ms))

    @property
    def waiting_since_ms(self) -> Mapping[str, int]:
        """The time since which each queue has had messages, in ms since the epoch."""
        return {
            name: since_ms for name, queue in self.queues.items() if (since_ms := queue.waiting_since_ms) is not None
        }

    def is_gone(self, name: str, *, after_ms: int, now_ms: int) -> bool:
        """Whether a queue has been missing for at least `after_ms` milliseconds."""
        since_ms = self.find_queue(name).missing_since_ms
        return since_ms is not None and now_ms - since_ms >= after_ms

    def record_repair(
        self, routes: Iterable[str], resource: str, *, lost_messages: int = 0, now_ms: int
    ) -> "SiteWatch":
        """Record a repair of these routes. All `lost_messages` are counted for the first route."""
        repairs = dict(self.repairs)
        for place, name in enumerate(routes):
            before = repairs.get(name, Repairs())
            repairs[name] = Repairs(
                number=before.number + 1,
                last=resource,
                last_ms=now_ms,
                lost_messages=before.lost_messages + (0 if place else lost_messages),
            )
        return replace(self, repairs=repairs)


WATCH = Format(kind="watch", version=1, type=SiteWatch)
