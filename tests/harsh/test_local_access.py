"""Who reaches the embedded cloud: whoever proves a key that it gave out, and no page of a browser."""

import http.client
import json
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

import boto3
import botocore
import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import Credentials

from sluice.aws.connections import Connection, connect_environment
from sluice.local.cloud import Cloud
from sluice.local.sites import DEFAULT_SITE
from tests.harsh.conftest import eventually, made, role
from tests.harsh.functions import deploy_function, invoke
from tests.harsh.test_harsh_access import error_of

SERVERS = ("cloud", "function URL", "extensions")
SOURCE = """
import os

def handler(event, context):
    names = "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_LAMBDA_RUNTIME_API"
    return {name: os.environ[name] for name in names} if event.get("asked") else "served"
"""
# Calls that need nothing to be there, one of each protocol.
CALLS = {
    "sqs": "list_queues",
    "dynamodb": "list_tables",
    "lambda": "list_functions",
    "s3": "list_buckets",
    "iam": "list_users",
    "sts": "get_caller_identity",
    "cloudformation": "list_stacks",
}
REFUSED = {"SignatureDoesNotMatch", "InvalidSignatureException"}
UNSIGNED = {"MissingAuthenticationToken", "AccessDenied"}


@pytest.fixture(scope="module")
def environment(account: Connection) -> Mapping[str, str]:
    """What a function is told of itself."""
    deploy_function(account, "reached", SOURCE)
    found: Mapping[str, str] = invoke(account, "reached", {"asked": True})
    return found


@pytest.fixture(scope="module")
def servers(harsh_cloud: Cloud, account: Connection, environment: Mapping[str, str]) -> Mapping[str, str]:
    """An address of each server that a cloud opens, which without a browser serves."""
    made_url = account.client("lambda").create_function_url_config(FunctionName="reached", AuthType="NONE")
    url_id = (urlsplit(made_url["FunctionUrl"]).hostname or "").split(".")[0]
    return {
        "cloud": f"{harsh_cloud.endpoint}/_ministack/ready",
        "function URL": f"{harsh_cloud.endpoint}/_aws/lambda-url/{url_id}/",
        "extensions": f"http://{environment['AWS_LAMBDA_RUNTIME_API']}/2020-01-01/extension/register",
    }


def answer(
    url: str, headers: Mapping[str, str] | None = None, method: str = "GET", body: bytes = b""
) -> http.client.HTTPResponse:
    """What is answered, also to a header that a client makes itself."""
    place = urlsplit(url)
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=30)
    connection.request(method, f"{place.path}?{place.query}".rstrip("?"), body or None, dict(headers or {}))
    return connection.getresponse()


def asked(servers: Mapping[str, str], server: str, headers: Mapping[str, str]) -> http.client.HTTPResponse:
    return answer(servers[server], headers, "POST" if server == "extensions" else "GET")


@pytest.mark.parametrize("server", SERVERS)
def test_each_server_serves_programs_of_this_machine(servers: Mapping[str, str], server: str) -> None:
    port = urlsplit(servers[server]).port
    for host in (f"127.0.0.1:{port}", f"localhost:{port}", "127.0.0.1:1"):  # the last as through a proxy
        said = asked(servers, server, {"Host": host})
        assert said.status == 200
        assert not [name for name in said.headers if name.lower().startswith("access-control")]


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example:80", "", "localhost.evil.example", "0.0.0.0:80"]
)
def test_another_hosts_name_is_refused_as_one_that_is_pointed_at_loopback_would_be(
    servers: Mapping[str, str], server: str, host: str
) -> None:
    assert asked(servers, server, {"Host": host}).status == 421


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("elsewhere", ["http://evil.example", "null", "https://127.0.0.1", "http://127.0.0.1:1", ""])
def test_every_origin_is_refused_as_there_are_no_pages(servers: Mapping[str, str], server: str, elsewhere: str) -> None:
    place = urlsplit(servers[server])
    said = asked(servers, server, {"Origin": elsewhere or f"http://{place.netloc}"})
    assert said.status == 403
    assert not [name for name in said.headers if name.lower().startswith("access-control")]


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("relation", ["cross-site", "same-site"])
def test_what_a_browser_says_comes_from_elsewhere_is_refused_also_a_link(
    servers: Mapping[str, str], server: str, relation: str
) -> None:
    assert asked(servers, server, {"Sec-Fetch-Site": relation}).status == 403
    link = {"Sec-Fetch-Site": relation, "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    assert asked(servers, server, link).status == 403


def test_an_environment_that_was_never_started_registers_no_extension(servers: Mapping[str, str]) -> None:
    place = urlsplit(servers["extensions"])
    unknown = f"http://{place.netloc}/{'0' * 32}/2020-01-01/extension/register"
    assert answer(unknown, method="POST").status == 404
    assert answer(unknown).status == 404


@pytest.mark.parametrize("service", CALLS)
@pytest.mark.parametrize("access_key", ["the account's", "test"])
def test_a_call_must_prove_the_secret_of_this_start(harsh_cloud: Cloud, service: str, access_key: str) -> None:
    variables = harsh_cloud.environment(DEFAULT_SITE)
    call = CALLS[service]
    assert not error_of(getattr(connect_environment(variables).client(service), call))
    forged = {**variables, "AWS_SECRET_ACCESS_KEY": "test"}
    if access_key == "test":
        forged["AWS_ACCESS_KEY_ID"] = "test"
    assert error_of(getattr(connect_environment(forged).client(service), call)) in REFUSED


@pytest.mark.parametrize("service", CALLS)
def test_a_call_without_a_signature_is_refused(harsh_cloud: Cloud, service: str) -> None:
    config = Config(signature_version=botocore.UNSIGNED)
    session: Any = boto3.Session(region_name=DEFAULT_SITE.region)  # whose stubs name every service
    client = session.client(service, endpoint_url=harsh_cloud.endpoint, config=config)
    assert error_of(getattr(client, CALLS[service])).removesuffix("Exception") in UNSIGNED


def test_a_session_needs_the_token_that_it_was_given(harsh_cloud: Cloud, account: Connection) -> None:
    arn = role(account, "assumed")
    trust = {"Effect": "Allow", "Principal": {"AWS": DEFAULT_SITE.account}, "Action": "sts:AssumeRole"}
    iam, sts = account.client("iam"), account.client("sts")
    document = json.dumps({"Version": "2012-10-17", "Statement": [trust]})
    iam.update_assume_role_policy(RoleName="assumed", PolicyDocument=document)
    assumed = eventually(lambda: sts.assume_role(RoleArn=arn, RoleSessionName="session")["Credentials"])
    drawn = sts.get_session_token()["Credentials"]

    def whose(key: Mapping[str, str], **other: str) -> str:
        held = {**key, **other}
        session = boto3.Session(held["AccessKeyId"], held["SecretAccessKey"], held["SessionToken"], DEFAULT_SITE.region)
        return error_of(Connection(session, account.endpoint_url).client("sts").get_caller_identity)

    for key in (assumed, drawn):
        assert whose(key) == ""
        assert whose(key, SecretAccessKey="test") == "SignatureDoesNotMatch"
        assert whose(key, SessionToken="another") == "InvalidClientTokenId"


def test_a_functions_keys_do_not_follow_from_its_name(
    account: Connection, environment: Mapping[str, str], harsh_cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As ministack derives them of both ARNs, by hashing, which anyone can."""
    from ministack import app  # noqa: PLC0415 - its import raises the process's limit of recursion
    from ministack.core.lambda_runtime import execution_credentials  # noqa: PLC0415 - see above

    monkeypatch.setattr(app, "AUTH", True)
    config = account.client("lambda").get_function(FunctionName="reached")["Configuration"]
    derived = execution_credentials(config)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        assert derived[name] != environment[name]


@pytest.fixture
def kept(sqs: Any) -> Iterator[str]:
    """A queue that is there, and after the test still is."""
    url = made(sqs, "kept")
    yield url
    assert sqs.get_queue_attributes(QueueUrl=url)["ResponseMetadata"]["HTTPStatusCode"] == 200


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/_ministack/reset"),
        ("POST", "/_ministack/config"),
        ("GET", "/_ministack/sqs/messages"),
        ("GET", "/_ministack/ses/messages"),
        ("GET", "/_ministack/lambda-code/000000000000/eu-central-1/reached"),
        ("GET", "/_ministack/health"),
        ("GET", "/_localstack/health"),
        ("GET", "/health"),
        ("OPTIONS", "/"),
        ("POST", "/_ministack/rds/iam-auth"),
        ("GET", "/v2/"),
    ],
)
def test_ministacks_administration_is_closed_also_to_who_may_do_all_else(
    harsh_cloud: Cloud, kept: str, method: str, path: str
) -> None:
    url = harsh_cloud.endpoint + path
    assert answer(url, method=method).status == 403
    if "ministack" in path:
        variables = harsh_cloud.environment(DEFAULT_SITE)
        keys = Credentials(variables["AWS_ACCESS_KEY_ID"], variables["AWS_SECRET_ACCESS_KEY"])
        asked = AWSRequest(method, url, data=b"")
        SigV4Auth(keys, "sqs", DEFAULT_SITE.region).add_auth(asked)
        assert answer(url, dict(asked.headers), method).status >= 400


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/_aws/lambda-url/"),
        ("POST", "/_aws/lambda-url/unknown/"),
        ("POST", "/_ministack/cfn-response/token"),
        ("POST", "/_ministack/ready/"),
        ("POST", "/"),
    ],
)
@pytest.mark.parametrize("authorization", ["", "Bearer any", "AWS any:any"])
def test_no_path_leads_past_the_signature(
    harsh_cloud: Cloud, kept: str, method: str, path: str, authorization: str
) -> None:
    headers = {"X-Amz-Target": "AmazonSQS.DeleteQueue", "Content-Type": "application/x-amz-json-1.0"}
    headers |= {"Authorization": authorization} if authorization else {}
    said = answer(harsh_cloud.endpoint + path, headers, method, json.dumps({"QueueUrl": kept}).encode())
    assert said.status == 403


def test_a_functions_url_that_asks_for_a_signature_gets_one(
    harsh_cloud: Cloud, account: Connection, function_role: str
) -> None:
    deploy_function(account, "closed", SOURCE, role_arn=function_role)
    made_url = account.client("lambda").create_function_url_config(FunctionName="closed", AuthType="AWS_IAM")
    url_id = (urlsplit(made_url["FunctionUrl"]).hostname or "").split(".")[0]
    url = f"{harsh_cloud.endpoint}/_aws/lambda-url/{url_id}/"
    assert answer(url).status == 403
    assert answer(url, {"Authorization": "Bearer any"}).status == 403
    variables = harsh_cloud.environment(DEFAULT_SITE)
    for secret, status in ((variables["AWS_SECRET_ACCESS_KEY"], 200), ("test", 403)):
        asked = AWSRequest("GET", url)
        SigV4Auth(Credentials(DEFAULT_SITE.account, secret), "lambda", DEFAULT_SITE.region).add_auth(asked)
        assert answer(url, dict(asked.headers)).status == status


@pytest.mark.parametrize("body", [b"{}", b'{"QueueName": "other"}'])
def test_a_signature_is_of_the_whole_request(harsh_cloud: Cloud, body: bytes) -> None:
    variables = harsh_cloud.environment(DEFAULT_SITE)
    keys = Credentials(variables["AWS_ACCESS_KEY_ID"], variables["AWS_SECRET_ACCESS_KEY"])
    target = {"X-Amz-Target": "AmazonSQS.ListQueues", "Content-Type": "application/x-amz-json-1.0"}
    asked = AWSRequest("POST", f"{harsh_cloud.endpoint}/", data=b"{}", headers=target)
    SigV4Auth(keys, "sqs", DEFAULT_SITE.region).add_auth(asked)
    said = answer(f"{harsh_cloud.endpoint}/", dict(asked.headers), "POST", body)
    assert said.status == (200 if body == b"{}" else 403)


def test_a_presigned_url_proves_the_secret_too(harsh_cloud: Cloud, account: Connection) -> None:
    s3 = account.client("s3")
    s3.create_bucket(Bucket="presigned", CreateBucketConfiguration={"LocationConstraint": DEFAULT_SITE.region})
    s3.put_object(Bucket="presigned", Key="key", Body=b"content")
    forged = {**harsh_cloud.environment(DEFAULT_SITE), "AWS_SECRET_ACCESS_KEY": "test"}
    of = {"Bucket": "presigned", "Key": "key"}
    for connection, status in ((account, 200), (connect_environment(forged), 403)):
        url = connection.client("s3").generate_presigned_url("get_object", Params=of)
        assert answer(url).status == status
    assert answer(f"{harsh_cloud.endpoint}/presigned/key").status == 403
