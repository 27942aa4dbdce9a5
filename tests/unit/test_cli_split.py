"""`sluice split` without AWS: filters from files and options, a program on a session, a queue put into cdk.json."""

import json
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from sluice.aws.control_client import Refused
from sluice.cli.filters import filters_document
from sluice.cli.programs import run_program, variables
from sluice.cli.registration import BadRegistration, register_queue
from sluice.cli.sessions import OpenSession, SessionFailed, session
from sluice.errors import BadFilter, BadParameter

PROJECT = Path(__file__).parents[2]


class FakeControl:
    """Answers as the control function would: ready at the second look."""

    def __init__(self, *statuses: str) -> None:
        self.statuses = list(statuses) or ["Ready"]
        self.asked: list[str] = []

    def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        self.asked.append(op)
        status = self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]
        if op == "stop" and status == "Gone":
            raise Refused("no session s")
        return {
            "session_id": "s",
            "status": status,
            "reason": "because",
            "queues": [{"queue_id": queue_id, "url": f"https://sqs/{queue_id}"} for queue_id in ("one", "two")],
        }


def test_options_and_files_say_the_same(tmp_path: Path) -> None:
    document = {
        "split_queues": {
            "q": {"message_filter": {"user": "^me$"}, "queue_mode": "mirror"},
            "r": {"jq_filter": ".Body | length > 3"},
        }
    }
    assert filters_document(None, ["q:user=^me$"], jq=["r:.Body | length > 3"], mirror=["q"]) == document
    (tmp_path / "f.json").write_text(json.dumps(document))
    assert filters_document(tmp_path / "f.json", []) == document
    (tmp_path / "f.yaml").write_text("split_queues:\n  q: {message_filter: {user: ^me$}}\n")
    assert filters_document(tmp_path / "f.yaml", []) == {"split_queues": {"q": {"message_filter": {"user": "^me$"}}}}


@pytest.mark.parametrize(
    ("name", "text", "place"),
    [
        ("f.yaml", "split_queues: [", "f.yaml"),
        ("f.json", "{", "f.json"),
        ("f.yaml", "- a", "f.yaml: is no map"),
        ("f.yaml", "split_queues: {q: {message_filter: {user: '('}}}", "split_queues.q.message_filter.user"),
        ("f.yaml", "split_queues: {q: {message_filter: {on: x}}}", "quote it"),
        ("f.yaml", "split_queues: {q: {jq_filter: snow}}", "split_queues.q.jq_filter"),
    ],
)
def test_a_bad_file_is_named_with_the_place(tmp_path: Path, name: str, text: str, place: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(BadFilter) as caught:
        filters_document(tmp_path / name, [])
    assert place in str(caught.value)


@pytest.mark.parametrize(
    ("options", "fields", "place"),
    [
        (["user=me"], {}, "--filter"),
        (["q:user"], {}, "--filter"),
        (["q:user=a", "q:user=b"], {}, "given twice"),
        ([], {"jq": ["q"]}, "--jq"),
        ([], {"mirror": ["q"]}, "--mirror"),
        ([], {}, "split_queues"),
    ],
)
def test_a_bad_option_is_named(options: list[str], fields: dict[str, Any], place: str) -> None:
    with pytest.raises(BadFilter) as caught:
        filters_document(None, options, **fields)
    assert place in str(caught.value)


def test_a_session_is_waited_for_and_stopped_at_the_end() -> None:
    control = FakeControl("Starting", "ResourcesReady", "Ready")
    with session(control, {}, owner="me") as opened:  # type: ignore[arg-type]
        assert opened.document["status"] == "Ready"
    assert control.asked == ["start", "status", "status", "stop"]


def test_a_session_that_fails_to_start_says_why_and_is_stopped() -> None:
    control = FakeControl("Starting", "StartError")
    with pytest.raises(SessionFailed, match="StartError: because"), session(control, {}, owner="me"):  # type: ignore[arg-type]
        pass
    assert control.asked[-1] == "stop"


def test_stopping_what_has_ended_is_no_error() -> None:
    with session(FakeControl("Ready", "Gone"), {}, owner="me"):  # type: ignore[arg-type]
        pass


def opened(*statuses: str) -> OpenSession:
    control = FakeControl(*statuses)
    return OpenSession(control, control.ask("status"))  # type: ignore[arg-type]


def test_a_program_reads_its_queues_from_variables() -> None:
    assert variables(opened(), ["A=one", "two"]) == {"A": "https://sqs/one", "SLUICE_QUEUE_URL": "https://sqs/two"}
    with pytest.raises(SessionFailed, match="several queues"):
        variables(opened(), [])
    with pytest.raises(SessionFailed, match="'three'"):
        variables(opened(), ["three"])


def test_a_program_gets_its_variables_and_its_exit_code_is_ours(tmp_path: Path) -> None:
    out = tmp_path / "out"
    program = f"import os, sys; open({str(out)!r}, 'w').write(os.environ['A']); sys.exit(7)"
    assert run_program([sys.executable, "-c", program], {"A": "url"}, opened()) == 7
    assert out.read_text() == "url"


def test_a_program_that_isnt_there_is_said_in_one_line() -> None:
    with pytest.raises(SessionFailed, match="no-such-program: No such file"):
        run_program(["no-such-program"], {}, opened())


def test_a_program_is_asked_to_end_when_its_session_ends() -> None:
    ending = opened()
    threading.Timer(0.3, ending.ended.set).start()
    assert run_program([sys.executable, "-c", "import time; time.sleep(60)"], {}, ending) == 128 + 15


def test_a_heartbeat_finds_out_that_the_session_has_ended() -> None:
    ending = opened("Ready", "Closing")
    ending.beat()
    assert ending.ended.is_set()
    assert ending.reason == "because"


def test_a_registered_queue_is_checked_and_written(tmp_path: Path) -> None:
    cdk_json = tmp_path / "cdk.json"
    cdk_json.write_text((PROJECT / "cdk.json").read_text())
    register_queue(cdk_json, {"queue_id": "orders", "fifo": True})
    queues = json.loads(cdk_json.read_text())["context"]["sluice"]["splitting"]["queues"]
    assert queues[-1] == {"queue_id": "orders", "fifo": True}
    before = cdk_json.read_text()
    with pytest.raises(BadParameter, match="listed twice"):
        register_queue(cdk_json, {"queue_id": "orders"})
    assert cdk_json.read_text() == before
    with pytest.raises(BadRegistration, match=r"cdk\.json"):
        register_queue(tmp_path / "other" / "cdk.json", {"queue_id": "orders"})
