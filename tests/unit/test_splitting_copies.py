"""What is sent: messages as SQS spells and counts them, copies, batches, names, and queues made like others."""

import base64
import json
from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.batches import MAX_ENTRIES, Parcel, Progress, Request, fifo_rounds, standard_round
from sluice.message import MAX_MESSAGE_BYTES, Message, Outgoing, Value
from sluice.splitting.routing.copies import for_main, for_session, returned
from sluice.splitting.routing.names import MAX_NAME, is_ours, main_queue_name, session_queue_name
from sluice.splitting.routing.queues import MAX_TAGS, renamed_policy, temporary_attributes, temporary_tags

SYSTEM = {"SentTimestamp": "1700000000000", "MessageGroupId": "g", "MessageDeduplicationId": "d", "AWSTraceHeader": "t"}
MESSAGE = Message(
    message_id="m-1",
    body="bödy",
    attributes={"n": Value("Number.int", "7"), "b": Value("Binary.png", b"\x00\xff"), "s": Value("String", "é")},
    system=SYSTEM,
    receipt_handle="r",
)


def test_lambda_and_the_api_spell_the_same_message() -> None:
    of_lambda = Message.of_lambda(
        {
            "messageId": "m-1",
            "receiptHandle": "r",
            "body": "bödy",
            "attributes": SYSTEM,
            "messageAttributes": {
                "n": {"dataType": "Number.int", "stringValue": "7", "stringListValues": [], "binaryListValues": []},
                "b": {"dataType": "Binary.png", "binaryValue": base64.b64encode(b"\x00\xff").decode()},
                "s": {"dataType": "String", "stringValue": "é"},
            },
        }
    )
    of_api = Message.of_api(
        {
            "MessageId": "m-1",
            "ReceiptHandle": "r",
            "Body": "bödy",
            "Attributes": SYSTEM,
            "MessageAttributes": {
                "n": {"DataType": "Number.int", "StringValue": "7"},
                "b": {"DataType": "Binary.png", "BinaryValue": b"\x00\xff"},
                "s": {"DataType": "String", "StringValue": "é"},
            },
        }
    )
    assert of_lambda == of_api == MESSAGE
    assert (MESSAGE.group_id, MESSAGE.deduplication_id, MESSAGE.trace_header) == ("g", "d", "t")
    assert MESSAGE.sent_at_ms == 1_700_000_000_000


def test_the_size_is_that_of_the_body_and_of_names_types_and_values() -> None:
    assert MESSAGE.size == 5 + (1 + 10 + 1) + (1 + 10 + 2) + (1 + 6 + 2)


def test_a_message_without_anything_has_only_its_body() -> None:
    bare = Message.of_api({"MessageId": "m", "Body": "x"})
    assert for_main(bare, fifo=False).fields() == {"MessageBody": "x"}
    assert (bare.group_id, bare.sent_at_ms) == (None, None)


# Copies


def test_a_forwarded_message_keeps_body_types_trace_and_group() -> None:
    assert for_main(MESSAGE, fifo=False).entry("0") == {
        "Id": "0",
        "MessageBody": "bödy",
        "MessageAttributes": {
            "n": {"DataType": "Number.int", "StringValue": "7"},
            "b": {"DataType": "Binary.png", "BinaryValue": b"\x00\xff"},
            "s": {"DataType": "String", "StringValue": "é"},
        },
        "MessageSystemAttributes": {"AWSTraceHeader": {"DataType": "String", "StringValue": "t"}},
        "MessageGroupId": "g",
    }


def test_the_deduplication_id_of_a_fifo_message_is_the_sources_message_id() -> None:
    assert for_main(MESSAGE, fifo=True).deduplication_id == "m-1"
    assert for_session(MESSAGE, key="k", fifo=True).deduplication_id == "m-1"


def test_a_sessions_copy_carries_its_key_where_there_is_room() -> None:
    copied = for_session(MESSAGE, key="alice", fifo=False)
    assert copied.attributes["sluice-session"] == Value("String", "alice")
    assert {**copied.attributes} == {**MESSAGE.attributes, "sluice-session": Value("String", "alice")}


def test_a_copy_without_room_for_the_key_is_sent_without() -> None:
    full = Message(message_id="m", body="b", attributes={str(n): Value("String", "x") for n in range(10)})
    taken = Message(message_id="m", body="b", attributes={"sluice-session": Value("String", "theirs")})
    large = Message(message_id="m", body="b" * (MAX_MESSAGE_BYTES - 5))
    for message in (full, taken, large):
        assert for_session(message, key="alice", fifo=False).attributes == message.attributes
    small_queue = for_session(MESSAGE, key="alice", fifo=False, max_bytes=MESSAGE.size)
    assert small_queue.attributes == MESSAGE.attributes


def test_a_returned_copy_loses_the_key_that_was_added() -> None:
    copied = for_session(MESSAGE, key="alice", fifo=False)
    back = Message(message_id="m-2", body=copied.body, attributes=copied.attributes, system=SYSTEM)
    assert returned(back, key="alice", fifo=False).attributes == MESSAGE.attributes
    assert returned(back, key="bob", fifo=False).attributes == copied.attributes
    assert returned(back, key="alice", fifo=True).deduplication_id == "m-2"


# Batches


def parcel(position: int, target: str, *, group: str | None = None, size: int = 1) -> Parcel:
    return Parcel(position=position, target=target, outgoing=Outgoing(body="x" * size, group_id=group))


def positions(request: Request) -> list[int]:
    return [one.position for one in request.parcels]


PARCELS = st.lists(
    st.tuples(
        st.lists(st.sampled_from("ABM"), min_size=1, max_size=3, unique=True),
        st.sampled_from("gh"),
        st.sampled_from([1, 100, 300_000, MAX_MESSAGE_BYTES]),
    ),
    max_size=40,
).map(
    lambda rows: [
        parcel(position, target, group=group, size=size)
        for position, (targets, group, size) in enumerate(rows)
        for target in targets
    ]
)


@given(PARCELS)
def test_requests_keep_to_the_limits_lose_nothing_and_keep_the_order(parcels: list[Parcel]) -> None:
    requests = standard_round(parcels)
    for request in requests:
        assert 1 <= len(request.parcels) <= MAX_ENTRIES
        assert sum(one.outgoing.size for one in request.parcels) <= MAX_MESSAGE_BYTES
    for target in "ABM":
        sent = [one for request in requests if request.target == target for one in request.parcels]
        assert sent == [one for one in parcels if one.target == target]


def test_no_request_could_have_taken_the_next_one_in() -> None:
    requests = standard_round([parcel(n, "A", size=MAX_MESSAGE_BYTES // 4) for n in range(9)])
    assert [positions(request) for request in requests] == [[0, 1, 2, 3], [4, 5, 6, 7], [8]]
    assert [len(request.parcels) for request in standard_round(parcel(n, "A") for n in range(25))] == [10, 10, 5]


def test_entries_are_numbered_within_their_request() -> None:
    (request,) = standard_round([parcel(7, "A"), parcel(9, "A")])
    assert [entry["Id"] for entry in request.entries()] == ["0", "1"]


@given(PARCELS)
def test_fifo_rounds_lose_nothing_and_keep_each_groups_order_across_receivers(parcels: list[Parcel]) -> None:
    rounds = fifo_rounds(parcels)
    sent = [one for requests in rounds for request in requests for one in request.parcels]
    assert sorted(sent, key=repr) == sorted(parcels, key=repr)
    for target in "ABM":
        for group in "gh":
            of_both = [one.position for one in sent if one.target == target and one.outgoing.group_id == group]
            assert of_both == sorted(of_both)
    for requests in rounds:
        targets: defaultdict[tuple[str | None, int], set[str]] = defaultdict(set)
        for request in requests:
            for one in request.parcels:
                targets[one.outgoing.group_id, one.position].add(request.target)
        for group in "gh":
            assert len({frozenset(of_one) for (of, _), of_one in targets.items() if of == group}) <= 1


def test_one_group_of_a_fifo_queue_comes_to_each_receiver_in_order() -> None:
    takers = dict(zip([10, 20, 30, 40, 50, 60], "ABMMBA", strict=True))
    rounds = fifo_rounds(parcel(position, target, group="g") for position, target in takers.items())
    assert [[(request.target, positions(request)) for request in requests] for requests in rounds] == [
        [("A", [10])],
        [("B", [20])],
        [("M", [30, 40])],
        [("B", [50])],
        [("A", [60])],
    ]


@given(PARCELS, st.data())
def test_a_failed_message_holds_back_its_group_and_no_other(parcels: list[Parcel], data: st.DataObject) -> None:
    failing = set(data.draw(st.lists(st.sampled_from(range(40)), max_size=3)))
    progress = Progress(fifo=True)
    arrived: list[Parcel] = []
    for requests in fifo_rounds(parcels):
        for request in requests:
            sendable = progress.sendable(request)
            for one in sendable.parcels if sendable is not None else ():
                if one.position in failing:
                    progress.fail(one)
                else:
                    arrived.append(one)
    failed = set(progress.failed())
    first = {
        group: min(
            (one.position for one in parcels if one.outgoing.group_id == group and one.position in failing),
            default=None,
        )
        for group in "gh"
    }
    for one in parcels:
        first_failed = first[one.outgoing.group_id or ""]
        if first_failed is None or one.position < first_failed:
            assert one.position not in failed
            assert one in arrived
    for one in arrived:
        # What another receiver of its group failed to get was in an earlier round: nothing of the group went after it.
        first_failed = first[one.outgoing.group_id or ""]
        if first_failed is not None and one.position > first_failed:
            assert {same.target for same in parcels if same.position == first_failed} == {
                same.target for same in parcels if same.position == one.position
            }


def test_a_failed_message_of_a_standard_queue_holds_back_none() -> None:
    progress = Progress(fifo=False)
    progress.fail(parcel(0, "A"))
    request = Request(target="A", parcels=(parcel(1, "A"),))
    assert progress.sendable(request) == request
    assert progress.failed() == (0,)


# Names


ORIGINALS = st.builds(
    lambda stem, fifo: stem + (".fifo" if fifo else ""), st.text("abcXYZ-_09", min_size=1, max_size=75), st.booleans()
)


@given(ORIGINALS, st.sampled_from([session_queue_name, main_queue_name]))
def test_names_are_valid_ours_and_say_fifo_last(original: str, name_of: object) -> None:
    name = name_of(original, deployment="dep001", token="t0k3n0000000")  # type: ignore[operator]  # both functions
    assert name.startswith("sluice-tmp-dep001t0k3n0000000-")
    assert len(name) <= MAX_NAME
    assert name.endswith(".fifo") == original.endswith(".fifo")
    assert ".fifo" not in name[:-5]
    assert is_ours(name, deployment="dep001")
    assert not is_ours(name, deployment="dep002")


def test_names_as_the_spec_writes_them() -> None:
    assert session_queue_name("q.fifo", deployment="dddddd", token="t" * 12) == "sluice-tmp-ddddddtttttttttttt-q.fifo"
    assert main_queue_name("q", deployment="dddddd", token="t" * 12) == "sluice-tmp-ddddddtttttttttttt-main-q"
    for bad in ({"deployment": "D", "token": "t" * 12}, {"deployment": "dddddd", "token": "t-"}):
        with pytest.raises(ValueError, match="a-z0-9"):
            session_queue_name("q", **bad)


# Queues

ARN = "arn:aws:sqs:eu-west-1:000000000000:orders"


def test_a_temporary_queue_is_like_its_original_but_for_what_was_served_or_decided_there() -> None:
    original = {
        "QueueArn": ARN,
        "ApproximateNumberOfMessages": "3",
        "VisibilityTimeout": "45",
        "MessageRetentionPeriod": "3600",
        "DelaySeconds": "30",
        "KmsMasterKeyId": "alias/k",
        "KmsDataKeyReusePeriodSeconds": "300",
        "SqsManagedSseEnabled": "false",
        "RedrivePolicy": '{"deadLetterTargetArn":"arn:aws:sqs:eu-west-1:000000000000:dead","maxReceiveCount":3}',
        "RedriveAllowPolicy": '{"redrivePermission":"denyAll"}',
        "FifoQueue": "false",
        "Policy": "",
    }
    assert temporary_attributes(original, original_name="orders", name="new") == {
        name: original[name]
        for name in (
            "VisibilityTimeout",
            "MessageRetentionPeriod",
            "KmsMasterKeyId",
            "KmsDataKeyReusePeriodSeconds",
            "RedrivePolicy",
        )
    }


def test_a_fifo_queue_stays_one() -> None:
    original = {"FifoQueue": "true", "ContentBasedDeduplication": "false", "DeduplicationScope": "messageGroup"}
    assert temporary_attributes(original, original_name="o.fifo", name="n.fifo") == original


def test_only_the_queues_name_changes_in_a_policy() -> None:
    statement = {
        "Effect": "Allow",
        "Principal": {"Service": "sns.amazonaws.com"},
        "Action": "sqs:SendMessage",
        "Resource": ARN,
        "Condition": {"ArnEquals": {"aws:SourceArn": "arn:aws:sns:eu-west-1:000000000000:orders"}},
    }
    policy = {"Version": "2012-10-17", "Statement": [statement, {**statement, "Resource": [ARN, "*", ARN + "-2"]}]}
    renamed = json.loads(renamed_policy(json.dumps(policy), original_name="orders", name="new"))
    new = ARN.removesuffix("orders") + "new"
    assert renamed["Statement"] == [
        {**statement, "Resource": new},
        {**statement, "Resource": [new, "*", ARN + "-2"]},
    ]
    single = json.loads(renamed_policy(json.dumps({"Statement": statement}), original_name="orders", name="new"))
    assert single["Statement"]["Resource"] == new


def test_configured_tags_win_and_those_of_aws_stay_behind() -> None:
    original = {"team": "a", "cost": "1", "aws:cloudformation:stack-name": "s"}
    assert temporary_tags(original, configured={"team": "b"}) == {"team": "b", "cost": "1"}
    many = temporary_tags({f"o{n}": "" for n in range(50)}, configured={"mine": "x"})
    assert len(many) == MAX_TAGS
    assert many["mine"] == "x"
