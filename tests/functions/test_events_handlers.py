"""Handlers that tell of, count and publish rendezvous events: at one write, and never at the rendezvous' cost."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pytest
from botocore.exceptions import EndpointConnectionError

from functions.broker import handler as broker
from functions.counters import handler as counters
from functions.proxy import handler as proxy
from functions.sweeper import handler as sweeper
from sluice.aws.change_logs import DynamoChangeLog
from sluice.aws.clients import dynamodb_client, now_ms, sqs_client
from sluice.aws.documents import EXCHANGES
from sluice.aws.rendezvous.event_publisher import get_events_client
from sluice.aws.rendezvous.offers import DynamoOfferStore
from sluice.aws.rendezvous.statistics_store import DynamoStatisticsStore
from sluice.aws.rendezvous.waiting import DynamoWaitingOffers
from sluice.errors import CallFailed, QueueGone
from sluice.federation.matching.bindings import Bindings, Destination, encode_page
from sluice.federation.matching.exchanges import STANDARD_EXCHANGES, Exchange, ExchangeType
from sluice.federation.matching.metadata import ATTRIBUTE
from sluice.rendezvous.counts.events import OfferEvent, PollEvent, derive_event_id
from sluice.rendezvous.counts.stream import read_events
from sluice.rendezvous.protocol.matching import OfferMethod, OfferRecord, OpenOffer
from tests.functions.conftest import Surroundings
from tests.functions.test_handlers import ROOT, call, http_event, metrics

AT = 1_700_000_000_000
ADDRESS = "198.51.100.7"
TRACE = "Root=1-67891233-abcdef012345678912345678;Sampled=1"
POLL = json.dumps({"Sid": "s", "Version": "1.3", "Type": "webext", "Clients": 2, "AcceptedRelayPattern": "$"})


@pytest.fixture
def telling(surroundings: Surroundings, monkeypatch: pytest.MonkeyPatch) -> Iterator[Surroundings]:
    """Where functions tell of events."""
    monkeypatch.setenv("EVENTS", json.dumps({"site": "frankfurt"}))
    monkeypatch.setenv("_X_AMZN_TRACE_ID", TRACE)
    fresh_environments()
    yield surroundings
    fresh_environments()


def fresh_environments() -> None:
    for module in (broker, proxy, counters):
        module.dependencies.cache_clear()
    get_events_client.cache_clear()


def requests_of(client: Any) -> list[str]:
    """The names of the client's requests from now on."""
    made: list[str] = []
    client.meta.events.register("before-call.*", lambda model, **_: made.append(model.name))
    return made


def poll_event() -> dict[str, Any]:
    event = http_event("POST", "/proxy", POLL)
    event["requestContext"]["http"]["sourceIp"] = ADDRESS
    return event


def told(surroundings: Surroundings) -> list[dict[str, Any]]:
    """The items that tell of events, as the stream's records of them."""
    items = [item for item in surroundings.dynamodb.scan(TableName="t")["Items"] if item["pk"]["S"] == "told"]
    return [inserted(item, number) for number, item in enumerate(sorted(items, key=lambda item: item["sk"]["S"]))]


def inserted(item: dict[str, Any], number: int) -> dict[str, Any]:
    """As Lambda gives the insertion of an item."""
    return {
        "eventName": "INSERT",
        "eventSource": "aws:dynamodb",
        "eventSourceARN": "arn:aws:dynamodb:eu-central-1:123456789012:table/t/stream/2026-01-01T00:00:00.000",
        "dynamodb": {
            "Keys": {name: item[name] for name in ("pk", "sk")},
            "NewImage": item,
            "SequenceNumber": f"{300_000_000_000_000_000_000 + number}",
        },
    }


@pytest.mark.parametrize(("waits", "outcome"), [(True, "denied"), (False, "timeout")])
def test_a_sweep_gives_an_offer_its_end_by_a_write_that_tells_of_it(
    telling: Surroundings, *, waits: bool, outcome: str
) -> None:
    sweeper.dependencies.cache_clear()
    record = OfferRecord(client_id="c", sent_at_ms=now_ms() - 200_000, method=OfferMethod.SQS, trace=TRACE, token="t")
    offers = DynamoOfferStore(telling.dynamodb, "t")
    offers.record(record)
    if waits:
        waiting = OpenOffer(record=record, offer="o", relay="r", reply_to="q", answers_until_ms=now_ms())
        DynamoWaitingOffers(telling.dynamodb, "t").add([waiting])
    images: list[dict[str, Any]] = []
    calls = sweeper.dependencies().site.offers.client.meta.events
    calls.register("after-call.dynamodb.UpdateItem", lambda parsed, **_: images.append(parsed))
    swept = call(sweeper.handler, {})["result"]
    assert (swept["denied"], swept["timed_out"]) == (int(waits), int(not waits))
    [image] = [each["Attributes"] for each in images]
    [found] = read_events(inserted(image, 1))
    assert isinstance(found, OfferEvent)
    assert (found.outcome, found.method, found.trace, found.country) == (outcome, "sqs", TRACE, "??")


def test_a_poll_is_told_of_with_a_hash_and_without_its_address(
    telling: Surroundings, capsys: pytest.CaptureFixture[str]
) -> None:
    made = requests_of(get_events_client())
    for _ in range(2):
        assert call(proxy.handler, poll_event())["statusCode"] == 200
    assert made == ["PutItem"]  # of the first; the second waits for others
    [record] = told(telling)
    [poll] = read_events(record)
    assert isinstance(poll, PollEvent)
    assert poll.proxy_type == "webext"
    assert poll.address is not None
    assert len(poll.address) == 32
    everything = json.dumps(telling.dynamodb.scan(TableName="t")["Items"], default=str) + capsys.readouterr().out
    assert ADDRESS not in everything


def test_an_environment_that_is_never_called_again_publishes_what_it_holds_back(
    telling: Surroundings, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second poll is held back, to be published with later ones; the shutdown comes before them."""
    call(proxy.handler, poll_event())
    assert metrics(capsys)["PollsDeferred"] == 1
    call(proxy.handler, poll_event())
    call(proxy.handler, poll_event())
    assert metrics(capsys) == {}
    proxy.publish_buffered()
    assert metrics(capsys)["PollsDeferred"] == 2
    polls = [poll for record in told(telling) for poll in read_events(record)]
    assert [poll.polls for poll in polls if isinstance(poll, PollEvent)] == [1, 2]
    proxy.publish_buffered()
    assert len(told(telling)) == 2
    assert metrics(capsys) == {}


def test_an_environment_without_a_request_has_nothing_to_publish() -> None:
    fresh_environments()
    proxy.publish_buffered()
    broker.publish_buffered()
    assert proxy.dependencies.cache_info().currsize == broker.dependencies.cache_info().currsize == 0


def test_what_cant_be_told_of_is_counted_and_fails_nothing(
    telling: Surroundings, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(**_: Any) -> None:
        raise EndpointConnectionError(endpoint_url="dynamodb")

    get_events_client().meta.events.register("before-call.dynamodb.PutItem", fail)
    assert call(proxy.handler, poll_event())["statusCode"] == 200
    assert metrics(capsys) == {"PollsDeferred": 1.0, "EventsNotPublished": 1.0}


def test_a_request_that_fails_tells_of_what_was_seen(telling: Surroundings, capsys: pytest.CaptureFixture[str]) -> None:
    telling.dynamodb.delete_table(TableName="t")
    assert call(proxy.handler, poll_event())["statusCode"] == 503
    assert metrics(capsys) == {"RequestsFailed": 1.0}


def test_without_an_exchange_nothing_is_told_of_and_no_key_is_made(surroundings: Surroundings) -> None:
    fresh_environments()
    made = requests_of(get_events_client())
    assert call(proxy.handler, poll_event())["statusCode"] == 200
    assert made == []
    page = call(proxy.handler, http_event("GET", "/prometheus"))["body"]
    assert re.findall("# TYPE ([a-z_]+)", page) == ["snowflake_available_proxies"]


# Counting


def denied(number: int = 0) -> str:
    id_ = derive_event_id("offer", str(number), at_ms=AT)
    event = OfferEvent(id=id_, at_ms=AT, outcome="denied", country="DE", method="sqs")
    return event.to_json(site="s")


def telling_of(*bodies: str, number: int = 0) -> dict[str, Any]:
    """A record of an item that tells of these events."""
    item = {"pk": {"S": "told"}, "sk": {"S": f"{number:026}"}, "events": {"S": f"[{','.join(bodies)}]"}}
    return inserted(item, number)


@pytest.fixture
def counting(surroundings: Surroundings, monkeypatch: pytest.MonkeyPatch) -> Iterator[Surroundings]:
    """Where events are counted, and published if somebody is bound."""
    made = surroundings.sqs.create_queue(QueueName="ingress")["QueueUrl"]
    for name, value in {
        "EXCHANGE": "events",
        "INGRESS_URL": made,
        "SITE": "frankfurt",
        "FEDERATION_TABLE": "t",
    }.items():
        monkeypatch.setenv(name, value)
    fresh_environments()
    yield surroundings
    fresh_environments()


def bind(surroundings: Surroundings) -> None:
    """Bind a queue to the exchange of events."""
    bindings = Bindings(
        exchanges=(*STANDARD_EXCHANGES, Exchange(name="events", type=ExchangeType.TOPIC)),
        queues=(Destination(queue="q", url="https://sqs.test/000000000000/q"),),
        bound={"events": {"q": {"rendezvous.#": {}}}},
    )
    log = DynamoChangeLog(client=surroundings.dynamodb, table="t", name=EXCHANGES, new_token=lambda: "token")
    assert log.save(encode_page(bindings), after=0, version=1)


def ingress(surroundings: Surroundings) -> list[dict[str, Any]]:
    return surroundings.messages(surroundings.sqs.get_queue_url(QueueName="ingress")["QueueUrl"])


def test_events_are_counted_and_served_without_a_request_to_sqs(
    counting: Surroundings, capsys: pytest.CaptureFixture[str]
) -> None:
    made = requests_of(sqs_client())
    batch = {"Records": [telling_of(denied(0), denied(1)), telling_of(denied(2), number=1)]}
    call(counters.handler, batch)
    assert made == []
    assert metrics(capsys) == {"EventsCounted": 3.0, "EventsPublished": 0.0}
    page = call(proxy.handler, http_event("GET", "/prometheus"))
    assert page["headers"]["Content-Type"].startswith("text/plain; version=0.0.4")
    line = 'snowflake_rounded_client_poll_total{nat="unknown",status="denied",cc="DE",rendezvous_method="sqs"} 8'
    assert line in page["body"].splitlines()
    items = {item["pk"]["S"]: item for item in counting.dynamodb.scan(TableName="t")["Items"]}
    assert items["counters#2023-11-14"]["=c|unknown|denied|DE|sqs"] == {"N": "3"}


def test_where_a_queue_is_bound_events_are_published(counting: Surroundings) -> None:
    bind(counting)
    call(counters.handler, {"Records": [telling_of(denied(0), denied(1))]})
    messages = ingress(counting)
    assert len(messages) == 2
    for message in messages:
        attributes = {name: value["StringValue"] for name, value in message["MessageAttributes"].items()}
        said = json.loads(attributes.pop(ATTRIBUTE))
        assert (said["exchange"], said["key"]) == ("events", "rendezvous.offer.denied.DE")
        assert attributes == {"kind": "offer", "outcome": "denied", "country": "DE"}
        assert json.loads(message["Body"])["site"] == "frankfurt"


def test_what_cant_be_published_comes_again_and_isnt_counted_yet(counting: Surroundings) -> None:
    bind(counting)
    counting.sqs.delete_queue(QueueUrl=counting.sqs.get_queue_url(QueueName="ingress")["QueueUrl"])
    for _ in range(2):
        with pytest.raises(QueueGone):
            call(counters.handler, {"Records": [telling_of(), telling_of(denied(0), number=1)]})
    assert DynamoStatisticsStore(counting.dynamodb, "t", lambda: AT).read_totals().total() == 0


def test_without_events_no_binding_is_read(counting: Surroundings) -> None:
    made = requests_of(dynamodb_client())
    call(counters.handler, {"Records": [telling_of()]})
    assert made == []


def test_where_it_isnt_known_who_is_bound_nothing_is_counted_before_it_is(
    counting: Surroundings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDERATION_TABLE", "no such table")
    with pytest.raises(CallFailed):
        call(counters.handler, {"Records": [telling_of(denied())]})
    assert DynamoStatisticsStore(counting.dynamodb, "t", lambda: AT).read_totals().total() == 0


def test_what_is_no_event_is_logged_and_a_kind_of_the_future_is_passed_over(counting: Surroundings) -> None:
    future = json.loads(denied()) | {"kind": "of the future"}
    with patch.object(counters.logger, "warning") as warned:
        call(counters.handler, {"Records": [telling_of("5"), telling_of(json.dumps(future), denied(), number=1)]})
    assert [each.args for each in warned.call_args_list] == [("EventsNotRead",)]
    assert DynamoStatisticsStore(counting.dynamodb, "t", lambda: AT).read_totals().total() == 1


def test_what_cant_be_counted_comes_again(counting: Surroundings, capsys: pytest.CaptureFixture[str]) -> None:
    statistics = counters.dependencies()[1]
    statistics.table = "no such table"
    with pytest.raises(CallFailed):
        call(counters.handler, {"Records": [telling_of(denied())]})
    assert metrics(capsys) == {"EventsNotCounted": 1.0}


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
        "import sys, functions.proxy.handler, functions.client.handler, functions.broker.handler\n"
        "print([name for name in ('sluice.aws.federation.publisher', 'maxminddb', 'boto3') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, env={}, capture_output=True, text=True)
    assert done.stdout == "[]\n"
