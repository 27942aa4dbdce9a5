"""What `sluice rendezvous proxy` does, what it says meanwhile, and when it stops."""

import asyncio
import contextlib
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

import aiohttp
import typer

from sluice.aws.clients import now_ms
from sluice.cli.output import note, show_json
from sluice.peers.channels import Network
from sluice.peers.services import Service
from sluice.peers.volunteer import Volunteer, VolunteerEvent, VolunteerLimits, VolunteerStep, serving
from sluice.rendezvous.protocol.matching import Nat

SERVED = frozenset({VolunteerStep.CLOSED, VolunteerStep.CUT_OFF})  # clients whose channel was open and is over
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
SID_SHOWN = 8  # characters: enough to follow a client by eye


@dataclass(frozen=True, slots=True, kw_only=True)
class Shift:
    """What proxies do and for how long: until `seconds` are over or `clients` were served, None for no such end."""

    service: Callable[[aiohttp.ClientSession], Service]
    network: Network
    nat: Nat
    limits: VolunteerLimits
    proxies: int = 1
    seconds: float | None = None
    clients: int | None = None


async def serve(broker_url: str, shift: Shift, *, as_json: bool) -> None:
    """Serve the whole shift, told on standard output. Also ctrl-C and SIGTERM end it well, with all channels closed."""
    report = ShiftReport(as_json=as_json, clients=shift.clients)
    async with aiohttp.ClientSession() as session:
        volunteers = [
            Volunteer(
                session,
                broker_url,
                shift.service(session),
                network=shift.network,
                nat=shift.nat,
                limits=shift.limits,
                on_event=report.note,
            )
            for _ in range(shift.proxies)
        ]
        async with serving(volunteers):
            note(f"{len(volunteers)} polling {broker_url}; ctrl-C ends it")
            await report.until_done(shift.seconds)
    report.sum_up(sum((volunteer.counts for volunteer in volunteers), Counter[VolunteerStep]()))


class ShiftReport:
    """Tells every event as it happens, a line each, and knows when enough clients were served."""

    def __init__(self, *, as_json: bool, clients: int | None) -> None:
        """Make it in the loop that the volunteers run in. `clients` is None where there are never enough."""
        self._as_json = as_json
        self._left = clients
        self._done = asyncio.Event()

    def note(self, event: VolunteerEvent) -> None:
        """Print it."""
        if self._as_json:
            show_json({"at_ms": now_ms(), "event": event.what, "sid": event.sid, "detail": event.detail})
        else:
            at = datetime.fromtimestamp(now_ms() / 1000, UTC)
            typer.echo(f"{at:%H:%M:%S}Z  {event.sid[:SID_SHOWN]}  {event.what:14}  {event.detail}".rstrip())
        if self._left is not None and event.what in SERVED:
            self._left -= 1
            if self._left <= 0:
                self._done.set()

    async def until_done(self, seconds: float | None) -> None:
        """Wait until enough clients were served, the time is up, or a signal comes."""
        with _set_by_signals(self._done), contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._done.wait()

    def sum_up(self, counts: Counter[VolunteerStep]) -> None:
        """Print the last line."""
        if self._as_json:
            show_json({"at_ms": now_ms(), "event": "summary", "counts": dict(counts)})
        else:
            said = ", ".join(f"{counts[what]} {what}" for what in VolunteerStep if counts[what])
            typer.echo(f"stopped: {said or 'nothing happened'}")


@contextlib.contextmanager
def _set_by_signals(event: asyncio.Event) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, event.set)
    try:
        yield
    finally:
        for number in STOP_SIGNALS:
            loop.remove_signal_handler(number)
