"""A site of a simulated federation: its queues, table and functions, wired as its stacks wire them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import asdict

from sluice.federation.declared import Declared
from sluice.federation.links.links import Address, Introduction
from sluice.federation.links.peers import Peer
from sluice.federation.operations import SweepSite
from sluice.federation.router import Ingress
from sluice.federation.settings import BridgeSettings, ExchangeSettings, LinksSettings, SiteNames
from sluice.settings import Settings
from tests.simulation.kernel.world import Site, World
from tests.simulation.models.lambdas import Function
from tests.simulation.models.policies import policy_for
from tests.simulation.models.queues import Queue
from tests.simulation.models.sqs import redrive

EXCHANGE_TIMEOUT_S, BRIDGE_TIMEOUT_S, LINKS_TIMEOUT_S = 30, 30, 60
MANY_RECEIVES = 20
STANDARD_BATCH, SMALL_BATCH = 100, 10
WINDOW_S = 1
CONCURRENCY, LEAST_CONCURRENCY = 10, 2
TICKS_KEPT_S = 3_600
BOUND_PREFIX = "sluice-queue-"
CONTROL, INGRESS, LINK_INGRESS = "links.fifo", "ingress", "link-ingress"
PER_GROUP = {"DeduplicationScope": "messageGroup", "FifoThroughputLimit": "perMessageGroupId"}


@dataclass(frozen=True, slots=True, kw_only=True)
class FederatedSite:
    """A site as its deployment makes it. `bound` are the queues that operators may bind, by name."""

    tag: str
    place: Site
    table: str
    links: Function
    dead: Queue
    fifo_dead: Queue
    control: Queue
    ticks: Queue
    ingress: Queue
    fifo_ingress: Queue
    link_ingress: Queue
    fifo_link_ingress: Queue
    bound: dict[str, Queue]

    @property
    def passed(self) -> Sequence[Queue]:
        """The queues that messages pass, and none stays in."""
        return self.control, self.ticks, self.ingress, self.fifo_ingress, self.link_ingress, self.fifo_link_ingress

    @property
    def arns(self) -> str:
        """How the ARNs of the site's queues begin."""
        return self.place.arn("sqs", "")

    def function(self, name: str) -> str:
        """Name one of the site's functions: all of a world have one namespace."""
        return function_name(self.tag, name)


def function_name(tag: str, name: str) -> str:
    """Name a site's function."""
    return f"{tag}_{name}"


def address_of(tag: str, place: Site) -> Address:
    """Say where a site is: what operators tell each other."""
    urls = f"https://sqs.{place.region}.amazonaws.com/{place.account}/"
    return Address(
        tag=tag,
        region=place.region,
        account=place.account,
        control_queue_url=urls + CONTROL,
        ingress_url=urls + LINK_INGRESS,
        fifo_ingress_url=f"{urls}{LINK_INGRESS}.fifo",
    )


def introduction_of(tag: str, place: Site) -> Introduction:
    """Say who a site is: what operators tell each other."""
    return Introduction(**asdict(address_of(tag, place)), senders=(place.role,))


def deployed(
    world: World,
    tag: str,
    place: Site,
    *,
    accounts: Sequence[str],
    declared: Declared,
    peers: Sequence[Peer],
    bound: Sequence[str],
) -> FederatedSite:
    """Deploy a site. `accounts` are of all sites, `bound` the names of queues that are there to be bound."""
    with world.at(place):
        return _Deployment(world, tag, place, accounts, declared, peers).site(bound)


@dataclass(slots=True)
class _Deployment:
    world: World
    tag: str
    place: Site
    accounts: Sequence[str]
    declared: Declared
    peers: Sequence[Peer]
    dead: Queue = field(init=False)
    fifo_dead: Queue = field(init=False)

    def site(self, bound: Sequence[str]) -> FederatedSite:
        world, table = self.world, f"federation-{self.tag}"
        world.dynamodb.make_table(table)
        self.dead, self.fifo_dead = world.queue("dead"), world.queue("dead.fifo")
        lets_in = {"Policy": policy_for(self.accounts, "SendMessage")}
        control = self.queue(CONTROL, visibility_s=6 * LINKS_TIMEOUT_S, **lets_in)
        ticks = self.queue("ticks", visibility_s=6 * LINKS_TIMEOUT_S, MessageRetentionPeriod=str(TICKS_KEPT_S))
        visibility_s = 6 * EXCHANGE_TIMEOUT_S + WINDOW_S
        own = [self.queue(f"{INGRESS}{end}", visibility_s=visibility_s) for end in ("", ".fifo")]
        from_links = [self.queue(f"{LINK_INGRESS}{end}", visibility_s=visibility_s, **lets_in) for end in ("", ".fifo")]
        shared = {"table": table, "dead_letters_url": self.dead.url}
        ingresses = {each.name: Ingress(fifo=each.fifo, from_links=each in from_links) for each in (*own, *from_links)}
        exchange = self.function(
            "exchange",
            ExchangeSettings(site=self.tag, ticks_queue_url=ticks.url, ingresses=ingresses, **shared),
            EXCHANGE_TIMEOUT_S,
        )
        for each in (*own, *from_links):
            batch = {"batch_size": SMALL_BATCH} if each.fifo else {"batch_size": STANDARD_BATCH, "window_s": WINDOW_S}
            world.lambdas.trigger(exchange, each, concurrency=CONCURRENCY, **batch)
        self.function(
            "bridge",
            BridgeSettings(site=self.tag, account=self.place.account, ticks_queue_url=ticks.url, **shared),
            BRIDGE_TIMEOUT_S,
        )
        links = self.function("links", self._links_settings(ticks, shared), LINKS_TIMEOUT_S, failures=self.dead)
        for each in (control, ticks):
            world.lambdas.trigger(links, each, batch_size=SMALL_BATCH, concurrency=LEAST_CONCURRENCY)
        sweep = {"op": SweepSite.__struct_config__.tag}
        world.lambdas.every_minute(links, sweep)
        return FederatedSite(
            tag=self.tag,
            place=self.place,
            table=table,
            links=links,
            dead=self.dead,
            fifo_dead=self.fifo_dead,
            control=control,
            ticks=ticks,
            ingress=own[0],
            fifo_ingress=own[1],
            link_ingress=from_links[0],
            fifo_link_ingress=from_links[1],
            bound={name: self.queue(name, visibility_s=BRIDGE_TIMEOUT_S) for name in bound},
        )

    def queue(self, name: str, *, visibility_s: int, **attributes: str) -> Queue:
        fifo = name.endswith(".fifo")
        letters = self.fifo_dead if fifo else self.dead
        attributes |= {"VisibilityTimeout": str(visibility_s), "RedrivePolicy": redrive(letters.arn, MANY_RECEIVES)}
        return self.world.queue(name, attributes | PER_GROUP if fifo else attributes)

    def function(self, name: str, settings: Settings, timeout_s: int, **how: Any) -> Function:
        module = f"functions.{name}.handler"
        return self.world.function(function_name(self.tag, name), settings, timeout_s=timeout_s, handler=module, **how)

    def _links_settings(self, ticks: Queue, shared: dict[str, str]) -> LinksSettings:
        return LinksSettings(
            here=address_of(self.tag, self.place),
            senders=(self.place.role,),
            peers=tuple(self.peers),
            ticks_queue_url=ticks.url,
            bridge_function=function_name(self.tag, "bridge"),
            bridge_dead_letters_arn=self.dead.arn,
            fifo_bridge_dead_letters_arn=self.fifo_dead.arn,
            accounts=tuple(self.accounts),
            stages=None,
            counts_settle_s=60,
            names=SiteNames(queues={}, patterns=(f"{BOUND_PREFIX}*",)),
            declaration=self.declared.to_json(),
            **shared,
        )
