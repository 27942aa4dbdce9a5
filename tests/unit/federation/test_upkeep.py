"""What somebody deletes: it is made anew, or goes with what depended on it; what was lost with it is counted."""

from collections.abc import Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from sluice.errors import CallFailed
from sluice.federation.bridge_provisioner import build_bridge_queue_name
from sluice.federation.drift_repair import MAX_CHECKED_QUEUES, Repair
from sluice.federation.exchange_store import add_binding, remove_binding
from sluice.federation.links.links import Bridge, MappingScaling
from sluice.federation.links.registry import describe_state
from sluice.federation.links.states import LinkState
from sluice.federation.links.transitions import add_bridge, add_link, change_bridge, record_resources
from sluice.federation.links.watch import NOTHING_LEFT_AFTER_MS, UNBOUND_AFTER_MS, Repairs
from sluice.federation.matching.bindings import Binding, Destination
from tests import federation_fakes
from tests.federation_fakes import SOURCE, Site, World, queue_attributes

ROUTE = Bridge(name="route", link="to-B", src="amq.fanout", dest="amq.direct", src_is_local=True)
QUEUE = build_bridge_queue_name("A", ROUTE)


@pytest.fixture
def world() -> World:
    """A route from A to B that is up."""
    world = World(("A", "B"))
    world["A"].link_service().advance([add_link(world.link("A", "B"))])
    world.talk()
    lay(world["A"], ROUTE)
    world.talk()
    return world


def lay(here: Site, bridge: Bridge) -> None:
    here.link_service().advance([add_bridge(bridge)])


def bind(here: Site, queue: str) -> None:
    """A queue of somebody's."""
    here.queues.queues.setdefault(queue, [])
    binding = Binding(exchange="amq.fanout", queue=queue)
    here.link_service().exchanges.change(add_binding(binding, Destination(queue=queue, url=here.queues.url(queue))))


def bound(here: Site) -> set[str]:
    return {binding.queue for binding in here.link_service().exchanges.bindings()}


def state(here: Site, name: str = "route") -> str:
    registry = here.registry()
    return describe_state(registry.bridges[name], registry.links["to-B"])


def mends(here: Site, name: str = "route") -> Repairs:
    return here.drift_repair().watch().repairs.get(name, Repairs())


def arrived(world: World) -> set[str]:
    return {body for name, body in world["B"].queues.taken_in if name.startswith("ingress")}


def test_a_route_that_is_changed_while_its_queue_is_made_anew_is_known_anew(world: World) -> None:
    """An exchange would go on holding back what the route excludes no more."""
    here = world["A"]
    here.link_service().save_changes([record_resources(bridge="route", queue="", mapping="", on=False, error="gone")])
    here.link_service().save_changes([change_bridge(replace(ROUTE, excludes=frozenset({"C"})))])
    here.link_service().advance()
    destination = here.link_service().exchanges.bindings().destination(QUEUE)
    assert destination is not None
    assert destination.crossing is not None
    assert destination.crossing.excludes >= {"C"}


def test_a_route_whose_queue_is_deleted_amid_traffic_loses_what_was_in_it_and_nothing_else(world: World) -> None:
    here = world["A"]
    for number in range(3):
        here.publish(f"before{number}")
    here.drift_repair().sweep()
    del here.queues.queues[QUEUE]
    for number in range(20):
        here.publish(f"after{number}")
        world.at_ms += 1_000
    world.settle(120_000)
    assert (state(here), here.dead.letters) == (LinkState.OPERATIONAL, [])
    assert arrived(world) == {f"after{number}" for number in range(20)}
    said = mends(here)
    assert (said.number, said.last, said.lost_messages) == (1, "queue", 3)
    assert [each.queue for each in here.mappings.made.values()] == [QUEUE]


def test_a_route_that_nobody_uses_is_mended_within_two_minutes_and_says_so(world: World) -> None:
    here = world["A"]
    del here.queues.queues[QUEUE]
    drift_repair = here.drift_repair()
    drift_repair.sweep()
    assert QUEUE not in here.queues.queues  # by one answer nobody is gone
    again_ms = drift_repair.next_check_ms()
    assert again_ms is not None
    world.at_ms = again_ms
    drift_repair.recheck()
    assert drift_repair.repairs == [Repair(resource="queue", name=QUEUE, routes=("route",))]
    assert state(here) == f"Failed: no such queue: {QUEUE}: it was deleted"
    world.settle(60_000)
    assert (state(here), QUEUE in here.queues.queues) == (LinkState.OPERATIONAL, True)


def test_what_aws_does_not_do_yet_is_waited_for(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    here, make, free_at_ms = world["A"], world["A"].queues.create, world.at_ms + 60_000

    def create(name: str, attributes: Mapping[str, str], tags: Mapping[str, str]) -> None:
        if world.at_ms < free_at_ms:
            raise CallFailed("CreateQueue", "AWS.SimpleQueueService.QueueDeletedRecently", "wait 60 seconds")
        make(name, attributes, tags)

    monkeypatch.setattr(here.queues, "create", create)
    del here.queues.queues[QUEUE]
    for _ in range(2):
        here.drift_repair().sweep()
        here.link_service().advance()
        world.at_ms += 5_000
    assert state(here).startswith("Connecting: not yet: CreateQueue: AWS.SimpleQueueService.QueueDeletedRecently")
    world.settle(65_000)
    assert state(here) == LinkState.OPERATIONAL


def test_a_queue_that_lambda_does_not_see_yet_is_waited_for(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """In its first second, and while the function's role may not read it yet."""
    here, make, seen_at_ms = world["A"], world["A"].mappings.reconcile, world.at_ms + 20_000

    def reconcile(queue: str, pace: MappingScaling, *, on: bool, creates: bool = True) -> str:
        if world.at_ms < seen_at_ms:
            text = "The provided execution role does not have permissions to call ReceiveMessage on SQS"
            raise CallFailed("CreateEventSourceMapping", "InvalidParameterValueException", text)
        return make(queue, pace, on=on, creates=creates)

    monkeypatch.setattr(here.mappings, "reconcile", reconcile)
    here.mappings.made.clear()
    here.link_service().save_changes([record_resources(bridge="route", mapping="", on=False)])
    here.link_service().advance()
    assert state(here).startswith("Connecting: not yet: CreateEventSourceMapping")
    world.settle(30_000)
    assert state(here) == LinkState.OPERATIONAL


def test_a_binding_of_a_route_that_is_taken_away_comes_back(world: World) -> None:
    here = world["A"]
    here.link_service().exchanges.change(remove_binding(("amq.fanout", QUEUE, "")))
    world.settle(60_000)
    assert bound(here) == {QUEUE}
    assert (mends(here).number, mends(here).last) == (1, "binding")


def test_a_routes_queue_that_somebody_changed_is_changed_back(world: World) -> None:
    here = world["A"]
    here.queues.attributes[QUEUE] = {"FifoQueue": "true", "Policy": "{}"}
    world.settle(120_000)
    assert here.queues.attributes[QUEUE] == {"FifoQueue": "true", "MessageRetentionPeriod": "1209600"}
    assert (mends(here).number, mends(here).last) == (1, "queue's settings")


def test_what_encrypts_a_routes_queue_stays_as_it_is(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its messages need the key that they were encrypted with, whatever key new queues get."""
    here = world["A"]
    key = {"KmsMasterKeyId": "alias/new"}
    monkeypatch.setattr(federation_fakes, "queue_attributes", lambda bridge: {**queue_attributes(bridge), **key})
    world.settle(120_000)
    assert "KmsMasterKeyId" not in here.queues.attributes[QUEUE]
    assert mends(here) == Repairs()


def test_a_mapping_that_is_deleted_comes_back(world: World) -> None:
    here = world["A"]
    here.mappings.made.clear()
    world.settle(60_000)
    assert [each.queue for each in here.mappings.made.values()] == [QUEUE]
    assert (mends(here).number, mends(here).last) == (1, "event source mapping")


def test_a_bound_queue_that_is_gone_for_a_minute_takes_its_bindings_with_it(world: World) -> None:
    here = world["A"]
    bind(here, "orders")
    bind(here, "bills")
    del here.queues.queues["orders"]
    here.drift_repair().sweep()
    assert bound(here) == {QUEUE, "orders", "bills"}
    again_ms = here.drift_repair().next_check_ms()
    assert again_ms == world.at_ms + UNBOUND_AFTER_MS
    world.at_ms = again_ms
    drift_repair = here.drift_repair()
    drift_repair.recheck()
    assert bound(here) == {QUEUE, "bills"}
    assert drift_repair.repairs == [Repair(resource="binding", name="orders")]
    here.drift_repair().sweep()
    assert here.drift_repair().watch().queues == {}


def test_a_queue_that_is_there_again_keeps_its_bindings_and_gets_what_it_missed(world: World) -> None:
    here = world["A"]
    bind(here, "orders")
    del here.queues.queues["orders"]
    here.publish("missed")
    assert [letter.message.body for letter in here.dead.letters] == ["missed"]
    here.queues.queues["orders"] = []
    world.settle(60_000)
    assert (here.queues.bodies("orders"), here.dead.letters) == (["missed"], [])
    assert "orders" in bound(here)


def test_dead_letters_that_somebody_holds_are_looked_for_until_none_was_found_for_a_minute(world: World) -> None:
    """One that couldn't be put back isn't seen for half a minute, nor is one that somebody looks at."""
    here, looks = world["A"], list[int]()
    bind(here, "orders")
    del here.queues.queues["orders"]
    here.drift_repair().report({"orders": 2})
    here.queues.queues["orders"] = []

    def redrive(_: str) -> int:
        looks.append(world.at_ms - looked_from_ms)
        return int(len(looks) == 3)

    looked_from_ms = world.at_ms
    while (again_ms := here.drift_repair().next_check_ms()) is not None:
        world.at_ms = again_ms
        here.drift_repair(redrive=redrive).recheck()
    assert looks[-1] - looks[2] >= NOTHING_LEFT_AFTER_MS
    assert len(looks) < 12
    assert here.drift_repair().watch().queues == {}


def test_a_source_queue_that_is_gone_fails_its_route_until_it_is_back(world: World) -> None:
    here = world["A"]
    lay(here, Bridge(name="feed", link="to-B", src=SOURCE, dest="amq.direct", src_is_local=True, src_is_queue=True))
    world.settle(60_000)
    del here.queues.queues[SOURCE]
    world.settle(120_000)
    assert state(here, "feed") == f"Failed: no such queue: {SOURCE}"
    here.queues.queues[SOURCE] = []
    here.offer("m")
    world.settle(60_000)
    assert (state(here, "feed"), arrived(world)) == (LinkState.OPERATIONAL, {"m"})


def test_of_very_many_bound_queues_some_are_looked_at_each_time_and_all_in_turn() -> None:
    here, looked = World(("A",))["A"], list[Any]()
    names = [f"queue{number}" for number in range(2 * MAX_CHECKED_QUEUES + 1)]
    for name in names:
        bind(here, name)
    count = here.queues.count

    def counted(name: str) -> int:
        looked.append(name)
        return count(name)

    here.queues.count = counted  # type: ignore[method-assign]  # to see what is asked
    for _ in range(3):
        before = len(looked)
        here.drift_repair().sweep()
        here.world.at_ms += 60_000
        assert len(looked) - before <= MAX_CHECKED_QUEUES
    assert set(looked) == set(names)


def test_a_link_over_which_messages_wait_and_none_goes_is_stalled(world: World) -> None:
    here = world["A"]
    here.publish("stays")
    here.queues.queues[QUEUE][0].visible_at_ms = world.at_ms + 600_000  # whoever had it died
    states = []
    for _ in range(6):
        here.drift_repair().sweep()
        here.link_service().advance()
        world.talk()
        states.append(state(here))
        world.at_ms += 60_000
    assert states == [*[LinkState.OPERATIONAL] * 3, *[LinkState.STALLED] * 3]
    here.queues.queues[QUEUE][0].visible_at_ms = 0
    world.settle(60_000)
    assert (state(here), arrived(world)) == (LinkState.OPERATIONAL, {"stays"})
