"""The documents' example of somebody's own CDK app, deployed and used: Sluice is in its one stack."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from sluice.aws.connections import connect_environment
from sluice.aws.deployment import fetch_outputs
from sluice.building.interpreters import cdk
from sluice.federation.operations import ListBindings
from sluice.local.cloud import Cloud, clean_environment
from sluice.local.deployer import UNATTENDED
from sluice.local.sites import Site
from sluice.operator.functions import FEDERATION, ControlClient
from tests.deployed import Deployed, redeliver_soon
from tests.e2e.sessions import Splitting, url_of

pytestmark = pytest.mark.slow  # a deployment, and the minute in which what is declared is made

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "docs" / "examples" / "orders"
SITE = Site("777777777777", "eu-central-1")
WITHIN_S = 120
DECLARED, DECLARED_WITHIN_S = 2, 150  # bindings


def deploy(cloud: Cloud, folder: Path) -> None:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = clean_environment() | cloud.environment(SITE) | UNATTENDED | {"PATH": path, "PYTHONPATH": str(ROOT)}
    output = ["--output", str(folder), "--no-notices", "--ci"]
    for arguments in (
        ["bootstrap", f"aws://{SITE.account}/{SITE.region}"],
        ["deploy", "-c", "architecture=local", "--require-approval", "never"],
    ):
        done = subprocess.run(
            [str(cdk()), *arguments, *output], cwd=EXAMPLE, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]


@pytest.fixture(scope="module")
def orders(cloud: Cloud, tmp_path_factory: pytest.TempPathFactory) -> Deployed:
    deploy(cloud, tmp_path_factory.mktemp("cdk.out"))
    deployed = Deployed(cloud, SITE, 0)
    redeliver_soon(deployed.sqs)
    until_declared(deployed)
    return deployed


def until_declared(orders: Deployed) -> None:
    """Until the links function has made what the app declares, which it looks at every minute."""
    client = ControlClient.connect(orders.connection, FEDERATION)
    deadline = time.monotonic() + DECLARED_WITHIN_S
    while len([binding for binding in client.ask(ListBindings()).bindings if binding.exchange == "shop"]) < DECLARED:
        assert time.monotonic() < deadline
        time.sleep(0.5)


@pytest.fixture(scope="module")
def outputs(orders: Deployed) -> Mapping[str, str]:
    return fetch_outputs(connect_environment(orders.cloud.environment(SITE)), "Orders")


def sluice(orders: Deployed, *arguments: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-m", "sluice.cli.main", *arguments, "--json"],
        env={**os.environ, **orders.cloud.environment(SITE)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def bodies(orders: Deployed, url: str, number: int) -> set[str]:
    """That many different bodies, or those that came in time; deleted."""
    found: set[str] = set()
    deadline = time.monotonic() + WITHIN_S
    while len(found) < number and time.monotonic() < deadline:
        for message in orders.sqs.receive_message(QueueUrl=url, WaitTimeSeconds=1).get("Messages", []):
            orders.sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
            found.add(message["Body"])
    return found


def test_a_session_takes_its_orders_and_the_teams_consumer_the_rest(
    orders: Deployed, outputs: Mapping[str, str]
) -> None:
    mine, others, paid = ({"id": place, "country": name} for place, name in enumerate(("DE", "FR", "PT")))
    session = Splitting(orders).start({"orders": {"queue_type": "SQS", "message_filter": {"country": "^DE$"}}})
    for order, key in ((mine, "order.placed"), (others, "order.placed"), (paid, "order.paid")):
        request = json.dumps({"key": key, "order": order}).encode()
        done = orders.functions.invoke(FunctionName=outputs["ProducerName"], Payload=request)
        assert "FunctionError" not in done, done["Payload"].read()
    assert bodies(orders, url_of(session, "orders"), 1) == {json.dumps(mine)}
    assert bodies(orders, outputs["ShipmentsUrl"], 1) == {json.dumps(others)}
    assert bodies(orders, outputs["InvoicesUrl"], 3) == {json.dumps(each) for each in (mine, others, paid)}


def test_commands_find_the_site_in_the_teams_stack(orders: Deployed, outputs: Mapping[str, str]) -> None:
    status = sluice(orders, "status")
    assert set(status["absent"]) == {"rendezvous", "pipeline"}
    assert status["failed"] == {}
    assert [queue["queue_id"] for queue in status["splitting"]["queues"]] == ["orders"]
    assert {exchange["name"] for exchange in status["federation"]["exchanges"]} >= {"shop", "events"}
    assert "dead letters of splitting" in status["dead_letters"]
    assert outputs["OrdersUrl"] == status["splitting"]["queues"][0]["source"]["url"]
