"""Measures how fast a binding is known at other sites: `python -m benchmarks.dynamic [--json]`.

The first figure is of the protocol's core: the control messages for a new link with 40,000 bindings. The second uses
three sites in a line on the embedded cloud. It is the time from a binding at one end until the first message published
at the other end arrives, so it includes the second for which exchanges cache bindings.
"""

import itertools
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Annotated, Any

import typer
from rich.console import Console

from benchmarks.report import Figure, report
from sluice.aws.connections import Connection, connect_environment
from sluice.aws.deployment import read_stack_outputs
from sluice.aws.federation.publisher import Publisher, PublishRequest
from sluice.codec import encode
from sluice.federation.dynamic.ops import BindingAdvertisement, RequestSnapshot, SnapshotPart
from sluice.federation.dynamic.state import DynamicRoutes, PulledRoute
from sluice.federation.dynamic.steps import add_pull, receive_op, set_local_bindings, step
from sluice.federation.links.links import Bridge, Link
from sluice.federation.links.peers import Peer
from sluice.federation.operations import AddBridge, AddLink, AddPeer, BindQueue, ShowSite, UnbindQueue
from sluice.local.cloud import BUILD, Cloud, start_cloud
from sluice.local.deployer import Deployer
from sluice.local.sites import Site
from sluice.operator.functions import FEDERATION, ControlClient

BINDINGS = 40_000
MOST_MESSAGES = 10
MOST_S = 5.0
MESSAGE_BYTES = 1_048_576
SITES = [Site(f"{place}" * 12, "us-east-1") for place in (1, 2, 3)]
EXCHANGE = "amq.topic"
ROUNDS = 5
READY_WITHIN_S = 120.0
EVERY_S = 0.1
QUEUE = "sluice-queue-bench"


class NotReady(RuntimeError):
    """The routes don't become operational, so nothing can be measured."""


def main(
    *, as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON on the last line, too.")] = False
) -> None:
    """Run both measurements."""
    messages, largest = snapshot()
    console = Console(stderr=True)
    with console.status("deploying three sites") as status:
        cloud = start_cloud(BUILD / "bench-dynamic", ends_with_us=True)
        try:
            took_s = two_hops(cloud, progress=status.update)
        finally:
            cloud.stop()
    figures = {
        "snapshot_messages_40k": Figure(
            name=f"control messages for {BINDINGS:,} bindings", value=messages, limit=MOST_MESSAGES
        ),
        "snapshot_message_share": Figure(
            name="size of the largest control message, as a share of SQS's limit", value=largest, limit=1
        ),
        "two_hop_s": Figure(
            name="from bind to active route two hops away, median, s", value=statistics.median(took_s), limit=MOST_S
        ),
        "two_hop_max_s": Figure(
            name=f"from bind to active route, slowest of {len(took_s)}, s", value=max(took_s), limit=MOST_S
        ),
    }
    report("Dynamic routes", figures, as_json=as_json)


def snapshot() -> tuple[int, float]:
    """Return the number of messages that transfer all bindings over a new link, and the size of the largest."""
    wants = frozenset(
        BindingAdvertisement.from_binding(f"region-{n % 50}.site-{n % 1000}.device-{n}.#") for n in range(BINDINGS)
    )
    routes = step(DynamicRoutes(here="DEST", exchange=EXCHANGE), set_local_bindings(wants)).routes
    pull = PulledRoute(bridge="route", link="link", peer="SRC", max_hops=8, epoch=1)
    routes = step(routes, add_pull(pull)).routes
    asked = RequestSnapshot(exchange=EXCHANGE, bridge="route", epoch=1, number=1)
    sent = step(routes, receive_op("SRC", asked)).outgoing_ops
    parts = [encode(sending.op) for sending in sent if isinstance(sending.op, SnapshotPart)]
    return len(parts), max(map(len, parts)) / MESSAGE_BYTES


def two_hops(cloud: Cloud, *, progress: Any) -> Sequence[float]:
    """Return the seconds from a binding at the last site until a message from the first site arrives."""
    parameters = {
        "sluice.rendezvous.keep_state": False,
        "sluice.splitting.queues": [],
        "sluice.federation.peer_accounts": [site.account for site in SITES],
    }
    deployed = Deployer(cloud=cloud, context=parameters, progress=progress).deploy(*SITES)
    ends = [connect_environment(deployed.environment(site)) for site in SITES]
    clients = [ControlClient.connect(end, FEDERATION) for end in ends]
    for source, dest in pairwise(clients):
        _route(source, dest)
    progress("binding")
    return [_took_s(ends, clients, f"round-{number}") for number in range(ROUNDS)]


def _route(source: ControlClient, dest: ControlClient) -> None:
    address, near = source.ask(ShowSite()).address, dest.ask(ShowSite()).address
    dest.ask(AddPeer(peer=Peer.from_introduction(address, pulls=("*",), pushes=("*",))))
    source.ask(AddPeer(peer=Peer.from_introduction(near, pulls=("*",), pushes=("*",))))
    dest.ask(AddLink(link=Link(name="up", peer=address.tag, endpoints=(address.endpoint,))))
    dest.ask(AddBridge(bridge=Bridge(name="route", link="up", src=EXCHANGE, dest=EXCHANGE, dynamic=True)))
    deadline = time.monotonic() + READY_WITHIN_S
    while not any(each.name == "route" and each.state == "Operational" for each in dest.ask(ShowSite()).bridges):
        if time.monotonic() > deadline:
            raise NotReady(f"no route from {address.tag} after {READY_WITHIN_S:.0f} s")
        time.sleep(EVERY_S)


def _took_s(ends: Sequence[Connection], clients: Sequence[ControlClient], key: str) -> float:
    far, near = ends[0], ends[-1]
    with _queue(near) as url:
        publisher = Publisher(read_stack_outputs(far, FEDERATION[0])["IngressUrl"], far.client("sqs"))
        sqs = near.client("sqs")
        bound_at = time.monotonic()
        clients[-1].ask(BindQueue(exchange=EXCHANGE, queue=QUEUE, key=key))
        sent_at: dict[str, float] = {}
        try:
            for number in itertools.count():
                body = f"{key}/{number}"
                sent_at[body] = time.monotonic()
                publisher.publish(PublishRequest(exchange=EXCHANGE, key=key, body=body))
                received = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10).get("Messages", [])
                # Messages of the last round may still be on their way.
                if came := [sent_at[each["Body"]] for each in received if each["Body"] in sent_at]:
                    return min(came) - bound_at
                time.sleep(EVERY_S)
        finally:
            clients[-1].ask(UnbindQueue(exchange=EXCHANGE, queue=QUEUE, key=key))
    raise NotReady("never")


@contextmanager
def _queue(near: Connection) -> Iterator[str]:
    sqs = near.client("sqs")
    url = sqs.create_queue(QueueName=QUEUE)["QueueUrl"]
    try:
        yield url
    finally:
        sqs.delete_queue(QueueUrl=url)


if __name__ == "__main__":
    typer.run(main)
