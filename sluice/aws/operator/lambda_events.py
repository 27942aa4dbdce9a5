"""A queue read as Lambda reads it for a function, its messages as records of an event; and what a function has."""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sluice.aws.clients import calls
from sluice.aws.operator.connections import Connection
from sluice.aws.operator.deployment import NotUsable
from sluice.aws.queues import delete_batch

if TYPE_CHECKING:  # boto3-stubs are for the type checker: no program needs them
    from mypy_boto3_sqs import SQSClient

MAX_BATCH = 10  # of one receive

Record = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeployedFunction:
    """What a function runs with. `handler` is None of one that is an image."""

    name: str
    arn: str
    handler: str | None
    timeout_s: int
    memory_mb: int
    variables: Mapping[str, str]

    @classmethod
    def of(cls, connection: Connection, name: str) -> "DeployedFunction":
        """Ask Lambda, by name or ARN. Raises `CallFailed`, and `NotUsable` where its variables can't be seen."""
        with calls("GetFunctionConfiguration"):
            found = connection.client("lambda").get_function_configuration(FunctionName=name)
        environment = found.get("Environment", {})
        if "Error" in environment:
            raise NotUsable(f"variables of {name} can't be read: {environment['Error'].get('Message', '')}")
        return cls(
            name=found["FunctionName"],
            arn=found["FunctionArn"],
            handler=found.get("Handler"),
            timeout_s=found["Timeout"],
            memory_mb=found["MemorySize"],
            variables=environment.get("Variables", {}),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EventQueue:
    """One queue through a client. Raises `QueueGone` or `CallFailed`."""

    client: "SQSClient"
    url: str
    arn: str
    region: str

    @classmethod
    def of(cls, connection: Connection, url: str) -> "EventQueue":
        """Of the connection's region; a queue's URL ends in its account and name."""
        arn = arn_of(connection, url)
        return cls(client=connection.client("sqs"), url=url, arn=arn, region=connection.region)

    def receive(self, *, most: int, wait_s: int) -> Sequence[Record]:
        """Up to `most` messages, ten at most, as Lambda gives them to a function; none after `wait_s`."""
        with calls("ReceiveMessage", queue=self.url):
            received = self.client.receive_message(
                QueueUrl=self.url,
                MaxNumberOfMessages=min(most, MAX_BATCH),
                WaitTimeSeconds=wait_s,
                MessageAttributeNames=["All"],
                MessageSystemAttributeNames=["All"],
            )
        return [record_of(message, arn=self.arn, region=self.region) for message in received.get("Messages", [])]

    def delete(self, records: Sequence[Record]) -> None:
        """Delete what is done, ten at most."""
        delete_batch(self.client, self.url, [record["receiptHandle"] for record in records], queue=self.url)


def arn_of(connection: Connection, url: str) -> str:
    """Give the ARN of a queue of the connection's region by its URL."""
    *_, account, name = url.split("/")
    partition = connection.session.get_partition_for_region(connection.region)
    return f"arn:{partition}:sqs:{connection.region}:{account}:{name}"


def record_of(received: Mapping[str, Any], *, arn: str, region: str) -> Record:
    """Spell a message that `ReceiveMessage` gave as Lambda does.

    https://docs.aws.amazon.com/lambda/latest/dg/with-sqs.html
    """
    hashes = {"md5OfMessageAttributes": received.get("MD5OfMessageAttributes")}
    return {
        "messageId": received["MessageId"],
        "receiptHandle": received["ReceiptHandle"],
        "body": received["Body"],
        "attributes": dict(received.get("Attributes") or {}),
        "messageAttributes": {
            name: _attribute(value) for name, value in (received.get("MessageAttributes") or {}).items()
        },
        "md5OfBody": received["MD5OfBody"],
        **{name: value for name, value in hashes.items() if value is not None},
        "eventSource": "aws:sqs",
        "eventSourceARN": arn,
        "awsRegion": region,
    }


def _attribute(value: Mapping[str, Any]) -> dict[str, Any]:
    spelled: dict[str, Any] = {"stringListValues": [], "binaryListValues": [], "dataType": value["DataType"]}
    if "BinaryValue" in value:
        return {"binaryValue": base64.b64encode(value["BinaryValue"]).decode(), **spelled}
    return {"stringValue": value["StringValue"], **spelled}
