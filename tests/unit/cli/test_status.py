"""`sluice status` from its arguments to its output and exit code.

CloudFormation and Lambda are told by a fake on loopback: the links and the jobs function by their real operations. SQS,
DynamoDB and CloudWatch are moto's.
"""

import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Barrier, Event, Thread
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs
from xml.sax.saxutils import escape

import boto3
import pytest
from moto import mock_aws
from msgspec import to_builtins
from typer.testing import CliRunner, Result

from sluice.aws.connections import Connection, connect_user
from sluice.aws.queues import count_messages
from sluice.cli import site_status
from sluice.cli.program import app
from sluice.federation.operations import ShowSite
from sluice.operations import build_reply, parse_request
from sluice.operator.site_status import SiteClient, read_site
from sluice.peers.channels import LOOPBACK
from sluice.pipeline.operations import JobsOperation, ReconcileJobs
from tests.tables import make_table
from tests.unit.cli.federation.test_commands import EAST, Sites
from tests.unit.pipeline.test_jobs import Site as PipelineSite

REGION = EAST
SESSION = {
    "is": "known",
    "session_id": "s-1",
    "key": "s-1",
    "owner": "me@here",
    "started_at_ms": 0,
    "heartbeat_at_ms": 0,
    "status": "Ready",
    "reason": "",
    "messages": 12,
    "filters": {},
    "queues": [
        {"queue_id": "orders", "mode": "steal", "asks_for": "user =~ ^me$", "shadowed_by": "s-0"}
        | {"name": None, "url": None, "returned": 0}
    ],
}
SESSIONS = [SESSION]
SPLIT = {
    "queue_id": "bills",
    "phase": "restoring",
    "phase_since_ms": 0,
    "waits_for": "its consumers to read bills",
    "consumers": {"trigger of function bank": "sluice-tmp-main"},
    "not_moved": "AccessDenied: no",
}


@dataclass
class FakeSite:
    """What is deployed: stacks by name with their outputs, functions by name with what they do."""

    stacks: dict[str, dict[str, str]] = field(default_factory=dict)
    federation: Sites = field(default_factory=Sites)
    pipeline: PipelineSite = field(default_factory=PipelineSite)
    sqs: Any = None
    stopped: list[str] = field(default_factory=list)  # sessions
    operations: list[str] = field(default_factory=list)  # of splitting
    broken: set[str] = field(default_factory=set)  # functions that fail
    hanging: Mapping[str, Event | Barrier] = field(default_factory=dict)  # functions that answer when they are told to

    def queue(self, name: str, *messages: str) -> str:
        url: str = self.sqs.create_queue(QueueName=name)["QueueUrl"]
        for body in messages:
            self.sqs.send_message(QueueUrl=url, MessageBody=body)
        return url

    def answer(self, path: str, body: str) -> tuple[int, str]:
        """Status and text, of CloudFormation or of a function."""
        if not path.startswith("/2015-03-31/functions/"):
            [name] = parse_qs(body).get("StackName", [None])
            if name not in {None, *self.stacks}:
                return 400, NO_STACK_XML
            return 200, stacks_xml(self.stacks if name is None else {name: self.stacks[name]})
        function = path.split("/")[3]
        if function in self.hanging:
            self.hanging[function].wait()
        if function in self.broken:
            return 500, json.dumps({"message": "out of order"})
        if function == "links":
            return 200, self.federation[EAST].reply(body.encode()).decode()
        if function == "jobs":
            return 200, json.dumps(build_reply(self.pipeline.ask(parse_request(body, JobsOperation))))
        asked = json.loads(body)
        said = self.rendezvous(asked) if function == "sweeper" else self.splitting(asked)
        return 200, json.dumps({"result": said})

    def rendezvous(self, asked: Any) -> Any:
        held = {url: to_builtins(count_messages(self.sqs, url)) for url in asked["queues"]}
        return {"waiting": {"unrestricted": 2, "restricted": 0}, "recent_offers": {"answered": 3}, "depths": held}

    def splitting(self, asked: Any) -> Any:
        urls = {"source": self.queue("source", "1"), "main": self.queue("main", "1", "2")}
        queue = {"queue_id": "orders", **urls, "fifo": False, "sns": False, "s3_event": False}
        self.operations.append(asked["op"])
        if asked["op"] == "stop":
            self.stopped.append(asked["session_id"])
        if asked["op"] in {"stop", "find"}:
            return {"is": "ended", "session_id": asked["session_id"], "reason": "Unused"}
        return {"show": {"queues": [queue], "sessions": [*SESSIONS], "splits": [SPLIT]}}[asked["op"]]


NO_STACK_XML = (
    "<ErrorResponse><Error><Code>ValidationError</Code><Message>no such stack</Message></Error></ErrorResponse>"
)


def stacks_xml(stacks: Mapping[str, Mapping[str, str]]) -> str:
    members = "".join(
        f"<member><StackName>{name}</StackName><Outputs>{outputs_xml(outputs)}</Outputs></member>"
        for name, outputs in stacks.items()
    )
    result = f"<DescribeStacksResult><Stacks>{members}</Stacks></DescribeStacksResult>"
    return f"<DescribeStacksResponse>{result}</DescribeStacksResponse>"


def outputs_xml(outputs: Mapping[str, str]) -> str:
    return "".join(
        f"<member><OutputKey>{key}</OutputKey><OutputValue>{escape(value)}</OutputValue></member>"
        for key, value in outputs.items()
    )


@contextmanager
def served(site: FakeSite) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            status, text = site.answer(self.path, self.rfile.read(int(self.headers["Content-Length"])).decode())
            self.send_response(status)
            self.send_header("Content-Length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer((LOOPBACK, 0), Handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://{LOOPBACK}:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeSite]:
    """All of it deployed."""
    made = FakeSite()
    for name in ("AWS_ENDPOINT_URL", "AWS_PROFILE", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": REGION,
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_MAX_ATTEMPTS": "1",
    }.items():
        monkeypatch.setenv(name, value)
    with mock_aws(), served(made) as endpoint:
        monkeypatch.setenv("AWS_ENDPOINT_URL_CLOUDFORMATION", endpoint)
        monkeypatch.setenv("AWS_ENDPOINT_URL_LAMBDA", endpoint)
        deploy(made)
        yield made


def deploy(site: FakeSite) -> None:
    site.sqs = boto3.client("sqs", region_name=REGION)
    for table in ("t", "w"):
        make_table(boto3.client("dynamodb", region_name=REGION), table)
    dead = site.queue("dead", "1", "2", "3")
    site.federation.add(EAST, "EAST")
    site.stacks |= {
        "SluiceRendezvous": {
            "OffersQueueUrl": site.queue("offers", "1"),
            "BrokerUrl": "https://abc.lambda-url.us-east-1.on.aws/",
            "ClientUrl": "https://def.lambda-url.us-east-1.on.aws/",
            "ClientUserName": "clients",
            "TableName": "t",
            "WaitingTableName": "w",
            "DeadLettersUrl": dead,
            "SweeperFunctionName": "sweeper",
        },
        "SluiceSplitting": {"ControlFunctionName": "control"},
        "SluiceFederation": {"LinksFunctionName": "links"},
        "SluicePipeline": {"JobsFunctionName": "jobs", "QueueUrl": site.queue("landing", *"12345")},
        "SluiceOperations": {"DeadLetterUrls": json.dumps({"dead letters of the rendezvous": dead})},
    }


def sluice(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["status", *arguments])


def told(code: int = 0) -> Any:
    done = sluice("--json")
    assert done.exit_code == code, f"{done.output}{done.exception!r}"
    return json.loads(done.stdout)


def linked(site: FakeSite) -> None:
    """A route from an existing queue here to another site."""
    sites = site.federation
    sites.add("us-west-2", "WEST")
    sites.run("queue", "add", "us-west-2", EAST, "amq.fanout", "sluice-queue-1", "--quiet")


def test_one_screen_has_all_of_the_site(site: FakeSite) -> None:
    site.pipeline.ask(ReconcileJobs())
    done = sluice()
    assert done.exit_code == 0, f"{done.output}{done.exception!r}"
    said = done.stdout
    for part in ("rendezvous", "splitting", "federation", "pipeline", "dead letters"):
        assert f" {part} " in said
    assert "offers queue        1 waiting, 0 in flight" in said
    assert "me@here" in said
    assert "amq.topic (topic)" in said
    assert "land: desired  running" in said
    assert "5 waiting, 0 in flight" in said
    assert said.rstrip().endswith("3")  # dead letters


def test_for_programs_it_is_one_document_with_each_part_whole(site: FakeSite) -> None:
    site.pipeline.ask(ReconcileJobs())
    document = told()
    assert (document["region"], document["absent"], document["failed"]) == (REGION, {}, {})
    assert document["rendezvous"]["offers_queue"]["visible"] == 1
    [queue] = document["splitting"]["queues"]
    assert (queue["source"]["visible"], queue["main"]["visible"]) == (1, 2)
    assert [session["session_id"] for session in document["splitting"]["sessions"]] == ["s-1"]
    assert document["federation"]["tag"] == "EAST"
    assert document["pipeline"]["queue"]["visible"] == 5
    assert [run["job"] for run in document["pipeline"]["runs"]]
    assert document["dead_letters"]["dead letters of the rendezvous"]["visible"] == 3


@pytest.mark.parametrize(
    ("stack", "part"),
    [
        ("SluiceRendezvous", "rendezvous"),
        ("SluiceSplitting", "splitting"),
        ("SluiceFederation", "federation"),
        ("SluicePipeline", "pipeline"),
        ("SluiceOperations", "dead_letters"),
    ],
)
def test_a_stack_that_is_not_deployed_says_so_and_the_others_are_shown(site: FakeSite, stack: str, part: str) -> None:
    del site.stacks[stack]
    document = told()
    assert document[part] is None
    assert document["absent"][part].startswith(f"stack {stack} is not deployed in {REGION}")
    assert [
        name for name in ("rendezvous", "splitting", "federation", "pipeline", "dead_letters") if document[name] is None
    ] == [part]
    done = sluice()
    assert (done.exit_code, f"stack {stack} is not deployed" in done.stdout) == (0, True)


def test_a_region_with_nothing_says_that_of_every_part(site: FakeSite) -> None:
    site.stacks.clear()
    document = told(code=1)
    assert set(document["absent"]) == {"rendezvous", "splitting", "federation", "pipeline", "dead_letters"}


def test_a_part_that_cannot_be_asked_says_why_and_the_exit_code_is_1(site: FakeSite) -> None:
    site.broken.add("jobs")
    document = told(code=1)
    assert document["pipeline"] is None
    assert document["failed"]["pipeline"].startswith("Invoke")
    assert document["federation"]["tag"] == "EAST"
    done = sluice()
    assert (done.exit_code, "Invoke" in done.stderr) == (1, True)


def test_a_stack_that_is_still_being_made_is_no_traceback(site: FakeSite) -> None:
    del site.stacks["SluiceRendezvous"]["TableName"]
    del site.stacks["SluicePipeline"]["QueueUrl"]
    del site.stacks["SluiceOperations"]["DeadLetterUrls"]
    failed = told(code=1)["failed"]
    assert {name: text.split(":")[0] for name, text in failed.items()} == {
        "rendezvous": "stack SluiceRendezvous has no output TableName",
        "pipeline": "stack SluicePipeline has no output QueueUrl",
        "dead_letters": "stack SluiceOperations has no output DeadLetterUrls",
    }


def test_a_route_shows_what_its_queue_holds_and_how_late_it_is(site: FakeSite) -> None:
    linked(site)
    site.queue("sluice-queue-1", "1", "2")
    [bridge] = site.federation[EAST].ask(ShowSite()).bridges
    said = {"LagMs": ("Sluice", {"route": bridge.name, "service": "bridge"}, 1234.0)}
    said["ApproximateAgeOfOldestMessage"] = ("AWS/SQS", {"QueueName": "sluice-queue-1"}, 77.0)
    cloudwatch = boto3.client("cloudwatch", region_name=REGION)
    for name, (namespace, dimensions, value) in said.items():
        datum = {
            "MetricName": name,
            "Dimensions": [{"Name": key, "Value": text} for key, text in dimensions.items()],
            "Timestamp": datetime.now(UTC) - timedelta(minutes=2),
            "Value": value,
        }
        cloudwatch.put_metric_data(Namespace=namespace, MetricData=[datum])
    [route] = told()["federation"]["routes"]
    assert (route["queue"]["name"], route["queue"]["visible"]) == ("sluice-queue-1", 2)
    assert (route["forwarded_ms"], route["waiting_s"]) == (1234.0, 77.0)
    shown = sluice().stdout
    assert "oldest message, s" in shown
    assert "1234" in shown


def test_a_route_without_a_word_of_its_lag_has_none(site: FakeSite) -> None:
    linked(site)
    [route] = told()["federation"]["routes"]
    assert (route["forwarded_ms"], route["waiting_s"]) == (None, None)
    assert route["queue"] == {"name": "sluice-queue-1"}  # SQS has none such here
    assert sluice().exit_code == 0


def test_nothing_is_asked_for_without_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": "/nowhere",
        "AWS_SHARED_CREDENTIALS_FILE": "/nowhere",
    }.items():
        monkeypatch.setenv(name, value)
    done = sluice("--region", REGION)
    assert done.exit_code == 1
    assert done.stderr.splitlines() == [
        "no AWS credentials: set AWS_PROFILE or pass --profile, or --local for the embedded cloud"
    ]


def test_a_part_that_does_not_answer_in_time_says_so_and_the_others_are_shown(site: FakeSite) -> None:
    answers = Event()
    site.hanging = {"jobs": answers}
    try:
        report = read_site(SiteClient(connect_user(region=REGION), is_local=False), within_s=2.0)
    finally:
        answers.set()
    assert report.failed == {"pipeline": "no answer in 2 s"}
    assert set(report.parts) == {"rendezvous", "splitting", "federation", "dead_letters"}


def test_all_parts_are_asked_at_once(site: FakeSite) -> None:
    """None answers before all have been asked."""
    asked = Barrier(4, timeout=20)
    site.hanging = dict.fromkeys(("sweeper", "control", "links", "jobs"), asked)
    assert told()["failed"] == {}


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What AWS is called with."""
    made: list[str] = []

    def client(connection: Connection, service: str) -> Any:
        found = client_of(connection, service)
        found.meta.events.register("before-call", count, unique_id="count")
        return found

    def count(model: Any, params: Any, **_: Any) -> None:
        made.append(f"{model.name} {params['url_path']} {params['body']!r}")

    client_of = Connection.client
    monkeypatch.setattr(Connection, "client", client)
    return made


def test_nothing_is_asked_twice(site: FakeSite, calls: list[str]) -> None:
    linked(site)
    site.queue("sluice-queue-1")
    site.stacks["SluiceOperations"]["DeadLetterUrls"] = json.dumps(
        {
            "of rendezvous": site.queue("dead"),
            "of splitting": site.queue("dead-2"),
            "and more": site.queue("dead-3"),
        }
    )
    assert told()["failed"] == {}
    names = Counter(call.partition(" ")[0] for call in calls)
    assert len(set(calls)) == len(calls)
    assert names["DescribeStacks"] == 1
    assert names["GetMetricData"] == 1
    assert names["Invoke"] == 4  # one a part
    # The split queue's two, the pipeline's, the route's, and two for dead letters: the sweeper looks into the third.
    assert names["GetQueueAttributes"] == 6
    assert sum(names.values()) - names["GetQueueAttributes"] == 6


def test_a_site_as_it_is_deployed_first_is_told_of_in_ten_calls(site: FakeSite, calls: list[str]) -> None:
    """A split queue whose consumer is the pipeline, four queues for dead letters, no routes."""
    dead = ["dead", "dead-splitting", "dead-federation", "dead-federation.fifo"]
    fifo = {"FifoQueue": "true"}
    urls = {
        name: site.sqs.create_queue(QueueName=name, Attributes=fifo if name.endswith("fifo") else {})["QueueUrl"]
        for name in dead
    }
    site.stacks["SluiceOperations"]["DeadLetterUrls"] = json.dumps(urls)
    site.stacks["SluicePipeline"]["QueueUrl"] = site.queue("main")
    assert told()["failed"] == {}
    assert len(calls) == 10


def test_what_is_watched_is_shown_again_until_ctrl_c(site: FakeSite, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(site_status, "time", SimpleNamespace(monotonic=time.monotonic, sleep=sleep))
    done = sluice("--watch", "3")
    assert (done.exit_code, slept) == (130, [3.0, 3.0])
    assert done.stdout.count(f"site {REGION}") == 2


def test_dead_letters_are_counted_where_the_sweeper_cannot_be_asked(site: FakeSite) -> None:
    site.broken.add("sweeper")
    document = told(code=1)
    assert document["failed"]["rendezvous"].startswith("Invoke")
    assert document["dead_letters"]["dead letters of the rendezvous"]["visible"] == 3
