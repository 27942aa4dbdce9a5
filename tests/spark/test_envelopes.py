import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sluice_spark.formats.envelopes import Payload, S3Selection, unwrap

PLAIN = S3Selection()
EVERYTHING = S3Selection(removed=True)


def s3_record(key: str = "a", event: str = "ObjectCreated:Put", **more: object) -> dict[str, object]:
    held = {"key": key, "size": 1, "sequencer": "01", **more}
    return {"eventName": event, "s3": {"bucket": {"name": "b"}, "object": held}}


def keys(*records: object, choice: S3Selection = PLAIN) -> list[str]:
    return [each.facts["key"] for each in unwrap(json.dumps({"Records": records}), ["s3"], choice)]


def test_sns_gives_the_message_and_says_whence() -> None:
    body = json.dumps({"Type": "Notification", "TopicArn": "t", "MessageId": "m", "Message": "hello"})
    (found,) = unwrap(body, ["sns"], S3Selection())
    assert (found.body, found.facts) == ("hello", {"TopicArn": "t", "MessageId": "m"})


def test_eventbridge_gives_the_detail() -> None:
    body = json.dumps({"id": "i", "source": "me", "detail-type": "D", "detail": {"n": 1}})
    (found,) = unwrap(body, ["eventbridge"], S3Selection())
    assert (json.loads(found.body), found.facts["detail-type"]) == ({"n": 1}, "D")


EXACT = '{"n": 1.10, "e": 1E2, "big": 12345678901234567890123.4500, "u": "\\u00e9", "k": 1, "k": 2 }'


def test_what_is_within_is_cut_out_and_never_written_anew() -> None:
    event = f'{{"detail-type": "D", "resources": ["arn:a",  1.0], "detail": {EXACT}, "id": "i"}}'
    (found,) = unwrap(event, ["eventbridge"], PLAIN)
    assert (found.body, found.facts["resources"]) == (EXACT, '["arn:a",  1.0]')
    within = json.dumps({"Type": "Notification", "Message": event})
    assert [each.body for each in unwrap(within, ["sns", "eventbridge"], PLAIN)] == [EXACT]
    record = '{"s3": {"bucket": {"name": "b"}, "object": {"key": "a", "size": 1.0}}, "eventName": "ObjectCreated:Put"}'
    (found,) = unwrap(f'{{"Records": [ {record} ]}}', ["s3"], PLAIN)
    assert found.body == record


def test_an_event_without_content_has_none() -> None:
    (found,) = unwrap('{"detail-type": "D", "detail": null, "resources": null}', ["eventbridge"], PLAIN)
    assert found == Payload("null", {"detail-type": "D"})


@pytest.mark.parametrize("depth", [*range(900, 1030, 5), 100_000])
@pytest.mark.parametrize("name", ["sns", "eventbridge", "s3"])
def test_deep_content_is_opened_or_a_bad_record(name: str, depth: int) -> None:
    """No other error: it would end the receiver, or fail its task again and again."""
    deep = "[" * depth + "]" * depth
    body = (
        f'{{"Type": "Notification", "Message": "m", "detail-type": "D", "detail": {deep}, "Records": [], "a": {deep}}}'
    )
    with suppress(ValueError):
        unwrap(body, [name], PLAIN)


def test_an_s3_event_of_eventbridge_is_cut_out() -> None:
    detail = '{"bucket": {"name": "b"}, "object": {"key": "a", "size": 1.0}}'
    (found,) = unwrap(f'{{"detail-type": "Object Created", "detail": {detail}}}', ["eventbridge", "s3"], PLAIN)
    assert found.body == detail


def test_sns_says_its_attributes_and_number() -> None:
    attributes = '{"price": {"Type": "Number", "Value": "1.10"}}'
    body = f'{{"Type": "Notification", "Message": "m", "SequenceNumber": "10", "MessageAttributes": {attributes}}}'
    (found,) = unwrap(body, ["sns"], PLAIN)
    assert found.facts == {"SequenceNumber": "10", "MessageAttributes": attributes}


@pytest.mark.parametrize("kind", ["SubscriptionConfirmation", "UnsubscribeConfirmation"])
def test_a_confirmation_says_what_it_is(kind: str) -> None:
    body = json.dumps({"Type": kind, "Message": "You have chosen", "TopicArn": "arn:t", "SubscribeURL": "https://s"})
    with pytest.raises(ValueError, match=f"SNS's {kind} of arn:t, not a notification.*SubscribeURL"):
        unwrap(body, ["sns"], PLAIN)


@pytest.mark.parametrize("value", [None, True, 7, "x", [], {}, [[]], {"x": []}])
@pytest.mark.parametrize(
    ("envelopes", "whole"),
    [
        (["sns"], {"Type": "Notification", "Message": "m", "TopicArn": "t", "MessageAttributes": {}}),
        (["eventbridge", "s3"], {"detail-type": "Object Created", "detail": {}, "resources": [], "time": "t"}),
        (["s3"], {"Event": "s3:TestEvent", "Records": []}),
    ],
)
def test_a_field_of_any_type_is_read_or_a_bad_record(
    envelopes: list[str], whole: dict[str, object], value: object
) -> None:
    for name in whole:
        with suppress(ValueError):
            unwrap(json.dumps(whole | {name: value}), envelopes, PLAIN)


def test_envelopes_are_opened_outermost_first() -> None:
    inner = json.dumps({"Records": [s3_record("k")]})
    body = json.dumps({"Type": "Notification", "TopicArn": "t", "Message": inner})
    (found,) = unwrap(body, ["sns", "s3"], S3Selection())
    assert (found.facts["TopicArn"], found.facts["key"]) == ("t", "k")


@given(st.text(min_size=1))
def test_keys_are_url_decoded(key: str) -> None:
    from urllib.parse import quote_plus  # noqa: PLC0415  the oracle's alone

    try:
        encoded = quote_plus(key)
    except UnicodeEncodeError:
        return  # a lone surrogate is in no key
    assert keys(s3_record(encoded)) == [key]


def test_a_test_event_is_ignored() -> None:
    assert unwrap(json.dumps({"Service": "Amazon S3", "Event": "s3:TestEvent"}), ["s3"], S3Selection()) == []


def test_removed_objects_come_if_wanted() -> None:
    records = [s3_record("new"), s3_record("old", "ObjectRemoved:Delete")]
    assert keys(*records) == ["new"]
    assert keys(*records, choice=EVERYTHING) == ["new", "old"]


def test_only_keys_that_the_glob_takes() -> None:
    records = [s3_record("in/a.json"), s3_record("in/b.csv")]
    assert keys(*records, choice=S3Selection(glob="*.json")) == ["in/a.json"]


def test_an_object_listed_twice_comes_once() -> None:
    assert keys(s3_record(), s3_record(), s3_record(sequencer="02")) == ["a", "a"]


def s3_event(kind: str = "Object Created", **detail: object) -> str:
    held = {"key": "a+b c", "size": 5, "etag": "e", "version-id": "v", "sequencer": "01"}
    detail = {"version": "0", "bucket": {"name": "b"}, "object": held, **detail}
    return json.dumps({"source": "aws.s3", "time": "2026-01-01T00:00:00Z", "detail-type": kind, "detail": detail})


@pytest.mark.parametrize(
    ("body", "event"),
    [
        (s3_event(reason="PutObject"), "ObjectCreated:Put"),
        (s3_event(reason="CompleteMultipartUpload"), "ObjectCreated:CompleteMultipartUpload"),
        (
            s3_event("Object Deleted", reason="DeleteObject", **{"deletion-type": "Delete Marker Created"}),
            "ObjectRemoved:DeleteMarkerCreated",
        ),
        (s3_event("Object Tags Added"), "ObjectTagsAdded"),
    ],
)
def test_an_event_that_s3_gave_eventbridge_says_what_a_notification_says(body: str, event: str) -> None:
    (found,) = unwrap(body, ["eventbridge", "s3"], EVERYTHING)
    names = ("event", "bucket", "key", "size", "eTag", "versionId", "sequencer", "eventTime")
    expected = (event, "b", "a+b c", "5", "e", "v", "01", "2026-01-01T00:00:00Z")  # such a key isn't encoded
    assert tuple(found.facts[name] for name in names) == expected


def test_of_eventbridges_events_too_only_what_is_chosen_comes() -> None:
    def chosen(choice: S3Selection) -> int:
        bodies = [s3_event(), s3_event("Object Deleted")]
        return sum(len(unwrap(body, ["eventbridge", "s3"], choice)) for body in bodies)

    assert (chosen(PLAIN), chosen(EVERYTHING), chosen(S3Selection(glob="*.csv"))) == (1, 2, 0)


@pytest.mark.parametrize("detail", [{}, {"bucket": {"name": "b"}}, {"bucket": "b", "object": {"key": "a"}}])
def test_an_event_that_names_no_object_says_so(detail: object) -> None:
    body = json.dumps({"source": "aws.s3", "detail-type": "Object Created", "detail": detail})
    with pytest.raises(ValueError, match="not an event of S3"):
        unwrap(body, ["eventbridge", "s3"], PLAIN)


@pytest.mark.parametrize("name", ["sns", "eventbridge", "s3"])
@pytest.mark.parametrize("body", ["", "{", "[]", "{}", '"x"', '{"Records":[1]}', '{"Records":[{"eventName":"x"}]}'])
def test_what_is_no_envelope_says_so(name: str, body: str) -> None:
    with pytest.raises(ValueError, match="not "):
        unwrap(body, [name], S3Selection())
