"""The demo's terminal: what is typed is shown and run, and what runs elsewhere ends with it."""

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from sluice.demo.terminal import CommandFailed, Terminal

# Who was started in the background, as a whole suite may be, passes on that ctrl-C is none.
INTERRUPTIBLE = ("env", "--default-signal=INT")
WAITS = """
import sys
from pathlib import Path
from rich.console import Console
from sluice.demo.terminal import Terminal

terminal = Terminal(Path(sys.argv[1]), {"PATH": "/usr/bin:/bin"}, Console())
with terminal.run_in_background("echo it runs; exec sleep 600", name="sleeper") as sleeper:
    sleeper.wait_for_output("it runs")
    sleeper.wait_for_ctrl_c(lambda: print(sleeper.process.pid, flush=True))
print("ended")
"""


@pytest.fixture
def terminal(tmp_path: Path) -> Terminal:
    return Terminal(tmp_path, {"PATH": os.environ["PATH"], "here": "a/b"}, Console(highlight=False))


def test_a_command_is_shown_as_it_is_typed_and_run_where_it_is_typed(
    terminal: Terminal, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal.run("echo $here > place; echo '[bold]' >> place")
    assert capsys.readouterr().out == "$ echo $here > place; echo '[bold]' >> place\n"
    assert (terminal.folder / "place").read_text() == "a/b\n[bold]\n"


def test_a_command_that_fails_ends_the_demo_unless_it_may(terminal: Terminal) -> None:
    terminal.run("exit 3", may_fail=True)
    with pytest.raises(CommandFailed, match=r"(?s)^echo why.*: exit code 3; its files are in .*\nwhy"):
        terminal.run("echo why >&2; exit 3")


@pytest.mark.parametrize("verbose", [False, True])
def test_what_commands_print_is_only_shown_if_asked_for(
    terminal: Terminal, capfd: pytest.CaptureFixture[str], *, verbose: bool
) -> None:
    replace(terminal, verbose=verbose).run("printf 'pri%s\n' nted")
    assert ("printed" in capfd.readouterr().out) is verbose


def test_what_fails_elsewhere_says_why(terminal: Terminal) -> None:
    with terminal.run_in_background("echo no Java; exit 1", name="job") as job:
        with pytest.raises(CommandFailed, match=r"exit code 1\nno Java"):
            job.wait(within_s=60)
        with pytest.raises(CommandFailed, match=r"it doesn't say 'ready'\nno Java"):
            job.wait_for_output("ready")


def test_what_was_started_elsewhere_ends_with_it(terminal: Terminal) -> None:
    os.mkfifo(terminal.folder / "started")
    with terminal.run_in_background("exec 3> started; sleep 600 & wait", name="job"):
        written = (terminal.folder / "started").open()  # once a job has it open, and so what that starts
    with written:
        assert written.read() == ""  # which ends when nobody has it open to write


def test_the_demo_waits_for_ctrl_c(tmp_path: Path) -> None:
    demo = subprocess.Popen(
        [*INTERRUPTIBLE, sys.executable, "-c", WAITS, str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert demo.stdout is not None
    demo.stdout.readline()
    sleeper = int(demo.stdout.readline())
    os.killpg(demo.pid, signal.SIGINT)
    assert demo.communicate(timeout=60) == ("ended\n", "")
    with pytest.raises(ProcessLookupError):
        os.kill(sleeper, 0)
