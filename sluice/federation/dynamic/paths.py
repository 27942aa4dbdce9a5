"""Chooses paths of dynamic routes, and the bindings and advertisements that follow from them. Pure.

These rules deliver each message once in any topology, even while the topology changes:

- Each site is the *origin* of its own queues' bindings. Sites advertise bindings upstream over the bridges that pull,
  together with the path that the bindings took.
- A site that receives an origin over several bridges has one *active* path to the origin: the path with the fewest
  links that are down, then the fewest hops, then the lowest peer tag. Among bridges to one peer, the one that allows
  the most hops is chosen, then the first by name. Only active paths are bound and advertised upstream. All sites choose
  by the same rule, so each part of an active path is itself an active path.
- A site's bridges divide the origins among them, because each origin has one active path. So a message's copies divide
  the origins, too. Each copy lists its origins, and the next site forwards it only for these, over the paths that are
  active by then. So at any time one copy is on its way to each origin, even if sites learn of a change late.
- After links go down, three sites may rely on each other's paths until all have heard of these links. Meanwhile no site
  has a path to advertise, and each keeps its last path. Copies go back and forth between the sites, and arrive when a
  site chooses a link that is down again.

A bridge whose link is down is the last choice. Without another choice it stays bound, and its queue keeps messages.
"""

from collections.abc import Mapping

from sluice.federation.dynamic.ops import NO_ADVERTISEMENTS, AdvertisedRoute, BindingAdvertisements
from sluice.federation.dynamic.state import DynamicRoutes, FormerRoute, PulledRoute, ServedRoute
from sluice.federation.matching.metadata import MAX_TRACE_TAGS, Sites
from sluice.federation.operations import PathView

MAX_KEYS = 100  # a view of a path shows at most this many keys, but counts all bindings
BridgeByOrigin = Mapping[str, str]  # the name of the bridge that leads to each origin, by origin
_Rank = tuple[int, int, str, int, str]  # outages, hops, peer's tag, negative hop limit, bridge; the lowest is best


def choose_active_bridges(routes: DynamicRoutes) -> BridgeByOrigin:
    """Return the name of the active bridge to each known origin, by origin."""
    ranks: dict[str, _Rank] = {}
    for name, served in routes.served.items():
        for origin, advertised_route in served.advertised_routes.items():
            if not served.may_lead_to(origin):
                continue  # such routes are only kept because digests cover them
            rank = _rank(name, served, advertised_route)
            known = ranks.get(origin)
            if known is None or rank < known:
                ranks[origin] = rank
    return {origin: rank[-1] for origin, rank in ranks.items()}


def _rank(name: str, served: ServedRoute, advertised_route: AdvertisedRoute) -> _Rank:
    """Return a path's rank. The lowest rank is best. Ranks add up along a path, so parts of best paths are best."""
    return advertised_route.outages + (not served.up), len(advertised_route.path), served.peer, -served.max_hops, name


def retain_former_routes(before: DynamicRoutes, after: DynamicRoutes) -> dict[str, FormerRoute]:
    """Return the last paths to remote sites to which no path is advertised any longer."""
    known = dict(before.former)
    for origin, name in choose_active_bridges(before).items():
        advertised_route = before.served[name].advertised_routes[origin]
        if len(advertised_route.path) > 1:
            known[origin] = FormerRoute(bridge=name, bindings=advertised_route.bindings)
    active = choose_active_bridges(after)
    return {
        origin: former
        for origin, former in known.items()
        if origin not in active
        and (served := after.served.get(former.bridge)) is not None
        and served.may_lead_to(origin)
    }


def choose_bridges_in_use(routes: DynamicRoutes) -> BridgeByOrigin:
    """Return the bridge over which messages reach each origin: the active bridge, or else the last active one."""
    return {origin: former.bridge for origin, former in routes.former.items()} | dict(choose_active_bridges(routes))


def build_advertisement(
    routes: DynamicRoutes, pull: PulledRoute, bridges: BridgeByOrigin
) -> dict[str, AdvertisedRoute]:
    """Return the routes that this site advertises to the peer at the source of the bridge `pull`."""
    advertised = {
        routes.here: AdvertisedRoute(path=(routes.here,), hops_left=pull.max_hops, outages=0, bindings=routes.local)
    }
    for origin, name in bridges.items():
        served = routes.served[name]
        advertised_route = served.advertised_routes[origin]
        hops_left = min(advertised_route.hops_left - 1, pull.max_hops)
        if pull.peer in advertised_route.path or hops_left < 1 or len(advertised_route.path) >= MAX_TRACE_TAGS:
            continue
        outages = advertised_route.outages + (not served.up)
        path = (*advertised_route.path, routes.here)
        advertised[origin] = AdvertisedRoute(
            path=path, hops_left=hops_left, outages=outages, bindings=advertised_route.bindings
        )
    return advertised


def find_origins(bridges: BridgeByOrigin, name: str) -> Sites:
    """Return the origins whose messages go over the served bridge `name`."""
    return frozenset(origin for origin, bridge in bridges.items() if bridge == name)


def collect_advertised_bindings(routes: DynamicRoutes, name: str, bridges: BridgeByOrigin) -> BindingAdvertisements:
    """Return the advertised bindings of all origins whose messages go over the served bridge `name`."""
    advertised_routes = routes.served[name].advertised_routes
    return NO_ADVERTISEMENTS.union(
        *((advertised_routes.get(origin) or routes.former[origin]).bindings for origin in find_origins(bridges, name))
    )


def list_paths(routes: DynamicRoutes) -> list[PathView]:
    """Return all paths in order of origins, with the best path to each origin first."""
    best = choose_active_bridges(routes)
    candidates = [
        (origin, _rank(name, served, advertised_route), advertised_route)
        for name, served in routes.served.items()
        for origin, advertised_route in served.advertised_routes.items()
    ]
    return [
        PathView(
            exchange=routes.exchange,
            origin=origin,
            route=rank[-1],
            path=advertised_route.path[::-1],
            outages=rank[0],
            bindings=len(advertised_route.bindings),
            keys=tuple(sorted(advertisement.key for advertisement in advertised_route.bindings)[:MAX_KEYS]),
            active=best.get(origin) == rank[-1],
        )
        for origin, rank, advertised_route in sorted(candidates, key=lambda path: path[:2])
    ]
