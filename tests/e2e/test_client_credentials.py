"""What a client may do with SQS under enforced IAM: two things, and every other call is refused."""

from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError

from sluice.aws.connections import Connection
from sluice.aws.rendezvous.clients import ClientCredentials, open_client
from tests.deployed import Deployed

SQS = boto3.session.Session(region_name="eu-central-1").client(
    "sqs", aws_access_key_id="none", aws_secret_access_key="none"
)
OPERATIONS = sorted(SQS.meta.service_model.operation_names)
OFFERS, ANSWER_QUEUE, OTHER = "offers queue", "answer queue", "another queue"
ALLOWED = {
    ("SendMessage", OFFERS),
    ("SendMessageBatch", OFFERS),  # SQS has one permission for both
    ("ReceiveMessage", ANSWER_QUEUE),
    ("GetQueueUrl", ANSWER_QUEUE),
}


@pytest.fixture(scope="module")
def client(deployed: Deployed) -> Any:
    credentials = ClientCredentials.parse(deployed.client_sqscreds)
    return open_client(credentials, region=deployed.region, endpoint_url=deployed.endpoint)


@pytest.fixture(scope="module")
def queues(deployed: Deployed) -> dict[str, str]:
    return {
        OFFERS: deployed.offers_queue_url,
        ANSWER_QUEUE: deployed.make_queue("snowflake-client-permissions"),
        OTHER: deployed.deployment.dead_letters_url,
    }


@pytest.mark.parametrize("queue", [OFFERS, ANSWER_QUEUE, OTHER])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_client_may_send_offers_and_read_answers_and_nothing_else(
    client: Any, queues: dict[str, str], deployed: Deployed, operation: str, queue: str
) -> None:
    refused = is_refused(client, operation, arguments(operation, queues[queue], deployed))
    assert refused is ((operation, queue) not in ALLOWED)


def test_a_session_drawn_from_the_clients_key_may_do_nothing_and_so_ends_with_the_key(
    client: Any, queues: dict[str, str], deployed: Deployed
) -> None:
    """STS gives any user a session, which outlives the key by up to 36 hours: a revoked key must end those, too."""
    credentials = ClientCredentials.parse(deployed.client_sqscreds)
    key = boto3.Session(credentials.access_key_id, credentials.secret_key, region_name=deployed.region)
    drawn = Connection(key, deployed.endpoint).client("sts").get_session_token(DurationSeconds=129_600)["Credentials"]
    session = boto3.Session(drawn["AccessKeyId"], drawn["SecretAccessKey"], drawn["SessionToken"], deployed.region)
    theirs = Connection(session, deployed.endpoint).client("sqs")  # tries again when the cloud throttles
    for operation, queue in sorted(ALLOWED):
        given = arguments(operation, queues[queue], deployed)
        assert not is_refused(client, operation, given)
        assert is_refused(theirs, operation, given), operation


def is_refused(client: Any, operation: str, parameters: dict[str, Any]) -> bool:
    """Whether IAM says no; any other error means that it said yes."""
    try:
        client._make_api_call(operation, parameters)
    except ClientError as error:
        return error.response["Error"]["Code"] in {"AccessDenied", "AccessDeniedException"}
    return False


def arguments(operation: str, url: str, deployed: Deployed) -> dict[str, Any]:
    """The least that the operation takes, on this queue."""
    name = url.rsplit("/", 1)[1]
    known = {
        "QueueUrl": url,
        "QueueName": name,
        "SourceArn": f"arn:aws:sqs:{deployed.region}:{deployed.account}:{name}",
        "TaskHandle": "task",
    }
    shape = SQS.meta.service_model.operation_model(operation).input_shape
    if shape is None:
        return {}
    return {member: known.get(member, _least(shape.members[member])) for member in shape.required_members}


def _least(shape: Any) -> Any:
    if shape.type_name == "structure":
        return {member: _least(shape.members[member]) for member in shape.required_members}
    if shape.type_name == "list":
        return [_least(shape.member)]
    return {"map": {}, "integer": 1, "string": "text"}[shape.type_name]
