"""Measures a message's latency at light load and its requests under load: `python -m benchmarks.latency [--json]`.

Two sites on the embedded cloud get one message a second through the splitter, through an exchange, and over a route,
with each profile in turn. A hop adds the time from the request that sends a message to its queue until the request that
forwards the message, according to the cloud's log. Figures are medians with warm functions on this machine. Only the
batching window is the same on AWS.

Then each hop gets a hundred messages a second, or as many as this machine can send, and its requests to SQS and
DynamoDB are counted. The number of messages per batch depends on how long requests take; `benchmarks.polling` models
AWS's own pollers at that rate.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from typing import Annotated, Any

import typer
from rich.console import Console

from benchmarks.counting_cloud import start_counting, unit_log
from benchmarks.report import Figure, report
from benchmarks.units import READ, read_units
from benchmarks.ways import PARAMETERS, PEER_SITE, STACK, STANDARD_INGRESS, Hop, asked_sites, lay
from sluice.aws.deployment import read_stack_outputs
from sluice.aws.federation.publisher import Publisher, PublishRequest
from sluice.federation.links.links import BridgeDeclaration
from sluice.federation.operations import BindQueue
from sluice.local.cloud import BUILD, Cloud
from sluice.local.deployer import Deployer
from sluice.local.requests import BY_CALL
from sluice.local.sites import DEFAULT_SITE
from sluice.operator.federated_sites import open_site
from sluice.operator.functions import ControlClient
from sluice.operator.queues import find_queue_url
from sluice.parameters.event_sources import Profile
from sluice.splitting.operations import ShowSplitting
from tests.site_access import SiteAccess
from tests.sqs_requests import SqsRequest, read_requests

PROFILES = Profile.LATENCY, Profile.THROUGHPUT  # the embedded cloud has no provisioned pollers
MOST_ADDED_MS = 50.0  # per hop, with the default profile
EVERY_S = 1.0
WARM_UP, MEASURED = 3, 30  # messages
LONG_POLL_S = 20
RATE, RATE_S = 100, 10  # messages per second, and seconds
SENDERS = 16
SETTLED_S = 3.0  # after the last message, until triggers have deleted the messages
EXCHANGE = "amq.topic"
HOPS = {
    "splitter_added_ms": "through the splitter",
    "exchange_added_ms": "through an exchange",
    "bridge_hop_added_ms": "over a bridge, without the exchanges at its ends",
}


class NoReply(Exception):
    """A message didn't arrive in time."""


def main(
    *, as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON on the last line, too.")] = False
) -> None:
    """Measure both profiles, one after the other."""
    console = Console(stderr=True)
    figures = {}
    cloud = start_counting(BUILD / "bench-latency")
    try:
        for profile in PROFILES:
            console.print(f"profile {profile}: deploying two sites")
            added, taken = measure(cloud, profile, progress=console.print)
            for hop, text in HOPS.items():
                limit = MOST_ADDED_MS if profile is Profile.LATENCY else None
                name = f"ms added {text}, profile {profile}"
                figures[f"{hop}_{profile}"] = Figure(name=name, value=added[hop], limit=limit)
            for figure, value in taken.items():
                name = f"{figure.replace('_', ' ')}, at {RATE} a second, profile {profile}"
                figures[f"{figure}_{profile}"] = Figure(name=name, value=value)
    finally:
        cloud.stop()
    series = {figure: {profile.value: f"{figure}_{profile}" for profile in PROFILES} for figure in (*HOPS, *taken)}
    report(
        f"Latency at a message a second (medians), and requests at {RATE} a second",
        figures,
        as_json=as_json,
        series=series,
    )


def measure(
    cloud: Cloud, profile: Profile, *, progress: Callable[[str], None]
) -> tuple[Mapping[str, float], Mapping[str, float]]:
    """Deploy both sites with the profile. Returns the milliseconds that each hop adds, and requests per message."""
    context = {
        **PARAMETERS,
        "sluice.federation.queues": [{"name": "bound"}],
        "sluice.federation.profile": profile.value,
        "sluice.splitting.queues": [{"queue_id": "split", "profile": profile.value}],
        "sluice.pipeline.queue_id": "split",
    }
    cloud = Deployer(cloud=cloud, context=context).deploy(DEFAULT_SITE, PEER_SITE)
    here, peer = SiteAccess(cloud, DEFAULT_SITE), SiteAccess(cloud, PEER_SITE)
    route = BridgeDeclaration(src=EXCHANGE, dest=EXCHANGE, key=f"far.{profile}", fifo=False)
    laid = lay(here, peer, route, queue="bound")
    with asked_sites(cloud):
        open_site(str(here.site)).client.ask(BindQueue(exchange=EXCHANGE, queue="bound", key="here.#"))
    client, bound = here.connection.client("sqs"), find_queue_url(here.connection, "bound")
    [split] = ControlClient.connect(here.connection).ask(ShowSplitting()).queues
    publisher = Publisher(read_stack_outputs(here.connection, STACK)[STANDARD_INGRESS], client)

    def publish(key: str) -> Callable[[], object]:
        return lambda: publisher.publish(PublishRequest(exchange=EXCHANGE, key=key, body="x"))

    source, main, ingress, name = (url.rsplit("/", 1)[1] for url in (split.source, split.main, laid.ingress_url, bound))
    added, taken = dict[str, float](), dict[str, float]()
    for figure, hop, sending, queue_client, arrives_at in (
        (
            "splitter_added_ms",
            Hop(function="splitter", src=source, dest=main),
            lambda: client.send_message(QueueUrl=split.source, MessageBody="x"),
            client,
            split.main,
        ),
        ("exchange_added_ms", Hop(function="exchange", src=ingress, dest=name), publish("here.key"), client, bound),
        (
            "bridge_hop_added_ms",
            laid.hops[1],
            publish(route.key),
            peer.connection.client("sqs"),
            find_queue_url(peer.connection, "bound"),
        ),
    ):
        offset = cloud.request_log.stat().st_size
        _send_slowly(sending, queue_client, arrives_at)
        added[figure] = _median_ms(hop, list(read_requests(cloud.request_log, offset=offset)))
        progress(f"profile {profile}, {MEASURED} messages, one a second: {added[figure]:.0f} ms {HOPS[figure]}")
        taken |= _take(cloud, hop, sending)
        queue_client.purge_queue(QueueUrl=arrives_at)
    return added, taken


def _take(cloud: Cloud, hop: Hop, send: Callable[[], object]) -> Mapping[str, float]:
    """Send `RATE` messages a second, and count each message's SQS requests and read units on the hop.

    With profile `latency` the trigger invokes the function at once with each batch that it receives.
    """
    offset, units_offset = cloud.request_log.stat().st_size, unit_log(cloud).stat().st_size
    began, number = time.monotonic(), RATE * RATE_S
    with ThreadPoolExecutor(SENDERS) as threads:
        for sent in range(number):
            time.sleep(max(0.0, began + sent / RATE - time.monotonic()))
            threads.submit(send)
    took_s = time.monotonic() - began
    time.sleep(SETTLED_S)
    requests = hop.requests(read_requests(cloud.request_log, offset=offset))
    reads = sum(each.units for each in read_units(unit_log(cloud), offset=units_offset) if each.kind == READ)
    return {
        f"{hop.function}_requests_per_message": requests.total() / number,
        f"{hop.function}_receives_per_message": requests["ReceiveMessage"] / number,
        f"{hop.function}_read_units_per_message": reads / number,
        f"{hop.function}_sent_per_s": number / took_s,
    }


def _send_slowly(send: Callable[[], object], client: Any, url: str) -> None:
    """Send a message a second, each after the previous one has arrived. Raises `NoReply`."""
    for _ in range(WARM_UP + MEASURED):
        sent_s = time.monotonic()
        send()
        found = client.receive_message(QueueUrl=url, WaitTimeSeconds=LONG_POLL_S)
        if not found.get("Messages"):
            raise NoReply(f"nothing has come to {url} within {LONG_POLL_S} s")
        client.delete_message(QueueUrl=url, ReceiptHandle=found["Messages"][0]["ReceiptHandle"])
        time.sleep(max(0.0, sent_s + EVERY_S - time.monotonic()))


def _median_ms(hop: Hop, requests: Sequence[SqsRequest]) -> float:
    """Return the median milliseconds from a message's request to the hop's queue until that to the next queue."""
    sends = [each for each in requests if each.by == BY_CALL and each.action.startswith("SendMessage")]
    sent_ms, sent_on_ms = ([each.at_ms for each in sends if each.queue == name] for name in (hop.src, hop.dest))
    return median(on - at for at, on in list(zip(sent_ms, sent_on_ms, strict=True))[WARM_UP:])


if __name__ == "__main__":
    typer.run(main)
