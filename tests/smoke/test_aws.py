"""What only AWS can answer, in order: what provokes faults comes after what looks for alarms.

The first word of each name is what documents call the check, for `make smoke ARGS='-k …'`.
"""

import asyncio
import json
import re
import secrets
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any

import aiohttp
import pytest
from deltalake import DeltaTable

from sluice.aws.clients import calls
from sluice.aws.rendezvous.clients import open_client, sqscreds
from sluice.aws.splitting.queues import SplitQueues
from sluice.building import interpreters
from sluice.cli.terminal import print_note
from sluice.errors import CallFailed
from sluice.federation.links.states import Command
from sluice.federation.operations import BridgeView, CommandBridge
from sluice.local.jobs import JOBS_FOLDER, NoSpark
from sluice.operator.functions import SPLITTING, ControlClient
from sluice.operator.logs import FunctionLogs
from sluice.operator.pipelines import PipelineClient, connect_pipeline
from sluice.operator.sessions import open_session
from sluice.peers.channels import Network
from sluice.peers.client import Attempt, AttemptPlan, attempt
from sluice.peers.methods import RendezvousMethod, open_http_method, open_sqs_method
from sluice.peers.volunteer import Volunteer, VolunteerLimits, serving
from sluice.pipeline.jobs import LAND
from sluice.pipeline.operations import DrainQueue, RunView, ShowPipeline
from sluice.pipeline.runs import ENDED, RunState
from sluice.rendezvous.protocol.ends import End
from sluice.rendezvous.protocol.matching import HOLD_MS, Nat
from sluice.splitting.filters.values import Filter, QueueFilter
from sluice.splitting.operations import ShowSplitting
from tests.deployed import send_all
from tests.e2e.federated import string
from tests.smoke.stages import LOOK_EVERY_S, ORDERS, PIPELINE, PLAIN, QUEUE, SmokeSite, Stages, until

limit = partial(pytest.mark.timeout, func_only=True)  # a check's own: deploying and destroying have theirs

PLAN = AttemptPlan(network=Network(loopback=True), payload_bytes=20_000)
LIMITS = VolunteerLimits(pause_s=1.0)
VOLUNTEERS = 2
CLIENTS = 4
OFFERED_WITHIN_S = 90.0  # the first offers may come while functions start
DENIED = "AccessDenied"  # SQS's code, whatever comes before and after it
EXCHANGE = "amq.topic"
SIZES = [256 * 1024, 1024 * 1024 - 4096]  # bytes; the larger is SQS's most, with metadata
QUIET_S = 3.0  # after the last message: none comes twice
MESSAGES = 50
PEOPLE = {"alice": 20, "bob": 10}  # and how many messages are theirs
OTHERS = 30
LANDED = 200
SWITCHED_WITHIN_S = 120.0
SPLIT_WITHIN_S = 120.0
STARTED_WITHIN_S = 480.0  # with the creation of the network's endpoints
LANDED_WITHIN_S = 840.0
MENDED_WITHIN_S = 300.0  # a deleted queue's name is taken for a minute, and what is missing is seen by the minute
CLOSED_WITHIN_S = 240.0
EMPTY_WITHIN_S = 90.0  # SQS's counts are a minute late
LOGGED_WITHIN_S = 60.0
COLD_MOST_MS = 3_000.0
RUNTIME = f"python{interpreters.LAMBDA_VERSION}"
# https://docs.aws.amazon.com/lambda/latest/dg/runtimes-update.html
STARTED = re.compile(r"INIT_START Runtime Version: python:(\S+)")
INIT = re.compile(r"Init Duration: ([\d.]+) ms")


# The rendezvous


@limit(300)
def test_offers_are_denied_without_a_proxy_and_answered_with_one(here: SmokeSite) -> None:
    async def offer() -> None:
        async with open_sqs_method(here.connection, here.deployment, sqscreds=sqscreds(here.credentials)) as method:
            await until_one(
                method, lambda tried: tried.detail == End.OFFER_DENIED.reply, "an offer is denied, without a proxy"
            )
            await all_are_answered(here, method)

    asyncio.run(offer())


@limit(180)
def test_https_carries_offers_too(here: SmokeSite) -> None:
    async def offer() -> None:
        async with open_http_method(here.deployment) as method:
            await all_are_answered(here, method)

    asyncio.run(offer())


async def all_are_answered(site: SmokeSite, method: RendezvousMethod) -> None:
    """Offer until one is answered, then let several clients offer at once, each again and again as Snowflake's does,
    until bytes came back to it through WebRTC.
    """
    async with aiohttp.ClientSession() as http:
        url = site.deployment.broker_url
        volunteer = partial(Volunteer, http, url, network=PLAN.network, nat=Nat.UNRESTRICTED, limits=LIMITS)
        async with serving(volunteer() for _ in range(VOLUNTEERS)):
            await until_one(method, lambda tried: tried.echoed, "an offer is answered")
            attempts = await asyncio.gather(
                *(until_one(method, lambda tried: tried.echoed, "each client is answered") for _ in range(CLIENTS))
            )
        # The volunteers' last polls are held on, and whom they meet nobody answers: not the next check's clients.
        await asyncio.sleep(HOLD_MS / 1000)
    times = sorted(tried.answered_ms for tried in attempts if tried.answered_ms is not None)
    print_note(f"{len(attempts)} answered in {times[0]:.0f} to {times[-1]:.0f} ms")


async def until_one(method: RendezvousMethod, is_so: Callable[[Attempt], bool], what: str) -> Attempt:
    """Offer again and again, and return the attempt that is so. Fails with what became of the last offer."""
    tried = None
    try:
        async with asyncio.timeout(OFFERED_WITHIN_S):
            while True:
                tried = await attempt(method, PLAN)
                if is_so(tried):
                    return tried
                await asyncio.sleep(LOOK_EVERY_S)
    except TimeoutError:
        pytest.fail(f"not within {OFFERED_WITHIN_S:g} s: {what}; the last one was {tried}")


@limit(60)
def test_stranger_with_a_clients_key_reads_nothing_and_publishes_nothing(here: SmokeSite) -> None:
    client = open_client(here.credentials, region=here.connection.region, endpoint_url=here.connection.endpoint_url)
    ingress = here.outputs["IngressUrl"]
    refused: Mapping[str, Callable[[], object]] = {
        "ReceiveMessage": lambda: client.receive_message(QueueUrl=here.deployment.offers_queue_url),
        "PurgeQueue": lambda: client.purge_queue(QueueUrl=here.deployment.offers_queue_url),
        "SendMessage": lambda: client.send_message(QueueUrl=ingress, MessageBody="stranger"),
    }
    for operation, call in refused.items():
        with pytest.raises(CallFailed, match=DENIED), calls(operation):
            call()


# Splitting


@limit(300)
def test_split_messages_reach_their_session_and_the_rest_the_main_queue(here: SmokeSite) -> None:
    control = ControlClient.connect(here.connection)
    [queue] = [view for view in control.ask(ShowSplitting()).queues if view.queue_id == QUEUE]
    owners = [name for name, number in {**PEOPLE, "others": OTHERS}.items() for _ in range(number)]
    mixed = [owner for start in range(7) for owner in owners[start::7]]  # neighbours are of different owners
    with ExitStack() as sessions:
        opened = {
            name: sessions.enter_context(
                open_session(
                    control, {QUEUE: QueueFilter(filter=Filter(attributes=(("user", f"^{name}$"),)))}, owner=name
                )
            )
            for name in PEOPLE
        }
        send_all(
            here.sqs,
            queue.source,
            [{"MessageBody": owner, "MessageAttributes": {"user": string(owner)}} for owner in mixed],
        )
        for name, number in PEOPLE.items():
            assert here.bodies(opened[name].queue_url(QUEUE), number) == [name] * number
        assert here.bodies(queue.main, OTHERS) == ["others"] * OTHERS


# Federation


class Routes:
    """From `stages.here` to `stages.there`, one in order and one not; laid when the first check asks."""

    def __init__(self, stages: Stages) -> None:
        self.here, self.there = stages.both
        self._names: dict[bool, str] = {}  # by whether they keep order

    def lay(self, *, fifo: bool) -> str:
        """The route, once it carries messages to its bound queue; its name."""
        if fifo not in self._names:
            queue = ORDERS if fifo else PLAIN
            self.there.bind(EXCHANGE, queue, f"{queue}.#")
            self._names[fifo] = self.there.pull(self.here, EXCHANGE, key=f"{queue}.#", fifo=fifo)
        return self._names[fifo]

    def publish(self, what: str, *, fifo: bool) -> list[str]:
        """Publish at the source; the messages' bodies."""
        bodies = [f"{what} {number}" for number in range(MESSAGES)]
        self.here.publish(EXCHANGE, f"{ORDERS if fifo else PLAIN}.new", bodies, fifo=fifo)
        return bodies

    def assert_arrived(self, bodies: list[str], *, fifo: bool) -> None:
        """Consume at the destination: each message once, and in order where that is asked for."""
        arrived = self.there.bodies(ORDERS if fifo else PLAIN, len(bodies), quiet_s=QUIET_S)
        assert (arrived if fifo else sorted(arrived)) == (bodies if fifo else sorted(bodies))

    def served(self) -> BridgeView:
        """The route that keeps order, as its source sees it."""
        [served] = [route for route in self.here.ask_site().bridges if route.served and route.fifo]
        return served

    def tell(self, what: Command, *, until_mapping_is: str) -> None:
        """Tell the route that keeps order, and wait for its event source mapping."""
        self.there.ask(CommandBridge(name=self.lay(fifo=True), command=what))
        queue = self.served().reads

        def is_switched() -> bool:
            mappings = self.here.contents.mappings()
            states = [mapping["State"] for mapping in mappings if mapping["EventSourceArn"].endswith(f":{queue}")]
            return states == [until_mapping_is]

        until(is_switched, f"the route's mapping is {until_mapping_is}", within_s=SWITCHED_WITHIN_S)


@pytest.fixture(scope="module")
def routes(stages: Stages) -> Routes:
    return Routes(stages)


@limit(180)
def test_sizes_up_to_what_sqs_takes_pass_an_exchange(here: SmokeSite) -> None:
    here.bind(EXCHANGE, PLAIN, "large")
    for size in SIZES:
        here.publish(EXCHANGE, "large", ["m" * size], fifo=False)
    assert sorted(len(body) for body in here.bodies(PLAIN, len(SIZES), quiet_s=QUIET_S)) == SIZES


@limit(480)
def test_bridge_carries_each_message_once_and_in_order(routes: Routes) -> None:
    for fifo in (True, False):
        routes.lay(fifo=fifo)
        routes.assert_arrived(routes.publish("bridged", fifo=fifo), fifo=fifo)


@limit(480)
def test_pause_and_resume_lose_nothing(routes: Routes) -> None:
    routes.tell(Command.PAUSE, until_mapping_is="Disabled")
    bodies = routes.publish("paused", fifo=True)
    routes.tell(Command.RESUME, until_mapping_is="Enabled")
    routes.assert_arrived(bodies, fifo=True)


# The pipeline


@limit(1_200)
def test_pipeline_lands_each_message_once(stages: Stages) -> None:
    site = stages.here
    folder = stages.cloud.folder / JOBS_FOLDER / site.stage if stages.cloud else None
    asked = connect_pipeline(site.connection, folder=folder, python=None)
    mark = secrets.token_hex(8)
    bodies = [json.dumps({"smoke": mark, "n": number}) for number in range(LANDED)]
    send_through_splitter(site, bodies)
    try:
        run = drained(asked)
    except NoSpark as error:
        pytest.skip(str(error))
    assert run.state is RunState.SUCCESS, f"{run.detail}\n{asked.read_log(run.run, lines=20)}"
    root = str(folder) if folder else f"s3://{site.output(PIPELINE, 'BucketName')}"
    table = DeltaTable(f"{root}/tables/messages", storage_options=None if folder else storage_options(site))
    rows = Counter(row["body"] for row in table.to_pyarrow_table(columns=["body"]).to_pylist() if mark in row["body"])
    assert rows == Counter(bodies)
    print_note(
        f"{LANDED} landed by a run of {((run.ended_at_ms or run.started_at_ms) - run.started_at_ms) / 1000:.0f} s"
    )


def send_through_splitter(site: SmokeSite, bodies: list[str]) -> None:
    """Returns when they are in the main queue, by SQS's own late count."""
    [queue] = [
        view for view in ControlClient.connect(site.connection).ask(ShowSplitting()).queues if view.queue_id == QUEUE
    ]
    send_all(site.sqs, queue.source, [{"MessageBody": body} for body in bodies])
    queues, main = SplitQueues(site.sqs, queue.source), queue.main.rsplit("/", 1)[1]
    until(lambda: queues.count(main) >= len(bodies), "all messages are in the main queue", within_s=SPLIT_WITHIN_S)


def drained(asked: PipelineClient) -> RunView:
    """Drains the queue; the run once it has ended."""
    before = {view.run for view in asked.ask(ShowPipeline()).runs}
    asked.ask(DrainQueue())

    def start() -> str | None:
        """The run may start minutes later, when the VPC endpoints are available."""
        runs = asked.ask(ShowPipeline()).runs
        return next((view.run for view in runs if view.job == LAND and view.run not in before), None)

    name = until(start, "a drain run is started", within_s=STARTED_WITHIN_S)

    def end() -> RunView | None:
        [run] = [view for view in asked.ask(ShowPipeline()).runs if view.run == name]
        return run if run.state in ENDED else None

    return until(end, f"run {name} has ended", within_s=LANDED_WITHIN_S)


def storage_options(site: SmokeSite) -> dict[str, str]:
    """Our credentials as delta-rs takes them: it reads no profiles.

    https://delta-io.github.io/delta-rs/integrations/object-storage/s3
    """
    credentials = site.connection.session.get_credentials()
    assert credentials
    frozen = credentials.get_frozen_credentials()
    options = {
        "AWS_REGION": site.connection.region,
        "AWS_ACCESS_KEY_ID": str(frozen.access_key),
        "AWS_SECRET_ACCESS_KEY": str(frozen.secret_key),
    }
    return options | ({"AWS_SESSION_TOKEN": str(frozen.token)} if frozen.token else {})


# The stages themselves


@limit(60)
def test_alarms_are_silent_after_what_a_site_does_every_day(stages: Stages) -> None:
    alarms = [alarm for site in stages.both for alarm in site.contents.alarms()]
    assert alarms
    assert {alarm["AlarmName"]: alarm.get("StateReason") for alarm in alarms if alarm["StateValue"] == "ALARM"} == {}


@limit(480)
def test_mend_makes_a_deleted_queue_anew(routes: Routes) -> None:
    routes.lay(fifo=True)
    before = routes.served()
    routes.here.sqs.delete_queue(QueueUrl=routes.here.contents.queues()[before.reads or ""])

    def is_mended() -> bool:
        shown = routes.served()
        return shown.repairs.number > before.repairs.number and shown.state == "Operational"

    until(is_mended, f"{before.name} is mended", within_s=MENDED_WITHIN_S)
    routes.assert_arrived(routes.publish("mended", fifo=True), fifo=True)


@limit(480)
def test_close_of_a_link_leaves_no_route_no_queue_and_no_mapping(routes: Routes) -> None:
    here, there = routes.here, routes.there
    routes.lay(fifo=True)
    there.close_all()
    for site in (here, there):
        site.until(lambda view: not view.links and not view.bridges, within_s=CLOSED_WITHIN_S)

    def is_gone() -> bool:
        queues = [name for name in here.contents.queues() if "-bridge-" in name]
        mapped = [mapping for mapping in here.contents.mappings() if "-bridge-" in mapping["EventSourceArn"]]
        return not queues and all(mapping.get("State") == "Deleting" for mapping in mapped)

    until(is_gone, "queues and mappings are gone", within_s=CLOSED_WITHIN_S)


@limit(120)
def test_dead_letters_are_none(stages: Stages) -> None:
    queues = [
        (SplitQueues(site.sqs, url), name)
        for site in stages.both
        for name, url in site.contents.queues().items()
        if "DeadLetters" in name
    ]
    assert queues
    until(
        lambda: not any(queue.count(name) for queue, name in queues),
        "queues of dead letters are empty",
        within_s=EMPTY_WITHIN_S,
    )


@limit(120)
def test_functions_run_the_python_that_is_tested_and_start_soon(stages: Stages) -> None:
    functions = [function for site in stages.both for function in site.contents.functions()]
    assert functions
    assert {each["FunctionName"]: each["Runtime"] for each in functions if each["Runtime"] != RUNTIME} == {}
    if stages.cloud:
        return  # how they start AWS alone shows
    name = stages.here.output(*SPLITTING)
    [group] = [each["LoggingConfig"]["LogGroup"] for each in functions if each["FunctionName"] == name]

    def start() -> tuple[re.Match[str], re.Match[str]] | None:
        logged = "\n".join(logged_lines(stages, group))
        version, took = STARTED.search(logged), INIT.search(logged)
        return (version, took) if version and took else None

    version, took = until(start, f"{name} has logged its start", within_s=LOGGED_WITHIN_S)
    assert version[1].startswith(interpreters.LAMBDA_VERSION)
    assert float(took[1]) <= COLD_MOST_MS
    print_note(f"{name} runs {version[1]}, and took {took[1]} ms to start")


def logged_lines(stages: Stages, group: str) -> Iterator[str]:
    since_ms = int(stages.since.timestamp() * 1000)
    for word in ("INIT_START", "Init Duration"):
        logs = FunctionLogs(stages.here.connection.client("logs"), group, since_ms)
        yield from (line.text for line in logs.read_new_lines(word, now_ms=since_ms))


@limit(180)
def test_costs_stay_within_the_budget(
    stages: Stages, budget_usd: float, record_property: Callable[[str, Any], None]
) -> None:
    bill = stages.bill()
    print_note("\n".join(["", *(f"  {line}" for line in bill.lines), f"${bill.usd:.3f} of ${budget_usd:g}"]))
    record_property("usd", bill.usd)
    assert 0 < bill.usd <= budget_usd
