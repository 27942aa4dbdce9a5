"""The path of a route between two sites: its queues, and the SQS requests at each hop.

Link, route and binding are created as the command line creates them.
"""

import time
from collections import Counter
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from sluice.aws.connections import connect_environment
from sluice.aws.deployment import read_stack_outputs
from sluice.aws.splitting.queues import SplitQueues
from sluice.errors import SluiceError
from sluice.federation.links.links import BridgeDeclaration
from sluice.federation.operations import BindQueue
from sluice.local.cloud import Cloud
from sluice.local.requests import BY_CALL, BY_TRIGGER
from sluice.local.sites import DEFAULT_SITE, Site
from sluice.message import Message
from sluice.operator.federated_sites import OpenSite, open_site, use_clients
from sluice.operator.functions import FEDERATION, ControlClient
from sluice.operator.queues import find_queue_url
from sluice.operator.routes import LinkEnds, add_route, wait_until_operational
from sluice.operator.site_names import SiteName
from sluice.parameters.event_sources import Profile
from tests.site_access import SiteAccess
from tests.sqs_requests import SqsRequest, read_requests

STACK, STANDARD_INGRESS, FIFO_INGRESS = FEDERATION[0], "IngressUrl", "FifoIngressUrl"
FUNCTIONS = ("exchange", "bridge", "exchange")  # that a message passes between two sites
PEER_SITE = Site("111111111111", "us-east-1")
OPERATIONAL_WITHIN_S = 60.0
ARRIVED_WITHIN_S = 60.0
DELETED_WITHIN_S = 10.0
LOOK_EVERY_S = 0.05
PARAMETERS: dict[str, object] = {
    "sluice.federation.peer_accounts": [DEFAULT_SITE.account, PEER_SITE.account],
    "sluice.federation.profile": Profile.THROUGHPUT.value,
}


class Missing(SluiceError):
    """Published messages didn't arrive in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hop:
    """A hop from one queue to the next through a function, by the queues' names in SQS."""

    function: str
    src: str
    dest: str

    def requests(self, requests: Iterable[SqsRequest]) -> Counter[str]:
        """Count the hop's SQS requests by action: the trigger's receives and deletes, and the function's sends."""
        return Counter(
            request.action
            for request in requests
            if (request.by == BY_TRIGGER and request.queue == self.src)
            or (request.by == BY_CALL and request.queue == self.dest and request.action.startswith("SendMessage"))
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """A path: the publishers' queue at one site, the hops, and the consumers' queue at the other."""

    ingress_url: str
    hops: tuple[Hop, ...]
    queue_url: str


def lay(source: SiteAccess, dest: SiteAccess, route: BridgeDeclaration, *, queue: str) -> Way:
    """Let `dest` pull by the route, and bind its queue there. Returns when the route is operational.

    Creates the link if necessary. Raises the errors of the commands.
    """
    with asked_sites(source.cloud):
        both = LinkEnds.from_names(str(dest.site), str(source.site), src_local=False)
        both.site.client.ask(BindQueue(exchange=route.dest, queue=queue, key=route.key))
        made = add_route(both, route, link=None)
        wait_until_operational(both.site, made.name, timeout_s=OPERATIONAL_WITHIN_S)
        bridge_queue = _reads(open_site(str(source.site)), made.name)
    ingress_url = read_stack_outputs(source.connection, STACK)[FIFO_INGRESS if route.fifo else STANDARD_INGRESS]
    address = both.view.address
    from_links_url = address.fifo_ingress_url if route.fifo else address.ingress_url
    consumed_url = find_queue_url(dest.connection, queue)
    stops = [_name(ingress_url), bridge_queue, _name(from_links_url), _name(consumed_url)]
    hops = zip(FUNCTIONS, pairwise(stops), strict=True)
    return Way(
        ingress_url=ingress_url,
        hops=tuple(Hop(function=function, src=src, dest=to) for function, (src, to) in hops),
        queue_url=consumed_url,
    )


def asked_sites(cloud: Cloud) -> AbstractContextManager[None]:
    """Let commands use this cloud's sites instead of those of `sluice local up`."""

    def ask(name: SiteName) -> ControlClient:
        site = Site(name.local_account or DEFAULT_SITE.account, name.region or DEFAULT_SITE.region)
        return ControlClient.connect(connect_environment(cloud.environment(site)), FEDERATION)

    return use_clients(ask)


def _reads(source: OpenSite, route: str) -> str:
    """Return the queue at the source that holds the messages of a pulled route."""
    [queue] = [each.reads for each in source.view().bridges if each.served and each.name.rpartition("@")[0] == route]
    if queue is None:
        raise Missing(f"{route} has no queue at its source")
    return queue


def receive(queues: SplitQueues, name: str, number: int) -> list[Message]:
    """Receive and delete messages until this many have arrived, and any further ones. Raises `Missing`."""
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
    """Return the requests after `offset` bytes of the log, once the triggers have deleted the messages of this path.

    A trigger deletes a message when its function has finished, a moment after the message arrived. A batch that was
    redelivered is received once more than it is deleted; after `DELETED_WITHIN_S` the wait for it ends.
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
