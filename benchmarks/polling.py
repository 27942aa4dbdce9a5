"""How full batches are at a steady rate, by how Lambda polls a queue without a batching window: a model. Pure.

A poller receives, invokes the function and deletes, one batch after the other. A receive returns as soon as there is a
message, with at most ten. A mapping with a maximum concurrency has five pollers at least; in provisioned mode it has
two, each of which polls ten times a second at most.
https://docs.aws.amazon.com/lambda/latest/dg/services-sqs-scaling.html
"""

import heapq
from dataclasses import dataclass
from itertools import takewhile
from statistics import median

from benchmarks.site_templates import POLLERS
from sluice.aws_rules import CALLS_PER_POLLER, MAX_UNWINDOWED_BATCH, MIN_POLLERS

REQUEST_S = 0.005  # that SQS takes for a receive or a delete; assumed
MESSAGES = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Polling:
    """How a mapping polls: with so many pollers, each at intervals of at least `interval_s`."""

    pollers: int
    interval_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Batches:
    """How many messages a batch has on average, and after how long a message was handled, at the median."""

    size: float
    handled_ms: float


CAPPED = Polling(pollers=POLLERS)
PROVISIONED = Polling(pollers=MIN_POLLERS, interval_s=1 / CALLS_PER_POLLER)


def batches(polling: Polling, *, rate: float, call_s: float) -> Batches:
    """Let messages come evenly at the rate, each call of the function taking `call_s`."""
    sent = [number / rate for number in range(MESSAGES)]
    free = [0.0] * polling.pollers
    taken, handled_s, count = 0, list[float](), 0
    while taken < MESSAGES:
        asked = heapq.heappop(free)
        received = max(asked, sent[taken])
        waiting = takewhile(lambda at: at <= received, sent[taken : taken + MAX_UNWINDOWED_BATCH])  # noqa: B023
        batch = list(waiting)
        done = received + REQUEST_S + call_s
        handled_s += [done - at for at in batch]
        heapq.heappush(free, max(done + REQUEST_S, received + polling.interval_s))
        taken, count = taken + len(batch), count + 1
    return Batches(size=MESSAGES / count, handled_ms=median(handled_s) * 1000)
