"""What commands print: whole at any width, coloured for people alone; and how far they are."""

import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from sluice.cli.output import show_pairs, show_table
from sluice.cli.progress import show_steps

ID = "01JDABCDEFGHJKMNPQRSTVWXYZ"
URL = f"https://sqs.eu-central-1.amazonaws.com/123456789012/sluice-tmp-{'x' * 60}"
ARN = f"arn:aws:lambda:eu-central-1:123456789012:function:{'y' * 60}"
PROGRAM = f"""
from sluice.cli.output import show_pairs, show_table
show_table(("session", "status", "url", "arn"), [({ID!r}, "Ready", {URL!r}, {ARN!r}), ("b", "Failed", None, "")])
show_pairs([("url", {URL!r}), ("arn", {ARN!r})])
"""
STEPS = """
from sluice.cli.progress import show_steps
with show_steps(2) as progress:
    progress("[one]")
    progress("two")
"""


def on_terminal(program: str, columns: int, **environment: str) -> str:
    """All that a program writes to a terminal of so many columns."""
    ours, theirs = pty.openpty()
    variables = {name: value for name, value in os.environ.items() if name not in {"NO_COLOR", "FORCE_COLOR", "TERM"}}
    with closing_both(ours):
        process = subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**variables, "TERM": "xterm", "COLUMNS": str(columns), **environment},
        )
        os.close(theirs)
        said = b""
        try:
            while more := os.read(ours, 65536):
                said += more
        except OSError:  # as Linux says that the other end is closed
            pass
        assert process.wait(30) == 0
    return said.decode()


@contextmanager
def closing_both(descriptor: int) -> Iterator[None]:
    try:
        yield
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("columns", [40, 80, 120, 500])
def test_ids_urls_and_arns_are_whole_at_any_width(columns: int) -> None:
    said = on_terminal(PROGRAM, columns, NO_COLOR="1")
    lines = re.sub(r"\x1b\[[0-9;]*m", "", said).splitlines()
    for value in (ID, URL, ARN):
        assert any(value in line for line in lines), value
    assert sum(URL in line for line in lines) == 2
    assert "…" not in said


def test_a_terminal_that_is_too_narrow_for_a_table_gets_a_value_a_line() -> None:
    told = re.sub(r"\x1b\[[0-9;]*m", "", on_terminal(PROGRAM, 80)).split("\r\n")
    assert told[:4] == [f"session  {ID}", "status   Ready", f"url      {URL}", f"arn      {ARN}"]
    assert told[5:7] == ["session  b", "status   Failed"]


def test_piped_a_row_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    show_table(("session", "url", "n"), [(ID, URL, 1.6), ("[b]", None, 12)])
    show_pairs([("sites", "one\ntwo"), ("url", URL)])
    said = capsys.readouterr().out.splitlines()
    assert [line.split() for line in said[:3]] == [["session", "url", "n"], [ID, URL, "2"], ["[b]", "12"]]
    assert said[3:] == ["sites  one", "       two", f"url    {URL}"]


def test_states_have_colours_on_a_terminal_alone_and_not_with_no_color(capsys: pytest.CaptureFixture[str]) -> None:
    assert "\x1b[32mReady" in on_terminal(PROGRAM, 500)
    assert "\x1b[31mFailed" in on_terminal(PROGRAM, 80)
    assert not re.search(r"\x1b\[3[0-9]m", on_terminal(PROGRAM, 500, NO_COLOR="1"))
    show_table(("state",), [("Ready",)])
    assert "\x1b" not in capsys.readouterr().out


def test_an_error_is_red_unless_no_color_says_otherwise() -> None:
    program = "from sluice.cli.terminal import show_error; show_error('failed')"
    assert "\x1b[31m" in on_terminal(program, 80)
    assert on_terminal(program, 80, NO_COLOR="1") == "failed\r\n"


def test_without_a_terminal_a_step_is_a_line_with_its_number_and_the_seconds(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with show_steps(2) as progress:
        progress("one")
        progress.expect(1)
        progress("two")
        progress("three")
        progress("one more than was expected")
    assert capsys.readouterr().err.splitlines() == [
        "1 of 2, 0 s: one",
        "2 of 3, 0 s: two",
        "3 of 3, 0 s: three",
        "4 of 4, 0 s: one more than was expected",
    ]


def test_on_a_terminal_steps_are_one_line_that_moves() -> None:
    said = on_terminal(STEPS, 80, NO_COLOR="1")
    assert "1/2" in said or "2/2" in said
    assert "two" in said
    assert " of 2" not in said
