"""The overview: what each site's four parts say, as it comes."""

import copy

from playwright.sync_api import Page, expect

from sluice.errors import CallFailed
from tests.console.conftest import SITES, Looking, RecordedSites, recorded


def part(page: Page, name: str, site: int = 0) -> dict[str, str]:
    """A part's numbers by their names."""
    card = page.locator("section.site").nth(site).locator(f"[data-part={name}]")
    card.locator("dl").wait_for()
    names = [each.get_attribute("data-stat") or "" for each in card.locator("[data-stat]").all()]
    return dict(zip(names, card.locator("dd").all_inner_texts(), strict=True))


def test_each_part_shows_what_goes_in_and_out_and_what_it_holds(look: Looking) -> None:
    page = look.at()
    assert part(page, "rendezvous") == {"in": "28", "out": "24", "waiting": "3", "in-flight": "2", "dead": "4"}
    assert part(page, "federation") == {"in": "211", "out": "420", "waiting": "7", "in-flight": "10", "dead": "4"}
    assert part(page, "splitting") == {"in": "64", "out": "60", "waiting": "5", "in-flight": "1", "dead": "0"}
    expect(page.locator("[data-part=splitting] [data-fact='to main']")).to_have_text("to main 30")
    assert page.title() == "Overview · Sluice"


def test_what_isnt_known_yet_is_no_zero(look: Looking, sites: RecordedSites) -> None:
    sites.documents["overview"]["holds"]["federation"]["waiting"] = None
    sites.documents["overview"]["counters"]["federation"]["in"] = None
    assert {"in": "–", "waiting": "–"}.items() <= part(look.at(), "federation").items()  # noqa: RUF001 - as the page has it


def test_a_part_that_isnt_deployed_says_so_and_the_rest_is_there(look: Looking) -> None:
    page = look.at()
    expect(page.locator("[data-part=pipeline]")).to_contain_text("stack SluicePipeline is not deployed")


def test_a_part_that_cant_be_asked_says_which_right_is_missing(look: Looking, sites: RecordedSites) -> None:
    status = sites.documents["overview"]["status"]
    status["federation"], status["failed"]["federation"] = None, "Invoke: AccessDeniedException"
    sites.documents["overview"]["troubles"]["alarms"] = "DescribeAlarms: AccessDenied"
    page = look.at()
    expect(page.locator("[data-part=federation]")).to_contain_text("Invoke: AccessDeniedException")
    expect(page.locator("main")).to_contain_text("alarms can't be read: DescribeAlarms: AccessDenied")
    assert part(page, "splitting")["in"] == "64"


def test_alarms_that_are_on_are_told_with_what_to_do(look: Looking) -> None:
    expect(look.at().get_by_role("alert")).to_contain_text("is the broker throttled? docs/runbook.md#offersage")


def test_charts_show_the_minutes_that_are_chosen(look: Looking) -> None:
    page = look.at()
    line = page.locator("[data-part=rendezvous] .spark polyline").first
    for minutes in (60, 10):
        page.get_by_label("Charts").select_option(f"last {minutes} minutes")
        expect(page.locator("[data-part=rendezvous] .ends")).to_contain_text(f"{minutes} min ago")
        assert len((line.get_attribute("points") or "").split()) == minutes


def test_what_changed_is_said(look: Looking) -> None:
    page = look.at()
    expect(page.get_by_label("What changed in the last hour").first).to_contain_text("session alice of me@here began")


def test_sites_stand_side_by_side(look: Looking, sites: RecordedSites) -> None:
    sites.names = SITES
    page = look.at()
    expect(page.locator("section.site > h2")).to_have_text(list(SITES))


def test_a_number_changes_as_it_comes(look: Looking, sites: RecordedSites) -> None:
    page = look.at()
    assert part(page, "rendezvous")["waiting"] == "3"
    later = recorded("overview")
    later["holds"]["rendezvous"]["waiting"] = 17
    sites.documents["overview"] = later
    expect(page.locator("[data-part=rendezvous] [data-stat=waiting] dd")).to_have_text("17")


def test_what_cant_be_read_says_why_and_what_was_known_stays(look: Looking, sites: RecordedSites) -> None:
    page = look.at()
    part(page, "rendezvous")
    sites.documents["overview"] = CallFailed("DescribeStacks", "AccessDenied", "not allowed")
    expect(page.get_by_role("alert").first).to_contain_text("AccessDenied")
    assert part(page, "rendezvous")["waiting"] == "3"


def test_nothing_is_asked_for_while_no_page_is_open(look: Looking, sites: RecordedSites) -> None:
    page = look.at()
    part(page, "rendezvous")
    page.goto("about:blank")
    seen = [0]
    while sites.reads.total() != seen[-1] and len(seen) < 60:  # until the server knows that the page has gone
        seen.append(sites.reads.total())
        page.wait_for_timeout(500)
    assert sites.reads.total() == seen[-1]


def test_hostile_names_are_text(look: Looking, sites: RecordedSites) -> None:
    hostile = "<img src=x onerror=alert(1)><script>alert(2)</script>\u202egnitset"
    document = copy.deepcopy(sites.documents["overview"])
    document["changes"][0]["text"] = hostile
    document["status"]["federation"]["links"][0]["peer"] = hostile
    sites.documents["overview"] = document
    page = look.at()
    expect(page.get_by_label("What changed in the last hour").first).to_contain_text("<script>alert(2)</script>")
    assert page.locator("main script, main img").count() == 0
