"""What is sent while all goes wrong: an application's messages at both sites, and clients' offers with proxies."""

import asyncio
import itertools
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import aiohttp

from sluice.aws.rendezvous.clients import ClientCredentials, ClientQueues, open_client
from sluice.errors import CallFailed, QueueGone
from sluice.peers.methods import Answered, Denied, generate_client_id, parse_reply
from sluice.rendezvous.protocol.matching import PATIENCE_MS
from sluice.rendezvous.protocol.messages import ANSWER_QUEUE_PREFIX
from tests.chaos.totals import Hearing
from tests.chaos.world import EVENTS, ORDERS, QUEUE, World, insist
from tests.deployed import Deployed
from tests.e2e.federated import string
from tests.e2e.sessions import Splitting
from tests.traffic import Proxies, offer_body

COUNTRIES = ("DE", "FR", "IR")
EVERY_S = 1.0
EACH_TIME = 4  # messages, by each way
SELDOM = 20  # times, after which something is sent that can't arrive
PROXIES = 4
OFFER_EVERY_S = 2.0
HEARD_WITHIN_S = 110.0  # a client that is more patient than it has to be; then its queue is swept
WAIT_S = 5
COLD_S = 10.0  # after the cloud's return, until functions have started
PATIENCE_S = PATIENCE_MS / 1000


@dataclass
class Application:
    """Publishes and sends a little every second. Each message says in its body who it is."""

    world: World
    sent: dict[str, str] = field(default_factory=dict)  # country by id
    orders: list[str] = field(default_factory=list)  # ids, in the order in which they were sent
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def run(self, stop: threading.Event) -> None:
        """Until it is told to end. What it began to send is sent then."""
        splitting = Splitting(self.world.deployed(self.world.second))
        for turn in itertools.count():
            self._send(splitting, COUNTRIES[turn % len(COUNTRIES)])
            if turn % SELDOM == 0:
                self._send_what_cannot_arrive(splitting)
            if stop.wait(EVERY_S):
                return

    def _send(self, splitting: Splitting, country: str) -> None:
        first, said = self.world.first, {"country": country}
        texts = {name: string(text) for name, text in said.items()}
        bodies = self._new("published", country)
        insist(first.publish, EVENTS, "app.new", bodies, fifo=False, attributes=texts)
        insist(splitting.send, QUEUE, self._new("split", country), lambda _: said)
        orders = self._new("order", country)
        self.orders += map(name_of, orders)
        insist(first.publish, ORDERS, "orders.new", orders)

    def _send_what_cannot_arrive(self, splitting: Splitting) -> None:
        insist(self.world.second.publish, "nowhere", "", self._new("astray", "", 1), fifo=False)
        insist(splitting.send, QUEUE, self._new("unreadable", "", 1), lambda _: {"x-qpid": "{"})

    def _new(self, kind: str, country: str, number: int = EACH_TIME) -> Sequence[str]:
        ids = [f"{kind}-{each}" for each in itertools.islice(self._numbers, number)]
        self.sent |= dict.fromkeys(ids, country)
        return [json.dumps({"id": id_}) for id_ in ids]


def name_of(body: str) -> str:
    """Who a message is: an application's says so, as does an event of the rendezvous."""
    id_: str = json.loads(body)["id"]
    return id_


@dataclass(frozen=True, slots=True)
class Told:
    """When a client began to send its offer, and what it heard."""

    began_at: float
    hearing: Hearing


@dataclass
class Offering:
    """Clients that come one after the other, and proxies that answer at once, at one site."""

    site: Deployed
    told: list[Told] = field(default_factory=list)

    def run(self, stop: threading.Event) -> None:
        """Until it is told to end. Who waits for a reply waits on."""
        asyncio.run(self._run(stop))

    async def _run(self, stop: threading.Event) -> None:
        credentials = ClientCredentials.parse(self.site.client_sqscreds)
        client = open_client(credentials, region=self.site.region, endpoint_url=self.site.endpoint)
        async with aiohttp.ClientSession() as session, ClientQueues(client, self.site.offers_queue_url) as queues:
            proxies = Proxies(session, self.site.broker_url)
            serving = [asyncio.create_task(proxies.serve()) for _ in range(PROXIES)]
            clients = []
            while not stop.is_set():
                clients.append(asyncio.create_task(self._offer(queues)))
                await asyncio.sleep(OFFER_EVERY_S)
            self.told += await asyncio.gather(*clients)
            for task in serving:
                task.cancel()
            for ended in await asyncio.gather(*serving, return_exceptions=True):
                assert isinstance(ended, asyncio.CancelledError), ended

    async def _offer(self, queues: ClientQueues) -> Told:
        began_at, client_id = time.monotonic(), generate_client_id()
        try:
            await queues.send_offer(client_id, offer_body(client_id))
        except CallFailed:
            return Told(began_at, Hearing.UNSENT)
        return Told(began_at, await self._hear(queues, client_id, began_at + HEARD_WITHIN_S))

    async def _hear(self, queues: ClientQueues, client_id: str, until: float) -> Hearing:
        while time.monotonic() < until:
            with suppress(QueueGone, CallFailed):
                url = await queues.queue_url(ANSWER_QUEUE_PREFIX + client_id)
                body = await queues.receive(url, wait_s=WAIT_S)
                reply = parse_reply(body) if body is not None else None
                if isinstance(reply, Answered):
                    return Hearing.ANSWERED
                if isinstance(reply, Denied):
                    return Hearing.DENIED
            await asyncio.sleep(1)
        return Hearing.UNHEARD


def heard(told: Sequence[Told], away: Sequence[tuple[float, float]]) -> Counter[Hearing]:
    """Count, and tell those that the cloud's absence cut off from the others that heard nothing."""

    def hearing(one: Told) -> Hearing:
        is_cut_off = any(down_at - PATIENCE_S <= one.began_at <= up_at + COLD_S for down_at, up_at in away)
        return Hearing.CUT_OFF if one.hearing is Hearing.UNHEARD and is_cut_off else one.hearing

    return Counter(map(hearing, told))
