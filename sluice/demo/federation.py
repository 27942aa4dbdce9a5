"""The demo's federation: messages published at one site are consumed at another, of another account and region.

Link, route and binding are declared as the command line declares them. What a route is made of, queue by queue, and
what SQS was asked on each hop is here too, as the benchmark asks the same.
"""

import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from sluice.aws.federation.publisher import Publisher, Publishing
from sluice.aws.operator.connections import of_environment
from sluice.aws.operator.consumer import queue_url
from sluice.aws.operator.control_client import FEDERATION, ControlClient
from sluice.aws.operator.deployment import stack_outputs
from sluice.aws.splitting.queues import SplitQueues
from sluice.cli.federation.route_declarations import Ends, add_route, wait_until_operational
from sluice.cli.federation.sites import OpenSite, asked_by, open_site
from sluice.cli.site_names import SiteName
from sluice.errors import SluiceError
from sluice.federation.links.links import BridgeDeclaration
from sluice.federation.messages.metadata import open_attributes
from sluice.federation.operations import BindQueue
from sluice.local.access import SiteAccess
from sluice.local.cloud import Cloud
from sluice.local.requests import BY_CALL, BY_TRIGGER, SqsRequest, read_requests
from sluice.local.sites import DEFAULT_SITE, Site
from sluice.message import Message

STACK, STANDARD_INGRESS, FIFO_INGRESS = FEDERATION[0], "IngressUrl", "FifoIngressUrl"
FUNCTIONS = ("exchange", "bridge", "exchange")  # that a message passes on its way from site to site
PEER_SITE = Site("111111111111", "us-east-1")
QUEUE = "orders"
EXCHANGE, PATTERN, KEY = "amq.topic", "orders.#", "orders.eu.new"
ALONE = 10  # messages one by one, to see how long each takes
TOGETHER = 200
BODY_BYTES = 1024
OPERATIONAL_WITHIN_S = 60.0
ARRIVED_WITHIN_S = 60.0
DELETED_WITHIN_S = 10.0
LOOK_EVERY_S = 0.05
PARAMETERS: dict[str, object] = {
    "sluice.federation.peer_accounts": [DEFAULT_SITE.account, PEER_SITE.account],
}
QUEUES: Sequence[Mapping[str, object]] = ({"name": QUEUE, "fifo": True},)


class Missing(SluiceError):
    """Messages that were published and haven't come in time."""


# A way from site to site


@dataclass(frozen=True, slots=True, kw_only=True)
class Hop:
    """From one queue to the next through a function; both by their names in SQS."""

    function: str
    src: str
    dest: str

    def requests(self, requests: Iterable[SqsRequest]) -> Counter[str]:
        """Count what was asked of SQS on it, by action: the trigger's receives and deletes, the function's sends."""
        return Counter(
            request.action
            for request in requests
            if (request.by == BY_TRIGGER and request.queue == self.src)
            or (request.by == BY_CALL and request.queue == self.dest and request.action.startswith("SendMessage"))
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """What messages pass: the publishers' queue at one site, the hops, the consumers' queue at the other."""

    ingress_url: str
    hops: tuple[Hop, ...]
    queue_url: str


def lay(source: SiteAccess, dest: SiteAccess, route: BridgeDeclaration, *, queue: str) -> Way:
    """Lets `dest` pull by the route, and binds its queue there. Returns when it carries.

    The link is made if need be. Raises what the command line would say.
    """
    with asked_sites(source.cloud):
        both = Ends.of(str(dest.site), str(source.site), src_local=False)
        both.site.client.ask(BindQueue(exchange=route.dest, queue=queue, key=route.key))
        made = add_route(both, route, link=None)
        wait_until_operational(both.site, made.name, timeout_s=OPERATIONAL_WITHIN_S)
        bridge_queue = _reads(open_site(str(source.site)), made.name)
    ingress_url = stack_outputs(source.connection, STACK)[FIFO_INGRESS if route.fifo else STANDARD_INGRESS]
    address = both.view.address
    from_links_url = address.fifo_ingress_url if route.fifo else address.ingress_url
    consumed_url = queue_url(dest.connection, queue)
    stops = [_name(ingress_url), bridge_queue, _name(from_links_url), _name(consumed_url)]
    hops = zip(FUNCTIONS, pairwise(stops), strict=True)
    return Way(
        ingress_url=ingress_url,
        hops=tuple(Hop(function=function, src=src, dest=to) for function, (src, to) in hops),
        queue_url=consumed_url,
    )


def asked_sites(cloud: Cloud) -> AbstractContextManager[None]:
    """Let the command line ask this cloud's sites, in place of those that `sluice local up` starts."""

    def ask(name: SiteName) -> ControlClient:
        site = Site(name.local_account or DEFAULT_SITE.account, name.region or DEFAULT_SITE.region)
        return ControlClient.of(of_environment(cloud.environment(site)), FEDERATION)

    return asked_by(ask)


def _reads(source: OpenSite, route: str) -> str:
    """Give the queue at the source that holds the messages of a route that is pulled."""
    [queue] = [each.reads for each in source.view().bridges if each.served and each.name.rpartition("@")[0] == route]
    if queue is None:
        raise Missing(f"{route} has no queue at its source")
    return queue


def receive(queues: SplitQueues, name: str, number: int) -> list[Message]:
    """Receive until messages are as many, and whatever more is there, and delete them. Raises `Missing`."""
    messages: list[Message] = []
    deadline = time.monotonic() + ARRIVED_WITHIN_S
    while (batch := queues.receive_batch(name)) or len(messages) < number:
        if batch:
            queues.delete_batch(name, batch)
            messages += batch
        elif time.monotonic() > deadline:
            raise Missing(f"{len(messages)} of {number} messages have come to {name} in {ARRIVED_WITHIN_S:g} s")
        else:
            time.sleep(LOOK_EVERY_S)
    return messages


def requests_since(log: Path, offset: int, way: Way) -> list[SqsRequest]:
    """Give the requests noted after `offset` bytes of the log, once the triggers have deleted what went the way.

    A trigger deletes when its function is done: a moment after the message has come. A batch that came again whole was
    received once more than deleted; that is waited for in vain, for `DELETED_WITHIN_S`.
    """
    deadline = time.monotonic() + DELETED_WITHIN_S
    while True:
        requests = list(read_requests(log, offset=offset))
        counts = [hop.requests(requests) for hop in way.hops]
        is_done = all(count["DeleteMessageBatch"] == count["ReceiveMessage"] for count in counts)
        if is_done or time.monotonic() > deadline:
            return requests
        time.sleep(LOOK_EVERY_S)


def _name(url: str) -> str:
    return url.rsplit("/", 1)[1]


# The demo


@dataclass(frozen=True, slots=True, kw_only=True)
class Federated:
    """What was published and consumed, in order; ms from the one to the other of messages alone; requests by hop."""

    sites: tuple[Site, Site]
    published: Sequence[str]
    consumed: Sequence[str]
    traces: frozenset[tuple[str, ...]]
    source_tag: str
    alone_ms: Sequence[int]
    hops: Sequence[Counter[str]]
    ready_s: float

    def is_right(self) -> bool:
        """Every message once, in order, with the trace of one crossing."""
        return self.consumed == self.published and self.traces == {(self.source_tag,)}

    def rows(self) -> list[tuple[str, str]]:
        """For the summary."""
        source, dest = self.sites
        per_hop = [hop.total() / TOGETHER for hop in self.hops]
        return [
            (f"published at {source}", f"{len(self.published)}"),
            (f"consumed at {dest}", f"{len(self.consumed)}"),
            ("in the order in which they were published", "yes" if self.consumed == self.published else "no"),
            ("link and route carry messages after", f"{self.ready_s:.1f} s"),
            ("published to consumable, each alone, median", f"{statistics.median(self.alone_ms):,.0f} ms"),
            (f"SQS requests per message, by batches of ten, over {len(self.hops)} hops", f"{sum(per_hop):.2f}"),
            ("for each hop: exchange, bridge, exchange", ", ".join(f"{each:.2f}" for each in per_hop)),
        ]


def run(source: SiteAccess, dest: SiteAccess, *, progress: Callable[[str], None]) -> Federated:
    """Lay a route, publish at one site, consume at the other. Raises `Missing`."""
    progress(f"{dest.site} pulls from {source.site}")
    started = time.monotonic()
    way = lay(source, dest, BridgeDeclaration(src=EXCHANGE, dest=EXCHANGE, key=PATTERN), queue=QUEUE)
    ready_s = time.monotonic() - started
    publisher = Publisher(way.ingress_url, source.connection.client("sqs"))
    queues, queue = SplitQueues(dest.connection.client("sqs"), way.queue_url), _name(way.queue_url)
    progress("the functions start")
    publisher.publish(_publishing("first"))
    receive(queues, queue, 1)
    alone: list[Message] = []
    progress(f"{ALONE} messages go over, one after the other")
    for number in range(ALONE):
        publisher.publish(_publishing(f"alone {number}"))
        alone += receive(queues, queue, 1)
    progress(f"{TOGETHER} messages go over")
    offset = source.cloud.request_log.stat().st_size
    bodies = [f"Message {number}".ljust(BODY_BYTES) for number in range(1, TOGETHER + 1)]
    publisher.publish_all(_publishing(body) for body in bodies)
    together = receive(queues, queue, TOGETHER)
    requests = requests_since(source.cloud.request_log, offset, way)
    arrived = [*alone, *together]
    metadata = [open_attributes(message.attributes).metadata for message in arrived]
    return Federated(
        sites=(source.site, dest.site),
        published=[*(f"alone {number}" for number in range(ALONE)), *bodies],
        consumed=[message.body for message in arrived],
        traces=frozenset(() if each is None else each.trace for each in metadata),
        source_tag=stack_outputs(source.connection, STACK)["SiteTag"],
        alone_ms=[_took_ms(message) for message in alone],
        hops=[hop.requests(requests) for hop in way.hops],
        ready_s=ready_s,
    )


def _publishing(body: str) -> Publishing:
    return Publishing(exchange=EXCHANGE, key=KEY, body=body)


def _took_ms(message: Message) -> int:
    """From the first site's ingress to the last queue, by SQS's own stamps."""
    metadata = open_attributes(message.attributes).metadata
    if metadata is None or metadata.published_at_ms is None or message.sent_at_ms is None:
        raise Missing(f"message {message.message_id} doesn't say when it was published")
    return message.sent_at_ms - metadata.published_at_ms
