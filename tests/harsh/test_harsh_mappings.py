"""A harsh cloud's event source mappings: what changes takes a while, and is in use meanwhile."""

import json
from typing import Any

import pytest
from botocore.exceptions import ClientError

from sluice.aws.connections import Connection
from tests.harsh.conftest import THERE_AT_ONCE, eventually, made
from tests.harsh.functions import deploy_function
from tests.harsh.stacks import Template, deploy


@pytest.fixture(scope="module")
def function(account: Connection) -> str:
    return deploy_function(account, "mapped", "def handler(event, context): pass")


@pytest.fixture(scope="module")
def functions(account: Connection) -> Any:
    return account.client("lambda")


def arn(sqs: Any, url: str) -> str:
    found: str = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    return found


def test_a_mapping_takes_a_while_to_be_made_changed_and_deleted(sqs: Any, functions: Any, function: str) -> None:
    source = arn(sqs, made(sqs, "mapped"))
    mapping = functions.create_event_source_mapping(EventSourceArn=source, FunctionName=function)
    uuid = mapping["UUID"]

    def state() -> str:
        found: str = functions.get_event_source_mapping(UUID=uuid)["State"]
        return found

    def is_in_use() -> None:
        with pytest.raises(functions.exceptions.ResourceInUseException):
            functions.update_event_source_mapping(UUID=uuid, BatchSize=2)
        with pytest.raises(functions.exceptions.ResourceInUseException):
            functions.delete_event_source_mapping(UUID=uuid)

    assert mapping["State"] == "Creating"
    is_in_use()
    eventually(lambda: state() == "Enabled")
    assert functions.update_event_source_mapping(UUID=uuid, BatchSize=3)["State"] == "Updating"
    is_in_use()
    eventually(lambda: state() == "Enabled")
    assert functions.update_event_source_mapping(UUID=uuid, Enabled=False)["State"] == "Disabling"
    is_in_use()
    eventually(lambda: state() == "Disabled")
    assert functions.delete_event_source_mapping(UUID=uuid)["State"] == "Deleting"
    is_in_use()
    assert state() == "Deleting"
    eventually(lambda: not functions.list_event_source_mappings(EventSourceArn=source)["EventSourceMappings"])
    with pytest.raises(functions.exceptions.ResourceNotFoundException):
        state()


def test_a_mapping_that_is_being_disabled_still_polls(sqs: Any, functions: Any, function: str) -> None:
    url = made(sqs, "polled")
    source = arn(sqs, url)
    uuid = functions.create_event_source_mapping(EventSourceArn=source, FunctionName=function)["UUID"]
    eventually(lambda: functions.get_event_source_mapping(UUID=uuid)["State"] == "Enabled")
    functions.update_event_source_mapping(UUID=uuid, Enabled=False)
    sqs.send_message(QueueUrl=url, MessageBody="body")

    def is_taken() -> bool:
        counts = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
        return counts["ApproximateNumberOfMessages"] == "0"

    eventually(is_taken)


def test_a_mapping_of_a_function_whose_role_may_not_act_yet_is_refused(
    account: Connection, sqs: Any, functions: Any, function: str
) -> None:
    source, iam = arn(sqs, made(sqs, "not-yet-allowed")), account.client("iam")
    name = functions.get_function_configuration(FunctionName=function)["Role"].rsplit("/", 1)[1]
    reads = {"Effect": "Allow", "Action": "sqs:*", "Resource": source}
    document = json.dumps({"Version": "2012-10-17", "Statement": [reads]})
    iam.put_role_policy(RoleName=name, PolicyName="reads", PolicyDocument=document)
    with pytest.raises(ClientError, match="does not have permissions to call ReceiveMessage on SQS"):
        functions.create_event_source_mapping(EventSourceArn=source, FunctionName=function)
    eventually(
        lambda: functions.create_event_source_mapping(EventSourceArn=source, FunctionName=function), unless=ClientError
    )


def test_a_mapping_to_a_queue_that_is_not_there_yet_is_refused(sqs: Any, functions: Any, function: str) -> None:
    existing = arn(sqs, made(sqs, "sibling"))
    sqs.create_queue(QueueName="not-yet")
    with pytest.raises(ClientError, match="NonExistentQueue"):
        functions.create_event_source_mapping(
            EventSourceArn=existing.replace(THERE_AT_ONCE + "sibling", "not-yet"), FunctionName=function
        )
    with pytest.raises(ClientError, match="NonExistentQueue"):
        functions.create_event_source_mapping(
            EventSourceArn=existing.replace(THERE_AT_ONCE + "sibling", "never"), FunctionName=function
        )


@pytest.mark.parametrize(
    ("attributes", "options"),
    [
        ({}, {"BatchSize": 11}),
        ({}, {"BatchSize": 10_001, "MaximumBatchingWindowInSeconds": 1}),
        ({"FifoQueue": "true"}, {"BatchSize": 11}),
        ({"FifoQueue": "true"}, {"BatchSize": 10, "MaximumBatchingWindowInSeconds": 1}),
    ],
    ids=["no window", "too large", "FIFO", "FIFO window"],
)
def test_a_mapping_with_a_batch_that_lambda_does_not_fill_is_refused(
    account: Connection, sqs: Any, function: str, attributes: dict[str, str], options: dict[str, int]
) -> None:
    name = f"batches{'.fifo' if attributes else ''}"
    source = arn(sqs, made(sqs, name, **attributes))
    with pytest.raises(ClientError, match="InvalidParameterValueException"):
        account.client("lambda").create_event_source_mapping(EventSourceArn=source, FunctionName=function, **options)
    properties = {"EventSourceArn": source, "FunctionName": function, **options}
    stack = "-".join(["mapping", *map(str, [*attributes, *options.values()])])
    mapping = {"Type": "AWS::Lambda::EventSourceMapping", "Properties": properties}
    assert deploy(account, stack, Template(resources={"Mapping": mapping})) == "ROLLBACK_COMPLETE"


def test_a_larger_batch_needs_a_window(sqs: Any, functions: Any, function: str) -> None:
    source = arn(sqs, made(sqs, "windowed"))
    uuid = functions.create_event_source_mapping(
        EventSourceArn=source, FunctionName=function, BatchSize=10_000, MaximumBatchingWindowInSeconds=1
    )["UUID"]
    eventually(lambda: functions.get_event_source_mapping(UUID=uuid)["State"] == "Enabled")
    with pytest.raises(ClientError, match="MaximumBatchingWindowInSeconds"):
        functions.update_event_source_mapping(UUID=uuid, MaximumBatchingWindowInSeconds=0)
    functions.update_event_source_mapping(UUID=uuid, MaximumBatchingWindowInSeconds=0, BatchSize=10)
