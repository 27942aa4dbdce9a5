"""Who receives: consumers of queues, sessions that come and go, the job that lands the rest. Each notes what came."""

import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from sluice.aws.clients import GONE, get_error_code
from sluice.aws.dead_letters import read_dead_letter
from sluice.errors import SluiceError
from sluice.message import Message
from sluice.operator.sessions import open_session
from sluice.pipeline.operations import DrainQueue, StartLand
from sluice.splitting.filters.values import Filter, QueueFilter
from tests.chaos.load import COUNTRIES, name_of
from tests.chaos.totals import End
from tests.chaos.world import PAUSE_S, QUEUE, Work, insist
from tests.deployed import BATCH, delete_all
from tests.e2e.federated import FederatedSite
from tests.e2e.landing import Landing, until
from tests.e2e.sessions import Splitting

WAIT_S = 2
QUIET_POLLS = 4
LIFE_S = (8, 25)  # of a session
RECONCILED_EVERY_S = 5.0


@dataclass
class Book:
    """Ids of what came, by end; safe for threads."""

    ends: defaultdict[End, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    audited: set[str] = field(default_factory=set)
    orders: list[str] = field(default_factory=list)  # in the order in which each came first
    by_country: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))  # of sessions
    sessions: int = 0
    reasons: dict[str, str] = field(default_factory=dict)  # by body, of what can't arrive
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, end: End, *ids: str) -> None:
        with self._lock:
            self.ends[end].update(ids)

    def note_audited(self, id_: str) -> None:
        with self._lock:
            self.audited.add(id_)

    def note_session(self) -> None:
        with self._lock:
            self.sessions += 1

    def note_reason(self, end: End, body: str, reason: str) -> None:
        """What isn't the application's, as an offer or a tick, is no message that anybody waits for."""
        with self._lock:
            self.reasons[body] = reason
            with suppress(ValueError, KeyError, TypeError):
                self.ends[end][name_of(body)] += 1

    def note_order(self, id_: str) -> None:
        with self._lock:
            if not self.ends[End.CONSUMED][id_]:
                self.orders.append(id_)
            self.ends[End.CONSUMED][id_] += 1

    def note_split(self, country: str, id_: str) -> None:
        with self._lock:
            self.by_country[country].add(id_)
            self.ends[End.SPLIT][id_] += 1


def receive(sqs: Any, url: str) -> list[dict[str, Any]] | None:
    """Up to ten messages, which stay until they are deleted; None where the queue isn't there."""

    def received() -> list[dict[str, Any]] | None:
        try:
            found: list[dict[str, Any]] = sqs.receive_message(
                QueueUrl=url,
                MaxNumberOfMessages=BATCH,
                WaitTimeSeconds=WAIT_S,
                MessageAttributeNames=["All"],
                MessageSystemAttributeNames=["All"],
            ).get("Messages", [])
        except ClientError as error:
            if get_error_code(error) in GONE:
                return None
            raise
        return found

    return insist(received)


def take(sqs: Any, url: str, note: Callable[[dict[str, Any]], None]) -> int | None:
    """Note what one receive gives, then delete it; how many, None where the queue isn't there."""
    found = receive(sqs, url)
    if found is None:
        return None
    for message in found:
        note(message)
    with suppress(ClientError):  # what couldn't be deleted comes again
        insist(delete_all, sqs, url, found)
    return len(found)


def take_all(sqs: Any, url: str, note: Callable[[dict[str, Any]], None], stop: threading.Event) -> None:
    """Take until nothing comes any more after the end was told."""
    quiet = 0
    while not stop.is_set() or quiet < QUIET_POLLS:
        quiet = 0 if take(sqs, url, note) else quiet + 1


def consumer(site: FederatedSite, queue: str, note: Callable[[dict[str, Any]], None]) -> Work:
    """Who reads a bound queue."""
    return lambda stop: take_all(site.sqs, insist(site.url, queue), note, stop)


@dataclass(frozen=True, slots=True)
class People:
    """One after the other has a session for a country's messages, reads it, and stops it, or is cut off."""

    splitting: Splitting
    book: Book
    seed: int

    def run(self, stop: threading.Event) -> None:
        """Until it is told to end: the last session is stopped then."""
        draw = random.Random(self.seed)
        while not stop.is_set():
            try:
                self._live(draw.choice(COUNTRIES), draw.uniform(*LIFE_S), stop)
            except (SluiceError, BotoCoreError):
                stop.wait(PAUSE_S)  # one that nobody stops ends as unused

    def _live(self, country: str, life_s: float, stop: threading.Event) -> None:
        filters = {QUEUE: QueueFilter(filter=Filter(attributes=(("country", f"^{country}$"),)))}
        with open_session(self.splitting.client, filters, owner="chaos") as opened:
            self.book.note_session()
            url, ends_at = opened.queue_url(QUEUE), time.monotonic() + life_s

            def note(message: dict[str, Any]) -> None:
                self.book.note_split(country, name_of(message["Body"]))

            while not stop.is_set() and not opened.ended.is_set() and time.monotonic() < ends_at:
                if take(self.splitting.deployed.sqs, url, note) is None:
                    return


@dataclass(slots=True)
class Job:
    """The job that lands what no session had: asked for again and again, as a schedule does where it is deployed."""

    landing: Landing
    run_id: str = ""

    def run(self, stop: threading.Event) -> None:
        """Until it is told to end; the job goes on."""
        while not stop.wait(RECONCILED_EVERY_S):
            outcome = self.landing.asked.ask(StartLand())
            self.run_id = outcome.run or self.run_id

    def kill(self) -> None:
        """End its processes in the middle of whatever they do."""
        if self.run_id and self.landing.state(self.run_id) == "RUNNING":
            self.landing.kill(self.run_id)

    def finish(self, book: Book) -> None:
        """Land what there is, and note it."""
        drain = self.landing.asked.ask(DrainQueue()).run
        until(lambda: self.landing.state(drain) != "RUNNING")
        assert self.landing.state(drain) == "SUCCESS", self.landing.asked.read_log(drain, lines=50)
        book.note(End.LANDED, *map(name_of, self.landing.landed()))
        for row in self.landing.rows("body", "reason", place="quarantine/quarantine"):
            book.note_reason(End.QUARANTINED, row["body"], row["reason"])


def bury(site: FederatedSite, book: Book) -> None:
    """Note a site's dead letters, each with its reason."""

    def note(message: dict[str, Any]) -> None:
        letter = read_dead_letter(Message.from_api(message))
        book.note_reason(End.DEAD, letter.message.body, letter.reason)

    at_once = threading.Event()
    at_once.set()
    for url in site.sqs.list_queues(QueueNamePrefix="SluiceState-")["QueueUrls"]:
        if "DeadLetters" in url:
            take_all(site.sqs, url, note, at_once)
