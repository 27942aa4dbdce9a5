"""`sluice rendezvous` from its arguments to its output and exit code.

The deployment is told by a fake CloudFormation on loopback, other AWS calls go to moto, offers and polls to a fake
broker, and WebRTC is real, on loopback.
"""

import asyncio
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

import aiohttp
import boto3
import pytest
from moto import mock_aws
from typer.testing import CliRunner, Result

from sluice.aws.rendezvous.clients import ClientCredentials
from sluice.aws.rendezvous.offers import DynamoOfferStore, DynamoProxyPools
from sluice.cli.program import app
from sluice.cli.sites import add_local_value
from sluice.operator.metrics import quantile
from sluice.peers.channels import LOOPBACK, Network
from sluice.peers.client import Connected, connect
from sluice.peers.methods import exchange_over_http
from sluice.peers.volunteer import Volunteer, VolunteerLimits
from sluice.rendezvous.protocol.ends import End
from sluice.rendezvous.protocol.matching import Nat, OfferMethod, OfferRecord, Pool, WaitingProxy
from tests.tables import make_table
from tests.unit.peers.test_peers import FakeBroker, served

REGION = "eu-central-1"
NO_PROXIES = '{"error": "no snowflake proxies currently available"}'


def sluice(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["rendezvous", *arguments])


@dataclass
class Site:
    """What is deployed, and a CloudFormation that tells of it."""

    outputs: dict[str, str]
    sqs: Any
    dynamodb: Any
    iam: Any

    @property
    def offers(self) -> DynamoOfferStore:
        return DynamoOfferStore(self.dynamodb, "t")

    @property
    def pools(self) -> DynamoProxyPools:
        return DynamoProxyPools(self.dynamodb, "w", lambda: 0.5)

    def key_ids(self) -> set[str]:
        keys = self.iam.list_access_keys(UserName="clients")["AccessKeyMetadata"]
        return {key["AccessKeyId"] for key in keys}


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    variables = {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": REGION,
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    for name in ("AWS_ENDPOINT_URL", "AWS_PROFILE", "AWS_DEFAULT_REGION", "SLUICE_SQSCREDS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    outputs: dict[str, str] = {}
    with mock_aws(), fake_cloudformation(outputs) as endpoint:
        monkeypatch.setenv("AWS_ENDPOINT_URL_CLOUDFORMATION", endpoint)
        yield deploy(outputs)


def deploy(outputs: dict[str, str]) -> Site:
    sqs = boto3.client("sqs", region_name=REGION)
    dynamodb = boto3.client("dynamodb", region_name=REGION)
    iam = boto3.client("iam", region_name=REGION)
    iam.create_user(UserName="clients")
    for table in ("t", "w"):
        make_table(dynamodb, table)
    outputs |= {
        "BrokerUrl": "https://abc.lambda-url.eu-central-1.on.aws/",
        "ClientUrl": "https://def.lambda-url.eu-central-1.on.aws/",
        "ClientUserName": "clients",
        "TableName": "t",
        "WaitingTableName": "w",
    }
    for output, name in (("OffersQueueUrl", "offers"), ("DeadLettersUrl", "dead")):
        outputs[output] = sqs.create_queue(QueueName=name)["QueueUrl"]
    return Site(outputs, sqs, dynamodb, iam)


@contextmanager
def fake_cloudformation(outputs: dict[str, str]) -> Iterator[str]:
    """Tells of one stack with these outputs; while there are none, of none."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            body = (stack_xml(outputs) if outputs else NO_STACK_XML).encode()
            self.send_response(200 if outputs else 400)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer((LOOPBACK, 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://{LOOPBACK}:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


NO_STACK_XML = (
    "<ErrorResponse><Error><Code>ValidationError</Code><Message>Stack with id SluiceRendezvous does not exist"
    "</Message></Error></ErrorResponse>"
)


def stack_xml(outputs: dict[str, str]) -> str:
    members = "".join(
        f"<member><OutputKey>{key}</OutputKey><OutputValue>{value}</OutputValue></member>"
        for key, value in outputs.items()
    )
    return (
        "<DescribeStacksResponse><DescribeStacksResult><Stacks><member><StackName>SluiceRendezvous</StackName>"
        f"<Outputs>{members}</Outputs></member></Stacks></DescribeStacksResult></DescribeStacksResponse>"
    )


@dataclass
class Background:
    """Coroutines in a loop of their own thread, until the test is over."""

    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.new_event_loop)
    stop: asyncio.Event = field(default_factory=asyncio.Event)

    def start(self, work: Callable[["Background", asyncio.Future[Any]], Coroutine[Any, Any, None]]) -> Any:
        """Begins `work`, which runs until `stop`; what it sets its future to."""
        ready: Any = asyncio.Future(loop=self.loop)
        self.loop.call_soon_threadsafe(lambda: self._keep(work, ready))
        return asyncio.run_coroutine_threadsafe(_wait_for(ready), self.loop).result(20)

    def _keep(self, work: Any, ready: Any) -> None:
        self._tasks.append(self.loop.create_task(work(self, ready)))

    def __enter__(self) -> Self:
        self._tasks: list[asyncio.Task[None]] = []
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self.loop).result(20)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    async def _end(self) -> None:
        self.stop.set()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def _wait_for(future: asyncio.Future[Any]) -> Any:
    return await future


@pytest.fixture
def background() -> Iterator[Background]:
    with Background() as running:
        yield running


def broker_url(background: Background, broker: FakeBroker) -> str:
    async def serve(here: Background, ready: asyncio.Future[Any]) -> None:
        async with served(broker.application()) as url:
            ready.set_result(url + "/")
            await here.stop.wait()

    return str(background.start(serve))


def echoing_proxy(background: Background, url: str) -> None:
    async def serve(here: Background, ready: asyncio.Future[Any]) -> None:
        async with aiohttp.ClientSession() as session:
            volunteer = Volunteer(session, url, network=Network(loopback=True), limits=VolunteerLimits(pause_s=0))
            running = asyncio.create_task(volunteer.run())
            ready.set_result(None)
            await here.stop.wait()
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    background.start(serve)


def one_client(background: Background, url: str) -> None:
    """Offers as soon as a proxy polls, and has its bytes echoed."""

    async def offer(_: Background, ready: asyncio.Future[Any]) -> None:
        ready.set_result(None)
        async with aiohttp.ClientSession() as session:
            connected = await connect(exchange_over_http(session, url), network=Network(loopback=True))
            assert isinstance(connected, Connected), connected
            async with connected.peer:
                await connected.channel.send(b"ping")
                assert await connected.channel.receive_exactly(4) == b"ping"

    background.start(offer)


class DenyingBroker(FakeBroker):
    """Has no proxies."""

    async def client(self, request: Any) -> Any:
        return aiohttp.web.Response(text=NO_PROXIES)


# status


def test_status_tells_what_there_is(site: Site) -> None:
    fill(site)
    done = sluice("status", "--json")
    assert done.exit_code == 0, done.output
    status = json.loads(done.stdout)
    assert status["offers_queue"] == {"url": site.outputs["OffersQueueUrl"], "visible": 2, "in_flight": 0}
    assert status["waiting_proxies"] == {"unrestricted": 2, "moderate": 0, "restricted": 0}
    assert status["recent_offers"] == {
        "received": 1,
        "refused": 1,
        "answered": 1,
        "denied": 0,
        "timed out": 0,
    }
    assert status["dead_letters"]["count"] == 2
    reasons = {letter["reason"] for letter in status["dead_letters"]["latest"]}
    assert reasons == {"Malformed: [not] JSON", "moved here by SQS: received 3 times and never deleted"}
    assert (status["broker_url"], status["client_url"]) == (site.outputs["BrokerUrl"], site.outputs["ClientUrl"])


def fill(site: Site) -> None:
    now_ms = time.time_ns() // 1_000_000
    for _ in range(2):
        site.sqs.send_message(QueueUrl=site.outputs["OffersQueueUrl"], MessageBody="offer")
    reason = {"sluice-reason": "Malformed: [not] JSON", "sluice-source": "arn:aws:sqs:eu-central-1:1:offers"}
    attributes = {name: {"DataType": "String", "StringValue": value} for name, value in reason.items()}
    site.sqs.send_message(QueueUrl=site.outputs["DeadLettersUrl"], MessageBody="a", MessageAttributes=attributes)
    site.sqs.send_message(QueueUrl=site.outputs["DeadLettersUrl"], MessageBody="b")
    for name, polled_at_ms in (("p", now_ms), ("q", now_ms), ("gone", now_ms - 60_000)):
        site.pools.add_proxy(parse_waiting_proxy(name, polled_at_ms))
    for name, sent_at_ms, end in (
        ("new", now_ms, None),
        ("malformed", now_ms, End.OFFER_REFUSED),
        ("answered", now_ms, End.OFFER_MATCHED),
        ("old", now_ms - 200_000, None),
    ):
        site.offers.record(OfferRecord(client_id=name, sent_at_ms=sent_at_ms, method=OfferMethod.SQS, end=end))


def parse_waiting_proxy(name: str, now_ms: int) -> WaitingProxy:
    return WaitingProxy(
        poll_id=name, sid=name, pool=Pool.UNRESTRICTED, clients=0, polled_at_ms=now_ms, mailbox=f"mailbox of {name}"
    )


def test_status_for_people_has_the_addresses_whole_and_the_reasons(site: Site) -> None:
    fill(site)
    done = sluice("status")
    assert done.exit_code == 0, done.exception
    said = done.stdout
    assert site.outputs["OffersQueueUrl"] in said
    assert site.outputs["BrokerUrl"] in said
    assert site.outputs["ClientUrl"] in said
    assert "2 waiting, 0 in flight" in said
    assert "3: 1 answered, 1 not answered, 1 malformed" in said
    assert "Malformed: [not] JSON" in said


def test_looking_at_dead_letters_leaves_them_to_whoever_comes_for_them(site: Site) -> None:
    fill(site)
    for _ in range(2):
        assert len(json.loads(sluice("status", "--json").stdout)["dead_letters"]["latest"]) == 2


# creds


def test_creds_makes_the_first_key_and_prints_its_text_alone(site: Site) -> None:
    done = sluice("creds")
    assert done.exit_code == 0, done.output
    [text] = done.stdout.splitlines()
    assert {ClientCredentials.parse(text).access_key_id} == site.key_ids()


def test_the_secret_is_on_standard_output_and_nowhere_else(site: Site) -> None:
    done = sluice("creds")
    credentials = ClientCredentials.parse(done.stdout.strip())
    assert credentials.secret_key not in done.stderr
    assert done.stdout.strip() not in done.stderr


def test_creds_prints_the_bridge_line_that_apps_take(site: Site) -> None:
    done = sluice("creds", "--bridge-line", "--stun", "stun:192.0.2.9:3478", "--fingerprint", "AB" * 20)
    assert done.exit_code == 0, done.output
    transport, address, fingerprint, *arguments = done.stdout.split()
    said = dict(argument.split("=", 1) for argument in arguments)
    assert (transport, address, fingerprint) == ("snowflake", "192.0.2.5:80", "AB" * 20)
    assert {ClientCredentials.parse(said.pop("sqscreds")).access_key_id} == site.key_ids()
    assert said == {
        "fingerprint": "AB" * 20,
        "sqsqueue": f"https://sqs.{REGION}.amazonaws.com/123456789012/offers",
        "ice": "stun:192.0.2.9:3478",
        "utls-imitate": "hellorandomizedalpn",
    }
    line = json.loads(sluice("creds", "--rotate", "--json").stdout)["bridge_line"]
    assert line.startswith("snowflake 192.0.2.5:80 2B28")


def test_the_queues_url_is_in_the_form_that_clients_read_the_region_from(site: Site) -> None:
    """Snowflake's client ends at any other URL. It calls another endpoint if its environment names one."""
    site.outputs["OffersQueueUrl"] = "http://127.0.0.1:4566/123456789012/offers"
    made = json.loads(sluice("creds", "--json").stdout)
    assert made["offers_queue_url"] == f"https://sqs.{REGION}.amazonaws.com/123456789012/offers"


def test_creds_for_a_secret_that_is_not_known_fails_and_says_rotate(site: Site) -> None:
    sluice("creds")
    done = sluice("creds")
    assert (done.exit_code, done.stdout) == (1, "")
    assert "--rotate" in done.stderr


def test_rotate_keeps_the_previous_key_only_where_asked_to(site: Site) -> None:
    first = json.loads(sluice("creds", "--json").stdout)
    second = json.loads(sluice("creds", "--rotate", "--keep-previous", "--json").stdout)
    assert (second["kept"], second["deleted"]) == ([first["access_key_id"]], [])
    third = json.loads(sluice("creds", "--rotate", "--json").stdout)
    assert set(third["deleted"]) == {first["access_key_id"], second["access_key_id"]}
    assert site.key_ids() == {third["access_key_id"]}


def test_revoke_leaves_no_key(site: Site) -> None:
    sluice("creds")
    assert sluice("creds", "--revoke").exit_code == 0
    assert site.key_ids() == set()


@pytest.mark.parametrize("options", [["--rotate", "--revoke"], ["--keep-previous"]])
def test_options_of_creds_that_do_not_go_together_are_a_usage_error(site: Site, options: list[str]) -> None:
    assert sluice("creds", *options).exit_code == 2
    assert site.key_ids() == set()


# offer


def test_an_offer_is_answered_and_its_bytes_come_back(site: Site, background: Background) -> None:
    site.outputs["ClientUrl"] = url = broker_url(background, FakeBroker())
    echoing_proxy(background, url)
    done = sluice("offer", "--http", "--loopback", "--bytes", "70000", "--count", "1", "--json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert (told["offers"], told["outcomes"]["echoed"], told["bytes_back"]) == (1, 1, 70000)
    assert 0 < told["answered_ms_p50"] <= told["opened_ms_p99"]


def test_a_denied_offer_is_exit_code_1_and_the_brokers_words(site: Site, background: Background) -> None:
    site.outputs["ClientUrl"] = broker_url(background, DenyingBroker())
    done = sluice("offer", "--http", "--loopback", "--count", "3", "--concurrency", "2", "--tries", "1")
    assert done.exit_code == 1
    assert done.stdout.count("no snowflake proxies currently available") == 3
    assert "3 denied" in done.stdout


def test_a_broker_that_cannot_be_reached_is_one_line_and_no_traceback(site: Site) -> None:
    site.outputs["ClientUrl"] = "http://127.0.0.1:9/"
    done = sluice("offer", "--http", "--loopback", "--count", "2")
    assert (done.exit_code, done.stdout) == (1, "")
    assert isinstance(done.exception, SystemExit)
    assert len(done.stderr.splitlines()) == 1
    assert "POST http://127.0.0.1:9/client" in done.stderr


def test_credentials_that_are_no_sqscreds_are_told(site: Site) -> None:
    done = sluice("offer", "--loopback", "--sqscreds", "no base64")
    assert done.exit_code == 1
    assert "sqscreds" in done.stderr


# proxy


def test_a_proxy_serves_as_many_clients_as_asked_for_and_sums_up(background: Background) -> None:
    url = broker_url(background, FakeBroker())
    one_client(background, url)
    done = sluice("proxy", "--broker-url", url, "--loopback", "--offers", "1", "--for", "20", "--json")
    assert done.exit_code == 0, done.output
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["event"] for line in lines] == ["polled", "matched", "answered", "opened", "closed", "summary"]
    assert lines[-1]["counts"]["closed"] == 1
    assert len({line["sid"] for line in lines[:-1]}) == 1


def test_a_proxy_on_loopback_is_unrestricted_and_takes_any_relay(background: Background) -> None:
    broker = idle_broker()
    url = broker_url(background, broker)
    done = sluice("proxy", "--broker-url", url, "--loopback", "--for", "0.5")
    assert done.exit_code == 0, done.output
    assert (broker.polls[0]["NAT"], broker.polls[0]["AcceptedRelayPattern"]) == (Nat.UNRESTRICTED, "$")
    assert done.stdout.splitlines()[-1].startswith("stopped: ")


def test_ctrl_c_ends_a_proxy_well(background: Background) -> None:
    url = broker_url(background, idle_broker())
    arguments = ["rendezvous", "proxy", "--loopback", "--json", "--broker-url", url]
    with subprocess.Popen(
        [sys.executable, "-m", "sluice.cli.main", *arguments], stdout=subprocess.PIPE, text=True
    ) as program:
        assert program.stdout is not None
        assert json.loads(program.stdout.readline())["event"] == "polled"
        program.send_signal(signal.SIGINT)
        assert json.loads(program.stdout.readlines()[-1])["event"] == "summary"
        assert program.wait(20) == 0


def idle_broker() -> FakeBroker:
    broker = FakeBroker()
    broker.poll_status = "no match"
    return broker


@pytest.mark.parametrize("options", [["--offers", "0"], ["--count", "0"]])
def test_options_of_proxy_that_make_no_sense_are_a_usage_error(options: list[str]) -> None:
    assert sluice("proxy", *options).exit_code == 2


# Which site, and what fails


@pytest.mark.parametrize("command", ["status", "creds", "offer", "proxy"])
def test_where_nothing_is_deployed_every_command_says_how_to_deploy(site: Site, command: str) -> None:
    site.outputs.clear()
    done = sluice(command)
    assert (done.exit_code, done.stdout) == (1, "")
    assert isinstance(done.exception, SystemExit)
    assert "make deploy" in done.stderr


@pytest.mark.parametrize("options", [["--local", "x"], ["--local", "--region", "eu-west-1"]])
def test_a_local_site_that_cannot_be_is_an_error(options: list[str]) -> None:
    assert sluice("status", *options).exit_code in {1, 2}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--local"], ["--local", "first"]),
        (["--local", "--json"], ["--local", "first", "--json"]),
        (["--local", "000000000000/eu-central-1", "--json"], ["--local", "000000000000/eu-central-1", "--json"]),
        (["--local=000000000000/eu-central-1"], ["--local=000000000000/eu-central-1"]),
        ([], []),
    ],
)
def test_local_may_stand_alone(arguments: list[str], expected: list[str]) -> None:
    assert add_local_value(arguments) == expected


def test_the_numbers_of_a_sample() -> None:
    times = [float(number) for number in range(1, 101)]
    assert [quantile(times, 0.5), quantile(times, 0.99), quantile([7.0], 0.99), quantile([], 0.5)] == [50, 99, 7, None]


def test_help_waits_neither_for_boto3_nor_for_aiortc() -> None:
    code = "import sys, sluice.cli.program; print({'boto3', 'botocore', 'aiortc'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
