"""Who tells whom what, one after the other: a column for each, time downwards."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

from sluice.pictures.svg import FONT_SIZE, LINE_HEIGHT, Colour, Size, arrowhead, box, curve, document, text, text_width

_MARGIN = 16
_STEP = 38  # px from one step to the next
_HEAD = 9  # px
_NEAR = 24  # px between columns' boxes


@dataclass(frozen=True, slots=True, kw_only=True)
class Actor:
    """A column."""

    name: str
    beside: str
    colour: Colour = Colour.EDGE


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What one actor tells another, by their names."""

    source: str
    dest: str
    lines: str
    colour: Colour = Colour.INK
    both_ways: bool = False


def drawn(actors: Sequence[Actor], steps: Sequence[Step], *, title: str) -> str:
    """Draw columns as far apart as what is said between neighbours needs it."""
    names = [actor.name for actor in actors]
    sizes = [Size(max(text_width(a.name), text_width(a.beside)) + 24, 2 * LINE_HEIGHT + 12) for a in actors]
    places = [_MARGIN + sizes[0].width / 2]
    for number in range(1, len(actors)):
        least = places[-1] + (sizes[number - 1].width + sizes[number].width) / 2 + _NEAR
        said = (
            places[first] + text_width(step.lines) + 2 * _HEAD + 12
            for step in steps
            for first, last in [sorted((names.index(step.source), names.index(step.dest)))]
            if last == number
        )
        places.append(max([least, *said]))
    top = _MARGIN + sizes[0].height / 2
    first = top + sizes[0].height / 2 + _STEP
    bottom = first + _STEP * (len(steps) - 1) + _STEP / 2
    parts: list[str] = []
    for actor, x, size in zip(actors, places, sizes, strict=True):
        line = curve([(x, top), (x, top), (x, bottom), (x, bottom)], width=1, dash="2 4")
        parts.append(
            f'<g class="{Colour.EDGE}">{line}</g>{box((x, top), size, colour=actor.colour)}'
            + text((x, top - 4), actor.name, bold=True)
            + text((x, top - 4 + LINE_HEIGHT), actor.beside, colour=Colour.QUIET)
        )
    for number, step in zip(count(1), steps):
        y = first + _STEP * (number - 1)
        start, end = places[names.index(step.source)], places[names.index(step.dest)]
        parts += [_arrow(start, end, y, step), _label((start + end) / 2, y, step.lines)]
    width = max(x + size.width / 2 for x, size in zip(places, sizes, strict=True)) + _MARGIN
    return document(Size(width, bottom + _MARGIN), parts, title=title)


def _label(x: float, y: float, says: str) -> str:
    """Write above the arrow, on paper: the columns' lines don't go through it."""
    width = text_width(says) + 6
    paper = f'x="{x - width / 2:.1f}" y="{y - 7 - FONT_SIZE:.1f}" width="{width:.1f}" height="{FONT_SIZE + 4}"'
    return f'<rect class="{Colour.PAPER}" {paper} fill="currentColor"/>{text((x, y - 7), says)}'


def _arrow(start: float, end: float, y: float, step: Step) -> str:
    towards = _HEAD if end > start else -_HEAD
    first = start + (towards if step.both_ways else 0)
    line = curve([(first, y), (first, y), (end - towards, y), (end - towards, y)], width=1.5)
    back = arrowhead((start + towards, y), (start, y)) if step.both_ways else ""
    return f'<g class="line {step.colour}">{line}{arrowhead((end - towards, y), (end, y))}{back}</g>'
