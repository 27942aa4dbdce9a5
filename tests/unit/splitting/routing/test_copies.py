"""What is sent: messages as SQS spells and counts them, copies, names, and queues made like others."""

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from sluice.message import MAX_MESSAGE_BYTES, Message, Value
from sluice.splitting.consumers.temporary_queues import (
    MAX_NAME,
    MAX_TAGS,
    build_name_prefix,
    merge_tags,
    rename_in_policy,
    select_attributes,
    temporary_queue_name,
)
from sluice.splitting.routing.router import build_main_message, build_returned_message, build_session_copy

SYSTEM = {"SentTimestamp": "1700000000000", "MessageGroupId": "g", "MessageDeduplicationId": "d", "AWSTraceHeader": "t"}
MESSAGE = Message(
    message_id="m-1",
    body="bödy",
    attributes={"n": Value("Number.int", "7"), "b": Value("Binary.png", b"\x00\xff"), "s": Value("String", "é")},
    system=SYSTEM,
    receipt_handle="r",
)


def test_lambda_and_the_api_spell_the_same_message() -> None:
    of_lambda = Message.from_lambda(
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
    of_api = Message.from_api(
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
    bare = Message.from_api({"MessageId": "m", "Body": "x"})
    assert build_main_message(bare, fifo=False).fields() == {"MessageBody": "x"}
    assert (bare.group_id, bare.sent_at_ms) == (None, None)


# Copies


def test_a_forwarded_message_keeps_body_types_trace_and_group() -> None:
    assert build_main_message(MESSAGE, fifo=False).entry("0") == {
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
    assert build_main_message(MESSAGE, fifo=True).deduplication_id == "m-1"
    assert build_session_copy(MESSAGE, key="k", fifo=True).deduplication_id == "m-1"


def test_a_sessions_copy_carries_its_key_where_there_is_room() -> None:
    copied = build_session_copy(MESSAGE, key="alice", fifo=False)
    assert copied.attributes["sluice-session"] == Value("String.sluice", "alice")
    assert {**copied.attributes} == {**MESSAGE.attributes, "sluice-session": Value("String.sluice", "alice")}


def test_a_copy_without_room_for_the_key_is_sent_without() -> None:
    full = Message(message_id="m", body="b", attributes={str(n): Value("String", "x") for n in range(10)})
    taken = Message(message_id="m", body="b", attributes={"sluice-session": Value("String", "theirs")})
    large = Message(message_id="m", body="b" * (MAX_MESSAGE_BYTES - 5))
    for message in (full, taken, large):
        assert build_session_copy(message, key="alice", fifo=False).attributes == message.attributes


def test_a_returned_copy_loses_the_key_that_was_added() -> None:
    copied = build_session_copy(MESSAGE, key="alice", fifo=False)
    back = Message(message_id="m-2", body=copied.body, attributes=copied.attributes, system=SYSTEM)
    assert build_returned_message(back, key="alice", fifo=False).attributes == MESSAGE.attributes
    assert build_returned_message(back, key="bob", fifo=False).attributes == copied.attributes
    assert build_returned_message(back, key="alice", fifo=False).deduplication_id is None


def test_a_producers_own_attribute_survives_whatever_its_value() -> None:
    own = Message(message_id="m", body="b", attributes={"sluice-session": Value("String", "alice")})
    copied = build_session_copy(own, key="alice", fifo=False)
    back = Message(message_id="m-2", body=copied.body, attributes=copied.attributes)
    assert build_returned_message(back, key="alice", fifo=False).attributes == own.attributes


def test_a_returned_copy_is_known_as_it_was_to_its_queue() -> None:
    """The splitter may not have said that it sent it: when it sends the message to main, main has it already."""
    copied = build_session_copy(MESSAGE, key="alice", fifo=True)
    system = {"MessageDeduplicationId": str(copied.deduplication_id)}
    back = Message(message_id="m-2", body=copied.body, attributes=copied.attributes, system=system)
    assert (
        build_returned_message(back, key="alice", fifo=True).deduplication_id
        == build_main_message(MESSAGE, fifo=True).deduplication_id
    )


# Names


ORIGINALS = st.builds(
    lambda stem, fifo: stem + (".fifo" if fifo else ""), st.text("abcXYZ-_09", min_size=1, max_size=75), st.booleans()
)


@given(ORIGINALS, st.booleans())
def test_names_are_valid_ours_and_say_fifo_last(original: str, is_main: bool) -> None:
    name = temporary_queue_name(original, deployment="dep001", token="t0k3n0000000", is_main=is_main)
    assert name.startswith("sluice-tmp-dep001t0k3n0000000-")
    assert len(name) <= MAX_NAME
    assert name.endswith(".fifo") == original.endswith(".fifo")
    assert ".fifo" not in name[:-5]
    assert name.startswith(build_name_prefix("dep001"))
    assert not name.startswith(build_name_prefix("dep002"))


def test_names_as_the_spec_writes_them() -> None:
    assert temporary_queue_name("q.fifo", deployment="dddddd", token="t" * 12) == "sluice-tmp-ddddddtttttttttttt-q.fifo"
    assert (
        temporary_queue_name("q", deployment="dddddd", token="t" * 12, is_main=True)
        == "sluice-tmp-ddddddtttttttttttt-main-q"
    )
    for deployment, token in (("D", "t" * 12), ("dddddd", "t-")):
        with pytest.raises(ValueError, match="a-z0-9"):
            temporary_queue_name("q", deployment=deployment, token=token)


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
    assert select_attributes(original, original_name="orders", name="new", of_session=False) == {
        name: original[name]
        for name in (
            "VisibilityTimeout",
            "MessageRetentionPeriod",
            "KmsMasterKeyId",
            "KmsDataKeyReusePeriodSeconds",
            "RedrivePolicy",
        )
    } | {"MaximumMessageSize": str(MAX_MESSAGE_BYTES)}


def test_a_sessions_queue_takes_what_its_mark_makes_longer_than_the_original_takes() -> None:
    made = select_attributes({"MaximumMessageSize": "1024"}, original_name="o", name="n", of_session=False)
    copied = build_session_copy(replace(MESSAGE, body="b" * 1_000), key="k" * 64, fifo=False)
    assert 1_024 < copied.size <= int(made["MaximumMessageSize"])


def test_a_sessions_queue_has_no_dead_letters_so_that_what_fails_there_goes_back() -> None:
    original = {
        "RedrivePolicy": '{"deadLetterTargetArn":"arn:aws:sqs:eu-west-1:000000000000:dead","maxReceiveCount":3}'
    }
    made = select_attributes(original, original_name="o", name="n", of_session=True)
    assert made == {"MaximumMessageSize": str(MAX_MESSAGE_BYTES)}


def test_a_fifo_queue_stays_one() -> None:
    original = {"FifoQueue": "true", "ContentBasedDeduplication": "false", "DeduplicationScope": "messageGroup"}
    made = select_attributes(original, original_name="o.fifo", name="n.fifo", of_session=False)
    assert made == original | {"MaximumMessageSize": str(MAX_MESSAGE_BYTES)}


def test_only_the_queues_name_changes_in_a_policy() -> None:
    statement = {
        "Effect": "Allow",
        "Principal": {"Service": "sns.amazonaws.com"},
        "Action": "sqs:SendMessage",
        "Resource": ARN,
        "Condition": {"ArnEquals": {"aws:SourceArn": "arn:aws:sns:eu-west-1:000000000000:orders"}},
    }
    policy = {"Version": "2012-10-17", "Statement": [statement, {**statement, "Resource": [ARN, "*", ARN + "-2"]}]}
    renamed = json.loads(rename_in_policy(json.dumps(policy), original_name="orders", name="new"))
    new = ARN.removesuffix("orders") + "new"
    assert renamed["Statement"] == [
        {**statement, "Resource": new},
        {**statement, "Resource": [new, "*", ARN + "-2"]},
    ]
    single = json.loads(rename_in_policy(json.dumps({"Statement": statement}), original_name="orders", name="new"))
    assert single["Statement"]["Resource"] == new


def test_configured_tags_win_and_those_of_aws_stay_behind() -> None:
    original = {"team": "a", "cost": "1", "aws:cloudformation:stack-name": "s"}
    assert merge_tags(original, configured={"team": "b"}) == {"team": "b", "cost": "1"}
    of_user = {"sluice-user": "another's", "team": "a"}
    assert merge_tags(of_user, configured=of_user) == {"team": "a"}
    assert merge_tags(of_user, configured=of_user, user_id="AIDA") == {"sluice-user": "AIDA", "team": "a"}
    of_session = merge_tags({"sluice-session": "other"}, configured={}, user_id="AIDA", session_id="s")
    assert of_session == {"sluice-user": "AIDA", "sluice-session": "s"}
    many = merge_tags({f"o{n}": "" for n in range(50)}, configured={"mine": "x"})
    assert len(many) == MAX_TAGS
    assert many["mine"] == "x"
