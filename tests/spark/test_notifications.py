"""An object that is listed twice is read once: the pure part, against a slow reading of what is staged."""

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sluice_spark.formats.envelopes import S3Selection, unwrap
from sluice_spark.log.notifications import NotificationDeduplicator, record_identity, remove_known_records
from sluice_spark.log.planning import Position
from sluice_spark.log.staging import StagedLog
from sluice_spark.log.store import FileStore
from sluice_spark.sqs.received import Message, Received

from tests.spark.clients import table

PLAIN = S3Selection()
EVERYTHING = S3Selection(removed=True)


def record(key: str = "a", event: str = "ObjectCreated:Put", **more: object) -> dict[str, Any]:
    held = {"key": key, "size": 1, "eTag": "e", "sequencer": "01", **more}
    return {"eventName": event, "s3": {"bucket": {"name": "b"}, "object": held}}


def body(*records: object, envelope: str = "s3") -> str:
    inner = json.dumps({"Records": records})
    if envelope == "sns,s3":
        return json.dumps({"Type": "Notification", "TopicArn": "t", "Message": inner})
    if envelope == "eventbridge,s3":
        return json.dumps({"detail-type": "d", "detail": json.loads(inner)})
    return inner


def received(*bodies: str, numbers: Any = None) -> list[Received]:
    ids = numbers or itertools.count()
    return [Received("q", [Message(message_id=f"m{next(ids)}", body=each) for each in bodies])]


def bodies_of(answers: Sequence[Received]) -> list[str]:
    return [message.body for answer in answers for message in answer.messages]


def keys(text: str, envelopes: Sequence[str] = ("s3",), choice: S3Selection = EVERYTHING) -> list[str]:
    return [each.facts["key"] for each in unwrap(text, envelopes, choice)]


def test_a_message_all_of_whose_records_are_known_is_dropped_and_deleted() -> None:
    notified = NotificationDeduplicator(["s3"], PLAIN)
    fresh, again = notified.split_new_messages(received(body(record("a")), body(record("b")), body(record("a"))))
    assert [keys(each) for each in bodies_of(fresh)] == [["a"], ["b"]]
    assert [message.message_id for answer in again for message in answer.messages] == ["m2"]


@pytest.mark.parametrize("envelope", ["s3", "sns,s3", "eventbridge,s3"])
def test_a_message_known_in_part_brings_what_is_new(envelope: str) -> None:
    notified, envelopes = NotificationDeduplicator(envelope.split(","), PLAIN), envelope.split(",")
    notified.split_new_messages(received(body(record("a"), envelope=envelope)))
    text = body(record("a"), record("b"), record("b"), record("c"), envelope=envelope)
    text = text.replace(": 1,", ": 1.50E2,")
    fresh, again = notified.split_new_messages(received(text))
    (left,) = bodies_of(fresh)
    assert (keys(left, envelopes), again) == (["b", "c"], [])
    whole = unwrap(text, envelopes, PLAIN)
    assert list(unwrap(left, envelopes, PLAIN)) == list(whole[1:])  # each value as it was written


def test_an_event_that_s3_gave_eventbridge_is_known_by_its_object() -> None:
    def event(key: str) -> str:
        detail = {"bucket": {"name": "b"}, "object": {"key": key, "etag": "e", "sequencer": "01"}}
        return json.dumps({"detail-type": "Object Created", "detail": detail})

    fresh, again = NotificationDeduplicator(["eventbridge", "s3"], PLAIN).split_new_messages(
        received(event("a"), event("b"), event("a"))
    )
    assert [keys(each, ["eventbridge", "s3"]) for each in bodies_of(fresh)] == [["a"], ["b"]]
    assert [message.message_id for answer in again for message in answer.messages] == ["m2"]


def test_a_message_that_is_new_stays_as_it_came() -> None:
    text = json.dumps({"Records": [record("a"), record("b")]}, indent=3)
    fresh, _ = NotificationDeduplicator(["s3"], PLAIN).split_new_messages(received(text))
    assert bodies_of(fresh) == [text]


@pytest.mark.parametrize(
    "text",
    ["", "nonsense", '{"Event": "s3:TestEvent"}', '{"Records": []}', body({"eventName": "x"}), body(record(), 1)],
)
def test_what_names_no_object_is_staged_each_time(text: str) -> None:
    notified = NotificationDeduplicator(["s3"], PLAIN)
    for _ in range(2):
        assert notified.split_new_messages(received(text)) == (received(text), [])
    assert not notified._known


def test_a_bad_message_makes_none_of_its_records_known() -> None:
    notified = NotificationDeduplicator(["s3"], PLAIN)
    notified.split_new_messages(received(body(record("a"), {"eventName": "x"})))
    fresh, _ = notified.split_new_messages(received(body(record("a"))))
    assert bodies_of(fresh) == [body(record("a"))]


@pytest.mark.parametrize(
    "other",
    [{"key": "b"}, {"sequencer": "02"}, {"versionId": "v"}, {"eTag": "f"}, {"event": "ObjectRemoved:Delete"}],
)
def test_another_object_version_or_event_is_another_record(other: dict[str, str]) -> None:
    notified = NotificationDeduplicator(["s3"], EVERYTHING)
    text = body(record(), record(**other))
    assert [keys(each) for each in bodies_of(notified.split_new_messages(received(text))[0])] == [
        ["a", other.get("key", "a")]
    ]


def test_one_creation_told_by_two_configurations_is_one() -> None:
    notified = NotificationDeduplicator(["s3"], PLAIN)
    notified.split_new_messages(received(body(record(event="ObjectCreated:Put"))))
    assert notified.split_new_messages(received(body(record(event="ObjectCreated:Copy"))))[0] == []


def test_records_that_nothing_tells_apart_are_always_new() -> None:
    bare = {"eventName": "ObjectCreated:Put", "s3": {"bucket": {"name": "b"}, "object": {"key": "k"}}}
    notified = NotificationDeduplicator(["s3"], PLAIN)
    for _ in range(2):
        fresh, _ = notified.split_new_messages(received(body(bare, record())))
        assert "k" in keys(bodies_of(fresh)[0])
    timed = {**bare, "eventTime": "2026-01-02T03:04:05Z"}
    assert [len(notified.split_new_messages(received(body(timed)))[0]) for _ in range(2)] == [1, 0]


def test_a_record_that_is_not_chosen_stays_and_is_not_known() -> None:
    notified = NotificationDeduplicator(["s3"], S3Selection(glob="*.csv"))
    notified.split_new_messages(received(body(record("a.csv"))))
    (left,) = bodies_of(
        notified.split_new_messages(received(body(record("a.csv"), record("a.json"), record("b.csv"))))[0]
    )
    assert keys(left) == ["a.json", "b.csv"]
    assert record_identity(unwrap(body(record("a.json")), ["s3"], PLAIN)[0].facts) not in notified._known


def test_the_oldest_are_forgotten_first() -> None:
    notified = NotificationDeduplicator(["s3"], PLAIN, limit=3)
    notified.split_new_messages(received(*(body(record(key)) for key in "abcd")))
    assert len(notified._known) == 3
    fresh, _ = notified.split_new_messages(received(*(body(record(key)) for key in "dcba")))
    assert [keys(each)[0] for each in bodies_of(fresh)] == ["a"]


KEYS = st.lists(st.lists(st.sampled_from("abcdef"), min_size=1, max_size=4), max_size=12)


@given(KEYS, st.integers(0, 12))
def test_each_object_is_staged_once_in_order_over_restarts(messages: list[list[str]], restart: int) -> None:
    """The oracle reads every record, and takes the first of each key."""
    texts = [body(*map(record, message)) for message in messages]
    notified = NotificationDeduplicator(["s3"], PLAIN)
    staged: list[str] = []
    for number, text in enumerate(texts):
        if number == restart:
            known = notified.list_identities(staged)
            notified = NotificationDeduplicator(["s3"], PLAIN)
            notified.restore(known)
        staged += bodies_of(notified.split_new_messages(received(text))[0])
    found = [key for text in staged for key in keys(text)]
    assert found == list(dict.fromkeys(key for message in messages for key in message))


@given(KEYS, st.sets(st.sampled_from("abcdef")))
def test_a_sifted_body_has_the_new_records_and_no_other(messages: list[list[str]], known: set[str]) -> None:
    marks = {record_identity(unwrap(body(record(key)), ["s3"], PLAIN)[0].facts) for key in known}
    for message in messages:
        found, _ = remove_known_records(body(*map(record, message)), ["s3"], PLAIN, marks)
        wanted = [key for key in dict.fromkeys(message) if key not in known]
        assert (keys(found) if found else []) == wanted


def test_a_restart_knows_what_the_retained_segments_name(tmp_path: Path) -> None:
    def log() -> StagedLog:
        made = StagedLog(FileStore(tmp_path), NotificationDeduplicator(["s3"], PLAIN))
        made.take_over(Position(0))
        return made

    first = log()
    fresh, again, ids = first.split_new(received(body(record("a"))))
    first.append(table(fresh))
    assert (again, ids) == ([], ["m0"])
    numbers = iter([0, 1])
    fresh, again, ids = log().split_new(received("other", body(record("a")), numbers=numbers))
    assert (fresh, bodies_of(again), ids) == ([], ["other", body(record("a"))], [])


def test_a_log_without_files_to_read_changes_nothing(tmp_path: Path) -> None:
    log = StagedLog(FileStore(tmp_path))
    same = received(body(record("a")), body(record("a")))
    assert log.split_new(same) == (same, (), ["m0", "m1"])
