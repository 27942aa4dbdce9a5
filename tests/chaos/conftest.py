"""One run of it all, which the tests look at from several sides."""

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.chaos.load import Application, Offering, heard, name_of
from tests.chaos.receivers import Book, Job, People, bury, consumer
from tests.chaos.totals import Totals
from tests.chaos.world import World, in_background, insist
from tests.conftest import HARSH
from tests.e2e.functions_killed import functions_killed
from tests.e2e.landing import Landing
from tests.e2e.sessions import Splitting
from tests.polls import count_stale_offers

CHAOS_S = float(os.environ.get("SLUICE_CHAOS_S", "600"))
BETWEEN_RESTARTS_S = 150.0
FUNCTIONS = ("Broker", "Proxy", "Sweeper", "Counters", "Splitter", "Control", "Exchange", "Bridge", "Links")
KILLED_EVERY_S = (2.0, 6.0)
PEOPLE = 2
DRAINED_WITHIN_S = 900.0  # what a killed function had in hand comes again after three minutes
STILL_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of a run."""

    totals: Totals
    application: Application
    book: Book
    killed: int
    restarts: int

    def text(self) -> str:
        """What it comes to."""
        faults = f"{self.killed} execution environments killed, {self.restarts} restarts of the cloud"
        return f"{self.totals.text()}\n{self.book.sessions} sessions, {faults}"


SAID: list[str] = []  # of the run, for the end of what pytest says


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says what the run came to."""
    if SAID:
        terminalreporter.section("chaos")
        terminalreporter.write_line("\n".join(SAID))


@pytest.fixture(scope="session")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outcome]:
    """Lays out, runs for `CHAOS_S`, drains, counts."""
    world = World.start(tmp_path_factory.mktemp("chaos") / "cloud", HARSH)
    try:
        found = run(world, Landing(world.deployed(world.second), tmp_path_factory.mktemp("landing")))
        SAID.append(found.text())
        yield found
    finally:
        world.cloud.stop()


def run(world: World, landing: Landing) -> Outcome:
    queues, book = world.lay(), Book()
    application, offering = Application(world), Offering(world.deployed(world.first))
    people = [People(Splitting(world.deployed(world.second)), book, seed) for seed in range(PEOPLE)]
    job = Job(landing)
    consumers = [
        consumer(world.first, queues.first_audit, lambda message: book.note_audited(name_of(message["Body"]))),
        consumer(world.second, queues.second_audit, lambda message: book.note_audited(name_of(message["Body"]))),
        consumer(world.second, queues.orders, lambda message: book.note_order(name_of(message["Body"]))),
    ]
    phases = max(2, round(CHAOS_S / BETWEEN_RESTARTS_S))
    killed = 0
    with in_background(*consumers):
        with in_background(job.run, application.run, offering.run, *(each.run for each in people)):
            for phase in range(phases):
                if phase:
                    job.kill()
                    world.restart()
                with functions_killed(world.cloud, FUNCTIONS, every_s=KILLED_EVERY_S) as kills:
                    time.sleep(CHAOS_S / phases)
                killed += kills.total()
        insist(people[0].splitting.until_all_ended)
        until_drained(world)
    job.finish(book)
    for site in world.sites:
        bury(site, book)
    # Of the rendezvous' events the test knows what was published alone.
    sent = application.sent.keys() | book.audited
    totals = Totals(
        sent=sent,
        ends=dict(book.ends),
        offers=heard(offering.told, world.away),
        too_late=count_stale_offers(world.cloud),
    )
    return Outcome(totals=totals, application=application, book=book, killed=killed, restarts=len(world.away))


def until_drained(world: World) -> None:
    deadline, since = time.monotonic() + DRAINED_WITHIN_S, time.monotonic()
    while time.monotonic() - since < STILL_S:
        left = world.between()
        assert time.monotonic() < deadline, left
        if left:
            since = time.monotonic()
        time.sleep(1)
