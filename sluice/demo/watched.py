"""The demo on the console: its page while the demo runs, and at its end what the page says, held against the tables."""

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from sluice.cli.site_names import SiteName
from sluice.console.program import open_at, open_in_browser
from sluice.console.requests import Topic
from sluice.console.server import Options, Served
from sluice.console.sites import WatchedSite
from sluice.demo.federation import ALONE, TOGETHER
from sluice.demo.pipeline import FOLDER, MAIN, UNREADABLE, Reconciled
from sluice.demo.rendezvous import Rendezvoused
from sluice.demo.splitting import OTHERS, PEOPLE
from sluice.local.access import SiteAccess
from sluice.peers.client import AttemptOutcome

SAYS_WITHIN_S = 30.0  # what it says is seconds old: it asks by turns
LOOK_EVERY_S = 1.0
FIRST = 1  # message that has the functions start
NOWHERE = FOLDER / "none"  # at the first site nothing is landed
UNANSWERED = "unanswered"  # of the counters two
FEDERATED = FIRST + ALONE + TOGETHER


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """A number of the overview, by the site's place, the part and the counter, and what the tables say it may be."""

    what: str
    site: int
    part: str
    counter: str
    expected: range
    found: int | None = None

    @property
    def is_right(self) -> bool:
        """Whether it is what the tables say."""
        return self.found is not None and self.found in self.expected


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """All of them, as they were said last; none where a day ended meanwhile, as its counters did."""

    said: Sequence[Said]

    def is_right(self) -> bool:
        """Whether each is what the tables say."""
        return all(each.is_right for each in self.said)

    def rows(self) -> list[tuple[str, str]]:
        """For the summary."""
        if not self.said:
            return [("a day ended in UTC: its counters aren't compared", "")]
        return [(each.what, str(each.found) if each.is_right else _wrong(each)) for each in self.said]


def _wrong(said: Said) -> str:
    least, most = said.expected[0], said.expected[-1]
    return f"{said.found}, and not {least if least == most else f'{least} to {most}'}"


def watched(sites: Sequence[SiteAccess]) -> Served:
    """Make the console of these sites, at the last of which the demo lands."""
    connections = {
        SiteName(each.site.region, local_account=each.site.account, stage=each.site.stage): each.connection
        for each in sites
    }
    *others, last = connections
    landed = dict.fromkeys(others, NOWHERE) | {last: MAIN}
    shown = [WatchedSite(name, connections.__getitem__, landed[name]) for name in connections]
    return open_at(shown, Options())


@contextmanager
def served(console: Served) -> Iterator[None]:
    """Serve the console beside the demo, and open it where there is a browser."""
    thread = threading.Thread(target=console.run, daemon=True)
    thread.start()
    open_in_browser(console.address)
    try:
        yield
    finally:
        console.end()
        thread.join(LOOK_EVERY_S)


def wait() -> None:
    """Wait for ctrl-C."""
    never = threading.Event()
    with suppress(KeyboardInterrupt):
        # Without a time-out, Python doesn't see a signal that comes just before it blocks until the next one comes.
        while not never.wait(LOOK_EVERY_S):
            pass


def numbers(here: Rendezvoused, there: Rendezvoused, joined: Reconciled) -> Sequence[Said]:
    """List what the overview has to say at the end, by what the tables have."""
    published, own = len(set(joined.published.ids)), len(set(joined.own.ids))
    landed, split = len(joined.landed.ids), len(joined.split.ids)
    main = landed + joined.quarantined
    sent = sum(PEOPLE.values()) + OTHERS
    return [
        *_offers(0, here),
        *_offers(1, there),
        _said("messages sent to the split queue", 0, "splitting", "in", sent),
        _said("of these to sessions", 0, "splitting", "to_sessions", sum(PEOPLE.values())),
        _said("of these to the consumer", 0, "splitting", "to_main", OTHERS),
        _said("published at the first site", 0, "federation", "in", own + FEDERATED),
        _said("of these over to the second", 0, "federation", "forwarded", own + FEDERATED),
        _said("messages at the second site", 1, "federation", "in", published + FEDERATED + joined.dead_letters),
        _said("dead-lettered there", 1, "federation", "dead", joined.dead_letters),
        _said("at its split queue", 1, "splitting", "in", published + UNREADABLE),
        _said("of these to the session", 1, "splitting", "to_sessions", split),
        _said("queued for the pipeline", 1, "pipeline", "in", main),
        _said("taken by Spark", 1, "pipeline", "out", main),
    ]


def _said(what: str, site: int, part: str, counter: str, number: int) -> Said:
    return Said(what=what, site=site, part=part, counter=counter, expected=range(number, number + 1))


def _offers(site: int, offered: Rendezvoused) -> Sequence[Said]:
    """Offers that nobody heard of may be missing; who was answered may have gone before.

    A client that was denied tells it from one that was timed out by the text; the site knows which proxy was late.
    """
    every = [*offered.early, *offered.attempts]
    echoed = sum(each.echoed for each in every)
    others = sum(not each.echoed and each.outcome is not AttemptOutcome.DENIED for each in every)
    answered, heard = range(echoed, echoed + others + 1), offered.offers
    may = {
        "in": ("offers", heard),
        "out": ("answered", answered),
        UNANSWERED: ("denied or timed out", range(max(0, heard[0] - answered[-1]), heard[-1] - answered[0] + 1)),
    }
    where = ("first", "second")[site]
    return [
        Said(what=f"{name} at the {where} site", site=site, part="rendezvous", counter=counter, expected=expected)
        for counter, (name, expected) in may.items()
    ]


def compare(console: Served, said: Sequence[Said], *, began: str, day: str) -> Compared:
    """Read the overview until it says all of it, or the time is up; nothing where the demo `began` on another day."""
    if began != day:
        return Compared(said=[])
    deadline = time.monotonic() + SAYS_WITHIN_S
    while True:
        found = [console.console.watching.read(Topic(reading="overview", site=site)) for site in range(2)]
        compared = Compared(said=[_found(each, found[each.site]) for each in said])
        if compared.is_right() or time.monotonic() > deadline:
            return compared
        time.sleep(LOOK_EVERY_S)


def _found(said: Said, overview: Mapping[str, Any]) -> Said:
    told = overview["counters"].get(said.part, {}) | overview["holds"].get(said.part, {})
    number = told.get(said.counter)
    if said.counter == UNANSWERED and None not in {told.get("denied"), told.get("timed_out")}:
        number = told["denied"] + told["timed_out"]
    return Said(
        what=said.what, site=said.site, part=said.part, counter=said.counter, expected=said.expected, found=number
    )
