"""Federation: the map and what goes over it, where a key would go, and what is told to routes and links."""

import json
from typing import Any

from playwright.sync_api import Page, expect

from sluice.errors import BadRoute
from tests.console.conftest import SITES, Looking, RecordedSites, recorded

HERE = "eu-central-1-111111111111"
US = "us-east-1-222222222222"


def the_map(page: Page) -> Any:
    return page.get_by_role("region", name="Map of sites")


def test_the_map_has_all_sites_and_says_what_each_line_is(look: Looking) -> None:
    page = look.at("#/federation")
    drawn = the_map(page)
    expect(drawn.locator(".node")).to_have_count(5)
    expect(drawn.locator(".node.here .name")).to_have_text(HERE)
    expect(drawn.locator(".node.away .quiet")).to_have_text("not reached")
    assert "AccessDenied" in (drawn.locator(".line.bad > title").text_content() or "")


def test_static_and_dynamic_routes_are_told_apart(look: Looking) -> None:
    page = look.at("#/federation")
    the_map(page).wait_for()
    dashes = (
        the_map(page)
        .locator(".line .stroke")
        .evaluate_all("all => all.map(each => each.getAttribute('stroke-dasharray') ?? '')")
    )
    kinds = [edge["kind"] for edge in recorded("federation")["map"]["edges"]]
    assert [dash != "" for dash in dashes] == [kind == "dynamic" for kind in kinds]


def test_rates_stand_on_lines_also_those_that_another_site_knows(look: Looking, sites: RecordedSites) -> None:
    page = look.at("#/federation")
    expect(the_map(page).locator(".rate")).to_have_count(5)
    sites.names = SITES
    page.reload()
    expect(the_map(page).locator(".rate")).to_have_count(7)


def test_what_loses_messages_is_warned_of(look: Looking) -> None:
    page = look.at("#/federation")
    expect(page.get_by_role("region", name="Warnings")).to_contain_text("failed route")


def test_a_narrow_screen_asks_for_a_map_of_its_own(look: Looking, sites: RecordedSites) -> None:
    page = look.at("#/federation", width=380)
    the_map(page).wait_for()
    assert list(sites.reads) == ["federation@0?narrow=1"]


def test_a_line_opens_what_it_stands_for(look: Looking) -> None:
    page = look.at("#/federation", allow_actions=True)
    the_map(page).locator(".line.slow").first.press("Enter")
    opened = page.get_by_role("region", name="From ")
    expect(opened).to_contain_text("Declared at")
    opened.get_by_role("link", name="Close").click()
    expect(opened).to_have_count(0)


def test_a_route_is_told_what_the_command_tells_it(look: Looking, sites: RecordedSites) -> None:
    sites.answers |= {
        "tell-route": {"route": "orders-to-us", "done": "pause"},
        "tell-link": BadRoute("no such link: it has gone"),
        "redrive-route": {"redriven": 3},
    }
    page = look.at("#/federation", allow_actions=True)
    page.get_by_role("button", name="Pause orders-to-us").click()
    page.get_by_role("button", name="Redrive orders-to-us").click()
    page.get_by_role("button", name=f"Drain to-{US}").click()
    expect(page.get_by_role("log")).to_contain_text("no such link: it has gone")
    assert sites.asked == [
        ("tell-route", 0, {"name": "orders-to-us", "what": "pause"}),
        ("redrive-route", 0, {"name": "orders-to-us"}),
        ("tell-link", 0, {"name": f"to-{US}", "what": "drain"}),
    ]


def test_bindings_are_those_of_an_exchange_or_all(look: Looking) -> None:
    page = look.at("#/federation")
    bound = page.get_by_role("region", name="Exchanges and bindings").locator("tbody tr")
    expect(bound).to_have_count(8)
    page.get_by_role("navigation", name="Exchanges").get_by_role("link", name="orders").click()
    expect(bound).to_have_count(3)


def test_a_part_that_cant_be_read_takes_nothing_with_it(look: Looking, sites: RecordedSites) -> None:
    said = json.loads(json.dumps(recorded("federation")))
    said |= {"map": None, "troubles": {"the drawing": "out of paper"}}
    sites.documents["federation"] = said
    page = look.at("#/federation")
    expect(page.get_by_text("the drawing can't be read: out of paper")).to_be_visible()
    expect(page.get_by_role("region", name="Routes").first).to_be_visible()


def test_a_window_that_becomes_narrow_asks_for_the_narrow_map_and_stays_where_it_is(
    look: Looking, sites: RecordedSites
) -> None:
    page = look.at("#/federation")
    the_map(page).wait_for()
    page.set_viewport_size({"width": 400, "height": 800})
    for _ in range(100):
        if "federation@0?narrow=1" in sites.reads:
            break
        page.wait_for_timeout(50)
    assert "federation@0?narrow=1" in sites.reads
    expect(the_map(page)).to_be_visible()
    page.get_by_role("link", name="Pipeline").click()
    page.get_by_role("region", name="Landing").wait_for()
    page.set_viewport_size({"width": 1280, "height": 800})
    page.wait_for_timeout(200)  # in which it would go back
    expect(page.get_by_role("heading", level=1)).to_have_text("Pipeline")
