"""Offers: volunteers of our own on the loopback, clients over SQS with a client's credentials, and over HTTPS."""

import asyncio
from collections.abc import Callable, Mapping
from functools import partial

import aiohttp

from sluice.aws.clients import calls
from sluice.aws.operator.client_queues import open_client
from sluice.errors import CallFailed
from sluice.peers.attempts import Attempt, AttemptPlan, attempt, attempt_all
from sluice.peers.channels import Network
from sluice.peers.deployed_methods import http_method, sqs_method
from sluice.peers.methods import RendezvousMethod
from sluice.peers.services import Echo
from sluice.peers.volunteer import Volunteer, VolunteerLimits, serving
from sluice.rendezvous.protocol.matching import HOLD_MS, Nat
from sluice.rendezvous.protocol.messages import NO_PROXIES
from sluice.smoke.runs import NotSo
from sluice.smoke.sites import LOOK_EVERY_S, SmokeSite

PLAN = AttemptPlan(network=Network(loopback=True), payload_bytes=20_000)
VOLUNTEERS = 2
CLIENTS = 4
OFFERED_WITHIN_S = 90.0  # the first offers may come while functions start
LIMITS = VolunteerLimits(pause_s=1.0)
FEDERATION, INGRESS = "SluiceFederation", "IngressUrl"
DENIED = "AccessDenied"  # SQS's code, whatever comes before and after it


def offers(site: SmokeSite) -> str:
    """Offer over SQS: denied while there is no proxy, then answered, with bytes back through WebRTC."""
    return asyncio.run(_offers(site))


def https(site: SmokeSite) -> str:
    """Offer over the broker's URL, and be answered."""
    return asyncio.run(_https(site))


def stranger(site: SmokeSite) -> str:
    """Do with a client's credentials what clients may not: read offers, and publish."""
    client = open_client(site.credentials, region=site.connection.region, endpoint_url=site.connection.endpoint_url)
    ingress = site.output(FEDERATION, INGRESS)
    refused: Mapping[str, Callable[[], object]] = {
        "ReceiveMessage": lambda: client.receive_message(QueueUrl=site.deployment.offers_queue_url),
        "PurgeQueue": lambda: client.purge_queue(QueueUrl=site.deployment.offers_queue_url),
        "SendMessage": lambda: client.send_message(QueueUrl=ingress, MessageBody="stranger"),
    }
    for operation, call in refused.items():
        try:
            with calls(operation):
                call()
        except CallFailed as error:
            if DENIED not in error.code:
                raise
        else:
            raise NotSo(f"a client may {operation}")
    return f"{', '.join(refused)}: denied"


async def _offers(site: SmokeSite) -> str:
    async with sqs_method(site.connection, site.deployment, sqscreds=site.sqscreds) as method:
        await _until(method, lambda each: each.detail == NO_PROXIES, "an offer is denied, as there is no proxy")
        return f"denied without a proxy; then {await _answered(site, method)}"


async def _https(site: SmokeSite) -> str:
    async with http_method(site.deployment) as method:
        return await _answered(site, method)


async def _answered(site: SmokeSite, method: RendezvousMethod) -> str:
    """Offer until one is answered, then let several offer at once, who all have to be; says how fast."""
    async with aiohttp.ClientSession() as session:
        url = site.deployment.broker_url
        volunteer = partial(Volunteer, session, url, network=PLAN.network, nat=Nat.UNRESTRICTED, limits=LIMITS)
        async with serving(volunteer(Echo()) for _ in range(VOLUNTEERS)):
            await _until(method, lambda each: each.echoed, "an offer is answered")
            attempts = await attempt_all(method, [PLAN] * CLIENTS, concurrency=CLIENTS)
        # The volunteers' last polls are held on, and whom they meet nobody answers: not the next check's clients.
        await asyncio.sleep(HOLD_MS / 1000)
    failed = [f"{each.outcome}: {each.detail}" for each in attempts if not each.echoed]
    if failed:
        raise NotSo(f"{len(failed)} of {len(attempts)} offers: {'; '.join(failed)}")
    times = sorted(each.answered_ms for each in attempts if each.answered_ms is not None)
    return f"{len(attempts)} answered in {times[0]:.0f} to {times[-1]:.0f} ms"


async def _until(method: RendezvousMethod, is_so: Callable[[Attempt], bool], what: str) -> None:
    """Offer again and again. Raises `NotSo` with what became of the last one."""
    last = ""
    try:
        async with asyncio.timeout(OFFERED_WITHIN_S):
            while not is_so(tried := await attempt(method, PLAN)):
                last = f"; the last one was {tried.outcome}: {tried.detail}"
                await asyncio.sleep(LOOK_EVERY_S)
    except TimeoutError:
        raise NotSo(f"not within {OFFERED_WITHIN_S:g} s: {what}{last}") from None
