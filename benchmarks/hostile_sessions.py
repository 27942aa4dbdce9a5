"""Measures what a hostile session costs others: the deployed consumer's delay beside it, and without it.

On the embedded cloud, ten honest sessions each get a hundredth of 1,000 messages that are sent at once. Measured is
when the deployed consumer's last message is in the main queue; the messages of honest sessions are counted.
"""

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from benchmarks.report import Figure
from sluice.aws.splitting.queues import SplitQueues
from sluice.local.cloud import BUILD, start_cloud
from sluice.local.deployer import Deployer
from sluice.local.sites import DEFAULT_SITE
from sluice.message import Outgoing, Value
from sluice.operator.functions import ControlClient
from sluice.operator.sessions import OpenSession, open_session
from sluice.splitting.filters.values import Filter, QueueFilter
from sluice.splitting.operations import EndedSession, FindSession, ShowSplitting
from tests.site_access import SiteAccess

QUEUE = "pipeline"
HONEST = 10
MESSAGES = 1_000
OF_EACH = MESSAGES // 100
SENT_BESIDE = 2  # rounds of sending with each hostile session
WITHIN_S = 60.0
TOGETHER = 10
WORD = "a" * 40 + "b"  # a text on which a backtracking pattern doesn't end
HOSTILE: Mapping[str, Filter] = {
    "an endless program": Filter(jq="def f: f; f"),
    "a pattern that backtracks": Filter(attributes=(("word", "^(a|aa)+$"),)),
    "a slow program": Filter(jq="[range(200000)] | length < 0"),
}


class Wrong(Exception):
    """The run had an unexpected result, so its figures are wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delayed:
    """Seconds from the first sent message until the main queue's last, and the reason of each session that ended."""

    last_s: float
    ended: str = ""


def figures() -> dict[str, Figure]:
    """Run all measurements, and compare them."""
    without, beside = measure()
    name = f"{MESSAGES:,} messages, until production's are at main, s"
    found = {"production_s": Figure(name=name, value=without.last_s)}
    for number, (name, delayed) in enumerate(beside.items()):
        found[f"production_s_beside_{number}"] = Figure(
            name=f"production beside {name} ({delayed.ended}), s",
            value=delayed.last_s,
            limit=30,
            ratio=delayed.last_s / without.last_s,
            compared_to="production alone",
        )
    slowest = max(delayed.last_s for delayed in beside.values())
    ratio = slowest / without.last_s
    return found | {"hostile_delay_ratio": Figure(name="slowest of these, relative to none", value=ratio, limit=3)}


def measure() -> tuple[Delayed, Mapping[str, Delayed]]:
    """Measure without a hostile session, and with each of them."""
    cloud = start_cloud(BUILD / "bench-splitting", ends_with_us=True)
    try:
        context = {"sluice.splitting.queues": [{"queue_id": QUEUE}]}
        cloud = Deployer(cloud=cloud, context=context).deploy(DEFAULT_SITE)
        site = SiteAccess(cloud, DEFAULT_SITE)
        with ExitStack() as sessions:
            honest = [sessions.enter_context(_session(site, _honest(number))) for number in range(HONEST)]
            _round(site, honest)  # starts the functions
            without = Delayed(last_s=max(_round(site, honest) for _ in range(SENT_BESIDE)))
            beside = {}
            for name, filter_ in HOSTILE.items():
                with _session(site, filter_) as hostile:
                    # The first slow batch is forgiven; the second one cancels the session.
                    rounds = [_round(site, honest) for _ in range(SENT_BESIDE)]
                    beside[name] = Delayed(last_s=max(rounds), ended=_reason(site, hostile))
        return without, beside
    finally:
        cloud.stop()


def _honest(number: int) -> Filter:
    return Filter(attributes=(("tenant", f"^{number}$"),))


@contextmanager
def _session(site: SiteAccess, filter_: Filter) -> Iterator[OpenSession]:
    client = ControlClient.connect(site.connection)
    with open_session(client, {QUEUE: QueueFilter(filter=filter_)}, owner="benchmark") as opened:
        yield opened


def _round(site: SiteAccess, honest: Sequence[OpenSession]) -> float:
    """Send and receive all messages. Returns the seconds until the main queue had its last one."""
    client = ControlClient.connect(site.connection)
    [queue] = [each for each in client.ask(ShowSplitting()).queues if each.queue_id == QUEUE]
    queues = SplitQueues(site.connection.client("sqs"), queue.source)
    started = time.monotonic()
    for first in range(0, MESSAGES, TOGETHER):
        entries = [_message(number).entry(str(number)) for number in range(first, first + TOGETHER)]
        queues.send_batch(_name(queue.source), entries)
    _receive(queues, _name(queue.main), MESSAGES - HONEST * OF_EACH)
    last_s = time.monotonic() - started
    for opened in honest:
        _receive(queues, _name(opened.queue_url(QUEUE)), OF_EACH)
        if opened.ended.is_set():
            raise Wrong(f"an honest session ended: {opened.reason}")
    return last_s


def _message(number: int) -> Outgoing:
    attributes = {"tenant": Value("String", str(number % 100)), "word": Value("String", WORD)}
    return Outgoing(body=str(number), attributes=attributes)


def _receive(queues: SplitQueues, name: str, number: int) -> None:
    """Receive until this many different messages have arrived."""
    found = Counter[str]()
    deadline = time.monotonic() + WITHIN_S
    while len(found) < number:
        if time.monotonic() > deadline:
            raise Wrong(f"{len(found)} of {number} messages are in {name} after {WITHIN_S:g} s")
        messages = queues.receive_batch(name)
        if messages:
            queues.delete_batch(name, messages)
            found.update(message.body for message in messages)
        else:
            time.sleep(0.05)


def _reason(site: SiteAccess, hostile: OpenSession) -> str:
    client = ControlClient.connect(site.connection)
    deadline = time.monotonic() + WITHIN_S
    while time.monotonic() < deadline:
        found = client.ask(FindSession(session_id=hostile.view.session_id))
        if isinstance(found, EndedSession) or found.reason:
            return found.reason
        time.sleep(0.5)
    raise Wrong("the hostile session goes on")


def _name(url: str) -> str:
    return url.rsplit("/", 1)[-1]
