"""`sluice queue create|delete|list`, `sluice binding add --create`: SQS is moto's, the site's operations are real."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import boto3
import pytest
from moto import mock_aws
from typer.testing import CliRunner, Result

from sluice.aws.federation.queues import SqsSiteQueues
from sluice.cli.program import app
from sluice.codec import encode
from sluice.errors import BadConfiguration, QueueGone, SenderFault
from sluice.federation.links.links import Bridge, Endpoint, Link
from sluice.federation.links.peers import Peer
from sluice.federation.operations import OPERATIONS, AddBridge, AddLink, AddPeer, BindQueue
from sluice.federation.settings import SiteNames
from sluice.operations import Operation, R, build_error_reply, build_reply, parse_request, parse_result
from sluice.operator.federated_sites import use_clients
from tests.federation_fakes import Site, World, build_operation_handler

REGION = "eu-central-1"
NAME, FIFO_NAME = "sluice-queue-orders", "sluice-queue-orders.fifo"
NAMES = SiteNames(queues={"orders": "stack-orders-1"}, patterns=("sluice-queue-*",))


@dataclass
class OfMoto(Site):
    """A site whose queues are moto's; `late` is how often a queue isn't found at first."""

    late: int = 0

    def ask(self, operation: Operation[R], /) -> R:
        link_service = self.link_service()
        operation_handler = build_operation_handler(
            link_service, self.drift_repair(link_service, redrive=lambda _: 0), names=NAMES
        )
        try:
            asked = parse_request(encode(operation), OPERATIONS)
            if isinstance(asked, BindQueue) and self.late:
                self.late -= 1
                return parse_result(operation, encode(build_error_reply(QueueGone(asked.queue))))
            reply = build_reply(operation_handler.apply(asked))
        except (BadConfiguration, SenderFault, QueueGone) as error:
            reply = build_error_reply(error)
        return parse_result(operation, encode(reply))

    def sluice(self, *arguments: str, code: int = 0) -> Result:
        with use_clients(lambda _: self):
            result = CliRunner().invoke(app, arguments)
        assert result.exit_code == code, f"{result.output}{result.exception!r}"
        return result

    def listed(self) -> dict[str, dict[str, Any]]:
        return {load["name"]: load for load in json.loads(self.sluice("queue", "list", REGION, "--json").stdout)}


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[OfMoto]:
    for name in ("AWS_ENDPOINT_URL", "AWS_PROFILE", "AWS_DEFAULT_REGION", "AWS_REGION"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    with mock_aws():
        sqs = boto3.client("sqs", region_name=REGION)
        beside = sqs.create_queue(QueueName="stack-orders-1")["QueueUrl"]
        sqs.create_queue(QueueName="somebody-elses")
        made = OfMoto("EAST", World(()))
        # It stands in for the stand-in: both keep the same promises.
        made.queues = SqsSiteQueues(sqs, beside, "arn:aws:sqs:eu-central-1:123456789012:")  # type: ignore[assignment]  # see above
        yield made


def tags_of(site: OfMoto, name: str) -> dict[str, str]:
    return dict(site.queues.describe(name)[1])


def test_a_queue_is_made_with_the_sites_tag_and_once_more_changes_nothing(site: OfMoto) -> None:
    for _ in range(2):
        assert site.sluice("queue", "create", REGION, FIFO_NAME).stderr == f"{FIFO_NAME} is a queue of {REGION}\n"
    assert tags_of(site, FIFO_NAME) == {"sluice:site": "EAST"}
    assert json.loads(site.sluice("queue", "create", REGION, NAME, "--json").stdout) == {"queue": NAME, "fifo": False}
    assert {name for name, each in site.listed().items() if each["fifo"]} == {FIFO_NAME}


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("somebody-elses", "EAST may not use a queue of this name; federation.queue_names has sluice-queue-*"),
        ("sluice-queue-*", "is not a queue's name"),
        ("sluice-queue-" + "x" * 68, "is not a queue's name"),
    ],
)
def test_what_the_site_may_not_use_is_neither_made_nor_deleted(site: OfMoto, name: str, reason: str) -> None:
    assert reason in site.sluice("queue", "create", REGION, name, code=1).stderr
    assert reason in site.sluice("queue", "delete", REGION, name, "--force", code=1).stderr
    assert set(site.listed()) == {"orders"}


def test_queues_are_listed_with_what_they_hold_and_who_reads_them(site: OfMoto) -> None:
    site.sluice("binding", "add", REGION, "amq.topic", NAME, "order.#", "--create")
    site.queues.send_batch(NAME, [{"Id": "0", "MessageBody": "m"}])
    said = {"fifo": False, "routes": []}
    assert site.listed() == {
        "orders": said | {"name": "orders", "queue": "stack-orders-1", "deployed": True, "messages": 0, "bindings": 0},
        NAME: said | {"name": NAME, "queue": NAME, "deployed": False, "messages": 1, "bindings": 1},
    }
    shown = site.sluice("queue", "list", REGION).stdout
    assert "read by" in shown
    assert "somebody-elses" not in shown


def test_a_queue_that_is_bound_or_holds_messages_is_deleted_only_by_force(site: OfMoto) -> None:
    site.sluice("binding", "add", REGION, "amq.topic", NAME, "order.#", "--create")
    site.sluice("binding", "add", REGION, "amq.fanout", NAME)
    assert (
        "has 2 bindings: delete them first, or use --force"
        in site.sluice("queue", "delete", REGION, NAME, code=1).stderr
    )
    site.queues.send_batch(NAME, [{"Id": "0", "MessageBody": "m"}])
    site.sluice("binding", "del", REGION, "amq.topic", NAME, "order.#")
    site.sluice("binding", "del", REGION, "amq.fanout", NAME)
    assert "holds 1 messages: consume them first" in site.sluice("queue", "delete", REGION, NAME, code=1).stderr
    site.sluice("binding", "add", REGION, "amq.fanout", NAME)
    assert site.sluice("queue", "delete", REGION, NAME, "--force").stderr == f"{NAME} was deleted from {REGION}\n"
    assert set(site.listed()) == {"orders"}
    assert json.loads(site.sluice("binding", "list", REGION, "--json").stdout) == []
    assert "no such queue" in site.sluice("queue", "delete", REGION, NAME, code=1).stderr


def test_a_queue_that_is_deployed_or_read_by_a_route_is_not_deleted(site: OfMoto) -> None:
    assert "is deployed: remove it from cdk.json" in site.sluice("queue", "delete", REGION, "orders", code=1).stderr
    site.sluice("queue", "create", REGION, NAME)
    peer = Endpoint(region=REGION, account="123456789012", control_queue_url="https://sqs.WEST/control.fifo")
    site.ask(AddPeer(peer=Peer(tag="WEST", account=peer.account, region=REGION)))
    site.ask(AddLink(link=Link(name="to", peer="WEST", endpoints=(peer,))))
    route = Bridge(name="r", link="to", src=NAME, dest="amq.topic", src_is_queue=True, src_is_local=True)
    site.ask(AddBridge(bridge=route))
    for force in ((), ("--force",)):
        said = site.sluice("queue", "delete", REGION, NAME, *force, code=1).stderr
        assert f"{NAME} is read by routes: delete r first" in said
    assert site.listed()[NAME]["routes"] == ["r"]


def test_binding_makes_the_queue_and_waits_until_the_site_finds_it(site: OfMoto) -> None:
    site.late = 1
    site.sluice("binding", "add", REGION, "amq.topic", NAME, "order.#", "--create")
    assert site.listed()[NAME]["bindings"] == 1
    assert tags_of(site, NAME) == {"sluice:site": "EAST"}
    site.sluice("binding", "add", REGION, "amq.topic", "orders", "--create")  # it is there
    said = site.sluice("binding", "add", REGION, "amq.topic", "sluice-queue-other", code=1).stderr
    assert "no such queue: sluice-queue-other" in said


def test_for_an_exchange_that_isnt_there_no_queue_is_made(site: OfMoto) -> None:
    said = site.sluice("binding", "add", REGION, "orderz", NAME, "--create", code=1).stderr
    assert f"no such exchange at {REGION}: orderz; there are amq.direct" in said
    assert NAME not in site.listed()


def test_for_a_binding_that_is_refused_no_queue_is_made(site: OfMoto) -> None:
    site.sluice("binding", "add", REGION, "amq.match", NAME, "k", "--argument", "x-match=most", "--create", code=1)
    site.sluice("binding", "add", REGION, "amq.topic", NAME, "k" * 257, "--create", code=1)
    assert NAME not in site.listed()


def test_what_a_queue_holds_is_moved_to_another_in_order(site: OfMoto) -> None:
    for name in (FIFO_NAME, "sluice-queue-new.fifo"):
        site.sluice("queue", "create", REGION, name)
    entries = [
        {"Id": f"{n}", "MessageBody": f"{n}", "MessageGroupId": "g", "MessageDeduplicationId": f"{n}"}
        for n in range(10)
    ]
    assert site.queues.send_batch(FIFO_NAME, entries) == {}
    source, target = site.queues.url(FIFO_NAME), site.queues.url("sluice-queue-new.fifo")
    move = ("queue", "move", REGION, source, target)
    assert site.sluice(*move, "--count", "4").stderr == f"4 moved from {source} to {target}\n"
    said = json.loads(site.sluice(*move, "--what-is-there", "--json").stdout)
    assert said == {"moved": 6, "stays": {}, "stopped": False}
    assert [each.body for each in site.queues.receive_batch("sluice-queue-new.fifo")] == [f"{n}" for n in range(10)]
    assert "are the same queue" in site.sluice("queue", "move", REGION, source, source, code=1).stderr
    assert "no such queue" in site.sluice("queue", "move", REGION, site.queues.url("nothing"), target, code=1).stderr
