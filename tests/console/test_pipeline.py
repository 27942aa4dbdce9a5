"""The pipeline: how landing goes, runs, and what is told to jobs."""

import json
from typing import Any

from playwright.sync_api import Page, expect

from sluice.errors import RequestRefused
from tests.console.conftest import Looking, RecordedSites, recorded


def stats(page: Page) -> dict[str, str]:
    landing = page.get_by_role("region", name="Landing")
    landing.locator("dl").wait_for()
    return dict(zip(landing.locator("dt").all_inner_texts(), landing.locator("dd").all_inner_texts(), strict=True))


def test_landing_is_told_in_numbers_and_drawn_minute_by_minute(look: Looking) -> None:
    page = look.at("#/pipeline")
    told = stats(page)
    assert (told["Waiting"], told["Landed a minute"]) == ("1,200", "4,945")
    plots = page.get_by_role("region", name="Landing").locator("figure svg > g")
    expect(plots).to_have_count(60)


def test_a_run_says_how_it_went(look: Looking) -> None:
    page = look.at("#/pipeline")
    failed = page.get_by_role("region", name="Runs").get_by_role("row").filter(has_text="replay")
    expect(failed).to_contain_text("FAILED")
    expect(failed).to_contain_text("AccessDenied: not allowed to send")


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
    sites.documents["pipeline"] = said | {"runs": [], "minutes": None}
    page = look.at("#/pipeline")
    expect(page.get_by_text("No job has run.")).to_be_visible()
    expect(page.locator("[data-stat='Landed a minute'] dd")).to_have_text("\u2013")
