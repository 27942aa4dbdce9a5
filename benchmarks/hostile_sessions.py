"""What one hostile session costs everybody else: production's delay with one beside it, to that without.

On the embedded cloud: ten honest sessions, of which each wants a hundredth of the traffic, and 1,000 messages sent at
once. What is measured is when the last of production's is at the main queue; what the honest ones got is counted.
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
from sluice.splitting.operations import EndedSession, FindSession, ListQueues
from tests.site_access import SiteAccess

QUEUE = "pipeline"
HONEST = 10
MESSAGES = 1_000
OF_EACH = MESSAGES // 100
SENT_BESIDE = 2  # times, with each session
WITHIN_S = 60.0
TOGETHER = 10
WORD = "a" * 40 + "b"  # on which a pattern that backtracks takes for ever
HOSTILE: Mapping[str, Filter] = {
    "an endless program": Filter(jq="def f: f; f"),
    "a pattern that backtracks": Filter(attributes=(("word", "^(a|aa)+$"),)),
    "a slow program": Filter(jq="[range(200000)] | length < 0"),
}


class Wrong(Exception):
    """What was measured isn't what should have happened."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delayed:
    """When the last of production's messages was there, in seconds from the first's sending, and why who ended."""

    last_s: float
    ended: str = ""


def figures() -> dict[str, Figure]:
    """Measure, and compare."""
    without, beside = measure()
    name = f"{MESSAGES:,} messages, until production's are at main, s"
    found = {"production_s": Figure(name=name, value=without.last_s)}
    for number, (name, delayed) in enumerate(beside.items()):
        found[f"production_s_beside_{number}"] = Figure(
            name=f"beside {name} ({delayed.ended}), s",
            value=delayed.last_s,
            limit=30,
            ratio=delayed.last_s / without.last_s,
            compared_to="without it",
        )
    slowest = max(delayed.last_s for delayed in beside.values())
    ratio = slowest / without.last_s
    return found | {"hostile_delay_ratio": Figure(name="the slowest of these to that without", value=ratio, limit=3)}


def measure() -> tuple[Delayed, Mapping[str, Delayed]]:
    """Measure without a hostile session, and beside each."""
    cloud = start_cloud(BUILD / "bench-splitting", ends_with_us=True)
    try:
        context = {"sluice.splitting.queues": [{"queue_id": QUEUE}]}
        cloud = Deployer(cloud=cloud, context=context).deploy(DEFAULT_SITE)
        site = SiteAccess(cloud, DEFAULT_SITE)
        with ExitStack() as sessions:
            honest = [sessions.enter_context(_session(site, _honest(number))) for number in range(HONEST)]
            _round(site, honest)  # the functions start
            without = Delayed(last_s=max(_round(site, honest) for _ in range(SENT_BESIDE)))
            beside = {}
            for name, filter_ in HOSTILE.items():
                with _session(site, filter_) as hostile:
                    # What is slow once is forgiven, and cancelled the second time.
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
    """Send all, and have all received; after how many seconds production's last was there."""
    client = ControlClient.connect(site.connection)
    [queue] = [each for each in client.ask(ListQueues()) if each.queue_id == QUEUE]
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
    """Receive until so many different messages have come."""
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
