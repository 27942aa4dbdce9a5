"""A topology file as the map draws it, once all of it carries."""

from pathlib import Path

import yaml

from sluice.federation.links.links import Endpoint, Link
from sluice.federation.links.states import LinkState, LinkStatus
from sluice.federation.map.drawings import draw_svg
from sluice.federation.map.topology import MappedSite, Topology
from sluice.federation.matching.exchanges import STANDARD_EXCHANGES
from sluice.federation.topology.desired import DesiredSite, parse_topology

FILE = Path(__file__).with_name("topology.yaml")
UP = LinkStatus(state=LinkState.OPERATIONAL)


def drawn() -> str:
    """Draw the file beside this one."""
    desired = parse_topology(yaml.safe_load(FILE.read_text(encoding="utf-8")))
    return draw_svg(Topology.from_sites(_site(tag, site) for tag, site in desired.sites.items()))


def _site(tag: str, desired: DesiredSite) -> MappedSite:
    return MappedSite(
        tag=tag,
        region=desired.at,
        exchanges={each.name: each.type for each in (*STANDARD_EXCHANGES, *desired.exchanges)},
        links=tuple(_link(each.name, each.peer) for each in desired.links),
        link_statuses={each.name: UP for each in desired.links},
        bridges=desired.routes,
        route_states={each.name: LinkState.OPERATIONAL for each in desired.routes},
    )


def _link(name: str, peer: str) -> Link:
    return Link(name=name, peer=peer, endpoints=(Endpoint(region="", account="", control_queue_url=""),))
