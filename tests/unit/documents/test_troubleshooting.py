"""What the page about errors quotes is what the code says, and no type of error is missing there."""

import ast
import inspect
import re
from functools import cache
from pathlib import Path

import pytest

from sluice import errors
from tests.sources import parse_source
from tests.unit.documents.test_documents import ROOT

PAGE = (ROOT / "docs/troubleshooting.md").read_text()
RUNBOOK = (ROOT / "docs/runbook.md").read_text()
MESSAGES, TYPES = PAGE.split("## Types of errors")
ROWS = re.compile(r"^\| (.*?) \| (.*?) \| (.*) \|$", re.MULTILINE)
QUOTED = re.compile(r"`([^`]+)`")
SOURCES = [ROOT / "sluice", ROOT / "spark/sluice_spark"]
ANY = "…"


@cache
def texts() -> frozenset[str]:
    """Every text in the code, with `…` for what is filled in; what make says counts, too."""
    files = [path for folder in SOURCES for path in folder.rglob("*.py")]
    return frozenset(text for path in files for text in _texts(path)) | {(ROOT / "Makefile").read_text()}


def _texts(path: Path) -> list[str]:
    found = []
    for node in ast.walk(parse_source(path.read_text())):
        if isinstance(node, ast.JoinedStr):
            found.append("".join(str(part.value) if isinstance(part, ast.Constant) else ANY for part in node.values))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.append(node.value)
        elif isinstance(node, ast.ClassDef):
            found.append(node.name)
    return found


def quotations() -> list[str]:
    return [quoted for row in ROWS.findall(MESSAGES) for quoted in QUOTED.findall(row[0])]


@pytest.mark.parametrize("quoted", quotations())
def test_a_quoted_message_is_the_codes(quoted: str) -> None:
    pattern = ".*".join(re.escape(part.strip()) for part in quoted.split(ANY))
    assert any(re.search(pattern, text, re.DOTALL) for text in texts()), quoted


def test_what_is_in_no_code_isnt_found() -> None:
    assert not any("it is the moon's fault" in text for text in texts())
    assert len(quotations()) > 30


def test_every_type_of_error_is_explained_in_its_own_words() -> None:
    types = {
        name: inspect.getdoc(each)
        for name, each in vars(errors).items()
        if inspect.isclass(each) and issubclass(each, errors.SluiceError)
    }
    told = {name.strip("`"): means for name, means, _ in ROWS.findall(TYPES) if name.startswith("`")}
    in_runbook = {line.removeprefix("### ") for line in RUNBOOK.splitlines()} - told.keys()
    assert told == {name: str(doc).splitlines()[0].rstrip(".") for name, doc in types.items() if name not in in_runbook}
