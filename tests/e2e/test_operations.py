"""What operators hold on to, as deployed: traces, one screen of the site, dead letters, alarms and a dashboard."""

import asyncio
import json
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import aiohttp
import pytest
from typer.testing import CliRunner

from sluice.aws.deployment import read_stack_output, read_stack_outputs
from sluice.aws.federation.publisher import Publisher, PublishRequest
from sluice.cli.program import app
from sluice.federation.matching.exchanges import ExchangeType
from sluice.federation.operations import AddExchange, BindQueue, DeleteExchange, SweepSite, UnbindQueue
from sluice.message import TRACE_HEADER
from sluice.operator.functions import FEDERATION, ControlClient
from sluice.splitting.operations import ShowSplitting
from tests.deployed import LOOK_EVERY_S, Deployed
from tests.polls import nobody_waits, until_waiting
from tests.traffic import Proxies, answer, draw_number

WITHIN_S = 120
EXCHANGE = "events"


def new_trace() -> str:
    """Another one each time: tests share their queues."""
    random = uuid.uuid4().hex
    return f"Root=1-{random[:8]}-{random[8:]};Sampled=1"


def arrived(deployed: Deployed, url: str, trace: str) -> dict[str, Any]:
    """The message of this trace, once it is there."""
    deadline = time.monotonic() + WITHIN_S
    while time.monotonic() < deadline:
        received = deployed.sqs.receive_message(
            QueueUrl=url,
            MaxNumberOfMessages=10,
            WaitTimeSeconds=2,
            VisibilityTimeout=1,
            MessageSystemAttributeNames=["All"],
            MessageAttributeNames=["All"],
        ).get("Messages", [])
        for message in received:
            if message["Attributes"].get(TRACE_HEADER) == trace:
                deployed.sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
                return dict(message)
    raise AssertionError(f"nothing with {trace} came to {url}")


def send(deployed: Deployed, url: str, body: str, trace: str, **attributes: str) -> None:
    deployed.sqs.send_message(
        QueueUrl=url,
        MessageBody=body,
        MessageAttributes={name: {"DataType": "String", "StringValue": text} for name, text in attributes.items()},
        MessageSystemAttributes={TRACE_HEADER: {"DataType": "String", "StringValue": trace}},
    )


@contextmanager
def seeing(deployed: Deployed, key: str) -> Iterator[str]:
    """The URL of a queue that gets what is published to the exchange."""
    control = ControlClient.connect(deployed.connection, FEDERATION)
    control.ask(SweepSite())  # makes what is declared; by itself, within a minute
    name = f"sluice-queue-{uuid.uuid4().hex[:8]}"
    url = deployed.make_queue(name)
    control.ask(BindQueue(exchange=EXCHANGE, queue=name, key=key))
    time.sleep(1.1)  # exchange functions look for a new version every second
    try:
        yield url
    finally:
        control.ask(UnbindQueue(exchange=EXCHANGE, queue=name, key=key))
        deployed.sqs.delete_queue(QueueUrl=url)


def test_an_exchange_and_its_dead_letters_keep_the_trace(deployed: Deployed) -> None:
    outputs = read_stack_outputs(deployed.connection, "SluiceFederation")
    ingress, trace = outputs["IngressUrl"], new_trace()
    with seeing(deployed, "traced.#") as url:
        publishing = PublishRequest(exchange=EXCHANGE, key="traced.a", body="routed", trace_header=trace)
        Publisher(ingress, deployed.sqs).publish(publishing)
        assert arrived(deployed, url, trace)["Body"] == "routed"
    send(deployed, ingress, "lost", trace, exchange="nowhere")
    assert arrived(deployed, outputs["FederationDeadLettersUrl"], trace)["Body"] == "lost"


def test_a_splitter_keeps_the_trace(deployed: Deployed) -> None:
    queue, trace = ControlClient.connect(deployed.connection).ask(ShowSplitting()).queues[0], new_trace()
    send(deployed, queue.source, "split", trace)
    assert arrived(deployed, queue.main, trace)["Body"] == "split"


def test_an_answered_offers_event_has_the_trace_that_its_client_gave_it(deployed: Deployed) -> None:
    trace = new_trace()
    offer = "1.0\n" + json.dumps({"offer": json.dumps({"type": "offer", "sdp": "v=0"}), "nat": "unknown"})

    async def answered() -> None:
        async with aiohttp.ClientSession() as session:
            proxies = Proxies(session, deployed.broker_url)
            await nobody_waits(deployed)
            polling = asyncio.create_task(proxies.poll())
            await until_waiting(deployed)
            send(deployed, deployed.offers_queue_url, offer, trace, ClientID=uuid.uuid4().hex[:16])
            polled = await polling
            assert await proxies.answer(polled.sid, answer(draw_number())) == "success"

    with seeing(deployed, "rendezvous.offer.matched.#") as url:
        asyncio.run(answered())
        deadline = time.monotonic() + WITHIN_S
        traces: set[str] = set()
        while trace not in traces:
            assert time.monotonic() < deadline, traces
            received = deployed.sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=2)
            traces |= {json.loads(message["Body"])["trace"] for message in received.get("Messages", [])}


def test_one_screen_shows_the_site(deployed: Deployed, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in deployed.cloud.environment(deployed.site).items():
        monkeypatch.setenv(name, value)
    done = CliRunner().invoke(app, ["status", "--json"])
    found = json.loads(done.stdout)
    assert found["absent"] == {}
    assert found["rendezvous"]["offers_queue"]["url"] == deployed.offers_queue_url
    assert found["splitting"]["queues"]
    assert found["federation"]["tag"] == read_stack_output(deployed.connection, "SluiceFederation", "SiteTag")
    assert len(found["dead_letters"]) >= 4
    # Its jobs are processes of this machine, which --local asks.
    assert set(found["failed"]) == {"pipeline"}
    assert done.exit_code == 1


def redrive_until_it_moves(message_id: str) -> None:
    """Redrive one dead letter of federation's. The harsh cloud refuses some sends, which an operator repeats."""
    while True:
        done = CliRunner().invoke(app, ["dlq", "redrive", "federation", "--id", message_id, "--json"])
        document = json.loads(done.stdout)
        if document["moved"]:
            assert document == {"moved": 1, "stays": {}, "stopped": False}
            return
        assert all(reason.startswith("InternalError") for reason in document["stays"].values()), document
        time.sleep(LOOK_EVERY_S)


def test_a_dead_letter_goes_back_once_its_cause_is_gone_and_another_is_thrown_away(
    deployed: Deployed, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in deployed.cloud.environment(deployed.site).items():
        monkeypatch.setenv(name, value)

    def dlq(*arguments: str) -> Any:
        done = CliRunner().invoke(app, ["dlq", *arguments, "--json"])
        assert done.exit_code == 0, f"{done.output}{done.exception!r}"
        return json.loads(done.stdout)

    outputs, control = (
        read_stack_outputs(deployed.connection, "SluiceFederation"),
        ControlClient.connect(deployed.connection, FEDERATION),
    )
    queue, missing, traces = (
        f"sluice-queue-{uuid.uuid4().hex[:8]}",
        f"late-{uuid.uuid4().hex[:8]}",
        (new_trace(), new_trace()),
    )
    url = deployed.make_queue(queue)
    for body, trace in zip((f"early for {missing}", f"wrong for {missing}"), traces, strict=True):
        send(deployed, outputs["IngressUrl"], body, trace, exchange=missing)
    deadline, ids = time.monotonic() + WITHIN_S, dict[str, str]()
    while len(ids) < len(traces):
        assert time.monotonic() < deadline, ids
        letters = dlq("show", "federation", "--reason", "UnknownExchange", "--count", "100")
        ids = {letter["body"]: letter["id"] for letter in letters if missing in letter["body"]}
    found = {each["queue"]: each["reasons"] for each in dlq("list")}
    assert max(each["letters"] for each in found["federation"] if each["reason"] == "UnknownExchange") >= len(traces)

    assert dlq("purge", "federation", "--id", ids[f"wrong for {missing}"], "--yes")["moved"] == 1
    control.ask(AddExchange(name=missing, type=ExchangeType.FANOUT))
    control.ask(BindQueue(exchange=missing, queue=queue, key=""))
    try:
        time.sleep(1.1)  # exchange functions look for a new version every second
        redrive_until_it_moves(ids[f"early for {missing}"])
        assert arrived(deployed, url, traces[0])["Body"] == f"early for {missing}"
    finally:
        control.ask(UnbindQueue(exchange=missing, queue=queue, key=""))
        control.ask(DeleteExchange(name=missing))
        deployed.sqs.delete_queue(QueueUrl=url)


def test_alarms_and_dashboard_are_there(deployed: Deployed) -> None:
    cloudwatch = deployed.client("cloudwatch")
    alarms = cloudwatch.describe_alarms()["MetricAlarms"]
    assert {"OffersAge", "RoutesDown", "PipelineAge", "Throttles"} <= {
        alarm["AlarmName"].split("-")[1].partition("Alarm")[0]
        for alarm in alarms
        if alarm["AlarmName"].startswith("SluiceOperations-")
    }
    name = read_stack_output(deployed.connection, "SluiceOperations", "DashboardName")
    assert json.loads(cloudwatch.get_dashboard(DashboardName=name)["DashboardBody"])["widgets"]
