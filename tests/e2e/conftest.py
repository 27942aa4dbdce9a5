"""Four sites that federate, in two accounts and two regions, deployed once."""

from collections.abc import Iterator

import pytest

from sluice.federation.operations import ListBindings
from sluice.local.cloud import Cloud
from sluice.local.deployer import Deployer
from sluice.local.sites import Site
from tests.deployed import come_again_soon
from tests.e2e.federated import PREFIX, FederatedSite
from tests.e2e.ways import Way

ACCOUNTS = ("111111111111", "222222222222")
SITES = [Site(account=account, region=region) for account in ACCOUNTS for region in ("us-east-1", "eu-west-1")]


@pytest.fixture(scope="session")
def way(cloud: Cloud) -> Iterator[Way]:
    """The one on which sites reach each other."""
    opened = Way(cloud.endpoint)
    yield opened
    opened.cut()


@pytest.fixture(scope="session")
def all_sites(cloud: Cloud, way: Way) -> list[FederatedSite]:
    parameters = {
        "sluice.rendezvous.keep_state": False,
        "sluice.splitting.queues": [],
        "sluice.federation.peer_accounts": list(ACCOUNTS),
        "sluice.federation.queue_names": [f"{PREFIX}*"],
        "sluice.federation.trust_publishers": True,
        "sluice.federation.sqs_url": way.url,
        "sluice.federation.counts_settle_s": 3,  # this cloud's counts are right at once
        # Nothing is declared, so that after a test there is nothing.
        "sluice.rendezvous.events_exchange": None,
        "sluice.federation.exchanges": [],
    }
    deployed = Deployer(cloud=cloud, context=parameters).deploy(*SITES)
    found = [FederatedSite(deployed, site) for site in SITES]
    for site in found:
        come_again_soon(site.sqs)
    return found


@pytest.fixture
def sites(all_sites: list[FederatedSite]) -> Iterator[list[FederatedSite]]:
    """All four, and after each test nothing of it is left anywhere."""
    yield all_sites
    for site in all_sites:
        site.close_all()
    for site in all_sites:
        site.until(lambda found: not found.links and not found.bridges, within_s=180)
        site.until_nothing_is_left(within_s=120)
    for site in all_sites:
        site.forget()
        assert site.ask(ListBindings()).bindings == ()


@pytest.fixture
def b0(sites: list[FederatedSite]) -> FederatedSite:
    return sites[0]


@pytest.fixture
def b1(sites: list[FederatedSite]) -> FederatedSite:
    """Of another account, in another region."""
    return sites[3]
