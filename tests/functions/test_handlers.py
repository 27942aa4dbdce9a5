"""Handlers: an event in, a response, metrics and messages out."""

import itertools
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from botocore.awsrequest import AWSResponse
from botocore.compat import HTTPHeaders
from moto.core.botocore_stubber import MockRawResponse

from functions.broker import handler as broker
from functions.client import handler as client
from functions.proxy import handler as proxy
from functions.sweeper import handler as sweeper
from sluice.aws.clients import now_ms, quick_sqs_client
from sluice.aws.dead_letters import REASON, SOURCE
from sluice.aws.rendezvous.offers import DynamoOfferStore
from sluice.codec import encode
from sluice.errors import BadSetting
from sluice.operations import QueueDepth, parse_result
from sluice.rendezvous.operations import ShowRendezvous, SweepAnswers
from sluice.rendezvous.protocol.ends import OPEN, End
from sluice.rendezvous.protocol.matching import PATIENCE_MS, OfferMethod, OfferRecord, Pool
from tests.functions.conftest import CONTEXT, Surroundings

ROOT = Path(__file__).parents[2]
OFFER = "1.0\n" + json.dumps({"offer": json.dumps({"type": "offer", "sdp": "v=0"})})


@pytest.fixture(autouse=True)
def fresh_environments() -> None:
    for module in (broker, client, proxy, sweeper):
        module.dependencies.cache_clear()


def call(handler: Any, event: dict[str, Any]) -> Any:
    return handler(event, CONTEXT)


def metrics(capsys: pytest.CaptureFixture[str]) -> dict[str, float]:
    """What was sent to CloudWatch as embedded metrics."""
    found: dict[str, float] = {}
    for line in capsys.readouterr().out.splitlines():
        if line.startswith("{") and "_aws" in line:
            emf = json.loads(line)
            directive = emf["_aws"]["CloudWatchMetrics"][0]
            assert directive["Namespace"] == "Sluice"
            found |= {metric["Name"]: emf[metric["Name"]][0] for metric in directive["Metrics"]}
    return found


def test_an_offer_without_proxies_waits_and_is_denied_when_its_message_is_redelivered(
    surroundings: Surroundings, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its message stays in the offers queue until no proxy can take the offer any more; then its client is told."""
    surroundings.send(surroundings.offers_url, OFFER, {"ClientID": "c1"})
    event = surroundings.event(surroundings.offers_url)
    [record] = event["Records"]
    assert call(broker.handler, event) == {"batchItemFailures": [{"itemIdentifier": record["messageId"]}]}
    url = surroundings.sqs.get_queue_url(QueueName="snowflake-client-c1")["QueueUrl"]
    assert metrics(capsys) == {"OffersWaiting": 1.0}
    monkeypatch.setattr("sluice.aws.rendezvous.dependencies.now_ms", lambda: now_ms() + PATIENCE_MS)
    broker.dependencies.cache_clear()
    record["attributes"]["ApproximateReceiveCount"] = "2"
    assert call(broker.handler, event) == {"batchItemFailures": []}
    [reply] = surroundings.messages(url)
    assert json.loads(reply["Body"]) == {"error": End.OFFER_DENIED.reply}
    assert metrics(capsys) == {"OffersDenied": 1.0}


def test_a_reply_that_sqs_refuses_is_sent_again_with_the_delay_that_is_left(
    surroundings: Surroundings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Were botocore to send it again as it was, two refusals would have the client wait for two seconds longer."""
    later_ms, delays_s = 0, list[int | None]()
    monkeypatch.setattr("sluice.aws.rendezvous.dependencies.now_ms", lambda: now_ms() + later_ms)

    def refuse_twice(request: Any, **_: Any) -> AWSResponse | None:
        nonlocal later_ms
        delays_s.append(json.loads(request.body).get("DelaySeconds"))
        if len(delays_s) > 2:
            return None
        later_ms += 1_000
        error = json.dumps({"__type": "com.amazonaws.sqs#RequestThrottled", "message": "throttled"})
        return AWSResponse(request.url, 400, HTTPHeaders(), MockRawResponse(error))

    events = quick_sqs_client().meta.events
    # The stubs have no hook that answers.
    events.register_first("before-send.sqs.SendMessage", refuse_twice)  # type: ignore[arg-type]
    surroundings.send(surroundings.offers_url, OFFER, {"ClientID": "c1"})
    event = surroundings.event(surroundings.offers_url)
    call(broker.handler, event)
    for item in surroundings.dynamodb.scan(TableName="t")["Items"]:
        if item["pk"]["S"].startswith("waiting#"):  # a poll takes the offer
            surroundings.dynamodb.delete_item(TableName="t", Key={"pk": item["pk"], "sk": item["sk"]})
    later_ms = PATIENCE_MS + 500
    event["Records"][0]["attributes"]["ApproximateReceiveCount"] = "2"
    assert call(broker.handler, event) == {"batchItemFailures": []}
    first, second, third = (delay_s or 0 for delay_s in delays_s)
    assert 20 >= first > second > third >= 14


def test_a_message_without_a_client_id_is_consumed_and_makes_nothing(
    surroundings: Surroundings, capsys: pytest.CaptureFixture[str]
) -> None:
    surroundings.send(surroundings.offers_url, "spam")
    assert call(broker.handler, surroundings.event(surroundings.offers_url)) == {"batchItemFailures": []}
    assert len(surroundings.sqs.list_queues()["QueueUrls"]) == 3
    assert metrics(capsys) == {"OffersAnonymous": 1.0}


def test_an_offer_that_fails_comes_again_and_is_a_dead_letter_in_the_end_and_the_others_go_on(
    surroundings: Surroundings, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Time goes on with each look at the clock: however slow the machine is, no offer is late.
    begun_ms, looks = time.time_ns() // 1_000_000, itertools.count()
    monkeypatch.setattr("sluice.aws.rendezvous.dependencies.now_ms", lambda: begun_ms + 50 * next(looks))
    surroundings.send(surroundings.offers_url, OFFER, {"ClientID": "good"})
    surroundings.send(surroundings.offers_url, OFFER, {"ClientID": "bad"})
    # SQS refuses to make a queue that exists with other attributes.
    surroundings.sqs.create_queue(QueueName="snowflake-client-bad", Attributes={"MessageRetentionPeriod": "60"})
    event = surroundings.event(surroundings.offers_url)
    [bad] = [record for record in event["Records"] if record["messageAttributes"]["ClientID"]["stringValue"] == "bad"]
    sent_at_ms = int(bad["attributes"]["SentTimestamp"])
    bad["attributes"]["SentTimestamp"] = str(sent_at_ms - 4_000)  # its client waits for no more than a second
    assert {"itemIdentifier": bad["messageId"]} in call(broker.handler, event)["batchItemFailures"]
    assert surroundings.sqs.get_queue_url(QueueName="snowflake-client-good")
    bad["attributes"] |= {"ApproximateReceiveCount": "4", "SentTimestamp": str(time.time_ns() // 1_000_000 - 4_500)}
    assert call(broker.handler, event | {"Records": [bad]}) == {"batchItemFailures": []}
    letter = surroundings.messages(surroundings.dead_letters_url)[0]
    attributes = {name: value["StringValue"] for name, value in letter["MessageAttributes"].items()}
    assert letter["Body"] == f"an offer of {len(OFFER)} characters"
    assert attributes["ClientID"] == "bad"
    assert attributes[REASON].startswith("CallFailed: CreateQueue: ")
    assert attributes[SOURCE].endswith(":offers")


def http_event(method: str, path: str, body: str = "") -> dict[str, Any]:
    return {
        "rawPath": path,
        "headers": {},
        "requestContext": {"http": {"method": method}},
        "body": body,
        "isBase64Encoded": False,
    }


def test_a_poll_is_answered_over_http_and_counted(
    surroundings: Surroundings, capsys: pytest.CaptureFixture[str]
) -> None:
    poll = json.dumps({"Sid": "s", "Version": "1.3", "AcceptedRelayPattern": "$"})
    response = call(proxy.handler, http_event("POST", "/proxy", poll))
    assert (response["statusCode"], json.loads(response["body"])["Status"]) == (200, "no match")
    assert metrics(capsys) == {"PollsDeferred": 1.0}


def test_an_offer_over_http_is_refused_at_its_own_url_and_counted(
    surroundings: Surroundings, capsys: pytest.CaptureFixture[str]
) -> None:
    response = call(client.handler, http_event("POST", "/client", "1.0\n{}"))
    assert (response["statusCode"], json.loads(response["body"])) == (200, {"error": "no supplied offer"})
    assert metrics(capsys) == {"OffersRefused": 1.0}


def test_a_request_that_fails_is_a_503_and_its_cause_is_logged(
    surroundings: Surroundings, capsys: pytest.CaptureFixture[str]
) -> None:
    surroundings.dynamodb.delete_table(TableName="t")
    poll = json.dumps({"Sid": "s", "Version": "1.3", "AcceptedRelayPattern": "$"})
    response = call(proxy.handler, http_event("POST", "/proxy", poll))
    assert (response["statusCode"], response["body"]) == (503, "")
    assert metrics(capsys) == {"RequestsFailed": 1.0}


def test_the_sweeper_says_how_much_it_swept(surroundings: Surroundings, capsys: pytest.CaptureFixture[str]) -> None:
    offers = DynamoOfferStore(surroundings.dynamodb, "t")
    sent_at_ms = time.time_ns() // 1_000_000 - 200_000
    offers.record(OfferRecord(client_id="old", sent_at_ms=sent_at_ms, method=OfferMethod.SQS))
    surroundings.sqs.create_queue(QueueName="snowflake-client-old")
    swept = {"answer_queues": 1, "mailboxes": 0, "failed": 0, "denied": 0, "timed_out": 1}
    assert call(sweeper.handler, {}) == {"result": swept}
    assert metrics(capsys) == {"AnswerQueuesSwept": 1.0, "OffersTimedOut": 1.0}


def test_an_operator_may_have_swept_earlier_but_not_what_a_client_may_still_hear_of(surroundings: Surroundings) -> None:
    offers = DynamoOfferStore(surroundings.dynamodb, "t")
    sent_at_ms = time.time_ns() // 1_000_000 - 40_000
    offers.record(OfferRecord(client_id="early", sent_at_ms=sent_at_ms, method=OfferMethod.SQS))
    surroundings.sqs.create_queue(QueueName="snowflake-client-early")
    assert not any(call(sweeper.handler, {})["result"].values())
    said = call(sweeper.handler, json.loads(encode(SweepAnswers(older_than_s=60))))
    assert not any(said["result"].values())
    said = call(sweeper.handler, json.loads(encode(SweepAnswers(older_than_s=35))))
    assert said["result"] == {"answer_queues": 1, "mailboxes": 0, "failed": 0, "denied": 0, "timed_out": 1}
    assert "older_than_s" in call(sweeper.handler, {"op": "sweep", "older_than_s": 5})["error"]
    assert "no such operation" in call(sweeper.handler, {"op": "swoop"})["error"]


def test_the_sweeper_says_how_the_rendezvous_stands(surroundings: Surroundings) -> None:
    offers, at_ms = DynamoOfferStore(surroundings.dynamodb, "t"), time.time_ns() // 1_000_000
    for name, age_ms in (("one", 1_000), ("two", 2_000), ("old", 200_000)):
        offers.record(OfferRecord(client_id=name, sent_at_ms=at_ms - age_ms, method=OfferMethod.SQS))
    url = surroundings.sqs.create_queue(QueueName="held")["QueueUrl"]
    surroundings.sqs.send_message(QueueUrl=url, MessageBody="x")
    said = parse_result(
        show := ShowRendezvous(queues=(url,)), json.dumps(call(sweeper.handler, json.loads(encode(show))))
    )
    assert said.waiting == dict.fromkeys(Pool, 0)
    assert said.recent_offers[OPEN] == 2
    assert said.depths == {url: QueueDepth(visible=1, in_flight=0)}


def test_a_sweep_that_finds_nothing_publishes_no_metric(
    surroundings: Surroundings, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not any(call(sweeper.handler, {})["result"].values())
    assert "CloudWatchMetrics" not in capsys.readouterr().out


def test_a_missing_setting_is_named_at_the_first_call(
    surroundings: Surroundings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("BRIDGES")
    surroundings.send(surroundings.offers_url, OFFER, {"ClientID": "c1"})
    with pytest.raises(BadSetting, match="environment variable BRIDGES: is not set"):
        call(broker.handler, surroundings.event(surroundings.offers_url))


@pytest.mark.parametrize("name", ["broker", "client", "proxy", "sweeper"])
def test_a_handler_is_imported_without_any_environment(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"import functions.{name}.handler"],
        check=False,
        cwd=ROOT,
        env={},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
