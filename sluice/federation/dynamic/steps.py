"""Dynamic routes of one exchange at one site: what an event changes, and what is told then. Pure: time comes in.

What is told follows from the state: ops may be lost, come twice or in any order.
"""

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from sluice.federation.dynamic.hearing import heard
from sluice.federation.dynamic.paths import former_ways
from sluice.federation.dynamic.state import (
    DynamicEvent,
    DynamicRoutes,
    DynamicStep,
    Heard,
    Heartbeat,
    LinkTurned,
    PullAdded,
    PullRemoved,
    Served,
    ServedAdded,
    ServedRemoved,
    Surveyed,
)
from sluice.federation.dynamic.telling import ask, greetings, hello, is_same_for_others, tell_changes

MAX_BEATS = 2  # in which sites agree on how an origin is reached, or that it isn't


def step(routes: DynamicRoutes, event: DynamicEvent) -> DynamicStep:
    """Return the state after the event, and what follows. Events that come twice change nothing."""
    taken = _taken(routes, event)
    if not is_same_for_others(routes, taken.routes):
        after = replace(taken.routes, former=former_ways(routes, taken.routes))
        taken = taken.then(tell_changes(routes, after))
    return taken.then(greetings(taken.routes)) if isinstance(event, Heartbeat) else taken


def _taken(routes: DynamicRoutes, event: DynamicEvent) -> DynamicStep:  # noqa: C901, PLR0911 - one case an event
    match event:
        case Surveyed(wants=wants):
            return DynamicStep(routes if wants == routes.local else replace(routes, local=wants))
        case PullAdded(pull=pull):
            known = routes.pulls.get(pull.bridge)
            if known is not None and known.epoch >= pull.epoch:
                return DynamicStep(routes)
            return hello(routes.with_pull(pull), pull)
        case PullRemoved(bridge=bridge):
            return DynamicStep(replace(routes, pulls=_without(routes.pulls, bridge)))
        case ServedAdded(served=served):
            return _served_added(routes, served)
        case ServedRemoved(name=name):
            return DynamicStep(replace(routes, served=_without(routes.served, name)))
        case LinkTurned():
            return DynamicStep(_link_turned(routes, event))
        case Heard():
            return heard(routes, event)
        case Heartbeat(now_ms=now_ms):
            aged = {origin: replace(each, beats=each.beats + 1) for origin, each in routes.former.items()}
            routes = replace(routes, former={origin: each for origin, each in aged.items() if each.beats <= MAX_BEATS})
            for served in routes.served.values():
                since_ms, expires_ms = served.down_since_ms, served.expires_ms
                if (
                    since_ms is not None
                    and expires_ms is not None
                    and served.reaches
                    and now_ms - since_ms >= expires_ms
                ):
                    # The peer is asked for everything when it comes back.
                    routes = routes.with_served(replace(served, reaches={}, version=(0, 0), partial=None))
            return DynamicStep(routes)


def _served_added(routes: DynamicRoutes, served: Served) -> DynamicStep:
    known = routes.served.get(served.name)
    if known is not None and known.epoch >= served.epoch:
        return DynamicStep(routes)
    if known is not None:  # what is wanted goes on to be, until the peer says otherwise
        served = replace(served, reaches=known.reaches, version=known.version, hello=known.hello)
    return ask(routes.with_served(served), served)


def _link_turned(routes: DynamicRoutes, event: LinkTurned) -> DynamicRoutes:
    for pull in routes.pulls.values():
        if pull.link == event.link and pull.up != event.up:
            routes = routes.with_pull(replace(pull, up=event.up))
    for served in routes.served.values():
        was_down_at_first = not served.up and served.down_since_ms is None
        if served.link == event.link and (served.up != event.up or was_down_at_first):
            since_ms = None if event.up else event.now_ms
            routes = routes.with_served(replace(served, up=event.up, down_since_ms=since_ms))
    return routes


def _without(mapping: Mapping[str, Any], key: str) -> dict[str, Any]:
    return {each: value for each, value in mapping.items() if each != key}
