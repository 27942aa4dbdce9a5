"""Measures the console with large sites: first paint, delay of updates, AWS calls per refresh, and memory.

A separate process, with everything that the command imports, serves recorded sites: 1,000 sessions, 10,000 dead letters
of which 1,000 are listed, and a map of forty sites. Each page is opened anew in a browser without cache. An updated
value is the time of its reading, so the page can tell how old it is when it appears. Calls are counted on the first
site of the embedded cloud if one is running (`sluice local up`).
"""

import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer
from playwright.sync_api import Browser

from benchmarks.report import Figure, report
from sluice.console.requests import Topic
from sluice.console.server import ConsoleServer, ServerOptions
from sluice.console.sites import WatchedSite
from sluice.console.watching import ACTIONS, QUESTIONS, READERS, WatchedSites
from sluice.errors import SluiceError
from sluice.local.sites import DEFAULT_SITE
from sluice.operator.site_names import SiteName
from tests.browser import chromium, open_page
from tests.console.conftest import RecordedSites, recorded
from tests.console.test_dead_letters import letter, looked

ROUNDS = 5
SESSIONS, LETTERS, TOLD_LETTERS, MAPPED = 1_000, 10_000, 1_000, 40
UPDATES = 12
EVERY_S = 0.5
REFRESHES = 3
ROUND_S = 1.1
PAGES = ("overview", "rendezvous", "splitting", "federation", "pipeline", "dead-letters?queue=federation", "log")
FIRST_PAINT_MAX_MS, UPDATE_MAX_MS, CALLS_MAX, MEMORY_MAX_MB = 1_000.0, 200.0, 10.0, 300.0
PAINTED = """() => new Promise(resolve => {
  const look = () => {
    const [paint] = performance.getEntriesByName('first-contentful-paint');
    if (paint && document.querySelector('main h2')) resolve({paint: paint.startTime, content: performance.now()});
    else requestAnimationFrame(look);
  };
  look();
})"""
UPDATED = """updates => new Promise(resolve => {
  const taken = [];
  let last = null;
  const look = () => {
    const node = document.querySelector('[data-stat="Wait at the source"] dd');
    const value = node ? Number(node.textContent.replaceAll(',', '')) : null;
    if (value && value !== last) {
      if (last !== null) taken.push(Date.now() - value);
      last = value;
    }
    if (taken.length >= updates) resolve(taken);
    else requestAnimationFrame(look);
  };
  look();
})"""


@dataclass(slots=True)
class LargeSites(RecordedSites):
    """A site with the large cases. Each reading of page Splitting differs from the last one."""

    documents: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Build the documents once."""
        self.documents = {path.stem: recorded(path.stem) for path in RECORDINGS.glob("*.json")}
        splitting = self.documents["splitting"]
        first = splitting["sessions"][0]
        splitting["sessions"] = [
            {**first, "session_id": f"s{number}", "owner": f"owner-{number}", "counted": {"pipeline": number}}
            for number in range(SESSIONS)
        ]
        self.documents["splitting"] = lambda _: now_with(splitting)
        self.documents["dead-letters"]["queues"][2]["visible"] = LETTERS
        letters = looked([letter(number) for number in range(TOLD_LETTERS)])
        self.answers["dead-letters"] = {**letters, "looked_at": LETTERS}
        self.documents["federation"]["map"] = a_large_map(self.documents["federation"]["map"])


RECORDINGS = Path(__file__).parents[1] / "tests" / "console" / "recorded"


def now_with(splitting: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the document with the time as the source's depth, and with a changed count of every session."""
    queue, *others = splitting["queues"]
    queue = {**queue, "source": {**queue["source"], "visible": time.time_ns() // 1_000_000}}
    sessions = [{**each, "messages": queue["source"]["visible"] % 100_000} for each in splitting["sessions"]]
    return {**splitting, "queues": [queue, *others], "sessions": sessions}


def a_large_map(small: Mapping[str, Any]) -> Mapping[str, Any]:
    """Repeat a map, each copy below the last one, until it has this many sites."""
    times = MAPPED // len(small["nodes"])

    def lower(each: Any, by: float) -> Any:
        moved = {**each, "y": each["y"] + by} if "y" in each else dict(each)
        if "points" in each:
            moved["points"] = [[x, y + by] for x, y in each["points"]]
            moved["heads"] = [[[x, y + by] for x, y in ends] for ends in each["heads"]]
            moved["label"] = each["label"] and {**each["label"], "y": each["label"]["y"] + by}
        return moved

    nodes, edges = [], []
    for number in range(times):
        by, mark = number * small["height"], f" {number}"
        nodes += [{**lower(each, by), "tag": each["tag"] + mark} for each in small["nodes"]]
        edges += [
            {**lower(each, by), "source": each["source"] + mark, "dest": each["dest"] + mark} for each in small["edges"]
        ]
    return {**small, "height": small["height"] * times, "nodes": nodes, "edges": edges}


def serve() -> None:
    """Serve large sites until the process is killed, with all of the command's imports in memory."""
    from pyarrow import parquet  # noqa: F401, PLC0415 - its memory counts, as somebody may look at rows

    watched: Any = LargeSites()  # replaces deployed sites
    served = ConsoleServer.listen(watched, ServerOptions(allow_actions=True, every_s=EVERY_S))
    print(served.address, flush=True)
    served.run()


@contextmanager
def served_apart() -> Iterator[tuple[str, int]]:
    """Start the server as a process; yield its address and its process id."""
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.console", "--serve"], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip(), process.pid
    finally:
        process.terminate()
        process.wait()


def first_paints(browser: Browser, address: str, *, rounds: int) -> Mapping[str, tuple[float, float]]:
    """Return the median milliseconds until the first paint and until the page's content, by page."""
    found: dict[str, list[tuple[float, float]]] = {page: [] for page in PAGES}
    for _ in range(rounds):
        for name, taken in found.items():
            with open_page(browser, width=1280) as page:
                page.goto(f"{address}#/{name}")
                said = page.evaluate(PAINTED)
                taken.append((said["paint"], said["content"]))
    return {
        name: (median(paint for paint, _ in taken), median(content for _, content in taken))
        for name, taken in found.items()
    }


def updates(browser: Browser, address: str) -> Sequence[float]:
    """Return the milliseconds from a reading of a thousand sessions until the page shows it."""
    with open_page(browser, width=1280) as page:
        page.goto(f"{address}#/splitting")
        taken: Sequence[float] = page.evaluate(UPDATED, UPDATES)
        return taken


def memory_mb(pid: int) -> float:
    """Return a process's peak memory in MB."""
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(lines["VmHWM"].split()[0]) / 1_024


def calls_a_refresh() -> tuple[float, float] | None:
    """Count the AWS calls of the most expensive reading, the first time and later; None without a running cloud."""
    first, later = 0, 0
    try:
        for reading in READERS:
            site = WatchedSite(SiteName(DEFAULT_SITE.region, local_account=DEFAULT_SITE.account))
            watched = WatchedSites(sites=[site], readers=READERS, questions=QUESTIONS, actions=ACTIONS)
            for refresh in range(1 + REFRESHES):
                before = site.memory.calls
                watched.read(Topic(reading=reading))
                time.sleep(ROUND_S)  # background work that the reading started ends, too
                made = site.memory.calls - before
                first, later = (first, max(later, made)) if refresh else (max(first, made), later)
    except SluiceError:
        return None
    return float(first), float(later)


def main(
    *,
    rounds: Annotated[int, typer.Option(help="Number of times that each page is opened.")] = ROUNDS,
    serves: Annotated[bool, typer.Option("--serve", hidden=True)] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON on the last line, too.")] = False,
) -> None:
    """Run all measurements, and compare them with the limits."""
    if serves:
        serve()
        return
    calls = calls_a_refresh()
    with served_apart() as (address, pid), chromium() as browser:
        paints = first_paints(browser, address, rounds=rounds)
        taken = updates(browser, address)
        resident = memory_mb(pid)
    figures = {
        f"paint_{name.partition('?')[0].replace('-', '_')}_ms": Figure(
            name=f"{name}: time to content, ms", value=content
        )
        for name, (_, content) in paints.items()
    }
    figures["first_paint_ms"] = Figure(
        name="slowest page: time to first paint, ms",
        value=max(paint for paint, _ in paints.values()),
        limit=FIRST_PAINT_MAX_MS,
    )
    figures["first_content_ms"] = Figure(
        name="slowest page: time to content, ms",
        value=max(content for _, content in paints.values()),
        limit=FIRST_PAINT_MAX_MS,
    )
    figures["update_ms"] = Figure(
        name="time to update a table of 1,000 sessions, ms", value=median(taken), limit=UPDATE_MAX_MS
    )
    if calls is not None:
        first, later = calls
        figures["aws_calls_first"] = Figure(name="AWS calls of a first refresh", value=first, limit=CALLS_MAX)
        figures["aws_calls"] = Figure(name="AWS calls of a later refresh", value=later, limit=CALLS_MAX)
    figures["memory_mb"] = Figure(name="resident memory, MB", value=resident, limit=MEMORY_MAX_MB)
    report("Console: pages in a browser", figures, as_json=as_json)


if __name__ == "__main__":
    typer.run(main)
