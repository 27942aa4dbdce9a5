"""The log's page: what functions say, by function, level and trace, as it comes."""

from playwright.sync_api import expect

from tests.console.conftest import Looking, RecordedSites, recorded

PAGE = "#/log"
TRACE = "1-5759e988-bd862e3fe1be46a994272793"


def test_lines_are_shown_the_newest_first_and_opened_with_their_fields(look: Looking) -> None:
    page = look.at(PAGE)
    expect(page.locator(".lines > li")).to_have_count(4)
    expect(page.locator(".lines > li").first).to_contain_text("RecordFailed")
    page.locator(".lines summary").first.click()
    expect(page.locator(".lines dl").first).to_contain_text("UnknownExchange: nowhere")


def test_lines_are_chosen_by_function_and_level_and_the_choice_is_in_the_address(look: Looking) -> None:
    page = look.at(PAGE)
    page.get_by_label("Function").select_option("bridge")
    expect(page.locator(".lines > li")).to_have_count(1)
    page.get_by_label("Level").select_option("ERROR")
    expect(page.locator(".lines > li")).to_have_count(0)
    assert "function=bridge" in page.url
    assert "level=ERROR" in page.url
    page.reload()
    expect(page.get_by_label("Level")).to_have_value("ERROR")


def test_a_trace_is_followed_from_a_line_and_by_its_id(look: Looking, sites: RecordedSites) -> None:
    page = look.at(PAGE)
    page.locator(".lines summary").first.click()
    page.get_by_role("link", name="Root=1").click()
    expect(page.get_by_label("Trace id, or any word")).to_have_value(TRACE)
    expect(page.locator(".lines > li")).to_have_count(4)
    assert sites.reads[f"log@0?trace={TRACE}"]
    page.get_by_role("button", name="Clear").click()
    page.get_by_label("Trace id, or any word").fill("a/b c&d")
    with page.expect_request(lambda request: "a%252Fb%2520c%2526d" in request.url):
        page.keyboard.press("Enter")
    expect(page.locator(".lines > li")).to_have_count(4)


def test_a_line_that_comes_is_added_and_what_was_opened_stays_open(look: Looking, sites: RecordedSites) -> None:
    page = look.at(PAGE)
    page.locator(".lines summary").first.click()
    later = recorded("log")
    newest = later["lines"][1] | {"at_ms": later["lines"][0]["at_ms"] + 1, "event": "<b>new</b>"}
    sites.documents["log"] = later | {"lines": [newest, *later["lines"]]}
    expect(page.locator(".lines > li").first).to_contain_text("<b>new</b>")
    expect(page.locator(".lines details[open]")).to_have_count(1)
    expect(page.locator(".lines details[open]")).to_contain_text("RecordFailed")


def test_what_is_typed_stays_as_lines_come(look: Looking, sites: RecordedSites) -> None:
    page = look.at(PAGE)
    sought = page.get_by_label("Trace id, or any word")
    sought.fill("order.e")
    later = recorded("log")
    newest = later["lines"][0] | {"at_ms": later["lines"][0]["at_ms"] + 1, "event": "Newest"}
    sites.documents["log"] = later | {"lines": [newest, *later["lines"]]}
    expect(page.locator(".lines > li").first).to_contain_text("Newest")
    expect(sought).to_have_value("order.e")
    expect(sought).to_be_focused()
