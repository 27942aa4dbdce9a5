"""What documents tell their readers to type works, from the first line to the last, and says what they show."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.snippets.documents import COMMANDS, DOCUMENTS, FILE, ROOT, SITE, SLOW, Block, blocks, next_lines
from tests.snippets.run import Reader

Count = Callable[[Mapping[str, int]], None]


def runs(block: Block) -> bool:
    """Whether something of it is to be run, sooner or later."""
    return block.mark in {"", SITE, SLOW} and block.language in {*COMMANDS, "python"}


TO_RUN = [document for document in DOCUMENTS if any(runs(block) for block in blocks(document))]
SLOW_ONES = [document for document in TO_RUN if any(block.mark == SLOW for block in blocks(document))]


def names(document: Path) -> str:
    return str(document.relative_to(ROOT))


@pytest.mark.usefixtures("fresh_cloud")
@pytest.mark.parametrize("document", TO_RUN, ids=names)
def test_a_document_can_be_typed_from_its_first_line_to_its_last(
    document: Path, tmp_path: Path, environment: dict[str, str], count: Count
) -> None:
    read(Reader(tmp_path, environment), document, count)


@pytest.mark.slow
@pytest.mark.usefixtures("fresh_cloud")
@pytest.mark.parametrize("document", SLOW_ONES, ids=names)
def test_so_can_what_takes_its_time(document: Path, tmp_path: Path, environment: dict[str, str], count: Count) -> None:
    read(Reader(tmp_path, environment, is_slow=True), document, count)


@pytest.mark.usefixtures("fresh_cloud")
def test_what_the_demo_says_to_try_next_works(tmp_path: Path, environment: dict[str, str], count: Count) -> None:
    reader = Reader(tmp_path, environment)
    (tmp_path / "work" / ".venv").symlink_to(ROOT / ".venv")
    try:
        for command in next_lines():
            reader.type(command)
    finally:
        reader.close()
    count(reader.counts)
    assert not reader.failures, "\n\n".join(reader.failures)


def read(reader: Reader, document: Path, count: Count) -> None:
    try:
        reader.read(blocks(document))
    finally:
        reader.close()
    count(reader.counts)
    assert not reader.failures, "\n\n".join(reader.failures)


def test_files_of_a_document_are_used_by_it() -> None:
    for document in DOCUMENTS:
        found = blocks(document)
        for at, block in enumerate(found):
            if block.mark == FILE:
                assert any(block.rest in later.text for later in found[at + 1 :]), block.place
