"""What `sluice rendezvous offer` does, and says of its clients to people and to programs."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from sluice.aws.operator.connections import Connection
from sluice.aws.operator.deployment import read_deployment
from sluice.cli.output import quantile, show_pairs, show_table
from sluice.peers.client import Attempt, AttemptOutcome, AttemptPlan, attempt_all
from sluice.peers.methods import http_method, sqs_method

MAX_ROWS = 40  # of clients shown to people; --json has all


async def offer_all(
    connection: Connection, plan: AttemptPlan, *, http: bool, sqscreds: str | None, count: int, concurrency: int
) -> Sequence[Attempt]:
    """Make every client's attempt, at the site that is connected to. Raises what reading the deployment raises.

    A broker or a queue that can't be reached raises a group of `CallFailed`: it is no attempt.
    """
    deployment = read_deployment(connection)
    opened = http_method(deployment) if http else sqs_method(connection, deployment, sqscreds=sqscreds)
    async with opened as method:
        return await attempt_all(method, [plan] * count, concurrency=concurrency)


def document(attempts: Sequence[Attempt]) -> dict[str, Any]:
    """Write for `--json` how many ended how, median and 99th percentile of the times, every client."""
    outcomes = Counter(attempt.outcome for attempt in attempts)
    return {
        "offers": len(attempts),
        "outcomes": {outcome.value: outcomes[outcome] for outcome in AttemptOutcome},
        **_times(attempts, "answered_ms"),
        **_times(attempts, "opened_ms"),
        "bytes_back": sum(attempt.bytes_back for attempt in attempts),
        "attempts": [asdict(attempt) for attempt in attempts],
    }


def _times(attempts: Sequence[Attempt], name: str) -> dict[str, float | None]:
    times = [time_ms for attempt in attempts if (time_ms := getattr(attempt, name)) is not None]
    return {f"{name}_p50": quantile(times, 0.5), f"{name}_p99": quantile(times, 0.99)}


def show(attempts: Sequence[Attempt]) -> None:
    """Show people a client a line, then the numbers."""
    columns = ("", "outcome", "answered ms", "opened ms", "bytes back", "")
    rows = [
        (number, each.outcome, each.answered_ms, each.opened_ms, each.bytes_back, each.detail)
        for number, each in enumerate(attempts[:MAX_ROWS], 1)
    ]
    show_table(columns, rows)
    numbers = document(attempts)
    outcomes = ", ".join(f"{number} {outcome}" for outcome, number in numbers["outcomes"].items() if number)
    pairs = [
        (f"{len(attempts)} offers", outcomes),
        ("answered, median ms", numbers["answered_ms_p50"]),
        ("opened, median ms", numbers["opened_ms_p50"]),
        ("bytes back", numbers["bytes_back"]),
    ]
    show_pairs((name, value) for name, value in pairs if value is not None)
