"""The demo's picture: what came from whom and where it went, offers by country, and how long messages took.

Drawn from what was landed: nothing is counted that isn't in a table, a queue or the quarantine.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from io import StringIO
from itertools import pairwise
from typing import Any

from sluice.pictures.svg import LIGHT, Colour, themed

OUTCOMES = {
    "matched": ("answered", Colour.GOOD),
    "denied": ("denied", Colour.SLOW),
    "timeout": ("timed out", Colour.BAD),
}
"""Of offers, by what their events say."""
KINDS = {"poll": ("polls", Colour.TWO), "answer": ("answers", Colour.THREE)}
ORDERS, UNREADABLE, ASTRAY = ("orders", Colour.ONE), ("unreadable", Colour.BAD), ("to no exchange", Colour.SLOW)
VOLUNTEERS, APPLICATION = "volunteers", "an application"
TABLES, SESSION, QUARANTINE, DEAD = "tables", "the session's\ntables", "quarantine", "dead letters"
NO_EXCHANGE = "straight to\nthe queue"
_PASSED, _READ, _LANDED = "through exchanges and splitter", "read by Spark", "in a table"

_THIN = 0.03  # of the diagram's height
_FLOW = "73"  # opacity, of ff: what is written on flows can be read

What = tuple[str, Colour]


@dataclass(frozen=True, slots=True, kw_only=True)
class Landed:
    """A row of a table of messages. `event` is empty where its body is none; `sites` are those that it left."""

    event: Mapping[str, Any]
    sites: Sequence[str]
    published_at: datetime
    queued_at: datetime
    read_at: datetime
    landed_at: datetime

    @property
    def source(self) -> str:
        """Who it is from."""
        match self.event.get("kind"):
            case None:
                return APPLICATION
            case "offer":
                return f"clients in {self.event['country']}"
            case _:
                return VOLUNTEERS

    @property
    def what(self) -> What:
        """What it tells, and the colour for that."""
        kind = self.event.get("kind")
        if kind is None:
            return ORDERS
        outcome = str(self.event["outcome"])
        return OUTCOMES.get(outcome, (outcome, Colour.QUIET)) if kind == "offer" else KINDS[kind]


@dataclass(frozen=True, slots=True, kw_only=True)
class Journeys:
    """All that came to an end, by which end; `sites` are those at whose exchanges it was published, in order."""

    sites: tuple[str, str]
    landed: Sequence[Landed]
    split: Sequence[Landed]
    quarantined: int
    dead_letters: int

    @property
    def total(self) -> int:
        """How many messages."""
        return len(self.landed) + len(self.split) + self.quarantined + self.dead_letters

    def ways(self) -> Counter[tuple[str, What, str, str]]:
        """Count messages by who sent them, what they tell, where they were published, and their end."""
        here, there = (f"events at\n{site}" for site in self.sites)
        ways = Counter(
            (each.source, each.what, here if each.sites else there, end)
            for end, messages in ((TABLES, self.landed), (SESSION, self.split))
            for each in messages
        )
        ways[APPLICATION, UNREADABLE, NO_EXCHANGE, QUARANTINE] += self.quarantined
        ways[APPLICATION, ASTRAY, there, DEAD] += self.dead_letters
        return +ways


def drawn(journeys: Journeys) -> str:
    """Draw it as SVG, for light and dark."""
    import matplotlib as mpl  # noqa: PLC0415 - takes a second, and only here

    mpl.use("svg")
    from matplotlib import pyplot as plt  # noqa: PLC0415 - after the choice of what draws

    ink, quiet, paper = LIGHT[Colour.INK], LIGHT[Colour.QUIET], LIGHT[Colour.PAPER]
    style: dict[Any, Any] = {
        "svg.fonttype": "none",  # text stays text
        "svg.hashsalt": "sluice",  # equal messages give equal bytes
        "font.size": 10,
        "axes.titlesize": 12,
        "axes.titlelocation": "left",
        "axes.titlepad": 14,
        "axes.spines.top": False,
        "axes.spines.right": False,
        **dict.fromkeys(("figure.facecolor", "axes.facecolor"), paper),
        **dict.fromkeys(("text.color", "axes.titlecolor"), ink),
        **dict.fromkeys(("axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), quiet),
    }
    with mpl.rc_context(style):
        figure = plt.figure(figsize=(13, 10), layout="constrained")
        flows, offers, lags = figure.subplot_mosaic(
            [["flows", "flows"], ["offers", "lags"]], height_ratios=[2, 1]
        ).values()
        _draw_flows(flows, journeys)
        _draw_offers(offers, [*journeys.landed, *journeys.split])
        _draw_lags(lags, [*journeys.landed, *journeys.split])
        written = StringIO()
        figure.savefig(written, format="svg", bbox_inches="tight", pad_inches=0.2, metadata={"Date": None})
        plt.close(figure)
    return themed(written.getvalue())


def _draw_flows(axes: Any, journeys: Journeys) -> None:
    from sankeyflow import Sankey  # noqa: PLC0415 - it imports matplotlib

    order = [*OUTCOMES.values(), *KINDS.values(), ORDERS, UNREADABLE, ASTRAY]
    ways = sorted(
        journeys.ways().items(), key=lambda way: (order.index(way[0][1]) if way[0][1] in order else -1, way[0])
    )
    levels: list[Counter[str]] = [Counter() for _ in range(4)]
    colours = {what[0]: what[1] for (_, what, _, _), _ in ways}
    flows: Counter[tuple[str, str, Colour]] = Counter()
    for (source, what, site, end), count in ways:
        stops = source, what[0], site, end
        for level, stop in zip(levels, stops, strict=True):
            level[stop] += count
        for start, stop in pairwise(stops):
            flows[start, stop, what[1]] += count
    nodes = [
        [
            (name, count, {"label_pos": side, "color": LIGHT[colours.get(name, Colour.EDGE)]})
            for name, count in level.items()
        ]
        for level, side in zip(levels, ("left", "right", "right", "right"), strict=True)
    ]
    diagram = Sankey(
        flows=[
            (start, stop, count, {"color": LIGHT[colour] + _FLOW}) for (start, stop, colour), count in flows.items()
        ],
        nodes=nodes,
        node_width=0.02,
        node_height_pad_min=0.045,
        node_pad_y_min=0.02,
        node_pad_y_max=0.06,
        node_opts={"label_format": "{label}  {value:,.0f}", "label_opts": {"fontsize": 10}},
    )
    diagram.draw(axes)
    for flow in diagram.flows:
        flow.artist.set_zorder(1 / (1 + flow.start_value))  # the thin ones stay to be seen
    for node in (node for level in diagram.nodes[1:3] for node in level if node.height < _THIN):
        node.text.set_va("bottom")  # its own flow would go through it
    axes.set_title(
        f"{journeys.total:,} messages: from whom, what they tell, where they were published, where they ended"
    )


def _draw_offers(axes: Any, landed: Sequence[Landed]) -> None:
    counts = Counter((each.event["country"], each.what) for each in landed if each.event.get("kind") == "offer")
    countries = sorted({country for country, _ in counts}, reverse=True)
    before = Counter[str]()
    for what in OUTCOMES.values():
        numbers = {country: counts[country, what] for country in countries}
        left = [before[country] for country in countries]
        axes.barh(countries, list(numbers.values()), left=left, height=0.55, color=LIGHT[what[1]], label=what[0])
        before.update(numbers)
    widest = max(before.values(), default=1)
    for place, country in enumerate(countries):
        said = ", ".join(f"{n} {what[0]}" for what in OUTCOMES.values() if (n := counts[country, what]))
        axes.text(before[country] + widest * 0.02, place, said, va="center")
    axes.set(title="Offers by clients' country, both sites", xlabel="offers", xlim=(0, widest * 1.95))
    axes.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=len(OUTCOMES))


def _draw_lags(axes: Any, landed: Sequence[Landed]) -> None:
    first = min((each.published_at for each in landed), default=None)
    series: list[tuple[str, Colour, str, Callable[[Landed], datetime]]] = [
        (_PASSED, Colour.ONE, "o", lambda each: each.queued_at),
        (_READ, Colour.TWO, "s", lambda each: each.read_at),
        (_LANDED, Colour.THREE, "^", lambda each: each.landed_at),
    ]
    for name, colour, marker, until in series:
        # To a tenth of a second, each point once: two hundred messages are published at once.
        points = sorted(
            {
                (
                    round((each.published_at - first).total_seconds(), 1),
                    round((until(each) - each.published_at).total_seconds(), 1),
                )
                for each in landed
                if first is not None
            }
        )
        axes.plot([x for x, _ in points], [y for _, y in points], marker, markersize=4, color=LIGHT[colour], label=name)
    from matplotlib.ticker import LogLocator, NullLocator  # noqa: PLC0415 - it takes a second, and only here

    axes.set(
        title="Lag: how long after it was published a message was …",
        xlabel="published, seconds after the first",
        ylabel="seconds",
        yscale="log",
    )
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_locator(NullLocator())
    axes.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=len(series))
