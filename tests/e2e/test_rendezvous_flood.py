"""A flood of offers over HTTP, from a client without a key, where functions have no more than they reserve.

The reserve is a seventeenth of what `sluice deploy` reserves, so that a flood needs few execution environments.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Iterator

import aiohttp
import pytest

from sluice.aws.rendezvous.clients import ClientCredentials, ClientQueues, open_client
from sluice.cli.terminal import print_note
from sluice.local.cloud import start_cloud
from sluice.local.deployer import Deployer
from sluice.local.harsh.behaviours import Behaviours
from sluice.local.sites import DEFAULT_SITE
from sluice.operator.accounts import RESERVES
from sluice.peers.methods import Answered, Reply, exchange_over_sqs
from sluice.rendezvous.protocol.ends import End
from sluice.rendezvous.protocol.matching import Nat
from tests.site_access import SiteAccess
from tests.traffic import Proxies, offer_body

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
PROXIES_RESERVE, CLIENTS_RESERVE = 12, 3
HELD_S = 4.04  # that an offer without a proxy occupies the client function
OFFERS_PER_S = 10 * CLIENTS_RESERVE / HELD_S  # ten times what fills the reserve
FLOOD_S = 30
SERVING, CLIENTS = 6, 2
REFUSED = 429
CALM = Behaviours(
    scale=0, throttled=0, entry_fails=0, duplicated=0, reordered=0, short_poll_misses=0, account_concurrency=150
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SiteAccess]:
    cloud = start_cloud(tmp_path_factory.mktemp("flood"), ends_with_us=True, harsh=CALM)
    proxies, clients = RESERVES
    context = {proxies: PROXIES_RESERVE, clients: CLIENTS_RESERVE, "sluice.rendezvous.held_proxies_min": SERVING}
    try:
        yield SiteAccess(Deployer(cloud=cloud, context=context).deploy(DEFAULT_SITE), DEFAULT_SITE)
    finally:
        cloud.stop()


async def flood(session: aiohttp.ClientSession, url: str, statuses: Counter[int]) -> None:
    """Sends offers at their rate, whatever becomes of them: none finds a proxy, as none serves their NAT."""

    async def offer(number: int) -> None:
        async with session.post(url, data=offer_body(str(number), nat=Nat.RESTRICTED).encode()) as response:
            statuses[response.status] += 1

    async with asyncio.TaskGroup() as offers:
        until = time.monotonic() + FLOOD_S
        while time.monotonic() < until:
            offers.create_task(offer(sum(statuses.values())))
            await asyncio.sleep(1 / OFFERS_PER_S)


def test_a_flood_of_offers_without_a_key_refuses_no_poll_no_answer_and_no_other_client(site: SiteAccess) -> None:
    flooded = Counter[int]()
    met = Counter[type[Reply]]()
    client = open_client(
        ClientCredentials.parse(site.sqscreds), region=site.site.region, endpoint_url=site.cloud.endpoint
    )

    async def run() -> Counter[str]:
        async with (
            aiohttp.ClientSession() as session,
            aiohttp.ClientSession() as flood_session,
            ClientQueues(client, site.deployment.offers_queue_url) as queues,
        ):
            offer, body = exchange_over_sqs(queues), offer_body("met", nat=Nat.UNRESTRICTED)
            proxies = Proxies(session, site.deployment.broker_url, nat=Nat.RESTRICTED)
            serving = [asyncio.create_task(proxies.serve()) for _ in range(SERVING)]
            while not isinstance(await offer(body), Answered):
                pass  # the first functions start for as long as a client waits
            url = site.deployment.client_url.rstrip("/") + "/client"
            flooding = asyncio.create_task(flood(flood_session, url, flooded))

            async def meet() -> None:
                while not flooding.done():
                    met[type(await offer(body))] += 1

            await asyncio.gather(flooding, *(meet() for _ in range(CLIENTS)))
            for task in serving:
                task.cancel()
            await asyncio.gather(*serving, return_exceptions=True)
            return proxies.statuses

    proxies = asyncio.run(run())
    print_note(f"offers of the flood {dict(flooded)}; polls {dict(proxies)}; clients with a key {dict(met)}")
    assert flooded[REFUSED] > sum(flooded.values()) * 0.8, "this is no flood"
    assert not [status for status in proxies if str(REFUSED) in status], proxies
    assert proxies[End.POLL_MATCHED.reply] >= FLOOD_S / 2, "too few polls and answers to tell"
    assert met[Answered] >= met.total() * 0.9, met
