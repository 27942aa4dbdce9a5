"""Measures the cost and the latency of a rendezvous over SQS on the embedded cloud, with all requests counted.

`python -m benchmarks.rendezvous [--json]` first sends some offers one by one, to proxies whose polls are all held and
that answer at once. Then it sends offers at a steady rate, at random times, to so many proxies that no poll is held;
`--held` uses the first proxies for these too. Clients use the deployed credentials. Both parts end when the sweeper has
deleted the last answer queue, because its requests count too. A rendezvous includes the recording of its events; idle
polls and counting are separate figures, the latter with events from all countries.
"""

import asyncio
import json
import random
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated

import aiohttp
import typer
from rich.console import Console

from benchmarks.counting_cloud import start_counting, unit_log
from benchmarks.report import Figure, report
from benchmarks.units import READ, WRITE, Units, read_units
from sluice.aws.clients import new_id, now_ms
from sluice.aws.rendezvous.clients import ClientCredentials, open_client
from sluice.aws.rendezvous.event_publisher import TableEventPublisher
from sluice.federation.operations import SweepSite
from sluice.local.cloud import BUILD, Cloud
from sluice.local.deployer import Deployer
from sluice.local.sites import DEFAULT_SITE
from sluice.operator.functions import FEDERATION, ControlClient
from sluice.peers.methods import draw_client_id
from sluice.rendezvous.counts.events import AnswerEvent, Event, OfferEvent, PollEvent, event_id
from sluice.rendezvous.mailbox import PREFIX as MAILBOX_PREFIX
from sluice.rendezvous.protocol.messages import ANSWER_QUEUE_PREFIX
from tests.site_access import SiteAccess
from tests.sqs_requests import SqsRequest, by_action, read_requests
from tests.traffic import Proxies, draw_number, offer_body

SNOWFLAKE_REQUESTS = 12.9  # of Snowflake's own broker, per rendezvous, with an SQS emulator on one machine
SNOWFLAKE_ANSWER_MS = 24  # of that broker, from sending the offer until the client's queue has the answer
WARM_UP = 10  # rendezvous before counting starts, without which cold starts would be included
HELD_MAX = 20  # each environment is a process of this machine
SWEPT_WITHIN_S = 300  # two minutes of age, a minute's schedule, and as much in reserve
LOOK_UP_AFTER_S = 1.0  # also after each look-up that finds no queue
LOOK_UPS = 5
COLD_START_S = 4.0  # within a client's timeout
COUNTED_WITHIN_S = 240
CLIENT_THREADS = 64
COUNTED = {"counters", "seen"}  # partitions of the table
SWEPT = {"offers"} | COUNTED
ALONE, ALONE_EVERY_S = 10, 3.0  # rendezvous one by one
COUNTRIES = [f"{first}{second}" for first in "ABCDEFGHIJ" for second in "ABCDEFGHIJKLMNOPQRST"]  # two hundred
EVENTS, EVENTS_A_SECOND = 900, 30  # as many as ten rendezvous a second have
QUIET_S = 150.0  # after the counters' window of two minutes nothing remains to be counted
SEED = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Offers at a steady rate, at random times, to `volunteers` whose polls aren't held.

    First some offers come one by one, to `proxies` whose polls are held: enough that an offer finds one even after this
    machine was busy for a second. Volunteers begin within `ramp_s`, because a new site holds polls, each in a process.
    After `known_after_s` of offers the site has counted volunteers and demand; then offers continue for `seconds`.
    """

    rate: float = 3.0
    seconds: float = 60.0
    proxies: int = 20
    volunteers: int = 400
    ramp_s: float = 240.0
    known_after_s: float = 120.0


STEADY = Load()


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The results of a run. `requests` include those of events; `answer_ms` has an entry for each rendezvous.

    `looked_again` counts the look-ups of clients that found no queue yet. An offer without a proxy has no `answer_ms`,
    and None in `outcomes`, which are in the order of offers; its requests count.
    """

    answer_ms: Sequence[float]
    outcomes: Sequence[float | None]
    looked_again: int
    polls: int
    requests: Sequence[SqsRequest]
    units: Sequence[Units]

    @property
    def idle_polls(self) -> int:
        """The receives of proxies' held polls that got no offer."""
        return sum((r.action == "ReceiveMessage") - (r.action == "SendMessage") for r in self.requests if of_mailbox(r))

    @property
    def requests_per_rendezvous(self) -> float:
        """All requests per rendezvous, except those of idle polls, and those that concern no queue."""
        return (sum(bool(each.queue) for each in self.requests) - self.idle_polls) / len(self.answer_ms)

    @property
    def by_action(self) -> Mapping[str, float]:
        """Return the requests per rendezvous, by action."""
        counted = by_action(iter(self.requests))
        return {action: number / len(self.answer_ms) for action, number in counted.most_common()}

    def units_per_rendezvous(self, kind: str) -> float:
        """Return the write or read units per rendezvous, without counting events, and without idle polls' queries."""
        own = sum(each.units for each in self.units if each.kind == kind and each.partition not in COUNTED)
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
    console = Console(stderr=True)
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
            load, alone = asyncio.run(measure(cloud, offers, held=held, progress=status.update))
            counting = units_of_counting(cloud, progress=status.update)
    finally:
        cloud.stop()
    for run, title in ((load, "under load"), (alone, "without load")):
        for action, number in run.by_action.items():
            console.print(f"{number:8.3f}  {action}, {title}")
    title = f"Rendezvous: {len(load.answer_ms)} at {rate:g}/s"
    report(
        title,
        figures(load, alone, settled_offers=round(rate * seconds)) | of_counting(counting),
        as_json=as_json,
    )


async def measure(cloud: Cloud, load: Load, *, held: bool, progress: Callable[[str], None]) -> tuple[Run, Run]:
    """Measure a load, after some rendezvous one by one, with everything that follows from them."""
    site = SiteAccess(cloud, DEFAULT_SITE)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        proxies = Proxies(session, site.deployment.broker_url)
        progress("starting the functions")
        await asyncio.to_thread(declare, site)
        await asyncio.gather(*(proxies.poll() for _ in range(load.proxies)), return_exceptions=True)
        await until_counted(session, site.deployment.broker_url)
        client = Client(site)
        run_of = partial(counted, cloud, client, proxies, progress)
        steadily = f"{load.rate:g} rendezvous a second"
        async with running([proxies.serve() for _ in range(load.proxies)]):
            await asyncio.gather(*(client.rendezvous(look_up_after_s=COLD_START_S) for _ in range(WARM_UP)))
            await asyncio.sleep(1)  # the last warm-up trigger deletes its messages
            progress("some one by one")
            alone = await run_of(lambda: one_by_one(client))
            if held:
                progress(steadily)
                return await run_of(lambda: at_rate(client.rendezvous, rate=load.rate, seconds=load.seconds)), alone
        async with running(late(proxies, number, load) for number in range(load.volunteers)):
            await asyncio.sleep(load.ramp_s)
            progress(steadily)
            seconds = load.known_after_s + load.seconds
            return await run_of(lambda: at_rate(client.rendezvous, rate=load.rate, seconds=seconds)), alone


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


async def counted(
    cloud: Cloud,
    client: "Client",
    proxies: Proxies,
    progress: Callable[[str], None],
    offer: Callable[[], Awaitable[list[float | None]]],
) -> Run:
    """Let clients send offers, and count all requests until their queues are swept."""
    client.looked_again = 0
    offset, units_offset, polls = (
        cloud.request_log.stat().st_size,
        unit_log(cloud).stat().st_size,
        proxies.statuses.total(),
    )
    replies = await offer()
    ended_at_ms, polls = time.time() * 1000, proxies.statuses.total() - polls
    progress(f"waiting until {len(replies)} answer queues are swept")
    made = await until_swept(cloud.request_log, offset)
    # Polls continue meanwhile, but the sweeper's requests belong only to these offers.
    of_run = [each for each in made if each.at_ms < ended_at_ms or each.action == "DeleteQueue"]
    units = [
        each
        for each in read_units(unit_log(cloud), offset=units_offset)
        if each.at_ms < ended_at_ms or each.partition in SWEPT
    ]
    answer_ms = [reply for reply in replies if reply is not None]
    return Run(
        answer_ms=answer_ms,
        outcomes=replies,
        looked_again=client.looked_again,
        polls=polls,
        requests=of_run,
        units=units,
    )


async def one_by_one(client: "Client") -> list[float | None]:
    """Return the results of rendezvous that don't overlap."""
    replies = []
    for _ in range(ALONE):
        replies.append(await client.rendezvous())
        await asyncio.sleep(ALONE_EVERY_S)
    return replies


def units_of_counting(cloud: Cloud, *, progress: Callable[[str], None]) -> float:
    """Record events of all countries, each by itself, as functions do. Returns the write units for each."""
    draw = random.Random(SEED)
    offset = unit_log(cloud).stat().st_size
    site = SiteAccess(cloud, DEFAULT_SITE)
    client = site.connection.client("dynamodb")
    teller = TableEventPublisher(
        table=site.deployment.table_name, site="here", client=lambda: client, now_ms=now_ms, new_id=new_id
    )
    for number in range(EVENTS):
        progress(f"telling of events: {number} of {EVENTS}")
        teller.publish([event(number, country=draw.choice(COUNTRIES))])
        time.sleep(1 / EVENTS_A_SECOND)
    progress("waiting until they are counted")
    units: list[Units] = []
    while True:
        time.sleep(QUIET_S)
        before, units = units, [u for u in read_units(unit_log(cloud), offset=offset) if u.partition in COUNTED]
        if len(units) == len(before):
            return sum(each.units for each in units if each.kind == WRITE) / EVENTS


def event(number: int, *, country: str) -> Event:
    """Build one of a rendezvous' three events; each poll has another address."""
    at_ms, id_ = now_ms(), event_id("bench", new_id(), at_ms=now_ms())
    if number % 3 == 0:
        return PollEvent(
            id=id_, at_ms=at_ms, outcome="matched", country=country, proxy_type="webext", address=f"{number:032x}"
        )
    if number % 3 == 1:
        return AnswerEvent(id=id_, at_ms=at_ms, outcome="success", country=country, proxy_type="webext")
    return OfferEvent(id=id_, at_ms=at_ms, outcome="matched", country=country, method="sqs")


def of_counting(units: float) -> dict[str, Figure]:
    """Return the figure's key for programs."""
    name = f"DynamoDB write units per counted event, {len(COUNTRIES)} countries"
    return {"counter_write_units_per_event": Figure(name=name, value=units, limit=4)}


def declare(site: SiteAccess) -> None:
    """Create the exchange of events, as the links function would within a minute."""
    ControlClient.connect(site.connection, FEDERATION).ask(SweepSite())


async def until_counted(session: aiohttp.ClientSession, broker_url: str) -> None:
    """Wait until a first event was counted, so that the counters function runs."""
    deadline = time.monotonic() + COUNTED_WITHIN_S
    while time.monotonic() < deadline:
        async with session.get(f"{broker_url}prometheus") as response:
            if "snowflake_proxy_total" in await response.text():
                return
        await asyncio.sleep(1)
    raise TimeoutError(f"no event was counted in {COUNTED_WITHIN_S} s")


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

    async def rendezvous(self, *, look_up_after_s: float = LOOK_UP_AFTER_S) -> float | None:
        """Return the milliseconds from sending the offer until the client's queue has the answer; None if denied."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._rendezvous, look_up_after_s)

    def _rendezvous(self, look_up_after_s: float) -> float | None:
        client_id = draw_client_id()
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


async def until_swept(log: Path, offset: int) -> Sequence[SqsRequest]:
    """Return the requests since `offset`, once the answer queues created since then are deleted."""
    made = {request.queue for request in read_requests(log) if request.action == "CreateQueue"}
    later = {request.queue for request in read_requests(log, offset=offset) if request.action == "CreateQueue"}
    mine = {queue for queue in later if queue.startswith(ANSWER_QUEUE_PREFIX)}
    before = {queue for queue in made - later if queue.startswith(ANSWER_QUEUE_PREFIX)}
    deadline = time.monotonic() + SWEPT_WITHIN_S
    while True:
        requests = [request for request in read_requests(log, offset=offset) if request.queue not in before]
        left = mine - {request.queue for request in requests if request.action == "DeleteQueue"}
        if not left:
            return requests
        if time.monotonic() > deadline:
            raise TimeoutError(f"{len(left)} of {len(mine)} answer queues aren't swept in {SWEPT_WITHIN_S} s")
        await asyncio.sleep(1)


def figures(load: Run, alone: Run, *, settled_offers: int) -> dict[str, Figure]:
    """Return the figures for programs, by key. Latencies are of the last offers only, all other figures of all."""
    settled = load.outcomes[-settled_offers:]
    answer_ms = [outcome for outcome in settled if outcome is not None]
    hundredths = statistics.quantiles(answer_ms, n=100, method="inclusive")
    before = load.outcomes[:-settled_offers]

    def requests(run: Run, how: str, limit: float) -> Figure:
        return Figure(
            name=f"SQS requests per rendezvous {how}, with its events",
            value=run.requests_per_rendezvous,
            limit=limit,
            ratio=run.requests_per_rendezvous / SNOWFLAKE_REQUESTS,
            compared_to=f"Snowflake's broker, {SNOWFLAKE_REQUESTS}",
        )

    return {
        "sqs_requests_per_rendezvous": requests(load, "under load", 9.5),
        "sqs_requests_per_rendezvous_alone": requests(alone, "alone", 11.0),
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
        "write_units_per_rendezvous_alone": Figure(
            name="DynamoDB write units per rendezvous without load, with polls", value=alone.units_per_rendezvous(WRITE)
        ),
        "read_units_per_rendezvous_alone": Figure(
            name="DynamoDB read units per rendezvous without load, with polls", value=alone.units_per_rendezvous(READ)
        ),
        "answer_ms_p50": Figure(
            name="offer to answer, median, ms",
            value=hundredths[49],
            ratio=hundredths[49] / SNOWFLAKE_ANSWER_MS,
            compared_to=f"Snowflake's broker, {SNOWFLAKE_ANSWER_MS}, in one process",
        ),
        "answer_ms_p50_alone": Figure(
            name="offer to answer without load, to a waiting poll, median, ms",
            value=statistics.median(alone.answer_ms),
            ratio=statistics.median(alone.answer_ms) / SNOWFLAKE_ANSWER_MS,
            compared_to=f"Snowflake's broker, {SNOWFLAKE_ANSWER_MS}",
        ),
        "answer_ms_p99": Figure(name="offer to answer, 99th percentile, ms", value=hundredths[98], limit=1000),
        "denied": Figure(name="offers that found no proxy", value=len(settled) - len(answer_ms), limit=0),
        "denied_before": Figure(name="offers that found no proxy during the start", value=before.count(None)),
        "looked_again": Figure(name="lookups of queues that didn't exist yet", value=load.looked_again),
    }


if __name__ == "__main__":
    typer.run(main)
