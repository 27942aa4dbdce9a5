"""Sites that let each other in by a role with an external id, in place of the queues' policies."""

from collections.abc import Iterator

import pytest
from botocore.exceptions import ClientError

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


def test_ten_arrive_by_the_peers_roles(sites: list[FederatedSite]) -> None:
    here, there = sites
    assert ":role/SluiceFederation-PeerRole" in there.address["role_arn"]
    queue = here.bound("amq.fanout")
    here.pull(there, "amq.fanout")
    there.publish("amq.fanout", "", TEN)
    assert here.bodies(queue, 10) == TEN


@pytest.mark.slow
def test_without_the_external_id_a_link_is_refused(sites: list[FederatedSite]) -> None:
    here, there = sites
    address = there.address
    endpoint = {name: address[name] for name in ("region", "account", "control_queue_url", "sqs_url")}
    for name, way_in in (("no-id", {"role_arn": address["role_arn"]}), ("no-role", {})):
        here.ask("link_add", link={"name": name, "peer": there.tag, "endpoints": [endpoint], **way_in})
        site = here.until_link(name, "Failed")
        [link] = [link for link in site["links"] if link["name"] == name]
        assert "AccessDenied" in link["status"]["last_error"]
        here.ask("link_del", name=name)


@pytest.mark.slow
def test_a_stranger_gets_in_nowhere(sites: list[FederatedSite]) -> None:
    stranger = FederatedSite(sites[0].cloud, Site(account="555555555555", region="eu-west-1"))
    in_order = {"MessageGroupId": "g", "MessageDeduplicationId": "d"}
    for name in ("control_queue_url", "ingress_url", "fifo_ingress_url"):
        url = sites[0].address[name]
        with pytest.raises(ClientError, match="AccessDenied"):
            stranger.sqs.send_message(
                QueueUrl=url, MessageBody="let me in", **(in_order if url.endswith(".fifo") else {})
            )
