"""A harsh cloud has AWS's limits, where ministack takes anything."""

import json
from collections import Counter
from typing import Any

import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from sluice.aws.connections import Connection
from tests.harsh.conftest import IN_FLIGHT, PARAMETER_READS_PER_S, THERE_AT_ONCE, eventually, made, role
from tests.harsh.functions import code
from tests.harsh.stacks import Template, deploy, reasons


@pytest.mark.parametrize("name", ["a" * 81, "a.b", "ä", "a b", f"{'a' * 76}.fifo", ".fifo"])
def test_a_name_that_no_queue_can_have_is_refused(sqs: Any, name: str) -> None:
    attributes = {"FifoQueue": "true"} if name.endswith(".fifo") else {}
    with pytest.raises(ClientError, match="InvalidParameterValue"):
        sqs.create_queue(QueueName=name, Attributes=attributes)


@pytest.mark.parametrize("name", ["a" * 80, f"{'a' * 75}.fifo", "A-z_0"])
def test_the_longest_names_are_taken(sqs: Any, name: str) -> None:
    attributes = {"FifoQueue": "true"} if name.endswith(".fifo") else {}
    assert sqs.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"].endswith(name)


@pytest.mark.parametrize("tags", [{"aws:a": "b"}, {"k" * 129: ""}, {"k": "v" * 257}, {"a*b": ""}, {"k": "a|b"}])
def test_tags_are_limited(sqs: Any, queue: str, tags: dict[str, str]) -> None:
    with pytest.raises(ClientError, match="InvalidParameterValue"):
        sqs.tag_queue(QueueUrl=queue, Tags=tags)


def test_there_are_at_most_fifty_tags(sqs: Any, queue: str) -> None:
    sqs.tag_queue(QueueUrl=queue, Tags={f"k{n}": "" for n in range(50)})
    with pytest.raises(ClientError, match="InvalidParameterValue"):
        sqs.tag_queue(QueueUrl=queue, Tags={f"k{n}": "" for n in range(51)})


def test_a_queue_delivers_no_more_than_it_may_have_in_flight(sqs: Any) -> None:
    url = made(sqs, "flying.fifo", FifoQueue="true", ContentBasedDeduplication="true", VisibilityTimeout="300")
    for number in range(IN_FLIGHT + 10):
        sqs.send_message(QueueUrl=url, MessageBody=str(number), MessageGroupId=str(number))
    received: list[Any] = []
    while batch := sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10).get("Messages"):
        received += batch
    assert len(received) == IN_FLIGHT
    for message in received[:3]:
        sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    assert len(sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10)["Messages"]) == 3


def test_parameter_store_answers_so_many_reads_a_second(account: Connection) -> None:
    once = Config(retries={"mode": "standard", "total_max_attempts": 1})
    client = account.session.client("ssm", endpoint_url=account.endpoint_url, config=once)

    def read() -> str:
        try:
            client.get_parameters(Names=["/none"])
        except ClientError as error:
            return error.response["Error"]["Code"]
        return "done"

    ways = Counter(read() for _ in range(10 * PARAMETER_READS_PER_S))
    assert set(ways) == {"done", "ThrottlingException"}
    assert ways["done"] >= PARAMETER_READS_PER_S
    eventually(lambda: read() == "done")


def test_an_unknown_attribute_of_a_queue_is_refused(sqs: Any, queue: str) -> None:
    with pytest.raises(ClientError, match="InvalidAttributeName"):
        sqs.set_queue_attributes(QueueUrl=queue, Attributes={"QueueColour": "red"})


@pytest.mark.parametrize(
    ("allows", "is_taken"),
    [
        ({"redrivePermission": "allowAll"}, True),
        ({"redrivePermission": "denyAll"}, False),
        ({"redrivePermission": "byQueue", "sourceQueueArns": ["mine"]}, True),
        ({"redrivePermission": "byQueue", "sourceQueueArns": ["another"]}, False),
    ],
)
def test_a_dead_letter_queue_says_which_queues_may_name_it(sqs: Any, allows: dict[str, Any], *, is_taken: bool) -> None:
    name = f"{THERE_AT_ONCE}{allows['redrivePermission']}-{is_taken}"
    dead = sqs.create_queue(QueueName=f"{name}-dead")["QueueUrl"]
    arn = sqs.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    named = {"mine": arn.replace(dead.rpartition("/")[2], name), "another": f"{arn}-another"}
    allows |= {"sourceQueueArns": [named[queue] for queue in allows["sourceQueueArns"]]} if len(allows) > 1 else {}
    sqs.set_queue_attributes(QueueUrl=dead, Attributes={"RedriveAllowPolicy": json.dumps(allows)})
    attributes = {"RedrivePolicy": json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 5})}
    if is_taken:
        sqs.create_queue(QueueName=name, Attributes=attributes)
        return
    with pytest.raises(ClientError, match=f"RedriveAllowPolicy is {allows['redrivePermission']}"):
        sqs.create_queue(QueueName=name, Attributes=attributes)
    url = sqs.create_queue(QueueName=name)["QueueUrl"]
    with pytest.raises(ClientError, match=f"RedriveAllowPolicy is {allows['redrivePermission']}"):
        sqs.set_queue_attributes(QueueUrl=url, Attributes=attributes)


def policy(*, statements: int = 1, principals: int = 1, conditions: int = 0, actions: int = 1, sid: str = "") -> str:
    statement: dict[str, Any] = {
        "Effect": "Allow",
        "Principal": {"AWS": [f"{number:012}" for number in range(principals)]},
        "Action": [f"sqs:Action{number}" for number in range(actions)],
        "Resource": "*",
        "Condition": {"StringEquals": {f"aws:key{number}": "value" for number in range(conditions)}},
        "Sid": sid,
    }
    return json.dumps({"Version": "2012-10-17", "Statement": [statement] * statements})


@pytest.mark.parametrize(
    "text",
    [
        policy(statements=20),
        policy(principals=50),
        policy(conditions=10),
        policy(actions=7),
        policy(sid="x" * (8192 - len(policy()))),
    ],
)
def test_the_largest_policies_are_taken(sqs: Any, queue: str, text: str) -> None:
    sqs.set_queue_attributes(QueueUrl=queue, Attributes={"Policy": text})


@pytest.mark.parametrize(
    "text",
    [
        policy(statements=21),
        policy(principals=51),
        policy(conditions=11),
        policy(actions=8),
        policy(sid="x" * (8193 - len(policy()))),
        "[]",
        "no JSON",
    ],
)
def test_a_larger_policy_is_refused(sqs: Any, queue: str, text: str) -> None:
    with pytest.raises(ClientError, match=r"OverLimit|InvalidAttributeValue"):
        sqs.set_queue_attributes(QueueUrl=queue, Attributes={"Policy": text})


def text_attribute(value: str, kind: str = "String") -> dict[str, str]:
    return {"DataType": kind, "StringValue": value}


@pytest.mark.parametrize(
    "attributes",
    [
        {f"a{number}": text_attribute("x") for number in range(11)},
        {"AWS.a": text_attribute("x")},
        {"amazon.a": text_attribute("x")},
        {".a": text_attribute("x")},
        {"a.": text_attribute("x")},
        {"a..b": text_attribute("x")},
        {"a b": text_attribute("x")},
        {"a" * 257: text_attribute("x")},
        {"a": text_attribute("")},
        {"a": text_attribute("x", "Text")},
        {"a": text_attribute("x", "String." + "x" * 250)},
        {"a": text_attribute("x\x00")},
    ],
)
def test_attributes_that_no_message_can_have_are_refused(sqs: Any, queue: str, attributes: dict[str, Any]) -> None:
    with pytest.raises(ClientError, match=r"InvalidParameterValue|InvalidMessageContents"):
        sqs.send_message(QueueUrl=queue, MessageBody="body", MessageAttributes=attributes)
    entries = [
        {"Id": "wrong", "MessageBody": "body", "MessageAttributes": attributes},
        {"Id": "right", "MessageBody": "body"},
    ]
    done = sqs.send_message_batch(QueueUrl=queue, Entries=entries)
    assert [each["Id"] for each in done["Failed"]] == ["wrong"]
    assert [each["Id"] for each in done["Successful"]] == ["right"]


def test_ten_attributes_of_any_kind_are_taken(sqs: Any, queue: str) -> None:
    attributes = {f"a.{number}": text_attribute("1", "Number.int") for number in range(9)}
    binary = {"b": {"DataType": "Binary", "BinaryValue": b"\x00"}}
    assert sqs.send_message(QueueUrl=queue, MessageBody="body", MessageAttributes=attributes | binary)["MessageId"]


def test_attributes_count_in_a_messages_size(sqs: Any, queue: str) -> None:
    attributes = {"a": text_attribute("x")}  # 1 + 6 + 1 bytes
    sqs.send_message(QueueUrl=queue, MessageBody="x" * (1_048_576 - 8), MessageAttributes=attributes)
    with pytest.raises(ClientError, match="shorter than 1048576 bytes"):
        sqs.send_message(QueueUrl=queue, MessageBody="x" * (1_048_576 - 7), MessageAttributes=attributes)


def test_attributes_count_in_a_batchs_size(sqs: Any, queue: str) -> None:
    attributes = {"a": text_attribute("x" * 100)}
    entries = [{"Id": str(n), "MessageBody": "x" * (524_288 - 50), "MessageAttributes": attributes} for n in range(2)]
    with pytest.raises(sqs.exceptions.BatchRequestTooLong):
        sqs.send_message_batch(QueueUrl=queue, Entries=entries)


def test_a_message_is_invisible_for_at_most_twelve_hours(sqs: Any, queue: str) -> None:
    with pytest.raises(ClientError, match="InvalidParameterValue"):
        sqs.receive_message(QueueUrl=queue, VisibilityTimeout=43_201)


def test_a_function_has_at_most_four_kilobytes_of_environment(account: Connection) -> None:
    functions, arn = account.client("lambda"), role(account, "environments")

    def create(size: int) -> Any:
        value = "x" * (size - len('{"V":""}'))
        return functions.create_function(
            FunctionName="environment",
            Role=arn,
            Runtime="python3.11",
            Handler="index.handler",
            Code={"ZipFile": code("handler = print")},
            Environment={"Variables": {"V": value}},
        )

    with pytest.raises(ClientError, match="exceeded the 4KB limit"):
        create(4097)
    eventually(lambda: create(4096), unless=ClientError)
    with pytest.raises(ClientError, match="exceeded the 4KB limit"):
        functions.update_function_configuration(
            FunctionName="environment", Environment={"Variables": {"V": "x" * 4096}}
        )


def test_a_stack_with_a_larger_environment_fails(account: Connection) -> None:
    function = {
        "Type": "AWS::Lambda::Function",
        "Properties": {
            "Role": "arn:aws:iam::000000000000:role/any",
            "Runtime": "python3.11",
            "Handler": "index.handler",
            "Code": {"ZipFile": "handler = print"},
            "Environment": {"Variables": {"V": "x" * 4096}},
        },
    }
    status = deploy(account, "environment", Template(resources={"Function": function}))
    assert status == "ROLLBACK_COMPLETE"
    assert any("exceeded the 4KB limit" in reason for reason in reasons(account, "environment"))


def test_a_stack_with_a_larger_policy_fails(account: Connection) -> None:
    resources = {
        "Queue": {"Type": "AWS::SQS::Queue"},
        "Policy": {
            "Type": "AWS::SQS::QueuePolicy",
            "Properties": {"Queues": [{"Ref": "Queue"}], "PolicyDocument": json.loads(policy(statements=21))},
        },
    }
    assert deploy(account, "policy", Template(resources=resources)) == "ROLLBACK_COMPLETE"
