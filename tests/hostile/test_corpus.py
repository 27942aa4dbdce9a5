"""The kept cases: each is fed to its entry, and what must become of it stands in its folder's `said.json`."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from _pytest.mark.structures import ParameterSet

from tests.hostile.entries import ENTRIES
from tests.hostile.limits import told, within

CORPUS = Path(__file__).parent / "corpus"
SAID = "said.json"
MEGABYTES = 64  # that a case may take


def cases() -> Iterator[ParameterSet]:
    """Each file with what is to become of it; one that shows a fault that is known is expected to fail."""
    for folder in sorted(CORPUS.iterdir()):
        said = json.loads((folder / SAID).read_text())
        for file in sorted(folder.iterdir()):
            if file.name != SAID:
                expected = said[file.name]
                fault = expected.get("fault") if isinstance(expected, dict) else None
                marks = [pytest.mark.xfail(strict=True, reason=fault)] if fault else []
                said_so = expected["said"] if isinstance(expected, dict) else expected
                begins = (said_so,) if isinstance(said_so, str) else tuple(said_so)
                yield pytest.param(file, begins, id=f"{folder.name}/{file.name}", marks=marks)


@pytest.mark.parametrize(("file", "begins"), list(cases()))
def test_what_becomes_of_it_is_what_must(file: Path, begins: tuple[str, ...]) -> None:
    serve = ENTRIES[file.parent.name]
    content = file.read_bytes()
    said = within(MEGABYTES, lambda: told(serve, content))
    assert said.startswith(begins), said


def test_every_entry_has_a_corpus_and_every_word_its_file() -> None:
    assert {folder.name for folder in CORPUS.iterdir()} == ENTRIES.keys()
    for folder in CORPUS.iterdir():
        files = {file.name for file in folder.iterdir()} - {SAID}
        assert files == json.loads((folder / SAID).read_text()).keys()
