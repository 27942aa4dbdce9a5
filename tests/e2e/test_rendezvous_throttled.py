"""A site of its own, where AWS refuses a tenth of all calls: whichever is hit, a client hears before it gives up."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import aiohttp
import pytest

from sluice.aws.rendezvous.clients import ClientCredentials, ClientQueues, open_client
from sluice.local.cloud import start_cloud
from sluice.local.deployer import Deployer
from sluice.local.harsh.behaviours import Behaviours
from sluice.local.sites import DEFAULT_SITE
from sluice.peers.methods import Denied, Reply, exchange_over_sqs
from sluice.rendezvous.protocol.ends import End
from tests.site_access import SiteAccess
from tests.sqs_requests import read_requests
from tests.traffic import Proxies, offer_body

pytestmark = pytest.mark.slow
OFTEN = Behaviours(
    scale=0, throttled=0.1, entry_fails=0, duplicated=0, reordered=0, short_poll_misses=0, expired_item_stays_s=0
)
OFFERS = 60
HEARS_S = 6.5
HEARS_OF_PROXY_S = 26.5  # if a proxy has the offer
LOOKS_S = 1.0  # a client looks for its queue once a second, and this one's own calls are refused too
THROTTLED = 400
BROKERS = {"CreateQueue", "SendMessage", "DeleteQueue"}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SiteAccess]:
    cloud = start_cloud(tmp_path_factory.mktemp("throttled"), ends_with_us=True, harsh=OFTEN)
    try:
        context = {"sluice.rendezvous.held_proxies_min": 20}
        yield SiteAccess(Deployer(cloud=cloud, context=context).deploy(DEFAULT_SITE), DEFAULT_SITE)
    finally:
        cloud.stop()


@asynccontextmanager
async def proxies_that_answer(site: SiteAccess, number: int) -> AsyncIterator[None]:
    async with aiohttp.ClientSession() as session:
        proxies = Proxies(session, site.deployment.broker_url)
        serving = [asyncio.create_task(proxies.serve()) for _ in range(number)]
        try:
            yield
        finally:
            for each in serving:
                each.cancel()
            await asyncio.gather(*serving, return_exceptions=True)


async def heard(site: SiteAccess, *, at_once: int = 1) -> list[tuple[Reply, float]]:
    """What each of some clients hears, of which so many come at once, and after how many seconds."""
    credentials = ClientCredentials.parse(site.sqscreds)
    client = open_client(credentials, region=site.site.region, endpoint_url=site.cloud.endpoint)
    async with ClientQueues(client, site.deployment.offers_queue_url) as queues:

        async def hear(number: int) -> tuple[Reply, float]:
            began_at = time.monotonic()
            reply = await exchange_over_sqs(queues)(offer_body(str(number)))
            return reply, time.monotonic() - began_at

        return [
            each
            for begun in range(0, OFFERS, at_once)
            for each in await asyncio.gather(*map(hear, range(begun, begun + at_once)))
        ]


def refused(site: SiteAccess) -> set[str]:
    """What was refused, of the calls that brokers make."""
    made = read_requests(site.cloud.request_log)
    return {request.action for request in made if request.status >= THROTTLED} & BROKERS


def test_a_client_hears_in_time_that_nobody_is_there(site: SiteAccess) -> None:
    replies = asyncio.run(heard(site, at_once=5))
    assert {reply for reply, _ in replies} <= {Denied(End.OFFER_DENIED.reply), Denied(End.OFFER_TIMED_OUT.reply)}
    assert [seconds for _, seconds in replies if seconds > HEARS_S + LOOKS_S] == []
    assert refused(site) >= {"CreateQueue", "SendMessage"}


def test_a_client_hears_in_time_where_proxies_answer(site: SiteAccess) -> None:
    async def answered() -> list[tuple[Reply, float]]:
        async with proxies_that_answer(site, 6):
            return await heard(site)

    replies = asyncio.run(answered())
    assert [seconds for _, seconds in replies if seconds > HEARS_OF_PROXY_S + LOOKS_S] == []
    # Who is let down by one call too many is told so.
    assert sum(isinstance(reply, Denied) for reply, _ in replies) <= OFFERS // 10
