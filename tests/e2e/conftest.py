"""Four sites that federate, in three accounts and two regions, deployed once."""

from collections.abc import Iterator, Sequence

import pytest

from sluice.federation.operations import ListBindings
from sluice.local.cloud import Cloud
from sluice.local.deployer import Deployer
from sluice.local.sites import Site
from tests.deployed import redeliver_soon
from tests.e2e.federated import PREFIX, FederatedSite
from tests.e2e.ways import Way

ACCOUNTS = ("111111111111", "222222222222", "666666666666")
SITES = [
    Site(account=ACCOUNTS[0], region="us-east-1"),
    Site(account=ACCOUNTS[0], region="eu-west-1"),
    Site(account=ACCOUNTS[1], region="us-east-1"),
    Site(account=ACCOUNTS[2], region="eu-west-1"),
]
PAIRS = ((0, 3), (1, 2))  # of the sites, each of two accounts and two regions


@pytest.fixture(scope="session")
def only_way(cloud: Cloud) -> Iterator[Way]:
    """The one on which sites reach each other."""
    opened = Way(cloud.endpoint)
    yield opened
    opened.cut()


@pytest.fixture(scope="session")
def all_sites(cloud: Cloud, only_way: Way) -> list[FederatedSite]:
    parameters = {
        "sluice.rendezvous.keep_state": False,
        "sluice.splitting.queues": [],
        "sluice.federation.peer_accounts": list(ACCOUNTS),
        "sluice.federation.queue_names": [f"{PREFIX}*"],
        "sluice.federation.trust_publishers": True,
        "sluice.federation.sqs_url": only_way.url,
        "sluice.federation.counts_settle_s": 3,  # this cloud's counts are right at once
        # Nothing is declared, so that after a test there is nothing.
        "sluice.rendezvous.events_exchange": None,
        "sluice.federation.exchanges": [],
    }
    deployed = Deployer(cloud=cloud, context=parameters).deploy(*SITES)
    found = [FederatedSite(deployed, site) for site in SITES]
    for site in found:
        redeliver_soon(site.sqs)
    return found


class Lending:
    """Lends the sites to tests. What a test leaves there goes while the next test has others."""

    def __init__(self, sites: list[FederatedSite]) -> None:
        self.sites = sites
        self._next_pair = 0
        self._left_by: dict[int, str] = {}

    def lend_pair(self, test: str) -> list[FederatedSite]:
        """Lend two sites that are of two accounts and two regions: those that the last test with a pair didn't have."""
        pair = PAIRS[self._next_pair]
        self._next_pair = (self._next_pair + 1) % len(PAIRS)
        return self._lend(pair, test)

    def lend_all(self, test: str) -> list[FederatedSite]:
        return self._lend(range(len(self.sites)), test)

    def take_back(self, sites: list[FederatedSite]) -> None:
        """Begin to take away what a test made; `wait_until_clean` sees to the rest."""
        for site in sites:
            site.close_all()

    def wait_until_clean(self, sites: list[FederatedSite]) -> None:
        """Wait until nothing of an earlier test is left at these sites."""
        left_by = {self._left_by[place] for place in self._places(sites) if place in self._left_by}
        try:
            for site in sites:
                site.until(lambda found: not found.links and not found.bridges)
                site.until_nothing_is_left()
            for site in sites:
                site.forget()
                assert site.ask(ListBindings()).bindings == ()
        except AssertionError as error:
            error.add_note(f"left by {', '.join(sorted(left_by))}")
            raise
        for place in self._places(sites):
            self._left_by.pop(place, None)

    @property
    def lent(self) -> list[FederatedSite]:
        """Those at which something of a test may be left; the others have been looked at since."""
        return [site for place, site in enumerate(self.sites) if place in self._left_by]

    def _lend(self, places: Sequence[int], test: str) -> list[FederatedSite]:
        lent = [self.sites[place] for place in places]
        self.wait_until_clean([site for place, site in zip(places, lent, strict=True) if place in self._left_by])
        self._left_by |= dict.fromkeys(places, test)
        return lent

    def _places(self, sites: list[FederatedSite]) -> list[int]:
        return [place for place, site in enumerate(self.sites) if site in sites]


@pytest.fixture(scope="session")
def lending(all_sites: list[FederatedSite]) -> Iterator[Lending]:
    lending = Lending(all_sites)
    yield lending
    lending.wait_until_clean(lending.lent)


@pytest.fixture
def sites(lending: Lending, request: pytest.FixtureRequest) -> Iterator[list[FederatedSite]]:
    """All four; after each test nothing of it is left anywhere."""
    lent = lending.lend_all(request.node.nodeid)
    yield lent
    lending.take_back(lent)


@pytest.fixture
def pair(lending: Lending, request: pytest.FixtureRequest) -> Iterator[list[FederatedSite]]:
    """Two of them, for a test that needs no others."""
    lent = lending.lend_pair(request.node.nodeid)
    yield lent
    lending.take_back(lent)


@pytest.fixture
def b0(pair: list[FederatedSite]) -> FederatedSite:
    return pair[0]


@pytest.fixture
def b1(pair: list[FederatedSite]) -> FederatedSite:
    """Of another account, in another region."""
    return pair[1]


@pytest.fixture
def way(only_way: Way, lending: Lending, pair: list[FederatedSite]) -> Iterator[Way]:
    """The way on which sites reach each other, for a test that cuts it.

    The others must have taken leave of each other before: a site that can't reach its peer closes a link without that.
    """
    lending.wait_until_clean([site for site in lending.sites if site not in pair])
    yield only_way
    only_way.mend()
