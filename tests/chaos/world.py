"""Two sites of a harsh cloud that goes away and comes back: how they are laid out, and how they are asked meanwhile.

first:   applications and rendezvous ─▶ exchange `events` ─▶ audit
└─ exchange `amq.topic` (FIFO) ─┐
second:  exchange `events` ◀─ dynamic route                         ▼ static route
└─▶ audit, and split queue `pipeline` ─▶ sessions      FIFO queue
└▶ main queue ─▶ Spark
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import ParamSpec, TypeVar

from botocore.exceptions import BotoCoreError, ClientError

from sluice.errors import DestinationFault
from sluice.federation.operations import SweepSite
from sluice.local.cloud import Cloud, start_cloud
from sluice.local.deployer import Deployer
from sluice.local.harsh.behaviours import Behaviours
from sluice.local.sites import DEFAULT_SITE, Site
from tests.deployed import Deployed
from tests.e2e.federated import PREFIX, FederatedSite

P = ParamSpec("P")
T = TypeVar("T")
Work = Callable[[threading.Event], None]  # it ends when it is told to

SECOND_SITE = Site("111111111111", "us-east-1")
INSISTS_S = 180.0  # longer than the cloud is away
PAUSE_S = 0.5
EVENTS, ORDERS = "events", "amq.topic"
QUEUE = "pipeline"  # the split queue, by its queue_id
OPERATIONAL_WITHIN_S = 240.0
BETWEEN = ("snowflake-broker", "Ingress", "SplitpipelineSource", "sluice-bridge-", "sluice-tmp-")  # of queues
PARAMETERS: dict[str, object] = {
    "sluice.rendezvous.keep_state": False,
    "sluice.rendezvous.counters_window_s": 1,
    "sluice.splitting.queues": [{"queue_id": QUEUE}],
    "sluice.splitting.counts_settle_s": 3,  # this cloud's counts are right at once
    "sluice.federation.counts_settle_s": 3,
    "sluice.federation.peer_accounts": [DEFAULT_SITE.account, SECOND_SITE.account],
    "sluice.federation.queue_names": [f"{PREFIX}*"],
}


def insist(call: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """Call until it is done, as who is patient does: functions die, and the cloud is away for a while."""
    deadline = time.monotonic() + INSISTS_S
    while True:
        try:
            return call(*arguments, **named)
        except (DestinationFault, BotoCoreError, ClientError):
            if time.monotonic() > deadline:
                raise
            time.sleep(PAUSE_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class Queues:
    """Names of the queues that are read besides: what each site's exchange was given, and the orders."""

    first_audit: str
    second_audit: str
    orders: str


@dataclass
class World:
    """The cloud, and the two sites once they are deployed."""

    cloud: Cloud
    away: list[tuple[float, float]] = field(default_factory=list)  # from when until when the cloud was

    @classmethod
    def start(cls, folder: Path, harsh: Behaviours | None) -> "World":
        """A cloud whose state is kept, with both sites deployed."""
        cloud = start_cloud(folder, keep_state=True, ends_with_us=True, harsh=harsh)
        try:
            return cls(Deployer(cloud=cloud, context=PARAMETERS).deploy(DEFAULT_SITE, SECOND_SITE))
        except BaseException:
            cloud.stop()
            raise

    def restart(self) -> None:
        """Stop the cloud, whatever is under way, and start it with the state that it had."""
        down_at, stopped_at = time.monotonic(), time.time()
        self.cloud.stop()
        kept = self.cloud.folder / "state" / "sqs.json"
        assert kept.stat().st_mtime > stopped_at, "the cloud was killed before it had kept its state"
        again = start_cloud(self.cloud.folder, keep_state=True, ends_with_us=True, harsh=self.cloud.harsh)
        assert again.endpoint == self.cloud.endpoint
        self.cloud = again
        self.away.append((down_at, time.monotonic()))

    @cached_property
    def first(self) -> FederatedSite:
        return FederatedSite(self.cloud, DEFAULT_SITE)

    @cached_property
    def second(self) -> FederatedSite:
        return FederatedSite(self.cloud, SECOND_SITE)

    @property
    def sites(self) -> tuple[FederatedSite, FederatedSite]:
        return self.first, self.second

    def deployed(self, site: FederatedSite) -> Deployed:
        """The same site, as rendezvous and splitting are asked."""
        return Deployed(self.cloud, site.site, relay_port=0)

    def lay(self) -> Queues:
        """Exchanges, bindings and routes, once they carry."""
        for site in self.sites:
            site.ask(SweepSite())  # declares the exchange of events, which the next minute would
        self.second.bind(EVENTS, QUEUE, "#")
        queues = Queues(
            first_audit=self.first.bound(EVENTS, "#", fifo=False),
            second_audit=self.second.bound(EVENTS, "#", fifo=False),
            orders=self.second.bound(ORDERS, "orders.#"),
        )
        link = self.second.link(self.first)
        self.second.declare("events", link, src=EVENTS, dest=EVENTS, dynamic=True)
        self.second.declare("orders", link, src=ORDERS, dest=ORDERS, key="orders.#")
        for route in ("events", "orders"):
            self.second.until_operational(route, within_s=OPERATIONAL_WITHIN_S)
        return queues

    def between(self) -> dict[str, int]:
        """Messages, by queue, that are still on their way to where they are read."""
        counts = {}
        for site in self.sites:
            for url in insist(site.sqs.list_queues).get("QueueUrls", []):
                name = url.rsplit("/", 1)[1]
                if any(part in name for part in BETWEEN):
                    counts[name] = insist(site.count, name)
        return {name: count for name, count in counts.items() if count}


@contextmanager
def in_background(*works: Work) -> Iterator[None]:
    """Has each work done in a thread of its own, which is told when to end. Raises what the first of them raised."""
    stop = threading.Event()
    raised: list[BaseException] = []

    def guarded(work: Work) -> None:
        try:
            work(stop)
        except BaseException as error:
            raised.append(error)
            raise

    threads = [threading.Thread(target=guarded, args=(work,), name=str(work)) for work in works]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    if raised:
        raise raised[0]
