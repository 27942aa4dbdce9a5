"""Handlers: an event in, a response, metrics and messages out."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from functions.broker import handler as broker
from functions.proxy import handler as proxy
from functions.sweeper import handler as sweeper
from sluice.aws.dead_letters import PACKED, REASON, SOURCE
from sluice.aws.rendezvous.stores import DynamoOfferStore
from sluice.errors import BadSetting
from sluice.rendezvous.ports import OfferRecord
from sluice.rendezvous.protocol.messages import OfferMethod
from tests.functions.conftest import CONTEXT, Surroundings

ROOT = Path(__file__).parents[2]
OFFER = "1.0\n" + json.dumps({"offer": json.dumps({"type": "offer", "sdp": "v=0"})})


@pytest.fixture(autouse=True)
def fresh_environments() -> None:
    for module in (broker, proxy, sweeper):
        module.parts.cache_clear()


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


def test_an_offer_without_proxies_is_denied_and_counted(
    surroundings: Surroundings, capsys: pytest.CaptureFixture[str]
) -> None:
    surroundings.send(surroundings.offers_url, OFFER, {"ClientID": "c1"})
    assert call(broker.handler, surroundings.event(surroundings.offers_url)) == {"batchItemFailures": []}
    url = surroundings.sqs.get_queue_url(QueueName="snowflake-client-c1")["QueueUrl"]
    assert [message["Body"] for message in surroundings.messages(url)] == [
        '{"error":"no snowflake proxies currently available"}'
    ]
    assert metrics(capsys) == {"OffersDenied": 1.0}


def test_a_message_without_a_client_id_is_consumed_and_makes_nothing(
    surroundings: Surroundings, capsys: pytest.CaptureFixture[str]
) -> None:
    surroundings.send(surroundings.offers_url, "spam")
    assert call(broker.handler, surroundings.event(surroundings.offers_url)) == {"batchItemFailures": []}
    assert len(surroundings.sqs.list_queues()["QueueUrls"]) == 3
    assert metrics(capsys) == {"OffersAnonymous": 1.0}


def test_an_offer_that_fails_is_a_dead_letter_with_the_reason_and_the_others_go_on(
    surroundings: Surroundings,
) -> None:
    surroundings.send(surroundings.offers_url, OFFER, {"ClientID": "good"})
    surroundings.send(surroundings.offers_url, OFFER, {"ClientID": "bad"})
    # SQS refuses to make a queue that exists with other attributes.
    surroundings.sqs.create_queue(QueueName="snowflake-client-bad", Attributes={"MessageRetentionPeriod": "60"})
    assert call(broker.handler, surroundings.event(surroundings.offers_url)) == {"batchItemFailures": []}
    letter = surroundings.messages(surroundings.dead_letters_url)[0]
    attributes = {name: value["StringValue"] for name, value in letter["MessageAttributes"].items()}
    assert letter["Body"] == OFFER
    assert attributes["ClientID"] == "bad"
    assert attributes[REASON].startswith("CallFailed: CreateQueue: ")
    assert attributes[SOURCE].endswith(":offers")
    assert surroundings.sqs.get_queue_url(QueueName="snowflake-client-good")


def test_a_malformed_tick_is_a_dead_letter_at_once(surroundings: Surroundings) -> None:
    surroundings.send(surroundings.timeouts_url, "{}")
    assert call(broker.handler, surroundings.event(surroundings.timeouts_url)) == {"batchItemFailures": []}
    letter = surroundings.messages(surroundings.dead_letters_url)[0]
    assert letter["MessageAttributes"][REASON]["StringValue"] == "Malformed: no from"


def test_only_the_failed_record_is_reported_and_a_last_failure_is_a_dead_letter(surroundings: Surroundings) -> None:
    surroundings.send(surroundings.timeouts_url, '{"from": 0}')
    surroundings.send(surroundings.timeouts_url, "{}")
    event = surroundings.event(surroundings.timeouts_url)
    surroundings.dynamodb.delete_table(TableName="t")
    good = next(record["messageId"] for record in event["Records"] if record["body"] != "{}")
    assert call(broker.handler, event) == {"batchItemFailures": [{"itemIdentifier": good}]}
    for record in event["Records"]:
        record["attributes"]["ApproximateReceiveCount"] = "3"
    assert call(broker.handler, event) == {"batchItemFailures": []}
    reasons = {
        message["MessageAttributes"][REASON]["StringValue"].split(":")[0]
        for message in surroundings.messages(surroundings.dead_letters_url)
    }
    assert reasons == {"Malformed", "CallFailed"}


def test_a_dead_letter_with_many_attributes_keeps_them_all(surroundings: Surroundings) -> None:
    surroundings.send(surroundings.timeouts_url, "{}", {f"a{number}": "v" for number in range(10)})
    call(broker.handler, surroundings.event(surroundings.timeouts_url))
    attributes = surroundings.messages(surroundings.dead_letters_url)[0]["MessageAttributes"]
    assert attributes.keys() == {PACKED, REASON, SOURCE}
    assert json.loads(attributes[PACKED]["StringValue"])["a9"]["stringValue"] == "v"


def test_a_tick_times_out_what_is_due(surroundings: Surroundings, capsys: pytest.CaptureFixture[str]) -> None:
    surroundings.send(surroundings.timeouts_url, '{"from": 0}')
    assert call(broker.handler, surroundings.event(surroundings.timeouts_url)) == {"batchItemFailures": []}
    assert metrics(capsys) == {"OffersTimedOut": 0.0}


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
    assert call(sweeper.handler, {}) == {"answer_queues": 1, "mailboxes": 0, "failed": 0}
    assert metrics(capsys) == {"AnswerQueuesSwept": 1.0, "MailboxesSwept": 0.0, "SweepsFailed": 0.0}


def test_a_missing_setting_is_named_at_the_first_call(
    surroundings: Surroundings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("BRIDGES")
    surroundings.send(surroundings.offers_url, OFFER, {"ClientID": "c1"})
    with pytest.raises(BadSetting, match="environment variable BRIDGES: is not set"):
        call(broker.handler, surroundings.event(surroundings.offers_url))


@pytest.mark.parametrize("name", ["broker", "proxy", "sweeper"])
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
