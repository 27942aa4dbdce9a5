"""What documents tell their readers to type works, from the first line to the last, and says what they show."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.snippets.documents import (
    DOCUMENTS,
    FILE,
    ROOT,
    SITE,
    SLOW,
    Block,
    Command,
    blocks,
    next_lines,
    shell_commands,
)
from tests.snippets.run import NOT_RUN, Reader

# A document's commands have their limits, and say which took too long; beside other suites all of them take longer.
pytestmark = pytest.mark.timeout(900)

Count = Callable[[Mapping[str, int]], None]


def runs(block: Block) -> bool:
    """Whether something of it is to be run, sooner or later."""
    if block.mark not in {"", SITE, SLOW}:
        return False
    return block.language == "python" or any(not NOT_RUN.match(each.text) for each in shell_commands(block))


TO_RUN = [path for path in DOCUMENTS if any(runs(block) and block.mark != SLOW for block in blocks(path))]
SLOW_ONES = [path for path in DOCUMENTS if any(block.mark == SLOW for block in blocks(path))]
OTHERS = [path for path in DOCUMENTS if path not in TO_RUN]
# The tutorial uses all four capabilities, from an empty machine on. The guides' commands take four minutes more.
TUTORIAL = ROOT / "docs" / "tutorial.md"
GUIDES = [path for path in TO_RUN if path != TUTORIAL]


def names(document: Path) -> str:
    return str(document.relative_to(ROOT))


@pytest.mark.slow
@pytest.mark.usefixtures("no_cloud")
def test_the_tutorial_can_be_typed_from_its_first_line_to_its_last(
    tmp_path: Path, environment: dict[str, str], count: Count
) -> None:
    read(Reader(tmp_path, environment), TUTORIAL, count)


@pytest.mark.slow
@pytest.mark.usefixtures("fresh_cloud")
@pytest.mark.parametrize("document", GUIDES, ids=names)
def test_a_guide_can_be_typed_from_its_first_line_to_its_last(
    document: Path, tmp_path: Path, environment: dict[str, str], count: Count
) -> None:
    read(Reader(tmp_path, environment), document, count)


@pytest.mark.slow
@pytest.mark.usefixtures("fresh_cloud")
@pytest.mark.parametrize("document", SLOW_ONES, ids=names)
def test_so_can_what_takes_its_time(document: Path, tmp_path: Path, environment: dict[str, str], count: Count) -> None:
    read(Reader(tmp_path, environment, is_slow=True), document, count)


@pytest.mark.slow
@pytest.mark.usefixtures("fresh_cloud")
def test_what_the_demo_says_to_try_next_works(tmp_path: Path, environment: dict[str, str], count: Count) -> None:
    reader = Reader(tmp_path, environment)
    try:
        for command in next_lines():
            reader.type(command)
    finally:
        reader.close()
    count(reader.counts)
    assert not reader.failures, "\n\n".join(reader.failures)


def test_what_isnt_run_is_counted(tmp_path: Path, environment: dict[str, str], count: Count) -> None:
    for number, document in enumerate(OTHERS):
        read(Reader(tmp_path / str(number), environment), document, count)


def read(reader: Reader, document: Path, count: Count) -> None:
    try:
        reader.read(blocks(document))
    finally:
        reader.close()
    count(reader.counts)
    assert not reader.failures, "\n\n".join(reader.failures)


def test_what_is_for_another_terminal_is_typed_in_a_new_one(tmp_path: Path, environment: dict[str, str]) -> None:
    reader = Reader(tmp_path, environment)
    reader.type(Command(place="first", text="export mine=1"))
    reader.type(Command(place="other", text='test -z "$mine"', elsewhere=True))
    reader.type(Command(place="first", text='test "$mine"'))
    reader.close()
    assert reader.failures == []


def test_files_of_a_document_are_used_by_it() -> None:
    for document in DOCUMENTS:
        found = blocks(document)
        for at, block in enumerate(found):
            if block.mark == FILE:
                assert any(block.rest in later.text for later in found[at + 1 :]), block.place
