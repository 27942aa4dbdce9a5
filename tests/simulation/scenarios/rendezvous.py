"""The rendezvous under faults: broker, proxy, sweeper and counters as they are deployed, and whoever calls them.

Their events come to the counters from the table's stream. Where they are published is federation's scenario.
"""

from functools import partial
from typing import Any

from sluice.aws.change_logs import DynamoChangeLog
from sluice.aws.documents import EXCHANGES
from sluice.federation.matching.bindings import Bindings, Destination, encode_page
from sluice.federation.matching.exchanges import STANDARD_EXCHANGES, Exchange, ExchangeType
from sluice.rendezvous.counts.stream import FILTERS
from sluice.rendezvous.protocol.messages import DEFAULT_FINGERPRINT, Bridge, RelayPattern
from sluice.rendezvous.settings import (
    BrokerSettings,
    CountersSettings,
    EventSettings,
    ProxySettings,
    RendezvousSettings,
)
from tests.simulation.kernel.faults import Kind
from tests.simulation.kernel.world import Scenario
from tests.simulation.models.queues import Queue
from tests.simulation.models.sqs import redrive
from tests.simulation.models.streams import Stream
from tests.simulation.scenarios.rendezvous_callers import MALFORMED, PATTERN, Callers, Manner, Method
from tests.simulation.scenarios.rendezvous_watch import TABLE, WAITING, Watch

BROKER_TIMEOUT_S, PROXY_TIMEOUT_S, SWEEPER_TIMEOUT_S, COUNTERS_TIMEOUT_S = 10, 20, 60, 30
BRIDGE = Bridge(
    display_name="default",
    websocket_address="wss://snowflake.torproject.net/",
    fingerprint=bytes.fromhex(DEFAULT_FINGERPRINT),
)
NATS = ("unknown", "restricted", "unrestricted", "unrestricted")
METHODS = (Method.SQS,) * 7 + (Method.HTTP, Method.HTTP, Method.LEGACY, Method.AMP)
MANNERS = (Manner.WELL,) * 6 + tuple(Manner)
SETTLED_S = 20.0  # after the faults: what hangs has ended by then
FIRST_S, CALM_S = 90.0, 45.0  # for which there are callers: from the beginning, and when that has settled
SWEPT_S = 900.0  # after the faults: by then all is swept but mailboxes
TOGETHER = 0.4  # of the clients come as the one before them does


class Rendezvous(Scenario):
    """The scenario.

    Clients and volunteers come for a minute and a half, and again when faults are over. In between what is left of the
    first is swept. A mailbox is swept after an hour and a quarter, so that long nobody comes any more.
    """

    faulty_s = 220.0
    settles_s = 5_000.0
    clients = 12
    late_clients = 4  # when faults are over
    volunteers = 6
    strays = 2  # whose messages have no name, or none that may be
    held_min: tuple[int, ...] = (1, 1, 4)  # one of these
    counters_window_s = 5.0

    def build(self) -> None:
        """Deploy, and plan who comes when."""
        world, chance = self.world, self.world.chance
        expires_late_s = chance.choice([0.0, 60.0, 172_800.0])
        for table in (TABLE, WAITING):
            world.dynamodb.make_table(table, expires_late_s=expires_late_s)
        world.pace = chance.choice([1.0, 4.0, 10.0])
        self._deploy(held_min=chance.choice(self.held_min))
        self.callers = self.make_callers()
        world.sqs.observers.append(self.watch.observe)
        self._plan_volunteers()
        self._plan_clients()

    def make_callers(self) -> Callers:
        """Make them; the functions are deployed."""
        return Callers(world=self.world, watch=self.watch, proxy=self.proxy, http=self.http, offers_url=self.offers.url)

    def _plan_volunteers(self) -> None:
        world, chance = self.world, self.world.chance
        for number in range(self.volunteers):
            name, nat, manner = f"volunteer-{number}", chance.choice(NATS), chance.choice(MANNERS)
            pause_s = chance.choice([5.0, 5.0, 20.0])
            serve = partial(self.callers.volunteer, name, nat, manner, pause_s=pause_s, until_s=world.now + FIRST_S)
            again = partial(serve, until_s=world.now + self.faulty_s + SETTLED_S + CALM_S)
            after_s = chance.random() * SETTLED_S
            if world.step():
                world.spawn(name, serve, after_s=after_s)
                world.spawn(f"{name}-again", again, after_s=self.faulty_s + after_s)
            if world.happens(Kind.VANISHED_QUEUE):
                world.spawn("vandal", self.callers.vandal, after_s=chance.random() * FIRST_S)

    def _plan_clients(self) -> None:
        world, chance = self.world, self.world.chance
        after_s = 0.0
        for number in range(self.clients + self.late_clients):
            is_late, is_alone = number >= self.clients, chance.random() > TOGETHER
            if is_alone or number in {0, self.clients}:
                after_s = chance.random() * (CALM_S - SETTLED_S if is_late else FIRST_S)
                after_s += self.faulty_s + SETTLED_S if is_late else 0.0
            name, nat, method = f"client-{number}", chance.choice(NATS), chance.choice(METHODS)
            is_well = method is Method.LEGACY or chance.random() < 0.85
            offer = partial(
                self.callers.client,
                name,
                nat,
                method,
                malformed=None if is_well else chance.randrange(len(MALFORMED)),
                times=chance.choice([1] * 9 + [2]),
            )
            if world.step():
                world.spawn(name, offer, after_s=after_s)
        for number in range(self.strays):
            stray = partial(self.callers.nobody, chance.choice([None, "", "../else", "x" * 64]))
            after_s = chance.random() * FIRST_S
            if world.step():
                world.spawn(f"stray-{number}", stray, after_s=after_s)

    def _deploy(self, *, held_min: int) -> None:
        world = self.world
        dead = world.queue("rendezvous-dead", {"MessageRetentionPeriod": "1209600"})
        brokers = {
            "MessageRetentionPeriod": "300",
            "VisibilityTimeout": str(6 * BROKER_TIMEOUT_S),
            "RedrivePolicy": redrive(dead.arn, 10),
        }
        self.offers = world.queue("snowflake-broker", brokers)
        ingress = world.queue("ingress")
        told = EventSettings(site="home")
        takes_offers = BrokerSettings(
            table=TABLE,
            waiting_table=WAITING,
            dead_letters_url=dead.url,
            bridges=(BRIDGE,),
            events=told,
        )
        broker = world.function("broker", takes_offers, timeout_s=BROKER_TIMEOUT_S)
        # Named otherwise than in production: actors called `client-…` are callers.
        self.http = world.function("http", takes_offers, timeout_s=PROXY_TIMEOUT_S, handler="functions.client.handler")
        self.proxy = world.function(
            "proxy",
            ProxySettings(
                table=TABLE,
                waiting_table=WAITING,
                dead_letters_url=dead.url,
                offers_url=self.offers.url,
                allowed_relay_pattern=RelayPattern.parse(PATTERN),
                held_proxies_min=held_min,
                held_proxies_max=200,
                events=told,
            ),
            timeout_s=PROXY_TIMEOUT_S,
        )
        sweeps = RendezvousSettings(table=TABLE, waiting_table=WAITING, dead_letters_url=dead.url)
        sweeper = world.function("sweeper", sweeps, timeout_s=SWEEPER_TIMEOUT_S, failures=dead)
        world.lambdas.trigger(broker, self.offers, batch_size=10, concurrency=2)
        rest_s = world.now + self.faulty_s
        world.lambdas.every_minute(sweeper, {}, quiet=(rest_s + SWEPT_S, rest_s + self.settles_s - SWEPT_S))
        stream = self._deploy_counters(ingress)
        self.watch = Watch(
            world=world,
            broker=broker,
            proxy=self.proxy,
            offers=self.offers,
            ingress=ingress,
            stream=stream,
            is_bound=self.is_bound,
            dead=dead,
        )
        stream.observers.append(self.watch.told)

    def _deploy_counters(self, ingress: Queue) -> Stream:
        """Have events counted, and published in half of the worlds; some tables' partitions are split meanwhile."""
        world = self.world
        settings = CountersSettings(
            table=TABLE,
            exchange="events",
            ingress_url=ingress.url,
            site="home",
            federation_table=TABLE,
        )
        counters = world.function("counters", settings, timeout_s=COUNTERS_TIMEOUT_S)
        stream = Stream(world, counters, filters=FILTERS, window_s=self.counters_window_s)
        chance = stream.actor.chance  # its own: the others' luck stays what it is
        stream.batch = chance.choice([2, 5, 1_000])
        world.dynamodb.tables[TABLE].cancel = stream.cancel
        for _ in range(chance.choice([0, 0, 1, 2])):
            world.scheduler.at(world.now + chance.random() * self.faulty_s, stream.split)
        self.is_bound = chance.random() < 0.5
        if self.is_bound:
            bindings = Bindings(
                exchanges=(*STANDARD_EXCHANGES, Exchange(name="events", type=ExchangeType.TOPIC)),
                queues=(Destination(queue="seen", url="https://sqs.test/000000000000/seen"),),
                bound={"events": {"seen": {"rendezvous.#": {}}}},
            )
            client: Any = world.dynamodb
            log = DynamoChangeLog(client=client, table=TABLE, name=EXCHANGES, new_token=lambda: "token")
            world.check(log.save(encode_page(bindings), after=0, version=1), "nothing was bound")
        return stream

    def at_rest(self) -> None:
        """Check what holds when all is over."""
        self.watch.at_rest()
