"""A route between the two stages: carried in order, paused, mended, closed; and how large a message may be."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from sluice.aws.clients import calls
from sluice.aws.federation.publisher import Publisher, Publishing
from sluice.aws.operator.consumer import Consumer, queue_url
from sluice.cli.federation.route_declarations import Ends, add_route, wait_until_operational
from sluice.cli.federation.sites import open_site
from sluice.federation.links.links import BridgeDeclaration
from sluice.federation.links.states import Command, LinkState
from sluice.federation.operations import BindQueue, BridgeView, CloseLink, TellBridge
from sluice.smoke.runs import NotSo
from sluice.smoke.sites import SmokeSite, asked, looks, only
from sluice.smoke.stages import ORDERS, PLAIN, Stages

STACK = "SluiceFederation"
EXCHANGE = "amq.topic"
MESSAGES = 50
OPERATIONAL_WITHIN_S = 180.0
CARRIED_WITHIN_S = 120.0
SWITCHED_WITHIN_S = 120.0
MENDED_WITHIN_S = 300.0  # a deleted queue's name is taken for a minute, and what is missing is seen by the minute
CLOSED_WITHIN_S = 240.0
MORE_WITHIN_S = 3  # after the last message: none comes twice
SIZES_BYTES = {"256 KiB": 256 * 1024, "1 MiB with metadata": 1024 * 1024 - 4096}


@dataclass(slots=True)
class Routes:
    """From `stages.here` to `stages.there`, one in order and one not; laid when the first check asks."""

    stages: Stages
    _made: dict[bool, str] = field(default_factory=dict)  # routes' names by whether they keep order

    # Checks

    def bridge(self) -> str:
        """Publish at the one, consume at the other: each message once, and in order where that is asked for."""
        for fifo in (True, False):
            self._route(fifo=fifo)
            bodies = [f"message {number}" for number in range(MESSAGES)]
            self._publish(bodies, fifo=fifo)
            self._arrive(bodies, fifo=fifo)
        return f"{MESSAGES} in order, {MESSAGES} without, each once"

    def pause(self) -> str:
        """Pause the route and let it go on: Lambda's own states of its event source mapping, and nothing is lost."""
        name, bodies = self._route(fifo=True), [f"paused {number}" for number in range(MESSAGES)]
        self._tell(name, Command.PAUSE)
        self._until_mapped("Disabled")
        self._publish(bodies, fifo=True)
        self._tell(name, Command.RESUME)
        self._until_mapped("Enabled")
        self._arrive(bodies, fifo=True)
        return f"Disabled, Enabled, then {MESSAGES} in order"

    def mend(self) -> str:
        """Delete the queue of the route at its source: it is made anew, and carries."""
        name = self._route(fifo=True)
        before = self._served()
        sqs = self.stages.here.connection.client("sqs")
        with calls("DeleteQueue"):
            sqs.delete_queue(QueueUrl=self.stages.here.contents.queues()[before.reads or ""])
        for _ in looks(MENDED_WITHIN_S, f"{name} is mended"):
            shown = self._served()
            if shown.mends.number > before.mends.number and shown.state == LinkState.OPERATIONAL:
                break
        bodies = [f"mended {number}" for number in range(MESSAGES)]
        self._publish(bodies, fifo=True)
        self._arrive(bodies, fifo=True)
        return f"{shown.mends.last} made anew, then {MESSAGES} in order"

    def close(self) -> str:
        """Close the link: its routes go, with their queues and event source mappings."""
        self._route(fifo=True)
        here, there = self.stages.both
        with self._asked():
            site = open_site(there.name)
            for link in site.view().links:
                if not link.served:
                    site.client.ask(CloseLink(name=link.name))
            self._made.clear()
            for _ in looks(CLOSED_WITHIN_S, "link, routes, queues and mappings are gone"):
                views = [open_site(each.name).view() for each in (here, there)]
                queues = [name for name in here.contents.queues() if "-bridge-" in name]
                mapped = [each for each in here.contents.mappings() if "-bridge-" in each["EventSourceArn"]]
                gone = all(each.get("State") == "Deleting" for each in mapped)
                if not any((*view.links, *view.bridges) for view in views) and not queues and gone:
                    break
        return "link, routes, queues and mappings are gone"

    def sizes(self) -> str:
        """Publish messages as large as SQS takes, with metadata, and consume them at the same site."""
        here = self.stages.here
        with self._asked():
            open_site(here.name).client.ask(BindQueue(exchange=EXCHANGE, queue=PLAIN, key="large"))
        publisher = Publisher(here.output(STACK, "IngressUrl"), here.connection.client("sqs"))
        for size in SIZES_BYTES.values():
            publisher.publish(Publishing(exchange=EXCHANGE, key="large", body="m" * size))
        found = sorted(len(body) for body in received(here, PLAIN, len(SIZES_BYTES)))
        if found != sorted(SIZES_BYTES.values()):
            raise NotSo(f"messages of {sorted(SIZES_BYTES.values())} bytes came with {found}")
        return ", ".join(SIZES_BYTES)

    # What they share

    def _route(self, *, fifo: bool) -> str:
        """Lay the route if need be, bind its queue; its name."""
        if fifo not in self._made:
            queue = ORDERS if fifo else PLAIN
            here, there = self.stages.both
            with self._asked():
                ends = Ends.of(there.name, here.name, src_local=False)
                ends.site.client.ask(BindQueue(exchange=EXCHANGE, queue=queue, key=f"{queue}.#"))
                wanted = BridgeDeclaration(src=EXCHANGE, dest=EXCHANGE, key=f"{queue}.#", fifo=fifo)
                made = add_route(ends, wanted, link=None)
                wait_until_operational(ends.site, made.name, timeout_s=OPERATIONAL_WITHIN_S)
            self._made[fifo] = made.name
        return self._made[fifo]

    def _publish(self, bodies: Sequence[str], *, fifo: bool) -> None:
        here = self.stages.here
        url = here.output(STACK, "FifoIngressUrl" if fifo else "IngressUrl")
        key = f"{ORDERS if fifo else PLAIN}.new"
        publisher = Publisher(url, here.connection.client("sqs"))
        publisher.publish_all(Publishing(exchange=EXCHANGE, key=key, body=body) for body in bodies)

    def _arrive(self, bodies: Sequence[str], *, fifo: bool) -> None:
        found = received(self.stages.there, ORDERS if fifo else PLAIN, len(bodies))
        if sorted(found) != sorted(bodies):
            lost, odd = len(set(bodies) - set(found)), len(found) - len(set(found) & set(bodies))
            raise NotSo(f"of {len(bodies)} messages {lost} didn't come, {odd} came twice or are others")
        if fifo and found != list(bodies):
            raise NotSo("messages came in another order")

    def _tell(self, name: str, what: Command) -> None:
        with self._asked():
            open_site(self.stages.there.name).client.ask(TellBridge(name=name, what=what))

    def _served(self) -> BridgeView:
        """Find the route that keeps order, as its source sees it."""
        with self._asked():
            shown = open_site(self.stages.here.name).view().bridges
        name = only((each.name for each in shown if each.served and each.fifo), "routes in order")
        return next(each for each in shown if each.name == name)

    def _until_mapped(self, state: str) -> None:
        queue = self._served().reads
        for _ in looks(SWITCHED_WITHIN_S, f"the route's event source mapping is {state}"):
            mappings = self.stages.here.contents.mappings()
            if [each["State"] for each in mappings if each["EventSourceArn"].endswith(f":{queue}")] == [state]:
                return

    def _asked(self) -> AbstractContextManager[None]:
        return asked(*self.stages.both)


def received(site: SmokeSite, queue: str, number: int) -> list[str]:
    """Consume until so many have come, and whatever comes right after; their bodies. Raises `NotSo`."""
    consumer = Consumer(site.connection.client("sqs"), queue_url(site.connection, queue))
    bodies: list[str] = []
    for _ in looks(CARRIED_WITHIN_S, f"{number} messages come to {queue} of {site.stage}", every_s=0):
        batch = consumer.receive(most=10, wait_s=MORE_WITHIN_S)
        for message in batch:
            consumer.delete(message)
            bodies.append(message.body)
        if not batch and len(bodies) >= number:
            break
    return bodies
