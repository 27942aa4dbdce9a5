"""Federation's commands with sites said by options, with qpid-route's arguments, and with what they did as JSON."""

import json
from pathlib import Path

import pytest
import yaml

from tests.unit.cli.federation.test_commands import EAST, WEST, Sites

BINDING = "amq.topic", "sluice-queue-1", "a.#"
ROUTES = {"dynamic": ["amq.topic"], "queue": ["amq.topic", "sluice-queue-1"], "route": ["amq.topic", "a"]}


@pytest.fixture
def sites() -> Sites:
    made = Sites()
    made.add(EAST, "EAST")
    made.add(WEST, "WEST")
    return made


@pytest.mark.parametrize("command", [("dynamic", "add"), ("queue", "add"), ("route", "add")])
def test_tag_and_excludes_are_arguments_as_qpid_routes(sites: Sites, command: tuple[str, str]) -> None:
    sites.run(*command, WEST, EAST, *ROUTES[command[0]], "mine", "no,nor")
    [made] = sites[WEST].bridges().values()
    assert (made.tag, made.excludes) == ("mine", frozenset({"no", "nor"}))


def test_a_site_may_be_said_by_options(sites: Sites, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_REGION", EAST)
    for said in ([EAST], ["--site", EAST], ["--region", EAST], []):
        sites.run("binding", "add", *said, *BINDING[:2], *(BINDING[2:] if said else ()))
        assert [each["name"] for each in sites.json("exchange", "list", *said)][:1] == ["amq.direct"]
    assert [each["key"] for each in sites.json("binding", "list", "--site", EAST, "amq.topic")] == ["a.#", ""]
    assert sites.json("binding", "list", "--region", WEST) == []


def test_two_sites_are_asked_with_one_profile(sites: Sites) -> None:
    sites.asked |= {f"me@{name}": sites[name] for name in (EAST, WEST)}
    sites.run("link", "add", WEST, EAST, "--profile", "me")
    assert sites[WEST].links().keys() == {"EAST"}
    assert "not deployed in you@us-west-2" in sites.run("link", "list", WEST, "--profile", "you", code=1).stderr


def test_what_goes_is_said_as_json(sites: Sites) -> None:
    sites.run("binding", "add", WEST, *BINDING)
    sites.run("exchange", "add", WEST, "mine", "topic")
    sites.run("route", "add", WEST, EAST, "amq.topic", "a")
    sites.run("dynamic", "add", WEST, EAST, "amq.fanout")
    sites.run("queue", "add", WEST, EAST, "amq.topic", "sluice-queue-1")
    exchange, queue, key = BINDING
    at = {"site": WEST}
    bound = {"exchange": exchange, "queue": queue, "key": key}
    assert sites.json("binding", "del", WEST, *BINDING) == at | bound | {"done": "deleted"}
    assert sites.json("exchange", "del", WEST, "mine") == at | {"exchange": "mine", "done": "deleted"}
    names = {kind: name for name in sites[WEST].bridges() for kind in ("queue", "dynamic", "from") if kind in name[:7]}
    for done in ("pause", "resume"):
        assert sites.json("link", done, WEST, "EAST") == at | {"link": "EAST", "done": done}
        assert sites.json("route", done, WEST, names["from"]) == at | {"route": names["from"], "done": done}
    gone = [
        sites.json("route", "del", WEST, EAST, "amq.topic", "a"),
        sites.json("dynamic", "del", WEST, EAST, "amq.fanout"),
        sites.json("queue", "del", WEST, EAST, "amq.topic", "sluice-queue-1"),
    ]
    routes = [[names[kind]] for kind in ("from", "dynamic", "queue")]
    assert gone == [at | {"routes": route, "done": "closing"} for route in routes]
    assert sites.json("route", "flush", WEST) == at | {"routes": [], "done": "closing"}
    assert sites.json("link", "del", WEST, EAST) == at | {"link": "EAST", "routes": [], "done": "closing"}
    assert sites.json("peer", "del", WEST, "EAST") == at | {"peer": "EAST", "done": "deleted"}


def test_a_topology_is_said_as_json_and_its_steps_a_line_each(sites: Sites, tmp_path: Path) -> None:
    exported = sites.json("topology", "export", WEST)
    assert exported["sites"]["WEST"]["at"] == WEST
    file = tmp_path / "topology.yaml"
    exported["sites"]["WEST"]["exchanges"] = [{"name": name, "type": "topic"} for name in ("mine", "yours")]
    file.write_text(yaml.safe_dump(exported))
    planned = json.loads(sites.run("topology", "plan", str(file), "--json", code=2).stdout)["steps"]
    done = sites.run("topology", "apply", str(file), "--json").stdout.splitlines()
    assert [json.loads(line) for line in done] == planned
    assert {(step["act"], step["name"]) for step in planned} == {("add", "mine"), ("add", "yours")}
