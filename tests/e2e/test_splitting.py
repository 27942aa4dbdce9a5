"""Splitting as deployed: sessions on queues of the embedded cloud, under enforced IAM, in real time."""

import json
import re
import time
from functools import partial

import boto3
import pytest
from botocore.exceptions import ClientError

from sluice.aws.connections import Connection, fetch_user_id
from sluice.errors import RequestRefused
from sluice.splitting.filters.values import Filter, QueueFilter
from sluice.splitting.operations import StartSession, StopSession, SweepQueues
from sluice.splitting.sessions.state import ALIVE
from tests.deployed import UNKNOWN_KEY, Deployed, settled
from tests.e2e.sessions import Splitting, by_attribute, notification, url_of

SWEPT_EVERY_S = 60


@pytest.fixture(scope="module")
def shared(deployed: Deployed) -> Splitting:
    return Splitting(deployed)


@pytest.fixture
def splitting(shared: Splitting) -> Splitting:
    shared.begin()
    return shared


def client_of(body: str) -> dict[str, str]:
    """`a1` is client a's first message."""
    return {"client": body[0]}


def test_each_session_has_its_own_and_the_deployed_consumer_the_rest(splitting: Splitting) -> None:
    filters = [{"standard": by_attribute("client", f"^{name}$")} for name in "ab"]
    with splitting.sessions(*filters) as (first, second):
        splitting.send("standard", ["a1", "b2", "c3", "C4", "B5", "A6"], client_of)
        assert sorted(splitting.bodies(url_of(first, "standard"), 2)) == ["A6", "a1"]
        assert sorted(splitting.bodies(url_of(second, "standard"), 2)) == ["B5", "b2"]
        assert sorted(splitting.bodies(splitting.main("standard"), 2)) == ["C4", "c3"]


def test_fifo_queues_keep_each_receivers_order(splitting: Splitting) -> None:
    filters = [{"ordered": by_attribute("client", f"^{name}$")} for name in "ab"]
    with splitting.sessions(*filters) as (first, second):
        splitting.send("ordered", ["A10", "B20", "C30", "c40", "b50", "a60"], client_of)
        assert splitting.bodies(url_of(first, "ordered"), 2) == ["A10", "a60"]
        assert splitting.bodies(url_of(second, "ordered"), 2) == ["B20", "b50"]
        assert splitting.bodies(splitting.main("ordered"), 2) == ["C30", "c40"]


def test_two_sessions_on_two_queues_have_four_queues_and_leave_none(splitting: Splitting) -> None:
    splitting.until_all_ended()
    filters = {"standard": by_attribute("client", "^a$"), "ordered": by_attribute("client", "^a$")}
    with splitting.sessions(filters, filters):
        assert len(splitting.temporary_queues()) == 4
    splitting.until_all_ended()
    assert splitting.temporary_queues() == []


def test_who_started_first_gets_what_both_want(splitting: Splitting) -> None:
    both = {"standard": by_attribute("client", "a")}
    with splitting.sessions(both, both) as (first, second):
        splitting.send("standard", ["a1", "a2"], client_of)
        assert sorted(splitting.bodies(url_of(first, "standard"), 2)) == ["a1", "a2"]
        assert splitting.receive(url_of(second, "standard")) == []


def test_a_mirroring_session_gets_copies_and_the_consumer_its_messages(splitting: Splitting) -> None:
    with splitting.sessions({"standard": by_attribute("client", "^a$", queue_mode="mirror")}) as (session,):
        splitting.send("standard", ["a1", "b2"], client_of)
        assert splitting.bodies(url_of(session, "standard"), 1) == ["a1"]
        assert sorted(splitting.bodies(splitting.main("standard"), 2)) == ["a1", "b2"]


def test_an_envelopes_attributes_count_as_the_messages_own(splitting: Splitting) -> None:
    mine, other = notification({"client": "a"}), notification({"client": "b"})
    with splitting.sessions({"notified": by_attribute("client", "^a$")}) as (session,):
        splitting.send("notified", [mine, other], lambda _: {})
        assert splitting.bodies(url_of(session, "notified"), 1) == [mine]
        assert splitting.bodies(splitting.main("notified"), 1) == [other]


ODD = {
    "number": {"DataType": "Number.int", "StringValue": "007"},
    "binary": {"DataType": "Binary.png", "BinaryValue": b"\x00\xff"},
    "text": {"DataType": "String", "StringValue": "\u00e4 \U0001f600 \t"},
}


@pytest.mark.parametrize("client", ["a", "c"])
def test_a_message_of_any_bytes_arrives_as_it_was_sent(deployed: Deployed, splitting: Splitting, client: str) -> None:
    """With the session, where the only thing added is its mark, and with the consumer, where nothing is."""
    body = '{"not": JSON \u0000'.replace("\u0000", "\t\n\r\u20ac\U0001f600") + "x" * 200_000
    attributes = ODD | {"client": {"DataType": "String", "StringValue": client}}
    with splitting.sessions({"standard": by_attribute("client", "^a$")}) as (session,):
        source = splitting.queues["standard"].source
        deployed.sqs.send_message(QueueUrl=source, MessageBody=body, MessageAttributes=splitting.ours(attributes))
        url = url_of(session, "standard") if client == "a" else splitting.main("standard")
        [received] = splitting.messages(url, 1)
    got = received["MessageAttributes"]
    if client == "a":
        assert got.pop("sluice-session")["StringValue"] == session.key
    assert (received["Body"], got) == (body, attributes)


def test_jq_decides_by_its_first_boolean_and_a_body_that_is_no_json_is_no_match(splitting: Splitting) -> None:
    important = {"standard": {"jq_filter": ".Body | fromjson | .important == true"}}
    with splitting.sessions(important) as (session,):
        splitting.send("standard", ['{"important": true}', '{"important": false}', "no JSON"], lambda _: {})
        assert splitting.bodies(url_of(session, "standard"), 1) == ['{"important": true}']
        assert sorted(splitting.bodies(splitting.main("standard"), 2)) == ["no JSON", '{"important": false}']


def test_an_endless_program_cancels_its_session_and_traffic_goes_on(splitting: Splitting) -> None:
    endless = splitting.start({"standard": {"jq_filter": "def f: f; f"}})
    with splitting.sessions({"standard": by_attribute("client", "^a$")}) as (other,):
        splitting.send("standard", ["a1", "b2"], client_of)
        assert splitting.bodies(url_of(other, "standard"), 1) == ["a1"]
        assert splitting.bodies(splitting.main("standard"), 1) == ["b2"]
        cancelled = splitting.until(endless.session_id, lambda status: status != "Ready")
        assert cancelled.reason == "FilterTimedOut"


@pytest.mark.parametrize(
    ("filters", "place"),
    [
        ({"standard": Filter(attributes=(("client", "("),))}, "split_queues.standard.message_filter.client"),
        ({"standard": Filter(jq="snow")}, "split_queues.standard.jq_filter"),
        ({"standard": Filter(jq="")}, "split_queues.standard.jq_filter"),
        ({"standard": Filter(jq="idk | whatever")}, "split_queues.standard.jq_filter"),
        ({"standard": Filter(attributes=(("client", "x" * 5_000),))}, "$.filters[...].filter.attributes"),
        ({"": Filter()}, "$.filters"),
        ({"unheard-of": Filter(attributes=(("client", "a"),))}, "unheard-of"),
        ({}, "$.filters"),
    ],
)
def test_a_bad_filter_is_refused_with_its_place_and_nothing_is_created(
    splitting: Splitting, filters: dict[str, Filter], place: str
) -> None:
    """What is wrong in a file is said before anything is asked; another asker is checked as strictly."""
    before = set(splitting.temporary_queues())
    asked = {queue_id: QueueFilter(filter=each) for queue_id, each in filters.items()}
    with pytest.raises(RequestRefused, match=re.escape(place)):
        splitting.client.ask(StartSession(filters=asked, owner="test"))
    assert set(splitting.temporary_queues()) <= before


# As docs/deploy.md gives it to developers.
OWN_QUEUES = {
    "Effect": "Allow",
    "Action": ["sqs:ReceiveMessage", "sqs:DeleteMessage"],
    "Resource": "arn:aws:sqs:*:*:sluice-tmp-*",
    "Condition": {"StringEquals": {"aws:ResourceTag/sluice-user": "${aws:userid}"}},
}


def test_permissions_by_tag_are_for_the_queues_of_ones_own_sessions(splitting: Splitting, deployed: Deployed) -> None:
    users = {name: user(deployed, name) for name in ("ann", "bob")}
    sessions = {
        name: splitting.start({"standard": by_attribute("client", f"^{name[0]}$")}, user_id=fetch_user_id(connection))
        for name, connection in users.items()
    }
    # A program's credentials, which STS draws from the user's, are the user's here too.
    drawn = users["ann"].client("sts").get_session_token()["Credentials"]
    session = boto3.Session(drawn["AccessKeyId"], drawn["SecretAccessKey"], drawn["SessionToken"], deployed.region)
    for reader, sqs in (
        *((name, connection.client("sqs")) for name, connection in users.items()),
        ("ann", Connection(session, deployed.endpoint).client("sqs")),  # tries again when the cloud throttles
    ):
        for name, view in sessions.items():
            receive = partial(sqs.receive_message, QueueUrl=url_of(view, "standard"))
            if name == reader:
                receive()
            else:
                with pytest.raises(ClientError, match="AccessDenied"):
                    receive()
    splitting.stop(*(view.session_id for view in sessions.values()))


def user(deployed: Deployed, name: str) -> Connection:
    """An IAM user with these permissions, once its key acts."""
    iam = deployed.client("iam")
    iam.create_user(UserName=name)
    policy = json.dumps({"Version": "2012-10-17", "Statement": [OWN_QUEUES]})
    iam.put_user_policy(UserName=name, PolicyName="own-queues", PolicyDocument=policy)
    key = iam.create_access_key(UserName=name)["AccessKey"]
    session = boto3.Session(key["AccessKeyId"], key["SecretAccessKey"], region_name=deployed.region)
    connection = Connection(session, deployed.endpoint)
    settled(lambda: connection.client("sts").get_caller_identity(), passing=UNKNOWN_KEY)
    return connection


def test_what_a_session_did_not_read_goes_back_to_the_consumer_without_the_mark(splitting: Splitting) -> None:
    session = splitting.start({"standard": by_attribute("client", "^a$")}, key="mine")
    splitting.send("standard", ["a1", "a2", "a3"], client_of)
    splitting.until_sent(session.session_id, 3)
    [read] = splitting.messages(url_of(session, "standard"), 1, at_most=1)
    assert read["MessageAttributes"]["sluice-session"]["StringValue"] == "mine"
    splitting.client.ask(StopSession(session_id=session.session_id))
    left = splitting.messages(splitting.main("standard"), 2)
    assert sorted(message["Body"] for message in [read, *left]) == ["a1", "a2", "a3"]
    assert all(message["MessageAttributes"].keys() == {"client"} for message in left)


@pytest.mark.slow
def test_a_session_without_a_heartbeat_ends_as_unused(splitting: Splitting) -> None:
    session = splitting.start({"standard": by_attribute("client", "^a$")})
    ended = splitting.until(session.session_id, lambda status: status != "Ready", within_s=60)
    assert ended.reason == "Unused"


def test_a_session_ends_when_its_time_is_up(splitting: Splitting) -> None:
    session_id = splitting.ask_for({"standard": by_attribute("client", "^a$")}, time_limit_s=3)
    ended = splitting.until(session_id, lambda status: status not in ALIVE, within_s=90)
    assert ended.reason == "TimeLimitExceeded"


def test_a_session_is_ready_before_the_next_sweep(splitting: Splitting) -> None:
    """With a splitter that has just been at work, and so has seen the registry as it was before."""
    splitting.send("standard", ["c1"], client_of)
    assert splitting.bodies(splitting.main("standard"), 1) == ["c1"]
    started = time.monotonic()
    with splitting.sessions({"standard": by_attribute("client", "^a$")}):
        assert time.monotonic() - started < SWEPT_EVERY_S / 2


def test_temporary_queues_that_nobody_knows_are_swept_and_no_others(deployed: Deployed, splitting: Splitting) -> None:
    with splitting.sessions({"standard": by_attribute("client", "^a$")}) as (session,):
        mine = url_of(session, "standard").rsplit("/", 1)[1]
        tag = mine.removeprefix("sluice-tmp-")[:6]
        for name in (f"sluice-tmp-{tag}000000000000-orphan", "sluice-tmp-zzzzzz000000000000-anothers"):
            deployed.make_queue(name)
        splitting.client.ask(SweepQueues())
        left = set(splitting.temporary_queues())
        assert {mine, "sluice-tmp-zzzzzz000000000000-anothers"} <= left
        assert f"sluice-tmp-{tag}000000000000-orphan" not in left
    deployed.sqs.delete_queue(
        QueueUrl=splitting.main("standard").rsplit("/", 1)[0] + "/sluice-tmp-zzzzzz000000000000-anothers"
    )
