"""`sluice deploy` to accounts with few concurrent executions, as new ones have, and with AWS's usual number.

Each account is a harsh cloud of its own, whose limit is enforced. A destroyed site is deployed again at once.
"""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest

from sluice.aws.rendezvous.clients import ClientCredentials, ClientQueues, open_client
from sluice.building.interpreters import cdk
from sluice.building.project import PROJECT
from sluice.local.cloud import Cloud, clean_environment, start_cloud
from sluice.local.deployer import UNATTENDED
from sluice.local.harsh.behaviours import Behaviours
from sluice.local.sites import DEFAULT_SITE
from sluice.peers.methods import Answered, exchange_over_sqs
from tests.site_access import SiteAccess
from tests.traffic import Proxies, offer_body

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
SCALE = 0.05
# A deleted queue's name is taken for as long as on AWS.
HARSH = Behaviours(scale=SCALE, queue_name_taken_s=60 / SCALE, access_changes_s=0, throttled=0, entry_fails=0)
OPTIONS = ["-c", "sluice.architecture=local", "-c", "sluice.rendezvous.keep_state=false"]
PROXIES, CLIENTS = (f"sluice.rendezvous.{name}_max_concurrency" for name in ("proxy", "client"))
SAYS: Mapping[int, str] = {
    10: "reserves none of the account's 10 concurrent executions, as 100 must stay unreserved: a flood of requests to "
    f"the broker's URL can stop all functions of the account in {DEFAULT_SITE.region}; at most 5 proxy polls are held",
    50: "reserves none of the account's 50 concurrent executions, as 100 must stay unreserved: a flood of requests to "
    f"the broker's URL can stop all functions of the account in {DEFAULT_SITE.region}; at most 25 proxy polls are held",
    1_000: f"reserves 350 of the account's 1,000 concurrent executions ({PROXIES}=300, {CLIENTS}=50): a flood of "
    "requests to the broker's URL leaves the others to other functions; at most 200 proxy polls are held",
}


def run(cloud: Cloud, *command: str) -> str:
    """Runs a program as its user would; what it says on standard error."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    environment = clean_environment() | cloud.environment(DEFAULT_SITE) | UNATTENDED | {"PATH": path}
    done = subprocess.run(
        command, cwd=PROJECT.workspace, env=environment, capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stderr


def sluice(cloud: Cloud, *arguments: str) -> str:
    return run(cloud, sys.executable, "-m", "sluice.cli.main", *arguments, *OPTIONS)


@pytest.fixture(params=SAYS)
def account(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Cloud, int]]:
    """Bootstrapped, with the limit of its concurrent executions."""
    limit: int = request.param
    cloud = start_cloud(tmp_path, ends_with_us=True, harsh=replace(HARSH, account_concurrency=limit))
    try:
        run(cloud, str(cdk()), "bootstrap", f"aws://{DEFAULT_SITE.account}/{DEFAULT_SITE.region}", "--no-notices")
        yield cloud.with_site(DEFAULT_SITE), limit
    finally:
        cloud.stop()


async def meet(site: SiteAccess) -> None:
    """A client and a proxy meet: the broker, the proxy function and both triggers have room to run."""
    client = open_client(
        ClientCredentials.parse(site.sqscreds), region=site.site.region, endpoint_url=site.cloud.endpoint
    )
    async with aiohttp.ClientSession() as session:
        serving = asyncio.create_task(Proxies(session, site.deployment.broker_url).serve())
        try:
            async with ClientQueues(client, site.deployment.offers_queue_url) as queues:
                while not isinstance(await exchange_over_sqs(queues)(offer_body("1")), Answered):
                    pass  # the first function starts for as long as a client waits
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)


def test_a_site_works_with_what_its_account_has_and_says_what_that_is(account: tuple[Cloud, int]) -> None:
    cloud, limit = account
    said = sluice(cloud, "deploy", "--no-approve")
    assert SAYS[limit] in " ".join(said.split())
    site = SiteAccess(cloud, DEFAULT_SITE)
    asyncio.run(asyncio.wait_for(meet(site), 120))
    if limit != max(SAYS):
        return
    sluice(cloud, "destroy", "--force")
    said = sluice(cloud, "deploy", "--no-approve")
    assert "SQS gives no deleted queue's name again for a minute: snowflake-broker" in " ".join(said.split())
    asyncio.run(asyncio.wait_for(meet(SiteAccess(cloud, DEFAULT_SITE)), 120))
