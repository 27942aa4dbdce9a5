"""How many receives run at once on one queue. Pure."""

from dataclasses import dataclass

FULL_ANSWER = 8  # of ten messages: there is more where this came from
IDLE_CONNECTIONS = 1


@dataclass(slots=True)
class Fleet:
    """One queue's receives: how many run, how many should, and how many answers in a row were empty."""

    queue_url: str
    wanted: int = 1
    running: int = 0
    empty_answers: int = 0


def connections_wanted(now: int, received: int, limit: int) -> int:
    """Says how many should receive after one answer: more while answers are full, one scout when they are empty."""
    if received >= FULL_ANSWER:
        return min(limit, now + 2)
    return max(IDLE_CONNECTIONS, now // 2) if not received else now
