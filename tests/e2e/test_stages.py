"""Two sites in one account and region, one of them at a stage: each has its own, and what one has the other hasn't."""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
import pytest

from sluice.aws.deployment import NotDeployed, read_stack_output, read_stack_outputs
from sluice.aws.rendezvous.clients import ClientUser, revoke_keys
from sluice.console.requests import Topic
from sluice.console.sites import WatchedSite
from sluice.console.watching import ACTIONS, QUESTIONS, READERS, WatchedSites
from sluice.local.cloud import start_cloud
from sluice.local.deployer import Deployer
from sluice.local.sites import Site
from sluice.operator.site_names import SiteName
from sluice.peers.methods import Answered, Denied, Reply, open_sqs_method
from sluice.stages import add_stage_prefix, parse_stage
from tests.deployed import make_queue
from tests.e2e import shares
from tests.e2e.federated import FederatedSite
from tests.e2e.test_console import until
from tests.site_access import SiteAccess
from tests.traffic import Proxies, answer, offer_body

pytestmark = pytest.mark.slow

UNSTAGED = Site("999999999999", "eu-central-1")
STAGED = Site("999999999999", "eu-central-1", "dev")
PARTS = "State", "Rendezvous", "Splitting", "Federation", "Pipeline", "Operations"
PARAMETERS: dict[str, object] = {
    "sluice.rendezvous.held_proxies_min": 10,
    **shares.PARAMETERS,
    "sluice.rendezvous.keep_state": False,
    "sluice.federation.peer_stages": ["", "dev"],
    "sluice.federation.counts_settle_s": 3,  # this cloud's counts are right at once
}
FANOUT = "amq.fanout"
WITHIN_S = 120
MET = (Denied, Answered(answer("2")))

T = TypeVar("T")


@pytest.fixture(scope="module")
def deployer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployer]:
    """Has deployed both to a cloud of their own, whose names say whose they are."""
    cloud = start_cloud(tmp_path_factory.mktemp("cloud"), ends_with_us=True)
    try:
        deployer = Deployer(cloud=cloud, context=PARAMETERS)
        deployer.deploy(UNSTAGED, STAGED)
        yield deployer
    finally:
        cloud.stop()


@pytest.fixture(scope="module")
def sites(deployer: Deployer) -> list[FederatedSite]:
    return [FederatedSite(deployer.cloud, site) for site in (UNSTAGED, STAGED)]


def at_both(do: Callable[[SiteAccess], T], sites: list[FederatedSite]) -> list[T]:
    """What it gives for each, side by side."""
    with ThreadPoolExecutor(len(sites)) as executor:
        return list(executor.map(do, (SiteAccess(site.cloud, site.site) for site in sites)))


def met(site: SiteAccess) -> tuple[type[Reply], Reply]:
    """What a client hears before there is a proxy, which may be of either kind, and then."""
    return asyncio.run(asyncio.wait_for(_met(site), WITHIN_S))


async def _met(site: SiteAccess) -> tuple[type[Reply], Reply]:
    async with (
        open_sqs_method(site.connection, site.deployment, sqscreds=site.sqscreds) as exchange,
        aiohttp.ClientSession() as session,
    ):
        proxies = Proxies(session, site.deployment.broker_url)
        denied = await exchange(offer_body("1"))
        serving = asyncio.create_task(_served(proxies))
        try:
            # Its patience may be over while the function's first environment starts.
            while not isinstance(reply := await exchange(offer_body("2")), Answered):
                pass
        finally:
            serving.cancel()
    return type(denied), reply


async def _served(proxies: Proxies) -> None:
    while True:
        polled = await proxies.poll()
        if polled.matched:
            await proxies.answer(polled.sid, answer("2"))


def queues_made(site: FederatedSite, prefix: str) -> set[str | None]:
    """Whose queues there are whose names begin so, but for the stage."""
    stages = {name: parse_stage(name) for name in queue_names(site)}
    return {stage for name, stage in stages.items() if name.removeprefix(f"{stage}-").startswith(prefix)}


def divided(site: SiteAccess) -> Mapping[str, Sequence[str]]:
    return shares.divide(site.connection)


def bound(site: FederatedSite, name: str, exchange: str = FANOUT, key: str = "") -> str:
    """A new queue of the site's, bound."""
    make_queue(site.sqs, name)
    site.bind(exchange, name, key)
    site.queues.append(name)
    return name


def queue_names(site: FederatedSite) -> list[str]:
    pages = site.sqs.get_paginator("list_queues").paginate()
    return [url.rsplit("/", 1)[1] for page in pages for url in page.get("QueueUrls", [])]


def test_offers_are_answered_at_each(sites: list[FederatedSite]) -> None:
    assert at_both(met, sites) == [MET, MET]
    assert sites[0].tag != sites[1].tag
    assert queues_made(sites[0], "snowflake-client-") == queues_made(sites[0], "sluice-mailbox-") == {None, "dev"}


def test_a_queue_that_both_call_the_same_is_split_at_each(sites: list[FederatedSite]) -> None:
    assert at_both(divided, sites) == [shares.DIVIDED, shares.DIVIDED]


def test_what_is_published_at_one_stays_there(sites: list[FederatedSite]) -> None:
    unstaged, dev = sites
    here, there = bound(unstaged, "sluice-queue-here"), bound(dev, "dev-sluice-queue-here")
    unstaged.publish(FANOUT, "k", ["here"], fifo=False)
    dev.publish(FANOUT, "k", ["there"], fifo=False)
    assert unstaged.bodies(here, 1) == ["here"]
    assert dev.bodies(there, 1) == ["there"]


def test_one_is_the_others_peer_where_both_say_so(sites: list[FederatedSite]) -> None:
    unstaged, dev = sites
    queue = bound(dev, "dev-sluice-queue-pulled", "amq.topic", "#")
    dev.pull(unstaged, "amq.direct", "amq.topic", key="k", fifo=False)
    unstaged.publish("amq.direct", "k", ["over"], fifo=False)
    assert dev.bodies(queue, 1) == ["over"]
    made = [name for name in queue_names(unstaged) if "sluice-bridge-" in name]
    assert {parse_stage(name) for name in made} == {None}
    dev.close_all()
    dev.until(lambda found: not found.links, within_s=180)


def test_where_one_is_destroyed_the_other_goes_on(deployer: Deployer, sites: list[FederatedSite]) -> None:
    unstaged, dev = sites
    for name in dev.queues:
        dev.sqs.delete_queue(QueueUrl=dev.url(name))
    revoke_keys(
        ClientUser(
            dev.connection.client("iam"), read_stack_output(dev.connection, "SluiceRendezvous", "ClientUserName")
        )
    )
    deployer._run_cdk(STAGED, ["destroy", "--all", "--force", "--app", str(deployer.assembly(STAGED.stage).folder)])
    with pytest.raises(NotDeployed, match="dev-SluiceState is not deployed"):
        read_stack_outputs(dev.connection, "SluiceState")
    # What was made at run time is the functions' to sweep, which are gone with their site.
    assert queues_made(unstaged, "SluiceState-") == queues_made(unstaged, "snowflake-broker") == {None}
    assert at_both(met, [unstaged]) == [MET]
    assert at_both(divided, [unstaged]) == [shares.DIVIDED]


def test_the_console_has_of_each_its_own_alarms_deployments_and_functions(
    sites: list[FederatedSite], tmp_path: Path
) -> None:
    both = [seen_on_the_console(site, tmp_path) for site in sites]
    assert [deployed for deployed, _ in both] == [
        {f"stack {add_stage_prefix(f'Sluice{part}', site.site.stage)}" for part in PARTS} for site in sites
    ]
    (_, here), (_, dev) = both
    assert here == dev  # the one is deployed as the other
    assert here["alarms"]
    assert here["functions"]


def seen_on_the_console(site: FederatedSite, landed: Path) -> tuple[set[str], dict[str, Any]]:
    """Which stacks it says were deployed, and how many alarms, which functions it finds."""
    name = SiteName(site.site.region, local_account=site.site.account, stage=site.site.stage)
    shown = WatchedSite(name, lambda _: site.connection, landed)
    watched = WatchedSites(sites=[shown], readers=READERS, questions=QUESTIONS, actions=ACTIONS)

    def seen() -> tuple[set[str], dict[str, Any]]:
        overview, log = (watched.read(Topic(reading=reading)) for reading in ("overview", "log"))
        deployed = {change["text"].split(":")[0] for change in overview["changes"] if change["part"] == "deployment"}
        return deployed, {"alarms": overview["alarms_watched"], "functions": log["functions"]}

    return until(seen, lambda found: all(found[1].values()))
