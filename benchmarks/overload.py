"""Measures whether every client gets a reply when very many send offers at once and no proxy polls.

`python -m benchmarks.overload [--json] [--offers N]` sends offers as fast as SQS accepts them, each of another client.
As Snowflake's client does, each looks for its queue for five seconds and then receives for twenty seconds, here once a
second. Results are how many clients read a reply, and how long after sending.
"""

import statistics
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from rich.console import Console

from benchmarks.report import Figure, report
from sluice.aws.rendezvous.clients import ClientCredentials, open_client
from sluice.local.cloud import BUILD, start_cloud
from sluice.local.deployer import Deployer
from sluice.local.sites import DEFAULT_SITE
from sluice.peers.methods import generate_client_id
from sluice.rendezvous.protocol.messages import ANSWER_QUEUE_PREFIX
from tests.site_access import SiteAccess
from tests.traffic import draw_number, offer_body

LOOK_UPS, LOOK_UP_EVERY_S = 5, 1.0
RECEIVE_S = 20
HEARD_PART = 0.99
WARM_UP = 10
CALLERS = 32  # threads of this process, which sends and receives for all clients


@dataclass(slots=True)
class Client:
    """A client: when it sent its offer, and when it read which reply."""

    client_id: str
    sent_at: float = 0.0
    url: str = ""
    heard: str = ""
    heard_after_s: float = 0.0


def main(
    *,
    offers: Annotated[int, typer.Option(min=1)] = 1_000,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON on the last line, too.")] = False,
) -> None:
    """Send the offers, and print the replies."""
    cloud = start_cloud(BUILD / "bench-overload", ends_with_us=True)
    console = Console(stderr=True)
    try:
        with console.status("deploying") as status, ThreadPoolExecutor(CALLERS) as executor:
            cloud = Deployer(cloud=cloud, context={}, progress=status.update).deploy(DEFAULT_SITE)
            crowd = Crowd(SiteAccess(cloud, DEFAULT_SITE), executor)
            status.update("starting the functions")
            crowd.offer(WARM_UP)
            status.update(f"{offers} offers at once")
            clients = crowd.offer(offers)
    finally:
        cloud.stop()
    report(f"Overload: {offers} offers at once, no proxies", figures(clients), as_json=as_json)


@dataclass(frozen=True, slots=True)
class Crowd:
    """All clients, in one process."""

    site: SiteAccess
    executor: ThreadPoolExecutor

    def offer(self, number: int) -> Sequence[Client]:
        """Send this many offers, and wait until each client has read a reply or given up."""
        sqs = self._client()
        clients = [Client(generate_client_id()) for _ in range(number)]
        list(self.executor.map(lambda client: self._send(sqs, client), clients))
        deadline = time.monotonic() + LOOK_UPS * LOOK_UP_EVERY_S + RECEIVE_S
        left = list(clients)
        while left and time.monotonic() < deadline:
            began = time.monotonic()
            list(self.executor.map(lambda client: self._look(sqs, client), left))
            left = [client for client in left if not client.heard]
            time.sleep(max(0.0, LOOK_UP_EVERY_S - (time.monotonic() - began)))
        return clients

    def _client(self) -> Any:
        return open_client(
            ClientCredentials.parse(self.site.sqscreds),
            region=self.site.site.region,
            endpoint_url=self.site.cloud.endpoint,
        )

    def _send(self, sqs: Any, client: Client) -> None:
        body = offer_body(draw_number())
        attributes = {"ClientID": {"DataType": "String", "StringValue": client.client_id}}
        sqs.send_message(QueueUrl=self.site.deployment.offers_queue_url, MessageBody=body, MessageAttributes=attributes)
        client.sent_at = time.monotonic()

    def _look(self, sqs: Any, client: Client) -> None:
        if not client.url:
            try:
                client.url = sqs.get_queue_url(QueueName=ANSWER_QUEUE_PREFIX + client.client_id)["QueueUrl"]
            except sqs.exceptions.QueueDoesNotExist:
                return
        for message in sqs.receive_message(QueueUrl=client.url).get("Messages", []):
            client.heard, client.heard_after_s = message["Body"], time.monotonic() - client.sent_at


def figures(clients: Sequence[Client]) -> dict[str, Figure]:
    """Return the figures for programs, by key."""
    heard = [client.heard_after_s for client in clients if client.heard]
    texts = Counter(client.heard for client in clients)
    hundredths = statistics.quantiles(heard, n=100, method="inclusive") if len(heard) > 1 else [0.0] * 99
    return {
        "replies": Figure(
            name=f"clients that got a reply, at least {round(HEARD_PART * len(clients))}", value=len(heard)
        ),
        "different_replies": Figure(name="number of different replies", value=len(texts.keys() - {""})),
        "heard_s_p50": Figure(name="offer to reply, median, s", value=hundredths[49]),
        "heard_s_p99": Figure(name="offer to reply, 99th percentile, s", value=hundredths[98]),
    }


if __name__ == "__main__":
    typer.run(main)
