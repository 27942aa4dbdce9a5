"""A harsh cloud's refusals: calls, and entries of batches, that fail by nobody's fault. In a cloud of its own."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from sluice.aws.connections import connect_environment
from sluice.local.cloud import Cloud, start_cloud
from sluice.local.harsh.behaviours import Behaviours
from sluice.local.sites import DEFAULT_SITE

ONCE = Config(retries={"mode": "standard", "total_max_attempts": 1})
UNTIL_DONE = Config(retries={"mode": "standard", "total_max_attempts": 50})
CALLS = 30


@pytest.fixture(scope="module")
def throttling_cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    half = Behaviours(seed=1, throttled=0.5, entry_fails=0.5, fifo_entry_fails=0.5, queue_appears_late=0.0)
    running = start_cloud(tmp_path_factory.mktemp("throttling"), ends_with_us=True, harsh=half)
    try:
        yield running
    finally:
        running.stop()


@pytest.fixture(scope="module")
def client(throttling_cloud: Cloud) -> Callable[..., Any]:
    """Makes clients that don't try again, but where that is asked for."""
    session: Any = connect_environment(throttling_cloud.environment(DEFAULT_SITE)).session

    def make(service: str, config: Config = ONCE) -> Any:
        return session.client(service, endpoint_url=throttling_cloud.endpoint, config=config)

    return make


@pytest.fixture(scope="module")
def url(client: Callable[..., Any]) -> str:
    made: str = client("sqs", UNTIL_DONE).create_queue(QueueName="queue")["QueueUrl"]
    return made


def codes(call: Callable[[], Any]) -> set[str]:
    """The errors of many calls, an empty one for those that were done."""
    found = set()
    for _ in range(CALLS):
        try:
            call()
            found.add("")
        except ClientError as error:
            found.add(error.response["Error"]["Code"])
    return found


def test_every_service_throttles_with_its_own_error(client: Callable[..., Any], url: str) -> None:
    client("dynamodb", UNTIL_DONE).create_table(
        TableName="table",
        KeySchema=[{"AttributeName": "pk", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "pk", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )
    sqs, dynamodb = client("sqs"), client("dynamodb")
    assert codes(lambda: sqs.send_message(QueueUrl=url, MessageBody="body")) == {"", "RequestThrottled"}
    key = {"pk": {"S": "key"}}
    exceeded = {"", "ProvisionedThroughputExceededException"}
    assert codes(lambda: dynamodb.get_item(TableName="table", Key=key)) == exceeded
    assert codes(lambda: dynamodb.describe_table(TableName="table")) == {"", "ThrottlingException"}
    assert codes(client("lambda").list_functions) == {"", "TooManyRequestsException"}
    assert codes(client("iam").list_users) == {"", "Throttling"}


@pytest.mark.parametrize("attributes", [{}, {"FifoQueue": "true"}], ids=["standard", "fifo"])
def test_entries_of_a_batch_fail_and_the_others_are_done(
    client: Callable[..., Any], attributes: dict[str, str]
) -> None:
    sqs, ids = client("sqs"), [str(number) for number in range(10)]
    name = "entries.fifo" if attributes else "entries"
    url = client("sqs", UNTIL_DONE).create_queue(QueueName=name, Attributes=attributes)["QueueUrl"]
    more = {"MessageGroupId": "group"} if attributes else {}
    done = []
    for turn in range(CALLS):
        entries = [
            {"Id": each, "MessageBody": each} | more | ({"MessageDeduplicationId": f"{turn}-{each}"} if more else {})
            for each in ids
        ]
        with suppress(sqs.exceptions.RequestThrottled):
            done.append(sqs.send_message_batch(QueueUrl=url, Entries=entries))
    failed = [failure for one in done for failure in one.get("Failed", [])]
    sent = [each["Id"] for one in done for each in one.get("Successful", [])]
    assert sorted(sent + [each["Id"] for each in failed]) == sorted(ids * len(done))
    assert sent
    assert {(each["Code"], each["SenderFault"]) for each in failed} == {("InternalError", False)}


def test_a_client_that_tries_again_sees_nothing_of_it(client: Callable[..., Any], url: str) -> None:
    sqs = client("sqs", UNTIL_DONE)
    for _ in range(3):
        assert sqs.send_message(QueueUrl=url, MessageBody="body")["MessageId"]
