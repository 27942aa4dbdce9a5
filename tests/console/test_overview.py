"""The overview: what each site's four parts say, as it comes."""

from playwright.sync_api import Page, expect

from sluice.errors import CallFailed
from tests.console.conftest import SITES, Looking, RecordedSites, recorded


def part(page: Page, name: str, site: int = 0) -> dict[str, str]:
    """A part's numbers by their names."""
    card = page.locator("section.site").nth(site).locator(f"[data-part={name}]")
    card.locator("dl").wait_for()
    return dict(zip(card.locator("dt").all_inner_texts(), card.locator("dd").all_inner_texts(), strict=True))


def test_each_part_shows_its_numbers(look: Looking) -> None:
    page = look.at()
    assert part(page, "rendezvous") == {"Waiting": "3", "In flight": "2", "Proxies": "9", "Dead": "4"}
    assert part(page, "splitting") == {"Waiting": "1,205", "In flight": "1", "Queues": "1", "Sessions": "0"}
    assert page.title() == "Overview · Sluice"


def test_a_part_that_isnt_deployed_says_so_and_the_rest_is_there(look: Looking) -> None:
    page = look.at()
    expect(page.locator("[data-part=pipeline]")).to_contain_text("stack SluicePipeline is not deployed")


def test_sites_stand_side_by_side(look: Looking, sites: RecordedSites) -> None:
    sites.names = SITES
    page = look.at()
    expect(page.locator("section.site h2")).to_have_text(list(SITES))


def test_a_number_changes_as_it_comes(look: Looking, sites: RecordedSites) -> None:
    page = look.at()
    assert part(page, "rendezvous")["Waiting"] == "3"
    later = recorded("overview")
    later["rendezvous"]["offers_queue"]["visible"] = 17
    sites.documents["overview"] = later
    expect(page.locator("[data-part=rendezvous] dd").first).to_have_text("17")


def test_what_cant_be_read_says_why_and_what_was_known_stays(look: Looking, sites: RecordedSites) -> None:
    page = look.at()
    part(page, "rendezvous")
    sites.documents["overview"] = CallFailed("DescribeStacks", "AccessDenied", "not allowed")
    expect(page.get_by_role("alert")).to_contain_text("AccessDenied")
    assert part(page, "rendezvous")["Waiting"] == "3"


def test_nothing_is_asked_for_while_no_page_is_open(look: Looking, sites: RecordedSites) -> None:
    page = look.at()
    part(page, "rendezvous")
    page.goto("about:blank")
    page.wait_for_timeout(300)  # a reading that had begun
    before = sites.reads.total()
    page.wait_for_timeout(500)
    assert sites.reads.total() == before
