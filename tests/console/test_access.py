"""All pages, for all eyes and hands: by keyboard alone, on a phone and on a wall, in light and dark, to axe-core."""

import json

import pytest
from playwright.sync_api import Page, expect

from sluice.building.project import PROJECT
from tests.console.conftest import SITES, Looking, RecordedSites, recorded
from tests.console.test_dead_letters import letter, looked

AXE = PROJECT.build / "chromium" / "node_modules" / "axe-core" / "axe.min.js"
# WCAG 2.2, levels A and AA, and what axe-core's authors hold good practice.
AXE_TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
RUN_AXE = "tags => axe.run(document, {runOnly: tags, resultTypes: ['violations']})"
SIDEWAYS = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
# A page, and what is pressed there before it is looked at.
OPENED: dict[str, list[str]] = {
    "#/overview": [],
    "#/rendezvous": [],
    "#/splitting?session=00000005-lin": [],
    "#/federation": [],
    "#/pipeline": [],
    "#/dead-letters?queue=federation": [],
    "#/log": [],
}


@pytest.fixture
def sites(sites: RecordedSites) -> RecordedSites:
    sites.names = SITES
    sites.answers["dead-letters"] = looked([letter(1), letter(2)])
    return sites


def opened(page: Page, where: str, address: str) -> None:
    """Goes to a page by its address and presses what is to be pressed there."""
    page.goto(address + where)
    page.locator("main h2").first.wait_for()
    for name in OPENED[where]:
        page.get_by_text(name, exact=True).first.click()
    if OPENED[where]:
        page.get_by_role("status").last.wait_for()


@pytest.mark.parametrize("dark", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["light", "dark"])
@pytest.mark.parametrize("where", OPENED)
def test_axe_finds_nothing(look: Looking, where: str, dark: bool) -> None:
    page = look.at("#/none", allow_actions=True, dark=dark)
    opened(page, where, look.address)
    page.evaluate(AXE.read_text())
    violations = page.evaluate(RUN_AXE, AXE_TAGS)["violations"]
    assert [(violation["id"], [node["html"][:200] for node in violation["nodes"]]) for violation in violations] == []


@pytest.mark.parametrize("width", [380, *(pytest.param(width, marks=pytest.mark.slow) for width in (768, 3840))])
def test_nothing_scrolls_sideways(look: Looking, width: int) -> None:
    page = look.at("#/none", allow_actions=True, width=width, height=900)
    for where in OPENED:
        opened(page, where, look.address)
        assert page.evaluate(SIDEWAYS) == 0, where


def press(page: Page, key: str, times: int = 1) -> None:
    for _ in range(times):
        page.keyboard.press(key)


def tab_to(page: Page, name: str) -> None:
    """Presses Tab until what has this text, or is called so, has the focus."""
    said = "(document.activeElement.getAttribute('aria-label') || document.activeElement.textContent).trim()"
    for _ in range(80):
        page.keyboard.press("Tab")
        if page.evaluate(said).startswith(name):
            return
    raise AssertionError(f"no way to {name!r} by Tab")


def test_all_is_reached_by_keyboard_alone(look: Looking, sites: RecordedSites) -> None:
    page = look.at("#/overview", allow_actions=True)
    page.locator("main h2").first.wait_for()
    tab_to(page, "Skip to the page")
    tab_to(page, "Splitting")
    press(page, "Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("Splitting")
    assert page.evaluate("document.activeElement.textContent") == "Splitting"  # whoever listens hears where they are
    page.get_by_role("table", name="Sessions").wait_for()
    tab_to(page, "grace@nova, session")
    press(page, "Enter")
    expect(page.get_by_role("region", name="Session", exact=True)).to_contain_text("grace")
    tab_to(page, "Stop session")
    page.goto(f"{look.address}#/federation")
    sites.answers["tell-route"] = {"route": "legacy", "done": "pause"}
    page.get_by_role("button", name="Pause legacy").wait_for()
    tab_to(page, "Pause legacy")
    press(page, "Space")
    expect(page.get_by_role("log")).to_contain_text("legacy: pause")
    assert sites.asked == [("tell-route", 0, {"name": "legacy", "what": "pause"})]


def test_the_focus_stays_where_it_is_as_readings_come(look: Looking, sites: RecordedSites) -> None:
    page = look.at("#/federation", allow_actions=True)
    page.locator("main h2").first.wait_for()
    button = page.get_by_role("button", name="Pause legacy")
    button.focus()
    later = json.loads(json.dumps(recorded("federation")))
    later["routes"].insert(0, {**later["routes"][0], "name": "a-new-one"})
    later["bindings_number"] = 77
    sites.documents["federation"] = later
    expect(page.locator("[data-stat=Bindings] dd")).to_have_text("77")
    expect(button).to_be_focused()


def test_a_page_that_is_linked_to_is_the_page_that_is_shown(look: Looking, sites: RecordedSites) -> None:
    page = look.at(f"#/splitting?site={SITES[1]}&queue=orders.fifo")
    expect(page.get_by_role("navigation", name="Split queues").locator("[aria-current]")).to_contain_text("orders.fifo")
    assert list(sites.reads) == ["splitting@1"]
    page.go_back()
    page.go_forward()
    expect(page.get_by_role("navigation", name="Split queues").locator("[aria-current]")).to_contain_text("orders.fifo")


def test_a_wide_table_scrolls_and_keeps_its_first_column(look: Looking) -> None:
    page = look.at("#/splitting", width=380)
    table = page.get_by_label("Sessions", exact=True).locator(".wide")
    first, last = table.locator("tbody tr").first.locator("td").first, table.locator("th").last
    first.scroll_into_view_if_needed()
    at = first.bounding_box()
    assert at is not None
    table.evaluate("table => table.scrollTo(table.scrollWidth, 0)")
    expect(last).to_be_in_viewport()
    assert first.bounding_box() == at
