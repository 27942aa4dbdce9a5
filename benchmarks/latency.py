"""How long a message takes at light load, beyond its stay in a queue: `python -m benchmarks.latency [--json]`.

Two sites on the embedded cloud, with each profile in turn. A message a second is sent through the splitter, through an
exchange, and over a route from site to site. What a hop adds is the time from the message's sending until it is in the
next queue, which SQS notes on it, less what sending to a queue takes itself: how a consumer polls is not in it. The
figures are medians, of warm functions. They are of this machine: on AWS only the batching window is the same.
"""

import time
from collections.abc import Callable
from statistics import median
from typing import Annotated, Any

import typer
from rich.console import Console

from benchmarks.report import Figure, report
from benchmarks.ways import PARAMETERS, PEER_SITE, STACK, STANDARD_INGRESS, asked_sites, lay
from sluice.aws.deployment import stack_outputs
from sluice.aws.federation.publisher import Publisher, Publishing
from sluice.federation.links.links import BridgeDeclaration
from sluice.federation.operations import BindQueue
from sluice.local.cloud import BUILD, Cloud, start_cloud
from sluice.local.deployer import Deployer
from sluice.local.sites import DEFAULT_SITE
from sluice.operator.federated_sites import open_site
from sluice.operator.functions import ControlClient
from sluice.operator.queues import queue_url
from sluice.parameters.event_sources import Profile
from sluice.splitting.operations import ListQueues
from tests.site_access import SiteAccess

MOST_ADDED_MS = 50.0  # a hop, with the default profile
EVERY_S = 1.0
WARM_UP, MEASURED = 3, 30  # messages
LONG_POLL_S = 20
EXCHANGE = "amq.topic"
HOPS = {
    "splitter_added_ms": "through the splitter",
    "exchange_added_ms": "through an exchange",
    "bridge_hop_added_ms": "over a bridge, without the exchanges at its ends",
}


class Lost(Exception):
    """A message didn't come in time."""


def main(
    *, as_json: Annotated[bool, typer.Option("--json", help="The figures as JSON on the last line.")] = False
) -> None:
    """Measure both profiles, one after the other."""
    console = Console(stderr=True)
    figures = {}
    cloud = start_cloud(BUILD / "bench-latency", ends_with_us=True)
    try:
        for profile in Profile:
            console.print(f"profile {profile}: deploying two sites")
            added = measure(cloud, profile, progress=console.print)
            for hop, text in HOPS.items():
                limit = MOST_ADDED_MS if profile is Profile.LATENCY else None
                name = f"ms added {text}, profile {profile}"
                figures[f"{hop}_{profile}"] = Figure(name=name, value=added[hop], limit=limit)
    finally:
        cloud.stop()
    series = {hop: {profile.value: f"{hop}_{profile}" for profile in Profile} for hop in HOPS}
    report("a message a second, medians", figures, as_json=as_json, series=series)


def measure(cloud: Cloud, profile: Profile, *, progress: Callable[[str], None]) -> dict[str, float]:
    """Deploy both sites with the profile, and measure what each hop adds, in milliseconds."""
    context = {
        **PARAMETERS,
        "sluice.federation.queues": [{"name": "bound"}, {"name": "bare"}],
        "sluice.federation.profile": profile.value,
        "sluice.splitting.queues": [{"queue_id": "split", "profile": profile.value}],
        "sluice.pipeline.queue_id": "split",
    }
    cloud = Deployer(cloud=cloud, context=context).deploy(DEFAULT_SITE, PEER_SITE)
    here, peer = SiteAccess(cloud, DEFAULT_SITE), SiteAccess(cloud, PEER_SITE)
    route = BridgeDeclaration(src=EXCHANGE, dest=EXCHANGE, key=f"far.{profile}", fifo=False)
    lay(here, peer, route, queue="bound")
    with asked_sites(cloud):
        open_site(str(here.site)).client.ask(BindQueue(exchange=EXCHANGE, queue="bound", key="here.#"))
    client, bound = here.connection.client("sqs"), queue_url(here.connection, "bound")
    [split] = ControlClient.connect(here.connection).ask(ListQueues())
    bare = queue_url(here.connection, "bare")
    publisher = Publisher(stack_outputs(here.connection, STACK)[STANDARD_INGRESS], client)

    def publish(key: str) -> Callable[[], object]:
        return lambda: publisher.publish(Publishing(exchange=EXCHANGE, key=key, body="x"))

    def send(url: str) -> Callable[[], object]:
        return lambda: client.send_message(QueueUrl=url, MessageBody="x")

    took_ms = {}
    for way, sending, queue_client, arrives_at in (
        ("queue", send(bare), client, bare),
        ("splitter", send(split.source), client, split.main),
        ("exchange", publish("here.key"), client, bound),
        ("route", publish(route.key), peer.connection.client("sqs"), queue_url(peer.connection, "bound")),
    ):
        took_ms[way] = _median_ms(sending, queue_client, arrives_at)
        progress(
            f"profile {profile}, {MEASURED} messages, one a second, {way}: {took_ms[way]:.0f} ms until they arrive"
        )
    exchange_ms = took_ms["exchange"] - took_ms["queue"]
    return {
        "splitter_added_ms": took_ms["splitter"] - took_ms["queue"],
        "exchange_added_ms": exchange_ms,
        "bridge_hop_added_ms": took_ms["route"] - took_ms["queue"] - 2 * exchange_ms,
    }


def _median_ms(send: Callable[[], object], client: Any, url: str) -> float:
    """Send a message a second. Returns how long it takes until a message is in the queue. Raises `Lost`."""
    took_ms = []
    for _ in range(WARM_UP + MEASURED):
        sent_s = time.time()
        send()
        found = client.receive_message(
            QueueUrl=url, WaitTimeSeconds=LONG_POLL_S, MessageSystemAttributeNames=["SentTimestamp"]
        )
        if not found.get("Messages"):
            raise Lost(f"nothing has come to {url} within {LONG_POLL_S} s")
        [message] = found["Messages"]
        took_ms.append(int(message["Attributes"]["SentTimestamp"]) - sent_s * 1000)
        client.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
        time.sleep(max(0.0, sent_s + EVERY_S - time.time()))
    return median(took_ms[WARM_UP:])


if __name__ == "__main__":
    typer.run(main)
