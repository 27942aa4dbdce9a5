"""The pipeline: how landing goes, runs, tables, the quarantine, and what is told to jobs."""

import json
from typing import Any

from playwright.sync_api import Page, expect

from sluice.errors import BadConfiguration, RequestRefused
from tests.console.conftest import Looking, RecordedSites, recorded


def stats(page: Page) -> dict[str, str]:
    landing = page.get_by_role("region", name="Landing")
    landing.locator("dl").wait_for()
    return dict(zip(landing.locator("dt").all_inner_texts(), landing.locator("dd").all_inner_texts(), strict=True))


def test_landing_is_told_in_numbers_and_drawn_minute_by_minute(look: Looking) -> None:
    page = look.at("#/pipeline")
    told = stats(page)
    assert (told["Waiting"], told["Batches a minute"]) == ("1,200", "2")
    plots = page.get_by_role("region", name="Landing").locator("figure svg > g")
    expect(plots).to_have_count(60)


def test_a_run_says_how_it_went(look: Looking) -> None:
    page = look.at("#/pipeline")
    failed = page.get_by_role("region", name="Runs").get_by_role("row").filter(has_text="replay")
    expect(failed).to_contain_text("FAILED")
    expect(failed).to_contain_text("AccessDenied: not allowed to send")


def test_each_table_has_its_versions(look: Looking) -> None:
    page = look.at("#/pipeline")
    tables = page.get_by_role("region", name="Tables")
    expect(tables.get_by_role("row").nth(1)).to_contain_text("1,840")
    tables.get_by_role("link", name="Quarantine").click()
    expect(tables.get_by_role("row")).to_have_count(3)


def test_a_link_to_a_table_that_isnt_there_shows_the_messages(look: Looking) -> None:
    page = look.at("#/pipeline?table=constructor")
    expect(page.get_by_role("navigation", name="Tables").locator("[aria-current]")).to_contain_text("Messages")


def quarantined(reason: str) -> dict[str, Any]:
    return {
        "message_id": "m1",
        "reason": reason,
        "date": "2026-09-21",
        "sent_at_ms": 1790000000000,
        "receives": 1,
        "body": "<b>no markup</b>",
        "left_out": 12,
        "attributes": {"x-qpid": "{}"},
    }


def test_the_quarantine_is_looked_at(look: Looking, sites: RecordedSites) -> None:
    sites.answers["quarantine"] = {"rows": [quarantined('x-qpid: "exchange": 5')], "more": 7}
    page = look.at("#/pipeline")
    page.get_by_role("button", name="Read the newest").click()
    letters = page.get_by_role("list", name="Quarantined messages")
    letters.locator("summary").click()
    expect(letters.locator("pre")).to_contain_text("<b>no markup</b>\n… and 12 characters more")
    expect(page.get_by_text("7 older messages are in the table.")).to_be_visible()


def test_a_message_that_was_quarantined_twice_stays_there_twice(look: Looking, sites: RecordedSites) -> None:
    rows = [quarantined("unreadable"), quarantined("again")]
    sites.answers["quarantine"] = {"rows": rows, "more": 0}
    page = look.at("#/pipeline")
    page.get_by_role("button", name="Read the newest").click()
    shown = page.get_by_role("list", name="Quarantined messages").locator("strong")
    expect(shown).to_have_text(["unreadable", "again"])
    sites.documents["pipeline"]["queue"]["visible"] = 77
    expect(page.get_by_role("region", name="Landing").locator("dd").first).to_have_text("77")
    expect(shown).to_have_text(["unreadable", "again"])


def test_what_cant_be_looked_at_says_what_is_missing(look: Looking, sites: RecordedSites) -> None:
    sites.answers["quarantine"] = BadConfiguration("looking at rows needs pyarrow")
    page = look.at("#/pipeline")
    page.get_by_role("button", name="Read the newest").click()
    expect(page.get_by_role("alert")).to_contain_text("needs pyarrow")


def test_jobs_are_told_what_the_commands_tell_them(look: Looking, sites: RecordedSites) -> None:
    done: dict[str, Any] = {"job": "land", "step": "start", "run": "r1", "reason": ""}
    sites.answers |= {
        "start-job": done,
        "stop-job": done | {"step": "stop", "run": "", "reason": "ends after its batch"},
        "drain-queue": RequestRefused("it drains already"),
    }
    page = look.at("#/pipeline", allow_actions=True)
    page.get_by_role("button", name="Start", exact=True).click()
    page.get_by_role("button", name="Stop", exact=True).click()
    page.get_by_role("textbox", name="Day").fill("2026-09-20")
    page.get_by_role("button", name="Statistics of the day").click()
    page.get_by_role("button", name="Drain").click()
    notices = page.get_by_role("log")
    expect(notices).to_contain_text("land: start, r1")
    expect(notices).to_contain_text("ends after its batch")
    expect(notices).to_contain_text("it drains already")
    assert [(name, fields) for name, _, fields in sites.asked] == [
        ("start-job", {"job": "land"}),
        ("stop-job", {"job": "land"}),
        ("start-job", {"job": "statistics", "day": "2026-09-20"}),
        ("drain-queue", {}),
    ]


def test_before_anything_was_landed_the_page_says_so(look: Looking, sites: RecordedSites) -> None:
    said = json.loads(json.dumps(recorded("pipeline")))
    empty: dict[str, Any] = {"rows": None, "versions": []}
    said |= {"runs": [], "tables": dict.fromkeys(said["tables"], empty), "minutes": []}
    sites.documents["pipeline"] = said
    page = look.at("#/pipeline")
    expect(page.get_by_text("Nothing has been written yet.")).to_be_visible()
