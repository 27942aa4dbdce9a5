"""What mirrord's users have, as it is: their cluster's resource is deployed, their `mirrord.json` runs."""

import json
import signal

import pytest

from tests import mirrord
from tests.deployed import Deployed
from tests.e2e.commands import running, said
from tests.e2e.sessions import Splitting

QUEUE = "meme-queue"
MEMES = {
    "me, a beginner": {"author": "me", "level": "beginner"},
    "me, an expert": {"author": "me", "level": "expert"},
    "me, of no level": {"author": "me"},
    "you, a beginner": {"author": "you", "level": "beginner"},
    "Me, Intermediate": {"level": "Intermediate", "Author": "Me"},
}


@pytest.fixture
def splitting(deployed: Deployed) -> Splitting:
    return Splitting(deployed)


def test_a_workload_with_two_queues_is_imported_and_its_filter_runs(deployed: Deployed, splitting: Splitting) -> None:
    assert {QUEUE, "ad-queue"} <= splitting.queues.keys()
    with running(deployed, "split", "start", "--filter-file", str(mirrord.WHOLE), "--json") as process:
        session = json.loads(said(process))
        [queue] = session["queues"]
        assert queue["queue_id"] == QUEUE
        splitting.send(QUEUE, [*MEMES], MEMES.__getitem__)
        assert {*splitting.bodies(queue["url"], 2)} == {"me, a beginner", "Me, Intermediate"}
        assert {*splitting.bodies(splitting.main(QUEUE), 3)} == {"me, an expert", "me, of no level", "you, a beginner"}
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    splitting.until_all_ended()
