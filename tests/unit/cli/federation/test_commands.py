"""Federation's commands from their arguments to their output and exit code, on sites that live in memory.

The sites' operations, registries and peers' messages are the real ones; only queues and triggers are stand-ins.
"""

import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import msgspec
import pytest
from msgspec.structs import replace
from typer.testing import CliRunner, Result

from sluice.cli.program import app
from sluice.codec import encode
from sluice.errors import BadConfiguration, QueueGone, SenderFault
from sluice.federation.link_service import LinkService
from sluice.federation.links.links import Address, Bridge, BridgeDeclaration, Link, MappingScaling
from sluice.federation.operations import (
    OPERATIONS,
    AddBridge,
    CommandBridge,
    CommandLink,
    FederationOperation,
    PathsView,
    PathView,
    ShowSite,
)
from sluice.federation.settings import SiteNames
from sluice.operations import Operation, R, build_error_reply, build_reply, parse_request, parse_result
from sluice.operator.federated_sites import LinksClient, use_clients
from sluice.operator.routes import MAX_NAME_CHARACTERS, build_route_name
from sluice.operator.site_names import BadSiteName, SiteName
from sluice.splitting.filters.values import Filter
from tests.federation_fakes import Site, World, build_operation_handler

NAMES = SiteNames(queues={"orders": "stack-orders-1"}, patterns=("sluice-queue-*",))


@dataclass
class Asked(Site):
    """One site, asked as the control client asks it."""

    region: str = ""
    account: str = "000000000000"
    role_arn: str | None = None
    asked: list[FederationOperation] = field(default_factory=list)
    redriven: list[str] = field(default_factory=list)
    find_readable_queue: Callable[[str], str] = NAMES.find_readable_queue
    known_ways: tuple[PathView, ...] = ()

    @property
    def address(self) -> Address:
        external_id = None if self.role_arn is None else "its-id"
        here = msgspec.structs.replace(super().address, region=self.region, account=self.account)
        return msgspec.structs.replace(here, role_arn=self.role_arn, external_id=external_id)

    def link_service(self) -> LinkService:
        accounts = frozenset({"000000000000", "000000000001"})
        return replace(super().link_service(), peer_accounts=accounts)

    def ask(self, operation: Operation[R], /) -> R:
        """As it would go over the wire."""
        return parse_result(operation, self.reply(encode(operation)))

    def reply(self, request: bytes) -> bytes:
        """What the links function says."""
        link_service = self.link_service()
        operation_handler = build_operation_handler(
            link_service,
            self.drift_repair(link_service, redrive=self._redrive),
            names=NAMES,
            paths=lambda: PathsView(paths=self.known_ways),
            senders=self.introduction.senders,
        )
        try:
            operation = parse_request(request, OPERATIONS)
            self.asked.append(operation)
            reply = build_reply(operation_handler.apply(operation))
        except (BadConfiguration, SenderFault, QueueGone) as error:
            reply = build_error_reply(error)
        else:
            self.world.talk()
        return encode(reply)

    def _redrive(self, queue: str) -> int:
        self.redriven.append(queue)
        return 3

    def links(self) -> dict[str, Link]:
        return {name: record.link for name, record in self.registry().links.items() if not record.served}

    def bridges(self) -> dict[str, Bridge]:
        """Its own that aren't about to go."""
        found = self.registry().bridges.items()
        return {name: each.bridge for name, each in found if not each.served and not each.closing}


@dataclass
class Sites:
    """A world of sites, by the names that commands know them by."""

    world: World = field(default_factory=lambda: World(()))
    asked: dict[str, Asked] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Asked:
        return self.asked[name]

    def add(self, name: str, tag: str, *, account: str = "000000000000", role_arn: str | None = None) -> Asked:
        region = name.rpartition("@")[2].rpartition("/")[2]
        site = Asked(tag, self.world, region=region, account=account, role_arn=role_arn)
        for queue in ("stack-orders-1", "sluice-queue-1"):
            site.queues.queues[queue] = []
        self.world.sites[tag] = self.asked[name] = site
        return site

    def open(self, name: SiteName) -> LinksClient:
        if str(name) not in self.asked:
            raise BadConfiguration(f"stack SluiceFederation is not deployed in {name}")
        return self.asked[str(name)]

    def run(self, *arguments: str, code: int = 0) -> Result:
        """`sluice ARGUMENTS` and its exit code."""
        with use_clients(self.open):
            result = CliRunner().invoke(app, arguments)
        assert result.exit_code == code, f"{result.output}{result.exception!r}"
        return result

    def json(self, *arguments: str) -> Any:
        return json.loads(self.run(*arguments, "--json").stdout)


EAST, WEST = "us-east-1", "us-west-2"


@pytest.fixture
def sites() -> Sites:
    made = Sites()
    made.add(EAST, "EAST")
    made.add(WEST, "WEST")
    return made


# Names of sites and routes


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("eu-central-1", SiteName("eu-central-1")),
        ("me@eu-central-1", SiteName("eu-central-1", profile="me")),
        ("me@work@us-gov-west-1", SiteName("us-gov-west-1", profile="me@work")),
        ("000000000001/eu-west-1", SiteName("eu-west-1", local_account="000000000001")),
        ("eu-central-1:dev", SiteName("eu-central-1", stage="dev")),
        ("me@eu-central-1:dev", SiteName("eu-central-1", profile="me", stage="dev")),
        ("000000000001/eu-west-1:dev", SiteName("eu-west-1", local_account="000000000001", stage="dev")),
    ],
)
def test_a_site_is_a_region_a_profiles_region_or_one_of_the_embedded_cloud(text: str, name: SiteName) -> None:
    assert SiteName.parse(text) == name
    assert str(name) == text


@pytest.mark.parametrize("text", ["", "EAST", "@eu-west-1", "me@", "1/eu-west-1", "eu-west-1/000000000001"])
def test_what_is_no_site_is_said(text: str) -> None:
    with pytest.raises(BadSiteName, match="is no site"):
        SiteName.parse(text)


def name_of(link: str = "EAST", **changes: Any) -> str:
    wanted = BridgeDeclaration(src="amq.topic", dest="amq.topic", key="eu.#")
    return build_route_name(msgspec.structs.replace(wanted, **changes), link)


def test_a_routes_name_tells_its_way() -> None:
    assert name_of() == "from-EAST:amq.topic:amq.topic:eu.#"
    assert name_of(src_is_local=True, key="") == "to-EAST:amq.topic:amq.topic"
    assert name_of(src="jobs", src_is_queue=True, key="") == "queue-from-EAST:jobs:amq.topic"
    assert name_of(dynamic=True, key="") == "dynamic-from-EAST:amq.topic"


def test_routes_that_differ_have_different_names_and_all_can_be_names() -> None:
    routes: list[dict[str, Any]] = [
        {"link": link, "src": src, "dest": dest, "key": key, "src_is_local": local}
        for link in ("EAST", "E")
        for src in ("a", "a:b", "b")
        for dest in ("c", "b:c", "a")
        for key in ("", "c", "b:c", "a@b", "a/b", "a b", "ä", "#", "*", "x" * 250, "x" * 249 + "y")
        for local in (True, False)
    ]
    names = [name_of(**route) for route in routes]
    assert len(set(names)) == len(routes)
    assert all(len(name) <= MAX_NAME_CHARACTERS and name.isascii() for name in names)
    assert not any(character in name for name in names for character in "@/ ")
    assert names == [name_of(**route) for route in routes]


# Routes


def test_a_pull_is_declared_at_the_destination_with_its_link_and_waited_for(sites: Sites) -> None:
    result = sites.run(
        "route", "add", WEST, EAST, "amq.direct", "my-key", "TAG", "no,nor", "--ack", "3", "--credit", "7"
    )
    assert result.stderr == "from-EAST:amq.direct:amq.direct:my-key: Operational\n"
    assert sites[WEST].links()["EAST"].peer == "EAST"
    assert sites[EAST].links() == {}
    [made] = sites[WEST].bridges().values()
    assert made == Bridge(
        name="from-EAST:amq.direct:amq.direct:my-key",
        link="EAST",
        src="amq.direct",
        dest="amq.direct",
        key="my-key",
        tag="TAG",
        excludes=frozenset({"no", "nor"}),
        sync=3,
        credit=7,
    )


def test_a_push_is_declared_at_the_source(sites: Sites) -> None:
    arguments = ("route", "add", WEST, EAST, "amq.direct", "k", "--src-local", "--dest-exchange", "amq.fanout")
    shown = sites.json(*arguments, "--standard", "--max-hops", "2", "--no-durable")
    assert (shown["name"], shown["state"]) == ("to-WEST:amq.direct:amq.fanout:k", "Operational")
    assert sites[WEST].links() == {}
    assert not sites[EAST].links()["WEST"].durable
    [made] = sites[EAST].bridges().values()
    assert (made.src_is_local, made.dest, made.fifo, made.max_hops, made.durable) == (
        True,
        "amq.fanout",
        False,
        2,
        False,
    )


def test_a_route_is_changed_where_it_stands(sites: Sites) -> None:
    sites.run("route", "add", WEST, EAST, "amq.topic", "a", "--dest-key", "b", "--ttl", "600")
    [before] = sites[EAST].registry().bridges.values()
    assert (before.bridge.dest_key, before.bridge.retention_s) == ("b", 600)
    name = "from-EAST:amq.topic:amq.topic:a"
    options = ["--ack", "3", "--excludes", "no,nor", "--dest-key", "c", "--max-hops", "2"]
    options += ["--tag", "TAG", "--ttl", "60", "--rate", "2"]
    assert sites.run("route", "change", WEST, name, *options).stderr == f"{name}: Operational\n"
    [after] = sites[EAST].registry().bridges.values()
    assert (after.queue, after.mapping, after.closing) == (before.queue, before.mapping, False)
    assert sites[EAST].mappings.made[after.mapping or ""].pace == MappingScaling(batch_size=2, max_concurrency=2)
    assert sites[EAST].queues.attributes[after.queue or ""]["MessageRetentionPeriod"] == "60"
    bridge = after.bridge
    assert (bridge.sync, bridge.excludes, bridge.dest_key, bridge.max_hops, bridge.tag) == (
        3,
        frozenset({"no", "nor"}),
        "c",
        2,
        "TAG",
    )
    sites.run("route", "change", WEST, name, "--dest-key", "", "--tag", "", "--ttl", "0")
    [made] = sites[WEST].bridges().values()
    assert (made.tag, made.dest_key, made.retention_s, made.sync) == (None, msgspec.UNSET, msgspec.UNSET, 3)
    assert "no such route" in sites.run("route", "change", WEST, "nobody", "--ack", "3", code=1).stderr
    [served] = sites[EAST].registry().bridges
    assert "pulled by WEST: change it there" in sites.run("route", "change", EAST, served, "--ack", "3", code=1).stderr


def test_a_routes_filter_is_the_splitters(sites: Sites) -> None:
    add = ("route", "add", WEST, EAST, "amq.topic")
    sites.run(*add, "a", "--filter", "author=^me$", "--filter", "size=1", "--jq", ".Body == null")
    [made] = sites[EAST].registry().bridges.values()
    assert made.bridge.filter == Filter(attributes=(("author", "^me$"), ("size", "1")), jq=".Body == null")
    name = "from-EAST:amq.topic:amq.topic:a"
    assert '"attributes":[["author","^me$"]' in sites.run("route", "status", WEST, name).stdout.replace("\n", "")
    sites.run("route", "change", WEST, name, "--jq", "true")
    assert sites[WEST].bridges()[name].filter == Filter(jq="true")
    sites.run("route", "change", WEST, name, "--no-filter")
    assert sites[WEST].bridges()[name].filter is msgspec.UNSET
    for wrong, reason in (
        (("--filter", "a"), "'a' is not ATTRIBUTE=REGEX"),
        (("--filter", "a=("), "doesn't compile"),
        (("--jq", "("), "doesn't compile"),
    ):
        assert reason in sites.run(*add, "b", *wrong, code=1).stderr


def test_the_same_route_twice_is_refused_and_quietly_passed_over(sites: Sites) -> None:
    add = ("route", "add", WEST, EAST, "amq.topic", "a.#")
    sites.run(*add)
    assert "duplicate route: it is from-EAST:amq.topic:amq.topic:a.#" in sites.run(*add, code=1).stderr
    assert sites.run(*add, "--quiet").output == ""
    assert len(sites[WEST].bridges()) == 1


def test_a_route_that_is_about_to_go_is_not_taken_for_the_new_one(sites: Sites) -> None:
    add = ("route", "add", WEST, EAST, "amq.topic", "a", "--src-local", "--quiet")
    sites.run(*add)
    sites.run("route", "del", WEST, EAST, "amq.topic", "a", "--src-local")
    assert "is being closed: try again in a minute" in sites.run(*add, code=1).stderr
    sites.world.settle()
    sites.run(*add)
    assert set(sites[EAST].bridges()) == {"to-WEST:amq.topic:amq.topic:a"}


def test_a_route_that_is_there_by_another_name_is_named(sites: Sites) -> None:
    sites.run("link", "add", WEST, EAST)
    declared = Bridge(name="declared", link="EAST", src="amq.topic", dest="amq.topic", key="a")
    sites[WEST].ask(AddBridge(bridge=declared))
    assert "it is declared" in sites.run("route", "add", WEST, EAST, "amq.topic", "a", code=1).stderr
    sites.run("route", "del", WEST, EAST, "amq.topic", "a")
    assert sites[WEST].bridges() == {}


def test_a_site_is_not_linked_to_itself(sites: Sites) -> None:
    assert "a site isn't linked to itself" in sites.run("route", "add", EAST, EAST, "amq.topic", "a", code=1).stderr


@pytest.mark.parametrize(
    ("exchange", "more", "where"), [("x", (), "WEST: x"), ("amq.topic", ("--dest-exchange", "y"), "WEST: y")]
)
def test_an_exchange_that_isnt_there_is_named_before_anything_is_made(
    sites: Sites, exchange: str, more: Sequence[str], where: str
) -> None:
    assert f"no such exchange at {where}" in sites.run("route", "add", WEST, EAST, exchange, "k", *more, code=1).stderr
    assert sites[WEST].links() == {}


def test_a_site_that_isnt_there_is_said_with_exit_code_1(sites: Sites) -> None:
    assert "not deployed in eu-west-1" in sites.run("route", "add", WEST, "eu-west-1", "amq.topic", code=1).stderr


def test_a_peer_that_doesnt_answer_is_waited_for_no_longer_than_asked(sites: Sites) -> None:
    sites[WEST].peers.unreachable.add("EAST")
    add = ("route", "add", WEST, EAST, "amq.topic", "a")
    said = sites.run(*add, "--timeout", "0.01", code=1).stderr
    assert "isn't Operational after 0.01 s" in said
    assert "ConnectTimeoutError" in said
    assert len(sites[WEST].bridges()) == 1
    assert sites.run(*add[:-1], "b", "--timeout", "0").stderr == "from-EAST:amq.topic:amq.topic:b: Waiting\n"


def test_a_route_that_fails_says_why(sites: Sites) -> None:
    add = ("queue", "add", WEST, EAST, "amq.direct", "sluice-queue-9", "--timeout", "0.01")
    assert "Failed: no such queue: sluice-queue-9, its link is Operational" in sites.run(*add, code=1).stderr
    assert "no such queue: sluice-queue-9" in sites.run(*add, "--src-local", code=1).stderr


def test_a_route_on_a_paused_link_is_not_waited_for(sites: Sites) -> None:
    sites.run("link", "add", WEST, EAST)
    sites.run("link", "pause", WEST, "EAST")
    assert "its link is Paused" in sites.run("route", "add", WEST, EAST, "amq.topic", "a", code=1).stderr


def test_a_route_is_deleted_by_its_way_and_by_its_name_and_the_empty_link_with_it(sites: Sites) -> None:
    for key in ("a", "b"):
        sites.run("route", "add", WEST, EAST, "amq.topic", key)
    sites.run("route", "del", WEST, EAST, "amq.topic", "a")
    assert set(sites[WEST].bridges()) == {"from-EAST:amq.topic:amq.topic:b"}
    sites.run("route", "del", WEST, "from-EAST:amq.topic:amq.topic:b", "--del-empty-link")
    assert sites[WEST].bridges() == {}
    assert sites[WEST].links() == {}
    said = sites.run("route", "del", WEST, EAST, "amq.topic", "a", code=1).stderr
    assert "no such route between WEST and EAST: amq.topic to amq.topic by 'a', pulled" in said


@pytest.mark.parametrize("more", [[], ["--src-local"]])
def test_deleting_a_route_says_which_permission_stays(sites: Sites, more: list[str]) -> None:
    """The last one's messages are still on their way, so the permission to publish can't go with the route."""
    for key in ("a", "b"):
        sites.run("route", "add", WEST, EAST, "amq.topic", key, *more)
    kept = f"EAST may still publish to amq.topic at WEST: `sluice peer add {WEST}` replaces its permissions"
    assert kept not in sites.run("route", "del", WEST, EAST, "amq.topic", "a", *more).stderr
    assert kept in sites.run("route", "del", WEST, EAST, "amq.topic", "b", *more).stderr


@pytest.mark.parametrize(
    ("add", "delete"),
    [
        (["queue", "add", WEST, EAST, "amq.topic", "orders"], ["queue", "del", WEST, EAST, "amq.topic", "orders"]),
        (["dynamic", "add", WEST, EAST, "amq.topic"], ["dynamic", "del", WEST, EAST, "amq.topic"]),
        (["route", "add", WEST, EAST, "amq.topic"], ["link", "del", WEST, EAST]),
        (["route", "add", WEST, EAST, "amq.topic"], ["route", "flush", WEST]),
        (["route", "add", WEST, EAST, "amq.topic"], ["route", "del", WEST, "from-EAST:amq.topic:amq.topic"]),
    ],
)
def test_each_command_that_deletes_routes_withdraws_what_it_can_and_says_what_stays(
    sites: Sites, add: list[str], delete: list[str]
) -> None:
    sites.run(*add)
    [before] = sites.json("peer", "list", EAST)
    kept = f"EAST may still publish to amq.topic at WEST: `sluice peer add {WEST}` replaces its permissions"
    assert sites.run(*delete).stderr.count(kept) == 1
    [after] = sites.json("peer", "list", EAST)
    rules = ("pulls", "queues", "leads")
    assert any(before[rule] for rule in rules)
    assert not any(after[rule] for rule in rules)


@pytest.mark.parametrize("delete", [["route", "flush", WEST], ["link", "del", WEST, "EAST"]])
def test_permissions_of_a_peer_that_cant_be_read_are_said_to_stay(sites: Sites, delete: list[str]) -> None:
    sites.run("route", "add", WEST, EAST, "amq.topic")
    del sites.asked[EAST]
    said = sites.run(*delete).stderr
    assert "EAST wasn't read: what it permits stays, see `sluice peer list` there\n" in said
    assert "EAST may still publish to amq.topic at WEST" in said


def test_a_peer_that_is_gone_is_named_by_its_tag(sites: Sites) -> None:
    sites.run("peer", "add", EAST, WEST, "--pull", "amq.topic")
    sites.run("route", "add", WEST, EAST, "amq.topic", "a")
    sites.run("route", "add", WEST, "EAST", "amq.topic", "b")
    del sites.asked[EAST]
    sites.run("route", "del", WEST, "EAST", "amq.topic", "a")
    assert set(sites[WEST].bridges()) == {"from-EAST:amq.topic:amq.topic:b"}
    assert "no link goes from WEST to NORTH" in sites.run("route", "add", WEST, "NORTH", "amq.topic", code=1).stderr


def test_what_a_route_was_allowed_goes_with_the_last_route_that_needs_it(sites: Sites) -> None:
    sites.run("peer", "add", EAST, WEST, "--pull", "amq.fanout")

    def allowed() -> list[list[str]]:
        [peer] = sites.json("peer", "list", EAST)
        return [peer["pulls"], peer["queues"], peer.get("granted", [])]

    for command in ("add", "del"):
        sites.run("route", command, WEST, EAST, "amq.fanout")
        assert allowed() == [["amq.fanout"], [], []]
    sites.run("route", "add", WEST, EAST, "amq.topic", "a.#")
    sites.run("route", "add", WEST, EAST, "amq.topic", "a.b")
    sites.run("queue", "add", WEST, EAST, "amq.topic", "orders")
    sites.run("route", "del", WEST, EAST, "amq.topic", "a.#")
    assert allowed() == [["amq.fanout", "amq.topic:a.#"], ["orders"], ["pulls:amq.topic:a.#", "queues:orders"]]
    sites.run("route", "del", WEST, EAST, "amq.topic", "a.b")
    assert allowed() == [["amq.fanout"], ["orders"], ["queues:orders"]]
    sites.run("link", "del", WEST, EAST)
    assert allowed() == [["amq.fanout"], [], []]


def test_a_queue_route_to_an_exchange_without_bindings_is_warned_of_before_it_takes_anything(sites: Sites) -> None:
    warning = f"warning: nothing is bound to amq.topic at {WEST}, so messages from orders are dropped there"
    assert warning in sites.run("queue", "add", WEST, EAST, "amq.topic", "orders").stderr
    sites.run("queue", "del", WEST, EAST, "amq.topic", "orders")
    sites.run("binding", "add", WEST, "amq.topic", "sluice-queue-1", "#")
    assert "nothing is bound" not in sites.run("queue", "add", WEST, EAST, "amq.topic", "orders").stderr


def test_deleting_a_link_says_what_is_left_and_can_do_without_the_peer(sites: Sites) -> None:
    sites.run("route", "add", WEST, EAST, "amq.topic", "a", "--src-local")
    name = "to-WEST:amq.topic:amq.topic:a"
    said = sites.run("link", "del", EAST, WEST).stderr
    assert said == (
        f"WEST is closing at {EAST}: {name} still forward the messages in their queues\n"
        f"EAST may still publish to amq.topic at WEST: `sluice peer add {WEST}` replaces its permissions\n"
    )
    sites.world.settle()
    sites.run("link", "add", EAST, WEST)
    sites[EAST].peers.unreachable.add("WEST")
    said = sites.run("link", "del", EAST, WEST).stderr
    assert said == f"WEST is closing at {EAST}: WEST wasn't told yet; --force removes the link without that\n"
    sites.run("link", "del", EAST, WEST, "--force")
    assert sites.json("link", "list", EAST) == []
    sites[EAST].peers.unreachable.clear()
    sites.world.settle()
    assert sites.json("link", "list", WEST) == []  # it asks about a link of which it hears nothing


def test_a_route_that_a_peer_pulls_is_the_peers_to_delete(sites: Sites) -> None:
    sites.run("route", "add", WEST, EAST, "amq.topic", "a")
    [name] = [each["name"] for each in sites.json("route", "list", EAST)]
    assert name == "from-EAST:amq.topic:amq.topic:a@WEST"
    assert "pulled by WEST: delete it there" in sites.run("route", "del", EAST, name, code=1).stderr


def test_flushing_takes_all_of_a_sites_own_routes_away(sites: Sites) -> None:
    sites.run("route", "add", WEST, EAST, "amq.topic", "a")
    sites.run("route", "add", WEST, EAST, "amq.topic", "b")
    sites.run("route", "add", EAST, WEST, "amq.topic", "b")
    sites.run("route", "flush", WEST, "--del-empty-link", "--quiet")
    assert sites[WEST].bridges() == {}
    assert sites[WEST].links() == {}
    assert len(sites[EAST].bridges()) == 1


def test_flushing_pushes_closes_their_links_though_they_hold_something(sites: Sites) -> None:
    sites.run("route", "add", WEST, EAST, "amq.topic", "a", "--src-local")
    sites[EAST].publish("kept", exchange="amq.topic", key="a")
    sites.run("route", "flush", EAST, "--del-empty-link", "--quiet")
    assert sites.json("link", "list", EAST)[0]["status"]["state"] == "Closing"
    sites.world.settle()
    assert sites.json("link", "list", EAST) == []
    assert sites.json("route", "list", EAST) == []
    assert [body for queue, body in sites[WEST].queues.taken_in if "ingress" in queue] == ["kept"]


def test_what_can_be_told_to_a_route(sites: Sites) -> None:
    sites.run("route", "add", WEST, EAST, "amq.topic", "a", "--src-local")
    name = "to-WEST:amq.topic:amq.topic:a"
    for what in ("pause", "resume", "drain", "retry"):
        sites.run("route", what, EAST, name)
    told = [each.command for each in sites[EAST].asked if isinstance(each, CommandBridge)]
    assert told == ["pause", "resume", "drain", "retry"]
    assert sites.json("route", "redrive", EAST, name) == {"redriven": 3}
    assert sites[EAST].redriven == [sites.json("route", "status", EAST, name)["reads"]]
    assert "no such route: nope" in sites.run("route", "pause", EAST, "nope", code=1).stderr


def test_routes_are_shown_for_people_and_for_programs(sites: Sites) -> None:
    sites.run("route", "add", WEST, EAST, "amq.topic", "a.#", "TAG")
    name = "from-EAST:amq.topic:amq.topic:a.#"
    listed = sites.run("route", "list", WEST).stdout
    assert all(text in listed for text in (name, "static", "EAST amq.topic", "WEST amq.topic", "Operational"))
    assert [each["name"] for each in sites.json("route", "list", WEST)] == [name]
    status = sites.run("route", "status", WEST, name).stdout
    assert all(
        text in status for text in ("static, pulled", "EAST exchange amq.topic", "TAG", "at run time", "batches of 10")
    )
    assert sites.json("route", "status", WEST, name)["tag"] == "TAG"
    assert "no such route at WEST: x" in sites.run("route", "status", WEST, "x", code=1).stderr


def test_a_route_says_what_of_it_was_made_anew(sites: Sites) -> None:
    sites.run("route", "add", WEST, EAST, "amq.topic", "a", "--src-local")
    name, site = "to-WEST:amq.topic:amq.topic:a", sites[EAST]
    queue = sites.json("route", "status", EAST, name)["reads"]
    site.publish("m", exchange="amq.topic", key="a")
    site.drift_repair().sweep()
    for _ in range(2):
        site.queues.queues.pop(queue, None)
        site.drift_repair().sweep()
        sites.world.at_ms += 60_000
    status = " ".join(sites.run("route", "status", EAST, name).stdout.split())
    assert "once: its queue, 2023-" in status
    assert "about 1 messages were lost with its queue" in status
    assert sites.json("route", "status", EAST, name)["repairs"]["lost"] == 1


# Queue routes


def test_a_queue_route_goes_from_a_queue_to_an_exchange(sites: Sites) -> None:
    sites.run("queue", "add", WEST, EAST, "amq.direct", "orders", "--src-local", "--ack", "3", "--credit", "7")
    [made] = sites[EAST].bridges().values()
    assert (made.name, made.src, made.dest) == ("queue-to-WEST:orders:amq.direct", "orders", "amq.direct")
    assert (made.src_is_queue, made.sync, made.credit) == (True, 3, 7)
    assert "duplicate" in sites.run("queue", "add", WEST, EAST, "amq.direct", "orders", "--src-local", code=1).stderr
    sites.run("queue", "del", WEST, EAST, "amq.direct", "orders", "--src-local", "--del-empty-link")
    assert sites[EAST].bridges() == {}


def test_a_queue_route_is_pulled_unless_said_otherwise(sites: Sites) -> None:
    sites.run("queue", "add", WEST, EAST, "amq.direct", "sluice-queue-1")
    assert set(sites[WEST].bridges()) == {"queue-from-EAST:sluice-queue-1:amq.direct"}
    sites.run("queue", "del", WEST, EAST, "amq.direct", "sluice-queue-1")
    assert sites[WEST].bridges() == {}


def test_a_queue_that_the_site_may_not_read_is_refused(sites: Sites) -> None:
    said = sites.run("queue", "add", WEST, EAST, "amq.direct", "secrets", "--src-local", code=1).stderr
    assert "secrets: not a queue that this site may use" in said


# Dynamic routes


def test_a_dynamic_route_follows_an_exchange_and_goes_again(sites: Sites) -> None:
    options = ("other", "--expires", "600", "--rate", "5", "--ttl", "60")
    sites.run("dynamic", "add", WEST, EAST, "amq.topic", *options)
    [made] = sites[WEST].bridges().values()
    assert (made.rate, made.retention_s) == (5, 60)
    change = ("route", "change", WEST, made.name)
    sites.run(*change, "--rate", "0")
    assert sites[WEST].bridges()[made.name].rate is msgspec.UNSET
    assert "another route" in sites.run(*change, "--max-hops", "3", code=1).stderr
    assert "no filter" in sites.run(*change, "--filter", "a=b", code=1).stderr
    assert (made.dynamic, made.src, made.dest, made.key) == (True, "amq.topic", "amq.topic", "")
    assert (made.expires_s, made.tag, made.src_is_local) == (600, "other", False)
    assert "duplicate" in sites.run("dynamic", "add", WEST, EAST, "amq.topic", code=1).stderr
    assert "dynamic" in sites.run("route", "list", EAST).stdout
    sites.run("dynamic", "del", WEST, EAST, "amq.topic", "--del-empty-link")
    assert sites[WEST].bridges() == {}


def test_a_site_of_another_account_leads_to_no_third_site_unless_a_rule_says_so(sites: Sites) -> None:
    sites.add("other@eu-west-1", "NORTH", account="000000000001")
    note = "EAST sends NORTH nothing for other sites unless `peer add --lead` there allows it"
    assert note in sites.run("dynamic", "add", "other@eu-west-1", EAST, "amq.topic").stderr
    assert "nothing for other sites" not in sites.run("dynamic", "add", WEST, EAST, "amq.topic").stderr
    leads = {peer["tag"]: peer["leads"] for peer in sites.json("peer", "list", EAST)}
    assert leads == {"NORTH": [], "WEST": ["*"]}


def test_a_dynamic_route_between_exchanges_of_two_types_fails_and_says_which(sites: Sites) -> None:
    sites.run("exchange", "add", EAST, "orders", "topic")
    sites.run("exchange", "add", WEST, "orders", "direct")
    said = sites.run("dynamic", "add", WEST, EAST, "orders", code=1).stderr
    reason = "Failed: orders is topic at EAST, direct at WEST: a dynamic route needs one type"
    assert reason in said
    [shown] = sites.json("route", "list", WEST)
    assert (shown["state"], shown["error"]) == (reason, reason.removeprefix("Failed: "))
    assert "! type mismatch: EAST orders is topic, WEST orders is direct" in sites.run("route", "map", WEST).stdout
    # Its source makes nothing for it, until the exchanges are of one type.
    sites.world.settle()
    assert sites.json("route", "list", EAST) == []
    sites.run("exchange", "del", WEST, "orders")
    sites.run("exchange", "add", WEST, "orders", "topic")
    sites.world.settle(for_ms=5 * 60_000)
    assert [shown["state"] for shown in sites.json("route", "list", WEST)] == ["Operational"]


def test_lists_and_maps_show_who_wants_what_by_which_way(sites: Sites) -> None:
    sites.run("dynamic", "add", WEST, EAST, "amq.topic")
    keys = tuple(f"key-{number}" for number in range(7))
    far: dict[str, Any] = {
        "exchange": "amq.topic",
        "origin": "FAR",
        "route": "b",
        "outages": 0,
        "bindings": len(keys),
        "keys": keys,
    }
    ways = (("WEST", "FAR"), True), (("NORTH", "FAR"), False)
    sites[EAST].known_ways = tuple(PathView(**far, path=path, active=active) for path, active in ways)
    for command in (("dynamic", "paths", EAST), ("route", "list", EAST), ("route", "map", EAST)):
        said = " ".join(sites.run(*command).stdout.split())
        assert "WEST → FAR" in said
        assert "standby" in said
        assert "key-4, …" in said
    said = json.loads(sites.run("route", "map", EAST, "--json").stdout)
    assert [(each["at"], each["path"], each["active"]) for each in said["paths"]] == [
        ("EAST", ["WEST", "FAR"], True),
        ("EAST", ["NORTH", "FAR"], False),
    ]


# Links


def test_several_links_to_one_peer_are_told_apart_by_their_names(sites: Sites) -> None:
    for name in ("one", "two"):
        sites.run("link", "add", WEST, EAST, "--link", name)
    said = sites.run("route", "add", WEST, EAST, "amq.topic", "a", code=1).stderr
    assert "2 links go to EAST: say which with --link: one, two" in said
    for name in ("one", "two"):
        sites.run("route", "add", WEST, EAST, "amq.topic", "a", "--link", name)
    assert set(sites[WEST].bridges()) == {f"from-{name}:amq.topic:amq.topic:a" for name in ("one", "two")}
    assert "2 routes: say which" in sites.run("route", "del", WEST, EAST, "amq.topic", "a", code=1).stderr
    sites.run("route", "del", WEST, EAST, "amq.topic", "a", "--link", "one")
    sites.run("link", "del", WEST, "EAST", "--link", "two")
    assert set(sites[WEST].links()) == {"one"}
    assert "no link" in sites.run("link", "del", WEST, EAST, "--link", "two", code=1).stderr


def test_a_links_name_is_not_another_peers(sites: Sites) -> None:
    sites.add("eu-west-1", "NORTH")
    sites.run("link", "add", WEST, EAST, "--link", "one")
    said = sites.run("route", "add", WEST, "eu-west-1", "amq.topic", "--link", "one", code=1).stderr
    assert "one is a link to EAST" in said
    assert "a link's name is" in sites.run("link", "add", WEST, EAST, "--link", "a@b", code=1).stderr


def test_within_an_account_no_role_is_assumed_and_in_another_the_peers(sites: Sites) -> None:
    sites.add("other@eu-west-1", "NORTH", account="000000000001", role_arn="arn:aws:iam::000000000001:role/r")
    sites.add("eu-west-2", "SOUTH", role_arn="arn:aws:iam::000000000000:role/r")
    for name in ("other@eu-west-1", "eu-west-2"):
        sites.run("link", "add", WEST, name)
    links = sites[WEST].links()
    assert (links["NORTH"].role_arn, links["NORTH"].external_id) == ("arn:aws:iam::000000000001:role/r", "its-id")
    assert (links["SOUTH"].role_arn, links["SOUTH"].external_id) == (None, None)
    sites.run("link", "del", WEST, "eu-west-2")
    own = ("--role-arn", "arn:aws:iam::000000000000:role/mine", "--external-id", "mine")
    urls = ("--sqs-url", "https://vpce-1", "--sqs-url", "https://sqs", "--no-durable")
    sites.run("link", "add", WEST, "eu-west-2", "--link", "again", *own, *urls)
    link = sites[WEST].links()["again"]
    assert (link.role_arn, link.external_id, link.durable) == ("arn:aws:iam::000000000000:role/mine", "mine", False)
    assert [endpoint.sqs_url for endpoint in link.endpoints] == ["https://vpce-1", "https://sqs"]


@pytest.mark.parametrize(
    ("account", "reason"),
    [
        ("000000000000", "AccessDenied: https://sqs.NORTH/control.fifo"),
        ("000000000001", ": does federation.peer_accounts at NORTH list 000000000000, WEST's?"),
        ("000000000009", ": federation.peer_accounts at WEST doesn't list 000000000009, NORTH's"),
    ],
)
def test_between_accounts_a_refusal_names_the_setting(sites: Sites, account: str, reason: str) -> None:
    sites.add("other@eu-west-1", "NORTH", account=account)
    sites[WEST].peers.refusing.add("NORTH")
    said = sites.run("route", "add", WEST, "other@eu-west-1", "amq.topic", "a", code=1).stderr
    assert said.endswith(f"{reason}\n")


def test_an_address_goes_from_operator_to_operator_as_a_file(sites: Sites, tmp_path: Path) -> None:
    file = tmp_path / "east.json"
    file.write_text(sites.run("link", "address", EAST).stdout)
    made = sites.json("link", "add", WEST, "--address", str(file))
    assert (made["name"], made["peer"]) == ("EAST", "EAST")
    assert sites[WEST].links()["EAST"].endpoints[0].control_queue_url == "https://sqs.EAST/control.fifo"
    assert "either SRC or --address" in sites.run("link", "add", WEST, code=2).stderr
    assert "either SRC or --address" in sites.run("link", "add", WEST, EAST, "--address", str(file), code=2).stderr


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"tag": 1}', '{"tag": "EAST", "colour": "red"}', "[" * 100_000])
def test_a_file_without_an_address_is_named(sites: Sites, tmp_path: Path, text: str) -> None:
    file = tmp_path / "east.json"
    file.write_text(text)
    assert f"{file} is not a site's address" in sites.run("link", "add", WEST, "--address", str(file), code=1).stderr
    assert "No such file" in sites.run("link", "add", WEST, "--address", str(file) + "x", code=1).stderr


def test_links_are_listed_and_told(sites: Sites) -> None:
    sites.run("link", "add", WEST, EAST)
    assert all(
        text in sites.run("link", "list", WEST).stdout for text in ("EAST", "Operational", "2023-11-14 22:13:20Z")
    )
    assert [each["name"] for each in sites.json("link", "list", EAST)] == ["EAST@WEST"]
    for what in ("pause", "resume", "drain", "retry"):
        sites.run("link", what, WEST, "EAST")
    told = [each.command for each in sites[WEST].asked if isinstance(each, CommandLink)]
    assert told == ["pause", "resume", "drain", "retry"]
    assert "no such link: nope" in sites.run("link", "pause", WEST, "nope", code=1).stderr


def test_closing_a_link_takes_its_routes_along(sites: Sites) -> None:
    sites.run("route", "add", WEST, EAST, "amq.topic", "a")
    sites.run("link", "del", WEST, EAST)
    assert sites.json("link", "list", WEST) == []
    assert sites.json("route", "list", WEST) == []


# Exchanges and bindings


def test_exchanges_come_and_go(sites: Sites) -> None:
    made = sites.json("exchange", "add", EAST, "orders", "topic", "--alternate", "amq.fanout")
    assert made == {"name": "orders", "type": "topic", "alternate": "amq.fanout"}
    assert made in sites.json("exchange", "list", EAST)
    assert "orders" in {exchange.name for exchange in sites[EAST].ask(ShowSite()).exchanges}
    assert "orders" in sites.run("exchange", "list", EAST).stdout
    assert "of type topic" in sites.run("exchange", "add", EAST, "orders", "direct", code=1).stderr
    sites.run("exchange", "del", EAST, "orders")
    assert "no such exchange: orders" in sites.run("exchange", "del", EAST, "orders", code=1).stderr
    assert sites.run("exchange", "add", EAST, "orders", "queue", code=2).stdout == ""


def test_bindings_come_and_go_with_typed_arguments(sites: Sites) -> None:
    options = [
        f"--argument={text}" for text in ("x-match=all", "n=2", "f=2.0", "t=true", 's="2"', "v", 'b={"base64": "AA=="}')
    ]
    made = sites.json("binding", "add", EAST, "amq.match", "orders", "k", *options)
    arguments = {"x-match": "all", "n": 2, "f": 2.0, "t": True, "s": "2", "v": None, "b": {"base64": "AA=="}}
    assert made["arguments"] == arguments
    [listed] = sites.json("binding", "list", EAST, "amq.match")
    assert (listed["queue"], listed["key"], listed["arguments"]) == ("orders", "k", arguments)
    assert "x-match" in sites.run("binding", "list", EAST).stdout
    assert (
        "other arguments"
        in sites.run("binding", "add", EAST, "amq.match", "orders", "k", "--argument=x-match=any", code=1).stderr
    )
    sites.run("binding", "del", EAST, "amq.match", "orders", "k")
    assert sites.json("binding", "list", EAST) == []
    assert "is not bound" in sites.run("binding", "del", EAST, "amq.match", "orders", "k", code=1).stderr


@pytest.mark.parametrize("option", ["=x", "n=1,n=2"])
def test_a_bad_argument_is_named(sites: Sites, option: str) -> None:
    options = [f"--argument={each}" for each in option.split(",")]
    assert "--argument" in sites.run("binding", "add", EAST, "amq.match", "orders", *options, code=2).stderr


# The map


def ring(sites: Sites, *names: str) -> None:
    for source, dest in zip(names, [*names[1:], names[0]], strict=True):
        sites.run("route", "add", dest, source, "amq.topic", "#")


def test_the_map_walks_all_links_and_warns_of_what_is_doubled(sites: Sites, tmp_path: Path) -> None:
    sites.add("eu-west-1", "NORTH")
    ring(sites, EAST, WEST, "eu-west-1")
    svg = tmp_path / "map.svg"
    text = sites.run("route", "map", EAST, "--svg", str(svg)).stdout
    assert "EAST us-east-1\n  amq.topic ─ # ──▶ WEST amq.topic" in text
    assert "!" not in text  # one way round, all of it comes once
    ET.fromstring(svg.read_text())
    sites.run("route", "add", "eu-west-1", EAST, "amq.topic", "a")
    assert "! multi-path: EAST → NORTH and EAST → WEST → NORTH: twice" in sites.run("route", "map", EAST).stdout
    document = sites.json("route", "map", EAST)
    assert [site["tag"] for site in document["sites"]] == ["EAST", "NORTH", "WEST"]
    assert [(route["kind"], route["state"]) for route in document["routes"]] == [("static", "Operational")] * 4
    [finding] = document["findings"]
    assert (finding["concern"], finding["effect"]) == ("multi-path", "doubled")
    assert "EAST/from-EAST:amq.topic:amq.topic:a" in finding["routes"]


def test_a_route_that_makes_a_second_way_is_added_with_a_warning_that_names_both(sites: Sites) -> None:
    sites.add("eu-west-1", "NORTH")
    sites.run("route", "add", WEST, EAST, "amq.topic", "#")
    sites.run("route", "add", "eu-west-1", WEST, "amq.topic", "#")
    said = sites.run("route", "add", "eu-west-1", EAST, "amq.topic", "a", "--quiet").stderr
    assert said == (
        "warning: multi-path: EAST → NORTH and EAST → WEST → NORTH:"
        " twice, where one way is five minutes later than the other\n"
    )
    assert "a" in {bridge.key for bridge in sites["eu-west-1"].bridges().values()}
    by_hand = ("route", "add", WEST, EAST, "amq.topic", "a.#", "--standard", "--src-local")
    [warning] = sites.json(*by_hand)["warnings"]
    assert warning == (
        "multi-path: EAST → WEST by EAST/from-EAST:amq.topic:amq.topic:# and by WEST/to-WEST:amq.topic:amq.topic:a.#:"
        " twice, as standard queues know no duplicates"
    )
    assert sites.json("dynamic", "add", WEST, EAST, "amq.fanout")["warnings"] == []


def test_a_second_way_is_found_two_sites_away(sites: Sites) -> None:
    names = [EAST, WEST, "eu-west-1", "eu-west-2"]
    for name, tag in zip(names[2:], ("NORTH", "SOUTH"), strict=True):
        sites.add(name, tag)
    for source, dest in itertools.pairwise(names):
        sites.run("route", "add", dest, source, "amq.topic", "#")
    said = sites.run("route", "add", "eu-west-2", EAST, "amq.topic", "#").stderr
    assert "EAST → SOUTH and EAST → WEST → NORTH → SOUTH: twice" in said


def test_a_site_that_isnt_reached_is_drawn_by_what_its_peers_say(sites: Sites) -> None:
    sites.run("route", "add", WEST, EAST, "amq.topic", "a")
    east = sites.asked.pop(EAST)
    result = sites.run("route", "map", WEST)
    assert "EAST (not reached)\n  amq.topic ─ a ──▶ WEST amq.topic" in result.stdout
    assert "EAST was not reached: stack SluiceFederation is not deployed in us-east-1" in result.stderr
    sites.asked[EAST] = east
    del sites.asked[WEST]
    assert "EAST us-east-1\n  amq.topic ─ a ──▶ WEST amq.topic" in sites.run("route", "map", EAST).stdout


def test_a_site_of_another_account_is_asked_where_it_is_named(sites: Sites) -> None:
    sites.add("other@eu-west-1", "NORTH", account="000000000001")
    sites.run("route", "add", WEST, "other@eu-west-1", "amq.topic", "a")
    assert "name that site, too" in sites.json("route", "map", WEST)["not_reached"]["NORTH"]
    assert sites.json("route", "map", WEST, "other@eu-west-1")["not_reached"] == {}


def test_sites_of_the_embedded_cloud_lead_to_its_others_in_any_account() -> None:
    sites = Sites()
    for number in (0, 1):
        sites.add(f"00000000000{number}/eu-west-{number + 1}", f"B{number}", account=f"00000000000{number}")
    names = list(sites.asked)
    sites.run("route", "add", names[0], names[1], "amq.topic", "a")
    document = sites.json("route", "map", names[0])
    assert [site["region"] for site in document["sites"]] == ["eu-west-1", "eu-west-2"]
    assert document["not_reached"] == {}


def test_opposite_queue_routes_by_way_of_a_binding_are_found_to_be_a_cycle(sites: Sites) -> None:
    for here, there in ((EAST, WEST), (WEST, EAST)):
        sites.run("binding", "add", here, "amq.fanout", "orders")
        sites.run("queue", "add", there, here, "amq.fanout", "orders", "--src-local")
    findings = sites.json("route", "map", EAST)["findings"]
    assert [(finding["concern"], finding["effect"]) for finding in findings] == [("cycle", "lost")] * 2


def test_two_sites_with_one_tag_are_named(sites: Sites) -> None:
    twin = sites.add("eu-west-1", "EAST", account="000000000001")
    twin.queues.base = "https://sqs.other"
    said = sites.run("route", "map", EAST, "eu-west-1", code=1).stderr
    assert "two sites have the tag EAST: in 000000000000/us-east-1 and 000000000001/eu-west-1" in said


def test_an_answer_of_another_version_is_said_to_be_one(sites: Sites) -> None:
    class Newer:
        def ask(self, operation: Operation[R], /) -> R:
            return parse_result(operation, '{"result": {"address": {"tag": "EAST"}}}')

    with use_clients(lambda name: Newer()):
        result = CliRunner().invoke(app, ["route", "list", EAST])
    assert result.exit_code == 1
    assert "is it of another version?" in result.stderr
