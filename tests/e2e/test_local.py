"""The embedded cloud as a process: found, stopped, and back with its state where that is asked for."""

import io
import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from zipfile import ZipFile

import pytest

from benchmarks.counting_cloud import start_counting, unit_log
from benchmarks.units import READ, WRITE, read_units
from sluice.aws.connections import connect_environment
from sluice.aws.deployment import read_stack_outputs
from sluice.aws.federation.publisher import Publisher, PublishRequest
from sluice.local.cloud import CloudFailed, describe_lost_state, find_cloud, start_cloud
from sluice.local.origins import LOOPBACK
from sluice.local.requests import BY_TRIGGER
from sluice.local.sites import DEFAULT_SITE
from tests.deployed import Deployed
from tests.sqs_requests import SqsRequest


def queue_names(cloud) -> list[str]:
    sqs = connect_environment(cloud.environment(DEFAULT_SITE)).client("sqs")
    return [url.rsplit("/", 1)[1] for url in sqs.list_queues().get("QueueUrls", [])]


def until(holds: Callable[[], bool]) -> None:
    """Waits, twenty seconds at most."""
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_cloud_is_found_while_it_runs_and_there_is_one_a_folder(tmp_path: Path) -> None:
    cloud = start_cloud(tmp_path / "cloud")
    try:
        assert find_cloud(tmp_path / "cloud") == cloud
        with pytest.raises(CloudFailed, match="runs already"):
            start_cloud(tmp_path / "cloud")
    finally:
        cloud.stop()
    assert find_cloud(tmp_path / "cloud") is None


def test_a_cloud_that_is_tied_to_a_process_ends_when_that_is_killed(tmp_path: Path) -> None:
    folder = tmp_path / "cloud"
    program = "import sys; from pathlib import Path; from sluice.local.cloud import start_cloud; "
    program += "start_cloud(Path(sys.argv[1]), ends_with_us=True); print('up', flush=True); input()"
    owner = subprocess.Popen(
        [sys.executable, "-c", program, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert owner.stdout is not None
    assert owner.stdout.readline() == b"up\n"
    assert find_cloud(folder) is not None
    owner.kill()
    owner.communicate()
    until(lambda: find_cloud(folder) is None)


def test_a_cloud_with_one_more_patch_counts_what_dynamodb_would_cost(tmp_path: Path) -> None:
    cloud = start_counting(tmp_path / "cloud")
    try:
        client = connect_environment(cloud.environment(DEFAULT_SITE)).client("dynamodb")
        client.create_table(
            TableName="items",
            BillingMode="PAY_PER_REQUEST",
            KeySchema=[{"AttributeName": "pk", "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": "pk", "AttributeType": "S"}],
        )
        client.put_item(TableName="items", Item={"pk": {"S": "a#1"}, "text": {"S": "t" * 1_500}})
        client.get_item(TableName="items", Key={"pk": {"S": "a#1"}})
        client.batch_write_item(RequestItems={"items": [{"PutRequest": {"Item": {"pk": {"S": "b"}}}}]})
        noted = [(unit.partition, unit.kind, unit.units) for unit in read_units(unit_log(cloud))]
    finally:
        cloud.stop()
    assert noted == [("a", WRITE, 2), ("a", READ, 0.5), ("b", WRITE, 1)]


@pytest.mark.parametrize("was_kept", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_state_comes_back_where_it_was_saved_also_by_a_cloud_that_began_with_none(
    tmp_path: Path, was_kept: bool
) -> None:
    cloud = start_cloud(tmp_path / "cloud", keep_state=was_kept, save_state=not was_kept)
    connect_environment(cloud.environment(DEFAULT_SITE)).client("sqs").create_queue(QueueName="kept")
    cloud.with_site(DEFAULT_SITE).stop()
    assert describe_lost_state(tmp_path / "cloud") is None
    again = start_cloud(tmp_path / "cloud", keep_state=True)
    try:
        assert queue_names(again) == ["kept"]
        assert again.sites == (DEFAULT_SITE,)
    finally:
        again.stop()


@pytest.mark.parametrize("was_kept", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_cloud_that_is_not_to_come_back_begins_with_nothing(tmp_path: Path, was_kept: bool) -> None:
    cloud = start_cloud(tmp_path / "cloud", keep_state=was_kept, save_state=not was_kept)
    connect_environment(cloud.environment(DEFAULT_SITE)).client("sqs").create_queue(QueueName="gone")
    cloud.with_site(DEFAULT_SITE).stop()
    again = start_cloud(tmp_path / "cloud", save_state=True)
    try:
        assert queue_names(again) == []
        assert again.sites == ()
    finally:
        again.stop()


def test_a_cloud_comes_back_at_its_address_so_that_queue_urls_stay_right(tmp_path: Path) -> None:
    cloud = start_cloud(tmp_path / "cloud", keep_state=True)
    url = connect_environment(cloud.environment(DEFAULT_SITE)).client("sqs").create_queue(QueueName="kept")["QueueUrl"]
    cloud.stop()
    again = start_cloud(tmp_path / "cloud", keep_state=True)
    try:
        assert again.endpoint == cloud.endpoint
        connect_environment(again.environment(DEFAULT_SITE)).client("sqs").send_message(
            QueueUrl=url, MessageBody="still here"
        )
    finally:
        again.stop()


def test_a_cloud_whose_address_is_taken_comes_back_at_another(tmp_path: Path) -> None:
    cloud = start_cloud(tmp_path / "cloud", keep_state=True)
    cloud.stop()
    with socket.create_server((LOOPBACK, int(cloud.endpoint.rpartition(":")[2]))):
        again = start_cloud(tmp_path / "cloud", keep_state=True)
        again.stop()
    assert again.endpoint != cloud.endpoint


BY_LAMBDA = {
    "Version": "2012-10-17",
    "Statement": [{"Effect": "Allow", "Principal": {"Service": "lambda.amazonaws.com"}, "Action": "sts:AssumeRole"}],
}
# The first environment waits in its handler until the second has failed to start.
TWO_ENVIRONMENTS = """
import os, time
folder = {folder!r}
if os.path.exists(folder + "/entered"):
    os._exit(1)
def handler(event, context):
    open(folder + "/entered", "w").close()
    while not os.path.exists(folder + "/failed"):
        time.sleep(0.05)
    return "done"
"""


def test_an_execution_environment_that_does_not_start_ends_no_other(tmp_path: Path) -> None:
    code = io.BytesIO()
    with ZipFile(code, "w") as bundle:
        bundle.writestr("index.py", TWO_ENVIRONMENTS.format(folder=str(tmp_path)))
    cloud = start_cloud(tmp_path / "cloud")
    try:
        connection = connect_environment(cloud.environment(DEFAULT_SITE))
        role = connection.client("iam").create_role(RoleName="two", AssumeRolePolicyDocument=json.dumps(BY_LAMBDA))
        functions = connection.client("lambda")
        functions.create_function(
            FunctionName="two",
            Runtime="python3.13",
            Handler="index.handler",
            Role=role["Role"]["Arn"],
            Code={"ZipFile": code.getvalue()},
            Timeout=60,
        )
        with ThreadPoolExecutor(1) as executor:
            first = executor.submit(functions.invoke, FunctionName="two")
            until((tmp_path / "entered").exists)
            assert "FunctionError" in functions.invoke(FunctionName="two")
            (tmp_path / "failed").touch()
            assert json.load(first.result()["Payload"]) == "done"
    finally:
        cloud.stop()


@pytest.fixture
def windowed_ingress(deployed: Deployed) -> Iterator[str]:
    """The ingress queue's URL, while its trigger waits a second for more messages, as profile `throughput` has it."""
    url, functions = (
        read_stack_outputs(deployed.connection, "SluiceFederation")["IngressUrl"],
        deployed.connection.client("lambda"),
    )
    queue = f":{url.rsplit('/', 1)[1]}"
    pages = functions.get_paginator("list_event_source_mappings").paginate()
    mappings = [mapping for page in pages for mapping in page["EventSourceMappings"]]
    [mapping_id] = [mapping["UUID"] for mapping in mappings if mapping["EventSourceArn"].endswith(queue)]

    def wait(window_s: int) -> None:
        functions.update_event_source_mapping(UUID=mapping_id, MaximumBatchingWindowInSeconds=window_s)
        until(lambda: functions.get_event_source_mapping(UUID=mapping_id)["State"] == "Enabled")

    wait(1)
    yield url
    wait(0)


def test_a_trigger_waits_for_more_messages_as_long_as_its_window_says(
    deployed: Deployed, windowed_ingress: str
) -> None:
    offset, publisher = deployed.request_offset(), Publisher(windowed_ingress, deployed.sqs)

    def triggers(action: str) -> list[SqsRequest]:
        name = windowed_ingress.rsplit("/", 1)[1]
        asked = deployed.requests_since(offset)
        return [each for each in asked if (each.by, each.queue, each.action) == (BY_TRIGGER, name, action)]

    for number in range(5):
        publisher.publish(PublishRequest(exchange="amq.topic", key="window", body=str(number)))
        time.sleep(0.1)
    until(lambda: not deployed.depth(windowed_ingress))
    # Alone it would be one; polls of earlier tests may end meanwhile, and tell of it.
    assert 1 <= len(triggers("ReceiveMessage")) <= 3
