"""The rendezvous' page: who offered, who waits, how long it took; no address is on it."""

from playwright.sync_api import Page, expect

from tests.console.conftest import Looking, RecordedSites

PAGE = "#/rendezvous"


def bars(page: Page, name: str) -> dict[str, str]:
    found = page.get_by_label(name, exact=True)
    found.first.wait_for()
    return dict(zip(found.locator("dt").all_inner_texts(), found.locator("dd").all_inner_texts(), strict=True))


def test_offers_of_today_are_told_by_outcome_country_nat_and_method(look: Looking) -> None:
    page = look.at(PAGE)
    assert bars(page, "Offers by outcome") == {"Answered": "24", "Denied": "3", "Timed out": "1"}
    assert bars(page, "Offers by country") == {"DE": "13", "BR": "8", "IR": "7"}
    assert bars(page, "Offers by NAT") == {"unknown": "23", "restricted": "5"}
    assert bars(page, "Offers by method") == {"sqs": "27", "http": "1"}


def test_pools_are_told_with_who_is_held_and_how_many_there_are(look: Looking) -> None:
    rows = look.at(PAGE).get_by_role("table", name="Pools of proxies").get_by_role("row")
    expect(rows.nth(1)).to_have_text("unrestricted8120.5320 s")
    expect(rows.nth(2)).to_contain_text("restricted1–")  # noqa: RUF001 - as the page has it


def test_the_latency_and_the_last_offers_are_told(look: Looking) -> None:
    page = look.at(PAGE)
    expect(page.locator("[data-stat=median] dd")).to_have_text("338 ms")
    expect(page.get_by_role("table", name="Last offers").get_by_role("row")).to_have_count(11)


def test_an_offer_leads_to_the_log_of_its_trace(look: Looking) -> None:
    page = look.at(PAGE)
    page.get_by_role("link", name="log", exact=True).first.click()
    expect(page.get_by_label("Trace id, or any word")).to_have_value("1-5759e988-bd862e3fe1be46a994272793")


def test_what_may_not_be_read_is_named_and_the_rest_is_there(look: Looking, sites: RecordedSites) -> None:
    document = sites.documents["rendezvous"]
    document["latest"], document["latency"] = None, None
    document["troubles"] = {"the last offers": "Query: AccessDenied"}
    page = look.at(PAGE)
    expect(page.locator("main")).to_contain_text("the last offers can't be read: Query: AccessDenied")
    assert bars(page, "Offers by outcome")["Answered"] == "24"
