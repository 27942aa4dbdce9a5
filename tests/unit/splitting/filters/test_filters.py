"""Filter files, in both forms, and the places that their errors name."""

import contextlib
import json
from collections.abc import Iterable
from typing import Any

import jq as jq_library
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from sluice.errors import BadFilter
from sluice.message import Message, Value
from sluice.splitting.filters import jq
from sluice.splitting.filters.files import build_document, describe_ignored, parse_filters
from sluice.splitting.filters.templates import Templates
from sluice.splitting.filters.texts import Envelope, S3Object, read_notification_attributes
from sluice.splitting.filters.values import Filter, Mode, QueueFilter, select_filter


def compile_problem(program: str) -> str | None:
    try:
        jq_library.compile(program)
    except ValueError as error:
        return str(error).splitlines()[0]
    return None


def parse(document: object) -> Any:
    return parse_filters(document, compile_problem=compile_problem)


MEMES = """
split_queues:
  meme-queue:
    queue_type: SQS
    queue_mode: mirror
    message_filter:
      author: "^me$"
      level: "^(beginner|intermediate)$"
    jq_filter: ".Body | fromjson | .important == true"
  "*":
    message_filter: {author: "^me$"}
"""


def test_the_map_form_in_yaml() -> None:
    filters = parse(yaml.safe_load(MEMES))
    assert filters["meme-queue"] == QueueFilter(
        filter=Filter(
            attributes=(("author", "^me$"), ("level", "^(beginner|intermediate)$")),
            jq=".Body | fromjson | .important == true",
        ),
        mode=Mode.MIRROR,
    )


def test_the_list_form_says_the_same() -> None:
    document = yaml.safe_load(MEMES)
    listed = [{"queue_id": queue_id, **entry} for queue_id, entry in document["split_queues"].items()]
    assert parse(json.loads(json.dumps({"split_queues": listed}))) == parse(document)


def test_an_explicit_queue_id_wins_over_the_star() -> None:
    filters = parse(yaml.safe_load(MEMES))
    assert select_filter(filters, "meme-queue") is filters["meme-queue"]
    assert select_filter(filters, "another") is filters["*"]
    star = filters["*"]
    assert star is not None
    assert select_filter({"one": star}, "another") is None


@pytest.mark.parametrize(
    ("given", "asked"),
    [
        ({"metadata": "^tenant: blue$"}, Filter(all_of=("^tenant: blue$",))),
        ({"all_of": [{"metadata": "^a: x"}, {"metadata": "y"}]}, Filter(all_of=("^a: x", "y"))),
        ({"any_of": [{"metadata": "^a: x"}, {"metadata": "y"}]}, Filter(any_of=("^a: x", "y"))),
    ],
)
def test_patterns_on_lines_are_one_or_all_or_any(given: object, asked: Filter) -> None:
    entry = {"queue_type": "SQS", "filter": given, "jq_filter": "true"}
    assert parse({"split_queues": {"q": entry}})["q"].filter == structs.replace(asked, jq="true")
    assert not asked.matches_nothing


def test_a_key_stands_for_itself_in_patterns_and_in_a_programs_texts() -> None:
    document = {
        "split_queues": {
            "q": {"message_filter": {"a": "^{{key}}$"}, "jq_filter": '.Body | contains("s={{ key }}")'},
            "r": {"filter": {"any_of": [{"metadata": "s={{ key }},{{  key }}"}]}},
        }
    }
    filters = parse_filters(document, compile_problem=compile_problem, templates=Templates({"key": 'a.b"'}))
    assert filters["q"].filter == Filter(attributes=(("a", '^a\\.b"$'),), jq='.Body | contains("s=a.b\\"")')
    assert filters["r"].filter == Filter(any_of=('s=a\\.b",a\\.b"',))


MIRRORD_JSON = {
    "operator": True,
    "target": "deployment/meme-app/container/main",
    "feature": {
        "network": {"incoming": "off"},
        "split_queues": {
            "meme-queue": {
                "queue_type": "SQS",
                "message_filter": {"author": "^me$", "level": "^(beginner|intermediate)$"},
            },
            "views": {"queue_type": "Kafka", "message_filter": {}, "payload_protobuf": {"message_type": "View"}},
        },
    },
}


def test_a_whole_mirrord_json_is_read_for_its_sqs_queues() -> None:
    attributes = (("author", "^me$"), ("level", "^(beginner|intermediate)$"))
    assert parse(MIRRORD_JSON) == {"meme-queue": QueueFilter(filter=Filter(attributes=attributes))}
    said = "feature.network, feature.split_queues.views, operator, target"
    assert describe_ignored(MIRRORD_JSON) == f"left out, as it isn't about SQS queues: {said}"


def test_what_is_left_out_is_named_once_and_not_without_end() -> None:
    queues: dict[str, Any] = {"split_queues": {"q": {}}}
    assert describe_ignored({"feature": queues}) is None
    assert describe_ignored(queues) is None
    many = describe_ignored({"feature": queues} | {str(number): 1 for number in range(30)})
    assert many is not None
    assert many.endswith(" and 10 more")


def test_a_list_may_name_one_queue_for_several_brokers() -> None:
    entries = [{"queue_id": "*", "queue_type": kind, "jq_filter": "true"} for kind in ("Kafka", "SQS", "Temporal")]
    assert parse({"feature": {"split_queues": entries}}) == {"*": QueueFilter(filter=Filter(jq="true"))}


def test_options_of_the_command_line_stand_for_a_filter_file() -> None:
    filters = parse(build_document(["q:author=^me$", "q:baggage=session=alice", "r:a=b:c"]))
    assert filters["q"].filter.attributes == (("author", "^me$"), ("baggage", "session=alice"))
    assert filters["r"].filter.attributes == (("a", "b:c"),)
    for bad in ["q", "q:a", ":a=b", "q:=b"]:
        with pytest.raises(BadFilter, match="--filter"):
            build_document([bad])


@pytest.mark.parametrize(
    ("entry", "place"),
    [
        ({"message_filter": {"author": "("}}, "split_queues.meme-queue.message_filter.author"),
        ({"message_filter": {"author": 5}}, "split_queues.meme-queue.message_filter.author"),
        ({"message_filter": {5: "a"}}, "split_queues.meme-queue.message_filter.5"),
        ({"message_filter": ["a"]}, "split_queues.meme-queue.message_filter"),
        ({"message_filter": {str(n): "a" for n in range(65)}}, "split_queues.meme-queue.message_filter"),
        ({"jq_filter": "snow"}, "split_queues.meme-queue.jq_filter"),
        ({"jq_filter": ""}, "split_queues.meme-queue.jq_filter"),
        ({"jq_filter": "idk | whatever"}, "split_queues.meme-queue.jq_filter"),
        ({"jq_filter": "." * 20_000}, "split_queues.meme-queue.jq_filter"),
        ({"jq_filter": True}, "split_queues.meme-queue.jq_filter"),
        ({"queue_type": "Kafka"}, "split_queues.meme-queue.queue_type"),
        ({"queue_type": None}, "split_queues.meme-queue.queue_type"),
        ({"queue_mode": "share"}, "split_queues.meme-queue.queue_mode"),
        ({"filter": {}}, "split_queues.meme-queue.filter"),
        ({"filter": "^tenant: blue$"}, "split_queues.meme-queue.filter"),
        ({"filter": {"metadata": "("}}, "split_queues.meme-queue.filter.metadata"),
        ({"filter": {"metadata": ""}}, "split_queues.meme-queue.filter.metadata"),
        ({"filter": {"metadata": ["a"]}}, "split_queues.meme-queue.filter.metadata"),
        ({"filter": {"metadata": "a", "any_of": [{"metadata": "a"}]}}, "split_queues.meme-queue.filter"),
        ({"filter": {"body": "a"}}, "split_queues.meme-queue.filter.body"),
        ({"filter": {"any_of": []}}, "split_queues.meme-queue.filter.any_of"),
        ({"filter": {"all_of": [{"metadata": "a"}] * 65}}, "split_queues.meme-queue.filter.all_of"),
        ({"filter": {"all_of": {"metadata": "a"}}}, "split_queues.meme-queue.filter.all_of"),
        ({"filter": {"any_of": ["a"]}}, "split_queues.meme-queue.filter.any_of.0"),
        ({"filter": {"any_of": [{}]}}, "split_queues.meme-queue.filter.any_of.0.metadata"),
        ({"filter": {"any_of": [{"metadata": "a"}, {"all_of": []}]}}, "split_queues.meme-queue.filter.any_of.1.all_of"),
        ({"filter": {"all_of": [{"metadata": ""}]}}, "split_queues.meme-queue.filter.all_of.0.metadata"),
        ({"filter": {"any_of": [{"metadata": "("}]}}, "split_queues.meme-queue.filter.any_of.0.metadata"),
        ({"filter": {"metadata": "a" * 5_000}}, "split_queues.meme-queue.filter.metadata"),
        ({"filter": {"metadata": "a"}, "message_filter": {}}, "split_queues.meme-queue.filter"),
        ({"filter": {"metadata": "{{ key }}"}}, "split_queues.meme-queue.filter.metadata"),
        ({"message_filter": {"a": "{{key}}"}}, "split_queues.meme-queue.message_filter.a"),
        ({"jq_filter": '"{{ key }}"'}, "split_queues.meme-queue.jq_filter"),
        ({"queue_id": "x"}, "split_queues.meme-queue.queue_id"),
        ([], "split_queues.meme-queue"),
    ],
)
def test_a_fault_is_refused_with_its_place(entry: object, place: str) -> None:
    with pytest.raises(BadFilter) as refused:
        parse({"split_queues": {"meme-queue": entry}})
    assert refused.value.place == place
    assert str(refused.value).startswith(f"{place}: ")
    assert refused.value.cause


@pytest.mark.parametrize(
    ("document", "place"),
    [
        (None, "filter file"),
        ({}, "split_queues"),
        ({"split_queues": {}}, "split_queues"),
        ({"split_queues": []}, "split_queues"),
        ({"split_queues": 3}, "split_queues"),
        ({"split_queues": {"": {}}}, "split_queues"),
        ({"feature": {}}, "feature.split_queues"),
        ({"feature": []}, "feature"),
        ({"feature": {"split_queues": 3}}, "feature.split_queues"),
        ({"feature": {"split_queues": {"a": {"filter": {}}}}}, "feature.split_queues.a.filter"),
        ({"feature": {"split_queues": [{"queue_type": "Kafka"}, {}]}}, "feature.split_queues.1.queue_id"),
        ({"feature": {"split_queues": {"a": {"queue_type": "Kafka"}}}}, "feature.split_queues"),
        ({"split_queues": {"a": {"queue_type": "Kafka"}}}, "split_queues.a.queue_type"),
        ({"split_queues": {}, "feature": {}}, "feature"),
        ({"split_queues": [{}]}, "split_queues.0.queue_id"),
        ({"split_queues": [{"queue_id": ""}]}, "split_queues.0.queue_id"),
        ({"split_queues": [{"queue_id": "a"}, {"queue_id": "a"}]}, "split_queues.1"),
        ({"split_queues": [{"queue_id": "a", "what": 1}]}, "split_queues.0.what"),
        ({"split_queues": {str(n): {} for n in range(101)}}, "split_queues"),
    ],
)
def test_a_fault_of_the_whole_is_refused_with_its_place(document: object, place: str) -> None:
    with pytest.raises(BadFilter) as refused:
        parse(document)
    assert refused.value.place == place


KEYS = st.text(max_size=5) | st.sampled_from(
    [
        *("split_queues", "q", "queue_id", "queue_type", "queue_mode", "message_filter", "jq_filter"),
        *("feature", "filter", "metadata", "any_of", "all_of"),
    ]
)
JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.sampled_from(["SQS", "mirror", "^a$", "."]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS | st.integers(), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.one_of(
        JUNK,
        JUNK.map(lambda junk: {"split_queues": junk}),
        JUNK.map(lambda junk: {"split_queues": {"q": junk}}),
        JUNK.map(lambda junk: {"split_queues": {"q": {"filter": junk}}}),
        JUNK.map(lambda junk: {"feature": {"split_queues": junk}}),
    )
)
def test_any_document_is_parsed_or_refused(document: object) -> None:
    describe_ignored(document)
    with contextlib.suppress(BadFilter):
        assert parse(document)


# jq


def outputs(program: str, message: Message, **more: Any) -> Iterable[object]:
    return iter(jq_library.compile(program).input_text(jq.build_document(message, **more)))


MESSAGE = Message(
    message_id="m-1",
    body='{"important": true}',
    attributes={"n": Value("Number.int", "7"), "b": Value("Binary", b"\x00\xff")},
    system={"SentTimestamp": "1", "MessageGroupId": "g"},
)


@pytest.mark.parametrize(
    "program",
    [
        ".Body | fromjson | .important == true",
        '.MessageId == "m-1"',
        '.Attributes.SentTimestamp == "1"',
        '.MessageAttributes.n == {"DataType": "Number.int", "StringValue": "7"}',
        '.MessageAttributes.b == {"DataType": "Binary", "BinaryValue": "AP8="}',
        'has("S3Metadata") | not',
        "1, true, false",
    ],
)
def test_jq_sees_the_message_as_the_api_shows_it(program: str) -> None:
    assert jq.find_decision(outputs(program, MESSAGE)) is True


def test_jq_sees_the_metadata_of_s3_objects() -> None:
    assert jq.find_decision(outputs('.S3Metadata.author == "me"', MESSAGE, s3_metadata={"author": "me"})) is True


def test_jq_on_a_body_that_is_not_json_is_no_match() -> None:
    message = Message(message_id="m", body="not JSON")
    assert jq.find_decision(outputs(".Body|fromjson|.important==true", message)) is None


def test_the_first_boolean_decides() -> None:
    assert jq.find_decision(outputs("false, true", MESSAGE)) is False
    assert jq.find_decision(outputs('"a", 1, null', MESSAGE)) is None
    assert jq.find_decision(outputs('true, error("late")', MESSAGE)) is True
    assert jq.find_decision(outputs('error("early"), true', MESSAGE)) is None
    assert jq.find_decision(outputs("true, repeat(1)", MESSAGE)) is True


# Envelopes

ENVELOPE = {
    "Type": "Notification",
    "MessageId": "e",
    "SequenceNumber": "10000000000000000000",  # of a FIFO topic, whose notifications have no signature
    "TopicArn": "arn:aws:sns:eu-west-1:000000000000:t.fifo",
    "Message": "hello",
    "MessageAttributes": {
        "author": {"Type": "String", "Value": "me"},
        "odd": 3,
        "b": {"Type": "Binary", "Value": "AA=="},
    },
}


def test_an_sns_envelope_has_attributes() -> None:
    attributes = read_notification_attributes(json.dumps(ENVELOPE))
    assert attributes == {"author": Value("String", "me"), "b": Value("Binary", "AA==")}


@pytest.mark.parametrize(
    "body",
    [
        "",
        "Notification",
        '"Notification"',
        '{"Type": "Notification"}',
        json.dumps({**ENVELOPE, "Type": "SubscriptionConfirmation"}),
        json.dumps({**ENVELOPE, "MessageAttributes": None}),
        "[" * 100_000 + '"Notification"',
    ],
)
def test_what_is_no_envelope_has_none(body: str) -> None:
    assert read_notification_attributes(body) == {}


def test_an_s3_event_names_its_objects_also_within_an_envelope() -> None:
    record = {
        "eventSource": "aws:s3",
        "s3": {"bucket": {"name": "b"}, "object": {"key": "a+b%2Fc.txt", "versionId": "v"}},
    }
    event = json.dumps({"Records": [record, {"eventSource": "aws:s3"}, 1]})
    expected = (S3Object(bucket="b", key="a b/c.txt", version_id="v"),)
    assert Envelope().objects(event) == expected
    assert Envelope(sns=True).objects(json.dumps({**ENVELOPE, "Message": event})) == expected
    assert Envelope().objects(json.dumps({**ENVELOPE, "Message": event})) == ()
    assert Envelope().objects('{"Event": "s3:TestEvent"}') == ()
