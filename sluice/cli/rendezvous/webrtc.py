"""The WebRTC side of `sluice rendezvous offer` and `sluice rendezvous proxy`, and their output.

This module imports the optional libraries aiortc and aiohttp, which may not be installed.
"""

import asyncio
import contextlib
import signal
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import aiohttp
import typer

from sluice.aws.clients import now_ms
from sluice.aws.connections import Connection
from sluice.aws.deployment import read_deployment
from sluice.cli.output import is_json, show_json, show_pairs, show_table
from sluice.cli.terminal import print_note
from sluice.operator.metrics import quantile
from sluice.peers.channels import Network
from sluice.peers.client import Attempt, AttemptOutcome, AttemptPlan, run_attempts
from sluice.peers.methods import open_http_method, open_sqs_method
from sluice.peers.volunteer import Volunteer, VolunteerEvent, VolunteerLimits, VolunteerStep, serving
from sluice.rendezvous.protocol.matching import Nat

MAX_ROWS = 40  # The table shows at most this number of clients; --json shows all.


async def run_clients(
    connection: Connection, plan: AttemptPlan, *, http: bool, sqscreds: str | None, count: int, concurrency: int
) -> Sequence[Attempt]:
    """Run the attempts of `count` clients at the connected site, at most `concurrency` of them at the same time.

    Raises the errors of `read_deployment`, and a group of `CallFailed` if the broker or the queue can't be reached.
    """
    deployment = read_deployment(connection)
    opened = open_http_method(deployment) if http else open_sqs_method(connection, deployment, sqscreds=sqscreds)
    async with opened as method:
        return await run_attempts(method, [plan] * count, concurrency=concurrency)


def build_document(attempts: Sequence[Attempt]) -> dict[str, Any]:
    """Build the JSON document: counts of outcomes, median and 99th percentile of the durations, and all attempts."""
    outcomes = Counter(attempt.outcome for attempt in attempts)
    return {
        "offers": len(attempts),
        "outcomes": {outcome.value: outcomes[outcome] for outcome in AttemptOutcome},
        **_summarize_times(attempts, "answered_ms"),
        **_summarize_times(attempts, "opened_ms"),
        "bytes_back": sum(attempt.bytes_back for attempt in attempts),
        "attempts": [asdict(attempt) for attempt in attempts],
    }


def _summarize_times(attempts: Sequence[Attempt], name: str) -> dict[str, float | None]:
    times = [time_ms for attempt in attempts if (time_ms := getattr(attempt, name)) is not None]
    return {f"{name}_p50": quantile(times, 0.5), f"{name}_p99": quantile(times, 0.99)}


def show_attempts(attempts: Sequence[Attempt]) -> None:
    """Print a table with a line for each client's attempt, then a summary of all attempts."""
    columns = ("client", "outcome", "answered ms", "opened ms", "bytes back", "detail")
    rows = [
        (number, attempt.outcome, attempt.answered_ms, attempt.opened_ms, attempt.bytes_back, attempt.detail)
        for number, attempt in enumerate(attempts[:MAX_ROWS], 1)
    ]
    show_table(columns, rows)
    numbers = build_document(attempts)
    outcomes = ", ".join(f"{number} {outcome}" for outcome, number in numbers["outcomes"].items() if number)
    pairs = [
        (f"{len(attempts)} offers", outcomes),
        ("answered, median ms", numbers["answered_ms_p50"]),
        ("opened, median ms", numbers["opened_ms_p50"]),
        ("bytes back", numbers["bytes_back"]),
    ]
    show_pairs((name, value) for name, value in pairs if value is not None)


SERVED = frozenset({VolunteerStep.CLOSED, VolunteerStep.CUT_OFF})  # A client has been served after one of these steps.
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
POLLING = "polling"  # The demo waits until a proxy's output contains this word.
SID_SHOWN = 8  # This number of characters of a Sid is shown, which is enough to distinguish clients.


async def run_proxies(
    broker_url: str,
    *,
    network: Network,
    nat: Nat,
    limits: VolunteerLimits,
    proxies: int,
    seconds: float | None,
    clients: int | None,
) -> None:
    """Run proxies and print their events for `seconds`, or until `clients` were served. None means no limit.

    ctrl-C and SIGTERM stop the proxies early and close all channels.
    """
    report = ProxyRunReport(clients=clients)
    async with aiohttp.ClientSession() as session:
        volunteers = [
            Volunteer(session, broker_url, network=network, nat=nat, limits=limits, on_event=report.print_event)
            for _ in range(proxies)
        ]
        async with serving(volunteers):
            print_note(f"{POLLING} {broker_url} (proxies: {len(volunteers)}); stop with ctrl-C")
            await report.wait_until_done(seconds)
    report.print_summary(sum((volunteer.counts for volunteer in volunteers), Counter[VolunteerStep]()))


class ProxyRunReport:
    """Prints each event of the proxies on a line, and counts served clients up to the requested number."""

    def __init__(self, *, clients: int | None) -> None:
        """Create the report in the proxies' event loop. `clients` is the requested number; None means no limit."""
        self._left = clients
        self._done = asyncio.Event()

    def print_event(self, event: VolunteerEvent) -> None:
        """Print a proxy's event, and count the client if it has been served."""
        if is_json():
            show_json({"at_ms": now_ms(), "event": event.step, "sid": event.sid, "detail": event.detail})
        else:
            at = datetime.fromtimestamp(now_ms() / 1000, UTC)
            typer.echo(f"{at:%H:%M:%S}Z  {event.sid[:SID_SHOWN]}  {event.step:14}  {event.detail}".rstrip())
        if self._left is not None and event.step in SERVED:
            self._left -= 1
            if self._left <= 0:
                self._done.set()

    async def wait_until_done(self, seconds: float | None) -> None:
        """Wait until the requested number of clients was served, `seconds` are over, or SIGINT or SIGTERM arrives."""
        loop = asyncio.get_running_loop()
        for number in STOP_SIGNALS:
            loop.add_signal_handler(number, self._done.set)
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._done.wait()
        finally:
            for number in STOP_SIGNALS:
                loop.remove_signal_handler(number)

    def print_summary(self, counts: Counter[VolunteerStep]) -> None:
        """Print the number of events of each kind (`counts`)."""
        if is_json():
            show_json({"at_ms": now_ms(), "event": "summary", "counts": dict(counts)})
        else:
            said = ", ".join(f"{counts[step]} {step}" for step in VolunteerStep if counts[step])
            typer.echo(f"stopped: {said or 'nothing happened'}")
