"""A site's queues deployed, filled, and deployed with other parameters: each queue's messages are where its name is.

But for the last test the stack of state alone is deployed, by CloudFormation's API: it has the queues, and no code.
Whose a queue is, its readers' templates say.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from botocore.exceptions import ClientError

from sluice.aws.connections import Connection, connect_environment
from sluice.local.cloud import Cloud, start_cloud
from sluice.local.deployer import Deployer, DeploymentFailed
from sluice.local.harsh.behaviours import Behaviours
from sluice.local.sites import DEFAULT_SITE, Site
from sluice.parameters.values import unique_construct_id
from tests.deployed import send_all
from tests.harsh.stacks import Template, deploy
from tests.stacks.conftest import layer, pytest_itemcollected, synth  # noqa: F401 - pytest finds them here
from tests.templates.assembly import Assembly
from tests.templates.changed_sets import (
    ADOPTED,
    FIFO_FIRST,
    RENAMED,
    SITE,
    SWAPPED,
    WITHOUT_FIRST,
    WITHOUT_LAST,
)
from tests.templates.changes import held
from tests.templates.conftest import Assemblies, assemblies  # noqa: F401 - pytest finds it here
from tests.templates.parameter_sets import ParameterSet

if TYPE_CHECKING:
    from mypy_boto3_sqs import SQSClient

pytestmark = pytest.mark.slow  # make check has what the templates alone say, tests/templates/test_changes.py
STACK = "SluiceState"
accounts = count(600_000_000_000)  # one a site

Contents = Mapping[str, list[str]]
Strays = Callable[[ParameterSet, ParameterSet], Contents]


class Redeployed:
    """The queues of one site, in an account of their own, by whose they are."""

    def __init__(self, account: Connection) -> None:
        self.account = account
        self.sqs: SQSClient = account.client("sqs")
        self.urls: Mapping[str, str] = {}

    def deploy(self, assembly: Assembly) -> None:
        """Deploys the stack, or leaves it where only its readers differ."""
        template = Template(resources=assembly.stacks[STACK]["Resources"])
        with unchanged():
            assert deploy(self.account, STACK, template) in {"CREATE_COMPLETE", "UPDATE_COMPLETE"}
        resources = self.account.client("cloudformation").describe_stack_resources(StackName=STACK)["StackResources"]
        by_id = {
            resource["LogicalResourceId"]: resource["PhysicalResourceId"]
            for resource in resources
            if resource["ResourceType"] == "AWS::SQS::Queue"
        }
        self.urls = {name: by_id[id_] for (_, id_), name in held(assembly).items() if id_ in by_id}

    def fill(self) -> None:
        """Sends each queue its own name."""
        for name, url in self.urls.items():
            entry = {"MessageBody": name}
            if url.endswith(".fifo"):
                entry |= {"MessageGroupId": "g", "MessageDeduplicationId": "d"}
            send_all(self.sqs, url, [entry])

    def read(self) -> Contents:
        """What is in the queues, by name."""
        return {name: self._bodies(url) for name, url in self.urls.items()}

    def _bodies(self, url: str) -> list[str]:
        found: set[str] = set()
        while self._waiting(url):
            received = self.sqs.receive_message(
                QueueUrl=url, MaxNumberOfMessages=10, VisibilityTimeout=600, WaitTimeSeconds=1
            )
            found |= {message["Body"] for message in received.get("Messages", [])}
        return sorted(found)

    def _waiting(self, url: str) -> int:
        counts = self.sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["ApproximateNumberOfMessages"])
        return int(counts["Attributes"]["ApproximateNumberOfMessages"])


@contextmanager
def unchanged() -> Iterator[None]:
    """CloudFormation refuses an update that changes nothing."""
    try:
        yield
    except ClientError as error:
        if "No updates are to be performed" not in str(error):
            raise


@pytest.fixture
def strays(cloud: Cloud, assemblies: Assemblies) -> Strays:  # noqa: F811 - as it is asked for
    """What queues have that isn't just their own name, when one set of parameters is deployed and then another."""

    def follow(before: ParameterSet, after: ParameterSet) -> Contents:
        site = Redeployed(connect_environment(cloud.environment(Site(str(next(accounts)), "eu-central-1"))))
        site.deploy(assemblies(before))
        site.fill()
        site.deploy(assemblies(after))
        return {name: bodies for name, bodies in site.read().items() if bodies != [name]}

    return follow


def test_two_queues_in_another_order_keep_their_messages(strays: Strays) -> None:
    assert strays(SITE, SWAPPED) == {}


def test_a_fifo_queue_and_another_in_another_order_keep_their_messages(strays: Strays) -> None:
    assert strays(SITE, FIFO_FIRST) == {}


def test_a_queue_that_comes_before_others_is_empty_and_they_keep_their_messages(strays: Strays) -> None:
    assert strays(WITHOUT_FIRST, SITE) == {
        "source of orders": [],
        "main of orders": [],
        "queue of invoices": [],
        "ingress of amq.topic": [],
    }


def test_where_a_queue_before_others_goes_they_keep_their_messages(strays: Strays) -> None:
    assert strays(SITE, WITHOUT_FIRST) == {}


def test_a_queue_that_comes_after_others_is_empty_and_they_keep_their_messages(strays: Strays) -> None:
    assert strays(WITHOUT_LAST, SITE) == {
        "source of ledger": [],
        "main of ledger": [],
        "dead letters of ledger": [],
        "queue of audit": [],
        "FIFO ingress of amq.fanout": [],
    }


def test_where_a_queue_after_others_goes_they_keep_their_messages(strays: Strays) -> None:
    assert strays(SITE, WITHOUT_LAST) == {}


def test_a_queue_of_another_name_is_empty(strays: Strays) -> None:
    assert strays(SITE, RENAMED) == {
        "source of parcels": [],
        "main of parcels": [],
        "queue of bills": [],
        "ingress of amq.match": [],
    }


def test_where_queues_are_adopted_the_others_keep_their_messages(strays: Strays) -> None:
    assert strays(SITE, ADOPTED) == {}


def test_where_queues_are_adopted_no_longer_those_that_are_made_are_empty(strays: Strays) -> None:
    assert strays(ADOPTED, SITE) == {
        unique_construct_id("OffersQueue", "snowflake-broker"): [],
        "source of orders": [],
        "main of orders": [],
        "queue of invoices": [],
    }


THEIRS = "their-orders"
PIPELINE, ORDERS, PARCELS = {"queue_id": "pipeline"}, {"queue_id": "orders"}, {"queue_id": "parcels"}
ONE_AFTER_THE_OTHER: Sequence[Mapping[str, object]] = (
    {"sluice.splitting.queues": [PIPELINE, ORDERS], "sluice.federation.queues": [{"name": "invoices"}]},
    {"sluice.splitting.queues": [PARCELS, PIPELINE, ORDERS], "sluice.federation.queues": [{"name": "invoices"}]},
    {"sluice.splitting.queues": [PARCELS, PIPELINE, ORDERS]},  # no bound queue
    {"sluice.splitting.queues": [PARCELS, PIPELINE]},
    {"sluice.splitting.queues": [{**PARCELS, "existing_main_queue_arn": THEIRS}, PIPELINE]},
    {"sluice.splitting.queues": [PARCELS], "sluice.pipeline.queue_id": "none"},
    {"sluice.splitting.queues": [PARCELS], "sluice.pipeline.queue_id": "parcels"},
)


def test_a_deployed_site_takes_each_change(tmp_path: Path) -> None:
    """A queue before the pipeline's, one less, one adopted, no pipeline: no stack keeps another from changing."""
    calm = Behaviours(scale=0, throttled=0, entry_fails=0, duplicated=0, reordered=0, short_poll_misses=0, frozen=False)
    cloud = start_cloud(tmp_path / "cloud", ends_with_us=True, harsh=calm)
    try:
        sqs = connect_environment(cloud.environment(DEFAULT_SITE)).client("sqs")
        url = sqs.create_queue(QueueName=THEIRS)["QueueUrl"]
        arn = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
        for number, context in enumerate(ONE_AFTER_THE_OTHER):
            given = json.loads(json.dumps(context).replace(f'"{THEIRS}"', f'"{arn}"'))
            assert (number, refusal(cloud, given)) == (number, "")
    finally:
        cloud.stop()


def refusal(cloud: Cloud, context: Mapping[str, object]) -> str:
    """Why a site can't be deployed with these parameters; nothing where it can."""
    try:
        Deployer(cloud=cloud, context=context).deploy(DEFAULT_SITE)
    except DeploymentFailed as error:
        return str(error)
    return ""
