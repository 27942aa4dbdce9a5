"""Sites that talk to each other: it always settles as declared, leaves nothing behind, and loses no message."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any, ClassVar

import pytest
from msgspec.structs import replace

from sluice.errors import BadRoute, CallFailed, PeerUnreachable
from sluice.federation.bridge_provisioner import BRIDGE_QUEUE_PREFIX, build_bridge_queue_name, choose_scaling
from sluice.federation.links.links import Bridge, Endpoint, Link, MappingScaling
from sluice.federation.links.registry import SERVED_MARK, BridgeRecord, make_destination
from sluice.federation.links.states import CARRYING, Command, Intent, LinkEvent, LinkState
from sluice.federation.links.transitions import (
    Change,
    add_bridge,
    add_link,
    change_bridge,
    close_bridge,
    command_bridge,
    update_link,
)
from sluice.splitting.filters.values import Filter
from tests.federation_fakes import FIFO_INGRESS, INGRESS, SOURCE, Crash, Site, World, queue_attributes
from tests.many_cases import some_of

DEST = "amq.direct"  # nothing is bound there: what arrives goes no further


def bridge(name: str, link: str, **fields: Any) -> Bridge:
    return Bridge(name=name, link=link, **{"src": "amq.fanout", "dest": DEST, **fields})


def advance(site: Site, *events: Change) -> None:
    site.link_service().advance(events)


def linked(here: str = "A", peer: str = "B", **fields: Any) -> World:
    """Two sites with a link that is up, and a route over it."""
    world = World(("A", "B"))
    advance(world[here], add_link(world.link(here, peer)))
    world.talk()
    advance(world[here], add_bridge(bridge("route", f"to-{peer}", **fields)))
    world.talk()
    return world


# What must hold once everything is quiet


def leftovers(world: World) -> list[str]:
    """What is there and belongs to nothing, or is missing and ought to be there."""
    return [each for site in world.sites.values() for each in (*_strays(world, site), *_lacks(world, site))]


def _strays(world: World, site: Site) -> list[str]:
    registry = site.registry()
    local = [each for each in registry.bridges.values() if each.bridge.src_is_local]
    made = {each.queue for each in local if each.queue is not None}
    ours = {name for name in site.queues.queues if name.startswith(BRIDGE_QUEUE_PREFIX)}
    mappings = {each.mapping for each in local}
    bound = {binding.queue for binding in site.link_service().exchanges.bindings()}
    strays = [f"{site.tag}: queue {name}" for name in ours - made]
    strays += [f"{site.tag}: mapping {name}" for name in site.mappings.made.keys() - mappings]
    strays += [f"{site.tag}: binding of {name}" for name in bound - {each.queue for each in local if each.bound}]
    for name, record in registry.links.items():
        if record.served:
            asker = world[record.link.peer].registry()
            if name.removesuffix(SERVED_MARK + record.link.peer) not in asker.links:
                strays.append(f"{site.tag}: served link {name}")
    for name, each in registry.bridges.items():
        if each.closing:
            strays.append(f"{site.tag}: closing bridge {name}")
        if each.served and name.removesuffix(SERVED_MARK + registry.links[each.bridge.link].link.peer) not in (
            world[registry.links[each.bridge.link].link.peer].registry().bridges
        ):
            strays.append(f"{site.tag}: served bridge {name}")
    return strays


def _lacks(world: World, site: Site) -> list[str]:
    registry, lacks = site.registry(), []
    for name, record in registry.bridges.items():
        if record.closing:
            continue
        if record.bridge.src_is_local:
            lacks += _missing(site, record)
            continue
        link = registry.links[record.bridge.link]
        draining = link.status.draining
        peer = world[link.link.peer].registry()
        theirs = peer.bridges.get(name + SERVED_MARK + site.tag)
        if theirs is None:
            lacks.append(f"{site.tag}: {name} isn't served")
        elif (theirs.intent is Intent.PAUSED) != (
            record.intent is Intent.PAUSED or (link.status.state is LinkState.PAUSED and not draining)
        ):
            lacks.append(f"{site.tag}: {name} is served, and {theirs.intent}")
    return lacks


def _missing(site: Site, record: BridgeRecord) -> list[str]:
    """Of a bridge that pushes: its queue, bound, and its mapping, on exactly when messages may go."""
    registry = site.registry()
    name, link = f"{site.tag}: {record.bridge.name}", registry.links[record.bridge.link]
    takes_in = not (record.intent is Intent.DRAINING or link.status.draining)
    sharing = [each for each in registry.bridges.values() if each.queue == record.queue and each.bridge.src_is_local]
    on = any(
        registry.links[each.bridge.link].status.state in CARRYING and each.intent in {Intent.OPEN, Intent.DRAINING}
        for each in sharing
    )
    mapping = site.mappings.made.get(record.mapping or "")
    bound = {binding.queue for binding in site.link_service().exchanges.bindings()}
    lacks = [f"{name} has no queue"] if record.queue not in site.queues.queues else []
    if record.makes_queue and site.queues.attributes.get(record.queue or "") != queue_attributes(record.bridge):
        lacks.append(f"{name} has a queue of other options")
    known = site.link_service().exchanges.bindings().destination(record.queue or "") if record.bound else None
    if known is not None and known != make_destination(registry, record, url=known.url):
        lacks.append(f"{name} is bound with other options")
    if mapping is not None and mapping.pace != choose_scaling(sharing, record.queue or ""):
        lacks.append(f"{name} is read at {mapping.pace}")
    if mapping is None:
        lacks.append(f"{name} has no mapping")
    elif (mapping.queue, mapping.on) != (record.queue, on):
        lacks.append(f"{name} has a mapping of {mapping.queue}, on={mapping.on}, not {on}")
    if not record.bridge.src_is_queue and (record.queue in bound) != takes_in:
        lacks.append(f"{name} is bound={record.queue in bound}, not {takes_in}")
    return lacks


def unaccounted(world: World) -> set[str]:
    """What was in a bridge queue and is nowhere now: not at a peer, not in a queue, not a dead letter."""
    sites = list(world.sites.values())
    taken_in = [each for site in sites for each in site.queues.taken_in]
    crossing = {body for name, body in taken_in if name.startswith(BRIDGE_QUEUE_PREFIX) or name == SOURCE}
    arrived = {body for name, body in taken_in if name in ARRIVALS}
    waiting = {body for site in sites for name in site.queues.queues for body in site.queues.bodies(name)}
    dead = {letter.message.body for site in sites for letter in site.dead.letters}
    return crossing - arrived - waiting - dead


SEEDS = 6  # of each kind of luck
ARRIVALS = {INGRESS, FIFO_INGRESS}


def lost(world: World) -> list[tuple[str, str]]:
    """What was in a queue when that was deleted."""
    return [each for site in world.sites.values() for each in site.queues.lost]


# One thing at a time


@pytest.mark.parametrize("fifo", [True, False])
@pytest.mark.parametrize("src_is_local", [True, False])
@pytest.mark.parametrize("src_is_queue", [True, False])
def test_a_route_is_made_carries_and_goes(*, src_is_local: bool, src_is_queue: bool, fifo: bool) -> None:
    src: dict[str, Any] = {"src": SOURCE, "src_is_queue": True} if src_is_queue else {}
    world = linked(src_is_local=src_is_local, fifo=fifo, **src)
    source, dest = (world["A"], world["B"]) if src_is_local else (world["B"], world["A"])
    world.settle(60_000)
    assert leftovers(world) == []
    if src_is_queue:
        source.offer("m")
    else:
        source.publish("m")
    world.forward()
    expected = FIFO_INGRESS if fifo or src_is_queue else INGRESS
    assert [each for each in dest.queues.taken_in if each[0] in ARRIVALS] == [(expected, "m")]
    advance(world["A"], close_bridge("route"))
    world.settle()
    assert leftovers(world) == []
    assert [site.registry().bridges for site in world.sites.values()] == [{}, {}]
    advance(world["A"], update_link("to-B", LinkEvent.CLOSE))
    world.settle()
    assert [site.registry().links for site in world.sites.values()] == [{}, {}]
    assert (leftovers(world), lost(world)) == ([], [])
    assert SOURCE in source.queues.queues


@pytest.mark.parametrize("src_is_local", [True, False])
def test_a_link_takes_its_routes_along(*, src_is_local: bool) -> None:
    world = linked(src_is_local=src_is_local)
    advance(world["A"], update_link("to-B", LinkEvent.CLOSE))
    world.settle()
    for site in world.sites.values():
        assert (site.registry().links, site.registry().bridges, site.mappings.made) == ({}, {}, {})
    assert leftovers(world) == []


@pytest.mark.parametrize("src_is_local", [True, False])
def test_an_outage_keeps_what_comes_and_switches_the_mapping_off(*, src_is_local: bool) -> None:
    world = linked(src_is_local=src_is_local)
    source, dest = (world["A"], world["B"]) if src_is_local else (world["B"], world["A"])
    source.peers.unreachable.add(dest.tag)
    for number in range(20):
        source.publish(f"m{number}")
    world.forward()
    assert [each.on for each in source.mappings.made.values()] == [False]
    world.settle(10 * 60_000)
    source.peers.unreachable.clear()
    world.settle(5 * 60_000)
    assert [body for name, body in dest.queues.taken_in if name in ARRIVALS] == [f"m{n}" for n in range(20)]
    assert (source.dead.letters, leftovers(world)) == ([], [])


@pytest.mark.parametrize("src_is_local", [True, False])
def test_a_refusal_is_probed_again(*, src_is_local: bool) -> None:
    world = linked(src_is_local=src_is_local)
    source, dest = (world["A"], world["B"]) if src_is_local else (world["B"], world["A"])
    source.peers.refusing.add(dest.tag)
    source.publish("m")
    world.forward()
    [link] = source.registry().links.values()
    assert (link.status.state, [each.on for each in source.mappings.made.values()]) == (LinkState.FAILED, [False])
    source.peers.refusing.clear()
    world.settle(20 * 60_000)
    assert ("ingress.fifo", "m") in dest.queues.taken_in
    assert leftovers(world) == []


@pytest.mark.parametrize("src_is_local", [True, False])
def test_a_paused_link_keeps_messages_and_a_resumed_one_sends_them(*, src_is_local: bool) -> None:
    world = linked(src_is_local=src_is_local)
    source, dest = (world["A"], world["B"]) if src_is_local else (world["B"], world["A"])
    advance(world["A"], update_link("to-B", Command.PAUSE))
    world.settle(120_000)
    source.publish("m")
    world.settle(120_000)
    assert (dest.queues.taken_in, leftovers(world)) == ([], [])
    advance(world["A"], update_link("to-B", Command.RESUME))
    world.settle(120_000)
    assert (dest.queues.taken_in, leftovers(world)) == ([(FIFO_INGRESS, "m")], [])


@pytest.mark.parametrize("src_is_local", [True, False])
def test_a_draining_link_sends_what_it_has_takes_in_no_more_and_pauses(*, src_is_local: bool) -> None:
    world = linked(src_is_local=src_is_local)
    source, dest = (world["A"], world["B"]) if src_is_local else (world["B"], world["A"])
    source.publish("before")
    advance(world["A"], update_link("to-B", Command.DRAIN))
    world.settle(300_000)
    world.at_ms += 2_000
    source.publish("after")
    world.settle(300_000)
    assert dest.queues.taken_in == [(FIFO_INGRESS, "before")]
    assert [link.status.state for site in (world["A"], source) for link in site.registry().links.values()] == [
        LinkState.PAUSED
    ] * 2
    assert [drop.reason for drop in source.drops] == ["unroutable"]
    advance(world["A"], update_link("to-B", Command.RESUME))
    world.settle(300_000)
    source.publish("again")
    world.settle(120_000)
    assert [body for _, body in dest.queues.taken_in] == ["before", "again"]
    assert leftovers(world) == []


@pytest.mark.parametrize("src_is_local", [True, False])
def test_a_parting_that_is_lost_leaves_nothing_behind(*, src_is_local: bool) -> None:
    world = linked(src_is_local=src_is_local)
    advance(world["A"], update_link("to-B", LinkEvent.CLOSE))
    while "to-B" in world["A"].registry().links:
        world["B"].control.clear()
        world.at_ms += 5_000
        advance(world["A"])
    world["B"].control.clear()
    world.settle()
    assert leftovers(world) == []


def test_a_pause_whose_hello_is_lost_holds_all_the_same() -> None:
    world = linked()
    advance(world["A"], update_link("to-B", Command.PAUSE))
    world["B"].control.clear()
    world.settle(10 * 60_000)
    assert leftovers(world) == []


def test_what_is_received_while_its_route_goes_down_is_not_lost() -> None:
    """A batch is under way when the peer vanishes, and the link is closed meanwhile."""
    world = linked(src_is_local=True)
    here = world["A"]
    here.publish("m")
    here.begin(next(iter(here.mappings.made)))
    here.peers.unreachable.add("B")
    advance(here, update_link("to-B", LinkEvent.CLOSE))
    [batch] = here.pending
    here.finish(batch)
    world.settle()
    assert lost(world) == []
    assert [letter.reason for letter in here.dead.letters] == ["the route route is gone"]


def test_what_a_gone_route_still_had_becomes_dead_letters_with_the_reason() -> None:
    world = linked(src_is_local=True)
    here = world["A"]
    here.peers.unreachable.add("B")
    for number in range(25):
        here.publish(f"m{number}")
    world.forward()
    advance(here, update_link("to-B", LinkEvent.CLOSE))
    here.peers.unreachable.clear()
    here.peers.refusing.add("B")
    world.settle()
    assert {letter.message.body for letter in here.dead.letters} == {f"m{number}" for number in range(25)}
    here.peers.refusing.clear()  # the peer asks what has become of the link
    world.settle()
    assert (lost(world), leftovers(world)) == ([], [])


def test_a_queue_that_cannot_be_made_is_said_and_tried_again() -> None:
    world = World(("A", "B"))
    here = world["A"]
    name = build_bridge_queue_name("A", bridge("route", "to-B"))
    here.queues.failing.add(name)
    advance(here, add_link(world.link("A", "B")), add_bridge(bridge("route", "to-B", src_is_local=True)))
    error = here.registry().bridges["route"].error
    assert error is not None
    assert "AccessDenied" in error
    here.queues.failing.clear()
    world.settle(120_000)
    assert (here.registry().bridges["route"].error, leftovers(world)) == (None, [])


def test_a_route_whose_queue_was_just_made_is_looked_at_within_seconds() -> None:
    """Lambda refuses a mapping to a queue that isn't there yet, and a change of one that is being made."""
    world = linked()
    here = world["A"]
    here.mappings.failing = True
    advance(here, add_bridge(bridge("second", "to-B", src_is_local=True, src="amq.topic")))
    again_ms = here.link_service().next_tick_ms(here.registry())
    assert again_ms is not None
    assert again_ms <= world.at_ms + 10_000


def test_a_mapping_that_somebody_else_switches_or_deletes_comes_back() -> None:
    world = linked(src_is_local=True)
    here = world["A"]
    next(iter(here.mappings.made.values())).on = False
    world.settle(120_000)
    assert leftovers(world) == []
    here.mappings.made.clear()
    world.settle(120_000)
    assert leftovers(world) == []


def test_routes_that_share_a_queue_share_its_mapping_until_the_last_is_gone() -> None:
    world = linked(src=SOURCE, src_is_queue=True, src_is_local=True)
    here = world["A"]
    other = bridge("other", "to-B", src=SOURCE, src_is_queue=True, src_is_local=True, dest="amq.topic")
    advance(here, add_bridge(other))
    world.settle(60_000)
    assert (len(here.mappings.made), leftovers(world)) == (1, [])
    advance(here, close_bridge("route"))
    world.settle(120_000)
    assert (len(here.mappings.made), leftovers(world)) == (1, [])
    advance(here, add_bridge(bridge("route", "to-B", src=SOURCE, src_is_queue=True, src_is_local=True)))
    advance(here, update_link("to-B", LinkEvent.CLOSE))
    world.settle()
    assert (here.mappings.made, leftovers(world)) == ({}, [])


def test_a_queue_is_read_as_the_strictest_asks_of_those_that_share_it() -> None:
    def pace(queue: str, *asked: dict[str, Any]) -> MappingScaling:
        return choose_scaling([BridgeRecord(bridge=bridge(f"{n}", "l", **each)) for n, each in enumerate(asked)], queue)

    assert pace("q", {"sync": 100}) == MappingScaling(batch_size=100)
    assert pace("q.fifo", {"sync": 100}) == MappingScaling(batch_size=10)
    assert pace("q", {"sync": 100}, {"sync": 7}) == MappingScaling(batch_size=7)
    assert pace("q", {"sync": 10, "credit": 7}) == MappingScaling(batch_size=3, max_concurrency=2)
    assert pace("q", {"sync": 10, "credit": 90}) == MappingScaling(batch_size=10, max_concurrency=9)
    assert pace("q", {"sync": 100, "rate": 5}, {"credit": 90}) == MappingScaling(batch_size=5, max_concurrency=2)
    assert pace("q", {"sync": 100, "rate": 1_000}) == MappingScaling(batch_size=100, max_concurrency=2)


def test_a_peer_slows_nobody_down_who_reads_the_same_queue() -> None:
    slow = {"sync": 1, "credit": 2, "rate": 1}
    peers = BridgeRecord(bridge=bridge("theirs", "x@B", **slow), served=True)
    another = BridgeRecord(bridge=bridge("another", "x@C"), served=True)
    own = BridgeRecord(bridge=bridge("own", "to-C", sync=100, credit=300))
    assert choose_scaling([peers], "q") == MappingScaling(batch_size=1, max_concurrency=2)
    assert choose_scaling([peers, another], "q") == MappingScaling(batch_size=10)
    assert choose_scaling([peers, own], "q") == choose_scaling([own, another], "q")


def test_a_shared_queue_is_read_as_the_others_ask_once_the_strictest_is_gone() -> None:
    world = linked(src=SOURCE, src_is_queue=True, src_is_local=True)
    here = world["A"]
    strict = bridge("strict", "to-B", src=SOURCE, src_is_queue=True, src_is_local=True, dest="amq.topic", rate=2)
    advance(here, add_bridge(strict))
    assert [each.pace for each in here.mappings.made.values()] == [MappingScaling(batch_size=2, max_concurrency=2)]
    advance(here, close_bridge("strict"))
    world.settle(120_000)
    assert [each.pace for each in here.mappings.made.values()] == [MappingScaling(batch_size=10)]
    assert leftovers(world) == []


def test_a_site_that_takes_anothers_tag_is_not_heard() -> None:
    world = World(("A", "B"))
    advance(world["A"], add_link(world.link("A", "B")))
    world.talk()
    impostor = Site("A", world)
    impostor.peers.here = "IMPOSTOR"
    impostor.link_service().save_changes([add_link(world.link("A", "B", name="other"))])
    impostor.link_service().advance()
    world["B"].receive()
    assert "other@A" not in world["B"].registry().links
    assert world["B"].deaf == ["BadRoute: A: sent by 'AROAIMPOSTOR', which is none of its roles"]


def test_a_route_over_no_link_is_refused_and_nothing_is_written() -> None:
    world = World(("A", "B"))
    with pytest.raises(BadRoute, match="no such link"):
        advance(world["A"], add_bridge(bridge("route", "to-B")))
    assert world["A"].document.written == 0


def test_who_loses_a_race_reads_again() -> None:
    world = World(("A", "B"))
    world["A"].document.rivals = 3
    advance(world["A"], add_link(world.link("A", "B")))
    world.talk()
    assert world["A"].registry().links["to-B"].status.state is LinkState.OPERATIONAL


@pytest.mark.parametrize("src_is_local", [True, False])
def test_a_changed_filter_holds_for_what_is_queued_already(*, src_is_local: bool) -> None:
    world = linked(src_is_local=src_is_local)
    source, dest = (world["A"], world["B"]) if src_is_local else (world["B"], world["A"])
    for number in range(4):
        source.publish(f"m{number}", key=f"{number}")
    odd = Filter(attributes=(("routing-key", "[13]"),))
    advance(world["A"], change_bridge(bridge("route", "to-B", src_is_local=src_is_local, filter=odd)))
    world.settle(120_000)
    assert [body for name, body in dest.queues.taken_in if name in ARRIVALS] == ["m1", "m3"]
    assert [drop.reason for drop in source.drops] == ["filtered", "filtered"]
    assert leftovers(world) == []


def test_a_filter_that_cannot_be_used_fails_its_route_at_the_source_and_no_other() -> None:
    world = linked()
    wrong = Filter(attributes=(("a", "("),))
    advance(world["A"], add_bridge(bridge("wrong", "to-B", src="amq.topic", filter=wrong)))
    world.talk()
    assert list(world["B"].registry().bridges) == ["route@A"]
    said = world["A"].registry().links["to-B"].remote
    assert said["wrong"].startswith("Failed: filter.message_filter.a: '(' doesn't compile")
    assert said["route"] == "Operational"


@pytest.mark.parametrize("src_is_local", [True, False])
def test_a_route_that_is_changed_where_it_stands_loses_and_doubles_nothing(*, src_is_local: bool) -> None:
    world = linked(src_is_local=src_is_local)
    source, dest = (world["A"], world["B"]) if src_is_local else (world["B"], world["A"])
    made = set(source.queues.queues)

    def publish(number: int) -> None:
        source.publish(f"m{number}")

    for number in range(30):
        publish(number)
        options = {"sync": 1 + number % 10, "max_hops": 1 + number, "retention_s": 60 + number, "dest_key": f"{number}"}
        advance(world["A"], change_bridge(bridge("route", "to-B", src_is_local=src_is_local, **options)))
        publish(100 + number)
        world.talk()
        publish(200 + number)
        world.forward()
    world.settle(120_000)
    assert (set(source.queues.queues), leftovers(world), lost(world)) == (made, [], [])
    arrived = [body for name, body in dest.queues.taken_in if name in ARRIVALS]
    assert sorted(arrived) == sorted(f"m{more + number}" for number in range(30) for more in (0, 100, 200))


# Whatever happens


Happening = Callable[["Chaos", Site], None]


@dataclass
class Chaos:
    """Everything that may happen to sites, at random, and struck at random amid it."""

    world: World
    random: Random
    crashes: float = 0.0
    meanwhile: float = 0.0
    loses: float = 0.0
    numbers: int = 0
    depth: int = 0
    published: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        for site in self.world.sites.values():
            site.strike_with(partial(self.strike, site))

    def strike(self, site: Site) -> None:
        """Somebody else comes in between, or the function dies."""
        if self.depth == 1 and self.random.random() < self.meanwhile:
            self.perform(self.random.choice(self.INSIDE), site)
        if self.depth and self.random.random() < self.crashes:
            raise Crash

    def perform(self, what: Callable[["Chaos", Site], None], site: Site) -> None:
        self.depth += 1
        try:
            what(self, site)
        except (Crash, BadRoute, CallFailed):
            pass  # whoever asked sees an error, and may ask again
        finally:
            self.depth -= 1

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.perform(self.random.choice(self.OUTSIDE), self.random.choice(list(self.world.sites.values())))

    def calm(self) -> None:
        """From here on nothing goes wrong."""
        self.crashes = self.meanwhile = self.loses = 0.0
        for site in self.world.sites.values():
            site.peers.unreachable.clear()
            site.peers.refusing.clear()

    # What may happen

    def _peer(self, site: Site) -> str:
        return self.random.choice([tag for tag in self.world.sites if tag != site.tag])

    def _link_name(self, site: Site) -> str:
        return self.random.choice([*site.registry().links, f"to-{self._peer(site)}"])

    def _bridge_name(self, site: Site) -> str:
        return self.random.choice([*site.registry().bridges, "none"])

    def add_link(self, site: Site) -> None:
        peer = self._peer(site)
        advance(site, add_link(self.world.link(site.tag, peer)))

    def tell_link(self, site: Site) -> None:
        what = self.random.choice([Command.PAUSE, Command.RESUME, Command.DRAIN, Command.RETRY])
        advance(site, update_link(self._link_name(site), what))

    def close_link(self, site: Site) -> None:
        advance(site, update_link(self._link_name(site), LinkEvent.CLOSE))

    def add_bridge(self, site: Site) -> None:
        choice, peer = self.random, self._peer(site)
        local, fifo, queue = choice.random() < 0.5, choice.random() < 0.7, choice.random() < 0.2
        src = {"src": SOURCE, "src_is_queue": True} if queue else {}
        name = f"{peer}-{choice.randrange(2)}"
        advance(site, add_bridge(bridge(name, f"to-{peer}", src_is_local=local, fifo=fifo, **src)))

    def close_bridge(self, site: Site) -> None:
        advance(site, close_bridge(self._bridge_name(site)))

    def tell_bridge(self, site: Site) -> None:
        what = self.random.choice([Command.PAUSE, Command.RESUME, Command.DRAIN])
        advance(site, command_bridge(self._bridge_name(site), what))

    def publish(self, site: Site) -> None:
        self.numbers += 1
        body = f"m{self.numbers}"
        if self.random.random() < 0.2:
            site.offer(body)
        else:
            site.publish(body)
        self.published.append(body)

    def tick(self, site: Site) -> None:
        advance(site)

    def sweep(self, site: Site) -> None:
        site.drift_repair().sweep()
        advance(site)

    def receive(self, site: Site) -> None:
        if site.control and self.random.random() < self.loses:
            site.control.pop(0)
        elif site.control and self.random.random() < self.loses:
            site.control.insert(0, site.control[0])
        site.receive()

    def begin(self, site: Site) -> None:
        if site.mappings.made:
            site.begin(self.random.choice(list(site.mappings.made)))

    def finish(self, site: Site) -> None:
        if site.pending:
            site.finish(self.random.choice(site.pending))

    def take_ingress(self, site: Site) -> None:
        site.take_ingress()

    def break_(self, site: Site) -> None:
        self.random.choice([site.peers.unreachable, site.peers.refusing]).add(self._peer(site))

    def mend(self, site: Site) -> None:
        site.peers.unreachable.clear()
        site.peers.refusing.clear()

    def meddle(self, site: Site) -> None:
        for mapping in site.mappings.made.values():
            mapping.on = not mapping.on

    def pass_time(self, site: Site) -> None:
        self.world.at_ms += self.random.choice([100, 1_000, 5_000, 70_000, 1_000_000])

    def change_bridge(self, site: Site) -> None:
        record = site.registry().bridges.get(self._bridge_name(site))
        if record is not None:
            sync, hops = self.random.randint(1, 20), self.random.randint(1, 4)
            kept = {} if record.bridge.src_is_queue else {"retention_s": self.random.randint(60, 70)}
            advance(site, change_bridge(replace(record.bridge, sync=sync, max_hops=hops, **kept)))

    INSIDE: ClassVar[Sequence[Happening]] = (
        tick,
        receive,
        begin,
        finish,
        publish,
        close_bridge,
        close_link,
        tell_link,
        add_bridge,
    )
    OUTSIDE: ClassVar[Sequence[Happening]] = (
        *(add_link, add_bridge, tell_link, tell_bridge, close_bridge, close_link, break_, mend, mend, meddle, sweep),
        *(tick, tick, receive, receive, receive, receive, begin, begin, finish, finish, take_ingress),
        *(publish, publish, publish, pass_time, pass_time),
    )


class Changes(Chaos):
    """Among all that routes are given other options."""

    INSIDE = (*Chaos.INSIDE, Chaos.change_bridge)
    OUTSIDE = (*Chaos.OUTSIDE, *[Chaos.change_bridge] * 3)


def chaos(seed: int, tags: Sequence[str], kind: type[Chaos] = Chaos, **luck: Any) -> Chaos:
    found = kind(World(tags), Random(seed), **luck)
    for site in list(found.world.sites.values()):
        for _ in range(2):
            found.perform(Chaos.add_link, site)
    found.run(120)
    found.calm()
    found.world.settle()
    return found


@pytest.mark.parametrize("seed", some_of(range(SEEDS), every=5))
@pytest.mark.parametrize("tags", [("A", "B"), ("A", "B", "C")], ids=["two", "three"])
@pytest.mark.parametrize(
    "luck",
    [{}, {"crashes": 0.05}, {"loses": 0.3}, {"meanwhile": 0.1}, {"crashes": 0.03, "loses": 0.2, "meanwhile": 0.05}],
    ids=["calm", "crashes", "losses", "concurrency", "all"],
)
def test_whatever_happens_it_settles_leaves_nothing_behind_and_loses_nothing(
    seed: int, tags: tuple[str, ...], luck: dict[str, Any]
) -> None:
    after = chaos(seed, tags, **luck)
    assert leftovers(after.world) == []
    assert (lost(after.world), unaccounted(after.world)) == ([], set())
    assert all(letter.reason for site in after.world.sites.values() for letter in site.dead.letters)


@pytest.mark.parametrize("seed", some_of(range(SEEDS), every=5))
@pytest.mark.parametrize("luck", [{"crashes": 0.05}, {"crashes": 0.03, "loses": 0.2, "meanwhile": 0.05}])
def test_whatever_happens_amid_changes_it_settles_as_it_was_asked_last(seed: int, luck: dict[str, Any]) -> None:
    after = chaos(seed, ("A", "B"), Changes, **luck)
    assert leftovers(after.world) == []
    assert (lost(after.world), unaccounted(after.world)) == ([], set())


@pytest.mark.parametrize(("down", "goes"), [({"first"}, True), ({"second"}, True), ({"first", "second"}, False)])
def test_a_parting_goes_by_whatever_endpoint_there_is(
    down: set[str], goes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(("A", "B"))
    here, link = world["A"], world.link("A", "B")
    endpoints = tuple(replace(link.endpoints[0], sqs_url=url) for url in ("first", "second"))
    advance(here, add_link(replace(link, endpoints=endpoints)))
    world.talk()
    tell = here.peers.send_control_message

    def told(over: Link, endpoint: Endpoint, body: str) -> None:
        if endpoint.sqs_url in down:
            raise PeerUnreachable(f"{endpoint.sqs_url} is down")
        tell(over, endpoint, body)

    monkeypatch.setattr(here.peers, "send_control_message", told)
    advance(here, update_link("to-B", LinkEvent.CLOSE))
    assert (here.registry().links == {}) is goes
    down.clear()
    world.settle(120_000)
    assert here.registry().links == world["B"].registry().links == {}


def test_a_parting_that_comes_amid_a_hello_is_no_error() -> None:
    """Found by this seed."""
    after = chaos(1008, ("A", "B"), meanwhile=0.1)
    assert (leftovers(after.world), lost(after.world), unaccounted(after.world)) == ([], [], set())
