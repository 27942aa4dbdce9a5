"""Where each message of split traffic may arrive, and what came where.

A message's client is one of ten; a session wants one client's. A message may arrive at a session that wants its client,
or at the consumer; but not at the consumer while a session is there for it that was ready when it was sent.
"""

import time
from collections import defaultdict
from dataclasses import dataclass, field

CLIENTS = 10


@dataclass
class Life:
    """One session's client, and when it was surely there: from when it was ready until it was stopped.

    From `gone_at` no splitter begins a batch that knows it.
    """

    client: int
    ready_at: float
    stopped_at: float = float("inf")
    gone_at: float = float("inf")


@dataclass
class Observed:
    """What arrived where, by message number. Session ids stand for sessions, `main` for the consumer."""

    sent_at: dict[int, float] = field(default_factory=dict)
    arrived: defaultdict[int, list[str]] = field(default_factory=lambda: defaultdict(list))
    consumed_at: dict[int, float] = field(default_factory=dict)  # by the deployed consumer
    lives: dict[str, Life] = field(default_factory=dict)

    def note(self, receiver: str, bodies: list[str]) -> None:
        for body in bodies:
            self.arrived[int(body)].append(receiver)
            if receiver == "main":
                self.consumed_at[int(body)] = time.monotonic()

    def lost(self) -> list[int]:
        return [number for number in self.sent_at if not self.arrived[number]]

    def misdirected(self) -> list[tuple[int, str]]:
        """At a session that wants another client's messages."""
        return [
            (number, receiver)
            for number, receivers in self.arrived.items()
            for receiver in receivers
            if receiver != "main" and self.lives[receiver].client != number % CLIENTS
        ]

    def withheld(self) -> list[tuple[int, list[str]]]:
        """At the consumer, though a session was there for it from before it was sent."""
        return [
            (number, self.arrived[number])
            for number, consumed_at in self.consumed_at.items()
            if self._was_wanted(number, until=consumed_at) and not self._was_returned(number, until=consumed_at)
        ]

    def _was_wanted(self, number: int, *, until: float) -> bool:
        return any(
            life.client == number % CLIENTS and life.ready_at <= self.sent_at[number] and until < life.stopped_at
            for life in self.lives.values()
        )

    def _was_returned(self, number: int, *, until: float) -> bool:
        """Whether a session that ended meanwhile may have had it unread: that goes to the consumer, not to the next."""
        return any(
            life.client == number % CLIENTS and self.sent_at[number] <= life.gone_at and life.stopped_at <= until
            for life in self.lives.values()
        )

    def duplicates(self) -> int:
        return sum(len(receivers) - 1 for receivers in self.arrived.values() if len(receivers) > 1)
