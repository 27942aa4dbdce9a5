"""What is told to peers: how things stand, with each heartbeat, and every change of what is wanted. Pure.

All of it follows from the state, and is told again with heartbeats in such a form that who has missed something asks.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from sluice.federation.dynamic.ops import (
    NO_WANTS,
    AskSnapshot,
    Bind,
    Reach,
    SnapshotPart,
    Unbind,
    Want,
    Wanted,
    digest_of,
    snapshot_parts,
)
from sluice.federation.dynamic.paths import best_ways, told_to
from sluice.federation.dynamic.state import DynamicRoutes, DynamicStep, Pull, Sending, Served

MAX_CHANGES = 200  # told one by one; more of them are told as a snapshot


def hello(routes: DynamicRoutes, pull: Pull) -> DynamicStep:
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


def ask(routes: DynamicRoutes, served: Served) -> DynamicStep:
    """Asks the destination for all that it wants."""
    served = replace(served, asked=True, number=served.number + 1)
    op = AskSnapshot(exchange=routes.exchange, bridge=served.bridge, epoch=served.epoch, number=served.number)
    return DynamicStep(routes.with_served(served), (Sending(served.link, op),) if served.up else ())


def snapshot(routes: DynamicRoutes, pull: Pull) -> tuple[Sending, ...]:
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


def greetings(routes: DynamicRoutes) -> DynamicStep:
    """Say hello over every bridge whose link is up."""
    told = DynamicStep(routes)
    for pull in routes.pulls.values():
        if pull.up:
            told = told.then(hello(told.routes, pull))
    return told


def tell_changes(before: DynamicRoutes, after: DynamicRoutes) -> DynamicStep:
    """Tells each peer of what has changed for it."""
    told = DynamicStep(after)
    best_before, best = best_ways(before), best_ways(after)
    are_same = are_wants_same(before, after)
    for name, pull in after.pulls.items():
        known = before.pulls.get(name)
        if known is None or known.epoch != pull.epoch:
            continue  # its hello has said it all
        if not are_same:
            changes = list(_changes(told_to(before, known, best_before), told_to(after, pull, best)))
            told = told.then(_tell_wants(told.routes, name, changes))
        if pull.up and not known.up:
            told = told.then(hello(told.routes, told.routes.pulls[name]))
    return told


def is_same_for_others(before: DynamicRoutes, after: DynamicRoutes) -> bool:
    """Whether nothing has changed that anyone is told of."""
    if not are_wants_same(before, after) or before.pulls.keys() != after.pulls.keys():
        return False
    return all(
        (known := before.pulls[name]).up is pull.up and known.epoch == pull.epoch for name, pull in after.pulls.items()
    )


def are_wants_same(before: DynamicRoutes, after: DynamicRoutes) -> bool:
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
    reach: Reach | None
    want: Want | None


def _changes(before: Mapping[str, Reach], after: Mapping[str, Reach]) -> Iterator[_News]:
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
        return DynamicStep(routes.with_pull(pull), snapshot(routes, pull) if pull.up else ())
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
