"""A batch by the short way is what botocore would have sent, and whatever comes of it is what botocore makes of it."""

import json
import ssl
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from botocore.awsrequest import AWSResponse
from botocore.compat import HTTPHeaders
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from botocore.session import get_session
from hypothesis import example, given
from hypothesis import strategies as st

from sluice.aws.clients import FastBatchSender
from tests.spark.test_transport import certificate  # noqa: F401 - pytest finds the fixture here
from tests.sqs.failures import Script
from tests.sqs.queues import Queue
from tests.sqs.server import State, running

TIME_OUT_S = 60
# Where the server never answers. A busy machine's answer takes less.
SHORT_TIME_OUT_S = 1
ENTRIES = [{"Id": str(number), "MessageBody": f"m{number}"} for number in range(3)]
CALL = "SendMessageBatch"


@pytest.fixture
def sqs(monkeypatch: pytest.MonkeyPatch) -> Iterator[State]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    with running() as state:
        state.queues["q"] = Queue("q")
        yield state


def client_of(url: str, read_timeout_s: float = TIME_OUT_S) -> Any:
    return get_session().create_client(
        "sqs",
        region_name="eu-central-1",
        endpoint_url=url,
        config=Config(read_timeout=read_timeout_s, retries={"mode": "standard", "total_max_attempts": 2}),
        aws_access_key_id="test",
        aws_secret_access_key="test",
    )


def outcome(client: Any, state: State) -> object:
    """What the caller gets, as far as it doesn't differ from call to call."""
    try:
        done = client.send_message_batch(QueueUrl=state.queue_url("q"), Entries=ENTRIES)
    except ClientError as error:
        said = error.response["ResponseMetadata"]
        return error.response["Error"], said["HTTPStatusCode"], said["RetryAttempts"]
    except BotoCoreError as error:
        return type(error), str(error)
    sent = [each["Id"] for each in done.get("Successful", [])]
    return sent, done.get("Failed"), done["ResponseMetadata"]["HTTPStatusCode"]


@pytest.mark.parametrize(
    "failures",
    [
        [],
        [{"status": 400, "code": "com.amazonaws.sqs#QueueDoesNotExist"}],
        [{"how": "partial"}],
        [{"status": 400, "code": "RequestThrottled"}],
        [{"status": 503, "code": "ServiceUnavailable"}],
        [{"status": 503, "code": "ServiceUnavailable", "count": 5}],
        [{"status": 403, "code": "AccessDenied"}],
        [{"status": 400, "code": "ExpiredToken", "count": 2}],
        [{"how": "lose"}],
        [{"how": "lose", "count": 2}],
        [{"how": "hang"}],
        [{"how": "hang", "count": 2}],
        [{"how": "lose"}, {"status": 403, "code": "AccessDenied"}],
    ],
    ids=str,
)
def test_what_goes_wrong_goes_wrong_as_with_botocore(sqs: State, failures: Sequence[dict[str, Any]]) -> None:
    found = []
    time_out_s = SHORT_TIME_OUT_S if any(failure.get("how") == "hang" for failure in failures) else TIME_OUT_S
    for client in (client_of(sqs.url, time_out_s), FastBatchSender.install(client_of(sqs.url, time_out_s))):
        sqs.calls.clear()
        for failure in failures:
            sqs.script.add({"action": CALL, **failure})
        found.append((outcome(client, sqs), Counter(sqs.calls)))
        sqs.script = Script()
        assert outcome(client, sqs) == (["0", "1", "2"], None, 200)  # nothing is left over for the next call
    assert found[0] == found[1]


def test_an_answer_that_is_no_json_is_raised_as_botocore_does(sqs: State) -> None:
    found = []
    for let in (lambda client: client, FastBatchSender.install):
        client = client_of(sqs.url)
        client.meta.events.register(f"before-send.sqs.{CALL}", lambda **_: answered(sqs.url, b"<html>"))
        let(client)
        found.append(outcome(client, sqs))
    assert found[0] == found[1]


def answered(url: str, content: bytes) -> AWSResponse:
    answer: Any = AWSResponse(url, 200, HTTPHeaders(), None)
    answer._content = content
    return answer


class Answering(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        answer = b'{"Successful": [{"Id": "0"}, {"Id": "1"}, {"Id": "2"}]}'
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def over_tls(certificate: Path) -> Iterator[State]:  # noqa: F811 - the fixture
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answering)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield State(url=f"https://localhost:{server.server_port}")
    server.shutdown()
    thread.join()
    server.server_close()


def test_over_tls_whom_the_client_trusts_is_trusted(
    over_tls: State,
    certificate: Path,  # noqa: F811 - the fixture
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    stranger = outcome(FastBatchSender.install(client_of(over_tls.url)), over_tls)
    assert stranger == outcome(client_of(over_tls.url), over_tls)
    assert "CERTIFICATE_VERIFY_FAILED" in str(stranger)
    monkeypatch.setenv("AWS_CA_BUNDLE", str(certificate))
    client = FastBatchSender.install(client_of(over_tls.url))
    assert [outcome(client, over_tls) for _ in range(2)] == [(["0", "1", "2"], None, 200)] * 2


def test_through_a_proxy_botocore_sends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    client = client_of("https://sqs.eu-central-1.amazonaws.com")
    spelled: list[object] = []
    FastBatchSender.install(client).meta.events.register(
        "before-call", lambda params, **_: spelled.append(params["body"])
    )
    assert outcome(client, State(url="https://sqs.eu-central-1.amazonaws.com"))
    assert b"m2" in bytes(spelled[0])  # type: ignore[call-overload]


TEXTS = st.text(st.characters(exclude_categories=()), max_size=20)
VALUES = st.one_of(
    st.builds(lambda text: {"DataType": "String", "StringValue": text}, TEXTS),
    st.builds(lambda content: {"DataType": "Binary", "BinaryValue": content}, st.binary(max_size=20)),
)
ENTRY = st.fixed_dictionaries(
    {"Id": st.just("0"), "MessageBody": TEXTS},
    optional={
        "MessageAttributes": st.dictionaries(TEXTS, VALUES, max_size=3),
        "MessageSystemAttributes": st.dictionaries(st.just("AWSTraceHeader"), VALUES, max_size=1),
        "MessageGroupId": TEXTS,
        "MessageDeduplicationId": TEXTS,
        "DelaySeconds": st.integers(0, 900),
    },
)
PLAIN, FAST = client_of("http://127.0.0.1:9"), client_of("http://127.0.0.1:9")
SENT: list[Any] = []


def catch(request: Any, **_: object) -> AWSResponse:
    """Stand in for AWS."""
    SENT.append(request)
    return answered(request.url, b'{"Successful": []}')


for each in (PLAIN, FAST):
    each.meta.events.register(f"before-send.sqs.{CALL}", catch)
FastBatchSender.install(FAST)


@given(st.lists(ENTRY, min_size=1, max_size=3))
@example([{"Id": "0", "MessageBody": "half a pair: \ud800"}])
def test_what_is_sent_says_what_botocores_own_does(entries: Sequence[dict[str, Any]]) -> None:
    SENT.clear()
    for client in (PLAIN, FAST):
        client.send_message_batch(QueueUrl="http://127.0.0.1:9/1/q", Entries=entries)
    plain, fast = SENT
    assert json.loads(fast.body) == json.loads(plain.body)
    unlike = {"User-Agent", "X-Amz-Date", "Authorization", "Content-Length", "amz-sdk-invocation-id", "amz-sdk-request"}
    said = [{name: each.headers[name] for name in each.headers if name not in unlike} for each in (plain, fast)]
    assert said[0] == said[1]
    assert fast.headers["Authorization"].startswith(b"AWS4-HMAC-SHA256 Credential=test/")
