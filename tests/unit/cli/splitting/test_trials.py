"""Filters tried on a message in a file: what is said of each condition, and the exit code."""

import contextlib
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET
from typer.testing import CliRunner, Result

from sluice.cli.program import app
from sluice.message import Message, Value
from sluice.operator.documents import BadFile
from sluice.operator.messages import read_filter_input
from sluice.splitting.filters.jq import ProgramTimedOut
from sluice.splitting.filters.texts import Envelope, FilterInput
from sluice.splitting.filters.values import Filter
from sluice.splitting.routing.trials import Condition, try_filter

FILTERS = """
split_queues:
  meme-queue: {message_filter: {author: "^me$", level: "^(beginner|intermediate)$"}}
  tenants: {filter: {any_of: [{metadata: "^tenant: {{ key }}$"}, {metadata: "^author: "}]}}
  nothing: {message_filter: {}}
"""
BODY = {"Body": '{"important": true}', "MessageId": "m"}


def api(**attributes: str) -> dict[str, Any]:
    values = {name: {"DataType": "String", "StringValue": value} for name, value in attributes.items()}
    return BODY | {"MessageAttributes": values}


def test_each_condition_has_its_answer(tmp_path: Path) -> None:
    result = asked(tmp_path, FILTERS, api(author="me", level="expert"), "--key", "blue", "--json")
    assert result.exit_code == 0, result.output
    said = json.loads(result.stdout)
    assert said["meme-queue"] == {
        "matches": False,
        "conditions": [
            {"place": "message_filter.author", "asked": "^me$", "answer": "yes"},
            {"place": "message_filter.level", "asked": "^(beginner|intermediate)$", "answer": "no"},
        ],
    }
    assert said["tenants"] == {
        "matches": True,
        "conditions": [
            {"place": "filter.any_of", "asked": "^tenant: blue$", "answer": "no"},
            {"place": "filter.any_of", "asked": "^author: ", "answer": "yes"},
        ],
    }
    assert said["nothing"] == {"matches": False, "conditions": []}


def test_a_person_reads_a_table_and_a_line_a_queue(tmp_path: Path) -> None:
    result = asked(tmp_path, FILTERS, api(author="me", level="beginner"), "--key", "blue")
    assert result.exit_code == 0, result.output
    assert "message_filter.level" in result.stdout
    assert result.stderr.splitlines() == [
        *("meme-queue: takes the message", "tenants: takes the message", "nothing: leaves the message"),
    ]


def test_the_exit_code_is_one_where_no_filter_takes_it(tmp_path: Path) -> None:
    assert asked(tmp_path, FILTERS, api(level="expert"), "--key", "blue").exit_code == 1


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (api(), 0),
        ({"Messages": [api()]}, 0),
        ({"Records": [{"messageId": "m", "body": BODY["Body"], "messageAttributes": {}}]}, 0),
        (BODY | {"Body": "no JSON"}, 1),
    ],
)
def test_a_message_may_be_as_the_api_or_an_event_has_it(tmp_path: Path, message: object, code: int) -> None:
    program = 'split_queues: {q: {jq_filter: ".Body | fromjson | .important == true"}}'
    assert asked(tmp_path, program, message).exit_code == code


def test_a_notification_is_looked_into_where_so_told(tmp_path: Path) -> None:
    attributes = {"tenant": {"Type": "String", "Value": "blue"}}
    envelope = {"Type": "Notification", "TopicArn": "t", "Message": "m", "MessageAttributes": attributes}
    message = {"Body": json.dumps(envelope)}
    filters = 'split_queues: {q: {message_filter: {tenant: "^blue$"}}}'
    assert asked(tmp_path, filters, message, "--sns").exit_code == 0
    assert asked(tmp_path, filters, message).exit_code == 1


def test_metadata_of_s3_is_what_the_file_says(tmp_path: Path) -> None:
    program = """split_queues: {q: {jq_filter: '.S3Metadata.owner == "me"'}}"""
    assert asked(tmp_path, program, BODY | {"S3Metadata": {"owner": "me"}}).exit_code == 0
    assert asked(tmp_path, program, BODY).exit_code == 1


@pytest.mark.parametrize(
    ("message", "place"),
    [
        ({}, "body"),
        ({"Body": 5}, "body"),
        ([], "is no map"),
        ({"Messages": []}, "has 0 messages"),
        ({"Messages": [BODY, BODY]}, "has 2 messages"),
        ({"Records": [5]}, "has 1 messages, not one"),
        (BODY | {"MessageAttributes": {"a": "b"}}, "messageAttributes"),
        (BODY | {"MessageAttributes": {"a": {"StringValue": "b"}}}, "attribute a: "),
        (BODY | {"MessageAttributes": {"a": {"DataType": "Binary", "BinaryValue": "%"}}}, "attribute a: "),
    ],
)
def test_a_file_that_is_no_message_is_named_with_the_place(tmp_path: Path, message: object, place: str) -> None:
    file = tmp_path / "message.json"
    file.write_text(json.dumps(message))
    with pytest.raises(BadFile, match=place):
        read_filter_input(file, envelope=Envelope())


KEYS = st.text(max_size=5) | st.sampled_from(
    ["Body", "body", "Messages", "records", "MessageAttributes", "DataType", "StringValue", "BinaryValue", "S3Metadata"]
)
JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)


@given(JUNK | JUNK.map(lambda junk: BODY | {"MessageAttributes": junk}) | JUNK.map(lambda junk: {"Messages": [junk]}))
def test_any_document_is_a_message_or_refused(document: object) -> None:
    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(BadFile):
        file = Path(folder) / "message.json"
        file.write_text(json.dumps(document))
        read_filter_input(file, envelope=Envelope(sns=True)).lines()


def test_a_binary_attribute_is_read_from_base64(tmp_path: Path) -> None:
    file = tmp_path / "message.json"
    value = {"DataType": "Binary", "BinaryValue": "YQ=="}
    file.write_text(json.dumps(BODY | {"MessageAttributes": {"a": value}}))
    assert read_filter_input(file, envelope=Envelope()).message.attributes == {"a": Value("Binary", b"a")}


def test_a_program_that_times_out_is_its_own_answer() -> None:
    def endless(program: str, document: str) -> bool | None:
        raise ProgramTimedOut

    trial = try_filter(
        Filter(jq="def f: f; f"), FilterInput.from_message(Message(message_id="m", body="")), decide=endless
    )
    assert not trial.matches
    assert trial.conditions == (Condition(place="jq_filter", asked="def f: f; f", answer="jq timed out"),)


PATTERNS = st.lists(st.sampled_from(["^a", "b", "^x: ", "z"]), max_size=3).map(tuple)


@given(PATTERNS, PATTERNS, PATTERNS, st.dictionaries(st.sampled_from("xyz"), st.sampled_from(["a", "ab", "z"])))
def test_a_filter_takes_what_its_conditions_come_to(
    patterns: tuple[str, ...], all_of: tuple[str, ...], any_of: tuple[str, ...], texts: dict[str, str]
) -> None:
    filter_ = Filter(
        attributes=tuple(("x", pattern) for pattern in patterns), all_of=all_of or UNSET, any_of=any_of or UNSET
    )
    attributes = {name: Value("String", text) for name, text in texts.items()}
    trial = try_filter(
        filter_,
        FilterInput.from_message(Message(message_id="m", body="", attributes=attributes)),
        decide=lambda *_: None,
    )
    one_of = [condition.answer == "yes" for condition in trial.conditions if condition.place == "filter.any_of"]
    others = [condition.answer == "yes" for condition in trial.conditions if condition.place != "filter.any_of"]
    assert trial.matches == (bool(trial.conditions) and all(others) and (any(one_of) or not one_of))


def asked(folder: Path, filters: str, message: object, *options: str) -> Result:
    (folder / "filters.yaml").write_text(filters)
    (folder / "message.json").write_text(json.dumps(message))
    files = [str(folder / name) for name in ("filters.yaml", "message.json")]
    return CliRunner().invoke(app, ["split", "test", *files, *options])
