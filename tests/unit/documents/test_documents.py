"""The documents: one sentence a line, and nothing named that isn't there."""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "spark/README.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
MAX_CHARACTERS = 200
MADE = {"build", "cdk.out", "node_modules"}  # folders that a clone doesn't have
FOLDERS = {path.name for path in ROOT.iterdir() if path.is_dir()} - MADE
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))

CODE = re.compile(r"`[^`]+`")
LINK = re.compile(r"\[([^]]*)\]\(([^)\s]+)\)")
LABEL = re.compile(r"^\s*(?:(?:[-*]|\d+\.)\s+)?(?:\*\*[^*]+\*\*)?")  # of a list's entry, and bold: `- **Why.**`
NEXT_SENTENCE = re.compile(r"[.!?][\"”)*]*\s+[\"“(*`\[]*[A-Z`]")

COSTS = re.compile(r"<!-- costs: [a-z -]+ -->\n.*?<!-- end -->", re.DOTALL)
DOLLARS = re.compile(r"\$\d")

Line = tuple[str, str]  # where it is, and its text


def _lines(document: Path) -> Iterator[tuple[str, str, bool]]:
    """Each line with its place, and whether it is in a block of code."""
    in_code = False
    for number, line in enumerate(document.read_text().splitlines(), start=1):
        if line.lstrip().startswith("```"):
            in_code = not in_code
        else:
            yield f"{document.relative_to(ROOT)}:{number}", line, in_code


def _prose() -> Iterator[Line]:
    """What isn't code, table or heading, with links as they are read."""
    for document in DOCUMENTS:
        for place, line, in_code in _lines(document):
            if not in_code and not line.lstrip().startswith(("|", "#")):
                yield place, LINK.sub(r"\1", line)


def _code() -> Iterator[Line]:
    """What stands in backticks, and blocks of code."""
    for document in DOCUMENTS:
        for place, line, in_code in _lines(document):
            yield from [(place, line)] if in_code else ((place, code.strip("`")) for code in CODE.findall(line))


def _links() -> Iterator[tuple[Path, str, str]]:
    """Links to what is in the repository."""
    for document in DOCUMENTS:
        for place, line, in_code in _lines(document):
            addresses = [] if in_code else [address for _, address in LINK.findall(line)]
            yield from ((document, place, address) for address in addresses if "://" not in address)


def _headings(document: Path) -> set[str]:
    """The names that links to its headings have, as GitHub makes them."""
    titles = [line.lstrip("# ") for _, line, in_code in _lines(document) if line.startswith("#") and not in_code]
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def _has_two_sentences(line: str) -> bool:
    return bool(NEXT_SENTENCE.search(CODE.sub("`code`", LABEL.sub("", line))))


def _report(found: Iterable[Line]) -> str:
    return "\n".join(f"{place}: {what}" for place, what in found)


@pytest.mark.parametrize(
    "line",
    ["One. Two.", "- **Why.** One. Two.", "It asks `a. B`? `b` answers.", "(One.) *Two* is next.", "1. One. [Two](x)"],
)
def test_two_sentences_are_told(line: str) -> None:
    assert _has_two_sentences(line)


@pytest.mark.parametrize("line", ["1. One", "**Why.** One, `a. B`; two.", "0.1 to 2. of it", "One: Two (Three.)"])
def test_one_sentence_is_one(line: str) -> None:
    assert not _has_two_sentences(line)


def test_documents_have_one_sentence_a_line() -> None:
    found = [(place, line) for place, line in _prose() if _has_two_sentences(line)]
    assert not found, _report(found)


def test_lines_of_documents_have_at_most_200_characters() -> None:
    found = [(place, line) for place, line in _prose() if len(line) > MAX_CHARACTERS]
    assert not found, _report(found)


def test_every_path_that_documents_name_is_there() -> None:
    """A path is a word of code that begins with one of our folders and a slash; `<name>` in it is any."""
    words = [(place, word.rstrip(".,:;/")) for place, code in _code() for word in code.split()]
    named = [(place, word) for place, word in words if "/" in word and word.split("/")[0] in FOLDERS]
    assert len(named) > 20
    missing = [(place, path) for place, path in named if not any(ROOT.glob(re.sub("<[a-z]+>", "*", path)))]
    assert not missing, _report(missing)


def test_every_link_between_documents_leads_somewhere() -> None:
    broken = []
    for document, place, address in _links():
        path, _, heading = address.partition("#")
        target = document.parent / path if path else document
        if not target.exists() or (heading and heading not in _headings(target)):
            broken.append((place, address))
    assert not broken, _report(broken)


def test_every_amount_of_dollars_is_written_by_the_cost_benchmark() -> None:
    """Blocks `costs: …` are: `python -m benchmarks.cost --last --write`, which another test compares.

    A test of costs has its own look at what a flood costs an hour.
    """
    found = [
        f"{document.relative_to(ROOT)}: {line}"
        for document in DOCUMENTS
        for line in COSTS.sub("", document.read_text()).splitlines()
        if DOLLARS.search(line) and not (document.name == "threat-model.md" and " an hour" in line)
    ]
    assert found == []


def test_every_target_of_make_that_documents_name_is_there() -> None:
    named = [(place, target) for place, code in _code() for target in re.findall(r"\bmake ([a-z][a-z-]*)", code)]
    assert len(named) > 10
    missing = [(place, target) for place, target in named if target not in TARGETS]
    assert not missing, _report(missing)


def test_what_only_aws_shows_names_checks_of_the_smoke_run() -> None:
    section = (ROOT / "docs/deploy.md").read_text().partition("\n## What has been proved, and where\n")[2]
    cells = [line.split(" | ")[1] for line in section.splitlines() if line.startswith("| ")][1:]
    named = {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}
    checks = set(re.findall(r"^def test_([a-z]+)", (ROOT / "tests/smoke/test_aws.py").read_text(), re.MULTILINE))
    assert {"pause", "pipeline"} <= named
    assert named <= checks
