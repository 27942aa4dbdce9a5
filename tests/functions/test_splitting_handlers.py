"""The splitter and control functions as Lambda calls them, on moto: what they report, what becomes a dead letter."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from msgspec.structs import replace

from functions.control import handler as control
from functions.splitter import handler as splitter
from sluice.aws.clients import sqs_client
from sluice.aws.dead_letters import DeadLetters
from sluice.aws.records import Batch, Reporter
from sluice.codec import encode
from sluice.errors import HeldBack, NotDelivered
from sluice.operations import Operation, R, parse_result
from sluice.splitting.filters.values import Filter, Mode, QueueFilter
from sluice.splitting.operations import (
    EndedSession,
    FindSession,
    KeepSession,
    QueueView,
    SessionQueueView,
    SessionStatus,
    SessionView,
    ShowSplitting,
    StartSession,
    StopSession,
    SweepQueues,
    TickSessions,
)
from sluice.splitting.routing.routed import EVENT
from sluice.splitting.splitter import KNOWN_WITHIN_MS
from tests.functions.conftest import CONTEXT, Surroundings

ANYTHING: dict[str, Any] = {"q": {"filter": {}}}


@pytest.fixture
def splitting(surroundings: Surroundings, monkeypatch: pytest.MonkeyPatch) -> Iterator[Surroundings]:
    """The offers queue stands in as the source, the time-outs queue as the control queue."""
    surroundings.sqs.create_queue(QueueName="main")
    queues = [{"queue_id": "q", "source": "offers", "main": "main"}]
    monkeypatch.setenv("CONTROL_QUEUE_URL", surroundings.timeouts_url)
    monkeypatch.setenv("SPLIT_QUEUES", json.dumps(queues))
    monkeypatch.setenv("COUNTS_SETTLE_S", "60")
    for function in (splitter, control):
        function.dependencies.cache_clear()
    yield surroundings
    for function in (splitter, control):
        function.dependencies.cache_clear()


def url_of(surroundings: Surroundings, name: str) -> str:
    return surroundings.offers_url.rsplit("/", 1)[0] + "/" + name


def test_a_batch_is_split_between_a_session_and_main(splitting: Surroundings) -> None:
    session = start(splitting, {"attributes": [["client", "^a$"]]})
    splitting.send(splitting.offers_url, "mine", {"client": "a"})
    splitting.send(splitting.offers_url, "theirs", {"client": "b"})
    response = splitter.handler(splitting.event(splitting.offers_url), CONTEXT)
    assert response == {"batchItemFailures": []}
    assert [message["Body"] for message in splitting.messages(session["queues"][0]["url"])] == ["mine"]
    assert [message["Body"] for message in splitting.messages(url_of(splitting, "main"))] == ["theirs"]
    status = control.handler({"op": "show"}, CONTEXT)["result"]
    assert [each["messages"] for each in status["sessions"]] == [1]


def test_what_went_to_a_session_is_logged_by_its_id_and_what_went_to_nobody_is_not(
    splitting: Surroundings, caplog: pytest.LogCaptureFixture
) -> None:
    splitting.send(splitting.offers_url, "nobody's")
    splitter.handler(splitting.event(splitting.offers_url), CONTEXT)
    session = start(splitting, {"attributes": [["client", "^a$"]]})
    for body, client in (("mine", "a"), ("theirs", "b")):
        splitting.send(splitting.offers_url, body, {"client": client})
    splitter.dependencies.cache_clear()  # another environment, which has seen the session
    event = splitting.event(splitting.offers_url)
    splitter.handler(event, CONTEXT)
    [mine] = [record["messageId"] for record in event["Records"] if record["body"] == "mine"]
    [record] = [record for record in caplog.records if record.message == EVENT]
    session_id = session["session_id"]
    told = {"session": session_id, "key": session_id, "mode": "steal", "messages": (mine,)}
    assert (vars(record)["queue"], vars(record)["routed"]) == ("q", [told])


def test_what_cant_be_delivered_is_reported_and_at_last_a_dead_letter_with_the_reason(splitting: Surroundings) -> None:
    splitting.sqs.delete_queue(QueueUrl=url_of(splitting, "main"))
    splitting.send(splitting.offers_url, "lost?")
    event = splitting.event(splitting.offers_url)
    response = splitter.handler(event, CONTEXT)
    assert [failure["itemIdentifier"] for failure in response["batchItemFailures"]] == [
        event["Records"][0]["messageId"]
    ]
    event["Records"][0]["attributes"]["ApproximateReceiveCount"] = str(splitter.MAX_RECEIVES)
    assert splitter.handler(event, CONTEXT) == {"batchItemFailures": []}
    [letter] = splitting.messages(splitting.dead_letters_url)
    assert letter["Body"] == "lost?"
    assert "no such queue: main" in letter["MessageAttributes"]["sluice-reason"]["StringValue"]


def test_an_endless_program_cancels_its_session_with_the_reason_and_traffic_goes_on(splitting: Surroundings) -> None:
    bad = start(splitting, {"jq": "def f: f; f"})
    good = start(splitting, {"attributes": [["client", "^a$"]]})
    splitting.send(splitting.offers_url, "mine", {"client": "a"})
    splitting.send(splitting.offers_url, "theirs", {"client": "b"})
    assert splitter.handler(splitting.event(splitting.offers_url), CONTEXT) == {"batchItemFailures": []}
    assert [message["Body"] for message in splitting.messages(good["queues"][0]["url"])] == ["mine"]
    assert [message["Body"] for message in splitting.messages(url_of(splitting, "main"))] == ["theirs"]
    asked = splitting.messages(splitting.timeouts_url)  # a delayed tick isn't among them yet
    cancel = {"op": "stop", "session_id": bad["session_id"], "reason": "FilterTimedOut"}
    assert cancel in [json.loads(message["Body"]) for message in asked]
    control.handler(cancel, CONTEXT)
    ended = control.handler({"op": "find", "session_id": bad["session_id"]}, CONTEXT)["result"]
    assert (ended["status"] in {"Closing", "Ended", "StartError"}, ended["reason"]) == (True, "FilterTimedOut")


def test_a_pattern_without_end_cancels_its_session_and_so_does_a_queue_that_is_deleted_for_good(
    splitting: Surroundings, monkeypatch: pytest.MonkeyPatch
) -> None:
    endless = start(splitting, {"attributes": [["client", "^(a|aa)+$"]]})
    deleted = start(splitting, {"attributes": [["client", "^b$"]]})
    splitting.sqs.delete_queue(QueueUrl=deleted["queues"][0]["url"])
    seconds = iter(range(0, 1_000, 3))
    monkeypatch.setattr(splitter.dependencies().circuit_breaker, "clock_s", lambda: float(next(seconds)) * 0.1)
    for _ in range(20):
        splitting.send(splitting.offers_url, "hard", {"client": "a" * 60 + "!"})
        splitting.send(splitting.offers_url, "lost", {"client": "b"})
        assert splitter.handler(splitting.event(splitting.offers_url), CONTEXT) == {"batchItemFailures": []}
    assert len(splitting.messages(url_of(splitting, "main"))) == 10  # of one receive
    asked = [json.loads(message["Body"]) for message in splitting.messages(splitting.timeouts_url)]
    told = {each["session_id"]: each["reason"] for each in asked if each["op"] == "stop"}
    assert told == {endless["session_id"]: "PatternTimedOut", deleted["session_id"]: "QueueGone"}


def start(splitting: Surroundings, fields: dict[str, Any], queue_id: str = "q") -> dict[str, Any]:
    request = {"op": "start", "filters": {queue_id: {"filter": fields}}, "owner": "me"}
    session: dict[str, Any] = control.handler(request, CONTEXT)["result"]
    return session


def test_of_a_group_only_the_failed_message_becomes_a_dead_letter(
    splitting: Surroundings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was held back behind it, however often, goes out with the next receive."""
    splitting.sqs.create_queue(QueueName="source.fifo", Attributes={"FifoQueue": "true"})
    queues = [{"queue_id": "f", "source": "source.fifo", "main": "no-main.fifo"}]
    monkeypatch.setenv("SPLIT_QUEUES", json.dumps(queues))
    session = start(splitting, {"attributes": [["client", "^a$"]]}, "f")
    source = url_of(splitting, "source.fifo")
    for body, client in (("first", "b"), ("second", "a")):
        splitting.sqs.send_message(
            QueueUrl=source,
            MessageBody=body,
            MessageGroupId="g",
            MessageDeduplicationId=body,
            MessageAttributes={"client": {"DataType": "String", "StringValue": client}},
        )
    event = splitting.event(source, receives=splitter.MAX_RECEIVES)
    for record in event["Records"]:  # for the first time when the session's beginning was known to every splitter
        first_ms = int(record["attributes"]["ApproximateFirstReceiveTimestamp"])
        record["attributes"]["ApproximateFirstReceiveTimestamp"] = str(first_ms + KNOWN_WITHIN_MS)
    [failure] = splitter.handler(event, CONTEXT)["batchItemFailures"]
    assert [record["body"] for record in event["Records"]] == ["first", "second"]
    assert failure["itemIdentifier"] == event["Records"][1]["messageId"]
    assert [letter["Body"] for letter in splitting.messages(splitting.dead_letters_url)] == ["first"]
    assert splitter.handler({"Records": event["Records"][1:]}, CONTEXT) == {"batchItemFailures": []}
    assert [message["Body"] for message in splitting.messages(session["queues"][0]["url"])] == ["second"]


def test_an_ended_sessions_unread_messages_go_back_to_main(splitting: Surroundings) -> None:
    session = start(splitting, {"attributes": [["client", "^a$"]]})
    splitting.send(splitting.offers_url, "unread", {"client": "a"})
    splitter.handler(splitting.event(splitting.offers_url), CONTEXT)
    control.handler({"op": "stop", "session_id": session["session_id"]}, CONTEXT)
    control.handler({"op": "tick"}, CONTEXT)
    [back] = splitting.messages(url_of(splitting, "main"))
    assert (back["Body"], back["MessageAttributes"].keys()) == ("unread", {"client"})


@pytest.mark.parametrize(("error", "dead"), [(HeldBack("waits"), 0), (NotDelivered("fails"), 1)])
def test_who_only_waits_for_another_is_never_a_dead_letter(
    surroundings: Surroundings, error: Exception, dead: int
) -> None:
    surroundings.send(surroundings.offers_url, "body")

    batch = Batch.parse(surroundings.event(surroundings.offers_url, receives=99))
    dead_letters = DeadLetters(sqs_client(), surroundings.dead_letters_url)
    response = Reporter(dead_letters=dead_letters, executor=ThreadPoolExecutor(1)).report(batch, {0: error})
    assert len(response["batchItemFailures"]) == 1 - dead
    assert len(surroundings.messages(surroundings.dead_letters_url)) == dead


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        ({"op": "dance"}, "no such operation"),
        ({}, "no such operation"),
        ({"op": ["start"]}, "no such operation"),
        ({"op": "start"}, "missing required field `filters`"),
        ({"op": "start", "filters": {}, "owner": "me"}, "length >= 1 - at `$.filters`"),
        ({"op": "start", "filters": ANYTHING}, "missing required field `owner`"),
        ({"op": "start", "filters": ANYTHING, "owner": ""}, "$.owner"),
        ({"op": "start", "filters": ANYTHING, "owner": "me", "time_limit_s": 0}, "$.time_limit_s"),
        ({"op": "start", "filters": ANYTHING, "owner": "me", "time_limit_s": True}, "$.time_limit_s"),
        ({"op": "start", "filters": ANYTHING, "owner": "me", "key": 5}, "$.key"),
        ({"op": "start", "filters": ANYTHING, "owner": "me", "key": "a b"}, "key"),
        ({"op": "start", "filters": {"r": {"filter": {}}}, "owner": "me"}, "no such queue: r; there are q"),
        (
            {"op": "start", "filters": {"q": {"filter": {"attributes": [["a", "("]]}}}, "owner": "me"},
            "split_queues.q.message_filter.a",
        ),
        ({"op": "start", "filters": {"q": {"filter": {"jq": "snow"}}}, "owner": "me"}, "split_queues.q.jq_filter"),
        ({"op": "start", "filters": {"q": {"filter": {}, "mode": "share"}}, "owner": "me"}, "share"),
        ({"op": "start", "filters": {"q": {"filter": {"glob": "*"}}}, "owner": "me"}, "unknown field `glob`"),
        ({"op": "stop"}, "missing required field `session_id`"),
        ({"op": "heartbeat", "session_id": "unheard-of"}, "no session unheard-of"),
        ({"op": "stop", "session_id": "unheard-of"}, "no session unheard-of"),
    ],
)
def test_what_the_asker_did_wrong_is_said_and_changes_nothing(
    splitting: Surroundings, request_: dict, error: str
) -> None:
    assert error in control.handler(request_, CONTEXT)["error"]
    assert control.handler({"op": "show"}, CONTEXT)["result"]["sessions"] == []


def asked(operation: Operation[R]) -> R:
    """As the command line asks."""
    return parse_result(operation, json.dumps(control.handler(json.loads(encode(operation)), CONTEXT)))


def test_each_operation_gives_its_own_result(splitting: Surroundings) -> None:
    filters = {"*": QueueFilter(filter=Filter(attributes=(("client", "^a$"),)), mode=Mode.MIRROR)}
    started = asked(StartSession(filters=filters, owner="me", key="mine", time_limit_s=60))
    assert isinstance(started, SessionView)
    assert (started.key, started.owner, started.messages) == ("mine", "me", 0)
    assert started.filters == {"q": filters["*"]}
    [queue] = started.queues
    assert queue.name is not None
    assert queue == SessionQueueView(
        queue_id="q",
        mode=Mode.MIRROR,
        asks_for="client =~ ^a$",
        name=queue.name,
        url=url_of(splitting, queue.name),
        returned=0,
    )
    session_id = started.session_id
    kept = asked(KeepSession(session_id=session_id))
    assert kept == SessionStatus(session_id=session_id, status=started.status, reason="")
    [listed] = asked(ShowSplitting()).sessions
    later = {"status": started.status, "heartbeat_at_ms": started.heartbeat_at_ms}
    assert replace(listed, **later) == started
    assert asked(ShowSplitting()).queues == (
        QueueView(
            queue_id="q",
            source=splitting.offers_url,
            main=url_of(splitting, "main"),
            fifo=False,
            sns=False,
            s3_event=False,
        ),
    )
    assert asked(StopSession(session_id=session_id)).reason == "Stopped"
    assert asked(TickSessions()) is None
    assert asked(SweepQueues()) == ()
    refused = control.handler({"op": "release", "queue_id": "q"}, CONTEXT)
    assert "q isn't being drained: it is" in refused["error"]
    gone = asked(FindSession(session_id="unheard-of"))
    assert gone == EndedSession(session_id="unheard-of", reason="")


def test_consumers_that_are_not_back_are_counted_at_every_sweep_where_there_are_any(
    splitting: Surroundings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked(SweepQueues())
    assert "ConsumersAway" not in capsys.readouterr().out
    target = {"type": "parameter", "name": "/queue"}
    monkeypatch.setenv("SPLIT_QUEUES", json.dumps([{"queue_id": "theirs", "source": "offers"}]))
    monkeypatch.setenv("REPOINTED", json.dumps([{"queue_id": "theirs", "trigger_id": "t", "targets": [target]}]))
    control.dependencies.cache_clear()
    asked(SweepQueues())
    assert '"ConsumersAway":[0.0]' in capsys.readouterr().out.replace(" ", "")


@pytest.mark.parametrize("body", ["no JSON", "[]", "5", '{"op": "dance"}', '{"op": "stop"}'])
def test_a_message_to_control_that_says_nothing_is_a_dead_letter(splitting: Surroundings, body: str) -> None:
    splitting.send(splitting.timeouts_url, body)
    assert control.handler(splitting.event(splitting.timeouts_url), CONTEXT) == {"batchItemFailures": []}
    [letter] = splitting.messages(splitting.dead_letters_url)
    assert letter["MessageAttributes"]["sluice-reason"]["StringValue"].startswith("Malformed")


def test_a_tick_is_armed_while_a_session_lives(splitting: Surroundings) -> None:
    start(splitting, {"attributes": [["client", "^a$"]]})
    counts = splitting.sqs.get_queue_attributes(QueueUrl=splitting.timeouts_url, AttributeNames=["All"])["Attributes"]
    assert int(counts["ApproximateNumberOfMessages"]) + int(counts["ApproximateNumberOfMessagesDelayed"]) == 1
