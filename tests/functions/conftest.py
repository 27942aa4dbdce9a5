"""A function's surroundings on moto: its table, its queues, its environment; clients made anew for each test."""

from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import boto3
import pytest
from moto import mock_aws

from sluice.aws.clients import (
    dynamodb_client,
    long_polling_sqs_client,
    quick_dynamodb_client,
    quick_sqs_client,
    sqs_client,
)
from tests.long_polls import shorten_long_polls
from tests.tables import make_table
from tests.transactions import copy_tables_once

copy_tables_once()
shorten_long_polls()

FINGERPRINT = "KygLI+EQe7Yqv8QN3MiCSBT4CnI="  # 2B280B23E1107BB62ABFC40DDCC8824814F80A72
BRIDGES = f'[{{"display_name": "d", "websocket_address": "wss://relay.example/", "fingerprint": "{FINGERPRINT}"}}]'
CONTEXT: Any = SimpleNamespace(
    function_name="f",
    memory_limit_in_mb=128,
    invoked_function_arn="arn:aws:lambda:eu-central-1:123456789012:function:f",
    aws_request_id="id",
    get_remaining_time_in_millis=lambda: 60_000,
)


@dataclass
class Surroundings:
    """What is there when a function is called."""

    sqs: Any
    dynamodb: Any
    offers_url: str
    timeouts_url: str
    dead_letters_url: str

    def send(self, url: str, body: str, attributes: dict[str, str] | None = None) -> None:
        self.sqs.send_message(
            QueueUrl=url,
            MessageBody=body,
            MessageAttributes={
                name: {"DataType": "String", "StringValue": value} for name, value in (attributes or {}).items()
            },
        )

    def event(self, url: str, *, receives: int = 1) -> dict[str, Any]:
        """What Lambda would be given of the queue's messages."""
        received = self.sqs.receive_message(
            QueueUrl=url, MaxNumberOfMessages=10, AttributeNames=["All"], MessageAttributeNames=["All"]
        ).get("Messages", [])
        return {"Records": [self._record(url, message, receives) for message in received]}

    def _record(self, url: str, message: dict[str, Any], receives: int) -> dict[str, Any]:
        return {
            "messageId": message["MessageId"],
            "receiptHandle": message["ReceiptHandle"],
            "body": message["Body"],
            "attributes": message["Attributes"] | {"ApproximateReceiveCount": str(receives)},
            "messageAttributes": {
                name: {part[0].lower() + part[1:]: text for part, text in value.items()}
                | {"stringListValues": [], "binaryListValues": []}
                for name, value in message.get("MessageAttributes", {}).items()
            },
            "eventSource": "aws:sqs",
            "eventSourceARN": "arn:aws:sqs:eu-central-1:123456789012:" + url.rsplit("/", 1)[1],
            "awsRegion": "eu-central-1",
        }

    def messages(self, url: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.sqs.receive_message(
            QueueUrl=url, MaxNumberOfMessages=10, MessageAttributeNames=["All"]
        ).get("Messages", [])
        return found


@pytest.fixture
def surroundings(monkeypatch: pytest.MonkeyPatch) -> Iterator[Surroundings]:
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    with mock_aws():
        for name, value in {
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "eu-central-1",
            "POWERTOOLS_METRICS_NAMESPACE": "Sluice",
            "POWERTOOLS_SERVICE_NAME": "test",
            "TABLE": "t",
            "WAITING_TABLE": "t",
            "BRIDGES": BRIDGES,
            "ALLOWED_RELAY_PATTERN": '{"suffix": "relay.example", "exact": false}',
            "HELD_PROXIES_MIN": "0",
            "HELD_PROXIES_MAX": "10",
        }.items():
            monkeypatch.setenv(name, value)
        sqs, dynamodb = boto3.client("sqs"), boto3.client("dynamodb")
        urls = [sqs.create_queue(QueueName=name)["QueueUrl"] for name in ("offers", "timeouts", "dead")]
        monkeypatch.setenv("DEAD_LETTERS_URL", urls[2])
        monkeypatch.setenv("OFFERS_URL", urls[0])
        make_table(dynamodb)
        clear_clients()
        yield Surroundings(sqs, dynamodb, *urls)
        clear_clients()


def clear_clients() -> None:
    """Have clients made anew, in whatever surroundings are there now."""
    for cached in (sqs_client, quick_sqs_client, long_polling_sqs_client, dynamodb_client, quick_dynamodb_client):
        cached.cache_clear()
