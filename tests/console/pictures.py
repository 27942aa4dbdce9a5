"""Pictures of the console's pages for the documents, in light and dark: `make console-pictures`.

They are of recorded sites and at a fixed time, so that they change where pages do. With another folder and width they
are for whoever looks at pages: `python -m tests.console.pictures FOLDER WIDTH`.
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from playwright.sync_api import Page

from sluice.building.project import PROJECT
from tests.browser import chromium, open_page, serving
from tests.console.conftest import RecordedSites
from tests.console.test_dead_letters import letter, looked

FOLDER = PROJECT.workspace / "docs" / "pictures" / "console"
WIDTH, HEIGHT = 1280, 960
PHONE = 600  # px: narrower than that is a phone, which is shown from top to bottom
RECORDED_MS = {"splitting": 1_790_000_000_000, "federation": 1_790_000_000_000, "pipeline": 1_790_000_000_000}
OTHERS_MS = 1_795_595_870_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A page's address, and what is done there before its picture is taken."""

    where: str
    prepare: Callable[[Page], object] = lambda _: None


SHOWN: Mapping[str, Shown] = {
    "overview": Shown(where="#/overview"),
    "rendezvous": Shown(where="#/rendezvous"),
    "splitting": Shown(where="#/splitting"),
    "federation": Shown(where="#/federation"),
    "pipeline": Shown(where="#/pipeline"),
    "dead-letters": Shown(
        where="#/dead-letters?queue=federation", prepare=lambda page: page.locator("summary").first.click()
    ),
    "log": Shown(where="#/log"),
}


def pictured(folder: Path, width: int) -> None:
    """Writes a file a page and scheme."""
    sites = RecordedSites()
    sites.answers["dead-letters"] = looked([letter(number) for number in range(1, 6)])
    folder.mkdir(parents=True, exist_ok=True)
    height = HEIGHT if width <= WIDTH else width * 9 // 16
    with chromium() as browser, serving(sites, allow_actions=True) as served:
        for name, shown in SHOWN.items():
            for dark in (False, True):
                with open_page(browser, width=width, height=height, dark=dark) as page:
                    at_ms = RECORDED_MS.get(shown.where.strip("#/").partition("?")[0], OTHERS_MS)
                    page.clock.set_fixed_time(datetime.fromtimestamp(at_ms / 1_000, UTC))
                    page.goto(served.address + shown.where)
                    page.locator("main h2").first.wait_for()
                    page.locator(".live[data-state=live]").wait_for()
                    page.get_by_text("Loading…").wait_for(state="detached")
                    shown.prepare(page)
                    file = folder / f"{name}-{'dark' if dark else 'light'}.png"
                    page.screenshot(path=file, full_page=width < PHONE)


if __name__ == "__main__":
    given = sys.argv[1:]
    pictured(Path(given[0]) if given else FOLDER, int(given[1]) if len(given) > 1 else WIDTH)
