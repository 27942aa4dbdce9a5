"""The documents' pictures are what the code draws today, and what they show adds up."""

from xml.etree import ElementTree as ET

import pytest

from docs.pictures import matching, splitting, topology
from docs.pictures.__main__ import FOLDER, PICTURES
from sluice.building.project import PROJECT
from sluice.pictures.svg import DARK, LIGHT

SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_what_the_code_draws(name: str) -> None:
    assert PICTURES[name]() == (FOLDER / name).read_text(encoding="utf-8"), "python -m docs.pictures"


def test_no_picture_is_there_that_nobody_draws() -> None:
    assert {path.name for path in FOLDER.glob("*.svg")} == PICTURES.keys()


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_stands_alone_in_both_schemes(name: str) -> None:
    text = (FOLDER / name).read_text(encoding="utf-8")
    tags = {element.tag.removeprefix(SVG) for element in ET.fromstring(text).iter()}
    assert tags <= {"svg", "title", "style", "g", "rect", "path", "polygon", "text"}
    assert all(f"{{color:{value}}}" in text for palette in (LIGHT, DARK) for value in palette.values())
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")


def test_every_message_of_the_split_goes_to_one_queue_and_a_copy_to_who_mirrors() -> None:
    stolen, mirrored, left = splitting.routed()
    assert stolen.total() + left == len(splitting.USERS)
    assert stolen == {"alice": splitting.USERS.count("alice"), "bob": 4}
    # Of the four in Germany one is alice's, who stands before.
    assert mirrored == {"dora": splitting.COUNTRIES.count("DE") - 1}


def test_who_is_told_something_in_the_matching_has_a_column() -> None:
    named = {end for step in matching.steps() for end in (step.source, step.dest)}
    assert named == {actor.name for actor in matching.ACTORS}


def test_the_topology_of_the_picture_has_no_findings() -> None:
    assert "⚠" not in topology.drawn()


def test_each_page_of_the_console_has_its_pictures() -> None:
    guide = (FOLDER.parent / "console.md").read_text(encoding="utf-8")
    named = [page.stem for page in (PROJECT.sources / "sluice" / "console" / "static" / "pages").glob("*.js")]
    assert len(named) > 1
    for name in (f"{page}-{scheme}.png" for page in named for scheme in ("light", "dark")):
        assert (FOLDER / "console" / name).exists(), "make console-pictures"
        assert f"(pictures/console/{name})" in guide
