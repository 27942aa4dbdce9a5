"""A document's commands, typed one after the other, and what of them doesn't go as the document says."""

import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.snippets.checks import command_faults
from tests.snippets.documents import AWS, CHECKED, COMMANDS, FILE, ROOT, SITE, SLOW, Block, Command, commands
from tests.snippets.shell import Ran, Shell

WITHIN_S = 300  # the first `sluice local up` of a package installs what it runs on
SLOW_WITHIN_S = 900
SPEAKS_WITHIN_S, LOOK_EVERY_S = 10.0, 0.1
ELLIPSIS = "…"  # in shown output: any text; alone on a line: any lines
# They set up what this suite runs in, or run it: read by `make -n`, whose targets have suites of their own.
NOT_RUN = re.compile(r"^(make|git clone|pip install)\b")
AT_SITE = 'eval "$(sluice local env)"'
TRIED, PASSED, FAILED, FOR_AWS, LOOKED_AT = "tried", "passed", "failed", "marked for AWS", "checked only"


class Reader:
    """Types a document's commands into a shell, and into new ones where it says so; counts and keeps what failed."""

    def __init__(self, folder: Path, environment: Mapping[str, str], *, is_slow: bool = False) -> None:
        self.counts: Counter[str] = Counter()
        self.failures: list[str] = []
        self._folder = folder / "work"
        logs = folder / "logs"
        self._folder.mkdir(parents=True)
        (self._folder / ".venv").symlink_to(ROOT / ".venv")  # as a clone has it
        logs.mkdir()
        self._shell = Shell(self._folder, environment, logs)
        self._within_s = SLOW_WITHIN_S if is_slow else WITHIN_S
        self._is_slow = is_slow
        self._is_stuck = False  # at a command that took too long: the shell takes no other
        self._elsewhere: list[tuple[Command, Path]] = []

    def read(self, blocks: Sequence[Block]) -> None:
        """Goes through a document. Slow blocks are for whoever reads slowly, the others too: they may need them."""
        for block in blocks:
            if block.mark == FILE:
                path = self._folder / block.rest
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(block.text)
            elif block.mark == SLOW and not self._is_slow:
                continue
            elif block.language == "python" and not block.mark:
                self.type(Command(place=block.place, text=f"python - <<'END'\n{block.text}END"))
            elif block.language in COMMANDS and block.mark in {"", SLOW, SITE}:
                for command in commands(block):
                    self.type(command, at=AT_SITE if block.mark == SITE else "")
            elif block.language in COMMANDS:
                self._count_checked(block)

    def type(self, command: Command, *, at: str = "") -> None:
        """Runs one command, `at` what leads it to a site, or only looks at it where it is none to run here."""
        if self._is_stuck:
            return
        typed = f"( {at}\n{command.text}\n)" if at else command.text
        if NOT_RUN.match(command.text):
            self._note(command, command_faults(command), LOOKED_AT)
        elif command.elsewhere:
            output = self._shell.leave_running(typed)
            self._elsewhere.append((command, output))
            _look_until_it_speaks(output)
        else:
            ran = self._shell.run(typed, within_s=self._within_s)
            self._is_stuck = ran.code is None
            self._note(command, run_faults(command, ran))

    def close(self) -> None:
        """Ends what runs on; what had ended by itself, and failed, counts as failed."""
        for command, output in self._elsewhere:
            code = output.with_suffix(".code")
            failed = code.exists() and code.read_text().strip() != "0"
            said = output.with_suffix(".err").read_text()
            self._note(command, [f"{command.place}: {command.text}: failed elsewhere\n{said}"] if failed else [])
        self._shell.close()

    def _count_checked(self, block: Block) -> None:
        if block.mark in {AWS, CHECKED}:
            self.counts[FOR_AWS if block.mark == AWS else LOOKED_AT] += len(commands(block))

    def _note(self, command: Command, faults: Sequence[str], kind: str = TRIED) -> None:
        self.counts[kind] += 1
        self.counts[FAILED] += bool(faults)
        if kind == TRIED:
            self.counts[PASSED] += not faults
        self.failures += faults


def _look_until_it_speaks(output: Path) -> None:
    """A reader turns to the other terminal once something is said in this one, or after a while."""
    deadline = time.monotonic() + SPEAKS_WITHIN_S
    said = [output.with_suffix(kind) for kind in (".out", ".err", ".code")]
    while not any(each.exists() and each.stat().st_size for each in said) and time.monotonic() < deadline:
        time.sleep(LOOK_EVERY_S)


def run_faults(command: Command, ran: Ran) -> list[str]:
    """What isn't as it should be with a command that was run."""
    where = f"{command.place}: {command.text}"
    if ran.code is None:
        return [f"{where}\ntook too long\n{ran.output}{ran.errors}"]
    if ran.code:
        return [f"{where}\nexit code {ran.code}\n{ran.output}{ran.errors}"]
    # A terminal has both; documents leave out what is on its way there, such as progress.
    if command.shown is not None and not any(
        is_shown(command.shown, each) for each in (ran.output, ran.output + ran.errors)
    ):
        wanted = "\n".join(command.shown)
        return [f"{where}\nthe document shows\n{wanted}\nit says\n{ran.output}{ran.errors}"]
    return []


def is_shown(shown: Sequence[str], said: str) -> bool:
    """Whether a command said what the document shows, with `…` for any text and, alone on a line, any lines.

    Space at the ends of lines, and how much there is between words, is the table's own.
    """
    patterns = [r"(?:.*\n)*?" if line.strip() == ELLIPSIS else _pattern(line) + "\n" for line in _stripped(shown)]
    return re.fullmatch("".join(patterns), "".join(f"{line}\n" for line in _stripped(said.splitlines()))) is not None


def _pattern(line: str) -> str:
    words = [ELLIPSIS.join(map(re.escape, word.split(ELLIPSIS))) for word in line.split()]
    return " ".join(words).replace(ELLIPSIS, ".*")


def _stripped(lines: Sequence[str]) -> list[str]:
    found = [" ".join(line.split()) for line in lines]
    while found and not found[-1]:
        found.pop()
    return found
