"""The demo's picture says what was landed, all of it, in both schemes, and nothing of it is cut off."""

from datetime import UTC, datetime, timedelta
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from sluice.demo.picture import (
    APPLICATION,
    ASTRAY,
    DEAD,
    NO_EXCHANGE,
    ORDERS,
    OUTCOMES,
    QUARANTINE,
    SESSION,
    TABLES,
    UNREADABLE,
    Journeys,
    Landed,
    drawn,
)
from sluice.pictures.svg import DARK, LIGHT, Colour

SVG = "{http://www.w3.org/2000/svg}"
START = datetime(2026, 11, 24, 3, 47, tzinfo=UTC)
HERE, THERE = "events at\nhere", "events at\nthere"


def message(at_s: float = 0, *, sites: tuple[str, ...] = (), **event: Any) -> Landed:
    times = {"queued_at": 2.5, "read_at": 20, "landed_at": 30}
    published_at = START + timedelta(seconds=at_s)
    return Landed(
        event=event,
        sites=sites,
        published_at=published_at,
        **{name: published_at + timedelta(seconds=after_s) for name, after_s in times.items()},
    )


def offer(country: str, outcome: str, **fields: Any) -> Landed:
    return message(kind="offer", country=country, outcome=outcome, **fields)


JOURNEYS = Journeys(
    sites=("here", "there"),
    landed=[
        *(message(each / 10, sites=("here",)) for each in range(40)),
        *(offer("FR", "matched", sites=("here",), at_s=9) for _ in range(4)),
        offer("FR", "denied", at_s=60),
        message(kind="poll", outcome="idle", country="??", at_s=60),
        message(kind="answer", outcome="success", country="??", at_s=61),
    ],
    split=[offer("DE", "timeout", at_s=5), offer("DE", "matched", sites=("here",), at_s=5)],
    quarantined=2,
    dead_letters=1,
)


@pytest.fixture(scope="module")
def picture() -> ET.Element:
    return ET.fromstring(drawn(JOURNEYS))


def texts(picture: ET.Element) -> list[str]:
    return ["".join(element.itertext()) for element in picture.iter(f"{SVG}text")]


def test_every_message_is_on_one_way_from_its_source_to_its_end() -> None:
    ways = JOURNEYS.ways()
    assert ways.total() == JOURNEYS.total == 52
    assert ways[APPLICATION, ORDERS, HERE, TABLES] == 40
    assert ways["clients in FR", OUTCOMES["matched"], HERE, TABLES] == 4
    assert ways["clients in DE", OUTCOMES["timeout"], THERE, SESSION] == 1
    assert ways[APPLICATION, UNREADABLE, NO_EXCHANGE, QUARANTINE] == 2
    assert ways[APPLICATION, ASTRAY, THERE, DEAD] == 1


def test_what_did_not_happen_has_no_way() -> None:
    nothing_lost = Journeys(sites=("here", "there"), landed=JOURNEYS.landed, split=(), quarantined=0, dead_letters=0)
    assert {end for *_, end in nothing_lost.ways()} == {TABLES}


def test_the_picture_has_sources_outcomes_and_ends_with_their_numbers(picture: ET.Element) -> None:
    said = " ".join(texts(picture))
    for part in ("clients in FR  5", "answered  5", "timed out  1", "orders  40", "quarantine  2", "dead letters  1"):
        assert part in said
    assert "1 answered, 1 timed out" in said
    assert "4 answered, 1 denied" in said
    assert "52 messages" in said


def test_no_text_begins_or_ends_beyond_the_sheet(picture: ET.Element) -> None:
    left, top, width, height = map(float, picture.attrib["viewBox"].split())
    for element in picture.iter(f"{SVG}text"):
        at = element.get("transform", "").split("translate(")[-1].split(")")[0].replace(",", " ").split()
        x, y = (float(element.get(name, place)) for name, place in zip("xy", [*at, "0", "0"], strict=False))
        style = element.get("style", "")
        room = 5.0 * len("".join(element.itertext())) if "rotate(-90" not in element.get("transform", "") else 0.0
        before = room if "text-anchor: end" in style else room / 2 if "text-anchor: middle" in style else 0.0
        assert left <= x - before, (x, style, "".join(element.itertext()))
        assert x + room - before <= left + width, (x, style, "".join(element.itertext()))
        assert top <= y <= top + height


def test_equal_messages_give_equal_bytes_with_the_colours_of_both_schemes() -> None:
    one, other = drawn(JOURNEYS), drawn(JOURNEYS)
    assert one == other
    light, dark = one.split("@media (prefers-color-scheme: dark)", 1)
    for colour in (Colour.INK, Colour.PAPER, Colour.GOOD, Colour.BAD):
        assert f"--{colour}:{LIGHT[colour]};" in light
        assert f"--{colour}:{DARK[colour]};" in dark
        assert f"var(--{colour}, {LIGHT[colour]})" in dark


def test_a_demo_in_which_nothing_was_landed_is_drawn_too() -> None:
    nothing = Journeys(sites=("here", "there"), landed=(), split=(), quarantined=2, dead_letters=1)
    assert "3 messages" in " ".join(texts(ET.fromstring(drawn(nothing))))
