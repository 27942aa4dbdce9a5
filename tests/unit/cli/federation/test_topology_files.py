"""`sluice topology` from files to sites that live in memory: what is planned, done, done again, and killed amid it.

The sites' operations and registries are the real ones; with each look at a site some of its time goes by.
"""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import asdict, replace

from sluice.cli.federation import topology_files
from sluice.cli.federation.topology_files import TopologyApplier, TopologyIncomplete
from sluice.codec import encode
from sluice.errors import RequestRefused
from sluice.federation.declared import BindingDeclaration, Declared
from sluice.federation.links.links import Bridge
from sluice.federation.links.states import Command
from sluice.federation.matching.exchanges import Exchange, ExchangeType
from sluice.federation.operations import AddExchange, CloseBridge, CommandBridge, ListBindings, ListQueues, ShowSite
from sluice.federation.topology.desired import (
    DesiredLink,
    DesiredPeer,
    DesiredSite,
    DesiredTopology,
    parse_topology,
    schema,
)
from sluice.federation.topology.plan import Act, Stage, TopologyPlan, plan_topology
from sluice.federation.topology.states import SiteState, export_topology
from sluice.operations import Operation, R
from sluice.operator.federated_sites import LinksClient, OpenSite
from sluice.operator.site_names import SiteName
from tests.peer_rules import EVERYTHING
from tests.unit.cli.federation.test_commands import Sites

REGIONS = {"EAST": "us-east-1", "WEST": "us-west-2", "NORTH": "eu-west-1", "SOUTH": "eu-central-1"}
LOOK_MS = 20_000  # of a site's time that a look takes


@dataclass
class Passing:
    """A site whose time goes by while it is looked at."""

    site: LinksClient
    sites: Sites

    def ask(self, operation: Operation[R], /) -> R:
        if isinstance(operation, ShowSite):
            self.sites.world.settle(LOOK_MS)
        return self.site.ask(operation)


class Four(Sites):
    """Four sites, by tag."""

    def open(self, name: SiteName) -> LinksClient:
        return Passing(super().open(name), self)

    def states(self) -> dict[str, SiteState]:
        found = {}
        for tag, region in REGIONS.items():
            ask = self[region].ask
            found[tag] = SiteState(region, ask(ShowSite()), ask(ListBindings()).bindings, ask(ListQueues()))
        return found

    def plan(self, desired: DesiredTopology, *, prune: bool = True) -> TopologyPlan:
        return plan_topology(desired, self.states(), prune=prune)

    def applying(self, desired: DesiredTopology) -> TopologyApplier:
        """In the sites' own time."""
        opened = {tag: OpenSite(SiteName(region), self[region]) for tag, region in REGIONS.items()}
        return TopologyApplier(
            sites=opened,
            plan=lambda: self.plan(desired),
            timeout_s=3_600,
            now_s=lambda: self.world.at_ms / 1_000,
            sleep=lambda _: self.world.settle(LOOK_MS),
        )

    def apply(self, desired: DesiredTopology, *, steps: int | None = None) -> None:
        """Do all steps, or die after some."""
        plan = self.plan(desired)
        assert plan.conflicts == ()
        list(islice(self.applying(desired).apply_steps(plan), steps))


def four() -> Four:
    sites = Four()
    for tag, region in REGIONS.items():
        sites.add(region, tag)
    return sites


@pytest.fixture
def sites() -> Four:
    return four()


def all_peers(tag: str, **rules: Any) -> tuple[DesiredPeer, ...]:
    return tuple(DesiredPeer(tag=other, **{**EVERYTHING, **rules}) for other in REGIONS if other != tag)


def site(tag: str, **entries: Any) -> DesiredSite:
    given_ = {"peers": all_peers(tag)} | entries
    return DesiredSite(at=REGIONS[tag], **given_)


def topology(**entries: Mapping[str, Any]) -> DesiredTopology:
    """All four sites, those of which nothing is said with their peers alone."""
    return DesiredTopology(sites={tag: site(tag, **entries.get(tag, {})) for tag in REGIONS})


def pull(peer: str, name: str = "r", **fields: Any) -> Bridge:
    return Bridge(**{"name": name, "link": peer, "src": "amq.topic", "dest": "amq.topic", "key": "a.#"} | fields)


def to(peer: str, **fields: Any) -> DesiredLink:
    return DesiredLink(**{"name": peer, "peer": peer} | fields)


PULLED = {"links": (to("EAST"),), "routes": (pull("EAST"),)}


def acts(plan: TopologyPlan) -> list[tuple[str, str, str]]:
    return [(step.act.value, step.site, step.name) for step in plan.steps]


def words(plan: TopologyPlan) -> list[str]:
    return [str(conflict) for conflict in plan.conflicts]


# What is planned


def test_what_is_as_the_file_says_needs_no_step(sites: Four) -> None:
    desired = topology(WEST=PULLED)
    assert len(sites.plan(desired).steps) == 14
    sites.apply(desired)
    assert sites.plan(desired) == TopologyPlan(
        stages=(), leftovers=(), conflicts=(), routes={"EAST": (), "NORTH": (), "SOUTH": (), "WEST": ("r",)}
    )
    assert sites[REGIONS["WEST"]].bridges()["r"].link == "EAST"


def test_what_is_new_is_made_from_peers_to_routes_and_alternates_come_first(sites: Four) -> None:
    own = (
        Exchange(name="a", type=ExchangeType.TOPIC, alternate="b"),
        Exchange(name="b", type=ExchangeType.FANOUT, alternate="c"),
        Exchange(name="c", type=ExchangeType.FANOUT),
    )
    bindings = (BindingDeclaration(exchange="a", queue="orders", key="k"),)
    desired = topology(WEST={**PULLED, "exchanges": own, "bindings": bindings})
    made = [(step.kind, step.name) for step in sites.plan(desired).steps if step.site == "WEST"]
    assert made[3:] == [
        *(("exchange", name) for name in "cba"),
        ("binding", "a orders k"),
        ("link", "EAST"),
        ("route", "r"),
    ]
    sites.apply(desired)
    gone = [(step.kind, step.name) for step in sites.plan(topology()).steps]
    assert gone == [
        ("route", "r"),
        ("link", "EAST"),
        ("binding", "a orders k"),
        *(("exchange", name) for name in "abc"),
    ]


def test_without_prune_what_the_file_hasnt_stays_and_is_said(sites: Four) -> None:
    sites.apply(topology(WEST=PULLED))
    plan = sites.plan(topology(), prune=False)
    assert plan.steps == []
    assert [(leftover.kind, leftover.name, leftover.reason) for leftover in plan.leftovers] == [
        ("link", "EAST", "--prune takes it away"),
        ("route", "r", "--prune takes it away"),
    ]


def test_what_the_deployment_declares_is_not_the_files_to_change(sites: Four) -> None:
    sites.apply(topology(WEST={"exchanges": (Exchange(name="events", type=ExchangeType.TOPIC),)}))
    states = sites.states()
    declared = Declared(exchanges=(Exchange(name="events", type=ExchangeType.TOPIC),))
    view = replace(states["WEST"].view, declared=declared)
    states["WEST"] = SiteState("us-west-2", view, (), states["WEST"].queues)
    plan = plan_topology(topology(), states, prune=True)
    assert plan.steps == []
    assert [leftover.reason for leftover in plan.leftovers] == ["the deployment declares it"]
    other = topology(WEST={"exchanges": (Exchange(name="events", type=ExchangeType.FANOUT),)})
    [conflict] = words(plan_topology(other, states, prune=True))
    assert conflict == (
        'sites.WEST.exchanges[0]: events: the deployment declares it otherwise, in cdk.json: type "topic" → "fanout"'
    )


def test_a_binding_gets_other_arguments_in_one_change(sites: Four) -> None:
    def bound(**arguments: Any) -> DesiredTopology:
        binding = BindingDeclaration(
            exchange="amq.match", queue="orders", key="k", arguments={"x-match": "all"} | arguments
        )
        return topology(WEST={"bindings": (binding,)})

    sites.apply(bound(a=1))
    plan = sites.plan(bound(a=True))
    assert [(step.act, step.change) for step in plan.steps] == [
        (Act.CHANGE, 'arguments {"a":1,"x-match":"all"} → {"a":true,"x-match":"all"}')
    ]
    log = sites[REGIONS["WEST"]].table
    before = log.written
    sites.apply(bound(a=True))
    assert log.written == before + 1
    assert sites.plan(bound(a=True)).steps == []


def test_a_route_with_other_options_is_changed_where_it_stands(sites: Four) -> None:
    queue = pull("EAST", "q", src="sluice-queue-1", src_is_queue=True, key="")
    sites.apply(topology(WEST={**PULLED, "routes": (pull("EAST"), queue)}))
    routes = (pull("EAST", credit=50), replace(queue, credit=50))
    desired = topology(WEST={**PULLED, "routes": routes})
    steps = sites.plan(desired).steps
    assert [(step.act, step.name, step.change) for step in steps] == [
        (Act.CHANGE, "q", "credit 0 → 50"),
        (Act.CHANGE, "r", "credit 0 → 50"),
    ]
    sites.apply(desired)
    assert {bridge.credit for bridge in sites[REGIONS["WEST"]].bridges().values()} == {50}
    assert sites.plan(desired).steps == []


def test_a_route_that_goes_elsewhere_is_remade_and_that_is_said(sites: Four) -> None:
    queue = pull("EAST", "q", src="sluice-queue-1", src_is_queue=True, key="")
    sites.apply(topology(WEST={**PULLED, "routes": (pull("EAST"), queue)}))
    routes = (pull("EAST", dest="amq.fanout"), replace(queue, dest="amq.fanout"))
    desired = topology(WEST={**PULLED, "routes": routes})
    remade = [
        (step.name, step.change, step.message_effect) for step in sites.plan(desired).steps if step.act is Act.REMAKE
    ]
    change = 'dest "amq.topic" → "amq.fanout"'
    assert remade == [
        ("q", change, "what comes meanwhile waits in its queue"),
        ("r", change, "what is published meanwhile isn't sent"),
    ]
    sites.apply(desired)
    assert {bridge.dest for bridge in sites[REGIONS["WEST"]].bridges().values()} == {"amq.fanout"}
    assert sites.plan(desired).steps == []


def test_a_link_that_went_with_the_last_of_its_routes_is_made_again_for_the_next(sites: Four) -> None:
    west = {"links": (to("EAST", durable=False),), "routes": (pull("EAST"),)}
    sites.apply(topology(WEST=west))
    desired = topology(WEST={**west, "routes": (pull("EAST", dest="amq.fanout"),)})
    assert acts(sites.plan(desired)) == [("remake", "WEST", "r"), ("add", "WEST", "r")]
    sites.apply(desired)
    assert sites[REGIONS["WEST"]].bridges()["r"].dest == "amq.fanout"


def test_a_link_that_stays_after_its_routes_takes_the_place_of_one_that_goes_with_them(sites: Four) -> None:
    sites.apply(topology(WEST={"links": (to("EAST", durable=False),), "routes": (pull("EAST", src_is_local=True),)}))
    sites[REGIONS["WEST"]].ask(CloseBridge(name="r"))
    assert sites[REGIONS["WEST"]].links().keys() == {"EAST"}  # as long as the route sends what it holds
    assert sites.plan(topology()).steps == []
    sites.apply(topology(WEST={"links": (to("EAST"),)}))
    assert sites[REGIONS["WEST"]].links()["EAST"].durable


def test_what_a_site_refuses_is_said_and_what_was_done_stays(sites: Four) -> None:
    queue = BindingDeclaration(exchange="amq.fanout", queue="sluice-queue-new")
    desired = topology(WEST={**PULLED, "bindings": (queue,)})
    with pytest.raises(RequestRefused, match="no such queue: sluice-queue-new"):
        sites.apply(desired)
    assert set(sites[REGIONS["WEST"]].bridges()) == set()
    sites[REGIONS["WEST"]].queues.queues["sluice-queue-new"] = []
    sites.apply(desired)
    assert set(sites[REGIONS["WEST"]].bridges()) == {"r"}


def test_a_link_that_changes_is_remade_with_its_routes(sites: Four) -> None:
    sites.apply(topology(WEST=PULLED))
    desired = topology(WEST={**PULLED, "links": (to("EAST", durable=False),)})
    assert acts(sites.plan(desired)) == [
        ("remake", "WEST", "EAST"),
        ("add", "WEST", "EAST"),
        ("add", "WEST", "r"),
    ]
    sites.apply(desired)
    assert sites.plan(desired).steps == []
    kept = sites.plan(topology(WEST={"links": (to("EAST"),)}), prune=False)
    assert "with the old link routes would go that the file hasn't: r" in words(kept)[0]


def test_a_closing_that_is_none_of_the_plans_keeps_no_step_from_being_done(
    sites: Four, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exchange that the closing route still needs does wait for it."""
    own = {"exchanges": (Exchange(name="own", type=ExchangeType.TOPIC),)}
    pushed = pull("SOUTH", src_is_local=True, src="own")
    sites.apply(topology(WEST=PULLED, NORTH={**own, "links": (to("SOUTH"),), "routes": (pushed,)}))
    north = sites[REGIONS["NORTH"]]
    with monkeypatch.context() as patch:
        patch.setattr(north.queues, "count", lambda _: 1)  # its queue never gets empty
        north.ask(CloseBridge(name="r"))
        routes = (pull("EAST", dest="amq.fanout"),)
        sites.apply(topology(WEST={**PULLED, "routes": routes}, NORTH={**own, "links": (to("SOUTH"),)}))
        assert sites[REGIONS["WEST"]].bridges()["r"].dest == "amq.fanout"
        with pytest.raises(TopologyIncomplete, match="still closing: route r at NORTH"):
            sites.apply(topology(WEST={**PULLED, "routes": routes}, NORTH={"links": (to("SOUTH"),)}))
    sites.apply(topology(WEST={**PULLED, "routes": routes}, NORTH={"links": (to("SOUTH"),)}))


def test_a_route_by_another_name_has_the_old_one_go_first(sites: Four) -> None:
    sites.apply(topology(WEST=PULLED))
    desired = topology(WEST={**PULLED, "routes": (pull("EAST", "s"),)})
    assert words(sites.plan(desired, prune=False)) == [
        "sites.WEST.routes[0]: s: it goes the way of r, which the file hasn't"
    ]
    assert acts(sites.plan(desired)) == [("remake", "WEST", "r"), ("add", "WEST", "s")]
    sites.apply(desired)
    assert set(sites[REGIONS["WEST"]].bridges()) == {"s"}


def test_what_replaces_something_carries_before_that_goes(sites: Four) -> None:
    sites.apply(topology(WEST=PULLED))
    second = {"links": (to("EAST", name="second"),), "routes": (pull("second", "s"),)}
    desired = topology(WEST=second)
    assert acts(sites.plan(desired)) == [
        ("add", "WEST", "second"),
        ("add", "WEST", "s"),
        ("remove", "WEST", "r"),
        ("remove", "WEST", "EAST"),
    ]
    sites[REGIONS["WEST"]].peers.unreachable.add("EAST")
    with pytest.raises(TopologyIncomplete, match="still not Operational, so nothing was deleted: s: Waiting at WEST"):
        sites.apply(desired)
    assert set(sites[REGIONS["WEST"]].bridges()) == {"r", "s"}
    sites[REGIONS["WEST"]].peers.unreachable.clear()
    sites.apply(desired)
    assert set(sites[REGIONS["WEST"]].bridges()) == {"s"}


def test_a_peer_may_more_at_once_and_less_when_what_takes_its_place_carries(sites: Four) -> None:
    def only(exchange: str) -> DesiredTopology:
        route = pull("EAST", exchange, src=exchange, dest=exchange, key="")
        east = {"peers": all_peers("EAST", pulls=(exchange,))}
        return topology(EAST=east, WEST={"links": (to("EAST"),), "routes": (route,)})

    sites.apply(only("amq.fanout"))
    desired = only("amq.direct")
    assert [(step.act.value, step.name) for step in sites.plan(desired).steps] == [
        *(("change", peer) for peer in ("NORTH", "SOUTH", "WEST")),
        ("add", "amq.direct"),
        ("remove", "amq.fanout"),
        *(("change", peer) for peer in ("NORTH", "SOUTH", "WEST")),
    ]
    sites.apply(desired)
    assert sites.plan(desired).steps == []
    rules = {each.tag: each.pulls for each in sites[REGIONS["EAST"]].ask(ShowSite()).peers}
    assert rules["WEST"] == ("amq.direct",)


def test_a_peer_may_publish_until_nothing_of_an_old_route_is_on_its_way(sites: Four) -> None:
    sites.apply(topology(WEST=PULLED))
    desired = topology(WEST={"peers": all_peers("WEST", pushes=())})
    plan = sites.plan(desired)
    changes = [step.name for stage in plan.stages if stage.stage is Stage.REMOVE for step in stage.steps]
    assert changes == ["EAST", "NORTH", "SOUTH"]
    assert [(step.act.value, step.name) for step in plan.steps[:2]] == [("remove", "r"), ("remove", "EAST")]
    sites.apply(desired)
    assert {peer.pushes for peer in sites[REGIONS["WEST"]].ask(ShowSite()).peers} == {()}


def test_a_pause_is_neither_written_nor_changed(sites: Four) -> None:
    desired = topology(WEST=PULLED)
    sites.apply(desired)
    sites[REGIONS["WEST"]].ask(CommandBridge(name="r", command=Command.PAUSE))
    assert sites.plan(desired).steps == []
    assert in_order(export_topology(sites.states())) == in_order(desired)


@pytest.mark.parametrize(
    ("entries", "conflict"),
    [
        ({"routes": (pull("NONE"),)}, "routes[0]: r: no such link: NONE"),
        ({**PULLED, "routes": (pull("EAST", sync=0),)}, "routes[0]: r: sync 0, not 1 to 10000"),
        ({**PULLED, "routes": (pull("EAST", dest="x"),)}, "routes[0]: no such exchange at WEST: x"),
        ({**PULLED, "routes": (pull("EAST", src="x"),)}, "routes[0]: no such exchange at EAST: x"),
        ({**PULLED, "routes": (pull("EAST"), pull("EAST"))}, "routes[1]: the same route as routes[0]: r"),
        ({**PULLED, "routes": (pull("EAST"), pull("EAST", "s"))}, "routes[1]: s: duplicate route: it is r's"),
        ({"links": (to("MARS"),)}, "links[0]: MARS is no site of this file: the link needs access"),
        ({"peers": (DesiredPeer(tag="MARS"),)}, "peers[0]: MARS is no site of this file: it needs a place"),
        ({"peers": (DesiredPeer(tag="WEST"),)}, "peers[0]: WEST: a site is no peer of its own, and no two"),
        ({"links": (to("EAST", durable=False),)}, "links[0]: EAST: it isn't durable, and goes with its last route"),
        ({**PULLED, "peers": ()}, "links[0]: EAST: EAST is no peer of WEST: it goes into sites.WEST.peers"),
        (
            {"bindings": (BindingDeclaration(exchange="amq.topic", queue="x"),)},
            "bindings[0]: x: WEST may not use a queue of this name; federation.queue_names has sluice-queue-*",
        ),
        (
            {"bindings": (BindingDeclaration(exchange="amq.match", queue="orders", arguments={"x-match": "some"}),)},
            "bindings[0]: ",
        ),
        (
            {"exchanges": (Exchange(name="amq.topic", type=ExchangeType.FANOUT),)},
            "exchanges[0]: amq.topic: every site has this exchange, and none changes it",
        ),
        (
            {"exchanges": (Exchange(name="a", type=ExchangeType.FANOUT, alternate="b"),)},
            "exchanges[0]: no such exchange at WEST: b",
        ),
    ],
)
def test_what_a_site_would_refuse_is_said_with_its_place_before_anything_is_done(
    sites: Four, entries: Mapping[str, Any], conflict: str
) -> None:
    plan = sites.plan(topology(WEST=entries))
    assert any(word.startswith(f"sites.WEST.{conflict}") for word in words(plan)), words(plan)
    assert not any(step.site == "WEST" for step in plan.steps)


def test_what_a_peer_wouldnt_let_a_route_is_said(sites: Four) -> None:
    only_events = {"peers": all_peers("EAST", pulls=("events",))}
    [conflict] = words(sites.plan(topology(EAST=only_events, WEST=PULLED)))
    assert conflict.endswith("r: at EAST, WEST may not pull amq.topic by 'a.#': its peer rule here says events")


def test_what_a_pulling_site_wouldnt_take_from_its_peer_is_said(sites: Four) -> None:
    only_events = {**PULLED, "peers": all_peers("WEST", pushes=("events",))}
    [conflict] = words(sites.plan(topology(WEST=only_events)))
    assert conflict.endswith("r: at WEST, EAST may not push to amq.topic: its peer rule here says events")


def test_a_pushed_route_needs_its_source_at_one_site_alone_and_no_key_that_this_ignores(sites: Four) -> None:
    def west(**fields: Any) -> dict[str, Any]:
        route = pull("EAST", src="own", src_is_local=True, **fields)
        own = Exchange(name="own", type=ExchangeType.FANOUT)
        return {"exchanges": (own,), "links": (to("EAST"),), "routes": (route,)}

    assert words(sites.plan(topology(WEST=west(key="")))) == []
    [conflict] = words(sites.plan(topology(WEST=west(key="a"))))
    assert conflict.endswith("r: own is a fanout exchange, which ignores keys: leave out the key 'a'")


def test_a_dynamic_route_between_exchanges_of_two_types_is_said(sites: Four) -> None:
    def own(type_: ExchangeType) -> dict[str, Any]:
        return {"exchanges": (Exchange(name="own", type=type_),)}

    route = pull("EAST", src="own", dest="own", key="", dynamic=True)
    west = {**own(ExchangeType.TOPIC), "links": (to("EAST"),), "routes": (route,)}
    [conflict] = words(sites.plan(topology(EAST=own(ExchangeType.DIRECT), WEST=west)))
    assert conflict.endswith("r: own is direct and topic at its two ends: a dynamic route needs one type")


def test_exchanges_that_are_each_others_alternates_are_said(sites: Four) -> None:
    ring = tuple(Exchange(name=a, type=ExchangeType.FANOUT, alternate=b) for a, b in ("ab", "ba"))
    assert (
        "sites.WEST.exchanges: each is the other's alternate"
        in words(sites.plan(topology(WEST={"exchanges": ring})))[0]
    )


def test_an_exchange_of_another_type_needs_another_name(sites: Four) -> None:
    sites.apply(topology(WEST={"exchanges": (Exchange(name="a", type=ExchangeType.FANOUT),)}))
    [conflict] = words(sites.plan(topology(WEST={"exchanges": (Exchange(name="a", type=ExchangeType.TOPIC),)})))
    assert 'a: type "fanout" → "topic": an exchange isn\'t changed' in conflict


def test_a_site_with_another_tag_is_not_touched(sites: Four) -> None:
    desired = DesiredTopology(sites={"EAST": site("WEST")})
    [conflict] = words(plan_topology(desired, {"EAST": sites.states()["WEST"]}, prune=True))
    assert conflict == "sites.EAST.at: the site at us-west-2 has the tag WEST"


# Files and commands


def written(sites: Four, tmp_path: Path, desired: DesiredTopology) -> Path:
    """The file that `export` writes of sites that are as is desired."""
    sites.apply(desired)
    file = tmp_path / "topology.yaml"
    file.write_text(sites.run("topology", "export", *REGIONS.values()).stdout)
    return file


def edited(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert text.count(old) == 1, text
    file.write_text(text.replace(old, new))


def test_what_is_exported_is_short_the_same_each_time_and_needs_nothing(sites: Four, tmp_path: Path) -> None:
    file = written(sites, tmp_path, topology(WEST=PULLED))
    text = file.read_text()
    assert text == sites.run("topology", "export", *reversed(REGIONS.values())).stdout
    assert text.startswith("# yaml-language-server: $schema=topology.schema.json\nsites:\n  EAST:\n    at: us-east-1\n")
    assert text.endswith(
        """\
    links:
    - name: EAST
      peer: EAST
    routes:
    - src: amq.topic
      dest: amq.topic
      key: a.#
      name: r
      link: EAST
"""
    )
    said_ = sites.run("topology", "plan", str(file))
    assert (said_.stdout, said_.stderr) == ("", "nothing to do\n")
    assert sites.json("topology", "plan", str(file)) == {"steps": [], "leftovers": [], "conflicts": []}


def test_a_link_to_a_site_outside_of_the_file_has_its_address(sites: Four, tmp_path: Path) -> None:
    written(sites, tmp_path, topology(WEST=PULLED))
    file = tmp_path / "west.yaml"
    file.write_text(sites.run("topology", "export", REGIONS["WEST"]).stdout)
    west = yaml.safe_load(file.read_text())["sites"]["WEST"]
    assert west["links"][0]["access"]["endpoints"] == [
        {"region": "us-east-1", "account": "000000000000", "control_queue_url": "https://sqs.EAST/control.fifo"}
    ]
    assert west["peers"][0] == {
        "tag": "EAST",
        "pulls": ["*"],
        "pushes": ["*"],
        "queues": ["*"],
        "leads": ["*"],
        "place": {"account": "000000000000", "region": "us-east-1", "senders": ["AROAEAST"]},
    }
    sites.run("topology", "plan", str(file))


def test_a_changed_file_is_planned_applied_and_then_there_is_nothing_to_do(sites: Four, tmp_path: Path) -> None:
    file = written(sites, tmp_path, topology(WEST=PULLED))
    edited(file, "      key: a.#\n", "      key: b.#\n")
    planned = sites.run("topology", "plan", str(file), code=2).stdout.split()
    assert planned[planned.index("remake") :][:7] == ["remake", "WEST", "route", "r", "key", '"a.#"', "→"]
    [step, _] = json.loads(sites.run("topology", "plan", str(file), "--json", code=2).stdout)["steps"]
    assert (step["site"], step["act"], step["change"]) == ("WEST", "remake", 'key "a.#" → "b.#"')
    assert step["asks"] == {"op": "bridge_del", "name": "r", "del_empty_link": False}
    assert "Delete or recreate" in sites.run("topology", "apply", str(file), code=1).stderr
    assert sites[REGIONS["WEST"]].bridges()["r"].key == "a.#"
    assert sites.run("topology", "apply", str(file), "--yes").stderr.splitlines()[-1] == "done: WEST: add route r"
    assert sites[REGIONS["WEST"]].bridges()["r"].key == "b.#"
    assert sites.run("topology", "apply", str(file)).stderr == "nothing to do\n"


def test_what_the_file_hasnt_goes_with_prune_and_when_that_was_agreed_to(sites: Four, tmp_path: Path) -> None:
    file = written(sites, tmp_path, topology())
    sites.apply(topology(WEST=PULLED))
    said_ = sites.run("topology", "plan", str(file))
    assert said_.stderr == "not in the file:\nnothing to do\n"
    assert "--prune takes it away" in said_.stdout
    sites.run("topology", "plan", str(file), "--prune", code=2)
    sites.run("topology", "apply", str(file), "--prune", code=1)
    assert set(sites[REGIONS["WEST"]].bridges()) == {"r"}
    done = sites.run("topology", "apply", str(file), "--prune", "--yes", "--quiet")
    assert (done.output, sites[REGIONS["WEST"]].links()) == ("", {})


def test_what_somebody_else_adds_meanwhile_is_not_taken_away_unasked(sites: Four) -> None:
    sites.apply(topology(WEST=PULLED))
    steps = sites.applying(topology()).apply_steps(sites.plan(topology()))
    next(steps)
    sites[REGIONS["EAST"]].ask(AddExchange(name="new", type=ExchangeType.TOPIC))
    with pytest.raises(TopologyIncomplete, match="another operator has changed these sites meanwhile"):
        list(steps)
    assert "new" in {exchange.name for exchange in sites[REGIONS["EAST"]].ask(ShowSite()).exchanges}


def test_what_cant_be_had_is_said_with_its_line_and_nothing_is_done(sites: Four, tmp_path: Path) -> None:
    file = written(sites, tmp_path, topology(WEST=PULLED))
    edited(file, "      dest: amq.topic\n", "      dest: nowhere\n")
    line = file.read_text().splitlines().index("    - src: amq.topic") + 1
    for command in (("plan",), ("apply", "--yes")):
        result = sites.run("topology", *command, str(file), code=1)
        assert result.stderr == f"{file}: line {line}: sites.WEST.routes[0]: no such exchange at WEST: nowhere\n"


@pytest.mark.parametrize(
    ("old", "new", "said_"),
    [
        ("at: us-east-1", "at: mars", "line 4: sites.EAST.at: 'mars' is no site: REGION"),
        ("at: us-east-1", "at: eu-north-1", "stack SluiceFederation is not deployed in eu-north-1"),
        ("at: us-east-1", "at: 5", "line 4: sites.EAST.at: Expected `str`, got `int`"),
        ("at: us-east-1", "where: us-east-1", "line 3: sites.EAST: Object contains unknown field `where`"),
        ("  EAST:", "  EA ST:", "line 2: sites: 'EA ST' is no site's tag"),
        ("key: a.#", "kee: a", "sites.WEST.routes[0]: Object contains unknown field `kee`"),
        ("key: a.#", "key: 5", "sites.WEST.routes[0].key: Expected `str`, got `int`"),
        ("key: a.#", "src: a", "the key 'src' is there twice"),
        ("key: a.#", "key: [", "while parsing"),
    ],
)
def test_a_file_that_cant_be_read_is_said_with_its_place(
    sites: Four, tmp_path: Path, old: str, new: str, said_: str
) -> None:
    file = written(sites, tmp_path, topology(WEST=PULLED))
    edited(file, old, new)
    assert said_ in sites.run("topology", "plan", str(file), code=1).stderr


def test_a_file_that_isnt_there_is_said(sites: Four, tmp_path: Path) -> None:
    assert "No such file" in sites.run("topology", "plan", str(tmp_path / "x.yaml"), code=1).stderr
    assert "is empty" in sites.run("topology", "plan", "/dev/null", code=1).stderr


def test_the_schema_that_is_shipped_is_that_of_what_is_read(sites: Four) -> None:
    """SLUICE_WRITE_SNAPSHOT=1 writes it."""
    current = json.dumps(schema(), indent=2) + "\n"
    if os.environ.get("SLUICE_WRITE_SNAPSHOT"):
        Path(topology_files.__file__).with_name(topology_files.SCHEMA).write_text(current)
    assert sites.run("topology", "schema").stdout == current


def test_the_guides_example_is_one() -> None:
    guide = (Path(__file__).parents[4] / "docs" / "federation.md").read_text(encoding="utf-8")
    [example] = re.findall(r"```yaml\n(.*?)```", guide, re.DOTALL)
    assert list(parse_topology(yaml.safe_load(example)).sites) == ["shop", "depot"]


# Any topology to any other, killed anywhere


OWN = {
    "one": Exchange(name="one", type=ExchangeType.TOPIC, alternate="amq.fanout"),
    "two": Exchange(name="two", type=ExchangeType.DIRECT, alternate="one"),
}
POOL: list[dict[str, Any]] = [
    {"key": "a.#"},
    {"key": "b"},
    {"src": "amq.fanout", "dest": "amq.direct", "key": "", "src_is_local": True},
    {"dynamic": True, "key": ""},
    {"src": "sluice-queue-1", "src_is_queue": True, "key": ""},
]


@st.composite
def sites_(draw: st.DrawFn, tag: str) -> DesiredSite:
    names = draw(st.sampled_from([(), ("one",), ("one", "two")]))
    exchanges = [*names, "amq.topic", "amq.match"]
    bound = st.tuples(st.sampled_from(exchanges), st.sampled_from(["orders", "sluice-queue-1"]))
    bindings = tuple(
        BindingDeclaration(
            exchange=exchange,
            queue=queue,
            key="k",
            arguments=draw(st.sampled_from([{"x-match": "all"}, {"x-match": "any", "n": 1}])),
        )
        for exchange, queue in sorted(draw(st.sets(bound, max_size=3)))
    )
    others = [other for other in REGIONS if other != tag]
    links = tuple(to(other) for other in sorted(draw(st.sets(st.sampled_from(others), max_size=2))))
    routes = tuple(
        pull(
            link.name,
            f"{link.name}-{number}",
            credit=draw(st.sampled_from([0, 50])),
            fifo=draw(st.booleans()),
            **POOL[number],
        )
        for link in links
        for number in sorted(draw(st.sets(st.integers(0, len(POOL) - 1), max_size=2)))
    )
    used = [route.link for route in routes]
    links = tuple(replace(each, durable=each.name not in used or draw(st.booleans())) for each in links)
    peers = tuple(
        DesiredPeer(
            tag=other, pulls=("*",), queues=("*",), pushes=draw(st.sampled_from([("*",), ("*", "one"), ("amq.*",)]))
        )
        for other in others
    )
    own = tuple(OWN[name] for name in names)
    return DesiredSite(at=REGIONS[tag], peers=peers, exchanges=own, bindings=bindings, links=links, routes=routes)


topologies = st.builds(DesiredTopology, sites=st.fixed_dictionaries({tag: sites_(tag) for tag in REGIONS}))


def in_order(desired: DesiredTopology) -> Any:
    """What a file says, whatever its order."""
    return {
        tag: {name: sorted(map(encode, entries)) for name, entries in asdict(site).items()}
        for tag, site in desired.sites.items()
    }


@settings(deadline=None)
@given(topologies, topologies, st.lists(st.integers(0, 12), max_size=3))
@pytest.mark.slow
def test_sites_become_what_the_file_says_also_where_it_is_killed_anywhere(
    before: DesiredTopology, after: DesiredTopology, kills: list[int]
) -> None:
    sites = four()
    sites.apply(before)
    for steps in kills:
        sites.apply(after, steps=steps)
    sites.apply(after)
    assert sites.plan(after).steps == []
    sites.world.settle(120_000)
    assert in_order(export_topology(sites.states())) == in_order(after)
    for each in sites.asked.values():
        assert each.queues.lost == []
