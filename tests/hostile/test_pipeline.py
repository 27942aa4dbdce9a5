"""Whatever is notified, asked of jobs, left in the staging folder or configured: read, or refused with the reason."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sluice_spark.formats.envelopes import S3Selection, unwrap

from sluice.message import MAX_ATTRIBUTES
from sluice.parameters import Parameters, parameter_schemas
from sluice.pipeline.operations import JobsOperation
from tests.hostile.hostile_values import any_texts, bent, documents, scalars, spelled, sqs_texts
from tests.hostile.limits import MIB, in_child, told, within
from tests.hostile.pipeline_entries import arguments, asked, dead_letter, names, notification, parameters, segment
from tests.many_cases import some_of

RECORD = {
    "eventSource": "aws:s3",
    "eventName": "ObjectCreated:Put",
    "eventTime": "2026-01-01T00:00:00Z",
    "s3": {
        "bucket": {"name": "b"},
        "object": {"key": "a%2Fb+c", "size": 1, "eTag": "e", "versionId": "v", "sequencer": "1"},
    },
}
S3 = {"Records": [RECORD, RECORD | {"eventName": "ObjectRemoved:Delete"}]}
SNS = {"Type": "Notification", "MessageId": "m", "TopicArn": "arn", "Message": json.dumps(S3), "Timestamp": "t"}
EVENT = {
    "id": "i",
    "detail-type": "Object Created",
    "source": "aws.s3",
    "account": "1",
    "region": "r",
    "time": "t",
    "detail": {"bucket": {"name": "b"}, "object": {"key": "k", "etag": "e"}, "reason": "PutObject"},
}
ASKED: list[dict[str, Any]] = [
    *({"op": op} for op in ("reconcile", "start-land", "drain", "status")),
    {"op": "start-statistics", "day": "yesterday"},
    {"op": "start-compact", "days": 7},
    {"op": "start-replay", "exchange": "e", "since": "2026-01-01", "until": "2026-01-02", "staged": True},
    {"op": "stop", "job": "land"},
]
REPLAY = ["replay", "--tables", "/t", "--queue-url", "https://h/q", "--exchange", "e"]
REPLAY += ["--from", "2026-01-01", "--to", "2026-01-02", "--rate", "5"]
LAND = ["land", "--queue-url", "https://h/1/q", "--staging", "/s", "--checkpoint", "/c", "--tables", "/t"]
LAND += ["--table-format", "parquet", "--quarantine", "/q", "--trigger-seconds", "1", "--late-days", "3", "--drain"]
PARAMETERS = {
    "sluice": {
        "log_level": "INFO",
        "rendezvous": {"held_proxies_min": 1, "allowed_relay_pattern": "^a$", "events_exchange": "events"},
        "splitting": {"queues": [{"queue_id": "q", "fifo": False}], "batch_size": 10},
        "federation": {"exchanges": [{"name": "e", "type": "topic"}], "site": "HERE"},
        "pipeline": {"queue_id": "q", "trigger_s": 5},
    }
}
SEGMENT = (Path(__file__).parent / "corpus" / "staged_files" / "whole.arrow").read_bytes()
lines = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00\n\r/"), min_size=1, max_size=60)


@given(st.one_of(*(spelled(bent(each)) for each in (S3, SNS, EVENT)), spelled(documents), sqs_texts))
def test_a_notification_is_read_or_a_bad_record(body: str) -> None:
    assert told(notification, body).startswith("objects: ")


@pytest.mark.parametrize(
    "body",
    some_of(
        [
            "[" * MIB,
            '{"Records":' * (MIB // 11),
            json.dumps({"Records": [RECORD] * 3_000}),
            json.dumps({"Records": [{}] * 100_000}),
            json.dumps(SNS | {"Message": "[" * 900_000}),
            json.dumps({"detail-type": "x", "detail": "\u20ac" * 100_000}),
        ],
        every=3,
    ),
)
def test_a_notification_of_a_mebibyte_takes_bounded_memory(body: str) -> None:
    assert within(96, lambda: told(notification, body[:MIB])).startswith("objects: ")


def test_an_envelope_in_an_envelope_ends_where_the_options_end() -> None:
    """Each of a thousand within the other is a string in it: the escapes alone double it each time."""
    body = "innermost"
    for _ in range(12):
        body = json.dumps(SNS | {"Message": body})
    [row] = unwrap(body, ("sns",) * 12, S3Selection())
    assert row.body == "innermost"


@given(st.data())
def test_what_an_operator_asks_of_jobs_is_done_or_refused(data: st.DataObject) -> None:
    request = data.draw(bent(data.draw(st.sampled_from(ASKED))))
    if isinstance(request, dict | list):
        assert told(asked, request).startswith(("result", "refused: "))


def test_every_operation_is_among_those_that_are_bent() -> None:
    assert {each["op"] for each in ASKED} == {arg.__struct_config__.tag for arg in JobsOperation.__args__}


@given(st.sampled_from([REPLAY, LAND]).flatmap(lambda well: bent(well, lines)))
def test_a_jobs_arguments_are_taken_or_exit_with_2(given_: Any) -> None:
    said = told(arguments, "\n".join(given_) if isinstance(given_, list) else given_)
    assert said.startswith(("job ", "exit 2: error: ")) or "-h" in given_


@given(st.lists(lines, max_size=4))
def test_what_is_being_written_is_no_segment(given_: list[str]) -> None:
    hidden = [f".-{name}" for name in given_]
    assert names("\n".join(["00000000000000000000.arrow", *hidden])) == "segments: [0]"


@given(st.integers(0, 6), st.binary(max_size=64))
def test_a_file_that_is_no_segment_is_refused(head: int, content: bytes) -> None:
    if not content.startswith(b"W1"[: max(0, 6 - head)]) or head < 4:
        assert segment(b"ARROW1"[:head] + b"!" + content).startswith("refused: UnknownFormat: ")


def test_a_segment_with_any_bit_wrong_ends_nothing() -> None:
    """Arrow is C++, and trusts what it reads: in a process of its own a bit is turned at each eighth byte."""
    code = (
        "sys.path.insert(0, 'spark')\n"
        "import pyarrow as pa\n"
        "from sluice_spark.log.segments import HEAD_BYTES, parse_header, read_rows\n"
        "whole = open('tests/hostile/corpus/staged_files/whole.arrow', 'rb').read()\n"
        "for place in range(0, len(whole), 8):\n"
        "    content = whole[:place] + bytes([whole[place] ^ 1 << place // 8 % 8]) + whole[place + 1:]\n"
        "    try:\n"
        "        parse_header(content[:HEAD_BYTES])\n"
        "        read_rows(pa.py_buffer(content)).validate(full=True)\n"
        "    except Exception: pass\n"
        "print('alive')"
    )
    ended = in_child(code, megabytes=8_192)
    assert (ended.code, ended.op) == (0, "alive"), ended.complained[-500:]


@given(st.one_of(bent(PARAMETERS), documents))
def test_parameters_are_read_or_the_key_is_named(context: Any) -> None:
    if not isinstance(context, dict):
        return
    text = json.dumps(context)
    assert told(parameters, text).startswith(("read", "refused: parameter sluice"))


@given(st.data())
def test_a_parameter_of_the_command_line_is_read_or_refused(data: st.DataObject) -> None:
    key = data.draw(st.sampled_from(sorted(parameter_schemas())))
    value = data.draw(st.one_of(any_texts, scalars, documents))
    said = told(parameters, json.dumps({key: value}))
    assert said.startswith(("read", "refused: parameter sluice"))


def test_parameters_of_a_mebibyte_are_refused_within_bounded_memory() -> None:
    values: list[Any] = ["[" * MIB, [{}] * 20_000, {"a": "x" * MIB}]
    for value in values:
        context = {"sluice": {"rendezvous": {"bridges": value}}}
        said = within(96, partial(parameters, json.dumps(context)))
        assert said.startswith("refused: parameter sluice.rendezvous.bridges: ")
    assert Parameters.from_context({}) == Parameters()


@given(spelled(st.dictionaries(any_texts, bent({"dataType": "String", "stringValue": "v"}), max_size=12)))
def test_a_dead_letter_is_read_with_its_messages_own_attributes(text: str) -> None:
    said = told(dead_letter, text).removeprefix("attributes: ")
    assert said == "sluice-attributes" or said.count(", ") >= MAX_ATTRIBUTES - 2  # it was packed for want of room
