"""`sluice peer`, and who becomes whose peer by naming both sites."""

from pathlib import Path

from tests.unit.cli.federation.test_commands import EAST, WEST, Sites, sites  # noqa: F401 - pytest finds the fixture here


def peers(sites: Sites, site: str) -> dict[str, dict[str, object]]:  # noqa: F811 - the fixture's value
    return {each["tag"]: each for each in sites.json("peer", "list", site)}


def test_a_peer_is_declared_with_what_it_may(sites: Sites) -> None:  # noqa: F811
    assert peers(sites, WEST) == {}
    made = sites.json("peer", "add", WEST, EAST, "--pull", "amq.topic:eu.#", "--pull", "events", "--queue", "orders*")
    assert peers(sites, WEST) == {"EAST": made}
    assert (made["pulls"], made["pushes"], made["queues"]) == (["amq.topic:eu.#", "events"], [], ["orders*"])
    assert made["senders"] == ["AROAEAST"]
    made = sites.json("peer", "add", WEST, EAST, "--push", "events")
    assert (made["pulls"], made["pushes"], made["queues"]) == ([], ["events"], [])
    assert "amq" not in sites.run("peer", "list", WEST).stdout
    sites.run("peer", "del", WEST, "EAST")
    assert peers(sites, WEST) == {}
    assert "no such peer: EAST" in sites.run("peer", "del", WEST, "EAST", code=1).stderr


def test_who_has_one_site_at_hand_declares_the_other_by_its_address(sites: Sites, tmp_path: Path) -> None:  # noqa: F811
    file = tmp_path / "east.json"
    file.write_text(sites.run("link", "address", EAST).stdout)
    assert sites.json("peer", "add", WEST, "--address", str(file))["senders"] == ["AROAEAST"]
    assert "either PEER or --address" in sites.run("peer", "add", WEST, code=2).stderr


def test_who_names_both_sites_makes_each_the_others_peer(sites: Sites) -> None:  # noqa: F811
    sites.run("peer", "add", EAST, WEST, "--pull", "amq.topic")
    sites.run("link", "add", WEST, EAST)
    assert (peers(sites, WEST)["EAST"]["pulls"], peers(sites, EAST)["WEST"]["pulls"]) == ([], ["amq.topic"])
    sites.run("queue", "add", WEST, EAST, "amq.direct", "sluice-queue-1")
    sites.run("route", "add", WEST, EAST, "amq.fanout", "--timeout", "0")
    sites.run("route", "add", WEST, EAST, "amq.direct", "red", "--timeout", "0")
    sites.run("route", "add", WEST, EAST, "amq.topic", "red", "--timeout", "0")  # which it may already
    here, there = peers(sites, WEST)["EAST"], peers(sites, EAST)["WEST"]
    assert (here["pulls"], here["queues"]) == ([], [])
    assert here["pushes"] == ["amq.direct", "amq.fanout", "amq.topic"]
    assert (there["pulls"], there["pushes"]) == (["amq.topic", "amq.fanout", "amq.direct:red"], [])
    assert there["queues"] == ["sluice-queue-1"]
