"""The documents' blocks of code, as they stand: whose language, how marked, which commands are in them.

markdown-it-py finds the blocks. pytest-codeblocks, sybil and pytest-examples were looked at: the first runs each block
in a shell of its own, the others know Python alone, and none can tell a block for AWS from one that has to run here.
"""

import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token
from rich.text import Text

from sluice.demo.__main__ import NEXT

ROOT = Path(__file__).parents[2]
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "spark/README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
DEMO = ROOT / "sluice/demo/__main__.py"
COMMANDS = frozenset({"sh", "console"})
# In an HTML comment before a block: `<!-- snippet: aws -->`. What isn't marked runs.
AWS = "aws"  # needs an account, or takes what only the reader has; its commands are checked
CHECKED = "checked"  # here for a reason that follows it; its commands are checked
SLOW = "slow"  # runs with the slow tests
SITE = "site"  # for a deployed site, which here is the embedded cloud's first
READ_AS = "read"  # `as …`: a part of a configuration, and of which; read by what reads that
SPARK = "spark"  # runs where PySpark is installed as the guide says; and in which of the situations of wheels/guides
FILE = "file"  # its text becomes the file that is named; what comes after it uses that
MARKS = frozenset({AWS, CHECKED, SLOW, SITE, READ_AS, SPARK, FILE})
MARK = re.compile(r"<!-- snippet: (?P<what>[a-z]+)(?:[: ] *(?P<rest>.*?))? -->")
# What a reader types into another terminal, as its comment says.
ELSEWHERE = re.compile(r"\bin (one|another|a second) terminal\b|\buntil ctrl-C\b", re.IGNORECASE)
COMMENT = re.compile(r"\s#\s.*$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A fenced block. `mark` is one of `MARKS`, or empty; `rest` is what stands behind it."""

    document: Path
    line: int
    language: str
    text: str
    mark: str = ""
    rest: str = ""

    @property
    def place(self) -> str:
        return f"{self.document.relative_to(ROOT)}:{self.line}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command as one types it, maybe of several lines, and the output that the document shows of it.

    `elsewhere` where it is for another terminal, and goes on while others run.
    """

    place: str
    text: str
    shown: tuple[str, ...] | None = None
    elsewhere: bool = False


@dataclass(slots=True)
class _Growing:
    line: int
    lines: list[str] = field(default_factory=list)
    shown: list[str] = field(default_factory=list)

    def is_whole(self) -> bool:
        text = "\n".join(self.lines)
        return not text.endswith("\\") and is_shell(text)


@cache
def blocks(document: Path) -> tuple[Block, ...]:
    """All fenced blocks of a document in their order."""
    tokens = MarkdownIt().parse(document.read_text())
    return tuple(_block(document, tokens, at) for at, token in enumerate(tokens) if token.type == "fence")


def _block(document: Path, tokens: list[Token], at: int) -> Block:
    token = tokens[at]
    assert token.map is not None
    before = tokens[at - 1] if at else None
    found = MARK.fullmatch(before.content.strip()) if before and before.type == "html_block" else None
    return Block(
        document=document,
        line=token.map[0] + 1,
        language=token.info.strip(),
        text=token.content,
        mark=found["what"] if found else "",
        rest=(found["rest"] or "") if found else "",
    )


def commands(block: Block) -> list[Command]:
    """The commands of a block in their order: each line of `sh`, of `console` those behind a `$`.

    A command goes on over the next lines as the shell has it.
    """
    grown: list[_Growing] = []
    for number, line in enumerate(block.text.splitlines(), start=block.line + 1):
        goes_on = bool(grown) and not grown[-1].is_whole()
        if block.language == "console" and not goes_on and not line.startswith("$ "):
            assert grown, f"{block.place}: output before a command"
            grown[-1].shown.append(line)
        elif goes_on:
            grown[-1].lines.append(line)
        elif line.strip() and not line.startswith("#"):
            grown.append(_Growing(number, [line.removeprefix("$ ")]))
    return [_command(block, each) for each in grown]


def shell_commands(block: Block) -> list[Command]:
    """The commands of a block of a shell; of another block none."""
    return commands(block) if block.language in COMMANDS else []


def _command(block: Block, grown: _Growing) -> Command:
    text = "\n".join(grown.lines)
    return Command(
        place=f"{block.document.relative_to(ROOT)}:{grown.line}",
        text=text,
        shown=tuple(grown.shown) if block.language == "console" else None,
        elsewhere=any(ELSEWHERE.search(comment) for comment in COMMENT.findall(text)),
    )


def next_lines() -> list[Command]:
    """What the demo says to try next: a command a line, and two spaces before what it is for."""
    place = f"{DEMO.relative_to(ROOT)}: NEXT"
    lines = [re.split(r" {2,}", line.strip(), maxsplit=1) for line in Text.from_markup(NEXT).plain.splitlines()[1:]]
    return [Command(place=place, text=line[0], elsewhere=bool(ELSEWHERE.search(line[-1]))) for line in lines]


def inline_commands(document: Path) -> Iterator[Command]:
    """Commands of ours that stand in a sentence or a table, in backticks."""
    at = 0
    for token in MarkdownIt().enable("table").parse(document.read_text()):
        at = token.map[0] + 1 if token.map else at
        for child in token.children or ():
            if child.type == "code_inline" and child.content.startswith("sluice "):
                yield Command(place=f"{document.relative_to(ROOT)}:{at}", text=child.content)


@cache
def is_shell(text: str) -> bool:
    """Whether bash can parse it as it stands. Of a here-document without its end it only warns."""
    parsed = subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True, check=False)
    return not parsed.returncode and "here-document" not in parsed.stderr
