"""What becomes of an error that nobody has foreseen, and what `--debug` says: all, but for secrets."""

import logging
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from sluice.cli.program import app
from sluice.cli.terminal import MASK, mask_secrets
from sluice.errors import BadConfiguration
from sluice.operator.federated_sites import use_clients
from sluice.operator.site_names import SiteName

SECRET = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"


@pytest.fixture(autouse=True)
def log() -> Iterator[None]:
    """As it was before."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def run(error: BaseException, arguments: str = "exchange list us-east-1", env: dict[str, str] | None = None) -> Result:
    def ask(_: SiteName) -> Any:
        logging.getLogger("botocore.endpoint").debug("SecretAccessKey: %s", SECRET)
        raise error

    with use_clients(ask):
        return CliRunner().invoke(app, arguments.split(), env=env)


def test_a_bug_is_one_line_with_its_place_and_says_how_to_see_more() -> None:
    done = run(KeyError("x"))
    assert done.exit_code == 1
    [line] = done.stderr.splitlines()
    assert line.startswith("KeyError: 'x' at ")
    assert "test_debugging.py:" in line
    assert "`--debug` prints the traceback" in line


@pytest.mark.parametrize(
    ("arguments", "env"),
    [
        ("--debug exchange list us-east-1", {}),
        ("exchange --debug list us-east-1", {}),
        ("exchange list us-east-1 --json --debug", {}),
        ("exchange list us-east-1", {"SLUICE_DEBUG": "1"}),
    ],
)
@pytest.mark.parametrize("error", [RuntimeError(f"secret_access_key={SECRET}"), BadConfiguration("wrong")])
def test_debug_shows_the_traceback_and_the_log_without_secrets(
    error: Exception, arguments: str, env: dict[str, str]
) -> None:
    done = run(error, arguments, env)
    assert done.exit_code == 1
    assert "Traceback (most recent call last)" in done.stderr
    assert f"botocore.endpoint DEBUG SecretAccessKey: {MASK}" in done.stderr
    assert SECRET not in done.stderr


def test_without_debug_no_log_is_shown() -> None:
    assert run(BadConfiguration("wrong")).stderr == "wrong\n"


def test_debug_after_two_hyphens_is_an_option_of_another_program() -> None:
    done = CliRunner().invoke(app, ["split", "run", "--lambda", "consumer", "--", "program", "--debug"])
    assert done.exit_code == 2
    assert "Traceback" not in done.stderr


def test_ctrl_c_ends_without_a_word() -> None:
    done = run(KeyboardInterrupt())
    assert (done.exit_code, done.output) == (130, "")


INTERRUPTED_IMPORT = """
import os, signal, sys
module, sys.argv[1:] = sys.argv[1], ["exchange", "list", "--json", "."]
class Interrupt:
    def find_spec(name, *_):
        if name == module:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupt)
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored if the tests are in a shell's background
from sluice.cli.main import main
main()
"""


@pytest.mark.parametrize("module", ["typer", "sluice.cli.program", "sluice.cli.sites", "botocore", "msgspec"])
def test_ctrl_c_during_an_import_ends_without_a_word(module: str) -> None:
    command = [sys.executable, "-c", INTERRUPTED_IMPORT, module]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode in {130, -signal.SIGINT}, done.stdout, done.stderr) == (True, "", "")


def test_bugs_and_errors_that_come_together_are_both_told() -> None:
    done = run(ExceptionGroup("two", [BadConfiguration("wrong"), ValueError("a bug")]))
    assert done.exit_code == 1
    assert done.stderr.splitlines()[-1] == "wrong"
    assert done.stderr.startswith("ExceptionGroup: two")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"<SecretAccessKey>{SECRET}</SecretAccessKey>", f"<SecretAccessKey>{MASK}</SecretAccessKey>"),
        (f'{{"SecretAccessKey": "{SECRET}", "a": 1}}', f'{{"SecretAccessKey": "{MASK}", "a": 1}}'),
        (f"{{'SessionToken': '{SECRET}'}}", f"{{'SessionToken': '{MASK}'}}"),
        (f"'X-Amz-Security-Token': b'{SECRET}'", f"'X-Amz-Security-Token': b'{MASK}'"),
        (f"x-amz-security-token:{SECRET}\nhost", f"x-amz-security-token:{MASK}\nhost"),
        (f"aws_secret_access_key = {SECRET}", f"aws_secret_access_key = {MASK}"),
        (f"X-Amz-Security-Token={SECRET}&a=b", f"X-Amz-Security-Token={MASK}&a=b"),
        ("Credential=AKIA/x, Signature=0123abc", f"Credential=AKIA/x, Signature={MASK}"),
        ("Authorization: Bearer abc.def", f"Authorization: Bearer {MASK}"),
        ('"ExternalId": "abc"', f'"ExternalId": "{MASK}"'),
        ("region=eu-west-1", "region=eu-west-1"),
    ],
)
def test_what_is_called_a_secret_is_masked(text: str, shown: str) -> None:
    assert mask_secrets(text) == shown


def test_the_environments_own_secrets_are_masked_wherever_they_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", "token-of-mine")
    assert mask_secrets("GET /?x=token-of-mine") == f"GET /?x={MASK}"
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    assert mask_secrets("a test") == "a test"


@pytest.mark.parametrize("arguments", [["-h"], ["exchange", "-h"], ["exchange", "list", "-h"], ["local", "env", "-h"]])
def test_h_is_help_everywhere(arguments: list[str]) -> None:
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0
    assert done.stdout.startswith("Usage:")


def test_h_is_help_for_programs_too_that_make_pages_of_the_commands() -> None:
    command: Any = typer.main.get_command(app)
    for name in ("exchange", "list"):
        command = command.commands[name]
        assert command.get_help_option(typer.Context(command, info_name="sluice")).opts == ["-h", "--help"]


def test_version_is_the_packages() -> None:
    assert CliRunner().invoke(app, ["--version"]).stdout.startswith("sluice 0.")
