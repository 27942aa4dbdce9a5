"""The console's map on sites in two accounts and regions: who is there, and what goes over."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from sluice.aws.connections import Connection
from sluice.console.sites import WatchedSite
from sluice.console.watching import ACTIONS, QUESTIONS, READERS, WatchedSites
from sluice.operator.site_names import SiteName
from tests.browser import chromium, open_page, serving
from tests.e2e.federated import FederatedSite

WITHIN_MS = 60_000
TEN = [f"Message {number}" for number in range(1, 11)]


def name_of(site: FederatedSite) -> SiteName:
    return SiteName(site.site.region, local_account=site.site.account)


@pytest.fixture
def page(pair: list[FederatedSite], tmp_path: Path) -> Iterator[Page]:
    """Of two sites; peers are asked with their own site's credentials."""
    by_name = {name_of(each): each for each in pair}

    def reach(name: SiteName) -> Connection:
        return by_name[name].connection

    shown = [WatchedSite(name_of(each), reach, tmp_path) for each in pair]
    watched = WatchedSites(sites=shown, readers=READERS, questions=QUESTIONS, actions=ACTIONS)
    with (
        chromium() as browser,
        serving(watched, allow_actions=True, every_s=1.0) as served,
        open_page(browser) as opened,
    ):
        opened.set_default_timeout(WITHIN_MS)
        expect.set_options(timeout=WITHIN_MS)
        opened.goto(f"{served.address}#/federation")
        yield opened
        expect.set_options(timeout=20_000)


def line(page: Page, source: FederatedSite, dest: FederatedSite, kind: str) -> Locator:
    """The one on the map, whatever its state is."""
    return page.locator(f".map .line[data-key^='{source.tag} {dest.tag} {kind}']")


def test_the_map_has_peers_routes_states_and_rates(b0: FederatedSite, b1: FederatedSite, page: Page) -> None:
    queue = b0.bound("amq.fanout")
    static = b0.begin_to_pull(b1, "amq.direct", "amq.fanout", key="my-key")
    dynamic = b1.begin_to_pull(b0, "amq.topic", dynamic=True)
    b0.until_operational(static)
    b1.until_operational(dynamic)
    b1.publish("amq.direct", "my-key", TEN)
    assert b0.bodies(queue, len(TEN)) == TEN

    expect(page.locator(".map .node")).to_have_count(2)
    expect(page.locator(".map .node.here .name")).to_have_text(b0.tag)
    expect(page.locator(".map .node.away")).to_have_count(0)
    # That the other site's functions have forwarded it knows the other site.
    expect(line(page, b1, b0, "static").locator(".rate")).to_contain_text("a minute")
    expect(line(page, b1, b0, "static").locator("title")).to_contain_text(static)
    expect(line(page, b1, b0, "static").locator(".stroke")).not_to_have_attribute("stroke-dasharray", "6 4")
    expect(line(page, b0, b1, "dynamic").locator(".stroke")).to_have_attribute("stroke-dasharray", "6 4")

    page.locator("#chooser select").select_option(str(name_of(b1)))
    expect(page.locator(".map .node.here .name")).to_have_text(b1.tag)
    page.locator("#chooser select").select_option(str(name_of(b0)))
    page.get_by_role("button", name=f"Pause {static}").click()
    expect(line(page, b1, b0, "static")).to_have_attribute("data-key", f"{b1.tag} {b0.tag} static quiet")
    expect(page.get_by_role("table", name="Routes").get_by_role("row").filter(has_text=static)).to_contain_text(
        "Paused"
    )
    page.get_by_role("button", name=f"Resume {static}").click()
    expect(line(page, b1, b0, "static")).to_have_attribute("data-key", f"{b1.tag} {b0.tag} static good")
