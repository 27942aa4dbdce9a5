"""`--debug`: tracebacks and all that is logged, on standard error, and no secret in any of it."""

import logging
import os
import re
import sys
import traceback

from sluice.cli.output import show_error

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
