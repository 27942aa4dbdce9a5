"""Federation under faults: up to three sites, their exchanges, routes and links, publishers, consumers and operators.

What always holds is in `federation_checks`; who gets what, said again by hand, in `federation_routes`.
"""

from contextlib import suppress
from functools import partial
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError
from msgspec import UNSET, to_builtins
from msgspec.structs import replace

from sluice.aws.federation.publisher import Publisher, PublishRequest
from sluice.errors import SluiceError
from sluice.federation.links.links import RouteKind
from sluice.federation.links.peers import Peer
from sluice.federation.links.states import LinkState
from sluice.federation.matching.metadata import KEY_ATTRIBUTE
from sluice.federation.operations import (
    AddBridge,
    AddLink,
    BindQueue,
    ChangeBridge,
    CloseBridge,
    ShowSite,
    SweepSite,
    UnbindQueue,
)
from sluice.operations import Operation
from tests.peer_rules import EVERYTHING
from tests.simulation.kernel.faults import Kind
from tests.simulation.kernel.outages import Answer, Outage
from tests.simulation.kernel.world import Scenario
from tests.simulation.models.queues import Queue
from tests.simulation.scenarios.federation_checks import Checks, Place
from tests.simulation.scenarios.federation_routes import (
    ACCOUNTS,
    ADMITTED,
    CONSUMED,
    FEED,
    KEYS,
    PLACES,
    Bound,
    Plan,
    Route,
    drawn,
)
from tests.simulation.scenarios.federation_sites import FederatedSite, deployed, introduction_of

GROUPS = ("g0", "g1")
POLL_S = 20
LOOKS_EVERY_S, ARRIVES_WITHIN_S = 20.0, 15.0
FAILED_ONCE = f"{LinkState.FAILED}: "  # of a route: then comes the call that failed
OUTAGE_S = (5, 45)
ANSWERS = (Answer.NONE, Answer.NONE, Answer.UNAVAILABLE, Answer.REFUSED)


class Federation(Scenario):
    """The scenario."""

    faulty_s = 65.0
    settles_s = 1_500.0
    looks_every_s = LOOKS_EVERY_S
    bursts, binders = 5, 2

    def build(self) -> None:
        """Deploy, and plan who does what when."""
        world = self.world
        world.pace = world.chance.choice([1.0, 10.0, 30.0])
        self.plan = self.draw()
        self.sites = {tag: self._deployed(tag) for tag in self.plan.tags}
        self.checks = Checks(world, self.plan, self.sites)
        self.made = self.asking = 0
        self.rests, self.not_yet = False, "nobody has looked"
        for number in range(self.bursts):
            at_s = 5 + world.chance.random() * self.faulty_s * 0.85
            if world.step():
                world.spawn(f"burst{number}", self._burst, after_s=at_s)
        for number in range(self.binders):
            bound, lasts_s, at_s = self._temporary(), world.chance.random() * 40, world.chance.random() * 60
            if bound is not None and world.step():
                self.plan.bindings.append(bound)
                world.spawn(f"binder{number}", partial(self._bind, bound, lasts_s=lasts_s), after_s=at_s)
        for route in self.plan.routes:
            if not route.lasts and world.step():
                world.spawn(f"operator-{route.name}", partial(self._lay, route), after_s=world.chance.random() * 40)
        for site in self.sites.values():
            for name in CONSUMED:
                world.spawn(f"consumer-{site.tag}-{name}", partial(self._consume, site.bound[name]), site=site.place)
        self._disturb()

    def draw(self) -> Plan:
        """Draw what there is."""
        return drawn(self.world.chance)

    def _deployed(self, tag: str) -> FederatedSite:
        others = [introduction_of(each, PLACES[each]) for each in self.plan.tags if each != tag]
        world, declared = self.world, self.plan.declared(tag)
        site = deployed(
            world,
            tag,
            PLACES[tag],
            accounts=ACCOUNTS,
            declared=declared,
            peers=[replace(Peer.from_introduction(other, **EVERYTHING), declared=True) for other in others],
            bound=[*CONSUMED, FEED],
        )
        sweep = {"op": SweepSite.__struct_config__.tag}
        # The schedule's first comes within a minute: the sooner, the more there is to see.
        at_s = world.now + 3 * world.chance.random()
        world.scheduler.at(at_s, partial(world.lambdas.invoke_later, site.links, sweep))
        return site

    def _disturb(self) -> None:
        """Plan a site's outage, and a bound queue that somebody deletes."""
        world, chance = self.world, self.world.chance
        away = self.sites[chance.choice(self.plan.tags)]
        if world.happens(Kind.OUTAGE):
            least_s, most_s = OUTAGE_S
            lasts_s = least_s + chance.random() * (most_s - least_s)
            begins_at = world.now + 10 + chance.random() * (self.faulty_s - lasts_s - 10)
            outage = Outage(until_s=begins_at + lasts_s, answer=chance.choice(ANSWERS), to_others=chance.random() < 0.5)
            world.scheduler.at(begins_at, partial(world.outages.begin, away.place, outage))
        robbed = self.sites[chance.choice(self.plan.tags)]
        name = chance.choice(CONSUMED)
        if world.happens(Kind.VANISHED_QUEUE):
            world.spawn("vandal", partial(self._delete, robbed, name), after_s=chance.random() * self.faulty_s)

    # Who is there

    def _burst(self) -> None:
        """Publish some messages at one site."""
        self.asking += 1
        site = self.sites[self.world.chance.choice(self.plan.tags)]
        self.world.scheduler.current.site = site.place
        feeds = [feed.source for feed in self.plan.feeds]
        if site.tag in feeds and self.world.chance.random() < 0.5:
            self._feed(site)
        else:
            self._publish(site, self.world.chance.choice(self.plan.exchanges))
        self.asking -= 1

    def _publish(self, site: FederatedSite, exchange: str) -> None:
        """Publish to an exchange, by one of the site's ways in, a few at once."""
        world, chance = self.world, self.world.chance
        queue = chance.choice([site.ingress, site.fifo_ingress])
        for _ in range(2):
            messages = [self._message(exchange) for _ in range(chance.choice([1, 2, 4]))]
            # What SQS took is known, whatever the publisher hears.
            with suppress(SluiceError):
                Publisher(queue.url, world.client("sqs")).publish_all(messages)
            world.sleep(chance.random())

    def _message(self, exchange: str) -> PublishRequest:
        chance = self.world.chance
        self.made += 1
        return PublishRequest(
            exchange=exchange,
            key=chance.choice(KEYS),
            body=f"m{self.made:04d}",
            group=chance.choice(GROUPS),
            deduplication_id=f"d{self.made}",
        )

    def _feed(self, site: FederatedSite) -> None:
        """Send to a queue that a route reads, as a producer that knows of no exchange."""
        for _ in range(3):
            self.made += 1
            key = {"DataType": "String", "StringValue": self.world.chance.choice(KEYS)}
            with suppress(ClientError, BotoCoreError):
                self.world.client("sqs").send_message(
                    QueueUrl=site.bound[FEED].url,
                    MessageBody=f"m{self.made:04d}",
                    MessageAttributes={KEY_ATTRIBUTE: key},
                )

    def _temporary(self) -> Bound | None:
        """Draw a binding that comes and goes: of a queue that isn't bound so already."""
        chance, exchange = self.world.chance, self.plan.exchanges[0]
        site, queue = chance.choice(self.plan.tags), chance.choice(CONSUMED)
        taken = [binding.pattern for binding in self.plan.bindings if (binding.site, binding.queue) == (site, queue)]
        left = [pattern for pattern in ADMITTED[exchange] if pattern not in taken]
        if not left:
            return None
        return Bound(site=site, queue=queue, exchange=exchange, pattern=chance.choice(left), lasts=False)

    def _bind(self, bound: Bound, *, lasts_s: float) -> None:
        self.asking += 1
        said = bound.declaration()
        self._ask(bound.site, BindQueue.from_declaration(said))
        self.world.sleep(lasts_s)
        self._ask(bound.site, UnbindQueue(exchange=said.exchange, queue=said.queue, key=said.key))
        bound.until = self.world.now
        self.asking -= 1

    def _lay(self, route: Route) -> None:
        """Lay a route, change it where it stands, let messages come as it is taken away, and take it away."""
        self.asking += 1
        self._ask(route.declared_at, AddLink(link=route.over()))
        self._ask(route.declared_at, AddBridge(bridge=route.bridge()))
        source = self.sites[route.source]
        for after_s in (self.world.chance.random() * 30, 30.0):
            self.world.sleep(after_s)
            self.world.spawn("burst", partial(self._publish, source, route.exchange), site=source.place)
            changed = replace(route.bridge(), sync=3, retention_s=UNSET if route.kind is RouteKind.QUEUE else 86_400)
            self._ask(route.declared_at, ChangeBridge(bridge=changed))
        self._ask(route.declared_at, CloseBridge(name=route.name))
        self.asking -= 1

    def _ask(self, tag: str, operation: Operation[Any]) -> None:
        """Ask until it is done, or refused: a queue may be gone, and a binding, where the function died after that."""
        world = self.world
        while world.lambdas.invoke_now(self.sites[tag].links, to_builtins(operation)).error is not None:
            world.sleep(3)

    def _consume(self, queue: Queue) -> None:
        client = self.world.client("sqs")
        while queue.url in self.world.sqs.queues:
            try:
                received = client.receive_message(QueueUrl=queue.url, MaxNumberOfMessages=10, WaitTimeSeconds=POLL_S)
                for message in received.get("Messages", []):
                    client.delete_message(QueueUrl=queue.url, ReceiptHandle=message["ReceiptHandle"])
            except (ClientError, BotoCoreError):
                self.world.sleep(1)

    def _delete(self, site: FederatedSite, name: str) -> None:
        """Delete a bound queue, as somebody might who cleans up."""
        queue = site.bound[name]
        self.checks.vanished[queue.url] = site.tag, name
        self.world.sqs.remove(queue)

    # At rest

    def calm(self) -> None:
        """Look from time to time whether all is at rest, and whether a message then gets to all who are bound."""
        self.world.spawn("prober", self._look)

    def is_at_rest(self) -> bool:
        """Whether it was found so."""
        return self.rests

    def _look(self) -> None:
        while not self.rests:
            self.world.sleep(LOOKS_EVERY_S)
            self.not_yet = self._restless()
            if not self.not_yet:
                self.not_yet = self._probed()
                # What is wanted is told from site to site; a static route that is Operational carries.
                follows = any(route.kind is RouteKind.DYNAMIC for route in self.plan.routes)
                self.world.check(follows or not self.not_yet, self.not_yet)
                self.rests = not self.not_yet

    def _restless(self) -> str:
        """Say what isn't at rest; nothing where all is."""
        if self.asking:
            return "somebody isn't done"
        unbound = self.checks.unbound()
        if unbound:
            return f"not bound, or bound and gone: {unbound}"
        return self.checks.busy() or "".join(self._ailing(site) for site in self.sites.values())

    def _ailing(self, site: FederatedSite) -> str:
        """Say which of the site's routes isn't Operational, or not there."""
        view = self.world.ask(site.links, ShowSite())
        if view is None:
            return f"{site.tag} doesn't answer"
        states = {link.name: link.status.state.value for link in view.links}
        states |= {bridge.name: bridge.state for bridge in view.bridges}
        for route in self.plan.routes:
            if route.declared_at == site.tag and route.lasts and route.name not in states:
                return f"{site.tag} knows nothing of {route.name}"
        for name, state in states.items():
            # What `federation_alone` shows: errors stay that are none any more, and links that are well are Stalled.
            is_over = state.startswith(FAILED_ONCE) and not self.checks.lacking()
            if state not in {LinkState.OPERATIONAL, LinkState.STALLED} and not is_over:
                return f"{name} of {site.tag} is {state}"
        return ""

    def _probed(self) -> str:
        """Publish everywhere, wait, and say what hasn't come, or has come twice; nothing where all is well."""
        world, wanted = self.world, dict[str, set[Place]]()
        for site in self.sites.values():
            for queue in (site.ingress, site.fifo_ingress):
                message = self._message(self.plan.exchanges[0])
                wanted[message.body] = self.plan.getting(site.tag, message.exchange, message.key)
                with world.at(site.place):
                    Publisher(queue.url, world.client("sqs")).publish(message)
        world.sleep(ARRIVES_WITHIN_S)
        vanished = set(self.checks.vanished.values())
        for body, places in wanted.items():
            found = self.checks.places(body)
            if found != dict.fromkeys(places - vanished, 1):
                return f"{self.checks.published[body]} came to {found}, not to {places - vanished}"
        return ""

    def at_rest(self) -> None:
        """Check that all has come to rest, and what holds then."""
        self.world.check(self.rests, self.not_yet)
        self.checks.at_rest()
