"""The demo's rendezvous: clients and volunteers in real WebRTC, over SQS, bytes echoed through every channel."""

import asyncio
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle, islice

import aiohttp

from sluice.local.access import SiteAccess
from sluice.local.countries import COUNTRIES, address_in
from sluice.local.requests import by_action, read_requests
from sluice.peers.channels import Network
from sluice.peers.client import Attempt, AttemptOutcome, AttemptPlan, attempt_all
from sluice.peers.methods import RendezvousMethod, sqs_method
from sluice.peers.services import Echo
from sluice.peers.volunteer import Volunteer, VolunteerLimits, serving
from sluice.rendezvous.mailbox import PREFIX as MAILBOX_PREFIX
from sluice.rendezvous.protocol.matching import Nat
from sluice.rendezvous.protocol.messages import ANSWER_QUEUE_PREFIX
from sluice.stages import staged

CLIENTS_AT_ONCE = 6
VOLUNTEERS = 8
PAYLOAD_BYTES = 20_000
WAITING_WITHIN_S = 60
TRIES = 3  # of a client: Snowflake's never ends trying
PARAMETERS: dict[str, object] = {"sluice.rendezvous.held_proxies_min": 2 * VOLUNTEERS}
ON_LOOPBACK = Network(loopback=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How many clients: `early` ones before any proxy is there, then `clients`, of all countries in turn."""

    early: int
    clients: int

    def plans(self, number: int) -> Sequence[AttemptPlan]:
        """Of the first `number` clients."""
        addresses = [address_in(country) for country in COUNTRIES]
        return [
            AttemptPlan(network=Network(loopback=True, loopback_address=address), payload_bytes=PAYLOAD_BYTES)
            for address in islice(cycle(addresses), number)
        ]


LARGE, SMALL = Size(early=3, clients=24), Size(early=2, clients=9)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendezvoused:
    """What the clients say, those that tried again more than once, and what SQS was asked meanwhile, by action."""

    size: Size
    early: Sequence[Attempt]
    attempts: Sequence[Attempt]
    requests: Counter[str]

    @property
    def offers(self) -> range:
        """How many may have been heard: the broker drops what is stale, and then its client looks in vain."""
        every = [*self.early, *self.attempts]
        return range(len(every) - _count(every, AttemptOutcome.LOST), len(every) + 1)

    def is_right(self) -> bool:
        """Denied while there was no proxy; afterwards every client had all its bytes back."""
        denied, echoed = _count(self.early, AttemptOutcome.DENIED), _count(self.attempts, AttemptOutcome.ECHOED)
        return (denied, echoed) == (self.size.early, self.size.clients)

    def rows(self) -> list[tuple[str, str]]:
        """For the summary."""
        answered = [attempt.answered_ms for attempt in self.attempts if attempt.answered_ms is not None]
        opened = [attempt.opened_ms for attempt in self.attempts if attempt.opened_ms is not None]
        per_rendezvous = f"{self.requests.total() / max(len(self.attempts), 1):.1f}"
        return [
            ("offers", f"{len(self.early) + len(self.attempts)}"),
            ("denied, as no proxy was there yet", f"{_count(self.early, AttemptOutcome.DENIED)}"),
            ("answered, and bytes back through WebRTC", f"{_count(self.attempts, AttemptOutcome.ECHOED)}"),
            *((f"{each.outcome}, and tried again", each.detail) for each in self._tried_again),
            ("bytes echoed", f"{sum(attempt.bytes_back for attempt in self.attempts):,}"),
            ("offer to answer, median (the client waits 1 s before it looks)", _ms(answered)),
            ("offer to open channel, median", _ms(opened)),
            (
                "SQS requests per rendezvous, without its events and the 1 of the sweep",
                per_rendezvous,
            ),
        ]

    @property
    def _tried_again(self) -> Sequence[Attempt]:
        in_vain = [each for each in self.early if each.outcome is not AttemptOutcome.DENIED]
        return [*in_vain, *(each for each in self.attempts if not each.echoed)]


def _count(attempts: Sequence[Attempt], outcome: AttemptOutcome) -> int:
    return sum(attempt.outcome is outcome for attempt in attempts)


def _ms(values: Sequence[float]) -> str:
    return f"{statistics.median(values):,.0f} ms" if values else "none"


async def early(site: SiteAccess, size: Size) -> Sequence[Attempt]:
    """Let some clients come before any proxy is there."""
    async with sqs_method(site.connection, site.deployment, sqscreds=site.sqscreds) as method:
        return await _until(AttemptOutcome.DENIED, method, size.plans(size.early), concurrency=size.early)


async def _until(
    wanted: AttemptOutcome, method: RendezvousMethod, plans: Sequence[AttemptPlan], *, concurrency: int
) -> Sequence[Attempt]:
    """All attempts. On a busy machine functions may start for longer than a client waits: it tries again."""
    attempts, left = list[Attempt](), plans
    for _ in range(TRIES):
        made = await attempt_all(method, left, concurrency=concurrency)
        attempts += made
        left = [plan for plan, each in zip(left, made, strict=True) if each.outcome is not wanted]
    return attempts


async def run(
    site: SiteAccess, size: Size, *, early: Sequence[Attempt], progress: Callable[[str], None]
) -> Rendezvoused:
    """Let volunteers come, then clients."""
    async with (
        sqs_method(site.connection, site.deployment, sqscreds=site.sqscreds) as method,
        aiohttp.ClientSession() as session,
    ):
        url, limits = site.deployment.broker_url, VolunteerLimits(pause_s=0)
        volunteer = partial(Volunteer, session, url, network=ON_LOOPBACK, nat=Nat.UNRESTRICTED, limits=limits)
        async with serving(volunteer(Echo()) for _ in range(VOLUNTEERS)):
            progress(f"{site.site}: {VOLUNTEERS} proxies start to poll")
            # Until most polls are held: a cold function takes a second or two.
            async with asyncio.timeout(WAITING_WITHIN_S):
                while await _waiting(session, site) < CLIENTS_AT_ONCE:  # noqa: ASYNC110 - another process holds them
                    await asyncio.sleep(0.2)
            offset = site.cloud.request_log.stat().st_size
            progress(f"{site.site}: {size.clients} clients, {CLIENTS_AT_ONCE} at once")
            plans = size.plans(size.clients)
            attempts = await _until(AttemptOutcome.ECHOED, method, plans, concurrency=CLIENTS_AT_ONCE)
    noted = read_requests(site.cloud.request_log, offset=offset)
    # Not those that its events cause.
    own = {site.deployment.offers_queue_url.rsplit("/", 1)[1]}
    prefixes = tuple(staged(each, site.site.stage) for each in (ANSWER_QUEUE_PREFIX, MAILBOX_PREFIX))
    requests = by_action(each for each in noted if each.queue in own or each.queue.startswith(prefixes))
    del requests["DeleteQueue"]  # of the early clients' queues, if their sweep came meanwhile
    return Rendezvoused(size=size, early=early, attempts=attempts, requests=requests)


async def waiting(site: SiteAccess) -> int:
    """Ask how many proxies wait. Those of volunteers that have gone do for some seconds, and each is told of then."""
    async with aiohttp.ClientSession() as session:
        return await _waiting(session, site)


async def _waiting(session: aiohttp.ClientSession, site: SiteAccess) -> int:
    async with session.get(f"{site.deployment.broker_url}debug") as response:
        return int((await response.text()).splitlines()[0].rsplit(" ", 1)[1])
