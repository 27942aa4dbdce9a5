"""EKS clusters are found by their names, and signed in to with the environment's own credentials."""

import base64
from typing import Any
from urllib.parse import parse_qs, urlsplit

import boto3
import pytest
from botocore.stub import Stubber

from sluice.aws.splitting.consumers.targets import EksClusters
from sluice.errors import CallFailed
from tests.kubernetes.servers import Server

REGION = "eu-central-1"


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIATEST")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "session")
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)  # which remembers what another test's environment gave


def clusters(described: dict[str, Any] | None = None) -> EksClusters:
    """With an EKS that knows one cluster, or none."""
    eks = boto3.client("eks", region_name=REGION)
    stub = Stubber(eks)
    if described is None:
        stub.add_client_error("describe_cluster", "ResourceNotFoundException", "No cluster found for name: shop.")
    else:
        stub.add_response("describe_cluster", {"cluster": described}, {"name": "shop"})
    stub.activate()
    sts = boto3.client("sts", region_name=REGION)
    return EksClusters(client={"eks": eks, "sts": sts}.__getitem__)


def test_a_token_is_a_request_to_sts_signed_for_one_cluster_and_a_minute() -> None:
    token = clusters().token("shop")
    assert token.startswith("k8s-aws-v1.")
    text = token.removeprefix("k8s-aws-v1.")
    assert "=" not in text
    url = urlsplit(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode())
    assert (url.scheme, url.hostname, url.path) == ("https", f"sts.{REGION}.amazonaws.com", "/")
    query = {key: values[0] for key, values in parse_qs(url.query).items()}
    assert query["Action"] == "GetCallerIdentity"
    assert query["X-Amz-Expires"] == "60"
    assert query["X-Amz-SignedHeaders"] == "host;x-k8s-aws-id"
    assert query["X-Amz-Security-Token"] == "session"
    assert query["X-Amz-Credential"].endswith(f"/{REGION}/sts/aws4_request")


def test_tokens_of_two_clusters_differ_and_other_requests_name_none() -> None:
    found = clusters()
    sts = found.client("sts")
    assert found.token("shop") != found.token("other")
    assert "x-k8s-aws-id" not in sts.generate_presigned_url("get_caller_identity")


def test_a_cluster_is_described_once_and_asked_with_a_token(server: Server) -> None:
    authority = {"data": base64.b64encode(server.authority.encode()).decode()}
    found = clusters({"endpoint": server.url, "certificateAuthority": authority, "status": "ACTIVE"})
    assert found("shop") is found("shop")
    with pytest.raises(CallFailed, match="GET /api/v1/namespaces/shop/pods: Unauthorized: Unauthorized"):
        found("shop").get_object("/api/v1/namespaces/shop/pods")


def test_a_cluster_that_is_being_made_is_asked_later() -> None:
    with pytest.raises(CallFailed, match="DescribeCluster: CREATING: shop has no API server yet"):
        clusters({"status": "CREATING"})("shop")


def test_a_cluster_that_is_not_there_is_told() -> None:
    with pytest.raises(CallFailed) as raised:
        clusters()("shop")
    assert raised.value.code == "ResourceNotFoundException"


def test_a_server_that_does_not_answer_is_told() -> None:
    found = clusters({"endpoint": "http://127.0.0.1:9", "certificateAuthority": {"data": ""}, "status": "ACTIVE"})
    with pytest.raises(CallFailed, match=r"GET /api: NewConnectionError: .*Connection refused"):
        found("shop").get_object("/api")
