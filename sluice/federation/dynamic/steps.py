"""Dynamic routes of one exchange at one site: what an event changes, and what peers are told then. Pure: time comes in.

What is told follows from the state, and is told again with heartbeats, so that a peer that has missed something asks
for it: ops may be lost, come twice or in any order. What a peer says is taken, or ignored for a reason.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Concatenate, NamedTuple, ParamSpec

from msgspec.structs import replace

from sluice.errors import Malformed
from sluice.federation.dynamic.ops import (
    NO_WANTS,
    AdvertisedRoute,
    AskSnapshot,
    Bind,
    BindingAdvertisement,
    DynamicOp,
    SnapshotPart,
    Unbind,
    Wanted,
    Wants,
    digest_of,
    is_bindable,
    read_snapshot,
    snapshot_parts,
)
from sluice.federation.dynamic.paths import best_ways, former_ways, told_to
from sluice.federation.dynamic.state import (
    DynamicEvent,
    DynamicRoutes,
    DynamicStep,
    Ignored,
    Partial,
    Pull,
    Sending,
    Served,
)
from sluice.federation.links.registry import served_name
from sluice.federation.matching.exchanges import ExchangeType
from sluice.federation.matching.metadata import MAX_ORIGINS

MAX_BEATS = 2  # in which sites agree on how an origin is reached, or that it isn't
MAX_WANTS = 500_000  # of one origin
MAX_CHANGES = 200  # told one by one; more of them are told as a snapshot


def step(routes: DynamicRoutes, event: DynamicEvent) -> DynamicStep:
    """Return the state after the event, and what follows. Events that come twice change nothing."""
    taken = event(routes)
    greets = taken.greets
    if not _is_same_for_others(routes, taken.routes):
        after = replace(taken.routes, former=former_ways(routes, taken.routes))
        taken = taken.then(_tell_changes(routes, after))
    return taken.then(_greetings(taken.routes)) if greets else taken


P = ParamSpec("P")


def _event(make: Callable[Concatenate[DynamicRoutes, P], DynamicStep]) -> Callable[P, DynamicEvent]:
    """Let an event be described by all but the routes that it happens to."""
    return lambda *args, **options: lambda routes: make(routes, *args, **options)


@_event
def survey(routes: DynamicRoutes, wants: Wants) -> DynamicStep:
    """Take in what the site's queues are bound by, dynamic bridges' left out, whatever was known."""
    return DynamicStep(routes if wants == routes.local else replace(routes, local=wants))


@_event
def add_pull(routes: DynamicRoutes, pull: Pull) -> DynamicStep:
    """Add a bridge here that pulls; one that is known with this or a later epoch stays as it is."""
    known = routes.pulls.get(pull.bridge)
    if known is not None and known.epoch >= pull.epoch:
        return DynamicStep(routes)
    return _hello(routes.with_pull(pull), pull)


@_event
def remove_pull(routes: DynamicRoutes, bridge: str) -> DynamicStep:
    """Forget a bridge that pulled."""
    return DynamicStep(replace(routes, pulls=_without(routes.pulls, bridge)))


@_event
def add_served(routes: DynamicRoutes, served: Served) -> DynamicStep:
    """Add a bridge that a peer pulls by; one that is known with this or a later epoch stays as it is."""
    known = routes.served.get(served.name)
    if known is not None and known.epoch >= served.epoch:
        return DynamicStep(routes)
    if known is not None:  # what is wanted goes on to be, until the peer says otherwise
        served = replace(served, reaches=known.reaches, version=known.version, hello=known.hello)
    return _ask(routes.with_served(served), served)


@_event
def remove_served(routes: DynamicRoutes, name: str) -> DynamicStep:
    """Forget a peer's bridge, by what it was called here."""
    return DynamicStep(replace(routes, served=_without(routes.served, name)))


@_event
def turn_link(routes: DynamicRoutes, link: str, *, up: bool, now_ms: int) -> DynamicStep:
    """Note that a link carries, or doesn't any more."""
    for pull in routes.pulls.values():
        if pull.link == link and pull.up != up:
            routes = routes.with_pull(replace(pull, up=up))
    for served in routes.served.values():
        was_down_at_first = not served.up and served.down_since_ms is None
        if served.link == link and (served.up != up or was_down_at_first):
            routes = routes.with_served(replace(served, up=up, down_since_ms=None if up else now_ms))
    return DynamicStep(routes)


@_event
def beat(routes: DynamicRoutes, now_ms: int) -> DynamicStep:
    """Forget what has expired, and tell the peers how things stand."""
    aged = {origin: replace(each, beats=each.beats + 1) for origin, each in routes.former.items()}
    routes = replace(routes, former={origin: each for origin, each in aged.items() if each.beats <= MAX_BEATS})
    for served in routes.served.values():
        if served.down_since_ms is None or served.expires_ms is None or not served.reaches:
            continue
        if now_ms - served.down_since_ms >= served.expires_ms:
            # The peer is asked for everything when it comes back.
            routes = routes.with_served(replace(served, reaches={}, version=(0, 0), partial=None))
    return DynamicStep(routes, greets=True)


def _without(mapping: Mapping[str, Any], key: str) -> dict[str, Any]:
    return {each: value for each, value in mapping.items() if each != key}


# What a peer says


@_event
def hear(routes: DynamicRoutes, peer: str, op: DynamicOp, type_: ExchangeType = ExchangeType.TOPIC) -> DynamicStep:
    """Take in what a peer says; the exchange's type decides what can be wanted of it.

    Where something is missing a snapshot is asked for.
    """
    pull, served = routes.pulls.get(op.bridge), routes.served.get(served_name(op.bridge, peer))
    match op:
        case _ if op.exchange != routes.exchange:
            pass
        case AskSnapshot() if pull is not None and pull.peer == peer:
            return _answer(routes, pull, op)
        case Wanted() if served is not None:
            return _take_hello(routes, served, op)
        case SnapshotPart() if served is not None:
            return _take_part(routes, served, op, type_)
        case Bind() | Unbind() if served is not None:
            return _take_change(routes, served, op, type_)
    return DynamicStep(routes, ignored=Ignored.UNKNOWN_BRIDGE)


def _answer(routes: DynamicRoutes, pull: Pull, op: AskSnapshot) -> DynamicStep:
    version = (op.epoch, op.number)
    if version <= pull.heard:
        return DynamicStep(routes, ignored=Ignored.EPOCH if op.epoch < pull.heard[0] else Ignored.REPLAYED)
    pull = replace(pull, heard=version)
    return DynamicStep(routes.with_pull(pull), _snapshot(routes, pull))


def _take_hello(routes: DynamicRoutes, served: Served, op: Wanted) -> DynamicStep:
    if (op.epoch, op.number) <= served.hello:
        return DynamicStep(routes, ignored=Ignored.EPOCH if op.epoch < served.hello[0] else Ignored.REPLAYED)
    served = replace(served, hello=(op.epoch, op.number))
    told = (op.epoch, op.sequence)
    if told < served.version:  # it was overtaken by later ops
        return DynamicStep(routes.with_served(served))
    if told == served.version and op.digest == digest_of(served.reaches):
        return DynamicStep(routes.with_served(replace(served, asked=False)))
    return _ask(routes, served)


def _take_change(routes: DynamicRoutes, served: Served, op: Bind | Unbind, type_: ExchangeType) -> DynamicStep:
    epoch, sequence = served.version
    if op.epoch < epoch:
        return DynamicStep(routes, ignored=Ignored.EPOCH)
    if op.epoch > epoch or op.sequence > sequence + 1:
        # Whatever follows is ignored until the snapshot is there: one request is enough, and a hello repeats it.
        asked = DynamicStep(routes) if served.asked else _ask(routes, served)
        return DynamicStep(asked.routes, asked.sendings, Ignored.EPOCH if op.epoch > epoch else Ignored.GAP)
    if op.sequence <= sequence:
        return DynamicStep(routes, ignored=Ignored.REPLAYED)
    known = served.reaches.get(op.origin)
    reaches, refused = dict(served.reaches), None
    if isinstance(op, Bind):
        wants = NO_WANTS if known is None else known.wants
        if op.want is not None and op.want not in wants:
            wants |= {op.want}
        reaches[op.origin] = AdvertisedRoute(path=op.path, hops_left=op.hops_left, outages=op.outages, wants=wants)
        refused = _refused(routes, served, reaches, type_)
    elif op.want is None:
        reaches.pop(op.origin, None)
    elif known is not None:
        reaches[op.origin] = replace(known, wants=known.wants - {op.want})
    # What can't be taken counts as heard: the digests tell.
    taken = replace(served, reaches=served.reaches if refused else reaches, version=(epoch, op.sequence))
    return DynamicStep(routes.with_served(taken), ignored=refused)


def _refused(
    routes: DynamicRoutes, served: Served, reaches: Mapping[str, AdvertisedRoute], type_: ExchangeType
) -> Ignored | None:
    """Why a peer can't be believed."""
    if any(routes.here in reach.path for reach in reaches.values()):
        return Ignored.LOOP
    if any(reach.path[-1] != served.peer or reach.path[0] != origin for origin, reach in reaches.items()):
        return Ignored.MALFORMED
    if len(reaches) > MAX_ORIGINS or any(len(reach.wants) > MAX_WANTS for reach in reaches.values()):
        return Ignored.LIMIT
    for origin, reach in reaches.items():
        known = served.reaches.get(origin)
        new = reach.wants if known is None else reach.wants - known.wants if reach is not known else NO_WANTS
        if not all(is_bindable(want, type_) for want in new):
            return Ignored.MALFORMED
    return None


def _take_part(routes: DynamicRoutes, served: Served, op: SnapshotPart, type_: ExchangeType) -> DynamicStep:
    version = (op.epoch, op.sequence)
    if version < served.version or (version == served.version and not served.asked):
        return DynamicStep(routes, ignored=Ignored.EPOCH if op.epoch < served.version[0] else Ignored.REPLAYED)
    partial = served.partial
    if partial is None or version > partial.version or len(partial.parts) != op.parts:
        partial = Partial(version=version, parts=(None,) * op.parts)
    if version < partial.version or partial.parts[op.part] is not None:
        return DynamicStep(routes, ignored=Ignored.REPLAYED)
    parts = (*partial.parts[: op.part], op.data, *partial.parts[op.part + 1 :])
    if None in parts:
        partial = replace(partial, parts=parts)
        return DynamicStep(routes.with_served(replace(served, partial=partial)))
    served = replace(served, partial=None, asked=False)
    try:
        reaches = read_snapshot(part for part in parts if part is not None)
    except Malformed:
        return DynamicStep(routes.with_served(served), ignored=Ignored.MALFORMED)
    refused = _refused(routes, served, reaches, type_)
    if refused:
        return DynamicStep(routes.with_served(served), ignored=refused)
    # What is as it was stays the same object: comparing it later costs nothing.
    kept = {origin: _same_or(served.reaches.get(origin), reach) for origin, reach in reaches.items()}
    return DynamicStep(routes.with_served(replace(served, reaches=kept, version=partial.version)))


def _same_or(known: AdvertisedRoute | None, reach: AdvertisedRoute) -> AdvertisedRoute:
    if known is not None and known.wants == reach.wants:
        reach = replace(reach, wants=known.wants)
    return known if known is not None and known == reach else reach


# What is told


def _hello(routes: DynamicRoutes, pull: Pull) -> DynamicStep:
    """Tells the source how things stand."""
    pull = replace(pull, number=pull.number + 1)
    op = Wanted(
        exchange=routes.exchange,
        bridge=pull.bridge,
        epoch=pull.epoch,
        number=pull.number,
        sequence=pull.sequence,
        digest=digest_of(told_to(routes, pull, best_ways(routes))),
    )
    return DynamicStep(routes.with_pull(pull), (Sending(pull.link, op),))


def _ask(routes: DynamicRoutes, served: Served) -> DynamicStep:
    """Asks the destination for all that it wants."""
    served = replace(served, asked=True, number=served.number + 1)
    op = AskSnapshot(exchange=routes.exchange, bridge=served.bridge, epoch=served.epoch, number=served.number)
    return DynamicStep(routes.with_served(served), (Sending(served.link, op),) if served.up else ())


def _snapshot(routes: DynamicRoutes, pull: Pull) -> tuple[Sending, ...]:
    """Tells the source all that is wanted."""
    parts = snapshot_parts(told_to(routes, pull, best_ways(routes)))
    return tuple(
        Sending(
            pull.link,
            SnapshotPart(
                exchange=routes.exchange,
                bridge=pull.bridge,
                epoch=pull.epoch,
                sequence=pull.sequence,
                part=part,
                parts=len(parts),
                data=data,
            ),
        )
        for part, data in enumerate(parts)
    )


def _greetings(routes: DynamicRoutes) -> DynamicStep:
    """Say hello over every bridge whose link is up."""
    told = DynamicStep(routes)
    for pull in routes.pulls.values():
        if pull.up:
            told = told.then(_hello(told.routes, pull))
    return told


def _tell_changes(before: DynamicRoutes, after: DynamicRoutes) -> DynamicStep:
    """Tells each peer of what has changed for it."""
    told = DynamicStep(after)
    best_before, best = best_ways(before), best_ways(after)
    are_same = _are_wants_same(before, after)
    for name, pull in after.pulls.items():
        known = before.pulls.get(name)
        if known is None or known.epoch != pull.epoch:
            continue  # its hello has said it all
        if not are_same:
            changes = list(_changes(told_to(before, known, best_before), told_to(after, pull, best)))
            told = told.then(_tell_wants(told.routes, name, changes))
        if pull.up and not known.up:
            told = told.then(_hello(told.routes, told.routes.pulls[name]))
    return told


def _is_same_for_others(before: DynamicRoutes, after: DynamicRoutes) -> bool:
    """Whether nothing has changed that anyone is told of."""
    if not _are_wants_same(before, after) or before.pulls.keys() != after.pulls.keys():
        return False
    return all(
        (known := before.pulls[name]).up is pull.up and known.epoch == pull.epoch for name, pull in after.pulls.items()
    )


def _are_wants_same(before: DynamicRoutes, after: DynamicRoutes) -> bool:
    """Whether neither what is wanted nor the best ways to where have changed."""
    # Comparing what they are, and not whether they are the same, would cost more than it saves.
    if before.local is not after.local or before.served.keys() != after.served.keys():
        return False
    return all(
        (was := before.served[name]).reaches is served.reaches
        and (was.up, was.tag, was.max_hops) == (served.up, served.tag, served.max_hops)
        for name, served in after.served.items()
    )


class _News(NamedTuple):
    """Of what is told of an origin: `reach` None for what is wanted no more, `want` None for the origin itself."""

    origin: str
    reach: AdvertisedRoute | None
    want: BindingAdvertisement | None


def _changes(before: Mapping[str, AdvertisedRoute], after: Mapping[str, AdvertisedRoute]) -> Iterator[_News]:
    for origin in sorted(before.keys() - after.keys()):
        yield _News(origin, None, None)
    for origin, reach in sorted(after.items()):
        known = before.get(origin)
        wanted = NO_WANTS if known is None else known.wants
        removed = NO_WANTS if wanted is reach.wants else wanted - reach.wants
        added = NO_WANTS if wanted is reach.wants else reach.wants - wanted
        yield from (_News(origin, None, want) for want in sorted(removed))
        if not added and (known is None or replace(known, wants=NO_WANTS) != replace(reach, wants=NO_WANTS)):
            yield _News(origin, reach, None)
        yield from (_News(origin, reach, want) for want in sorted(added))


def _tell_wants(routes: DynamicRoutes, name: str, changes: Sequence[_News]) -> DynamicStep:
    """Tells the changes one by one, or all that is wanted where they are many, or nothing over a link that is down."""
    pull = routes.pulls[name]
    if not changes:
        return DynamicStep(routes)
    if not pull.up or len(changes) > MAX_CHANGES:
        pull = replace(pull, sequence=pull.sequence + 1)  # who has missed it asks at the next hello
        return DynamicStep(routes.with_pull(pull), _snapshot(routes, pull) if pull.up else ())
    sendings = []
    for sequence, (origin, reach, want) in enumerate(changes, pull.sequence + 1):
        common: dict[str, Any] = {"exchange": routes.exchange, "bridge": pull.bridge, "epoch": pull.epoch}
        common |= {"sequence": sequence, "origin": origin, "want": want}
        if reach is None:
            sendings.append(Sending(pull.link, Unbind(**common)))
        else:
            way: dict[str, Any] = {"path": reach.path, "hops_left": reach.hops_left, "outages": reach.outages}
            sendings.append(Sending(pull.link, Bind(**common, **way)))
    return DynamicStep(routes.with_pull(replace(pull, sequence=pull.sequence + len(changes))), tuple(sendings))
