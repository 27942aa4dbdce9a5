"""The pipeline on the embedded cloud: from the deployed main queue into tables, by the jobs on local Spark."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from playwright.sync_api import expect

from sluice.aws.clients import now_ms
from sluice.console.requests import Topic
from sluice.console.watching import WatchedSites
from sluice.operator.pipelines import parse_start_operation
from sluice.pipeline.operations import DrainQueue, StartLand, StopJob
from sluice.times import format_day
from tests.browser import chromium, open_page, serving
from tests.deployed import Deployed, send_all
from tests.e2e.landing import Landing, until
from tests.e2e.test_console import WITHIN_MS, watching

pytestmark = [
    pytest.mark.slow,  # `make test-slow` makes Spark first
    pytest.mark.timeout(900),  # Spark starts five times
]

KILLS, PART = 3, 150
UNREADABLE = {"x-qpid": {"DataType": "String", "StringValue": "{"}}


def sum_minutes(watched: WatchedSites) -> int:
    return sum(minute["messages"] for minute in watched.read(Topic(reading="pipeline"))["minutes"] or ())


@pytest.fixture
def landing(deployed: Deployed, tmp_path: Path) -> Iterator[Landing]:
    found = Landing(deployed, tmp_path / "site")
    yield found
    found.asked.ask(StopJob())


def test_what_is_sent_lands_once_over_three_kills_restarts_and_a_drain(landing: Landing) -> None:
    url, sent = landing.outputs["QueueUrl"], set[str]()
    for part in range(KILLS):
        sent |= landing.send(url, part * PART, PART)
        run = landing.asked.ask(StartLand()).run
        assert landing.asked.ask(StartLand()).step == "keep"
        until(partial(landing.has_more_than, part * PART))  # some of it, or all
        landing.kill(run)
    last = landing.asked.ask(StartLand()).run
    until(lambda: len(landing.landed()) >= KILLS * PART)
    sent |= landing.send(url, KILLS * PART, PART)
    drain = landing.asked.ask(DrainQueue()).run
    until(lambda: landing.state(drain) != "RUNNING")
    assert (landing.state(last), landing.state(drain)) == ("CANCELLED", "SUCCESS"), landing.asked.read_log(
        drain, lines=50
    )
    assert sorted(landing.landed()) == sorted(sent)


def test_the_console_shows_what_is_landed_and_reckoned(deployed: Deployed, landing: Landing) -> None:
    url, day = landing.outputs["QueueUrl"], format_day(now_ms())
    landing.send(url, 0, PART)
    send_all(deployed.sqs, url, [{"MessageBody": "of 203.0.113.7", "MessageAttributes": UNREADABLE}])
    drain = landing.asked.ask(DrainQueue()).run
    watched = watching(deployed.connection, landed=landing.folder)
    with chromium() as browser, serving(watched, every_s=1.0) as served, open_page(browser) as page:
        expect.set_options(timeout=WITHIN_MS)
        page.goto(f"{served.address}#/pipeline")
        run = page.get_by_role("table", name="Runs").get_by_role("row").nth(1)
        expect(run.locator(".badge")).to_have_text("RUNNING")
        until(lambda: landing.state(drain) != "RUNNING")
        expect(run.locator(".badge")).to_have_text("SUCCESS")
        expect(page.get_by_role("img", name="Messages landed per minute")).to_be_visible()
        until(lambda: sum_minutes(watched) == PART + 1)  # the quarantined message has left the queue too
        reckoned = landing.asked.ask(parse_start_operation("statistics", {"day": day})).run
        until(lambda: landing.state(reckoned) != "RUNNING")
        assert landing.state(reckoned) == "SUCCESS"
        expect(page.get_by_role("alert")).to_have_count(0)
