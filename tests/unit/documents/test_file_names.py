"""The names of the repository's files can be unpacked on every file system, typed, and read in a list."""

import re
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
MAX_PATH = 100  # characters from the repository's top: what a tar archive of any age can hold
NAME = re.compile(rf"[!-~]{{1,{MAX_PATH}}}")  # ASCII without blanks


def tracked_files(root: Path) -> Sequence[str]:
    """List the files that git tracks, or all but the ignored ones where the sources are unpacked without git."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, check=False)
    if not listed.returncode and listed.stdout:
        return [name.decode() for name in listed.stdout.split(b"\0") if name]
    lines = (root / ".gitignore").read_text().splitlines()
    at_its_place = {root / line.strip("/") for line in lines if line.startswith("/")}
    anywhere = [line.strip("/") for line in lines if not line.startswith("/")]
    return [
        path.relative_to(root).as_posix()
        for path in root.rglob("*")
        if path.is_file()
        and not at_its_place & {path, *path.parents}
        and not any(part.match(pattern) for part in (path, *path.parents) for pattern in anywhere)
    ]


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
