"""Measures the cost and the latency of a rendezvous over SQS on the embedded cloud, with all requests counted.

`python -m benchmarks.rendezvous [--json]` first sends some offers one by one, to proxies whose polls are all held and
that answer at once. Then it sends offers at a steady rate, at random times, to so many proxies that no poll is held;
`--held` uses the first proxies for these too. Clients use the deployed credentials. Both parts include the sweeper's
deletion of their answer queues. A rendezvous includes the recording of its events; idle polls and counting are separate
figures, the latter with events from all countries, which are recorded while the volunteers begin.

All ends within `WITHIN_S`. What didn't happen by then is printed, and its figures are missing.
"""

import asyncio
import json
import os
import random
import statistics
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, TypeVar

import aiohttp
import typer
from botocore.exceptions import BotoCoreError, ClientError
from rich.console import Console

from benchmarks.counting_cloud import start_counting, unit_log
from benchmarks.report import Figure, report
from benchmarks.sequence import calls_in_sequence
from benchmarks.units import READ, WRITE, Units, read_units
from sluice.aws.clients import new_id, now_ms
from sluice.aws.rendezvous.clients import ClientCredentials, open_client
from sluice.aws.rendezvous.event_publisher import TableEventPublisher
from sluice.federation.operations import SweepSite
from sluice.local.cloud import BUILD, Cloud
from sluice.local.deployer import Deployer
from sluice.local.sites import DEFAULT_SITE
from sluice.operator.functions import FEDERATION, ControlClient
from sluice.peers.methods import generate_client_id
from sluice.rendezvous.counts.events import AnswerEvent, Event, OfferEvent, PollEvent, derive_event_id
from sluice.rendezvous.mailbox import PREFIX as MAILBOX_PREFIX
from sluice.rendezvous.protocol.messages import ANSWER_QUEUE_PREFIX
from tests.site_access import SiteAccess
from tests.sqs_requests import SqsRequest, by_action, read_requests
from tests.traffic import Proxies, draw_number, offer_body

SNOWFLAKE_REQUESTS = 12.9  # of Snowflake's own broker, per rendezvous, with an SQS emulator on one machine
SNOWFLAKE_ANSWER_MS = 24  # of that broker, from sending the offer until the client's queue has the answer
WARM_UP = 10  # rendezvous before counting starts, without which cold starts would be included
HELD_MAX = 20  # each environment is a process of this machine
WITHIN_S = 560.0  # for all of it, which leaves half a minute to stop the cloud and clients within ten minutes
LOOK_UP_AFTER_S = 1.0  # also after each look-up that finds no queue
LOOK_UPS = 5
COLD_START_S = 4.0  # within a client's timeout
CLIENT_THREADS = 64
COUNTED = {"counters", "seen"}  # partitions of the table
ALONE, ALONE_EVERY_S = 10, 2.0  # rendezvous one by one
LEAST_ANSWERS = 2  # from which figures are computed
COUNTRIES = [f"{first}{second}" for first in "ABCDEFGHIJ" for second in "ABCDEFGHIJKLMNOPQRST"]  # two hundred
EVENTS, EVENTS_A_SECOND = 900, 30  # as many as ten rendezvous a second have
COUNTED_AFTER_S = 150.0  # the counters' window of two minutes, and what calls take
MARK = "0" * 24  # with which the addresses of these events begin
SEED = 7
T = TypeVar("T")
UNDER_LOAD, WITHOUT_LOAD = "under load", "without load"


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Offers at a steady rate, at random times, to `volunteers` whose polls aren't held.

    First some offers come one by one, to `proxies` whose polls are held: enough that an offer finds one even after this
    machine was busy for a second. Volunteers begin within `ramp_s`, because a new site holds polls, each in a process.
    In the first `known_after_s` of offers the site counts volunteers and demand; then offers continue for `seconds`.
    """

    rate: float = 3.0
    seconds: float = 60.0
    proxies: int = 20
    volunteers: int = 400
    ramp_s: float = 75.0
    known_after_s: float = 45.0


STEADY = Load()


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The results of a run. `requests` include those of events; `answer_ms` has an entry for each rendezvous.

    `looked_again` counts the look-ups of clients that found no queue yet. An offer without a proxy has no `answer_ms`,
    and None in `outcomes`, which are in the order of offers; its requests count. Each of the `unswept` queues and their
    offers counts as one more request and one more write, as if it were swept.
    """

    answer_ms: Sequence[float]
    outcomes: Sequence[float | None]
    looked_again: int
    polls: int
    requests: Sequence[SqsRequest]
    units: Sequence[Units]
    unswept: int

    @property
    def idle_polls(self) -> int:
        """The receives of proxies' held polls that got no offer."""
        return sum((r.action == "ReceiveMessage") - (r.action == "SendMessage") for r in self.requests if of_mailbox(r))

    @property
    def requests_per_rendezvous(self) -> float:
        """All requests per rendezvous, except those of idle polls, and those that concern no queue."""
        made = sum(bool(each.queue) for each in self.requests) + self.unswept
        return (made - self.idle_polls) / len(self.answer_ms)

    @property
    def by_action(self) -> Mapping[str, float]:
        """Return the requests per rendezvous, by action."""
        counted = by_action(iter(self.requests))
        return {action: number / len(self.answer_ms) for action, number in counted.most_common()}

    def units_per_rendezvous(self, kind: str) -> float:
        """Return the write or read units per rendezvous, without counting events, and without idle polls' queries."""
        own = sum(each.units for each in self.units if each.kind == kind and each.partition not in COUNTED)
        own += self.unswept if kind == WRITE else 0
        return own / len(self.answer_ms) - (self.idle_looks if kind == READ else 0.0)

    @property
    def idle_looks(self) -> float:
        """The read units per rendezvous with which polls without a client query the waiting offers."""
        looks = sum(each.units for each in self.units if each.kind == READ and each.partition == "waiting")
        return looks * (1 - len(self.answer_ms) / max(self.polls, len(self.answer_ms))) / len(self.answer_ms)


def main(
    *,
    rate: Annotated[float, typer.Option(help="Rendezvous per second.")] = STEADY.rate,
    seconds: Annotated[float, typer.Option(help="Seconds for which offers are sent.")] = STEADY.seconds,
    held: Annotated[bool, typer.Option("--held", help="Let polls wait under load, too.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON on the last line, too.")] = False,
) -> None:
    """Measure requests and latency, and compare."""
    console, found = Console(stderr=True), Found(ends_at_s=time.monotonic() + WITHIN_S)
    cloud = start_counting(BUILD / "bench-cloud")
    try:
        with console.status("deploying") as status:
            limit, polls = ("min", 2 * STEADY.proxies) if held else ("max", HELD_MAX)
            cloud = Deployer(
                cloud=cloud,
                context={f"sluice.rendezvous.held_proxies_{limit}": polls},
                progress=status.update,
            ).deploy(DEFAULT_SITE)
            offers = replace(STEADY, rate=rate, seconds=seconds)
            asyncio.run(measure(cloud, offers, found, held=held, progress=status.update))
            runs = {name: offered.read(cloud, found.missing) for name, offered in found.offered.items()}
            runs = {name: run for name, run in runs.items() if len(run.answer_ms) >= LEAST_ANSWERS}
            counting = units_of_counting(cloud, found)
    finally:
        cloud.stop()
    for name, run in runs.items():
        for action, number in run.by_action.items():
            console.print(f"{number:8.3f}  {action}, {name}")
    for missing in found.missing:
        console.print(f"didn't happen: {missing}")
    done = figures(runs, settled_offers=round(rate * seconds)) | of_counting(counting) | of_sequence(found.in_sequence)
    report(f"Rendezvous at {rate:g}/s", done, as_json=as_json)
    sys.stdout.flush()
    os._exit(1 if found.missing else 0)  # an exit would wait for clients' and other threads


@dataclass(slots=True, kw_only=True)
class Found:
    """What was done so far, and what didn't happen by `ends_at_s` of the monotonic clock."""

    ends_at_s: float
    in_sequence: float | None = None
    offered: dict[str, "Offered"] = field(default_factory=dict)
    told: int = 0  # events for counting
    told_at_s: float | None = None  # when the last of them was recorded
    missing: list[str] = field(default_factory=list)


async def measure(cloud: Cloud, load: Load, found: Found, *, held: bool, progress: Callable[[str], None]) -> None:
    """Measure a load, after some rendezvous one by one, with everything that follows from them."""
    doing = "all of it"

    def begin(phase: str) -> None:
        nonlocal doing
        doing = phase
        progress(phase)

    try:
        async with asyncio.timeout_at(asyncio.get_running_loop().time() + found.ends_at_s - time.monotonic()):
            await _measure(cloud, load, found, held=held, begin=begin)
    except TimeoutError:
        found.missing.append(f"{doing}, and what follows it")


async def _measure(cloud: Cloud, load: Load, found: Found, *, held: bool, begin: Callable[[str], None]) -> None:
    site = SiteAccess(cloud, DEFAULT_SITE)
    begin("calls in sequence")
    found.in_sequence = await run_in_thread(partial(calls_in_sequence, site))
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        proxies = Proxies(session, site.deployment.broker_url)
        begin("starting the functions")
        await run_in_thread(partial(declare, site))
        await asyncio.gather(*(proxies.poll() for _ in range(load.proxies)), return_exceptions=True)
        client = Client(site)
        run_of = partial(counted, cloud, client, proxies)
        async with running([proxies.serve() for _ in range(load.proxies)]):
            await asyncio.gather(*(client.rendezvous(look_up_after_s=COLD_START_S) for _ in range(WARM_UP)))
            await asyncio.sleep(1)  # the last warm-up trigger deletes its messages
            begin("some one by one")
            found.offered[WITHOUT_LOAD] = await run_of(lambda: one_by_one(client))
            if held:
                begin(f"{load.rate:g} rendezvous a second")
                held_load = partial(at_rate, client.rendezvous, rate=load.rate, seconds=load.seconds)
                found.offered[UNDER_LOAD] = await run_of(held_load)
        if not held:
            async with running(late(proxies, number, load) for number in range(load.volunteers)):
                begin("volunteers begin, events are recorded")
                events = asyncio.create_task(run_in_thread(partial(record_events, site, found)))
                await asyncio.sleep(load.ramp_s)
                await events
                begin(f"{load.rate:g} rendezvous a second")
                seconds = load.known_after_s + load.seconds
                steady_load = partial(at_rate, client.rendezvous, rate=load.rate, seconds=seconds)
                found.offered[UNDER_LOAD] = await run_of(steady_load)
        else:
            await run_in_thread(partial(record_events, site, found))
    begin("the sweep of answer queues")
    while any(offered.list_unswept(cloud.request_log) for offered in found.offered.values()):  # noqa: ASYNC110 - a file
        await asyncio.sleep(1)
    begin("the counting of events")
    await asyncio.sleep((found.told_at_s or 0.0) + COUNTED_AFTER_S - time.monotonic())


@asynccontextmanager
async def running(works: Iterable[Coroutine[None, None, None]]) -> AsyncIterator[None]:
    """Run proxies during the block."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def late(proxies: Proxies, number: int, load: Load) -> None:
    """Run one of the load's volunteers from its start time on."""
    await asyncio.sleep(load.ramp_s * number / load.volunteers)
    await proxies.obey(random=random.Random(number))


@dataclass(frozen=True, slots=True, kw_only=True)
class Offered:
    """Offers that were made in a part of the logs. Their queues are swept later."""

    replies: Sequence[float | None]
    looked_again: int
    errors: Sequence[str]
    polls: int
    offset: int
    units_offset: int
    ended_at_ms: float

    def read(self, cloud: Cloud, missing: list[str]) -> Run:
        """Read what these offers took, and say which of their queues aren't swept."""
        log = cloud.request_log
        mine, unswept = self.list_queues(log), self.list_unswept(log)
        if self.errors:
            missing.append(f"{len(self.errors)} of {len(self.replies)} rendezvous, as {self.errors[0]}")
        if unswept:
            missing.append(f"the sweep of {len(unswept)} of {len(mine)} answer queues")
        requests = [
            each
            for each in read_requests(log, offset=self.offset)
            if (each.queue in mine or not each.queue.startswith(ANSWER_QUEUE_PREFIX))
            and (each.at_ms < self.ended_at_ms or (each.action == "DeleteQueue" and each.queue in mine))
        ]
        clients = {queue.removeprefix(ANSWER_QUEUE_PREFIX) for queue in mine}
        # Polls continue after these offers, and other offers are swept meanwhile.
        units = [
            each
            for each in read_units(unit_log(cloud), offset=self.units_offset)
            if (
                each.sort.partition("#")[2] in clients
                if each.partition == "offers" and each.sort
                else each.at_ms < self.ended_at_ms
            )
        ]
        return Run(
            answer_ms=[reply for reply in self.replies if reply is not None],
            outcomes=self.replies,
            looked_again=self.looked_again,
            polls=self.polls,
            requests=requests,
            units=units,
            unswept=len(unswept),
        )

    def list_queues(self, log: Path) -> Collection[str]:
        """List the answer queues that were created for these offers."""
        created = read_requests(log, offset=self.offset)
        return {each.queue for each in created if each.action == "CreateQueue" and self._is_answer_queue(each)}

    def _is_answer_queue(self, request: SqsRequest) -> bool:
        return request.queue.startswith(ANSWER_QUEUE_PREFIX) and request.at_ms < self.ended_at_ms

    def list_unswept(self, log: Path) -> Collection[str]:
        """List those that the sweeper hasn't deleted yet."""
        made = read_requests(log, offset=self.offset)
        return {*self.list_queues(log)} - {each.queue for each in made if each.action == "DeleteQueue"}


async def counted(
    cloud: Cloud, client: "Client", proxies: Proxies, offer: Callable[[], Awaitable[list[float | None]]]
) -> Offered:
    """Let clients send offers, and note where in the logs they are."""
    client.looked_again, client.errors, polls = 0, [], proxies.statuses.total()
    offset, units_offset = cloud.request_log.stat().st_size, unit_log(cloud).stat().st_size
    replies = await offer()
    return Offered(
        replies=replies,
        looked_again=client.looked_again,
        errors=client.errors,
        polls=proxies.statuses.total() - polls,
        offset=offset,
        units_offset=units_offset,
        ended_at_ms=time.time() * 1000,
    )


async def one_by_one(client: "Client") -> list[float | None]:
    """Return the results of rendezvous that don't overlap."""
    replies = []
    for _ in range(ALONE):
        replies.append(await client.rendezvous())
        await asyncio.sleep(ALONE_EVERY_S)
    return replies


async def run_in_thread(call: Callable[[], T]) -> T:
    """Run a call in a thread of its own, which nothing waits for when the time is over."""
    return await asyncio.get_running_loop().run_in_executor(ThreadPoolExecutor(1), call)


def record_events(site: SiteAccess, found: Found) -> None:
    """Record events of all countries, each by itself, as functions do."""
    draw = random.Random(SEED)
    client = site.connection.client("dynamodb")
    publisher = TableEventPublisher(
        table=site.deployment.table_name, site="here", client=lambda: client, now_ms=now_ms, new_id=new_id
    )
    for number in range(EVENTS):
        found.told += 1 - publisher.publish([event(number, country=draw.choice(COUNTRIES))])
        time.sleep(1 / EVENTS_A_SECOND)
    found.told_at_s = time.monotonic()


def units_of_counting(cloud: Cloud, found: Found) -> float | None:
    """Return the write units for each of these events. None if they aren't all counted yet."""
    if found.told_at_s is None or time.monotonic() < found.told_at_s + COUNTED_AFTER_S:
        found.missing.append("the counting of all events")
        return None
    counted_units = (each for each in read_units(unit_log(cloud)) if each.partition in COUNTED and each.kind == WRITE)
    # All other events are of this machine's address, which has no country and isn't counted.
    mine = {*COUNTRIES}
    return (
        sum(u.units for u in counted_units if u.sort.rpartition("|")[2] in mine or u.sort.startswith(MARK)) / found.told
    )


def event(number: int, *, country: str) -> Event:
    """Build one of a rendezvous' three events; each poll has another address."""
    at_ms, id_ = now_ms(), derive_event_id("bench", new_id(), at_ms=now_ms())
    if number % 3 == 0:
        return PollEvent(
            id=id_, at_ms=at_ms, outcome="matched", country=country, proxy_type="webext", address=f"{MARK}{number:08x}"
        )
    if number % 3 == 1:
        return AnswerEvent(id=id_, at_ms=at_ms, outcome="success", country=country, proxy_type="webext")
    return OfferEvent(id=id_, at_ms=at_ms, outcome="matched", country=country, method="sqs")


def of_counting(units: float | None) -> dict[str, Figure]:
    """Return the figure's key for programs."""
    name = f"DynamoDB write units per counted event, {len(COUNTRIES)} countries"
    return {} if units is None else {"counter_write_units_per_event": Figure(name=name, value=units, limit=4)}


def of_sequence(calls: float | None) -> dict[str, Figure]:
    """Return the figure's key for programs."""
    name = "calls in sequence, from an offer to its answer's send, with a held poll"
    return {} if calls is None else {"calls_in_sequence": Figure(name=name, value=calls, limit=5)}


def declare(site: SiteAccess) -> None:
    """Create the exchange of events, as the links function would within a minute."""
    ControlClient.connect(site.connection, FEDERATION).ask(SweepSite())


def of_mailbox(request: SqsRequest) -> bool:
    """Return whether the request concerns the mailbox of a function that holds a poll."""
    return request.queue.startswith(MAILBOX_PREFIX)


class Client:
    """Makes any number of rendezvous, with the steps of the real client: three requests if nothing fails."""

    def __init__(self, site: SiteAccess) -> None:
        """Use the deployed client's credentials."""
        credentials = ClientCredentials.parse(site.sqscreds)
        self._sqs = open_client(credentials, region=site.site.region, endpoint_url=site.cloud.endpoint)
        self._offers_queue_url = site.deployment.offers_queue_url
        self._threads = ThreadPoolExecutor(CLIENT_THREADS)
        self.looked_again = 0
        self.errors: list[str] = []

    async def rendezvous(self, *, look_up_after_s: float = LOOK_UP_AFTER_S) -> float | None:
        """Return the milliseconds from sending the offer until the client's queue has the answer; None if denied.

        Also None if a request failed, which is in `errors`.
        """
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, self._rendezvous, look_up_after_s)
        except (BotoCoreError, ClientError) as error:
            self.errors.append(repr(error))
            return None

    def _rendezvous(self, look_up_after_s: float) -> float | None:
        client_id = generate_client_id()
        sent_at_ms = time.time_ns() / 1e6
        self._sqs.send_message(
            QueueUrl=self._offers_queue_url,
            MessageBody=offer_body(draw_number()),
            MessageAttributes={"ClientID": {"DataType": "String", "StringValue": client_id}},
        )
        url = self._look_up(ANSWER_QUEUE_PREFIX + client_id, look_up_after_s)
        if url is None:
            return None
        received = self._sqs.receive_message(QueueUrl=url, WaitTimeSeconds=20, AttributeNames=["SentTimestamp"])
        [message] = received.get("Messages") or [{"Body": "{}"}]
        if "answer" not in json.loads(message["Body"]):
            return None
        return int(message["Attributes"]["SentTimestamp"]) - sent_at_ms

    def _look_up(self, name: str, after_s: float) -> str | None:
        for _ in range(LOOK_UPS):
            time.sleep(after_s)
            try:
                return self._sqs.get_queue_url(QueueName=name)["QueueUrl"]
            except self._sqs.exceptions.QueueDoesNotExist:
                self.looked_again += 1
        return None  # the offer reached a broker too late


async def at_rate(work: Callable[[], Awaitable[float | None]], *, rate: float, seconds: float) -> list[float | None]:
    """Start `work` at random times, as independent clients would (a Poisson process); return the results."""
    draw = random.Random(SEED)
    begun, ends_at = [], time.monotonic() + seconds
    while time.monotonic() < ends_at:
        begun.append(asyncio.ensure_future(work()))
        await asyncio.sleep(draw.expovariate(rate))
    return await asyncio.gather(*begun)


def figures(runs: Mapping[str, Run], *, settled_offers: int) -> dict[str, Figure]:
    """Return the figures for programs, by key. Latencies are of the last offers only, all other figures of all."""

    def requests(run: Run, how: str, limit: float) -> Figure:
        return Figure(
            name=f"SQS requests per rendezvous {how}, with its events",
            value=run.requests_per_rendezvous,
            limit=limit,
            ratio=run.requests_per_rendezvous / SNOWFLAKE_REQUESTS,
            compared_to=f"Snowflake's broker, {SNOWFLAKE_REQUESTS}",
        )

    found: dict[str, Figure] = {}
    if UNDER_LOAD in runs:
        load = runs[UNDER_LOAD]
        settled, before = load.outcomes[-settled_offers:], load.outcomes[:-settled_offers]
        answer_ms = [outcome for outcome in settled if outcome is not None]
        hundredths = statistics.quantiles(answer_ms, n=100, method="inclusive")
        found |= {
            "sqs_requests_per_rendezvous": requests(load, "under load", 9.5),
            "sqs_requests_idle_polls": Figure(
                name="SQS requests of unmatched polls, per rendezvous", value=load.idle_polls / len(load.answer_ms)
            ),
            "idle_polls": Figure(name="unmatched polls per rendezvous", value=load.polls / len(load.answer_ms) - 1),
            "read_units_idle_polls": Figure(
                name="DynamoDB read units of unmatched polls, per rendezvous", value=load.idle_looks
            ),
            "write_units_per_rendezvous": Figure(
                name="DynamoDB write units per rendezvous", value=load.units_per_rendezvous(WRITE), limit=7
            ),
            "read_units_per_rendezvous": Figure(
                name="DynamoDB read units per rendezvous", value=load.units_per_rendezvous(READ), limit=4
            ),
            "answer_ms_p50": Figure(
                name="offer to answer, median, ms",
                value=hundredths[49],
                ratio=hundredths[49] / SNOWFLAKE_ANSWER_MS,
                compared_to=f"Snowflake's broker, {SNOWFLAKE_ANSWER_MS}, in one process",
            ),
            "answer_ms_p99": Figure(name="offer to answer, 99th percentile, ms", value=hundredths[98], limit=1000),
            "denied": Figure(name="offers that found no proxy", value=len(settled) - len(answer_ms), limit=0),
            "denied_before": Figure(name="offers that found no proxy during the start", value=before.count(None)),
            "looked_again": Figure(name="lookups of queues that didn't exist yet", value=load.looked_again),
        }
    if WITHOUT_LOAD in runs:
        alone = runs[WITHOUT_LOAD]
        units = "DynamoDB {} units per rendezvous without load, with polls"
        found |= {
            "sqs_requests_per_rendezvous_alone": requests(alone, "alone", 11.0),
            "write_units_per_rendezvous_alone": Figure(
                name=units.format("write"), value=alone.units_per_rendezvous(WRITE)
            ),
            "read_units_per_rendezvous_alone": Figure(
                name=units.format("read"), value=alone.units_per_rendezvous(READ)
            ),
            "answer_ms_p50_alone": Figure(
                name="offer to answer without load, to a waiting poll, median, ms",
                value=statistics.median(alone.answer_ms),
                ratio=statistics.median(alone.answer_ms) / SNOWFLAKE_ANSWER_MS,
                compared_to=f"Snowflake's broker, {SNOWFLAKE_ANSWER_MS}",
            ),
        }
    return found


if __name__ == "__main__":
    typer.run(main)
