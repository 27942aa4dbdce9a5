"""What is large or hostile: a thousand sessions, ten thousand dead letters, names that want to be markup."""

import json
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from sluice.errors import CallFailed
from sluice.local.cloud import CloudFailed
from tests.console.conftest import Looking, RecordedSites, recorded
from tests.console.test_dead_letters import letter, looked

SCRIPT = "<img src=x onerror=\"document.title='hit'\"><script>document.title='hit'</script>"
RIGHT_TO_LEFT = "\u202eevil\u2066\u2069 \u0627\u0644\u0639\u0631\u0628\u064a\u0629"
LONG = "x" * 300
HOSTILE = [
    SCRIPT,
    RIGHT_TO_LEFT,
    LONG,
    "\ud800",
    "'; alert(1); '",
    "javascript:alert(1)",
    "{{ 1 + 1 }}",
    "\x00\x1b[31m",
]
SIDEWAYS = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


def a_thousand_sessions() -> dict[str, Any]:
    said: dict[str, Any] = recorded("splitting")
    first = said["sessions"][0]
    said["sessions"] = [
        {**first, "session_id": f"s{number}", "owner": f"owner-{number}", "counted": {"pipeline": number}}
        for number in range(1_000)
    ]
    return said


def hostile(value: Any, number: int = 0) -> Any:
    """The same document with another hostile text in place of each name, and of each text that nobody tells apart."""
    told = ("owner", "key", "detail", "error", "src", "to", "text", "reason", "slot", "digest", "application", "peer")
    if isinstance(value, dict):
        return {
            name: HOSTILE[(number + place) % len(HOSTILE)]
            if name in told and isinstance(each, str)
            else hostile(each, number + place)
            for place, (name, each) in enumerate(value.items())
        }
    if isinstance(value, list):
        return [hostile(each, number + place) for place, each in enumerate(value)]
    return value


def unhurt(page: Page) -> None:
    """No text became an element, no script ran, nothing is wider than the window."""
    assert "hit" not in page.title()
    assert page.locator("main img, main script, main iframe").count() == 0
    assert page.evaluate(SIDEWAYS) == 0


def test_of_a_thousand_sessions_some_are_shown_and_each_is_found(look: Looking, sites: RecordedSites) -> None:
    sites.documents["splitting"] = a_thousand_sessions()
    page = look.at("#/splitting")
    table = page.get_by_role("region", name="Sessions").first.locator("tbody tr")
    expect(table).to_have_count(50)
    picture = page.get_by_role("region", name="Who takes what").locator("figure svg > *[data-key]")
    expect(picture).to_have_count(12 + 2)
    expect(picture.first).to_contain_text("owner-999")
    page.get_by_role("searchbox").type("owner-77")
    expect(table).to_have_count(11)
    expect(page.get_by_role("searchbox")).to_be_focused()
    page.get_by_role("searchbox").fill("")
    page.get_by_role("button", name="Next").click()
    expect(table.first).to_contain_text("owner-50")


def test_a_thousand_sessions_that_all_change_are_redrawn(look: Looking, sites: RecordedSites) -> None:
    said = a_thousand_sessions()
    sites.documents["splitting"] = said
    page = look.at("#/splitting")
    page.locator("tbody tr").first.wait_for()
    later = json.loads(json.dumps(said))
    for session in later["sessions"]:
        session["messages"] = 4_321
    sites.documents["splitting"] = later
    expect(page.locator("tbody tr").last).to_contain_text("4,321")


def test_of_ten_thousand_dead_letters_a_page_is_shown_and_the_number(look: Looking, sites: RecordedSites) -> None:
    said = recorded("dead-letters")
    said["queues"][2]["visible"] = 10_000
    sites.documents["dead-letters"] = said
    letters = looked([letter(number) for number in range(100)])
    letters["looked_at"] = 10_000
    letters["reasons"][0]["letters"] = 10_000
    sites.answers["dead-letters"] = letters
    page = look.at("#/dead-letters?queue=federation")
    expect(page.locator(".letters > li")).to_have_count(50)
    expect(page.locator("main")).to_contain_text("10,000")


@pytest.mark.parametrize("width", [380, 1280])
@pytest.mark.parametrize("name", ["overview", "rendezvous", "splitting", "federation", "pipeline", "log"])
def test_hostile_names_are_text(look: Looking, sites: RecordedSites, name: str, width: int) -> None:
    sites.documents[name] = hostile(recorded(name))
    page = look.at(f"#/{name}", width=width)
    page.locator("main h2").first.wait_for()
    page.wait_for_timeout(150)  # for what a script of theirs would do
    unhurt(page)


@pytest.mark.parametrize("name", ["splitting", "federation", "pipeline"])
def test_a_cloud_that_goes_and_comes_again_leaves_the_page_as_it_was(
    look: Looking, sites: RecordedSites, name: str
) -> None:
    page = look.at(f"#/{name}")
    page.locator("main h2").first.wait_for()
    sites.documents[name] = CloudFailed("no cloud is running: `sluice local up`")
    expect(page.get_by_role("alert")).to_contain_text("no cloud is running")
    expect(page.locator("main h2").first).to_be_visible()
    sites.documents[name] = recorded(name)
    expect(page.get_by_role("alert")).to_have_count(0)


def test_a_right_that_is_missing_is_named_and_the_rest_works(look: Looking, sites: RecordedSites) -> None:
    sites.documents["splitting"] = CallFailed("Invoke", "AccessDenied", "not authorized to perform: lambda:Invoke")
    page = look.at("#/splitting")
    expect(page.get_by_role("alert")).to_contain_text("lambda:Invoke")
    page.get_by_role("link", name="Federation").click()
    expect(page.get_by_role("region", name="Map of sites")).to_be_visible()
