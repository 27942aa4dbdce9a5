"""The deployment as CloudFormation tells of it, on botocore's stubs: moto's CloudFormation needs all its services."""

import json
from typing import Any

import boto3
import pytest
from botocore.stub import Stubber

from sluice.aws.connections import Connection, NoConnection, connect_environment, connect_user
from sluice.aws.deployment import STACK, Deployment, NotUsable, build_callable_url, read_deployment
from sluice.errors import CallFailed

OUTPUTS = {
    "OffersQueueUrl": "https://sqs.eu-central-1.amazonaws.com/123456789012/snowflake-broker",
    "BrokerUrl": "https://abcdef.lambda-url.eu-central-1.on.aws/",
    "ClientUrl": "https://ghijkl.lambda-url.eu-central-1.on.aws/",
    "ClientUserName": "clients",
    "TableName": "t",
    "DeadLettersUrl": "https://sqs.eu-central-1.amazonaws.com/123456789012/dead",
    "WaitingTableName": "waiting",
}


class StubbedSession:
    """A session whose CloudFormation says what it is told to."""

    region_name = "eu-central-1"

    def __init__(self) -> None:
        self.cloudformation = boto3.client(
            "cloudformation", region_name=self.region_name, aws_access_key_id="test", aws_secret_access_key="test"
        )
        self.stub = Stubber(self.cloudformation)
        self.stub.activate()
        self.ssm = boto3.client(
            "ssm", region_name=self.region_name, aws_access_key_id="test", aws_secret_access_key="test"
        )
        self.parameters = Stubber(self.ssm)
        self.parameters.activate()

    def client(self, service: str, **_: Any) -> Any:
        return {"cloudformation": self.cloudformation, "ssm": self.ssm}[service]


def connection(session: StubbedSession, *, endpoint_url: str | None = None) -> Connection:
    return Connection(session, endpoint_url)  # type: ignore[arg-type]  # as much of a session as is asked for


def deployed(outputs: dict[str, str]) -> StubbedSession:
    session = StubbedSession()
    stack = {
        "StackName": STACK,
        "CreationTime": "2026-01-01T00:00:00Z",
        "StackStatus": "CREATE_COMPLETE",
        "Outputs": [{"OutputKey": key, "OutputValue": value} for key, value in outputs.items()],
    }
    session.stub.add_response("describe_stacks", {"Stacks": [stack]}, {"StackName": STACK})
    return session


def failing(code: str) -> StubbedSession:
    session = StubbedSession()
    session.stub.add_client_error("describe_stacks", code, "in AWS's words")
    return session


def test_every_output_is_read() -> None:
    assert read_deployment(connection(deployed(OUTPUTS))) == Deployment(
        offers_queue_url=OUTPUTS["OffersQueueUrl"],
        broker_url=OUTPUTS["BrokerUrl"],
        client_url=OUTPUTS["ClientUrl"],
        client_user_name="clients",
        table_name="t",
        dead_letters_url=OUTPUTS["DeadLettersUrl"],
        waiting_table_name=OUTPUTS["WaitingTableName"],
    )


def test_the_broker_of_the_embedded_cloud_is_where_it_can_be_called() -> None:
    found = read_deployment(connection(deployed(OUTPUTS), endpoint_url="http://127.0.0.1:4566/"))
    assert found.broker_url == "http://127.0.0.1:4566/_aws/lambda-url/abcdef/"
    assert found.client_url == "http://127.0.0.1:4566/_aws/lambda-url/ghijkl/"


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/_aws/lambda-url/abcdef/", "https://broker.example/"])
def test_a_broker_url_that_is_no_lambdas_is_left_as_it_is(url: str) -> None:
    assert build_callable_url(url, "http://127.0.0.1:1") == url


@pytest.mark.parametrize("missing", OUTPUTS)
def test_a_missing_output_is_named(missing: str) -> None:
    outputs = {key: value for key, value in OUTPUTS.items() if key != missing}
    with pytest.raises(NotUsable, match=f"no output {missing}.*make deploy"):
        read_deployment(connection(deployed(outputs)))


@pytest.mark.parametrize("may_ask", [True, False])
def test_without_the_stack_it_says_how_to_deploy_it(*, may_ask: bool) -> None:
    session = failing("ValidationError")
    if may_ask:
        session.parameters.add_response("get_parameters_by_path", {"Parameters": []}, {"Path": f"/{STACK}/outputs"})
    else:
        session.parameters.add_client_error("get_parameters_by_path", "AccessDeniedException", "in AWS's words")
    with pytest.raises(NotUsable, match=r"SluiceRendezvous is not deployed in eu-central-1.*make deploy"):
        read_deployment(connection(session))


def test_what_a_stack_of_another_name_has_is_read_from_its_parameters_in_their_order() -> None:
    session = failing("ValidationError")
    text = json.dumps([{"OutputKey": key, "OutputValue": value} for key, value in OUTPUTS.items()])
    parts = [text[:40], text[40:90], text[90:]]
    stored = [{"Name": f"/{STACK}/outputs/{place}", "Value": part} for place, part in enumerate(parts)]
    session.parameters.add_response("get_parameters_by_path", {"Parameters": stored[::-1]})
    assert read_deployment(connection(session)).table_name == OUTPUTS["TableName"]


@pytest.mark.parametrize("code", ["ExpiredToken", "InvalidClientTokenId"])
def test_credentials_that_are_no_good_any_more_are_told_apart(code: str) -> None:
    with pytest.raises(NotUsable, match=code):
        read_deployment(connection(failing(code)))


def test_another_refusal_keeps_the_words_of_aws() -> None:
    with pytest.raises(CallFailed, match="DescribeStacks: AccessDenied: in AWS's words"):
        read_deployment(connection(failing("AccessDenied")))


@pytest.fixture
def nothing_configured(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SESSION_TOKEN", "PROFILE", "REGION", "DEFAULT_REGION"):
        monkeypatch.delenv(f"AWS_{name}", raising=False)
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    return monkeypatch


def test_without_credentials_it_says_how_to_have_some(nothing_configured: pytest.MonkeyPatch) -> None:
    with pytest.raises(NotUsable, match=r"no AWS credentials.*--profile"):
        read_deployment(connect_user(region="eu-central-1"))


def test_without_a_region_it_says_how_to_name_one(nothing_configured: pytest.MonkeyPatch) -> None:
    with pytest.raises(NoConnection, match="--region"):
        read_deployment(connect_user())


def test_a_profile_that_is_not_there_is_named(nothing_configured: pytest.MonkeyPatch) -> None:
    with pytest.raises(NoConnection, match="elsewhere"):
        connect_user(profile="elsewhere", region="eu-central-1")


def test_the_variables_of_an_endpoint_and_a_region_are_followed(nothing_configured: pytest.MonkeyPatch) -> None:
    nothing_configured.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    nothing_configured.setenv("AWS_REGION", "eu-west-1")
    found = connect_user()
    assert (found.region, found.endpoint_url) == ("eu-west-1", "http://127.0.0.1:1")
    assert connect_user(region="us-east-1").region == "us-east-1"


def test_the_embedded_cloud_is_reached_with_its_own_credentials_alone(nothing_configured: pytest.MonkeyPatch) -> None:
    nothing_configured.setenv("AWS_ACCESS_KEY_ID", "somebody's")
    found = connect_environment(
        {
            "AWS_ACCESS_KEY_ID": "000000000000",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_REGION": "eu-central-1",
            "AWS_ENDPOINT_URL": "http://127.0.0.1:1",
        }
    )
    client = found.client("sqs")
    assert client.meta.endpoint_url == "http://127.0.0.1:1"
    credentials = found.session.get_credentials()
    assert credentials is not None
    assert credentials.access_key == "000000000000"
