"""Federation's entries: messages at an exchange and on a bridge, what peers say, and what operators ask."""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from functions.exchange import handler as exchange
from functions.links import handler as links
from sluice.errors import BadTopology, SenderFault
from sluice.federation.drift_repair import DriftRepair
from sluice.federation.dynamic_service import DynamicRouteService
from sluice.federation.exchange_store import add_binding
from sluice.federation.forwarder import forward
from sluice.federation.link_service import LinkService
from sluice.federation.links.links import Bridge
from sluice.federation.links.peers import KnownPeers
from sluice.federation.links.transitions import add_bridge, add_link
from sluice.federation.matching.bindings import Binding, Bindings, Destination, RoutingTable, SiteBindings
from sluice.federation.matching.metadata import Crossing, Drop, ReceivedMessage
from sluice.federation.operation_handler import OperationHandler
from sluice.federation.router import FailingQueues, Ingress
from sluice.federation.settings import SiteNames
from sluice.federation.topology.desired import parse_topology
from sluice.message import Message, Value
from sluice.operator.documents import BadFile, read_document_with_lines
from tests.federation_fakes import FakeDocument, Site, World, build_operation_handler, make_sender_id
from tests.functions.conftest import CONTEXT
from tests.hostile.events import NOW_MS, Given, became, event, put_together, record, reporter
from tests.hostile.strict_sqs import StrictClient, as_json, refusal

FANOUT, MATCH, TOPIC = "amq.fanout", "amq.match", "amq.topic"
BOUND = "https://sqs.test/000000000000/bound"
OVER = "https://sqs.test/000000000000/bridge.fifo"


def table() -> RoutingTable:
    """A queue of the site's own and a bridge's, bound to each standard exchange by all."""
    bindings = SiteBindings(Bindings())
    crossing = Crossing(peer="THERE", tag="HERE")
    for queue, url, over in (("bound", BOUND, None), ("bridge.fifo", OVER, crossing)):
        destination = Destination(queue=queue, url=url, crossing=over)
        for name, key, arguments in ((FANOUT, "", {}), (TOPIC, "#", {}), (MATCH, "m", {"x-match": "all"})):
            binding = Binding(exchange=name, queue=queue, key=key, arguments=arguments)
            change = add_binding(binding, destination)(bindings)
            assert change is not None
            bindings.apply(change)
    return RoutingTable(bindings.snapshot())


TABLE = table()


def no_peers() -> KnownPeers:
    """What an ingress of publishers never asks."""
    raise AssertionError("nobody asked for peers")


def routed(client: StrictClient, messages: Sequence[tuple[str, Given]], *, trusted: bool = False) -> Sequence[str]:
    """What the exchange function makes of a batch, beside what it sends."""
    made = SimpleNamespace(
        settings=SimpleNamespace(
            ingresses={"ingress": Ingress(fifo=False, trusted=trusted)}, site="HERE", ticks_queue_url="ticks"
        ),
        table=SimpleNamespace(value=lambda: TABLE),
        peers=SimpleNamespace(value=no_peers),
        send=client.send_batch,
        reporter=reporter(client),
        failing_queues=FailingQueues(since_ms={OVER: 0}),
    )
    records = [
        record(body, attributes, queue="ingress", place=place) for place, (body, attributes) in enumerate(messages)
    ]
    with (
        put_together(exchange, made),
        mock.patch.object(exchange, "now_ms", return_value=NOW_MS),
        mock.patch.object(exchange, "send_operation"),
    ):
        return became(exchange.handler(event(*records), CONTEXT), client)


def message(body: str, attributes: Given, *, trusted: bool = False) -> str:
    """A message at an exchange, and then on the bridge: copies that SQS takes, a drop, or a dead letter."""
    client = StrictClient()
    said = routed(client, [(body, attributes)], trusted=trusted)
    assert client.refused == []
    if said:
        return said[0]
    for queue, fields in client.taken:
        assert fields["MessageBody"] == body
        if queue == OVER:
            _over_the_bridge(fields)
    return "to " + ", ".join(queue.rsplit("/", 1)[1] for queue, _ in client.taken) if client.taken else "dropped"


def _over_the_bridge(fields: Mapping[str, Any]) -> None:
    received = {
        name: Value(value["DataType"], value.get("StringValue", value.get("BinaryValue")))
        for name, value in fields["MessageAttributes"].items()
    }
    gone = forward(
        ReceivedMessage(
            message=Message(message_id="m", body=fields["MessageBody"], attributes=received),
            site="HERE",
            ulid="01HF7YAT00" + "0" * 16,
            now_ms=NOW_MS,
        ),
        crossing=Crossing(peer="THERE", tag="HERE"),
        dest=FANOUT,
        fifo=True,
    )
    assert isinstance(gone, Drop) or refusal(gone.fields()) is None


def metadata(text: str) -> str:
    """What a message says of itself in `x-qpid`, by a link and by a publisher: of both the same, or `trusted` first."""
    given = {"x-qpid": Value("String", text)}
    believed, claimed = message("b", given, trusted=True), message("b", given)
    return believed if believed == claimed else f"trusted {believed}; else {claimed}"


def crossing(attributes: Given) -> str:
    """A message that somebody put into a bridge's queue."""
    receipt = ReceivedMessage(
        message=Message(message_id="m", body="b", attributes=attributes),
        site="HERE",
        ulid="01HF7YAT00" + "0" * 16,
        now_ms=NOW_MS,
    )
    try:
        gone = forward(receipt, crossing=Crossing(peer="THERE", tag="HERE"), dest=FANOUT, fifo=True)
    except SenderFault as fault:
        return f"dead letter: {type(fault).__name__}: {fault}"
    if isinstance(gone, Drop):
        return f"dropped: {gone.reason}"
    assert refusal(gone.fields()) is None
    return "over"


@dataclass
class DynamicSite(Site):
    """With the state of dynamic routes."""

    states: FakeDocument = field(default_factory=FakeDocument)

    def dynamics(self) -> DynamicRouteService:
        return DynamicRouteService(link_service=self.link_service(), document=self.states)


class Sites(World):
    """HERE, and THERE that pulls over a link: by static and by dynamic routes."""

    def __post_init__(self) -> None:
        self.sites = {tag: DynamicSite(tag, self) for tag in self.tags}
        self.introduce()

    def __getitem__(self, tag: str) -> DynamicSite:
        site = self.sites[tag]
        assert isinstance(site, DynamicSite)
        return site

    def pulls(self, dest: str, src: str, *, name: str = "route", exchange: str = FANOUT, **fields: Any) -> None:
        """A link from one to the other, and a route that pulls over it; both sites have talked of it."""
        link = self.link(dest, src)
        bridge = Bridge(name=name, link=link.name, src=exchange, dest=exchange, **fields)
        self[dest].link_service().advance([add_link(link), add_bridge(bridge)])
        self.talk()


@dataclass
class Links:
    """The links function of a site."""

    site: DynamicSite
    client: StrictClient = field(default_factory=StrictClient)

    def __post_init__(self) -> None:
        self.reporter = reporter(self.client)
        self.documents = {links.DYNAMIC: self.site.states}

    def make_link_service(self, context: Any) -> LinkService:
        return self.site.link_service()

    def make_drift_repair(self, link_service: LinkService) -> DriftRepair:
        return self.site.drift_repair(link_service, redrive=lambda _: 0)

    def make_operation_handler(
        self, link_service: LinkService, dynamics: DynamicRouteService, drift_repair: DriftRepair
    ) -> OperationHandler:
        return build_operation_handler(
            link_service,
            drift_repair,
            names=SiteNames(queues={"orders": "ingress"}, patterns=("source*",)),
            paths=dynamics.paths,
        )

    def arm_tick(self, link_service: LinkService, drift_repair: DriftRepair) -> None:
        drift_repair.next_check_ms()
        link_service.next_tick_ms(link_service.registry())

    def receive(self, *bodies: str, receives: int = 1, by: str = "THERE") -> list[str]:
        """What a peer says, in order."""
        records = [
            record(
                body,
                queue="control.fifo",
                place=place,
                group=f"{by}/link",
                receives=receives,
                sender_id=make_sender_id(by),
            )
            for place, body in enumerate(bodies)
        ]
        with put_together(links, self):
            return list(became(links.handler(event(*records), CONTEXT), self.client))

    def take(self, body: str) -> list[str]:
        """A message of the ticks queue."""
        with put_together(links, self):
            return list(became(links.handler(event(record(body, queue="ticks")), CONTEXT), self.client))

    def ask(self, request: Any) -> dict[str, Any]:
        with put_together(links, self):
            reply: dict[str, Any] = links.handler(request, CONTEXT)
        as_json(reply)
        return reply


def sites() -> Sites:
    """The two, with a route of each kind."""
    world = Sites(["HERE", "THERE"])
    world.pulls("THERE", "HERE")
    return world


def control(body: str) -> str:
    """A peer's message. Whatever it was, the next sweep goes through, and what is answered is what SQS takes."""
    world = sites()
    function = Links(world["HERE"])
    said = function.receive(body)
    assert function.ask({"op": "sweep"}) == {"result": None}
    told = [text for _, text in world["HERE"].peers.told]
    assert all(refusal({"MessageBody": text}) is None for text in told)
    return said[0] if said else "heard"


def asked(request: Any) -> str:
    """An operator's request of the links function: a refusal, and then nothing has changed; or a result."""
    world = sites()
    site = world["HERE"]
    before = site.document.content, site.table.content
    reply = Links(site).ask(request)
    if "error" in reply:
        assert (site.document.content, site.table.content) == before
        return f"refused: {reply['error']}"
    return "result"


def queued(body: str) -> str:
    """A message of the ticks queue: a tick, or an outage that the bridge function reports."""
    said = Links(sites()["HERE"]).take(body)
    return said[0] if said else "done"


def topology(content: bytes) -> str:
    """A topology file: its sites, or which place is wrong, and in which line that is."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "topology.yaml"
        file.write_bytes(content)
        try:
            document, find_line = read_document_with_lines(file)
        except BadFile as fault:
            return f"refused: {fault}".replace(f"{folder}/", "")
    try:
        return f"sites: {', '.join(parse_topology(document).sites)}"
    except BadTopology as fault:
        return f"refused: line {find_line(fault.place)}: {fault}"
