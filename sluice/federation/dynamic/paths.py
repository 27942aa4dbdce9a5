"""Chooses paths of dynamic routes, and the bindings and advertisements that follow from them. Pure.

How each message arrives once, in whatever topology, also while that changes:

- Each site is the *origin* of its own queues' bindings. They are advertised upstream over the bridges that pull, from
  site to site, with the path that they took.
- A site that receives an origin over several bridges has one *active* path to it: the one with the fewest links that
  are down, then the fewest hops, then the first tag of a peer (and of several bridges to one peer the one that allows
  the most hops, then the first by name). Only that is bound, and only that is advertised upstream. As each site chooses
  by the same rule, a part of an active path is the active path between its ends.
- At each site every origin has one active path, so a site's bridges share the origins out among them, and the copies
  of a message that it sends on share out whom the message is for. Each copy says so, and whoever gets it sends it on
  for those alone, by the ways of then. So it doesn't matter when a site learns that a way has changed, nor how long a
  message was under way meanwhile: at any time one copy is for each origin, and it goes on until it is there.

- Two sites may each rely on a third one between them, and that on them, until they have heard of each other's links
  that went down. For that long nobody has a way to tell of, and all keep the one that they had last: copies go to and
  fro there, and arrive when somebody remembers the link that is down.

A bridge whose link is down counts as the last choice; where there is no other it stays bound, and its queue keeps.
"""

from collections.abc import Mapping

from sluice.federation.dynamic.ops import NO_ADVERTISEMENTS, AdvertisedRoute, BindingAdvertisements
from sluice.federation.dynamic.state import DynamicRoutes, FormerRoute, PulledRoute, ServedRoute
from sluice.federation.matching.metadata import MAX_TRACE_TAGS, Sites
from sluice.federation.operations import PathView

MAX_KEYS = 100  # shown of a way; all are counted
BridgeByOrigin = Mapping[str, str]  # by origin, the name of the bridge that leads to it
_Rank = tuple[int, int, str, int, str]  # outages, hops, peer, hops that the bridge lacks, bridge


def choose_active_bridges(routes: DynamicRoutes) -> BridgeByOrigin:
    """Return the active bridge to each known origin."""
    ranks: dict[str, _Rank] = {}
    for name, served in routes.served.items():
        for origin, reach in served.reaches.items():
            rank = _rank(name, served, reach)
            known = ranks.get(origin)
            if known is None or rank < known:
                ranks[origin] = rank
    return {origin: rank[-1] for origin, rank in ranks.items()}


def _rank(name: str, served: ServedRoute, reach: AdvertisedRoute) -> _Rank:
    """Rank a path, lowest is best. Ranks add up, so every part of a best path is a best path."""
    return reach.outages + (not served.up), len(reach.path), served.peer, -served.max_hops, name


def retain_former_routes(before: DynamicRoutes, after: DynamicRoutes) -> dict[str, FormerRoute]:
    """Return the last paths to remote sites that nobody advertises any more."""
    known = dict(before.former)
    for origin, name in choose_active_bridges(before).items():
        reach = before.served[name].reaches[origin]
        if len(reach.path) > 1:
            known[origin] = FormerRoute(bridge=name, wants=reach.wants)
    active = choose_active_bridges(after)
    return {
        origin: former for origin, former in known.items() if origin not in active and former.bridge in after.served
    }


def choose_bridges_in_use(routes: DynamicRoutes) -> BridgeByOrigin:
    """Return the bridges that messages take: the active ones, or else the former ones."""
    return {origin: former.bridge for origin, former in routes.former.items()} | dict(choose_active_bridges(routes))


def build_advertisement(routes: DynamicRoutes, pull: PulledRoute, ways: BridgeByOrigin) -> dict[str, AdvertisedRoute]:
    """Return the routes that are advertised to a bridge's source."""
    advertised = {
        routes.here: AdvertisedRoute(path=(routes.here,), hops_left=pull.max_hops, outages=0, wants=routes.local)
    }
    for origin, name in ways.items():
        served = routes.served[name]
        reach = served.reaches[origin]
        hops_left = min(reach.hops_left - 1, pull.max_hops)
        if pull.peer in reach.path or hops_left < 1 or len(reach.path) >= MAX_TRACE_TAGS:
            continue
        outages = reach.outages + (not served.up)
        path = (*reach.path, routes.here)
        advertised[origin] = AdvertisedRoute(path=path, hops_left=hops_left, outages=outages, wants=reach.wants)
    return advertised


# What others read


def find_origins(ways: BridgeByOrigin, name: str) -> Sites:
    """Return the sites that messages reach over a served bridge."""
    return frozenset(origin for origin, way in ways.items() if way == name)


def collect_advertised_bindings(routes: DynamicRoutes, name: str, ways: BridgeByOrigin) -> BindingAdvertisements:
    """Return the bindings for a served bridge's queue."""
    reaches = routes.served[name].reaches
    return NO_ADVERTISEMENTS.union(
        *((reaches.get(origin) or routes.former[origin]).wants for origin in find_origins(ways, name))
    )


def list_paths(routes: DynamicRoutes) -> list[PathView]:
    """Return all paths in order of origins, the best first."""
    best = choose_active_bridges(routes)
    candidates = [
        (origin, _rank(name, served, reach), reach)
        for name, served in routes.served.items()
        for origin, reach in served.reaches.items()
    ]
    return [
        PathView(
            exchange=routes.exchange,
            origin=origin,
            route=rank[-1],
            path=reach.path[::-1],
            outages=rank[0],
            wants=len(reach.wants),
            keys=tuple(sorted(want.key for want in reach.wants)[:MAX_KEYS]),
            active=best[origin] == rank[-1],
        )
        for origin, rank, reach in sorted(candidates, key=lambda path: path[:2])
    ]
