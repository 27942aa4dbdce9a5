"""What may be asked of a site, and what a deployment declares: made, kept, changed, and taken away again."""

import json
from dataclasses import dataclass, field
from typing import Any

import pytest
from msgspec.structs import replace

from sluice.codec import encode
from sluice.errors import BadBinding, BadConfiguration, BadRoute
from sluice.federation.bridge_provisioner import build_bridge_queue_name
from sluice.federation.declared import BindingDeclaration, Declared
from sluice.federation.links import transitions
from sluice.federation.links.links import Bridge, Link
from sluice.federation.links.messages import Hello, decode_control, encode_control
from sluice.federation.links.peers import MAX_RULES, Peer
from sluice.federation.links.registry import collect_pulls
from sluice.federation.links.states import Command, Intent, LinkState
from sluice.federation.links.transitions import MAX_PULLS_BYTES, add_bridge, add_link
from sluice.federation.matching.exchanges import Exchange, ExchangeType
from sluice.federation.operations import (
    OPERATIONS,
    AddBridge,
    AddLink,
    AddPeer,
    BindQueue,
    ChangeBridge,
    CloseBridge,
    CloseLink,
    CommandBridge,
    CommandLink,
    DeletePeer,
    ListBindings,
    Redrive,
    ReportOutage,
    ShowSite,
    SweepSite,
    UnbindQueue,
)
from sluice.federation.settings import SiteNames
from sluice.message import MAX_MESSAGE_BYTES
from sluice.operations import Operation, R, build_reply, parse_request, parse_result
from tests.federation_fakes import FIFO_INGRESS, SOURCE, FakeDocument, World, build_operation_handler

PUSH = Bridge(name="push", link="to-B", src="amq.fanout", dest="amq.direct", src_is_local=True)
QUEUE = Bridge(name="queue", link="to-B", src="orders", dest="amq.direct", src_is_local=True, src_is_queue=True)
BINDING = BindingDeclaration(exchange="own", queue="orders", key="a.#")
OWN = Exchange(name="own", type=ExchangeType.TOPIC)


NAMES = SiteNames(
    queues={"orders": "stack-orders-123", "split": "stack-split-123"},
    patterns=("source*",),
    reserved=frozenset({"split"}),
)


@dataclass
class Desk:
    """Site A, asked."""

    world: World = field(default_factory=lambda: World(("A", "B")))
    declared: Declared = field(default_factory=Declared)
    applied: FakeDocument = field(default_factory=FakeDocument)
    redriven: list[str] = field(default_factory=list)
    peers: tuple[Peer, ...] = ()
    let_in: int = 0  # how often what peers send was let be read

    def __post_init__(self) -> None:
        self.here = self.world["A"]
        self.here.queues.queues["stack-orders-123"] = []
        self.here.find_readable_queue = NAMES.find_readable_queue

    def ask(self, operation: Operation[R], /) -> R:
        """As the wire has it."""
        link_service = self.here.link_service()
        declared = frozenset(NAMES.physical_name(binding.queue) for binding in self.declared.bindings)
        operation_handler = build_operation_handler(
            link_service,
            self.here.drift_repair(link_service, redrive=self._redrive, declared=declared),
            names=NAMES,
            enable_peer_mappings=self._hear_peers,
            peers=self.peers,
            declared=self.declared,
            applied=self.applied,
        )
        reply = build_reply(operation_handler.apply(parse_request(encode(operation), OPERATIONS)))
        return parse_result(operation, json.dumps(reply))

    def _hear_peers(self) -> None:
        self.let_in += 1

    def _redrive(self, queue: str) -> int:
        self.redriven.append(queue)
        return 3

    @property
    def link(self) -> Link:
        return self.world.link("A", "B")

    def linked(self, *bridges: Bridge) -> "Desk":
        self.ask(AddLink(link=self.link))
        self.world.talk()
        for bridge in bridges:
            self.ask(AddBridge(bridge=bridge))
        self.world.talk()
        return self

    def declare(self, **declared: Any) -> None:
        """Another deployment, and its first sweep."""
        self.declared = Declared(**declared)
        self.ask(SweepSite())
        self.world.talk()

    def names(self, section: str) -> list[str]:
        return [each.name for each in getattr(self.ask(ShowSite()), section)]

    def bindings(self) -> list[tuple[str, str, str]]:
        return [(binding.exchange, binding.queue, binding.key) for binding in self.ask(ListBindings()).bindings]


def test_a_declared_route_is_changed_where_it_stands_and_only_by_a_deployment() -> None:
    desk = Desk()
    desk.declare(links=(desk.link,), routes=(PUSH,))
    desk.world.settle(120_000)
    before = desk.here.registry().bridges["push"]
    desk.ask(CommandBridge(name="push", command=Command.PAUSE))
    desk.declare(links=(desk.link,), routes=(replace(PUSH, max_hops=3),))
    after = desk.here.registry().bridges["push"]
    assert (after.queue, after.mapping, after.closing) == (before.queue, before.mapping, False)
    assert (after.bridge.max_hops, after.intent) == (3, Intent.PAUSED)
    with pytest.raises(BadRoute, match=r"declared in cdk\.json"):
        desk.ask(ChangeBridge(bridge=PUSH))
    with pytest.raises(BadConfiguration, match="no such route"):
        desk.ask(ChangeBridge(bridge=replace(PUSH, name="nobody")))
    desk.declare(links=(desk.link,), routes=(replace(PUSH, fifo=False),))
    assert desk.here.registry().bridges["push"].closing
    desk.world.settle()
    desk.ask(SweepSite())
    assert not desk.here.registry().bridges["push"].bridge.fifo


def test_a_queue_is_known_by_the_stacks_name() -> None:
    desk = Desk()
    desk.ask(BindQueue(exchange="amq.topic", queue="orders", key="k"))
    [binding] = desk.here.link_service().exchanges.bindings()
    assert (binding.queue, desk.bindings()) == ("stack-orders-123", [("amq.topic", "orders", "k")])
    desk.ask(UnbindQueue(exchange="amq.topic", queue="orders", key="k"))
    assert desk.bindings() == []


def test_a_binding_with_other_arguments_is_refused_but_where_it_replaces_the_old_one() -> None:
    desk = Desk()
    bound = BindQueue(exchange="amq.match", queue="orders", arguments={"x-match": "all", "a": 1})
    other = replace(bound, arguments={"x-match": "all", "a": True})
    desk.ask(bound)
    with pytest.raises(BadBinding, match="with other arguments"):
        desk.ask(other)
    desk.ask(replace(other, replaces=True))
    [binding] = desk.ask(ListBindings()).bindings
    assert binding.arguments == {"x-match": "all", "a": True}
    written = desk.here.table.written
    desk.ask(replace(other, replaces=True))
    assert desk.here.table.written == written
    with pytest.raises(BadBinding, match="x-match must be all or any"):
        desk.ask(replace(other, arguments={"x-match": "some"}, replaces=True))
    desk.ask(UnbindQueue(exchange="amq.match", queue="orders"))
    assert desk.here.link_service().exchanges.bindings().queues == ()


def test_a_binding_is_asked_for_as_sites_of_before_know_it() -> None:
    asked = BindQueue.from_declaration(BindingDeclaration(exchange="amq.topic", queue="orders", key="k"))
    assert encode(asked) == b'{"op":"bind","exchange":"amq.topic","queue":"orders","key":"k"}'


def test_a_site_says_what_its_deployment_declares() -> None:
    desk = Desk()
    desk.declare(exchanges=(Exchange(name="own", type=ExchangeType.TOPIC),))
    assert [exchange.name for exchange in desk.ask(ShowSite()).declared.exchanges] == ["own"]


def test_a_sweep_makes_a_snapshot_of_many_changes_also_where_it_finds_a_bad_declaration() -> None:
    desk = Desk()
    desk.here.table.long = 2
    for key in "ab":
        desk.ask(BindQueue(exchange="amq.topic", queue="orders", key=key))
    assert desk.here.table.base == 0
    desk.declared = Declared(bindings=(BindingDeclaration(exchange="nowhere", queue="orders"),))
    try_to_sweep(desk)
    assert (desk.here.table.base, len(desk.bindings())) == (2, 2)


def test_a_queue_route_reads_the_queue_of_that_name() -> None:
    desk = Desk().linked(QUEUE)
    [mapping] = desk.here.mappings.made.values()
    assert (mapping.queue, mapping.on) == ("stack-orders-123", True)
    [shown] = desk.ask(ShowSite()).bridges
    assert (shown.reads, shown.state) == ("orders", "Operational")


@pytest.mark.parametrize("name", ["split", "stack-split-123"])
def test_what_the_site_reads_itself_may_be_bound_but_no_route_reads_it(name: str) -> None:
    desk = Desk().linked()
    desk.here.queues.queues["stack-split-123"] = []
    desk.ask(BindQueue(exchange="amq.topic", queue=name, key="k"))
    with pytest.raises(BadBinding, match=f"{name}: the site reads it itself"):
        desk.ask(AddBridge(bridge=replace(QUEUE, src=name)))
    assert (desk.names("bridges"), desk.bindings()) == ([], [("amq.topic", "split", "k")])


def test_a_queue_that_feeds_a_route_is_noted_whichever_comes_first() -> None:
    for first in ("bind", "route"):
        desk = Desk().linked(*([QUEUE] if first == "route" else []))
        desk.ask(BindQueue(exchange="amq.topic", queue="orders"))
        if first == "bind":
            desk.ask(AddBridge(bridge=QUEUE))
        [queue] = desk.here.link_service().exchanges.bindings().queues
        assert queue.feeds_route, first


def test_a_link_goes_with_its_last_route_where_that_is_asked_for() -> None:
    desk = Desk().linked(PUSH)
    desk.ask(CloseBridge(name="push", del_empty_link=True))
    desk.world.settle()
    assert desk.names("bridges") == []


@pytest.mark.parametrize("what", Command)
def test_a_link_and_a_route_are_told(what: Command) -> None:
    desk = Desk().linked(PUSH)
    desk.ask(CommandBridge(name="push", command=what))
    desk.ask(CommandLink(name="to-B", command=what))
    record = desk.here.registry()
    assert (record.bridges["push"].intent is Intent.PAUSED) is (what == "pause")
    # Nothing is queued: what drains is done with it at once.
    assert (record.links["to-B"].status.state is LinkState.PAUSED) is (what in {"pause", "drain"})
    assert record.links["to-B"].status.draining is (what == "drain")


# Peers


def test_a_peer_that_is_declared_again_has_other_rules_and_what_they_forbid_goes() -> None:
    desk = Desk()
    desk.world["B"].link_service().advance([add_link(desk.world.link("B", "A"))])
    pull = Bridge(name="pull", link="to-A", src="amq.fanout", dest="amq.direct")
    desk.world["B"].link_service().advance([add_bridge(pull)])
    desk.world.settle(60_000)
    assert desk.names("bridges") == ["pull@B"]
    [peer] = desk.ask(ShowSite()).peers
    desk.ask(AddPeer(peer=replace(peer, pulls=("amq.topic",))))
    desk.world.settle()
    assert desk.names("bridges") == []
    remote = desk.world["B"].registry().links["to-A"].remote["pull"]
    assert remote == "Failed: B may not pull amq.fanout: its peer rule here says amq.topic"


def test_a_route_has_no_key_that_its_source_ignores() -> None:
    desk = Desk().linked()
    route = Bridge(name="r", link="to-B", src="amq.fanout", dest="amq.direct", key="red", src_is_local=True)
    with pytest.raises(BadRoute, match=r"r: amq\.fanout is a fanout exchange, which ignores keys: leave out the key"):
        desk.ask(AddBridge(bridge=route))
    desk.ask(AddBridge(bridge=replace(route, src_is_local=False)))
    desk.world.settle(60_000)
    remote = desk.world["A"].registry().links["to-B"].remote["r"]
    assert remote == "Failed: amq.fanout is a fanout exchange, which ignores keys: leave out the key 'red'"


def test_a_peer_goes_with_what_it_asked_for_and_not_while_links_of_this_site_go_there() -> None:
    desk = Desk().linked(PUSH)
    with pytest.raises(BadRoute, match="B: links of this site go there: to-B"):
        desk.ask(DeletePeer(name="B"))
    desk.ask(CloseLink(name="to-B"))
    desk.world.settle()
    desk.world["B"].link_service().advance([add_link(desk.world.link("B", "A"))])
    desk.world.settle(60_000)
    assert desk.names("links") == ["to-A@B"]
    desk.ask(DeletePeer(name="B"))
    desk.world.settle()
    assert (desk.names("links"), desk.ask(ShowSite()).peers) == ([], ())
    assert desk.here.deaf[-1].startswith("BadRoute: 'B' is no peer of this site")
    with pytest.raises(BadConfiguration, match="no such peer: B"):
        desk.ask(DeletePeer(name="B"))


def test_what_peers_send_is_read_as_soon_as_there_are_some_and_looked_after_at_every_sweep() -> None:
    desk = Desk()
    [peer] = desk.ask(ShowSite()).peers
    desk.ask(DeletePeer(name=peer.tag))
    desk.ask(SweepSite())
    assert desk.let_in == 0
    desk.ask(AddPeer(peer=peer))
    assert desk.let_in == 1
    desk.ask(SweepSite())
    assert desk.let_in == 2


def test_peers_that_are_declared_are_there_and_go_with_their_declaration() -> None:
    desk = Desk()
    east = Peer(tag="EAST", account="123456789012", region="us-east-1", declared=True)
    desk.peers = (east,)
    desk.ask(SweepSite())
    assert [peer.tag for peer in desk.ask(ShowSite()).peers] == ["B", "EAST"]
    desk.peers = (replace(east, queues=("orders",)),)
    desk.ask(SweepSite())
    assert desk.ask(ShowSite()).peers[1].queues == ("orders",)
    desk.peers = ()
    desk.ask(SweepSite())
    assert [peer.tag for peer in desk.ask(ShowSite()).peers] == ["B"]


def test_a_tag_that_a_route_has_of_its_own_is_known_of_its_peer() -> None:
    pull = Bridge(name="pull", link="to-B", src="amq.fanout", dest="amq.direct", tag="a-route")
    desk = Desk().linked(pull)
    [peer] = desk.ask(ShowSite()).peers
    assert peer.tags == ("a-route",)
    desk.ask(AddPeer(peer=replace(peer, tags=())))
    assert desk.ask(ShowSite()).peers == (peer,)


def test_old_tags_of_routes_expire_and_those_that_routes_have_stay() -> None:
    pull = Bridge(name="pull", link="to-B", src="amq.fanout", dest="amq.direct", tag="t0")
    kept = replace(pull, name="kept", dest="amq.topic", tag="kept")
    desk = Desk().linked(kept, pull)
    for number in range(1, 2 * MAX_RULES):
        desk.ask(ChangeBridge(bridge=replace(pull, tag=f"t{number}")))
    [peer] = desk.ask(ShowSite()).peers
    assert peer.tags == ("kept", *(f"t{number}" for number in range(MAX_RULES + 1, 2 * MAX_RULES)))
    desk.ask(AddPeer(peer=replace(peer, tags=("another",))))
    assert len(desk.ask(ShowSite()).peers[0].tags) <= MAX_RULES


def test_a_peers_routes_have_no_more_tags_than_are_kept() -> None:
    pull = Bridge(name="pull", link="to-B", src="amq.topic", dest="amq.direct")
    routes = [replace(pull, name=f"r{number}", key=f"{number}", tag=f"t{number}") for number in range(MAX_RULES)]
    desk = Desk().linked(*routes)
    with pytest.raises(BadRoute, match=f"{MAX_RULES + 1} tags, more than {MAX_RULES}"):
        desk.ask(AddBridge(bridge=replace(pull, tag="one-more")))
    assert "pull" not in desk.names("bridges")
    assert len(desk.ask(ShowSite()).peers[0].tags) == MAX_RULES


def test_a_route_whose_hello_would_be_refused_is_refused_with_the_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transitions, "MAX_PULLS", 3)
    pull = Bridge(name="pull", link="to-B", src="amq.topic", dest="amq.direct")
    desk = Desk().linked(*(replace(pull, name=f"r{number}", key=f"{number}") for number in range(3)))
    with pytest.raises(BadRoute, match="4 routes are pulled over this link, more than 3"):
        desk.ask(AddBridge(bridge=replace(pull, key="4")))
    desk.ask(AddBridge(bridge=PUSH))  # no hello lists it
    assert len(desk.names("bridges")) == 4


def test_routes_that_together_would_not_fit_into_a_hello_are_refused_with_the_number() -> None:
    excludes = frozenset(f"{number:032d}" for number in range(64))
    pull = Bridge(name="pull", link="to-B", src="amq.topic", dest="amq.direct", excludes=excludes)
    desk, most = Desk().linked(), MAX_PULLS_BYTES // len(encode(replace(pull, name="r100", key="100")))
    changes = [add_bridge(replace(pull, name=f"r{number}", key=f"{number}")) for number in range(100, 100 + most - 1)]
    desk.here.link_service().save_changes(changes)
    small = replace(pull, name="small", excludes=frozenset())
    desk.ask(AddBridge(bridge=small))
    with pytest.raises(BadRoute, match=rf"\d{{6}} bytes, more than {MAX_PULLS_BYTES}"):
        desk.here.link_service().save_changes([add_bridge(replace(pull, key=f"{n}", name=f"p{n}")) for n in range(3)])
    desk.ask(AddBridge(bridge=replace(small, name="small-2", key="2")))
    desk.ask(ChangeBridge(bridge=replace(pull, name="small")))
    with pytest.raises(BadRoute, match=rf"\d{{6}} bytes, more than {MAX_PULLS_BYTES}"):
        desk.ask(ChangeBridge(bridge=replace(pull, name="small-2", key="2")))
    hello = Hello(link="to-B", sender=desk.here.address, pulls=collect_pulls(desk.here.registry(), "to-B")[0])
    assert decode_control(encode_control(hello)) == hello
    assert len(encode_control(hello).encode()) <= MAX_MESSAGE_BYTES


def test_redriving_is_of_the_routes_own_queue() -> None:
    desk = Desk().linked(PUSH, replace(PUSH, name="pull", src_is_local=False))
    assert desk.ask(Redrive(name="push")).redriven == 3
    assert desk.redriven == [build_bridge_queue_name("A", PUSH)]
    with pytest.raises(BadRoute, match="at its source"):
        desk.ask(Redrive(name="pull"))


def test_an_outage_that_is_told_late_is_no_second_failure() -> None:
    desk = Desk().linked()
    for _ in range(3):
        desk.ask(ReportOutage(link="to-B", error="down"))
    assert desk.here.registry().links["to-B"].status.failures == 1
    desk.ask(ReportOutage(link="gone", error="down"))


# What is declared


def test_what_is_declared_is_made_and_made_again() -> None:
    desk = Desk()
    for _ in range(2):
        desk.declare(exchanges=(OWN,), bindings=(BINDING,), links=(desk.link,), routes=(PUSH,))
        assert ("own", "orders", "a.#") in desk.bindings()
        assert (desk.names("links"), desk.names("bridges")) == (["to-B"], ["push"])
        assert [each.on for each in desk.here.mappings.made.values()] == [True]
        desk.ask(UnbindQueue(exchange="own", queue="orders", key="a.#"))


def test_a_route_taken_away_at_run_time_comes_back_after_it_is_gone() -> None:
    desk = Desk()
    desk.declare(links=(desk.link,), routes=(PUSH,))
    desk.ask(CloseBridge(name="push"))
    for _ in range(5):
        desk.world.at_ms += 60_000
        desk.world.talk()
        try_to_sweep(desk)
    assert [record.closing for record in desk.here.registry().bridges.values()] == [False]


def test_what_is_declared_no_longer_goes_and_what_never_was_stays() -> None:
    desk = Desk()
    desk.declare(exchanges=(OWN,), bindings=(BINDING,), links=(desk.link,), routes=(PUSH,))
    desk.ask(BindQueue(exchange="amq.direct", queue="orders", key="by hand"))
    desk.declare()
    desk.world.settle()
    assert (desk.names("links"), desk.names("bridges")) == ([], [])
    assert desk.bindings() == [("amq.direct", "orders", "by hand")]
    assert "own" not in desk.names("exchanges")


@pytest.mark.parametrize("section", ["links", "routes"])
def test_what_is_declared_otherwise_is_made_anew(section: str) -> None:
    desk = Desk()
    desk.declare(links=(desk.link,), routes=(PUSH,))
    link = replace(desk.link, durable=False) if section == "links" else desk.link
    route = replace(PUSH, max_hops=3) if section == "routes" else PUSH
    desk.declared = Declared(links=(link,), routes=(route,))
    for _ in range(6):
        try_to_sweep(desk)
        desk.world.settle(90_000)
    registry = desk.here.registry()
    assert (registry.links["to-B"].link, registry.bridges["push"].bridge) == (link, route)
    assert desk.here.queues.lost == []


def test_a_declaration_that_cannot_be_is_said_and_holds_up_nothing_else() -> None:
    desk = Desk().linked(PUSH)
    next(iter(desk.here.mappings.made.values())).on = False
    desk.declared = Declared(routes=(replace(PUSH, name="bad", link="nowhere"),), bindings=(BINDING,))
    with pytest.raises(BadConfiguration):
        desk.ask(SweepSite())
    assert [each.on for each in desk.here.mappings.made.values()] == [True]


def test_a_peer_that_cannot_be_is_said_and_holds_up_nothing_else() -> None:
    desk = Desk()
    east = Peer(tag="EAST", account="123456789012", region="us-east-1", declared=True)
    west = replace(east, tag="WEST", account="999999999999")
    to_west = replace(desk.link, name="to-WEST", peer="WEST")
    desk.peers = (west, east)
    desk.declared = Declared(exchanges=(OWN,), bindings=(BINDING,), links=(to_west, desk.link), routes=(PUSH,))
    with pytest.raises(BadConfiguration, match=r"doesn't list 999999999999, WEST's; to-WEST: 'WEST' is no peer"):
        desk.ask(SweepSite())
    assert [peer.tag for peer in desk.ask(ShowSite()).peers] == ["B", "EAST"]
    assert ("own", "orders", "a.#") in desk.bindings()
    assert (desk.names("links"), desk.names("bridges")) == (["to-B"], ["push"])


def test_what_was_declared_beside_what_cannot_be_goes_with_its_declaration() -> None:
    desk, bad = Desk(), replace(PUSH, name="bad", link="nowhere")
    for bindings in ((BINDING,), ()):
        desk.declared = Declared(exchanges=(OWN,), bindings=bindings, routes=(bad,))
        with pytest.raises(BadConfiguration, match="nowhere"):
            desk.ask(SweepSite())
        assert desk.bindings() == [("own", "orders", "a.#") for _ in bindings]


def try_to_sweep(desk: Desk) -> None:
    """What is closing is in the way for a while, and that is said."""
    try:
        desk.ask(SweepSite())
    except BadConfiguration:
        return


@pytest.mark.parametrize(
    "text",
    [
        '{"links": 5}',
        '{"links": [5]}',
        '{"links": [{"name": "l"}]}',
        '{"routes": [{"name": "r", "sync": true}]}',
        '{"bindings": [{"queue": "q"}]}',
        '{"bindings": [{"queue": "q", "exchange": "e", "arguments": []}]}',
        '{"exchanges": [{"name": "e"}]}',
        '{"exchanges": [{"type": "topic"}]}',
    ],
)
def test_a_bad_declaration_names_the_place(text: str) -> None:
    section = text.split('"')[1]
    with pytest.raises((BadRoute, BadBinding), match=section):
        Declared.parse(text)


def test_a_declaration_comes_back() -> None:
    declared = Declared(exchanges=(OWN,), bindings=(BINDING,), links=(Desk().link,), routes=(PUSH, QUEUE))
    assert Declared.parse(declared.to_json()) == declared


def test_messages_go_over_a_declared_route() -> None:
    desk = Desk()
    desk.declare(links=(desk.link,), routes=(PUSH, replace(QUEUE, src=SOURCE)))
    desk.world.talk()
    desk.world.settle(120_000)
    desk.here.publish("published")
    desk.here.offer("offered")
    desk.world.forward()
    assert sorted(desk.world["B"].queues.taken_in) == [(FIFO_INGRESS, "offered"), (FIFO_INGRESS, "published")]
