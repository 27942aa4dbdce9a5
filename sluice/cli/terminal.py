"""Functions that every command needs: `-h`, notes and errors on standard error, and `--debug`.

`sluice --help` imports this module and no command. Therefore this module must not import modules that load slowly.
"""

import logging
import os
import re
import sys
import traceback
from typing import Any

import typer

SIGNAL_EXIT_BASE = 128  # If a signal ends a program, the exit code is this number plus the signal's number.
# Help is plain text, because drawing it with the library rich would take longer than everything else.
SETTINGS: dict[str, Any] = {
    "no_args_is_help": True,
    "rich_markup_mode": None,
    "context_settings": {"max_content_width": 110},
}
DEBUG_VARIABLE = "SLUICE_DEBUG"
MASK = "***"

# One pattern finds secrets by their names in XML, JSON and Python texts, the other finds signatures and header tokens.
_NAMED_SECRET = re.compile(
    r"((?:secret_?access_?key|session_?token|security-token|external_?id|sqscreds|password)"
    r"['\"]?\s*(?:[:=>]|, )\s*b?['\"]?)"
    r"[^\s<>'\"&,}]+",
    re.IGNORECASE,
)
_SIGNATURE = re.compile(r"(Signature[=:]\s*|Bearer\s+)[A-Za-z0-9._~+/=-]+")
_SECRET_VARIABLES = "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "SLUICE_SQSCREDS"
# Shorter secrets aren't masked, because the embedded cloud's secret is "test", a word that occurs in other texts.
_MIN_SECRET_LENGTH = 8


class ShortHelp:
    """A command or group that shows help for `-h` as well as for `--help`."""

    def get_help_option_names(self, _: Any) -> list[str]:
        """Return the names of the options that show help."""
        return ["-h", "--help"]


def print_note(text: str) -> None:
    """Print a note for people on standard error."""
    typer.echo(_replace_surrogates(text), err=True)


def show_error(text: str) -> None:
    """Print an error on standard error, in red on a terminal unless the variable NO_COLOR is set."""
    said = _replace_surrogates(text)
    typer.echo(said if os.environ.get("NO_COLOR") else typer.style(said, fg=typer.colors.RED), err=True)


def _replace_surrogates(text: str) -> str:
    """Replace lone surrogates with question marks, because JSON can contain them but terminals can't print them."""
    return text.encode(errors="replace").decode()


class MaskingFormatter(logging.Formatter):
    """Formats log lines and tracebacks with secrets masked."""

    def format(self, record: logging.LogRecord) -> str:
        """Format a log record as text, and mask its secrets."""
        return mask_secrets(super().format(record))


def mask_secrets(text: str) -> str:
    """Mask a text's secrets: values of secret environment variables, named secrets, and signatures of requests."""
    for name in _SECRET_VARIABLES:
        secret = os.environ.get(name, "")
        if len(secret) >= _MIN_SECRET_LENGTH:
            text = text.replace(secret, MASK)
    return _SIGNATURE.sub(rf"\1{MASK}", _NAMED_SECRET.sub(rf"\1{MASK}", text))


def enable_debug_log() -> None:
    """Log everything to standard error, including boto3's messages."""
    handler = logging.StreamHandler()
    handler.setFormatter(MaskingFormatter("%(asctime)s %(name)s %(levelname)s %(message)s"))
    logging.basicConfig(level=logging.DEBUG, handlers=[handler], force=True)


def show_unexpected_error(error: BaseException, *, debug: bool) -> None:
    """Print an unexpected error: with `debug` the whole traceback, otherwise one line that names the code line."""
    if debug:
        sys.stderr.write(mask_secrets("".join(traceback.format_exception(error))))
        return
    frames = traceback.extract_tb(error.__traceback__)
    place = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    said = " ".join(mask_secrets(str(error)).split())
    show_error(f"{type(error).__name__}{': ' if said else ''}{said}{place}; `--debug` prints the traceback")
