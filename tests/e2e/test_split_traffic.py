"""Thirty sessions that come and go under steady traffic: each message arrives where it may, and none is lost.

Producers, sessions' readers and the deployed consumer each have a thread.
"""

import random
import threading
import time
from collections.abc import Callable
from functools import partial

import pytest

from sluice.splitting.operations import KeepSession, StopSession
from sluice.splitting.sessions.rules import SPLITTER_READS_WITHIN_MS
from tests.conftest import HARSH
from tests.deployed import Deployed
from tests.e2e.functions_killed import functions_killed
from tests.e2e.sessions import Splitting, by_attribute, url_of
from tests.e2e.split_traffic import CLIENTS, Life, Observed

QUEUE = "traffic"
MESSAGES = 5_000
SESSIONS = 30
AT_ONCE = 5  # sessions alive side by side, roughly
PACE_S = 0.08  # between batches of ten: some 100 messages a second beside everything else
QUIET_S = 5.0
SEED = 20_261_121
SPLITTER = "Splitter"
DELIVERED_TWICE = HARSH.duplicated if HARSH else 0.0  # chance of a message that the splitter receives


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_thirty_sessions_at_random_lose_nothing(deployed: Deployed, record_property: Callable[..., None]) -> None:
    observed = observe(Splitting(deployed))
    assert_rules_hold(observed)
    record_property("duplicates", observed.duplicates())
    assert observed.duplicates() < MESSAGES * (DELIVERED_TWICE + 0.01)  # no others as a rule: nothing fails


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_thirty_sessions_at_random_lose_nothing_while_splitters_are_killed(
    deployed: Deployed, record_property: Callable[..., None]
) -> None:
    splitting = Splitting(deployed)
    # A batch whose splitter was killed comes again after this: SQS's own two minutes would only make the test longer.
    deployed.sqs.set_queue_attributes(QueueUrl=splitting.queues[QUEUE].source, Attributes={"VisibilityTimeout": "5"})
    with functions_killed(deployed.cloud, [SPLITTER], every_s=(4, 10)) as killed:
        observed = observe(splitting)
    assert_rules_hold(observed)
    record_property("killed", killed[SPLITTER])
    record_property("duplicates", observed.duplicates())
    assert killed[SPLITTER] > 0


def assert_rules_hold(observed: Observed) -> None:
    assert len(observed.sent_at) == MESSAGES
    assert observed.lost() == []
    assert observed.misdirected() == []
    assert observed.withheld() == []
    to_sessions = sum(receiver != "main" for receivers in observed.arrived.values() for receiver in receivers)
    assert to_sessions > MESSAGES / 20  # they had work


def observe(splitting: Splitting) -> Observed:
    """The whole run: sends everything, and ends when nothing more arrives."""
    observed, draw = Observed(), random.Random(SEED)
    all_sent, all_ended = threading.Event(), threading.Event()
    consumer = thread(lambda: read_until(splitting, splitting.main(QUEUE), "main", observed, all_ended))
    producer = thread(lambda: send_all(splitting, observed, all_sent))
    sessions = []
    for _ in range(SESSIONS):
        life_s = draw.uniform(4, 20)
        client = draw.randrange(CLIENTS)
        sessions.append(thread(partial(live, splitting, observed, client, life_s)))
        time.sleep(draw.uniform(0, 2 * 12 / AT_ONCE))
    for each in [producer, *sessions]:
        each.join()
    splitting.until_all_ended()
    until_empty(splitting, splitting.queues[QUEUE].source)
    all_ended.set()
    consumer.join()
    return observed


def until_empty(splitting: Splitting, url: str) -> None:
    """Until the splitter has taken everything, what had to come again included."""
    names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
    while True:
        counts = splitting.deployed.sqs.get_queue_attributes(QueueUrl=url, AttributeNames=names)["Attributes"]  # type: ignore[arg-type]
        if not sum(map(int, counts.values())):
            return
        time.sleep(1)


def thread(work: Callable[[], None]) -> threading.Thread:
    started = threading.Thread(target=work)
    started.start()
    return started


def send_all(splitting: Splitting, observed: Observed, all_sent: threading.Event) -> None:
    for start in range(0, MESSAGES, 10):
        numbers = range(start, start + 10)
        at = time.monotonic()
        observed.sent_at.update(dict.fromkeys(numbers, at))
        splitting.send(QUEUE, [str(number) for number in numbers], lambda body: {"client": str(int(body) % CLIENTS)})
        time.sleep(PACE_S)
    all_sent.set()


def live(splitting: Splitting, observed: Observed, client: int, life_s: float) -> None:
    """One session from start to stop, read all the while, its heartbeat kept."""
    session = splitting.start({QUEUE: by_attribute("client", f"^{client}$")})
    session_id, ends_at = session.session_id, time.monotonic() + life_s
    observed.lives[session_id] = Life(client, ready_at=time.monotonic())
    while time.monotonic() < ends_at:
        observed.note(session_id, [message["Body"] for message in splitting.receive(url_of(session, QUEUE), wait_s=1)])
        splitting.client.ask(KeepSession(session_id=session_id))
    observed.lives[session_id].stopped_at = time.monotonic()
    splitting.client.ask(StopSession(session_id=session_id))
    observed.lives[session_id].gone_at = time.monotonic() + SPLITTER_READS_WITHIN_MS / 1_000


def read_until(splitting: Splitting, url: str, receiver: str, observed: Observed, done: threading.Event) -> None:
    """Until nothing comes for a while after `done`."""
    quiet_since = time.monotonic()
    while not done.is_set() or time.monotonic() - quiet_since < QUIET_S:
        bodies = [message["Body"] for message in splitting.receive(url, wait_s=1)]
        observed.note(receiver, bodies)
        if bodies:
            quiet_since = time.monotonic()
