"""`sluice split` without AWS: filters from files and options, a program on a session, a queue put into cdk.json."""

import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sluice.cli.sites import add_local_value
from sluice.cli.splitting import commands as split
from sluice.cli.splitting import programs
from sluice.cli.splitting.filters import read_filters
from sluice.cli.splitting.programs import build_queue_options, build_queue_variables, run_program
from sluice.cli.splitting.registration import BadRegistration, add_queue
from sluice.errors import BadFilter, BadParameter, CallFailed, RequestRefused
from sluice.message import Message, Value
from sluice.operations import Operation
from sluice.operator.sessions import OpenSession, SessionFailed, build_session_document, open_session
from sluice.splitting.filters.texts import FilterInput
from sluice.splitting.filters.values import Filter, Mode, QueueFilter, Share
from sluice.splitting.operations import (
    AnySession,
    EndedSession,
    FindSession,
    KeepSession,
    SessionQueueView,
    SessionStatus,
    SessionView,
    StartSession,
    StopSession,
)
from sluice.splitting.routing.router import Router
from sluice.splitting.sessions.state import Status
from tests.fakes import Clock

PROJECT = Path(__file__).parents[4]


ASKED = {"one": QueueFilter(filter=Filter(attributes=(("client", "^a$"),)), mode=Mode.MIRROR)}


def view_of(status: str) -> AnySession:
    if status == "Gone":
        return EndedSession(session_id="s", reason="because")
    queues = tuple(
        SessionQueueView(queue_id=queue_id, mode=Mode.STEAL, name=queue_id, url=f"https://sqs/{queue_id}", returned=0)
        for queue_id in ("one", "two")
    )
    return SessionView(
        session_id="s",
        key="s",
        owner="me",
        status=Status(status),
        reason="because",
        started_at_ms=0,
        heartbeat_at_ms=5,
        messages=7,
        filters=ASKED,
        queues=queues,
    )


class FakeControl:
    """Answers as the control function would: ready at the second look."""

    def __init__(self, *statuses: str) -> None:
        self.statuses = list(statuses) or ["Ready"]
        self.asked: list[type] = []

    def ask(self, operation: Operation[Any]) -> Any:
        self.asked.append(type(operation))
        status = self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]
        if isinstance(operation, StopSession) and status == "Gone":
            raise RequestRefused("no session s")
        if isinstance(operation, KeepSession):
            return SessionStatus(session_id="s", status=Status(status), reason="because")
        return view_of(status)


def test_a_session_is_json_as_programs_read_it() -> None:
    queue = {"mode": "steal", "asks_for": "", "shadowed_by": "", "returned": 0}
    assert build_session_document(view_of("Ready")) == {
        "session_id": "s",
        "name": "",
        "key": "s",
        "owner": "me",
        "status": "Ready",
        "reason": "because",
        "started_at_ms": 0,
        "heartbeat_at_ms": 5,
        "messages": 7,
        "filters": {"one": {"filter": {"attributes": (("client", "^a$"),), "jq": None}, "mode": "mirror"}},
        "queues": (
            {"queue_id": "one", "name": "one", "url": "https://sqs/one", **queue},
            {"queue_id": "two", "name": "two", "url": "https://sqs/two", **queue},
        ),
    }
    assert build_session_document(view_of("Gone")) == {
        "session_id": "s",
        "status": "Ended",
        "reason": "because",
        "queues": (),
    }


def test_options_and_files_say_the_same(tmp_path: Path) -> None:
    document = {
        "split_queues": {
            "q": {"message_filter": {"user": "^me$"}, "queue_mode": "mirror"},
            "r": {"jq_filter": ".Body | length > 3"},
        }
    }
    mine = Filter(attributes=(("user", "^me$"),))
    asked = {
        "q": QueueFilter(filter=mine, mode=Mode.MIRROR),
        "r": QueueFilter(filter=Filter(jq=".Body | length > 3")),
    }
    assert read_filters(None, ["q:user=^me$"], jq=["r:.Body | length > 3"], mirror=["q"])[0] == asked
    (tmp_path / "f.json").write_text(json.dumps(document))
    assert read_filters(tmp_path / "f.json", [])[0] == asked
    (tmp_path / "f.yaml").write_text("split_queues:\n  q: {message_filter: {user: ^me$}}\n")
    assert read_filters(tmp_path / "f.yaml", [])[0] == {"q": QueueFilter(filter=mine)}


@pytest.mark.parametrize(
    ("name", "text", "place"),
    [
        ("f.yaml", "split_queues: [", "f.yaml"),
        ("f.json", "{", "f.json"),
        ("f.json", "[" * 100_000, "f.json"),
        ("f.yaml", "[" * 1_000, "f.yaml"),
        ("f.yaml", "", "f.yaml: is no map"),
        ("f.yaml", "a: b: c", "f.yaml"),
        ("f.yaml", "{}", "split_queues: is missing"),
        ("f.yaml", "split_queues: {}", "names no queue"),
        ("f.yaml", "split_queues: {q: {message_filter: {user: 1}}}", "split_queues.q.message_filter.user: is a number"),
        ("f.yaml", "split_queues: {q: {filter: x}}", "split_queues.q.filter: is text, not a map"),
        ("f.yaml", "split_queues: {q: {sieve: x}}", "split_queues.q.sieve: unknown field"),
        ("f.yaml", "split_queues: {q: {queue_type: Kafka}}", "split_queues.q.queue_type"),
        ("f.yaml", "split_queues: [{queue_id: q}, {queue_mode: steal}]", "split_queues.1.queue_id: is missing"),
        ("f.json", '{"split_queues": {"q": {"queue_mode": "copy"}}}', "split_queues.q.queue_mode"),
        ("f.json", '{"split_queues": {"q": {"jq_filter": ""}}}', "split_queues.q.jq_filter"),
        ("f.yaml", "- a", "f.yaml: is no map"),
        ("f.yaml", "split_queues: {q: {message_filter: {user: '('}}}", "split_queues.q.message_filter.user"),
        ("f.yaml", "split_queues: {q: {message_filter: {on: x}}}", "quote it"),
        ("f.yaml", "split_queues: {q: {jq_filter: snow}}", "split_queues.q.jq_filter"),
    ],
)
def test_a_bad_file_is_named_with_the_place(tmp_path: Path, name: str, text: str, place: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(BadFilter) as caught:
        read_filters(tmp_path / name, [])
    assert place in str(caught.value)


def test_a_file_that_cant_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "latin.yaml").write_bytes(b"split_queues: {\xe4: {}}")
    for name in ("missing.yaml", "latin.yaml"):
        with pytest.raises(BadFilter, match=name):
            read_filters(tmp_path / name, [])


def test_a_whole_mirrord_json_is_taken_with_a_note_on_the_rest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mirrord.json"
    lines = {"filter": {"metadata": "^baggage: .*mirrord-session={{ key }}"}}
    file.write_text(json.dumps({"target": "deployment/app", "feature": {"split_queues": {"q": lines}, "env": {}}}))
    asked, _ = read_filters(file, [], key="alice@home")
    assert asked == {"q": QueueFilter(filter=Filter(all_of=(r"^baggage: .*mirrord-session=alice@home",)))}
    output = capsys.readouterr()
    assert output.err == f"{file}: left out, as it isn't about SQS queues: feature.env, target\n"
    assert output.out == ""


@pytest.mark.parametrize(
    ("baggage", "taken"),
    [
        ("k=v,mirrord-session=al.ice,x=1", True),
        ("mirrord-session=al.ice", True),
        ("mirrord-session=al.ice2", False),
        ("mirrord-session=al.ice-too", False),
        ("mirrord-session=alxice", False),
        ("session=al.ice", False),
    ],
)
def test_a_key_alone_takes_what_carries_it_of_every_queue(baggage: str, taken: bool) -> None:
    asked, _ = read_filters(None, [], key="al.ice", mirror=["*"])
    assert asked["*"].mode is Mode.MIRROR
    share = Share(session_id="A", key="al.ice", started_at_ms=0, filter=asked["*"].filter)
    message = Message(message_id="m", body="b", attributes={"baggage": Value("String", baggage)})
    found = Router.build([share], decide=lambda *_: None).find_recipients(FilterInput.from_message(message))
    assert found.stealing == (share if taken else None)
    assert list(read_filters(None, ["q:a=^{{ key }}$"], key="x")[0]) == ["q"]


def test_a_file_goes_without_options(tmp_path: Path) -> None:
    with pytest.raises(BadFilter, match=r"can.t be combined with"):
        read_filters(tmp_path / "f.yaml", ["q:user=me"])


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
        read_filters(None, options, **fields)
    assert place in str(caught.value)


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        (["--local"], ["--local", "first"]),
        (["--local", "--json"], ["--local", "first", "--json"]),
        (["--local", "000000000000/eu-central-1"], ["--local", "000000000000/eu-central-1"]),
        (["--local", "--", "program", "--local"], ["--local", "first", "--", "program", "--local"]),
    ],
)
def test_local_may_stand_alone_and_a_programs_own_options_are_left_alone(said: list[str], meant: list[str]) -> None:
    assert add_local_value(said) == meant


def test_a_session_is_waited_for_and_stopped_at_the_end() -> None:
    control = FakeControl("Starting", "ResourcesReady", "Ready")
    with open_session(control, ASKED, owner="me") as opened:  # type: ignore[arg-type]
        assert opened.view.status == "Ready"
    assert control.asked == [StartSession, FindSession, FindSession, StopSession]


def test_how_far_a_session_is_is_told_once() -> None:
    control, told = FakeControl("Starting", "Starting", "ResourcesReady", "ResourcesReady", "Ready"), list[str]()
    with open_session(control, ASKED, owner="me", progress=told.append):  # type: ignore[arg-type]
        assert told == ["Starting", "ResourcesReady"]


def test_a_session_that_fails_to_start_says_why_and_is_stopped() -> None:
    control = FakeControl("Starting", "StartError")
    with pytest.raises(SessionFailed, match="StartError: because"), open_session(control, ASKED, owner="me"):  # type: ignore[arg-type]
        pass
    assert control.asked[-1] is StopSession


def test_stopping_what_has_ended_is_no_error() -> None:
    with open_session(FakeControl("Ready", "Gone"), ASKED, owner="me"):  # type: ignore[arg-type]
        pass


def opened(*statuses: str) -> OpenSession:
    control = FakeControl(*statuses)
    return OpenSession(control, control.ask(FindSession(session_id="s")))  # type: ignore[arg-type]


def test_a_program_reads_its_queues_from_variables() -> None:
    def variables(*options: str) -> Mapping[str, str]:
        return build_queue_variables({"one": "https://sqs/one", "two": "https://sqs/two"}, options)

    assert variables("A=one", "two") == {
        "A": "https://sqs/one",
        "A_NAME": "one",
        "SLUICE_QUEUE_URL": "https://sqs/two",
        "SLUICE_QUEUE_NAME": "two",
    }
    assert variables("ORDERS_URL=one", "QUEUE_NAME=two") == {
        "ORDERS_URL": "https://sqs/one",
        "ORDERS_NAME": "one",
        "QUEUE_NAME": "two",
    }
    assert variables("A_NAME=one", "A_URL=two") == {"A_NAME": "one", "A_URL": "https://sqs/two"}
    assert build_queue_variables({"one": "/one"}, []) == {"SLUICE_QUEUE_URL": "/one", "SLUICE_QUEUE_NAME": "one"}


@pytest.mark.parametrize(
    ("options", "refusal"),
    [
        ([], "several queues"),
        (["three"], "--queue: the session has no queue 'three'"),
        (["one", "two"], "--queue: 'SLUICE_QUEUE_URL' can't be a variable, or is assigned twice"),
        (["A=one", "A=two"], "--queue: 'A' can't"),
        (["A B=one"], "--queue: 'A B' can't be a variable"),
    ],
)
def test_queues_that_cannot_be_variables_are_refused(options: list[str], refusal: str) -> None:
    with pytest.raises(SessionFailed, match=refusal):
        build_queue_variables({"one": "/one", "two": "/two"}, options)


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


@pytest.mark.parametrize(("code", "reason"), [(1, "because"), (0, "")])
def test_whether_the_session_ended_is_asked_when_a_program_fails(code: int, reason: str) -> None:
    """After a machine has slept its session is over, and the program fails before the next heartbeat."""
    asleep = opened("Ready", "Closing")
    assert run_program([sys.executable, "-c", f"raise SystemExit({code})"], {}, asleep) == code
    assert asleep.reason == reason


def test_a_heartbeat_finds_out_that_the_session_has_ended() -> None:
    ending = opened("Ready", "Closing")
    ending.send_heartbeat()
    assert ending.ended.is_set()
    assert ending.reason == "because"


def test_a_registered_queue_is_checked_and_written(tmp_path: Path) -> None:
    cdk_json = tmp_path / "cdk.json"
    cdk_json.write_text((PROJECT / "cdk.json").read_text())
    registration = add_queue(cdk_json, {"queue_id": "orders", "fifo": True})
    cdk_json.write_text(json.dumps(registration.document))
    queues = json.loads(cdk_json.read_text())["context"]["sluice"]["splitting"]["queues"]
    assert queues[-1] == {"queue_id": "orders", "fifo": True}
    before = cdk_json.read_text()
    with pytest.raises(BadParameter, match="listed twice"):
        add_queue(cdk_json, {"queue_id": "orders"})
    assert cdk_json.read_text() == before
    with pytest.raises(BadRegistration, match=r"cdk\.json"):
        add_queue(tmp_path / "other" / "cdk.json", {"queue_id": "orders"})


def test_whatever_ends_the_program_stops_the_session() -> None:
    control = FakeControl()
    with pytest.raises(KeyboardInterrupt), open_session(control, ASKED, owner="me"):  # type: ignore[arg-type]
        raise KeyboardInterrupt
    assert control.asked[-1] is StopSession


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_is_the_programs_and_so_is_its_exit_code(tmp_path: Path, number: signal.Signals) -> None:
    """It ends in its own way: what it was at is finished before its session ends."""
    up = tmp_path / "up"
    program = (
        "import pathlib, signal, sys, time;"
        f"signal.signal({int(number)}, lambda *_: sys.exit(3));"
        f"pathlib.Path({str(up)!r}).touch();"
        "time.sleep(60)"
    )
    before = signal.getsignal(number)
    with _once_there(up, lambda: os.kill(os.getpid(), number)):
        assert run_program([sys.executable, "-c", program], {}, opened()) == 3
    assert signal.getsignal(number) is before


def test_a_program_killed_by_a_signal_has_a_shells_exit_code() -> None:
    program = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    assert run_program([sys.executable, "-c", program], {}, opened()) == 128 + 9


def test_a_program_that_wont_end_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The limit is a constant of the command line's, and twenty seconds are long for a test.
    monkeypatch.setattr(programs, "TERMINATE_TIMEOUT_S", 0.3)
    up = tmp_path / "up"
    program = (
        "import pathlib, signal, time;"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        f"pathlib.Path({str(up)!r}).touch();"
        "time.sleep(60)"
    )
    ending = opened()
    with _once_there(up, ending.ended.set):
        assert run_program([sys.executable, "-c", program], {}, ending) == 128 + 9


@contextmanager
def _once_there(file: Path, act: Callable[[], object]) -> Iterator[None]:
    """Acts, in a thread of its own, when the program has made the file: it is up."""

    def wait() -> None:
        looking = threading.Event()
        while not file.exists():
            looking.wait(0.05)
        act()

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    yield
    waiting.join()


def test_a_heartbeat_that_fails_ends_nothing() -> None:
    going = OpenSession(Failing(CallFailed("Invoke", "TooManyRequests", "by script")), view_of("Ready"))  # type: ignore[arg-type]
    going.send_heartbeat()
    assert not going.ended.is_set()


def test_heartbeats_that_fail_are_noted_once_and_end_the_session_after_a_while() -> None:
    clock, said = Clock(), list[str]()
    failing = Failing(CallFailed("Invoke", "TooManyRequests", "by script"))
    going = OpenSession(failing, view_of("Ready"), say=said.append, now_s=lambda: clock.ms / 1_000)  # type: ignore[arg-type]
    for _ in range(8):
        going.send_heartbeat()
        clock.ms += 8_000
    [note] = said
    assert "heartbeats fail" in note
    assert "TooManyRequests" in note
    assert not going.ended.is_set()
    going.send_heartbeat()
    assert going.ended.is_set()
    assert "no heartbeat for 60 s: Invoke: TooManyRequests" in going.reason


def test_a_heartbeat_that_succeeds_forgets_the_failures_before() -> None:
    clock, said = Clock(), list[str]()
    going = OpenSession(Failing(CallFailed("Invoke", "TooManyRequests", "by script")), view_of("Ready"))  # type: ignore[arg-type]
    going.say, going.now_s = said.append, lambda: clock.ms / 1_000
    for _ in range(3):
        going.client = Failing(CallFailed("Invoke", "TooManyRequests", "by script"))  # type: ignore[assignment]
        going.send_heartbeat()
        clock.ms += 50_000
        going.client = FakeControl()  # type: ignore[assignment]
        going.send_heartbeat()
    assert (len(said), going.ended.is_set()) == (3, False)


def test_a_session_that_nobody_knows_any_more_has_ended() -> None:
    ending = OpenSession(Failing(RequestRefused("no session s: it has ended: Unused")), view_of("Ready"))  # type: ignore[arg-type]
    ending.send_heartbeat()
    assert ending.ended.is_set()
    assert "Unused" in ending.reason


@dataclass
class Failing:
    """Never answers but with an error."""

    error: Exception

    def ask(self, operation: Operation[Any]) -> Any:
        raise self.error


def test_sigterm_ends_a_session_that_isnt_ready_yet() -> None:
    before = signal.getsignal(signal.SIGTERM)
    control = FakeControl("Starting")
    try:
        split._exit_on_sigterm()
        with pytest.raises(SystemExit) as ended, open_session(control, ASKED, owner="me", progress=terminate):  # type: ignore[arg-type]
            pass
    finally:
        signal.signal(signal.SIGTERM, before)
    assert ended.value.code == 128 + signal.SIGTERM
    assert control.asked[-1] is StopSession


def terminate(_: str) -> None:
    os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize(
    ("variables", "options"),
    [
        ({"one": ["ORDERS"]}, ["ORDERS=one", "one"]),
        ({"one": ["A", "B_NAME"], "two": ["C"]}, ["A=one", "B_NAME=one", "C=two"]),
        ({"one": ["A"], "two": ["A"]}, []),
        ({"one": ["A"], "two": []}, []),
        ({"one": []}, []),
        ({"one": ["not-a-name"]}, []),
    ],
)
def test_queues_get_the_variables_of_the_deployed_consumers(
    variables: dict[str, list[str]], options: list[str]
) -> None:
    assert build_queue_options(variables) == options
    if options:
        assert build_queue_variables(dict.fromkeys(variables, "https://sqs/q"), options)
