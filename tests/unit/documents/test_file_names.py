"""The names of the repository's files can be unpacked on every file system, typed, and read in a list."""

import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.unit.documents.repository import ROOT, tracked_files

MAX_PATH = 100  # characters from the repository's top: what a tar archive of any age can hold
NAME = re.compile(rf"[!-~]{{1,{MAX_PATH}}}")  # ASCII without blanks


def bad_names(names: Iterable[str]) -> list[str]:
    return [name for name in names if not NAME.fullmatch(name)]


def test_every_file_has_a_short_name_of_ascii_without_blanks() -> None:
    names = tracked_files(ROOT)
    assert "pyproject.toml" in names
    assert bad_names(names) == []


@pytest.mark.parametrize("bad", ["docs/two words.md", "é.json", "tab\t", "new\nline", "a" * (MAX_PATH + 1)])
def test_a_name_that_some_programs_cannot_read_is_found(bad: str) -> None:
    assert bad_names(["docs/tutorial.md", bad, "a" * MAX_PATH]) == [bad]


def test_sources_without_git_are_walked_but_for_what_is_built(tmp_path: Path) -> None:
    (tmp_path / ".gitignore").write_text("/build/\n__pycache__/\n*.egg-info/\n")
    for name in ("build/x y", "docs/build/x y", "sluice/__pycache__/x y", "sluice.egg-info/x y", "docs/a.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert sorted(tracked_files(tmp_path)) == [".gitignore", "docs/a.md", "docs/build/x y"]
