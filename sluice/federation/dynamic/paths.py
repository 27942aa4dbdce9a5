"""Which way leads to whom, what is bound for it, and whose messages come by: all of that follows from the state. Pure.

How each message arrives once, in whatever topology, also while that changes:

- Each site wants things for its own queues: it is their *origin*. What it wants goes upstream over the bridges that
  pull, from site to site, with the path that it came.
- Who hears of an origin over several bridges has one *active* path to it: the one with the fewest links that are down,
  then the fewest hops, then the first tag of a peer (and of several bridges to one peer the one that allows the most
  hops, then the first by name). Only that is bound, and only that is told upstream. As each site
  chooses by the same rule, a part of an active path is the active path between its ends.
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

from sluice.federation.dynamic.ops import NO_WANTS, AdvertisedRoute, Wants
from sluice.federation.dynamic.state import DynamicRoutes, Former, Pull, Served
from sluice.federation.matching.metadata import MAX_TRACE_TAGS, Sites
from sluice.federation.operations import WayView

MAX_KEYS = 100  # shown of a way; all are counted
Ways = Mapping[str, str]  # by origin, the name of the bridge that leads to it
_Rank = tuple[int, int, str, int, str]  # outages, hops, peer, hops that the bridge lacks, bridge


def best_ways(routes: DynamicRoutes) -> Ways:
    """Return the active way to each origin that is known."""
    ranks: dict[str, _Rank] = {}
    for name, served in routes.served.items():
        for origin, reach in served.reaches.items():
            rank = _rank(name, served, reach)
            known = ranks.get(origin)
            if known is None or rank < known:
                ranks[origin] = rank
    return {origin: rank[-1] for origin, rank in ranks.items()}


def _rank(name: str, served: Served, reach: AdvertisedRoute) -> _Rank:
    """Rank a way: the least is the best. It adds up along a path, so that every part of a best path is a best path."""
    return reach.outages + (not served.up), len(reach.path), served.peer, -served.max_hops, name


def former_ways(before: DynamicRoutes, after: DynamicRoutes) -> dict[str, Former]:
    """Keep the last ways to those sites behind others that nobody leads to any more."""
    known = dict(before.former)
    for origin, name in best_ways(before).items():
        reach = before.served[name].reaches[origin]
        if len(reach.path) > 1:
            known[origin] = Former(bridge=name, wants=reach.wants)
    found = best_ways(after)
    return {origin: each for origin, each in known.items() if origin not in found and each.bridge in after.served}


def ways_in_use(routes: DynamicRoutes) -> Ways:
    """Return the ways that messages take: the active ones, and the former ones where there is none."""
    return {origin: each.bridge for origin, each in routes.former.items()} | dict(best_ways(routes))


def told_to(routes: DynamicRoutes, pull: Pull, ways: Ways) -> dict[str, AdvertisedRoute]:
    """Return what the bridge's source is to know: the origins that are reached through here, and what they want."""
    found = {routes.here: AdvertisedRoute(path=(routes.here,), hops_left=pull.max_hops, outages=0, wants=routes.local)}
    for origin, name in ways.items():
        served = routes.served[name]
        reach = served.reaches[origin]
        hops_left = min(reach.hops_left - 1, pull.max_hops)
        if pull.peer in reach.path or hops_left < 1 or len(reach.path) >= MAX_TRACE_TAGS:
            continue
        outages = reach.outages + (not served.up)
        path = (*reach.path, routes.here)
        found[origin] = AdvertisedRoute(path=path, hops_left=hops_left, outages=outages, wants=reach.wants)
    return found


# What others read


def origins_of(ways: Ways, name: str) -> Sites:
    """Return the sites that messages reach over a served bridge now."""
    return frozenset(origin for origin, way in ways.items() if way == name)


def wants_of(routes: DynamicRoutes, name: str, ways: Ways) -> Wants:
    """Return what the queue of a served bridge is to be bound by now."""
    reaches = routes.served[name].reaches
    return NO_WANTS.union(
        *((reaches.get(origin) or routes.former[origin]).wants for origin in origins_of(ways, name)),
    )


def ways_of(routes: DynamicRoutes) -> list[WayView]:
    """All ways to all origins: in order of origins, the best one first, the others as they would take over."""
    best = best_ways(routes)
    found = [
        (origin, _rank(name, served, reach), reach)
        for name, served in routes.served.items()
        for origin, reach in served.reaches.items()
    ]
    return [
        WayView(
            exchange=routes.exchange,
            origin=origin,
            route=rank[-1],
            path=reach.path[::-1],
            outages=rank[0],
            wants=len(reach.wants),
            keys=tuple(sorted(want.key for want in reach.wants)[:MAX_KEYS]),
            active=best[origin] == rank[-1],
        )
        for origin, rank, reach in sorted(found, key=lambda each: each[:2])
    ]
