"""The documents as a site: built without a warning, with every command, and nothing of it from elsewhere."""

import os
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
import typer.main

from sluice.cli.program import app
from tests.snippets.documents import ROOT

pytestmark = pytest.mark.slow

LOADED = {"script": "src", "img": "src", "link": "href", "iframe": "src"}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built strictly: a link, or a heading of one, that isn't there fails it."""
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert not built.returncode, built.stderr
    return folder


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 40
    foreign = {(page.name, address) for page in pages for address in loaded(page.read_text()) if "//" in address}
    assert not foreign


def test_every_command_is_described(site: Path) -> None:
    pages = "".join(page.read_text() for page in (site / "reference/commands").glob("*.html"))
    commands = list(named("sluice", typer.main.get_command(app)))
    assert len(commands) > 50
    assert not [command for command in commands if f"<code>{command}</code>" not in pages]


def test_pythons_public_names_are_described(site: Path) -> None:
    page = (site / "reference/python.html").read_text()
    for name in ("publish", "Publisher", "drain", "register"):
        assert f">{name}<" in page, name


def named(path: str, command: object) -> Iterator[str]:
    below = getattr(command, "commands", None)
    for name, each in (below or {}).items():
        yield from named(f"{path} {name}", each)
    if not below:
        yield path


class Loaded(HTMLParser):
    """What a page loads by itself; what it links to is the reader's to follow."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag in LOADED and values.get("rel") not in {"canonical", "next", "prev", "icon"}:
            self.addresses.append(values.get(LOADED[tag]) or "")


def loaded(page: str) -> list[str]:
    parser = Loaded()
    parser.feed(page)
    return parser.addresses
