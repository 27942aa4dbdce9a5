"""Publishes what happened to an order: `{"key": "order.placed", "order": {…}}`."""

import json
import os
from typing import Any

import boto3

sqs = boto3.client("sqs")


def handler(event: dict[str, Any], _: object) -> None:
    """Publish one event."""
    sqs.send_message(
        QueueUrl=os.environ["INGRESS_URL"],
        MessageBody=json.dumps(event["order"]),
        MessageAttributes={
            "exchange": {"DataType": "String", "StringValue": "shop"},
            "routing-key": {"DataType": "String", "StringValue": event["key"]},
            "country": {"DataType": "String", "StringValue": event["order"]["country"]},
        },
    )
