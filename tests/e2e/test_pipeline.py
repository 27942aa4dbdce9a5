"""The pipeline on the embedded cloud: from the deployed main queue into tables, by the jobs on local Spark."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from sluice.pipeline.operations import DrainQueue, StartLand, StopJob
from tests.deployed import Deployed
from tests.e2e.landing import Landing, until

pytestmark = [
    pytest.mark.slow,  # `make test-slow` makes Spark first
    pytest.mark.timeout(900),  # Spark starts five times
]

KILLS, PART = 3, 150


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
    assert (landing.state(last), landing.state(drain)) == ("CANCELLED", "SUCCESS"), landing.asked.text(drain, lines=50)
    assert sorted(landing.landed()) == sorted(sent)
