from datetime import UTC, datetime

from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials as BotocoreCredentials
from hypothesis import given
from hypothesis import strategies as st
from sluice_spark.sqs.access import Endpoint, region_from_url
from sluice_spark.sqs.signing import CONTENT_TYPE, Credentials, sign_headers

WORD = st.text("abcXYZ0189/+=", min_size=1, max_size=40)


@given(
    secret=WORD,
    token=st.none() | WORD,
    body=st.binary(max_size=300),
    port=st.sampled_from(["", ":4566"]),
    at=st.datetimes(datetime(2020, 1, 1), datetime(2040, 1, 1)),  # noqa: DTZ001  hypothesis wants naive bounds
)
def test_the_signature_is_botocores(secret: str, token: str | None, body: bytes, port: str, at: datetime) -> None:
    endpoint = Endpoint(url=f"https://sqs.eu-west-1.amazonaws.com{port}/", region="eu-west-1")
    at = at.replace(microsecond=0, tzinfo=UTC)
    ours = sign_headers(
        Credentials(access_key="AKIA", secret_key=secret, token=token),
        host=endpoint.host,
        path="/",
        region="eu-west-1",
        service="sqs",
        target="AmazonSQS.ReceiveMessage",
        body=body,
        at_s=int(at.timestamp()),
    )
    request = AWSRequest(
        "POST",
        endpoint.url,
        data=body,
        headers={
            "Content-Type": CONTENT_TYPE,
            "X-Amz-Target": "AmazonSQS.ReceiveMessage",
        },
    )
    if token:
        request.headers["X-Amz-Security-Token"] = token
    request.context["timestamp"] = at.strftime("%Y%m%dT%H%M%SZ")
    signer = SigV4Auth(BotocoreCredentials("AKIA", secret, token), "sqs", "eu-west-1")
    request.headers["X-Amz-Date"] = request.context["timestamp"]
    canonical = signer.canonical_request(request)
    signature = signer.signature(signer.string_to_sign(request, canonical), request)

    assert ours["authorization"].endswith(f"Signature={signature}")
    assert f"SignedHeaders={signer.signed_headers(signer.headers_to_sign(request))}," in ours["authorization"]


def test_credentials_show_no_secret() -> None:
    assert "hidden" not in repr(Credentials(access_key="AKIAX", secret_key="hidden", token="hidden"))


def test_the_region_is_read_from_a_queue_url() -> None:
    assert region_from_url("https://sqs.eu-west-1.amazonaws.com/1/q") == "eu-west-1"
    assert region_from_url("https://sqs.cn-north-1.amazonaws.com.cn/1/q") == "cn-north-1"
    assert region_from_url("https://us-east-2.queue.amazonaws.com/1/q") == "us-east-2"
    assert region_from_url("https://sqs-fips.us-gov-west-1.amazonaws.com/1/q") == "us-gov-west-1"
    assert region_from_url("https://vpce-0a-1b.sqs.us-east-1.vpce.amazonaws.com/1/q") == "us-east-1"
    assert region_from_url("http://127.0.0.1:4566/000000000000/q") is None
