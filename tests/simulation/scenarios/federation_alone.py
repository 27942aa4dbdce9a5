"""Federation with one thing in its way, and no other fault: what happens then is known, and whether it may."""

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

from botocore.exceptions import ReadTimeoutError
from msgspec.structs import replace

from sluice.aws.federation.publisher import Publisher, PublishRequest
from sluice.federation.bridge_provisioner import BRIDGE_QUEUE_PREFIX
from sluice.federation.links.links import RouteKind
from sluice.federation.links.messages import Hello, encode_control
from sluice.federation.links.registry import REGISTRY
from sluice.federation.links.states import LinkState
from sluice.federation.operations import ShowSite, SweepSite
from tests.simulation.kernel.faults import CALM
from tests.simulation.kernel.outages import Answer, Outage
from tests.simulation.kernel.scheduler import Killed
from tests.simulation.models.errors import ServiceError
from tests.simulation.models.queues import Queue, Stored
from tests.simulation.scenarios.federation import Federation
from tests.simulation.scenarios.federation_checks import LINKS
from tests.simulation.scenarios.federation_routes import (
    FANOUT,
    FIFO_QUEUE,
    PLACES,
    STANDARD_QUEUE,
    Bound,
    Plan,
    Route,
)
from tests.simulation.scenarios.federation_sites import address_of

A, B, C = PLACES
Happening = Callable[[Mapping[str, Any]], None]
LAID_S = 20.0  # by then routes are Operational, where nothing goes wrong


class Disturbed:
    """A model, and what else happens `before` and `after` one of its operations."""

    def __init__(
        self, model: Any, operation: str, *, before: Happening | None = None, after: Happening | None = None
    ) -> None:
        self.model, self.operation, self.before, self.after = model, operation, before, after

    def __getattr__(self, operation: str) -> Any:
        call = getattr(self.model, operation)
        return partial(self.disturbed, call) if operation == self.operation else call

    def disturbed(self, call: Callable[..., Any], **asked: Any) -> Any:
        """Make the call, and let happen what may."""
        if self.before is not None:
            self.before(asked)
        answer = call(**asked)
        if self.after is not None:
            self.after(asked)
        return answer


class Alone(Federation):
    """Static routes of a fanout exchange, from site to site as `paths` has them, and nobody there but one who acts."""

    faults = CALM
    bursts = binders = 0
    faulty_s, settles_s = 60.0, 900.0
    paths: Sequence[tuple[str, str]] = ((A, B),)

    def build(self) -> None:
        """Deploy, and let the one act."""
        super().build()
        self.world.pace = 1.0
        self.world.spawn("actor", self.act, site=PLACES[A])

    def draw(self) -> Plan:
        """Give the routes, and bind a queue of each site."""
        routes = [
            Route(source=source, dest=dest, exchange=FANOUT, kind=RouteKind.STATIC) for source, dest in self.paths
        ]
        bindings = [Bound(site=tag, queue=STANDARD_QUEUE, exchange=FANOUT, pattern="") for tag in PLACES]
        return Plan(tags=list(PLACES), exchanges=[FANOUT], routes=routes, bindings=bindings)

    def act(self) -> None:
        """Do what the scenario is about."""
        raise NotImplementedError

    def publish(self) -> str:
        """Publish at A; the message's body."""
        self.made += 1
        message = PublishRequest(exchange=FANOUT, key="a", body=f"m{self.made:04d}")
        Publisher(self.sites[A].ingress.url, self.world.client("sqs")).publish(message)
        return message.body


class Forged(Alone):
    """C says in B's name where B's messages are to go: to C. It may send to A's control queue, as any peer may."""

    def act(self) -> None:
        """Say hello as B does, but for an address, and publish."""
        self.world.sleep(LAID_S)
        [route] = self.plan.routes
        sender = replace(address_of(B, PLACES[B]), fifo_ingress_url=address_of(C, PLACES[C]).fifo_ingress_url)
        hello = Hello(link=route.link, sender=sender, pulls=(route.bridge(),))
        self.world.spawn("thief", partial(self.say, encode_control(hello)), site=PLACES[C])
        self.world.sleep(5)
        self.publish()

    def say(self, body: str) -> None:
        """Send to A's control queue."""
        self.world.client("sqs").send_message(
            QueueUrl=self.sites[A].control.url, MessageBody=body, MessageGroupId="g", MessageDeduplicationId="d"
        )


class BridgeQueueGone(Alone):
    """Somebody deletes the queue of a route that is Operational."""

    def act(self) -> None:
        """Delete it, when nothing is in it."""
        self.world.sleep(LAID_S)
        [queue] = [each for each in self.world.sqs.queues.values() if each.name.startswith(BRIDGE_QUEUE_PREFIX)]
        self.world.sqs.remove(queue)


class RobbedAmidTraffic(BridgeQueueGone):
    """Somebody deletes the queue of a route amid its messages; its name is taken for a minute then."""

    faulty_s = 200.0
    mended_within_s = 120.0

    def act(self) -> None:
        """Publish all the while, and delete the queue when there is something in it."""
        self.lost: set[str] = set()
        self.world.sqs.observers.append(self.record)
        self.world.spawn("publisher", self.publish_all, site=PLACES[A])
        self.world.sleep(LAID_S + 20)
        while not any(queue.messages for queue in self.bridge_queues()):
            self.world.sleep(0.01)
        [queue] = self.bridge_queues()
        self.checks.vanished[queue.url] = A, queue.name
        self.world.sqs.remove(queue)
        self.world.sleep(self.mended_within_s)
        self.world.check(self.bridge_queues(), "the queue isn't made anew within two minutes")
        view = self.world.ask(self.sites[A].links, ShowSite())
        [route] = view.bridges if view is not None else []
        self.world.check(route.state == LinkState.OPERATIONAL, f"after two minutes the route is {route.state}")
        mends = route.repairs
        self.world.check((mends.number, mends.last) == (1, "queue"), f"what was mended is {mends}")

    def publish_all(self) -> None:
        """Publish five a second, before and after."""
        self.world.sleep(LAID_S)
        for _ in range(500):
            self.publish()
            self.world.sleep(0.2)

    def bridge_queues(self) -> list[Queue]:
        """Find the route's queue, where it is there."""
        return [queue for queue in self.world.sqs.queues.values() if queue.name.startswith(BRIDGE_QUEUE_PREFIX)]

    def record(self, what: str, queue: Queue, message: Stored) -> None:
        """Note what goes with the queue."""
        if what == "vanished":
            self.lost.add(message.body)

    def at_rest(self) -> None:
        """Check that nothing else is lost."""
        self.world.check(self.lost, "nothing was in the queue")
        for body in self.lost:
            if (B, body) not in self.checks.crossed:
                self.checks.owed.discard((B, body))
                here = frozenset(place for place in self.checks.published[body].required if place[0] == A)
                self.checks.published[body] = dataclasses.replace(self.checks.published[body], required=here)
        super().at_rest()
        left = [
            message.body for message in self.sites[A].dead.messages.values() if message.body in self.checks.published
        ]
        self.world.check(not left, f"dead letters don't go back: {left}")


class BoundQueueGone(Alone):
    """Somebody deletes a bound queue."""

    paths = ()

    def act(self) -> None:
        """Delete it."""
        self.world.sleep(LAID_S)
        self._delete(self.sites[A], STANDARD_QUEUE)

    def at_rest(self) -> None:
        """Check that its bindings are gone with it."""
        self.checks.look()
        bound = list(self.checks.bindings[A][-1][2])
        self.world.check(not bound, f"{STANDARD_QUEUE} is gone, and bound: {bound}")


class SecondWayAway(Alone):
    """By two ways messages come from A to B, and C, on one of them, is away for less than FIFO queues know ids."""

    paths = ((A, B), (A, C), (C, B))
    faulty_s = 700.0
    away_s, times = 150.0, 1

    def act(self) -> None:
        """Publish as C is away, once all routes are laid."""
        self.world.sleep(9 * LAID_S)
        away = Outage(until_s=self.world.now + self.away_s, answer=Answer.NONE, to_others=False)
        self.world.outages.begin(PLACES[C], away)
        self.body = self.publish()

    def at_rest(self) -> None:
        """Check how often each queue has the message."""
        super().at_rest()
        found = self.checks.places(self.body)
        at_b = found.pop((B, STANDARD_QUEUE), 0)
        others = {(tag, STANDARD_QUEUE): 1 for tag in (A, C)}
        self.world.check(
            found == others and at_b == self.times, f"{self.body} came to {found}, and {at_b} times to {B}"
        )


class AwayForLong(SecondWayAway):
    """C is away for longer than that."""

    away_s, times = 400.0, 2


class JustBound(Alone):
    """Messages come while a route is laid, whose queue need not be found for a second."""

    def act(self) -> None:
        """Publish all the while."""
        for _ in range(100):
            self.publish()
            self.world.sleep(0.1)


class AnswerLost(Alone):
    """A function writes the bindings, and doesn't hear that it is done: its client tries again."""

    paths = ()

    def act(self) -> None:
        """Lose the answer as a queue is bound."""
        self.world.sleep(LAID_S)
        self.world.models["dynamodb"] = Disturbed(self.world.dynamodb, "transact_write_items", after=self.lose)
        self._bind(Bound(site=A, queue=FIFO_QUEUE, exchange=FANOUT, pattern="", lasts=False), lasts_s=0)

    def lose(self, asked: Mapping[str, Any]) -> None:
        """Lose the answer to the first write of a change, and of the head that has its version."""
        if any("change#" in each["Put"]["Item"]["sk"]["S"] for each in asked["TransactItems"] if "Put" in each):
            self.world.models["dynamodb"] = self.world.dynamodb
            raise ReadTimeoutError(endpoint_url="dynamodb")


class NothingKept(Alone):
    """A function dies as it writes the registry, between its parts and the head that names them."""

    def act(self) -> None:
        """Die as a route is laid."""
        self.world.models["dynamodb"] = Disturbed(self.world.dynamodb, "put_item", after=self.die)

    def die(self, asked: Mapping[str, Any]) -> None:
        """Die after the first write of a document's part."""
        if "data" in asked["Item"]:
            self.world.models["dynamodb"] = self.world.dynamodb
            self.world.scheduler.current.doomed = True
            raise Killed

    def at_rest(self) -> None:
        """Check that each part of a document is of its version."""
        super().at_rest()
        for site in self.sites.values():
            items = self.world.dynamodb.tables[site.table].items
            tokens = {item["token"]["S"] for item in items.values() if "token" in item}
            parts = [sk for pk, sk in items if pk.startswith("document#") and sk != "head"]
            left = [part for part in parts if part.partition("#")[0] not in tokens]
            self.world.check(not left, f"{site.tag} keeps parts of documents that nobody reads: {left}")


class AllWell(Alone):
    """After some minutes all is well, and stays so."""

    faulty_s = 900.0

    def act(self) -> None:
        """Note how often a route was down before."""
        self.world.sleep(180)
        self.before = self.world.metrics["RoutesDown"]

    def watch(self, well: Collection[LinkState]) -> None:
        """Look at the links from time to time: whether they are well."""
        while self.world.decisions.active:
            self.world.sleep(5)
            for tag in (A, B):
                links = REGISTRY.unpack(self.checks.stored(tag, LINKS) or b"").links
                for name, link in links.items():
                    state = link.status.state
                    self.world.check(state in well, f"all is well, and {name} of {tag} is {state}")

    def at_rest(self) -> None:
        """Check that none was down afterwards."""
        super().at_rest()
        down = self.world.metrics["RoutesDown"] - self.before
        self.world.check(
            not down, f"all is well, and in {self.faulty_s:g} s a route was said to be down {down:g} times"
        )


class ErrorStays(AllWell):
    """A function hears late that its queue can't be made just now, and meanwhile another one makes it."""

    def build(self) -> None:
        """Refuse it to the first that asks."""
        super().build()
        self.first = ""
        self.world.models["sqs"] = Disturbed(self.world.sqs, "create_queue", before=self.refuse)

    def refuse(self, _asked: Mapping[str, Any]) -> None:
        """Keep the first waiting, have another one look meanwhile, and refuse."""
        world, asks = self.world, self.world.scheduler.current.name
        if not self.first:
            world.lambdas.invoke_later(self.sites[A].links, {"op": SweepSite.__struct_config__.tag})
        self.first = self.first or asks
        if asks == self.first:
            world.sleep(5)
            raise ServiceError("RequestThrottled", "Rate exceeded")


class OldReport(AllWell):
    """A peer refuses for some seconds, and the function that is told so dies: it hears again six minutes later."""

    def act(self) -> None:
        """Publish as B refuses, and have the first function die that hears of it."""
        self.world.sleep(LAID_S)
        away = Outage(until_s=self.world.now + 15, answer=Answer.REFUSED, to_others=True)
        self.world.outages.begin(PLACES[B], away)
        self.doomed = ""
        self.world.sqs.observers.append(self.choose)
        self.world.models["dynamodb"] = Disturbed(self.world.dynamodb, "get_item", before=self.die)
        self.publish()
        super().act()
        self.watch({LinkState.OPERATIONAL, LinkState.STALLED})

    def choose(self, what: str, queue: Queue, message: Stored) -> None:
        """Choose the invocation that gets the first report."""
        links = self.sites[A].links
        if what == "received" and queue is self.sites[A].ticks and "outage" in message.body:
            self.doomed = self.doomed or f"{links.name}-{links.made + 1}"

    def die(self, _asked: Mapping[str, Any]) -> None:
        """Die, as that."""
        actor = self.world.scheduler.current
        if actor.name == self.doomed:
            actor.doomed = True
            raise Killed


class Stalling(AllWell):
    """Nothing happens but heartbeats, at the pace of calls, and a cold start now and then."""

    def act(self) -> None:
        """Look at the links."""
        super().act()
        self.watch({LinkState.OPERATIONAL})
