"""What becomes of what a peer says: each op is taken, or ignored for a reason. Pure."""

from collections.abc import Mapping

from msgspec.structs import replace

from sluice.errors import Malformed
from sluice.federation.dynamic.ops import (
    NO_WANTS,
    AskSnapshot,
    Bind,
    Reach,
    SnapshotPart,
    Unbind,
    Wanted,
    digest_of,
    is_bindable,
    read_snapshot,
)
from sluice.federation.dynamic.state import DynamicRoutes, DynamicStep, Heard, Ignored, Partial, Pull, Served
from sluice.federation.dynamic.telling import ask, snapshot
from sluice.federation.links.registry import served_name
from sluice.federation.matching.exchanges import ExchangeType
from sluice.federation.matching.tracing import MAX_ORIGINS

MAX_WANTS = 500_000  # of one origin


def heard(routes: DynamicRoutes, event: Heard) -> DynamicStep:
    """Return the state after the op, and the request for a snapshot where something is missing."""
    op = event.op
    if isinstance(op, AskSnapshot):
        pull = routes.pulls.get(op.bridge)
        if pull is not None and pull.peer == event.peer and op.exchange == routes.exchange:
            return _of_source(routes, pull, op)
    else:
        served = routes.served.get(served_name(op.bridge, event.peer))
        if served is not None and op.exchange == routes.exchange:
            return _of_destination(routes, served, op, event.type)
    return DynamicStep(routes, ignored=Ignored.UNKNOWN_BRIDGE)


def _of_source(routes: DynamicRoutes, pull: Pull, op: AskSnapshot) -> DynamicStep:
    version = (op.epoch, op.number)
    if version <= pull.heard:
        return DynamicStep(routes, ignored=Ignored.EPOCH if op.epoch < pull.heard[0] else Ignored.REPLAYED)
    pull = replace(pull, heard=version)
    return DynamicStep(routes.with_pull(pull), snapshot(routes, pull))


def _of_destination(
    routes: DynamicRoutes, served: Served, op: Wanted | Bind | Unbind | SnapshotPart, type_: ExchangeType
) -> DynamicStep:
    match op:
        case Wanted():
            return _hello(routes, served, op)
        case SnapshotPart():
            return _part(routes, served, op, type_)
        case Bind() | Unbind():
            return _change(routes, served, op, type_)


def _hello(routes: DynamicRoutes, served: Served, op: Wanted) -> DynamicStep:
    if (op.epoch, op.number) <= served.hello:
        return DynamicStep(routes, ignored=Ignored.EPOCH if op.epoch < served.hello[0] else Ignored.REPLAYED)
    served = replace(served, hello=(op.epoch, op.number))
    told = (op.epoch, op.sequence)
    if told < served.version:  # it was overtaken by later ops
        return DynamicStep(routes.with_served(served))
    if told == served.version and op.digest == digest_of(served.reaches):
        return DynamicStep(routes.with_served(replace(served, asked=False)))
    return ask(routes, served)


def _change(routes: DynamicRoutes, served: Served, op: Bind | Unbind, type_: ExchangeType) -> DynamicStep:
    epoch, sequence = served.version
    if op.epoch < epoch:
        return DynamicStep(routes, ignored=Ignored.EPOCH)
    if op.epoch > epoch or op.sequence > sequence + 1:
        # Whatever follows is ignored until the snapshot is there: one request is enough, and a hello repeats it.
        asked = DynamicStep(routes) if served.asked else ask(routes, served)
        return DynamicStep(asked.routes, asked.sendings, Ignored.EPOCH if op.epoch > epoch else Ignored.GAP)
    if op.sequence <= sequence:
        return DynamicStep(routes, ignored=Ignored.REPLAYED)
    known = served.reaches.get(op.origin)
    reaches, refused = dict(served.reaches), None
    if isinstance(op, Bind):
        wants = NO_WANTS if known is None else known.wants
        if op.want is not None and op.want not in wants:
            wants |= {op.want}
        reaches[op.origin] = Reach(path=op.path, hops_left=op.hops_left, outages=op.outages, wants=wants)
        refused = _refused(routes, served, reaches, type_)
    elif op.want is None:
        reaches.pop(op.origin, None)
    elif known is not None:
        reaches[op.origin] = replace(known, wants=known.wants - {op.want})
    # What can't be taken counts as heard: the digests tell.
    taken = replace(served, reaches=served.reaches if refused else reaches, version=(epoch, op.sequence))
    return DynamicStep(routes.with_served(taken), ignored=refused)


def _refused(
    routes: DynamicRoutes, served: Served, reaches: Mapping[str, Reach], type_: ExchangeType
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


def _part(routes: DynamicRoutes, served: Served, op: SnapshotPart, type_: ExchangeType) -> DynamicStep:
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


def _same_or(known: Reach | None, reach: Reach) -> Reach:
    if known is not None and known.wants == reach.wants:
        reach = replace(reach, wants=known.wants)
    return known if known is not None and known == reach else reach
