"""Which way leads to whom, what is bound for it, and whose messages come by: all of that follows from the state. Pure.

How each message arrives once, in whatever topology:

- Each site wants things for its own queues: it is their *origin*. What it wants goes upstream over the bridges that
  pull, from site to site, with the path that it came.
- Who hears of an origin over several bridges has one *active* path to it: the one with the fewest links that are down,
  then the fewest hops, then the first tag of a peer (and of several bridges to one peer the one that allows the most
  hops, then the first by name). Only that is bound, and only that is told upstream. As each site
  chooses by the same rule, a part of an active path is the active path between its ends.
- Messages for several origins part somewhere, and a site where they meet again would send them on once more. So each
  source tells the destination, by origin, whose messages go over the bridge, and a destination that hears of a sender
  over another bridge lets this one exclude the sender's tag. Without such evidence nothing is excluded.
- Before another way becomes active, all sites along it have said that they exclude none of those who will use it. Until
  then the former one stays, so that what is published meanwhile may come twice, but isn't lost.

A bridge whose link is down counts as the last choice; where there is no other it stays bound, and its queue keeps.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from sluice.federation.dynamic.ops import NO_WANTS, Reach, Tags, Wants
from sluice.federation.dynamic.state import DynamicRoutes, Pull, Served
from sluice.federation.matching.tracing import MAX_TRACE_TAGS

Ways = Mapping[str, str]  # by origin, the name of the bridge that leads to it
InUse = frozenset[tuple[str, str]]  # origins with the bridges that carry for them, or are about to
_Rank = tuple[int, int, str, int, str]  # outages, hops, peer, hops that the bridge lacks, bridge


def best_ways(routes: DynamicRoutes) -> Ways:
    """Return the way to each origin that is known, as the rule has it. It is active once it is ready."""
    ranks: dict[str, _Rank] = {}
    for name, served in routes.served.items():
        for origin, reach in served.reaches.items():
            rank = _rank(name, served, reach)
            known = ranks.get(origin)
            if known is None or rank < known:
                ranks[origin] = rank
    return {origin: rank[-1] for origin, rank in ranks.items()}


def _rank(name: str, served: Served, reach: Reach) -> _Rank:
    """Rank a way: the least is the best. It adds up along a path, so that every part of a best path is a best path."""
    return reach.outages + (not served.up), len(reach.path), served.peer, -served.max_hops, name


def activated(routes: DynamicRoutes) -> Ways:
    """Return what is bound from now on: of each origin the best way, but the former one until the best is ready."""
    return {
        origin: best if _may_take_over(routes, origin, best) else routes.active[origin]
        for origin, best in best_ways(routes).items()
    }


def _may_take_over(routes: DynamicRoutes, origin: str, best: str) -> bool:
    former = routes.served.get(routes.active.get(origin, ""))
    if former is None or former.name == best or origin not in former.reaches:
        return True  # nobody else would do
    served = routes.served[best]
    if not served.up:
        return True  # what is published waits there, and nobody along the way can be heard
    return coming(routes, origin) <= served.ready_by(origin) - excludes_of(routes, best)


def coming(routes: DynamicRoutes, origin: str) -> Tags:
    """Return the tags of messages for the origin that are sent on from here."""
    passing = (pull.senders.get(origin, frozenset()) for pull in routes.pulls.values() if pull.up)
    return own_tags(routes).union(*passing)


def own_tags(routes: DynamicRoutes) -> Tags:
    """Those that messages get when they leave here."""
    return frozenset(each.tag for each in routes.served.values())


def ways_in_use(routes: DynamicRoutes, best: Ways) -> InUse:
    """Return the best ways, and those that are active meanwhile."""
    return frozenset(best.items()) | frozenset(routes.active.items())


def senders(routes: DynamicRoutes, name: str, used: InUse) -> dict[str, Tags]:
    """By origin, the tags of messages that go to it over this served bridge: this site's, and of those that pass."""
    return {origin: coming(routes, origin) for origin, way in used if way == name}


def told_to(routes: DynamicRoutes, pull: Pull, ways: Ways) -> dict[str, Reach]:
    """Return what the bridge's source is to know: the origins that are reached through here, and what they want."""
    found = {routes.here: Reach(path=(routes.here,), hops_left=pull.max_hops, outages=0, wants=routes.local)}
    for origin, name in ways.items():
        served = routes.served[name]
        reach = served.reaches[origin]
        hops_left = min(reach.hops_left - 1, pull.max_hops)
        if pull.peer in reach.path or hops_left < 1 or len(reach.path) >= MAX_TRACE_TAGS:
            continue
        outages = reach.outages + (not served.up)
        path = (*reach.path, routes.here)
        found[origin] = Reach(path=path, hops_left=hops_left, outages=outages, wants=reach.wants)
    return found


def ready_for(routes: DynamicRoutes, pull: Pull) -> dict[str, Tags]:
    """By origin, those of the bridge's senders whose messages nobody on the way from here on excludes."""
    found = {}
    for origin, tags in pull.senders.items():
        name = routes.active.get(origin)
        if origin == routes.here:
            found[origin] = tags
        elif name is not None:
            served = routes.served[name]
            # Behind a link that is down nobody can say so; messages wait there.
            ready = tags & served.ready_by(origin) if served.up else tags
            found[origin] = ready - excludes_of(routes, name)
    return found


def excluded_by(routes: DynamicRoutes, pull: Pull) -> Tags:
    """Return the tags of messages that come here by another bridge than this, and not by this, or that begin here."""
    others = (each for each in routes.pulls.values() if each.up and each.bridge != pull.bridge)
    tags = own_tags(routes).union(*(each.senders.get(routes.here, ()) for each in others))
    return tags - pull.senders.get(routes.here, frozenset())


# What others read


def wants_of(routes: DynamicRoutes, name: str) -> Wants:
    """Return what the queue of a served bridge is to be bound by now."""
    reaches = routes.served[name].reaches
    return NO_WANTS.union(*(reaches[origin].wants for origin, way in routes.active.items() if way == name))


def excludes_of(routes: DynamicRoutes, name: str) -> Tags:
    """Return the tags whose messages a served bridge doesn't take, beside those of its declaration."""
    served = routes.served[name]
    leads_there = bool(served.excludes) and (
        routes.active.get(served.peer) == name or best_ways(routes).get(served.peer) == name
    )
    # Who is to come by here now isn't held back until the peer has heard of it.
    return served.excludes - coming(routes, served.peer) if leads_there else served.excludes


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """How a site's messages reach an origin over a served bridge, and what that wants.

    `path` are the sites on the way, the next one first, the origin last.
    """

    origin: str
    bridge: str
    path: tuple[str, ...]
    outages: int
    wants: Wants
    active: bool


def ways_of(routes: DynamicRoutes) -> list[Way]:
    """All ways to all origins: in order of origins, the best one first, the others as they would take over."""
    found = [
        (origin, _rank(name, served, reach), reach)
        for name, served in routes.served.items()
        for origin, reach in served.reaches.items()
    ]
    return [
        Way(
            origin=origin,
            bridge=rank[-1],
            path=reach.path[::-1],
            outages=rank[0],
            wants=reach.wants,
            active=routes.active.get(origin) == rank[-1],
        )
        for origin, rank, reach in sorted(found, key=lambda each: each[:2])
    ]
