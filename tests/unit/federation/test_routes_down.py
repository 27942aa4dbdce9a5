"""Which routes count as down, for the alarm and the log: those that should carry messages and don't."""

import pytest
from msgspec.structs import replace

from sluice.federation.bridge_provisioner import BRIDGE_QUEUE_PREFIX, build_bridge_queue_name
from sluice.federation.links.links import Bridge, Endpoint, Link
from sluice.federation.links.registry import BridgeRecord, LinkRecord, Registry, list_down_routes
from sluice.federation.links.states import Intent, LinkState, LinkStatus

LINK = Link(name="link", peer="WEST", endpoints=(Endpoint(region="r", account="1" * 12, control_queue_url="u"),))
PUSHED = Bridge(name="pushed", link="link", src="amq.topic", dest="amq.topic", src_is_local=True)
PULLED = replace(PUSHED, name="pulled", src_is_local=False)


def registry(state: LinkState, *bridges: BridgeRecord, remote: dict[str, str] | None = None) -> Registry:
    link = LinkRecord(link=LINK, status=LinkStatus(state=state), remote=remote or {})
    return Registry(here="EAST", links={"link": link}, bridges={bridge.bridge.name: bridge for bridge in bridges})


def up(bridge: Bridge) -> BridgeRecord:
    """Set up as far as this site is to do it."""
    return BridgeRecord(bridge=bridge, queue="q", mapping="m", on=True, bound=True)


@pytest.mark.parametrize(
    ("state", "down"),
    [
        (LinkState.WAITING, ["pushed"]),
        (LinkState.CONNECTING, ["pushed"]),
        (LinkState.STALLED, ["pushed"]),
        (LinkState.FAILED, ["pushed"]),
        (LinkState.OPERATIONAL, []),
        (LinkState.PAUSED, []),
        (LinkState.CLOSING, []),
    ],
)
def test_a_route_is_as_down_as_its_link(state: LinkState, down: list[str]) -> None:
    assert list_down_routes(registry(state, up(PUSHED))) == down


def test_a_route_that_somebody_paused_or_closes_is_meant_to_rest() -> None:
    resting = [
        replace(up(PUSHED), intent=Intent.PAUSED),
        replace(up(replace(PUSHED, name="other")), intent=Intent.CLOSED),
    ]
    assert list_down_routes(registry(LinkState.WAITING, *resting)) == []


def test_a_route_with_an_error_of_its_own_is_down_on_a_link_that_carries() -> None:
    assert list_down_routes(registry(LinkState.OPERATIONAL, replace(up(PUSHED), error="no such queue"))) == ["pushed"]


@pytest.mark.parametrize(("said", "down"), [(None, ["pulled"]), ("Operational", []), ("Failed: x", ["pulled"])])
def test_a_pulled_route_is_what_its_peer_says_it_is(said: str | None, down: list[str]) -> None:
    remote = {} if said is None else {"pulled": said}
    assert list_down_routes(registry(LinkState.OPERATIONAL, up(PULLED), remote=remote)) == down


def test_a_route_without_a_link_is_about_to_go() -> None:
    assert list_down_routes(Registry(here="EAST", links={}, bridges={"pushed": up(PUSHED)})) == []


def test_a_routes_queue_has_its_name_before_it_is_made() -> None:
    name = build_bridge_queue_name("EAST", PUSHED)
    assert name.startswith(BRIDGE_QUEUE_PREFIX)
    assert name.endswith(".fifo")
    assert build_bridge_queue_name("EAST", replace(PUSHED, fifo=False)) == name.removesuffix(".fifo")
    assert build_bridge_queue_name("WEST", PUSHED) != name
