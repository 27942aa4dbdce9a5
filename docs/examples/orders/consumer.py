"""The deployed consumer: has each order shipped."""

import os
from typing import Any

import boto3

sqs = boto3.client("sqs")


def handler(event: dict[str, Any], _: object) -> None:
    """Take a batch of orders."""
    for record in event["Records"]:
        sqs.send_message(QueueUrl=os.environ["SHIPMENTS_URL"], MessageBody=record["body"])
