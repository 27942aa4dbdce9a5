"""Handlers that publish and count rendezvous events: at the end, at one request, and never at the rendezvous' cost."""

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from functions.broker import handler as broker
from functions.counters import handler as counters
from functions.proxy import handler as proxy
from functions.sweeper import handler as sweeper
from sluice.aws.clients import now_ms
from sluice.aws.dead_letters import REASON
from sluice.aws.rendezvous.event_publisher import events_client
from sluice.aws.rendezvous.offers import DynamoOfferStore
from sluice.aws.rendezvous.waiting import DynamoWaitingOffers
from sluice.federation.messages.metadata import ATTRIBUTE
from sluice.rendezvous.counts.events import OfferEvent, PollEvent, event_id, read_event
from sluice.rendezvous.ports import OfferRecord, OpenOffer
from sluice.rendezvous.protocol.messages import OfferMethod
from tests.functions.conftest import Surroundings
from tests.functions.test_handlers import OFFER, ROOT, call, http_event, metrics

AT = 1_700_000_000_000
ADDRESS = "198.51.100.7"
TRACE = "Root=1-67891233-abcdef012345678912345678;Sampled=1"
POLL = json.dumps({"Sid": "s", "Version": "1.3", "Type": "webext", "Clients": 2, "AcceptedRelayPattern": "$"})


@pytest.fixture
def ingress(surroundings: Surroundings, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The site's ingress queue."""
    url = surroundings.sqs.create_queue(QueueName="ingress")["QueueUrl"]
    monkeypatch.setenv("EVENTS", json.dumps({"exchange": "events", "ingress_url": url, "site": "frankfurt"}))
    monkeypatch.setenv("_X_AMZN_TRACE_ID", TRACE)
    fresh_environments()
    yield url
    fresh_environments()


def fresh_environments() -> None:
    for module in (broker, proxy, counters):
        module.parts.cache_clear()
    events_client.cache_clear()


def requests_of(client: Any) -> list[str]:
    """The names of the client's requests from now on."""
    made: list[str] = []
    client.meta.events.register("before-call.*", lambda model, **_: made.append(model.name))
    return made


def poll_event() -> dict[str, Any]:
    event = http_event("POST", "/proxy", POLL)
    event["requestContext"]["http"]["sourceIp"] = ADDRESS
    return event


def test_a_sweeps_denied_offers_are_published_in_one_request(surroundings: Surroundings, ingress: str) -> None:
    sweeper.parts.cache_clear()
    for number in range(4):
        record = OfferRecord(
            client_id=f"c{number}", sent_at_ms=now_ms() - 200_000, method=OfferMethod.SQS, trace=TRACE, token="t"
        )
        DynamoOfferStore(surroundings.dynamodb, "t").record(record)
        waiting = OpenOffer(record=record, offer="o", relay="r", reply_to="q", answers_until_ms=now_ms())
        DynamoWaitingOffers(surroundings.dynamodb, "t").put([waiting])
    made = requests_of(events_client())
    assert call(sweeper.handler, {})["denied"] == 4
    assert made == ["SendMessageBatch"]
    messages = surroundings.messages(ingress)
    assert len(messages) == 4
    for message in messages:
        attributes = {name: value["StringValue"] for name, value in message["MessageAttributes"].items()}
        said = json.loads(attributes.pop(ATTRIBUTE))
        assert (said["exchange"], said["key"]) == ("events", "rendezvous.offer.denied.??")
        assert attributes == {"kind": "offer", "outcome": "denied", "country": "??"}
        found = read_event(message["Body"])
        assert isinstance(found, OfferEvent)
        assert (found.method, found.trace, json.loads(message["Body"])["site"]) == ("sqs", TRACE, "frankfurt")


def test_a_poll_is_published_with_a_hash_and_without_its_address(
    surroundings: Surroundings, ingress: str, capsys: pytest.CaptureFixture[str]
) -> None:
    made = requests_of(events_client())
    for _ in range(2):
        assert call(proxy.handler, poll_event())["statusCode"] == 200
    assert made == ["SendMessageBatch"] * 2
    messages = surroundings.messages(ingress)
    polls = [read_event(message["Body"]) for message in messages]
    assert [poll.proxy_type for poll in polls if isinstance(poll, PollEvent)] == ["webext", "webext"]
    [hashed] = {poll.address for poll in polls if isinstance(poll, PollEvent)}
    assert hashed is not None
    assert len(hashed) == 32
    everything = json.dumps(surroundings.dynamodb.scan(TableName="t")["Items"], default=str) + capsys.readouterr().out
    assert ADDRESS not in everything + "".join(message["Body"] for message in messages)


@pytest.mark.parametrize("failing", ["no queue", "no exchange's name"])
def test_what_cant_be_published_is_counted_and_fails_nothing(
    surroundings: Surroundings,
    ingress: str,
    failing: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if failing == "no queue":
        surroundings.sqs.delete_queue(QueueUrl=ingress)
    else:
        monkeypatch.setenv("EVENTS", json.dumps({"exchange": "x" * 200, "ingress_url": ingress, "site": "frankfurt"}))
    surroundings.send(surroundings.offers_url, OFFER, {"ClientID": "c"})
    assert call(broker.handler, surroundings.event(surroundings.offers_url)) == {"batchItemFailures": []}
    assert surroundings.sqs.get_queue_url(QueueName="snowflake-client-c")
    assert call(proxy.handler, poll_event())["statusCode"] == 200
    assert metrics(capsys) == {"OffersWaiting": 1.0, "PollsDeferred": 1.0, "EventsNotPublished": 1.0}


def test_a_request_that_fails_publishes_what_was_seen(
    surroundings: Surroundings, ingress: str, capsys: pytest.CaptureFixture[str]
) -> None:
    surroundings.dynamodb.delete_table(TableName="t")
    assert call(proxy.handler, poll_event())["statusCode"] == 503
    assert metrics(capsys) == {"RequestsFailed": 1.0}


def test_without_an_exchange_nothing_is_published(surroundings: Surroundings) -> None:
    fresh_environments()
    made = requests_of(events_client())
    assert call(proxy.handler, poll_event())["statusCode"] == 200
    assert made == []
    assert call(proxy.handler, http_event("GET", "/prometheus"))["body"].startswith("# HELP") is False


# Counting


def denied(number: int = 0) -> str:
    id_ = event_id("offer", str(number), at_ms=AT)
    event = OfferEvent(id=id_, at_ms=AT, outcome="denied", country="DE", method="sqs")
    return event.to_json(site="s")


def counted(surroundings: Surroundings, *bodies: str, receives: int = 1) -> Any:
    for body in bodies:
        surroundings.send(surroundings.timeouts_url, body)  # any queue will do
    return call(counters.handler, surroundings.event(surroundings.timeouts_url, receives=receives))


@pytest.fixture
def counting(surroundings: Surroundings) -> Iterator[Surroundings]:
    fresh_environments()
    yield surroundings
    fresh_environments()


def test_events_are_counted_and_served(counting: Surroundings, capsys: pytest.CaptureFixture[str]) -> None:
    assert counted(counting, denied(0), denied(1), denied(1), '{"kind": "x"}') == {"batchItemFailures": []}
    assert metrics(capsys) == {"EventsCounted": 3.0, "EventsNotCounted": 0.0}
    page = call(proxy.handler, http_event("GET", "/prometheus"))
    assert page["headers"]["Content-Type"].startswith("text/plain; version=0.0.4")
    line = 'snowflake_rounded_client_poll_total{nat="unknown",status="denied",cc="DE",rendezvous_method="sqs"} 8'
    assert line in page["body"].splitlines()
    items = {item["pk"]["S"]: item for item in counting.dynamodb.scan(TableName="t")["Items"]}
    assert items["counters#2023-11-14"]["=unknown|denied|DE|sqs"] == {"N": "2"}


def test_what_is_no_event_is_a_dead_letter_and_a_kind_of_the_future_is_passed_over(counting: Surroundings) -> None:
    future = json.loads(denied()) | {"kind": "of the future"}
    assert counted(counting, "no event", json.dumps(future)) == {"batchItemFailures": []}
    [letter] = counting.messages(counting.dead_letters_url)
    assert letter["Body"] == "no event"
    assert letter["MessageAttributes"][REASON]["StringValue"].startswith("Malformed: ")


def test_what_cant_be_counted_comes_again_and_in_the_end_is_a_dead_letter(counting: Surroundings) -> None:
    counting.dynamodb.delete_table(TableName="t")
    counting.send(counting.timeouts_url, denied())
    event = counting.event(counting.timeouts_url)
    [record] = event["Records"]
    assert call(counters.handler, event) == {"batchItemFailures": [{"itemIdentifier": record["messageId"]}]}
    record["attributes"]["ApproximateReceiveCount"] = "10"
    assert call(counters.handler, event) == {"batchItemFailures": []}
    [letter] = counting.messages(counting.dead_letters_url)
    assert "TransactWriteItems" in letter["MessageAttributes"][REASON]["StringValue"]


def test_the_counters_are_imported_without_any_environment() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import functions.counters.handler"],
        check=False,
        cwd=ROOT,
        env={},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_cold_start_imports_nothing_of_publishing_no_database_of_countries_and_no_boto3() -> None:
    code = (
        "import sys, functions.proxy.handler, functions.broker.handler\n"
        "print([name for name in ('sluice.aws.federation.publisher', 'maxminddb', 'boto3') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, env={}, capture_output=True, text=True)
    assert done.stdout == "[]\n"
