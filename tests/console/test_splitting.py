"""Splitting: who takes what, whose sessions, and what ends a session."""

from typing import Any

from playwright.sync_api import Page, expect

from sluice.errors import RequestRefused
from tests.console.conftest import Looking, RecordedSites, recorded


def flows(page: Page) -> list[str]:
    picture = page.get_by_role("region", name="Who takes what")
    picture.locator("figure").wait_for()
    return picture.locator("figure svg > *[data-key] > title").all_text_contents()


def test_messages_flow_to_sessions_and_main(look: Looking) -> None:
    page = look.at("#/splitting")
    assert flows(page) == [
        "ada@falcon: 11,420 taken · Ready",
        "grace@nova: 5,100 copied · Ready",
        "lin@workstation-7: 4,890 taken · Ready",
        "noor@laptop: 0 taken · Starting",
        "main: 31,900 left · the deployed consumer's",
    ]


def test_a_queue_without_sessions_goes_to_main(look: Looking) -> None:
    page = look.at("#/splitting?queue=orders.fifo")
    assert flows(page) == ["main: 620 left · the deployed consumer's"]
    expect(page.get_by_role("region", name="Sessions")).to_contain_text("There is no session")


def test_what_cant_be_counted_says_why(look: Looking, sites: RecordedSites) -> None:
    said = recorded("splitting")
    said["uncounted"] = "GetMetricData: AccessDenied"
    said["queues"][0]["counted"] = dict.fromkeys(said["queues"][0]["counted"])
    sites.documents["splitting"] = said
    page = look.at("#/splitting")
    expect(page.get_by_role("region", name="Who takes what")).to_contain_text("AccessDenied")
    assert flows(page)[-1] == "main: not counted · the deployed consumer's"


def test_a_session_has_its_filters_and_its_queues(look: Looking) -> None:
    page = look.at("#/splitting")
    page.get_by_role("link", name="lin@workstation-7, session").click()
    session = page.get_by_role("region", name="Session", exact=True)
    expect(session).to_contain_text("level =~ ^(debug|info)$")
    expect(session).to_contain_text("/000000000000/Sluice-session-pipeline-00000005-lin")


def test_a_session_is_stopped(look: Looking, sites: RecordedSites) -> None:
    begun: dict[str, Any] = recorded("splitting")["sessions"][0]
    sites.answers["stop-session"] = RequestRefused("no such session: it has ended")
    page = look.at(f"#/splitting?session={begun['session_id']}", allow_actions=True)
    page.get_by_role("button", name="Stop session").click()
    expect(page.get_by_role("log")).to_contain_text("no such session: it has ended")
    assert [(each[0], each[2]) for each in sites.asked] == [("stop-session", {"session_id": begun["session_id"]})]


def test_who_may_only_look_finds_no_button_to_act(look: Looking) -> None:
    page = look.at("#/splitting?session=00000009-ada")
    expect(page.get_by_role("region", name="Session", exact=True)).to_be_visible()
    expect(page.get_by_role("button", name="Stop session")).to_have_count(0)


def test_a_split_that_isnt_at_rest_and_a_shadowed_session_are_shown(look: Looking) -> None:
    page = look.at("#/splitting")
    splits = page.get_by_role("region", name="Splits that aren't at rest")
    for text in ("bills", "restoring", "its consumers to read bills", "sluice-tmp-main-bills", "AccessDeniedException"):
        expect(splits).to_contain_text(text)
    expect(page.get_by_role("region", name="Sessions")).to_contain_text("shadowed by 00000009-ada")
