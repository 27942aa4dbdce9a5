"""How many receives run at once on one queue. Pure."""

from dataclasses import dataclass, field

from sluice_spark.source.budget import Expectation
from sluice_spark.sqs.received import BATCH_LIMIT

FULL_ANSWER = 0.8  # of the messages that were asked for: there is more where this came from
IDLE_CONNECTIONS = 1


@dataclass(slots=True)
class Fleet:
    """One queue's receives: how many run, how many should, how many answers in a row were empty, and what comes."""

    queue_url: str
    wanted: int = 1
    running: int = 0
    empty_answers: int = 0
    expectation: Expectation = field(default_factory=Expectation)


def connections_wanted(now: int, received: int, limit: int, *, asked: int = BATCH_LIMIT) -> int:
    """Says how many should receive after one answer: more while answers are full, one scout when they are empty."""
    if received >= FULL_ANSWER * asked:
        return min(limit, now + 2)
    return max(IDLE_CONNECTIONS, now // 2) if not received else now
