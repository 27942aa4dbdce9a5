"""A harsh cloud's invocations by queues: no runaway loops, and concurrency that grows as long as messages wait."""

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from sluice.aws.connections import Connection, connect_environment
from sluice.local.cloud import start_cloud
from sluice.local.harsh.behaviours import Behaviours
from sluice.local.origins import LOOPBACK
from sluice.local.sites import DEFAULT_SITE
from tests.harsh.conftest import eventually, role
from tests.harsh.functions import deploy_function
from tests.harsh.stacks import Template, deploy

MOST = 16  # invocations of one chain
LOOP = """
import boto3, json
def handler(event, context):
    sqs = boto3.client("sqs")
    for record in event["Records"]:
        urls = json.loads(record["body"])
        for url in urls.values():
            sqs.send_message(QueueUrl=url, MessageBody=record["body"])
"""
HOLD = f"""
import socket
def handler(event, context):
    [record] = event["Records"]
    with socket.create_connection(("{LOOPBACK}", int(record["body"]))) as held:
        held.recv(1)
"""
AT_FIRST, ADDED_AFTER_S = 5, 20.0
CALM = Behaviours(
    throttled=0.0,
    access_changes_s=0.0,
    mapping_changes_s=0.0,
    queue_appears_late=0.0,
    duplicated=0.0,
    entry_fails=0.0,
    concurrency_added_per_s=1 / ADDED_AFTER_S,
)
ALL = {"Effect": "Allow", "Action": "sqs:*", "Resource": "*"}


def senders_role(account: Connection, name: str) -> str:
    arn = role(account, name)
    document = json.dumps({"Version": "2012-10-17", "Statement": [ALL]})
    account.client("iam").put_role_policy(RoleName=name, PolicyName="all", PolicyDocument=document)
    return arn


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connection]:
    """A cloud that delivers each message once: copies would have chains of their own."""
    cloud = start_cloud(tmp_path_factory.mktemp("calm"), ends_with_us=True, harsh=CALM)
    try:
        yield connect_environment(cloud.environment(DEFAULT_SITE))
    finally:
        cloud.stop()


def map_to_queue(account: Connection, name: str) -> str:
    """Maps a function to a queue of its own, message by message; the queue."""
    sqs = account.client("sqs")
    url: str = sqs.create_queue(QueueName=f"{name}-source")["QueueUrl"]
    source = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    account.client("lambda").create_event_source_mapping(EventSourceArn=source, FunctionName=name, BatchSize=1)
    return url


def begin(account: Connection, name: str) -> str:
    """Maps the function, and sends the first message; the queue that counts invocations."""
    sqs = account.client("sqs")
    back, counted = map_to_queue(account, name), sqs.create_queue(QueueName=f"{name}-counted")["QueueUrl"]
    sqs.send_message(QueueUrl=back, MessageBody=json.dumps({"counted": counted, "back": back}))
    return counted


def count(account: Connection, url: str) -> int:
    sqs = account.client("sqs")
    attributes = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["ApproximateNumberOfMessages"])["Attributes"]
    return int(attributes["ApproximateNumberOfMessages"])


def dropped(account: Connection, name: str) -> bool:
    metrics = account.client("cloudwatch").list_metrics(
        Namespace="AWS/Lambda", MetricName="RecursiveInvocationsDropped"
    )["Metrics"]
    return any({"Name": "FunctionName", "Value": name} in metric["Dimensions"] for metric in metrics)


def test_a_loop_over_a_queue_ends_after_sixteen_invocations(calm: Connection) -> None:
    deploy_function(calm, "runaway", LOOP, role_arn=senders_role(calm, "runaway"))
    counted = begin(calm, "runaway")
    eventually(lambda: dropped(calm, "runaway"))
    assert count(calm, counted) == MOST


@pytest.mark.parametrize("by", ["call", "stack"])
def test_a_function_that_may_recur_goes_on(calm: Connection, by: str) -> None:
    name = f"recurring-by-{by}"
    arn = senders_role(calm, name)
    if by == "call":
        deploy_function(calm, name, LOOP, role_arn=arn)
        calm.client("lambda").put_function_recursion_config(FunctionName=name, RecursiveLoop="Allow")
    else:
        properties = {
            "FunctionName": name,
            "Role": arn,
            "Runtime": "python3.13",
            "Handler": "index.handler",
            "Code": {"ZipFile": LOOP},
            "RecursiveLoop": "Allow",
        }
        template = Template(resources={"Function": {"Type": "AWS::Lambda::Function", "Properties": properties}})
        assert deploy(calm, name, template) == "CREATE_COMPLETE"
    counted = begin(calm, name)
    eventually(lambda: count(calm, counted) > 3 * MOST)
    calm.client("lambda").delete_function(FunctionName=name)
    assert not dropped(calm, name)


def test_a_mapping_has_five_invocations_at_first_and_then_more(calm: Connection) -> None:
    deploy_function(calm, "held", HOLD)
    url = map_to_queue(calm, "held")
    with socket.create_server((LOOPBACK, 0)) as listener, ExitStack() as calls:
        for _ in range(AT_FIRST + 1):
            calm.client("sqs").send_message(QueueUrl=url, MessageBody=str(listener.getsockname()[1]))
        listener.settimeout(60)
        for _ in range(AT_FIRST):
            calls.enter_context(listener.accept()[0])
        listener.settimeout(1)
        with pytest.raises(TimeoutError):
            listener.accept()
        listener.settimeout(4 * ADDED_AFTER_S)
        calls.enter_context(listener.accept()[0])
