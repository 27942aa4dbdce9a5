"""jq programs in a process of their own, in real time, as there is no other: short limits instead of a clock."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from sluice.splitting import jq_runner
from sluice.splitting.filters.jq import NotRunning, ProgramTimedOut
from sluice.splitting.jq_runner import JqRunner, compile_problem

SHORT_S = 0.1  # for a program that never ends
LONG_S = 60.0  # for one that does, also where others have the processors


@pytest.fixture
def runner() -> Iterator[JqRunner]:
    running = JqRunner(time_limit_s=LONG_S)
    yield running
    running.close()


@pytest.mark.parametrize(
    ("program", "decided"),
    [
        (".n == 1", True),
        (".n == 2", False),
        ("false, true", False),
        (".n", None),
        ("empty", None),
        (".n | error", None),
        ('"text", true', True),
        ("error, true", None),
    ],
)
def test_the_first_boolean_decides(runner: JqRunner, program: str, decided: bool | None) -> None:
    assert runner(program, '{"n": 1}') is decided


def test_an_endless_program_times_out_and_the_next_one_runs(runner: JqRunner) -> None:
    for _ in range(2):
        runner.time_limit_s = SHORT_S
        with pytest.raises(ProgramTimedOut, match="still running"):
            runner("def f: f; f", "{}")
        runner.time_limit_s = LONG_S
        assert runner("true", "{}") is True


def test_a_process_that_ends_by_itself_is_replaced(runner: JqRunner) -> None:
    assert runner("true", "{}") is True
    assert runner._child is not None
    runner._child.kill()
    runner._child.wait()
    # The program that comes next isn't to blame: its session would be cancelled.
    assert runner("true", "{}") is True


def test_a_process_that_ends_amid_a_program_is_blamed_on_it(runner: JqRunner) -> None:
    assert runner("true", "{}") is True
    child = runner._child
    assert child is not None
    idle = used_ticks(child.pid)

    def kill() -> None:
        while 0 <= used_ticks(child.pid) <= idle + 1:  # until the program runs
            time.sleep(0.01)
        child.kill()

    killing = threading.Thread(target=kill)
    killing.start()
    with pytest.raises(ProgramTimedOut, match="ended"):
        runner("def f: f; f", "{}")
    killing.join()
    assert runner("true", "{}") is True


def test_a_program_that_has_timed_out_leaves_no_process_behind(runner: JqRunner) -> None:
    assert runner("true", "{}") is True
    child = runner._child
    assert child is not None
    runner.time_limit_s = SHORT_S
    with pytest.raises(ProgramTimedOut):
        runner("def f: f; f", "{}")
    assert child.returncode is not None


def test_a_program_does_not_see_the_functions_variables(runner: JqRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    """A filter could tell its owner the function's credentials, bit by bit, by what it matches."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    for program in ('$ENV | has("AWS_SECRET_ACCESS_KEY")', 'env | has("AWS_SECRET_ACCESS_KEY")'):
        assert runner(program, "{}") is False


@pytest.mark.parametrize(
    "program", ['import "{0}" as $data {{search: "{1}"}}; $data[0]', 'include "{0}" {{search: "{1}"}}; true']
)
@pytest.mark.parametrize("name", ["there", "missing"])
def test_a_program_reads_no_file_and_learns_nothing_of_it(tmp_path: Path, program: str, name: str) -> None:
    for ending in ("json", "jq"):
        (tmp_path / f"there.{ending}").write_text("true" if ending == "json" else "def f: true;")
    assert compile_problem(program.format(name, tmp_path)) == "it imports a module: filters can't read files"
    assert compile_problem(".import == true and .include") is None


@pytest.mark.parametrize("program", ["halt", '"x" | halt_error', "input", "debug | empty", "stderr | empty"])
def test_what_a_program_does_besides_deciding_harms_nobody(runner: JqRunner, program: str) -> None:
    assert runner(program, "{}") is None
    assert runner("true", "{}") is True


def test_a_large_document_gets_there(runner: JqRunner) -> None:
    assert runner(".body | length == 1000000", '{"body": "' + "x" * 1_000_000 + '"}') is True


def test_the_compilers_own_words_are_told() -> None:
    assert compile_problem(".a == true") is None
    assert "snow" in (compile_problem("snow") or "")


def test_a_program_that_takes_all_memory_as_it_compiles_is_refused_and_the_next_compiles() -> None:
    """Jq works out constants when it compiles."""
    assert "want of memory" in (compile_problem('"x" * 1e9 | length') or "")
    assert compile_problem(".a == true") is None


def test_a_program_that_takes_all_memory_is_ended_and_the_next_one_runs(runner: JqRunner) -> None:
    with pytest.raises(ProgramTimedOut, match="want of memory"):
        runner('("x" * 1e9 | length), true', "null")
    assert runner("true", "null") is True


def test_where_no_process_can_be_started_no_program_is_to_blame(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jq_runner, "START_LIMIT_S", 0.0)
    starting = JqRunner()
    with pytest.raises(NotRunning):
        starting("true", "null")
    assert starting._child is None


def test_what_runs_programs_is_started_once(runner: JqRunner) -> None:
    runner.ensure_started()
    child = runner._child
    runner.ensure_started()
    assert runner("true", "null") is True
    assert runner._child is child


FUNCTION = """
from sluice.splitting.jq_runner import JqRunner
runner = JqRunner(time_limit_s=600)
runner("true", "null")
print(runner._child.pid, flush=True)
runner("def f: f; f", "{}")
"""
BUSY_TICKS = 5  # of the processor's clock, some 0.05 s
ENDS_WITHIN_S = 60.0  # that only a process that stays exceeds


def test_an_endless_program_ends_with_the_process_that_asked() -> None:
    """However that ends: here by a kill, as at a function's time-out where nobody ends its children."""
    function = subprocess.Popen([sys.executable, "-c", FUNCTION], stdout=subprocess.PIPE, text=True)
    assert function.stdout is not None
    child = int(function.stdout.readline())
    try:
        idle = used_ticks(child)
        while used_ticks(child) < idle + BUSY_TICKS:
            time.sleep(0.05)
        function.kill()
        function.wait()
        deadline = time.monotonic() + ENDS_WITHIN_S
        while used_ticks(child) >= 0 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert used_ticks(child) < 0
    finally:
        function.stdout.close()
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)


def used_ticks(pid: int) -> int:
    """The processor's time that a process has had; less than none where it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()
    except FileNotFoundError:
        return -1
    return -1 if fields[0] == "Z" else int(fields[11])
