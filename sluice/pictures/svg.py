"""Writes self-contained SVG, without scripts, fonts or links. A file contains a light and a dark colour scheme.

Colours are named by meaning. A renderer without support for colour schemes shows the light scheme.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from html import escape

from rich.cells import cell_len
from rich.text import Text

from sluice.message import NOT_TEXT

FONT_SIZE = 12  # font size in pixels
LINE_HEIGHT = 17
CELL_WIDTH = 0.605 * FONT_SIZE  # pixels per character in the widest of the fonts
_FONTS = "ui-monospace, 'SF Mono', Menlo, Consolas, 'DejaVu Sans Mono', monospace"
_HEAD_WIDTH = 3.5  # half of the width of an arrow's head in pixels

Point = tuple[float, float]
"""A point in px: x to the right, y down."""


@dataclass(frozen=True, slots=True)
class Size:
    """A width and a height in pixels."""

    width: float
    height: float


class Colour(StrEnum):
    """The colours of drawings, named by their meaning."""

    PAPER = "paper"
    BOX = "box"
    EDGE = "edge"
    INK = "ink"
    QUIET = "quiet"
    GOOD = "good"
    SLOW = "slow"
    BAD = "bad"
    ONE = "one"
    TWO = "two"
    THREE = "three"


LIGHT: Mapping[Colour, str] = {
    Colour.PAPER: "#ffffff",
    Colour.BOX: "#eef2f7",
    Colour.EDGE: "#8592a3",
    Colour.INK: "#1b222b",
    Colour.QUIET: "#566170",
    Colour.GOOD: "#1a7034",
    Colour.SLOW: "#8a5a00",
    Colour.BAD: "#b3261e",
    Colour.ONE: "#2457b3",
    Colour.TWO: "#8a3fa6",
    Colour.THREE: "#a3460f",
}
DARK: Mapping[Colour, str] = {
    Colour.PAPER: "#0f141b",
    Colour.BOX: "#1d2631",
    Colour.EDGE: "#6b7889",
    Colour.INK: "#e7edf4",
    Colour.QUIET: "#a3afbd",
    Colour.GOOD: "#58c878",
    Colour.SLOW: "#e3b341",
    Colour.BAD: "#ff8178",
    Colour.ONE: "#7db0ff",
    Colour.TWO: "#d3a0ea",
    Colour.THREE: "#f2a26b",
}


def document(size: Size, parts: Iterable[str], *, title: str) -> str:
    """Build an SVG document of this size from its elements."""
    width, height = round(size.width), round(size.height)
    sheet = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    head_lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {sheet} font-family="{_FONTS}" font-size="{FONT_SIZE}" role="img">',
        f"<title>{escape_xml(title)}</title>",
        f"<style>{_style_rules(LIGHT)}",
        "g.line:hover path{stroke-width:4}",
        f"@media (prefers-color-scheme: dark) {{{_style_rules(DARK)}}}</style>",
        f'<rect class="{Colour.PAPER}" width="100%" height="100%" fill="currentColor"/>',
    ]
    return "\n".join([*head_lines, *parts, "</svg>\n"])


def text(
    at: Point,
    content: str,
    *,
    colour: Colour = Colour.INK,
    anchor: str = "middle",
    bold: bool = False,
) -> str:
    """Return an SVG element with a line of text, whose baseline is at a point."""
    weight = ' font-weight="bold"' if bold else ""
    return (
        f'<text class="{colour}" x="{at[0]:.1f}" y="{at[1]:.1f}" text-anchor="{anchor}" fill="currentColor"{weight}>'
        f"{escape_xml(content)}</text>"
    )


def box(centre: Point, size: Size, *, dashed: bool = False, colour: Colour = Colour.EDGE) -> str:
    """Return an SVG element of a box with round corners."""
    dash = ' stroke-dasharray="4 3"' if dashed else ""
    where = f'x="{centre[0] - size.width / 2:.1f}" y="{centre[1] - size.height / 2:.1f}"'
    how = f'width="{size.width:.1f}" height="{size.height:.1f}" rx="6" fill="currentColor"'
    return (
        f'<g class="{Colour.BOX}"><rect {where} {how}/></g>'
        f'<g class="{colour}"><rect {where} {how} fill-opacity="0" stroke="currentColor"{dash}/></g>'
    )


def curve(points: Iterable[Point], *, width: float, dash: str = "") -> str:
    """Return an SVG element of Bézier curves, in the colour of the surrounding group."""
    first, *others = [f"{x:.1f},{y:.1f}" for x, y in points]
    pattern = f' stroke-dasharray="{dash}"' if dash else ""
    return f'<path d="M{first} C{" ".join(others)}" fill="none" stroke="currentColor" stroke-width="{width}"{pattern}/>'


def arrowhead(start: Point, tip: Point) -> str:
    """Return an SVG element of an arrow's head from the line's end to the tip, in the colour of the group around it."""
    (x, y), (tip_x, tip_y) = start, tip
    length = math.dist(start, tip) or 1.0
    aside_x, aside_y = (tip_y - y) / length * _HEAD_WIDTH, (x - tip_x) / length * _HEAD_WIDTH
    corners = ((tip_x, tip_y), (x + aside_x, y + aside_y), (x - aside_x, y - aside_y))
    return f'<polygon points="{" ".join(f"{a:.1f},{b:.1f}" for a, b in corners)}" fill="currentColor"/>'


def text_width(content: str) -> float:
    """Return the width of a text in pixels, in the widest of the fonts."""
    return CELL_WIDTH * cell_len(NOT_TEXT.sub("\ufffd", content))


def shorten(content: str, cells: int) -> str:
    """Cut a text that is wider than `cells` characters, and end the text with an ellipsis."""
    cut = Text(content)
    cut.truncate(cells, overflow="ellipsis")
    return cut.plain


def escape_xml(content: str) -> str:
    """Escape a text for XML, and replace characters that XML doesn't allow."""
    return escape(NOT_TEXT.sub("\ufffd", content))


def _style_rules(colours: Mapping[Colour, str]) -> str:
    return "".join(f".{colour}{{color:{value}}}" for colour, value in colours.items())
