"""Dynamic routes between sites in memory: through the registrars, the tables and the control queues."""

from dataclasses import dataclass, field
from typing import Any

import pytest
from msgspec import Raw
from msgspec.structs import replace

from sluice.errors import BadRoute, DestinationFault
from sluice.federation.dynamic.state import ROUTES
from sluice.federation.dynamic_service import DynamicRouteService
from sluice.federation.exchange_store import add_binding, remove_binding
from sluice.federation.links.links import Bridge
from sluice.federation.links.messages import DynamicMessage, decode_control
from sluice.federation.links.states import Command
from sluice.federation.links.transitions import add_bridge, add_link, close_bridge, record_resources, update_link
from sluice.federation.matching.bindings import Binding, Destination
from tests.federation_fakes import FakeDocument, Site, World, make_sender_id

TOPIC = "amq.topic"


@dataclass
class DynamicSite(Site):
    states: FakeDocument = field(default_factory=FakeDocument)

    def dynamics(self) -> DynamicRouteService:
        return DynamicRouteService(link_service=self.link_service(), document=self.states)

    def receive(self) -> None:
        if not self.control:
            return
        group, body = self.control[0]
        control, sender_id = decode_control(body), make_sender_id(group.partition("/")[0])
        try:
            if isinstance(control, DynamicMessage):
                self.dynamics().receive(control, sender_id=sender_id)
            else:
                self.link_service().receive(control, sender_id=sender_id)
                self.dynamics().sync()
        except DestinationFault:
            return
        self.control.pop(0)

    def bind(self, key: str) -> None:
        queue = f"own-{key}.fifo"
        self.queues.queues.setdefault(queue, [])
        destination = Destination(queue=queue, url=self.queues.url(queue))
        self.link_service().exchanges.change(add_binding(Binding(exchange=TOPIC, queue=queue, key=key), destination))
        self.dynamics().sync()

    def unbind(self, key: str) -> None:
        self.link_service().exchanges.change(remove_binding((TOPIC, f"own-{key}.fifo", key)))
        self.dynamics().sync()

    def keys(self) -> list[str]:
        """What bridges' queues are bound by."""
        bindings = self.link_service().exchanges.bindings()
        return sorted(binding.key for binding in bindings if binding.queue.startswith("sluice-bridge-"))


class DynamicWorld(World):
    def __post_init__(self) -> None:
        self.sites = {tag: DynamicSite(tag, self) for tag in self.tags}
        self.introduce()

    def __getitem__(self, tag: str) -> DynamicSite:
        site = self.sites[tag]
        assert isinstance(site, DynamicSite)
        return site

    def route(self, dest: str, src: str, **fields: Any) -> None:
        site = self[dest]
        link = self.link(dest, src)
        bridge = Bridge(name=f"from-{src}", link=link.name, src=TOPIC, dest=TOPIC, dynamic=True, **fields)
        site.link_service().advance([add_link(link), add_bridge(bridge)])
        site.dynamics().sync()

    def minutes(self, number: int) -> None:
        for _ in range(number):
            self.talk()
            self.at_ms += 60_000
            for tag in self.tags:
                site = self[tag]
                site.drift_repair().sweep()
                site.link_service().advance()
                site.dynamics().sync(is_heartbeat=True)
            self.talk()
            self.forward()


@pytest.fixture
def line() -> DynamicWorld:
    """C has from B, B has from A."""
    world = DynamicWorld(["A", "B", "C"])
    world["C"].bind("before")
    world.route("C", "B")
    world.route("B", "A")
    world.minutes(2)
    return world


def arrived(world: DynamicWorld, key: str) -> list[str]:
    world["A"].publish(f"to {key}", exchange=TOPIC, key=key)
    for _ in range(3):
        world.forward()
        world.at_ms += 1_000
    return world["C"].queues.bodies(f"own-{key}.fifo")


def test_what_is_bound_two_hops_away_is_forwarded(line: DynamicWorld) -> None:
    assert (line["A"].keys(), line["B"].keys()) == (["before"], ["before"])
    line["C"].bind("later")
    line.talk()
    line.at_ms += 2_000
    assert line["A"].keys() == ["before", "later"]
    assert [arrived(line, key) for key in ("before", "later")] == [["to before"], ["to later"]]


def test_what_is_unbound_is_unbound_everywhere(line: DynamicWorld) -> None:
    line["C"].unbind("before")
    line.talk()
    assert (line["A"].keys(), line["B"].keys()) == ([], [])


def test_what_was_lost_on_the_way_is_asked_for(line: DynamicWorld) -> None:
    line["C"].bind("lost")
    for tag in line.tags:
        line[tag].control.clear()
    line.talk()
    assert line["A"].keys() == ["before"]
    line.minutes(3)
    assert line["A"].keys() == ["before", "lost"]


def test_a_link_that_is_down_keeps_what_is_wanted_unless_it_expires() -> None:
    world = DynamicWorld(["A", "C"])
    world["C"].bind("k")
    world.route("C", "A", expires_s=600)
    world.minutes(2)
    served = next(name for name in world["A"].registry().links)
    world["A"].link_service().save_changes([update_link(served, Command.PAUSE)])
    world["C"].peers.unreachable.add("A")
    for minutes, kept in ((5, ["k"]), (10, [])):
        for _ in range(minutes):
            world.at_ms += 60_000
            world["A"].dynamics().sync(is_heartbeat=True)
        assert world["A"].keys() == kept


def test_what_is_wanted_over_a_route_is_kept_while_its_queue_is_made_anew(line: DynamicWorld) -> None:
    """Its peer may be away, and wouldn't say it again."""
    here = line["A"]
    [name] = here.registry().bridges
    here.link_service().save_changes([record_resources(bridge=name, queue="", mapping="", on=False, error="gone")])
    here.dynamics().sync()
    assert here.keys() == ["before"]
    line["B"].bind("own")
    line.talk()
    assert here.keys() == ["before"]  # nothing is bound while there is no queue
    here.link_service().advance()
    here.dynamics().sync()
    assert here.keys() == ["before", "own"]


def test_a_queue_that_is_made_anew_is_no_want_of_its_site(line: DynamicWorld) -> None:
    line.route("A", "C")  # C is told what A wants
    line.minutes(2)
    here = line["A"]
    [name] = [name for name, record in here.registry().bridges.items() if record.bridge.src_is_local]
    here.link_service().save_changes([record_resources(bridge=name, queue="", mapping="", on=False, error="gone")])
    here.dynamics().sync()
    line.talk()
    assert line["C"].keys() == []


def test_a_route_that_goes_leaves_nothing(line: DynamicWorld) -> None:
    for tag in ("B", "C"):
        site = line[tag]
        site.link_service().advance(
            [close_bridge(name) for name, record in site.registry().bridges.items() if not record.served]
        )
        site.dynamics().sync()
    line.minutes(6)
    for tag in line.tags:
        assert line[tag].keys() == []
        assert line[tag].dynamics().routes.value() == {}
        assert not line[tag].registry().bridges
        assert not [name for name in line[tag].queues.queues if name.startswith("sluice-bridge-")]


def test_what_cannot_be_read_is_counted_and_strangers_are_refused(line: DynamicWorld) -> None:
    dynamics = line["A"].dynamics()
    for said in (b"{", b'{"op": "X"}', b"[]"):
        said_by = DynamicMessage(link="l", sender=line["B"].address, op=Raw(said))
        dynamics.receive(said_by, sender_id=make_sender_id("B"))
    assert dynamics.ignored == {"malformed": 3}
    stranger = replace(line["B"].address, tag="STRANGER")
    with pytest.raises(BadRoute, match="'STRANGER' is no peer of this site"):
        dynamics.receive(DynamicMessage(link="l", sender=stranger, op=Raw(b"{}")), sender_id=make_sender_id("STRANGER"))
    with pytest.raises(BadRoute, match="B: sent by 'AROAC', which is none of its roles"):
        dynamics.receive(
            DynamicMessage(link="l", sender=line["B"].address, op=Raw(b"{}")), sender_id=make_sender_id("C")
        )


def test_the_state_comes_back_as_it_was(line: DynamicWorld) -> None:
    for tag in line.tags:
        content = line[tag].states.content
        assert content is not None
        assert ROUTES.pack(ROUTES.unpack(content)) == content
