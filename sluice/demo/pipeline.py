"""The demo's four capabilities joined: what happens at two sites comes to one of them, is split there, and landed.

Rendezvous events of both sites and an application's messages meet at the second site's exchange, over a dynamic route.
Its split queue is bound to it: a session takes one country's events to a local Spark job, another job lands the rest.
A queue of its own at each site sees what was published, so that the totals are reconciled message by message.
"""

import asyncio
import json
import shutil
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from deltalake import DeltaTable, QueryBuilder
from msgspec.structs import replace

from sluice.aws.federation.publisher import Publisher, Publishing
from sluice.aws.operator.consumer import queue_url
from sluice.aws.operator.control_client import SWEEPER, ControlClient
from sluice.aws.operator.deployment import stack_outputs
from sluice.aws.splitting.queues import SplitQueues
from sluice.cli.federation.route_declarations import Ends, add_route, wait_until_operational
from sluice.cli.federation.sites import open_site
from sluice.cli.splitting.sessions import OpenSession, session
from sluice.demo import rendezvous
from sluice.demo.federation import OPERATIONAL_WITHIN_S, asked_sites
from sluice.demo.picture import Journeys, Landed, drawn
from sluice.demo.spark_jobs import WITHIN_S, HeldJob, Jobs
from sluice.errors import SluiceError
from sluice.federation.links.links import BridgeDeclaration
from sluice.federation.messages.metadata import open_attributes
from sluice.federation.operations import BindQueue, SweepSite
from sluice.local.access import SiteAccess
from sluice.local.cloud import BUILD
from sluice.local.countries import write_database
from sluice.local.pipeline import landing
from sluice.message import Message, Outgoing, Value
from sluice.pipeline.jobs import Places, Reach, statistics_arguments
from sluice.project import PROJECT
from sluice.rendezvous.operations import LEAST_S, SweepAnswers
from sluice.splitting.filters.values import Filter, QueueFilter
from sluice.splitting.operations import ListQueues, QueueView

EXCHANGE, KEYS = "events", "#"
QUEUE = "pipeline"  # the split queue, by its queue_id
AUDIT = "audit"  # what was published, at each site
SPLIT_COUNTRY = "DE"
ORDERS = 200  # the application's messages, at the first site
UNREADABLE = 2  # messages whose metadata nobody can read, straight to the split queue
ASTRAY = 1  # messages to an exchange that isn't there
FOLDER = BUILD / "demo"
MAIN, MINE = FOLDER / "main", FOLDER / "session"
DATABASE = BUILD / "countries.mmdb"
PLOT = FOLDER / "statistics.svg"
QUIET_S = 4.0  # longer than a message takes from site to site
NOTHING_MORE_S = 30.0  # by then all offers were swept: what hasn't come is missing, and told
ARRIVED_WITHIN_S = 300.0  # an offer whose queue isn't old enough to be swept is told of minutes later
SWEEP_EVERY_S = 5.0
LOOK_EVERY_S = 0.5
READ_EVERY_S = 1.0  # whole tables, beside those who write them
TRIGGER_S = 5  # between batches
PARAMETERS: dict[str, object] = {
    "sluice.rendezvous.geoip_file": DATABASE.relative_to(PROJECT.workspace).as_posix(),
    "sluice.rendezvous.counters_window_s": 1,
}
QUEUES: Sequence[Mapping[str, object]] = ({"name": AUDIT},)
FEDERATION, SPLITTING, STATE = "SluiceFederation", "SluiceSplitting", "SluicePipeline"


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrived:
    """What one receiver got: of each message its id, and its event where it is one; of a table's, its row."""

    ids: Sequence[str]
    events: Sequence[Mapping[str, Any]] = ()
    rows: Sequence[Landed] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """What both sites' exchanges were given, and when nothing more came, by the monotonic clock."""

    at: Mapping[SiteAccess, Arrived]
    quiet_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciled:
    """Ids by where they came; `published` is what both sites' exchanges were given, `own` the part of the first."""

    sites: tuple[str, str]
    published: Arrived
    own: Arrived
    landed: Arrived
    split: Arrived
    quarantined: int
    dead_letters: int
    offers: Mapping[str, range]  # by site, how many it may have heard, as their clients counted them
    plot: Path
    seconds: Mapping[str, float]

    @property
    def sent(self) -> int:
        """By whatever way."""
        return len(set(self.published.ids)) + UNREADABLE + ASTRAY

    @property
    def reconciled(self) -> int:
        """At one of the four ends."""
        return len(self.landed.ids) + len(self.split.ids) + self.quarantined + self.dead_letters

    def is_right(self) -> bool:
        """Each message at exactly one end, the first site's all among them, and an event for every offer."""
        once = Counter([*self.landed.ids, *self.split.ids])
        whole = once.keys() == set(self.published.ids) and max(once.values()) == 1
        bridged = set(self.own.ids) <= set(self.published.ids)
        ends = (self.quarantined, self.dead_letters) == (UNREADABLE, ASTRAY)
        told = self._offer_events
        offers = told.keys() == self.offers.keys() and all(told[site] in heard for site, heard in self.offers.items())
        return whole and bridged and ends and self.sent == self.reconciled and offers

    @property
    def _offer_events(self) -> Counter[str]:
        unique = {event["id"]: event["site"] for event in self.published.events if event["kind"] == "offer"}
        return Counter(unique.values())

    def rows(self) -> list[tuple[str, str]]:
        """For the summary."""
        here, there = self.sites
        offers = sum(heard[-1] for heard in self.offers.values())
        kinds = Counter(event["kind"] for event in self.published.events)
        unaccounted = set(self.published.ids) ^ {*self.landed.ids, *self.split.ids}
        return [
            (f"messages at exchange {EXCHANGE} of {there}", f"{len(self.published.ids):,}"),
            (f"of these from {here}, by the dynamic route", f"{len(self.own.ids):,}"),
            ("events of polls and of answers", f"{kinds['poll']}, {kinds['answer']}"),
            (
                "events of offers, of as many offers",
                f"{self._offer_events.total()} of {offers}",
            ),
            ("sent in all, with those that nobody can read or route", f"{self.sent:,}"),
            ("landed in tables by Spark", f"{len(self.landed.ids):,}"),
            (f"split, country {SPLIT_COUNTRY}, landed by a session's own Spark", f"{len(self.split.ids):,}"),
            ("quarantined", f"{self.quarantined}"),
            ("dead-lettered", f"{self.dead_letters}"),
            ("unaccounted for, or twice", f"{len(unaccounted) + len(self.landed.ids) - len(set(self.landed.ids))}"),
            *((name, f"{seconds:.0f} s") for name, seconds in self.seconds.items()),
            ("the picture", str(self.plot.relative_to(PROJECT.workspace))),
        ]


def prepare() -> None:
    """Make what the deployment needs, the countries, in a folder that has nothing of an earlier run."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    write_database(DATABASE)


@dataclass(frozen=True, slots=True)
class Joined:
    """The way from both sites to the session, while it is open, and the jobs at its end."""

    source: SiteAccess
    dest: SiteAccess
    opened: OpenSession
    jobs: Jobs

    def publish(self, *, progress: Callable[[str], None]) -> None:
        """Publish the application's messages at the first site; at the second, those that can't arrive.

        Returns when they have come: then all functions on the way have started.
        """
        progress(f"{ORDERS} messages go from {self.source.site} to {self.dest.site}")
        publisher = Publisher(_output(self.source, FEDERATION, "IngressUrl"), self.source.connection.client("sqs"))
        orders = (json.dumps({"order": number}) for number in range(ORDERS))
        publisher.publish_all(Publishing(exchange=EXCHANGE, key="orders.new", body=body) for body in orders)
        astray = Publisher(_output(self.dest, FEDERATION, "IngressUrl"), self.dest.connection.client("sqs"))
        astray.publish_all(Publishing(exchange="nowhere", body="to nobody") for _ in range(ASTRAY))
        queue = self.split()
        unreadable = Outgoing(body="{}", attributes={"x-qpid": Value("String", "{")})
        queues = SplitQueues(self.dest.connection.client("sqs"), queue.source)
        queues.send_batch(_name(queue.source), [unreadable.entry(str(number)) for number in range(UNREADABLE)])
        audit = queue_url(self.dest.connection, AUDIT)
        deadline = time.monotonic() + ARRIVED_WITHIN_S
        while _count(self.dest, audit) < ORDERS and time.monotonic() < deadline:
            time.sleep(LOOK_EVERY_S)

    def land(self, *, progress: Callable[[str], None]) -> None:
        """Let both of Spark's jobs go that land what has come and comes until they are stopped."""
        progress("Spark lands, twice, what comes from now on")
        urls = self.split().main, self.opened.url_of(QUEUE)
        reach = Reach(region=self.dest.site.region, endpoint=self.dest.cloud.endpoint)
        for job, folder, url in zip(self.jobs.landing, (MAIN, MINE), urls, strict=True):
            job.let_go(replace(landing(folder, queue_url=url, reach=reach), trigger_s=TRIGGER_S).arguments())

    def published(self, offers: Mapping[str, range], *, progress: Callable[[str], None]) -> Published:
        """Give what was, once all has arrived. `offers`: by site, how many it may have heard."""
        progress("what was published arrives")
        audits = _Audits(self.source, self.dest, holding=(self.source, self.dest))
        seen = audits.until_quiet(offers=sum(heard[0] for heard in offers.values()))
        return Published(at=seen, quiet_s=time.monotonic())

    def finish(
        self, published: Published, offers: Mapping[str, range], *, progress: Callable[[str], None]
    ) -> Reconciled:
        """Count what was landed and draw it, once it is all; Spark's statistics of it are under way then."""
        seen = published.at
        progress("Spark lands the rest, and the session's own Spark its part")
        self._until_landed(len(set(seen[self.dest].ids)) + UNREADABLE)
        landed_s = time.monotonic()
        progress("statistics")
        day = datetime.now(UTC).date().isoformat()
        self.jobs.statistics.let_go(statistics_arguments(Places(root=str(MAIN)), day=day))
        with ThreadPoolExecutor(2) as both:
            list(both.map(HeldJob.stop, self.jobs.landing))
        seconds = {
            "in tables after the last had come": max(0.0, landed_s - published.quiet_s),
            "then Spark ends, after its batch": time.monotonic() - landed_s,
        }
        landed, split = _landed(MAIN), _landed(MINE)
        result = Reconciled(
            sites=(str(self.source.site), str(self.dest.site)),
            published=seen[self.dest],
            own=seen[self.source],
            landed=landed,
            split=split,
            quarantined=len(_quarantined(MAIN)),
            dead_letters=_count(self.dest, _output(self.dest, FEDERATION, "FederationDeadLettersUrl")),
            offers={_output(each, FEDERATION, "SiteTag"): offers[str(each.site)] for each in (self.source, self.dest)},
            plot=PLOT,
            seconds=seconds,
        )
        journeys = Journeys(
            sites=(self.source.site.region, self.dest.site.region),
            landed=landed.rows,
            split=split.rows,
            quarantined=result.quarantined,
            dead_letters=result.dead_letters,
        )
        PLOT.write_text(drawn(journeys), encoding="utf-8")
        return result

    def statistics(self) -> str:
        """Give Spark's statistics of what was landed, once they are there."""
        self.jobs.statistics.wait()
        [log] = (MAIN / "statistics").glob("*.log")
        return log.read_text()

    def split(self) -> QueueView:
        """Find the split queue."""
        queues = ControlClient.of(self.dest.connection).ask(ListQueues())
        return next(queue for queue in queues if queue.queue_id == QUEUE)

    def _until_landed(self, number: int) -> None:
        """Wait until so many rows are in tables and in quarantine, in time or not: what is missing is told."""
        deadline = time.monotonic() + WITHIN_S
        while time.monotonic() < deadline and all(job.runs for job in self.jobs.landing):
            rows = sum(len(_landed(folder).ids) for folder in (MAIN, MINE)) + len(_quarantined(MAIN))
            if rows >= number:
                return
            time.sleep(READ_EVERY_S)


@contextmanager
def joined(
    source: SiteAccess, dest: SiteAccess, *, jobs: Jobs, beside: Executor, progress: Callable[[str], None]
) -> Iterator[Joined]:
    """Binds, lays the dynamic route, starts the session: gives the way once it carries."""
    progress(f"{dest.site} gets what is published at {source.site}")
    laid = beside.submit(_lay, source, dest)
    filters = {QUEUE: QueueFilter(filter=Filter(attributes=(("country", f"^{SPLIT_COUNTRY}$"),)))}
    with session(ControlClient.of(dest.connection), filters, owner="demo", key="demo") as opened:
        laid.result()
        yield Joined(source, dest, opened, jobs)


def _lay(source: SiteAccess, dest: SiteAccess) -> None:
    with ThreadPoolExecutor(2) as both:
        list(both.map(_bind_audit, (source, dest)))
    with asked_sites(source.cloud):
        ends = Ends.of(str(dest.site), str(source.site), src_local=False)
        ends.site.client.ask(BindQueue(exchange=EXCHANGE, queue=QUEUE, key=KEYS))
        made = add_route(ends, BridgeDeclaration(src=EXCHANGE, dest=EXCHANGE, dynamic=True), link=None)
        wait_until_operational(ends.site, made.name, timeout_s=OPERATIONAL_WITHIN_S)


def _bind_audit(site: SiteAccess) -> None:
    with asked_sites(site.cloud):
        client = open_site(str(site.site)).client
        client.ask(SweepSite())  # declares what the deployment says, which the next minute would
        client.ask(BindQueue(exchange=EXCHANGE, queue=AUDIT, key=KEYS))


# What was published


@dataclass(slots=True)
class _Audits:
    """The queues that see everything."""

    source: SiteAccess
    dest: SiteAccess
    holding: Sequence[SiteAccess]  # proxies, perhaps

    def until_quiet(self, *, offers: int) -> Mapping[SiteAccess, Arrived]:
        """Give what came to each, once nothing more comes and the second site has all of the first's.

        And an event of each of so many offers, and no proxy waits any more.
        """
        messages: dict[SiteAccess, dict[str, Message]] = {self.source: {}, self.dest: {}}
        deadline, quiet_since, sweeps_at = time.monotonic() + ARRIVED_WITHIN_S, time.monotonic(), 0.0
        while (now := time.monotonic()) < deadline:
            told = sum(map(_tells_of_offer, messages[self.dest].values()))
            if told < offers and now > sweeps_at:
                sweeps_at = now + SWEEP_EVERY_S
                for site in messages:
                    # Of clients that were denied nobody hears before their queues are swept; all of them have gone.
                    ControlClient.of(site.connection, SWEEPER).ask(SweepAnswers(older_than_s=LEAST_S))
            if sum(self._received(site, into) for site, into in messages.items()):
                quiet_since = now
                continue
            if self._polled():
                quiet_since = now
            elif now - quiet_since > QUIET_S and (
                (messages[self.source].keys() <= messages[self.dest].keys() and told >= offers)
                or now - quiet_since > NOTHING_MORE_S
            ):
                break
            time.sleep(LOOK_EVERY_S)
        arrived = {}
        for site, found in messages.items():
            bodies = (json.loads(message.body) for message in found.values())
            arrived[site] = Arrived(ids=list(found), events=[body for body in bodies if "kind" in body])
        return arrived

    def _polled(self) -> bool:
        """Say whether polls of volunteers that have gone are held on somewhere: each is told of when it ends."""
        self.holding = [site for site in self.holding if asyncio.run(rendezvous.waiting(site))]
        return bool(self.holding)

    @staticmethod
    def _received(site: SiteAccess, into: dict[str, Message]) -> int:
        queues = SplitQueues(site.connection.client("sqs"), queue_url(site.connection, AUDIT))
        name = _name(queues.sibling_url)
        found = queues.receive_batch(name)
        if found:
            queues.delete_batch(name, found)
        into |= {_id(message): message for message in found}
        return len(found)


def _tells_of_offer(message: Message) -> bool:
    body = json.loads(message.body)
    return isinstance(body, dict) and body.get("kind") == "offer"


def _id(message: Message) -> str:
    metadata = open_attributes(message.attributes).metadata
    if metadata is None or metadata.message_id is None:
        raise SluiceError(f"message {message.message_id} went through no exchange")
    return metadata.message_id


# What came of it


def _landed(folder: Path) -> Arrived:
    """Read the rows of table `messages`, by another reader than the one that wrote them."""
    table = folder / "tables" / "messages"
    columns = ["origin_id", "body", "sites", "published_at", "sent_at", "first_received_at"]
    found = _table(table, columns)
    commits = DeltaTable(table).history() if found else []
    times = sorted(datetime.fromtimestamp(each["timestamp"] / 1000, UTC) for each in commits)
    rows = [
        Landed(
            event=body if "kind" in (body := json.loads(row["body"])) else {},
            sites=row["sites"],
            published_at=row["published_at"],
            queued_at=row["sent_at"],
            read_at=row["first_received_at"],
            landed_at=times[bisect_left(times, row["first_received_at"])],
        )
        for row in found
    ]
    return Arrived(ids=[row["origin_id"] for row in found], events=[row.event for row in rows if row.event], rows=rows)


def _quarantined(folder: Path) -> list[dict[str, Any]]:
    return _table(folder / "quarantine" / "quarantine", ["reason"])


def _table(path: Path, columns: Collection[str]) -> list[dict[str, Any]]:
    if not DeltaTable.is_deltatable(str(path)):
        return []
    query = f"SELECT {', '.join(columns)} FROM found"  # noqa: S608 - our own names
    found = QueryBuilder().register("found", DeltaTable(str(path))).execute(query).read_all()
    values = zip(*(found[name].to_pylist() for name in columns), strict=True)
    return [dict(zip(columns, each, strict=True)) for each in values]


def _count(site: SiteAccess, url: str) -> int:
    return SplitQueues(site.connection.client("sqs"), url).count(_name(url))


def _output(site: SiteAccess, stack: str, name: str) -> str:
    return stack_outputs(site.connection, stack)[name]


def _name(url: str) -> str:
    return url.rsplit("/", 1)[1]
