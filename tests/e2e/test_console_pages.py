"""The console's pages of splitting, federation and the pipeline, on a deployed site with traffic."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from sluice.aws.connections import connect_environment
from sluice.federation.operations import BindQueue, ListQueues, UnbindQueue
from sluice.operator.functions import FEDERATION, ControlClient
from tests.browser import chromium, open_page, serving
from tests.deployed import Deployed
from tests.e2e.sessions import Splitting, by_attribute, url_of
from tests.e2e.test_console import WITHIN_MS, watching


@pytest.fixture
def page(deployed: Deployed, tmp_path: Path) -> Iterator[Page]:
    """One that may do something. The browser ends with the test: beside it others couldn't run event loops."""
    watched = watching(connect_environment(deployed.cloud.environment(deployed.site)), landed=tmp_path)
    with (
        chromium() as browser,
        serving(watched, allow_actions=True, every_s=1.0) as served,
        open_page(browser) as opened,
    ):
        opened.goto(served.address)
        opened.set_default_timeout(WITHIN_MS)
        expect.set_options(timeout=WITHIN_MS)
        yield opened
        expect.set_options(timeout=20_000)


def goto(page: Page, where: str) -> None:
    page.evaluate("where => { location.hash = where }", where)


def test_messages_are_seen_to_flow(deployed: Deployed, page: Page) -> None:
    splitting = Splitting(deployed)
    goto(page, "#/splitting?queue=standard")
    with splitting.sessions({"standard": by_attribute("client", "^a$")}) as (session,):
        flow = page.locator(f"figure svg > [data-key='{session.session_id}']")
        expect(flow).to_be_visible()
        splitting.send("standard", ["a1", "b2", "a3"], lambda body: {"client": body[0]})
        assert len(splitting.bodies(url_of(session, "standard"), 2)) == 2
        expect(flow).to_contain_text(re.compile(r"\b[2-6] taken"))  # either may have come twice
        splitting.bodies(splitting.main("standard"), 1)


def test_a_session_is_stopped_by_the_page(deployed: Deployed, page: Page) -> None:
    splitting = Splitting(deployed)
    opened = splitting.until_ready(splitting.ask_for({"standard": by_attribute("client", "^of the console$")}))
    goto(page, f"#/splitting?queue=standard&session={opened.session_id}")
    session = page.get_by_role("region", name="Session", exact=True)
    expect(session.locator(".badge").first).to_have_text("Ready")
    expect(session.locator(".pairs code")).to_contain_text("http")
    session.get_by_role("button", name="Stop session").click()
    expect(page.get_by_role("log")).to_contain_text("return to the deployed consumer")
    splitting.until_all_ended()


def test_a_bound_queue_is_shown(deployed: Deployed, page: Page) -> None:
    client = ControlClient.connect(deployed.connection, FEDERATION)
    queue = client.ask(ListQueues()).queues[0].name
    bound = BindQueue(exchange="amq.topic", queue=queue, key="console.pages.*")
    client.ask(bound)
    try:
        goto(page, "#/federation?exchange=amq.topic")
        expect(page.get_by_role("region", name="Exchanges and bindings")).to_contain_text("console.pages.*")
    finally:
        client.ask(UnbindQueue(exchange=bound.exchange, queue=queue, key=bound.key))


def test_the_pipelines_page_says_what_should_run(page: Page) -> None:
    goto(page, "#/pipeline")
    landing = page.get_by_role("region", name="Landing")
    expect(landing).to_contain_text("The stream should be stopped")
    expect(page.get_by_role("alert")).to_have_count(0)
