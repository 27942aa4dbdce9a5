"""Measures federation: SQS requests per message and hop, CPU per message by number of bindings, and forwarding.

`python -m benchmarks.federation [--json]`. Requests are counted on the embedded cloud, over routes between sites in two
accounts. CPU time is this process's own, on one core: of matching, of the bridge's shell with an in-memory SQS, and of
the whole bridge function as Lambda calls it, with an SQS over HTTP.

Messages are published as fast as they are forwarded, so batches are full: receive, send and delete cost a tenth of a
request each. A message alone costs three requests per hop. The embedded cloud polls only if there is something; AWS
also polls an idle queue about 15 times a minute. `benchmarks.bindings` measures adding bindings, and their memory.
"""

import io
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar

import typer
from aws_lambda_powertools.utilities.typing import LambdaContext
from rich.console import Console

from benchmarks.bindings import BOUND, QUEUES, queue_of
from benchmarks.bindings import figures as binding_figures
from benchmarks.report import Figure, report
from benchmarks.splitting import CountingQueues, InPlace
from benchmarks.ways import (
    FUNCTIONS,
    PARAMETERS,
    PEER_SITE,
    STACK,
    Way,
    lay,
    receive,
    requests_since,
)
from sluice.aws.connections import connect_environment
from sluice.aws.deployment import read_stack_outputs
from sluice.aws.federation.publisher import Publisher, PublishRequest
from sluice.aws.queues import SqsQueues
from sluice.aws.splitting.queues import SplitQueues
from sluice.federation.forwarder import forward_all
from sluice.federation.links.links import Address, Bridge, BridgeDeclaration, Endpoint, Link
from sluice.federation.links.peers import KnownPeers
from sluice.federation.links.registry import Forward
from sluice.federation.matching.bindings import Destination, RoutingTable
from sluice.federation.matching.exchanges import Exchange, ExchangeType
from sluice.federation.matching.indexes import Publication
from sluice.federation.matching.metadata import Crossing, ReceivedMessage
from sluice.federation.matching.typed_values import TypedValue
from sluice.federation.router import FailingQueues, Ingress, publish, route
from sluice.local.cloud import BUILD, Cloud, clean_environment, start_cloud
from sluice.local.deployer import Deployer
from sluice.local.sites import DEFAULT_SITE
from sluice.message import Message, Outgoing
from sluice.ulids import derive_ulid
from tests.bindings import bound
from tests.site_access import SiteAccess
from tests.sqs.queues import Queue
from tests.sqs_requests import SqsRequest, by_action

# Measured on two cores, with persistent messages of 1 KiB.
QPID_FORWARDED = 13_900  # messages per second over a durable queue route, acknowledged by fifty
RABBITMQ = "RabbitMQ: shovel 5,400, exchange federation 2,300"
LEAST_FORWARDED = 14_000
LEAST_REQUESTS = 0.3  # per message and hop: receive, send and delete in batches of ten
MOST_REQUESTS = 0.32
BODY = "x" * 1024
BATCH = 10  # SQS's limit
OVER_ROUTES = 500  # messages over each kind of route
FORWARDED, BY_FUNCTION = 10_000, 2_000  # messages per round
ROUTED = 20_000  # messages per round
ROUNDS = 5
BINDINGS = (10, 1_000, 100_000)
PUBLISHED_TO = 1_000  # bindings, if all of the exchange's work is measured
SEED = 11
SOURCE, DEST = "eu-central-1-000000000000", "us-east-1-111111111111"
NOW_MS = 1_700_000_000_000
Records = list[dict[str, Any]]
T = TypeVar("T")
KINDS = {"fifo": True, "standard": False}  # kinds of routes, and whether they keep the order


class Wrong(Exception):
    """The run had an unexpected result, so its figures are wrong."""


def main(
    *, as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON on the last line, too.")] = False
) -> None:
    """Run all measurements."""
    console = Console(stderr=True)
    # From here on no spinner may use this process's CPU.
    routed = {kind: {number: route_us(kind, number) for number in BINDINGS} for kind in BOUND}
    published = publish_msgs_per_core_s()
    changed = binding_figures()
    forwarded = forward_msgs_per_core_s()
    console.print("deploying two sites")
    cloud = start_cloud(BUILD / "bench-federation", ends_with_us=True)
    try:
        over, by_function = on_cloud(cloud, progress=console.print)
    finally:
        cloud.stop()
    for kind, requests in over.items():
        _show(console, kind, requests)
    figures = {
        **_request_figures(over),
        **_route_figures(routed),
        **_cpu_figures(forwarded=forwarded, by_function=by_function, published=published),
        **changed,
    }
    report(f"Federation: messages of {len(BODY)} bytes, profile throughput", figures, as_json=as_json, series=SERIES)


SERIES = {
    "route_us_per_message": {str(number): f"route_us_topic_{number}" for number in BINDINGS},
    "route_us_direct": {str(number): f"route_us_direct_{number}" for number in BINDINGS},
    "route_us_headers": {str(number): f"route_us_headers_{number}" for number in BINDINGS},
}


# On the embedded cloud


@dataclass(frozen=True, slots=True, kw_only=True)
class OverRoute:
    """The SQS requests of one kind of route: by action for each hop, and all others."""

    hops: Sequence[Counter[str]]
    others: Counter[str]

    def per_hop(self, function: str) -> float:
        """Count the requests per message at the hops through this function."""
        hops = [hop for name, hop in zip(FUNCTIONS, self.hops, strict=True) if name == function]
        return sum(hop.total() for hop in hops) / len(hops) / OVER_ROUTES

    @property
    def mean(self) -> float:
        """Return the mean of a hop through an exchange and a hop over a bridge."""
        return (self.per_hop("exchange") + self.per_hop("bridge")) / 2


def on_cloud(cloud: Cloud, *, progress: Callable[[str], None]) -> tuple[dict[str, OverRoute], float]:
    """Measure each kind of route's SQS requests, and the messages per second and core."""
    over, source, ways = sent_over_routes(cloud, progress=progress)
    progress(f"{ROUNDS} rounds of {BY_FUNCTION:,} messages through the bridge function")
    return over, function_msgs_per_core_s(source, ways["fifo"])


def sent_over_routes(
    cloud: Cloud, *, progress: Callable[[str], None]
) -> tuple[dict[str, OverRoute], SiteAccess, dict[str, Way]]:
    """Deploy two sites and send messages over each kind of route.

    Returns the requests, the source, and the routes' paths.
    """
    queues = [{"name": kind, "fifo": fifo} for kind, fifo in KINDS.items()]
    context = {**PARAMETERS, "sluice.federation.queues": queues, "sluice.splitting.queues": []}
    cloud = Deployer(cloud=cloud, context=context).deploy(DEFAULT_SITE, PEER_SITE)
    source, dest = SiteAccess(cloud, DEFAULT_SITE), SiteAccess(cloud, PEER_SITE)
    progress("making routes")
    ways = {kind: lay(source, dest, _route(kind, fifo=fifo), queue=kind) for kind, fifo in KINDS.items()}
    progress(f"{OVER_ROUTES:,} messages over each")
    over = {kind: _sent_over(way, kind, source, dest) for kind, way in ways.items()}
    return over, source, ways


def _route(kind: str, *, fifo: bool) -> BridgeDeclaration:
    return BridgeDeclaration(src="amq.topic", dest="amq.topic", key=f"{kind}.#", fifo=fifo)


def _sent_over(way: Way, kind: str, source: SiteAccess, dest: SiteAccess) -> OverRoute:
    publisher = Publisher(way.ingress_url, source.connection.client("sqs"))
    queues, queue = SplitQueues(dest.connection.client("sqs"), way.queue_url), way.hops[-1].dest
    one = PublishRequest(exchange="amq.topic", key=f"{kind}.key", body="the functions start")
    publisher.publish(one)
    receive(queues, queue, 1)
    log = source.cloud.request_log
    requests_since(log, 0, way)
    offset = log.stat().st_size
    publisher.publish_all(PublishRequest(exchange=one.exchange, key=one.key, body=BODY) for _ in range(OVER_ROUTES))
    arrived = receive(queues, queue, OVER_ROUTES)
    if len(arrived) != OVER_ROUTES:
        raise Wrong(f"{len(arrived)} of {OVER_ROUTES} messages came over the {kind} route")
    requests = requests_since(log, offset, way)
    return OverRoute(hops=[hop.requests(requests) for hop in way.hops], others=_others(requests, way))


def _others(requests: Iterable[SqsRequest], way: Way) -> Counter[str]:
    """Count the requests that belong to no hop, publisher or consumer."""
    stops = {way.hops[0].src, *(hop.dest for hop in way.hops)}
    return by_action(request for request in requests if request.queue not in stops)


# The whole function


def function_msgs_per_core_s(site: SiteAccess, way: Way) -> float:
    """Measure the bridge function with its site's settings and registry; another process is the peer's SQS."""
    bridge = way.hops[1]
    with memory_sqs() as url, _environment(_variables(site) | {"AWS_ENDPOINT_URL_SQS": url}):
        peer = connect_environment(site.cloud.environment(PEER_SITE) | {"AWS_ENDPOINT_URL": url})
        SqsQueues(peer.client("sqs"), url).create(bridge.dest, {"FifoQueue": "true"})
        # Its clients are created from the environment at its first call.
        from functions.bridge.handler import handler  # noqa: PLC0415 - see above

        def forward(records: Records) -> None:
            failed = handler({"Records": records}, LambdaContext())["batchItemFailures"]
            if failed:
                raise Wrong(f"the bridge function reports {failed}")

        return BY_FUNCTION / _fastest(lambda: _batches(records_of(BY_FUNCTION, queue=bridge.src)), forward)


def _variables(site: SiteAccess) -> dict[str, str]:
    """Return the environment variables of the site's bridge function on the embedded cloud."""
    client = site.connection.client("lambda")

    def of_function(name: str) -> dict[str, str]:
        variables: dict[str, str] = client.get_function_configuration(FunctionName=name)["Environment"]["Variables"]
        return variables

    links = of_function(read_stack_outputs(site.connection, STACK)["LinksFunctionName"])
    return site.cloud.environment(site.site) | of_function(links["BRIDGE_FUNCTION"])


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextmanager
def memory_sqs() -> Iterator[str]:
    """Yield the URL of an in-memory SQS in its own process, so that its CPU isn't counted."""
    command = [sys.executable, "-m", "tests.sqs", "--queues", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=clean_environment()) as server:
        try:
            assert server.stdout is not None
            yield server.stdout.readline().strip()
        finally:
            server.terminate()


# Forwarding


@dataclass(slots=True)
class PeersInMemory:
    """Peers' queues in memory: all peers share one queue."""

    queue: Queue = field(default_factory=lambda: Queue("ingress.fifo"))

    def send_control_message(self, link: Link, endpoint: Endpoint, body: str) -> None:
        """Do nothing."""
        raise NotImplementedError

    def send_batch(
        self,
        link: Link,  # noqa: ARG002 - the port's
        endpoint: Endpoint,  # noqa: ARG002 - the port's
        url: str,  # noqa: ARG002 - the port's
        entries: Sequence[dict[str, Any]],
    ) -> Mapping[str, str]:
        """Accept all entries."""
        now = time.time()
        for entry in entries:
            self.queue.send(entry, now)
        return {}


def forward_msgs_per_core_s() -> float:
    """Measure the bridge's shell from a trigger's records to the peer's queue, including the queue's work."""
    forward = _forward()

    def prepare() -> list[tuple[Records, Any]]:
        peers: Any = PeersInMemory()  # a FIFO queue accepts each message once
        return [(batch, peers) for batch in _batches(records_of(FORWARDED, queue="bridge.fifo"))]

    def forward_batch(prepared: tuple[Records, Any]) -> None:
        records, peers = prepared
        messages = [Message.from_lambda(record) for record in records]
        done = forward_all(messages, forward, fifo=True, site=SOURCE, now_ms=NOW_MS, peers=peers, executor=InPlace())
        if done.counts["MessagesForwarded"] != len(records):
            raise Wrong(f"{done}")

    return FORWARDED / _fastest(prepare, forward_batch)


def _forward() -> Forward:
    address = Address(
        tag=DEST, region="us-east-1", account="111111111111", control_queue_url="https://c", ingress_url="https://i",
        fifo_ingress_url="https://i.fifo",
    )  # fmt: skip
    link = Link(name=DEST, peer=DEST, endpoints=(address.endpoint,))
    bridge = Bridge(name="route", link=DEST, src="amq.topic", dest="amq.topic", key="#", src_is_local=True)
    return Forward(
        bridge=bridge,
        link=link,
        crossing=Crossing(peer=DEST, tag=SOURCE),
        peer=address,
        endpoint=address.endpoint,
    )


def records_of(number: int, *, queue: str) -> Iterator[dict[str, Any]]:
    """Build a trigger's records of a bridge queue, with messages as an exchange sends them."""
    table = table_of(ExchangeType.TOPIC, 1)
    for place in range(number):
        message = Message.from_lambda(_published(place, of=1))
        ulid = derive_ulid(message.message_id, sent_at_ms=NOW_MS)
        receipt = ReceivedMessage(message=message, site=SOURCE, ulid=ulid, now_ms=NOW_MS)
        [copy] = publish(receipt, table=table, trusted=False).copies
        yield _record(message.message_id, copy.outgoing, queue)


def _published(place: int, *, of: int = PUBLISHED_TO) -> dict[str, Any]:
    """Build a trigger's record of an ingress queue: a message about one of several objects."""
    key = _publication(ExchangeType.TOPIC, place % of).key
    outgoing = PublishRequest(exchange=ExchangeType.TOPIC.value, key=key, body=BODY).to_message(fifo=True)
    return _record(f"{place:032x}", outgoing, "ingress.fifo")


def _record(message_id: str, outgoing: Outgoing, queue: str) -> dict[str, Any]:
    """Build a record in Lambda's form."""
    return {
        "messageId": message_id,
        "receiptHandle": "handle",
        "body": outgoing.body,
        "attributes": {
            "SentTimestamp": str(NOW_MS),
            "ApproximateReceiveCount": "1",
            "MessageGroupId": str(outgoing.group_id),
            "MessageDeduplicationId": str(outgoing.deduplication_id),
        },
        "messageAttributes": {
            name: {"dataType": value.data_type, "stringValue": value.text}
            for name, value in outgoing.attributes.items()
        },
        "eventSourceARN": f"arn:aws:sqs:eu-central-1:000000000000:{queue}",
    }


def _batches(records: Iterable[dict[str, Any]]) -> list[Records]:
    together = list(records)
    return [together[start : start + BATCH] for start in range(0, len(together), BATCH)]


def _fastest(prepare: Callable[[], Iterable[T]], work: Callable[[T], None]) -> float:
    """Return the CPU seconds of the fastest round, because others use the machine too. Preparation isn't included."""
    fastest = float("inf")
    for _ in range(ROUNDS):
        prepared = prepare()
        with redirect_stdout(io.StringIO()):  # a function prints its metrics
            started = time.process_time()
            for each in prepared:
                work(each)
            fastest = min(fastest, time.process_time() - started)
    return fastest


# Matching


def _publication(kind: ExchangeType, number: int) -> Publication:
    """Return a message about one object, which one binding matches."""
    headers: dict[str, TypedValue] = {"order": number, "event": "created", "region": "eu"}
    return Publication(exchange=kind.value, key=f"eu.orders.{number}.created", headers=headers)


def table_of(kind: ExchangeType, number: int) -> RoutingTable:
    """Build the table of one exchange, named after its type, with this many bindings."""
    queues = [queue_of(place) for place in range(min(number, QUEUES))]
    return RoutingTable(
        bound(
            exchanges=[Exchange(name=kind.value, type=kind)],
            queues=[Destination(queue=queue, url=f"https://sqs.example/{queue}") for queue in queues],
            bindings=map(BOUND[kind], range(number)),
        )
    )


def route_us(kind: ExchangeType, number: int) -> float:
    """Return the microseconds of CPU for finding a message's queues."""
    table, draw = table_of(kind, number), random.Random(SEED)
    publications = [_publication(kind, draw.randrange(number)) for _ in range(ROUTED)]

    def find(publication: Publication) -> None:
        if len(table.route(publication)) != 1:
            raise Wrong(f"{publication} goes to {table.route(publication)}")

    return _fastest(lambda: publications, find) / ROUTED * 1e6


def publish_msgs_per_core_s() -> float:
    """Measure the exchange's shell from a trigger's records to sends, which are only counted."""
    table, ingress = table_of(ExchangeType.TOPIC, PUBLISHED_TO), Ingress(fifo=True)
    records = [_published(number) for number in range(FORWARDED)]

    def publish_batch(batch: Records) -> None:
        messages = [Message.from_lambda(record) for record in batch]
        done = route(
            messages,
            ingress,
            table,
            site=SOURCE,
            peers=lambda: KnownPeers({}),
            now_ms=NOW_MS,
            send=CountingQueues().send_batch,
            executor=InPlace(),
            failing=FailingQueues(),
        )
        if done.counts["MessagesRouted"] != len(batch):
            raise Wrong(f"{done}")

    return FORWARDED / _fastest(lambda: _batches(records), publish_batch)


# Results


def _show(console: Console, kind: str, over: OverRoute) -> None:
    for hop, function in zip(over.hops, FUNCTIONS, strict=True):
        by = ", ".join(f"{action} {number / OVER_ROUTES:.3f}" for action, number in sorted(hop.items()))
        console.print(f"{kind} route, {function}, per message: {by}", soft_wrap=True)
    console.print(f"{kind} route, other requests: {dict(over.others) or 'nothing'}", soft_wrap=True)


def _request_figures(over: Mapping[str, OverRoute]) -> dict[str, Figure]:
    fifo, standard = over["fifo"], over["standard"]
    return {
        "requests_per_message_hop": Figure(
            name="SQS requests per message and hop",
            value=fifo.mean,
            limit=MOST_REQUESTS,
            ratio=fifo.mean / LEAST_REQUESTS,
            compared_to=f"{LEAST_REQUESTS}, the minimum with batches of ten",
        ),
        "requests_per_message_hop_exchange": Figure(
            name="SQS requests per message through an exchange", value=fifo.per_hop("exchange")
        ),
        "requests_per_message_hop_bridge": Figure(
            name="SQS requests per message over a bridge", value=fifo.per_hop("bridge")
        ),
        "requests_per_message_hop_standard": Figure(
            name="SQS requests per message and hop, standard queues", value=standard.mean
        ),
    }


def _route_figures(routed: Mapping[ExchangeType, Mapping[int, float]]) -> dict[str, Figure]:
    return {
        f"route_us_{kind}_{number}": Figure(name=f"CPU to match, µs, {kind}, {number:,} bindings", value=us)
        for kind, by_number in routed.items()
        for number, us in by_number.items()
    }


def _cpu_figures(*, forwarded: float, by_function: float, published: float) -> dict[str, Figure]:
    return {
        "forward_msgs_per_core_s": Figure(
            name=f"messages forwarded per CPU second, at least {LEAST_FORWARDED:,}",
            value=forwarded,
            ratio=forwarded / QPID_FORWARDED,
            compared_to=f"Qpid, durable queue route, {QPID_FORWARDED:,}; {RABBITMQ}",
        ),
        "function_msgs_per_core_s": Figure(
            name="messages forwarded per CPU second, with SQS over HTTP",
            value=by_function,
            ratio=by_function / QPID_FORWARDED,
            compared_to=f"Qpid, {QPID_FORWARDED:,}",
        ),
        "publish_msgs_per_core_s": Figure(
            name=f"messages published per CPU second to {PUBLISHED_TO:,} topic bindings", value=published
        ),
    }


if __name__ == "__main__":
    typer.run(main)
