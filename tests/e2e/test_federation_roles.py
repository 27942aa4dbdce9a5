"""Sites that let each other in by a role with an external id, in place of the queues' policies."""

from collections.abc import Iterator

import pytest
from botocore.exceptions import ClientError

from sluice.federation.links.links import Link
from sluice.federation.operations import AddLink, CloseLink
from sluice.local.cloud import Cloud
from sluice.local.deployer import Deployer
from sluice.local.sites import Site
from tests.e2e.federated import PREFIX, FederatedSite

ACCOUNTS = ("333333333333", "444444444444")
TEN = [f"Message {number}" for number in range(1, 11)]


@pytest.fixture(scope="module")
def sites(cloud: Cloud) -> Iterator[list[FederatedSite]]:
    parameters = {
        "sluice.rendezvous.keep_state": False,
        "sluice.splitting.queues": [],
        "sluice.federation.peer_accounts": list(ACCOUNTS),
        "sluice.federation.queue_names": [f"{PREFIX}*"],
        "sluice.federation.access": "role",
        "sluice.federation.external_id": "between-us",
        "sluice.federation.counts_settle_s": 3,  # this cloud's counts are right at once
        # Nothing is declared, so that after a test there is nothing.
        "sluice.rendezvous.events_exchange": None,
        "sluice.federation.exchanges": [],
    }
    places = [Site(account=account, region="eu-west-1") for account in ACCOUNTS]
    deployed = Deployer(cloud=cloud, context=parameters).deploy(*places)
    found = [FederatedSite(deployed, place) for place in places]
    yield found
    for site in found:
        site.close_all()
        site.forget()


@pytest.mark.slow
def test_ten_arrive_by_the_peers_roles(sites: list[FederatedSite]) -> None:
    here, there = sites
    assert ":role/SluiceFederation-PeerRole" in (there.address.role_arn or "")
    queue = here.bound("amq.fanout")
    here.pull(there, "amq.fanout")
    there.publish("amq.fanout", "", TEN)
    assert here.bodies(queue, 10) == TEN


@pytest.mark.slow
def test_without_the_external_id_a_link_is_refused(sites: list[FederatedSite]) -> None:
    here, there = sites
    here.introduce(there)
    address = there.address
    for name, role_arn in (("no-id", address.role_arn), ("no-role", None)):
        link = Link(name=name, peer=there.tag, endpoints=(address.endpoint,), role_arn=role_arn)
        here.ask(AddLink(link=link))
        assert "AccessDenied" in (here.until_link(name, "Failed").status.last_error or "")
        here.ask(CloseLink(name=name))


@pytest.mark.slow
def test_a_stranger_gets_in_nowhere(sites: list[FederatedSite]) -> None:
    stranger = FederatedSite(sites[0].cloud, Site(account="555555555555", region="eu-west-1"))
    in_order = {"MessageGroupId": "g", "MessageDeduplicationId": "d"}
    address = sites[0].address
    for url in (address.control_queue_url, address.ingress_url, address.fifo_ingress_url):
        with pytest.raises(ClientError, match="AccessDenied"):
            stranger.sqs.send_message(
                QueueUrl=url, MessageBody="let me in", **(in_order if url.endswith(".fifo") else {})
            )
