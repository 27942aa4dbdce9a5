"""Queues to adopt, read through SQS's and Lambda's interfaces."""

import json
import shutil
from pathlib import Path

import boto3
import pytest
from moto import mock_aws
from typer.testing import CliRunner, Result

from sluice.aws.connections import Connection
from sluice.cli.program import app
from sluice.errors import QueueGone
from sluice.operator.queues import queue_arn, read_adopted_queue
from sluice.splitting.adoption import MAIN, SOURCE


@pytest.fixture
def connection():
    with mock_aws():
        yield Connection(boto3.session.Session(region_name="eu-west-1"))


def test_a_queue_is_seen_as_it_is(connection: Connection):
    sqs = connection.client("sqs")
    url = sqs.create_queue(QueueName="orders", Attributes={"VisibilityTimeout": "7"})["QueueUrl"]
    arn = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    found = read_adopted_queue(connection, SOURCE, arn)
    assert (found.role, found.arn, found.region) == (SOURCE, arn, "eu-west-1")
    assert found.get_number("VisibilityTimeout") == 7
    assert found.get_number("MaximumMessageSize") >= 262_144
    assert not found.readers


def test_alarms_that_watch_a_source_by_name_are_seen(connection: Connection):
    url = connection.client("sqs").create_queue(QueueName="orders")["QueueUrl"]
    alarms = connection.client("cloudwatch")
    for name, queue in (("TargetTracking-service/shop/orders", "orders"), ("bills-depth", "bills")):
        alarms.put_metric_alarm(
            AlarmName=name,
            Namespace="AWS/SQS",
            MetricName="ApproximateNumberOfMessagesVisible",
            Dimensions=[{"Name": "QueueName", "Value": queue}],
            ComparisonOperator="GreaterThanThreshold",
            EvaluationPeriods=1,
            Period=60,
            Statistic="Average",
            Threshold=5.0,
        )
    arn = queue_arn(connection, url)
    assert read_adopted_queue(connection, SOURCE, arn).watchers == {"TargetTracking-service/shop/orders"}
    assert read_adopted_queue(connection, MAIN, arn).watchers == set()


def test_a_queue_that_isnt_there_is_named(connection: Connection):
    arn = "arn:aws:sqs:eu-west-1:123456789012:nowhere"
    with pytest.raises(QueueGone, match=arn):
        read_adopted_queue(connection, MAIN, arn)


def registered(cdk_json: Path, *options: str) -> Result:
    """Ask for a queue of the account's to be split, with a connection of the environment's."""
    arn = "arn:aws:sqs:eu-west-1:123456789012:orders"
    arguments = ["split", "register", "orders", "--source-arn", arn, "--project", str(cdk_json.parent)]
    return CliRunner().invoke(app, [*arguments, "--region", "eu-west-1", "--consumer-follows", *options])


@pytest.fixture
def cdk_json(tmp_path: Path) -> Path:
    return Path(shutil.copy(Path(__file__).parents[2] / "cdk.json", tmp_path))


@pytest.mark.parametrize(("visibility_s", "is_fit"), [("19", False), ("20", True)])
def test_what_would_fail_isnt_registered(connection: Connection, cdk_json: Path, visibility_s: str, is_fit: bool):
    before = cdk_json.read_text()
    connection.client("sqs").create_queue(QueueName="orders", Attributes={"VisibilityTimeout": visibility_s})
    result = registered(cdk_json)
    assert f"visibility timeout is {visibility_s} s" in result.stderr
    assert (result.exit_code == 0) == is_fit, result.exception
    assert (cdk_json.read_text() != before) == is_fit
    if not is_fit:
        assert registered(cdk_json, "--unchecked").exit_code == 0
        assert cdk_json.read_text() != before


def test_a_dry_run_says_what_would_be_made_and_writes_nothing(connection: Connection, cdk_json: Path):
    before = cdk_json.read_text()
    connection.client("sqs").create_queue(QueueName="dead")
    redrive = json.dumps({"deadLetterTargetArn": "arn:aws:sqs:eu-west-1:123456789012:dead", "maxReceiveCount": 5})
    attributes = {"VisibilityTimeout": "121", "RedrivePolicy": redrive}
    connection.client("sqs").create_queue(QueueName="orders", Attributes=attributes)
    result = registered(cdk_json, "--dry-run")
    planned = json.loads(registered(cdk_json, "--dry-run", "--json").stdout)["planned"]
    assert any("123456789012:dead no longer gets" in row["how"] for row in planned)
    assert result.exit_code == 0, result.exception
    assert "the main queue of orders" in result.stdout
    assert "the source of orders" not in result.stdout
    assert cdk_json.read_text() == before
