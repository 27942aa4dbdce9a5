"""What every command has of a program in a terminal: `-h`, notes and errors on standard error, and `--debug`.

`sluice --help` imports this and none of the commands, so nothing that takes long to import belongs here.
"""

import logging
import os
import re
import sys
import traceback
from typing import Any

import typer

SIGNALLED = 128  # what a shell adds to a signal's number for the exit code
# Help is plain text: to draw boxes takes longer than all the rest of it.
SETTINGS: dict[str, Any] = {
    "no_args_is_help": True,
    "rich_markup_mode": None,
    "context_settings": {"max_content_width": 110},
}
VARIABLE = "SLUICE_DEBUG"
MASK = "***"

# As XML, JSON and Python write what has one of these names; then what stands in requests' headers.
_NAMED = re.compile(
    r"((?:secret_?access_?key|session_?token|security-token|external_?id|sqscreds|password)"
    r"['\"]?\s*(?:[:=>]|, )\s*b?['\"]?)"
    r"[^\s<>'\"&,}]+",
    re.IGNORECASE,
)
_SIGNATURE = re.compile(r"(Signature[=:]\s*|Bearer\s+)[A-Za-z0-9._~+/=-]+")
_OWN = "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "SLUICE_SQSCREDS"
_LEAST_SECRET = 8  # characters: the embedded cloud's is a word that stands in many a line


class ShortHelp:
    """Commands and groups of which `-h` is the help, also where another program than ours looks at them."""

    def get_help_option_names(self, _: Any) -> list[str]:
        """Name the options that show help."""
        return ["-h", "--help"]


def note(text: str) -> None:
    """For the person at the terminal, beside what a program reads."""
    typer.echo(_for_a_terminal(text), err=True)


def show_error(text: str) -> None:
    """Print what failed, in red where that is a terminal's and NO_COLOR isn't set, on standard error."""
    said = _for_a_terminal(text)
    typer.echo(said if os.environ.get("NO_COLOR") else typer.style(said, fg=typer.colors.RED), err=True)


def _for_a_terminal(text: str) -> str:
    """Half a character, which JSON can name and no terminal takes, is written as a question mark."""
    return text.encode(errors="replace").decode()


class MaskedLines(logging.Formatter):
    """Lines of a log without secrets, of tracebacks too."""

    def format(self, record: logging.LogRecord) -> str:
        """Write a record."""
        return masked(super().format(record))


def masked(text: str) -> str:
    """Take secrets out of a text: those of this environment, and what is called one or signs a request."""
    for name in _OWN:
        secret = os.environ.get(name, "")
        if len(secret) >= _LEAST_SECRET:
            text = text.replace(secret, MASK)
    return _SIGNATURE.sub(rf"\1{MASK}", _NAMED.sub(rf"\1{MASK}", text))


def log_all() -> None:
    """Log everything on standard error: ours, and boto3's."""
    handler = logging.StreamHandler()
    handler.setFormatter(MaskedLines("%(asctime)s %(name)s %(levelname)s %(message)s"))
    logging.basicConfig(level=logging.DEBUG, handlers=[handler], force=True)


def show_fault(error: BaseException, *, debug: bool) -> None:
    """Say an error that nobody has foreseen: in a line where it comes from, with `debug` all of it."""
    if debug:
        sys.stderr.write(masked("".join(traceback.format_exception(error))))
        return
    frames = traceback.extract_tb(error.__traceback__)
    place = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    said = " ".join(masked(str(error)).split())
    show_error(f"{type(error).__name__}{': ' if said else ''}{said}{place}; `sluice --debug …` says all of it")
