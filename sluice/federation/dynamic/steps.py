"""Events of one exchange's dynamic routes: state changes, and the ops sent to peers. Pure: time is an argument.

Advertisements follow from the state. Ops may be lost, repeated or reordered. Because heartbeats carry a digest, a peer
that has missed an op notices this and requests a snapshot. An op from a peer is either applied, or ignored for a
reason.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Concatenate, ParamSpec

from msgspec.structs import replace

from sluice.errors import Malformed
from sluice.federation.dynamic import ops, state
from sluice.federation.dynamic.paths import build_advertisement, choose_active_bridges, retain_former_routes
from sluice.federation.links.registry import format_served_name
from sluice.federation.matching.exchanges import ExchangeType
from sluice.federation.matching.metadata import MAX_ORIGINS

MAX_HEARTBEATS = 2  # a former path is kept for this many heartbeats, until the sites agree on another path
MAX_ADVERTISEMENTS = 500_000  # a peer may advertise at most this many bindings over one bridge
MAX_CHANGES = 200  # more changes at once are sent as a snapshot instead of one by one


def step(routes: state.DynamicRoutes, event: state.DynamicEvent) -> state.DynamicStep:
    """Return the state after an event, with the ops to send. Repeated events have no effect."""
    taken = event(routes)
    greets = taken.sends_hello
    if not _advertises_same_routes(routes, taken.routes):
        after = replace(taken.routes, former=retain_former_routes(routes, taken.routes))
        taken = taken.then(_advertise_changes(routes, after))
    for name, pull in taken.routes.pulls.items() if greets else ():
        if pull.up:
            taken = taken.then(_send_hello(taken.routes, taken.routes.pulls[name]))
    return taken


P = ParamSpec("P")


def _define_event(
    make: Callable[Concatenate[state.DynamicRoutes, P], state.DynamicStep],
) -> Callable[P, state.DynamicEvent]:
    """Turn a function of routes and arguments into a function of the arguments only, which returns an event."""
    return lambda *args, **options: lambda routes: make(routes, *args, **options)


@_define_event
def set_local_bindings(routes: state.DynamicRoutes, advertisements: ops.BindingAdvertisements) -> state.DynamicStep:
    """Set the bindings of the site's own queues. Queues of dynamic bridges are excluded."""
    return state.DynamicStep(routes if advertisements == routes.local else replace(routes, local=advertisements))


@_define_event
def add_pull(routes: state.DynamicRoutes, pull: state.PulledRoute) -> state.DynamicStep:
    """Add a bridge over which this site pulls, unless the bridge is known with this or a later epoch."""
    known = routes.pulls.get(pull.bridge)
    if known is not None and known.epoch >= pull.epoch:
        return state.DynamicStep(routes)
    return _send_hello(routes.with_pull(pull), pull)


@_define_event
def remove_pull(routes: state.DynamicRoutes, bridge: str) -> state.DynamicStep:
    """Remove a bridge over which this site pulls."""
    return state.DynamicStep(
        replace(routes, pulls={name: pull for name, pull in routes.pulls.items() if name != bridge})
    )


@_define_event
def add_served(routes: state.DynamicRoutes, served: state.ServedRoute) -> state.DynamicStep:
    """Add a bridge over which a peer pulls, unless the bridge is known with this or a later epoch."""
    known = routes.served.get(served.name)
    if known is not None and known.epoch >= served.epoch:
        return state.DynamicStep(routes)
    if known is not None:  # the peer's last advertisements hold until the peer changes them
        served = replace(served, advertised_routes=known.advertised_routes, version=known.version, hello=known.hello)
    return _request_snapshot(routes.with_served(served), served)


@_define_event
def remove_served(routes: state.DynamicRoutes, name: str) -> state.DynamicStep:
    """Remove a bridge over which a peer pulls, by the bridge's local name."""
    return state.DynamicStep(
        replace(routes, served={key: served for key, served in routes.served.items() if key != name})
    )


@_define_event
def set_leads(routes: state.DynamicRoutes, name: str, leads: tuple[str, ...]) -> state.DynamicStep:
    """Set the patterns of the sites to which a served bridge may lead, by the rule of the bridge's peer."""
    served = routes.served[name]
    return state.DynamicStep(routes if served.leads == leads else routes.with_served(replace(served, leads=leads)))


@_define_event
def set_link_up(routes: state.DynamicRoutes, link: str, *, up: bool, now_ms: int) -> state.DynamicStep:
    """Record whether a link is up or down."""
    for pull in routes.pulls.values():
        if pull.link == link and pull.up != up:
            routes = routes.with_pull(replace(pull, up=up))
    for served in routes.served.values():
        was_down_at_first = not served.up and served.down_since_ms is None
        if served.link == link and (served.up != up or was_down_at_first):
            routes = routes.with_served(replace(served, up=up, down_since_ms=None if up else now_ms))
    return state.DynamicStep(routes)


@_define_event
def handle_heartbeat(routes: state.DynamicRoutes, now_ms: int) -> state.DynamicStep:
    """Remove expired routes, and request that hellos are sent to the peers."""
    aged = {origin: replace(former, heartbeats=former.heartbeats + 1) for origin, former in routes.former.items()}
    routes = replace(
        routes, former={origin: former for origin, former in aged.items() if former.heartbeats <= MAX_HEARTBEATS}
    )
    for served in routes.served.values():
        if served.down_since_ms is None or served.expires_ms is None or not served.advertised_routes:
            continue
        if now_ms - served.down_since_ms >= served.expires_ms:
            # Because the version is reset, the peer's next hello causes a request for a snapshot.
            routes = routes.with_served(replace(served, advertised_routes={}, version=(0, 0), partial=None))
    return state.DynamicStep(routes, sends_hello=True)


# The functions below process control messages from peers.


@_define_event
def receive_op(
    routes: state.DynamicRoutes, peer: str, op: ops.DynamicOp, type_: ExchangeType = ExchangeType.TOPIC
) -> state.DynamicStep:
    """Apply a peer's op if it is valid for this type of exchange. Request a snapshot if earlier ops are missing."""
    pull, served = routes.pulls.get(op.bridge), routes.served.get(format_served_name(op.bridge, peer))
    match op:
        case _ if op.exchange != routes.exchange:
            pass
        case ops.RequestSnapshot() if pull is not None and pull.peer == peer:
            version = (op.epoch, op.number)
            if version <= pull.last_request:
                return _ignore_old_op(routes, op, pull.last_request)
            pull = replace(pull, last_request=version)
            return state.DynamicStep(routes.with_pull(pull), _build_snapshot_ops(routes, pull))
        case ops.RouteHello() if served is not None:
            return _receive_hello(routes, served, op)
        case ops.SnapshotPart() if served is not None:
            return _receive_part(routes, served, op, type_)
        case ops.Bind() | ops.Unbind() if served is not None:
            return _receive_change(routes, served, op, type_)
    return state.DynamicStep(routes, ignored=state.IgnoredReason.UNKNOWN_BRIDGE)


def _ignore_old_op(routes: state.DynamicRoutes, op: ops.DynamicOp, known_version: ops.Version) -> state.DynamicStep:
    """Return a step that ignores an op, because the op isn't newer than the known version."""
    reason = state.IgnoredReason.EPOCH if op.epoch < known_version[0] else state.IgnoredReason.REPLAYED
    return state.DynamicStep(routes, ignored=reason)


def _receive_hello(routes: state.DynamicRoutes, served: state.ServedRoute, op: ops.RouteHello) -> state.DynamicStep:
    if (op.epoch, op.number) <= served.hello:
        return _ignore_old_op(routes, op, served.hello)
    served = replace(served, hello=(op.epoch, op.number))
    version = (op.epoch, op.sequence)
    if version < served.version:  # later ops have overtaken this hello
        return state.DynamicStep(routes.with_served(served))
    if version == served.version and op.digest == ops.compute_digest(served.advertised_routes):
        return state.DynamicStep(routes.with_served(replace(served, is_requested=False)))
    return _request_snapshot(routes, served)


def _receive_change(
    routes: state.DynamicRoutes, served: state.ServedRoute, op: ops.Bind | ops.Unbind, type_: ExchangeType
) -> state.DynamicStep:
    epoch, sequence = served.version
    if (op.epoch, op.sequence) <= served.version:
        return _ignore_old_op(routes, op, served.version)
    if op.epoch > epoch or op.sequence > sequence + 1:
        # Later ops are ignored until the snapshot arrives. If the request is lost, the next hello repeats it.
        requested = state.DynamicStep(routes) if served.is_requested else _request_snapshot(routes, served)
        return state.DynamicStep(
            requested.routes,
            requested.outgoing_ops,
            state.IgnoredReason.EPOCH if op.epoch > epoch else state.IgnoredReason.GAP,
        )
    known = served.advertised_routes.get(op.origin)
    advertised_routes, refused = dict(served.advertised_routes), None
    if isinstance(op, ops.Bind):
        advertisements = ops.NO_ADVERTISEMENTS if known is None else known.bindings
        if op.binding is not None and op.binding not in advertisements:
            advertisements |= {op.binding}
        advertised_routes[op.origin] = ops.AdvertisedRoute(
            path=op.path, hops_left=op.hops_left, outages=op.outages, bindings=advertisements
        )
        refused = _find_refusal(routes, served, advertised_routes, type_)
    elif op.binding is None:
        advertised_routes.pop(op.origin, None)
    elif known is not None:
        advertised_routes[op.origin] = replace(known, bindings=known.bindings - {op.binding})
    # A refused op still advances the version. Digests then reveal that the advertised routes differ.
    taken = replace(
        served,
        advertised_routes=served.advertised_routes if refused else advertised_routes,
        version=(epoch, op.sequence),
    )
    return state.DynamicStep(routes.with_served(taken), ignored=refused)


def _find_refusal(
    routes: state.DynamicRoutes,
    served: state.ServedRoute,
    advertised_routes: Mapping[str, ops.AdvertisedRoute],
    type_: ExchangeType,
) -> state.IgnoredReason | None:
    """Return the reason to refuse a peer's routes; None if the routes are valid."""
    if any(routes.here in advertised_route.path for advertised_route in advertised_routes.values()):
        return state.IgnoredReason.LOOP
    if any(
        advertised_route.path[-1] != served.peer or advertised_route.path[0] != origin
        for origin, advertised_route in advertised_routes.items()
    ):
        return state.IgnoredReason.MALFORMED
    number = sum(len(advertised_route.bindings) for advertised_route in advertised_routes.values())
    if len(advertised_routes) > MAX_ORIGINS or number > MAX_ADVERTISEMENTS:
        return state.IgnoredReason.LIMIT
    for origin, advertised_route in advertised_routes.items():
        known = served.advertised_routes.get(origin)
        new = _exclude_known(advertised_route.bindings, ops.NO_ADVERTISEMENTS if known is None else known.bindings)
        if not all(ops.is_bindable(advertisement, type_) for advertisement in new):
            return state.IgnoredReason.MALFORMED
    return None


def _receive_part(
    routes: state.DynamicRoutes, served: state.ServedRoute, op: ops.SnapshotPart, type_: ExchangeType
) -> state.DynamicStep:
    version = (op.epoch, op.sequence)
    is_next = version == (served.version[0], served.version[1] + 1)
    if version < served.version or not (served.is_requested or is_next):
        if version <= served.version:
            return _ignore_old_op(routes, op, served.version)
        requested = _request_snapshot(routes, served)  # a later snapshot that wasn't requested isn't applied
        reason = state.IgnoredReason.EPOCH if op.epoch > served.version[0] else state.IgnoredReason.GAP
        return state.DynamicStep(requested.routes, requested.outgoing_ops, reason)
    partial = served.partial
    if partial is None or version > partial.version or len(partial.parts) != op.parts:
        partial = state.PartialSnapshot(version=version, parts=(None,) * op.parts)
    if version < partial.version or partial.parts[op.part] is not None:
        return state.DynamicStep(routes, ignored=state.IgnoredReason.REPLAYED)
    parts = (*partial.parts[: op.part], op.data, *partial.parts[op.part + 1 :])
    if None in parts:
        partial = replace(partial, parts=parts)
        return state.DynamicStep(routes.with_served(replace(served, partial=partial)))
    served = replace(served, partial=None, is_requested=False)
    try:
        advertised_routes = ops.read_snapshot(part for part in parts if part is not None)
        refused = _find_refusal(routes, served, advertised_routes, type_)
    except Malformed:
        refused = state.IgnoredReason.MALFORMED
    if refused:
        return state.DynamicStep(routes.with_served(served), ignored=refused)
    # Unchanged routes keep their objects, because comparing an object with itself costs nothing.
    for origin, known in served.advertised_routes.items():
        advertised_route = advertised_routes.get(origin)
        if advertised_route is not None and advertised_route.bindings == known.bindings:
            advertised_route = replace(advertised_route, bindings=known.bindings)
            advertised_routes[origin] = known if known == advertised_route else advertised_route
    return state.DynamicStep(
        routes.with_served(replace(served, advertised_routes=advertised_routes, version=partial.version))
    )


def _send_hello(routes: state.DynamicRoutes, pull: state.PulledRoute) -> state.DynamicStep:
    """Return a step that sends the peer at the source a hello with the digest of the advertised routes."""
    pull = replace(pull, number=pull.number + 1)
    op = ops.RouteHello(
        exchange=routes.exchange,
        bridge=pull.bridge,
        epoch=pull.epoch,
        number=pull.number,
        sequence=pull.sequence,
        digest=ops.compute_digest(build_advertisement(routes, pull, choose_active_bridges(routes))),
    )
    return state.DynamicStep(routes.with_pull(pull), (state.OutgoingOp(pull.link, op),))


def _request_snapshot(routes: state.DynamicRoutes, served: state.ServedRoute) -> state.DynamicStep:
    """Return a step that requests a snapshot from the peer at the bridge's destination."""
    served = replace(served, is_requested=True, number=served.number + 1)
    op = ops.RequestSnapshot(exchange=routes.exchange, bridge=served.bridge, epoch=served.epoch, number=served.number)
    return state.DynamicStep(routes.with_served(served), (state.OutgoingOp(served.link, op),) if served.up else ())


def _build_snapshot_ops(routes: state.DynamicRoutes, pull: state.PulledRoute) -> tuple[state.OutgoingOp, ...]:
    """Return the ops that carry a snapshot of all advertised routes."""
    parts = ops.encode_snapshot(build_advertisement(routes, pull, choose_active_bridges(routes)))
    return tuple(
        state.OutgoingOp(
            pull.link,
            ops.SnapshotPart(
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


def _advertise_changes(before: state.DynamicRoutes, after: state.DynamicRoutes) -> state.DynamicStep:
    """Return a step that sends each peer the changes of the routes that are advertised to the peer."""
    step_so_far = state.DynamicStep(after)
    best_before, best = choose_active_bridges(before), choose_active_bridges(after)
    for name, pull in after.pulls.items():
        known = before.pulls.get(name)
        if known is None or known.epoch != pull.epoch:
            continue  # the hello of a new bridge leads to a snapshot
        changes = list(
            _diff_routes(build_advertisement(before, known, best_before), build_advertisement(after, pull, best))
        )
        step_so_far = step_so_far.then(_send_changes(step_so_far.routes, name, changes))
        if pull.up and not known.up:
            step_so_far = step_so_far.then(_send_hello(step_so_far.routes, step_so_far.routes.pulls[name]))
    return step_so_far


def _advertises_same_routes(before: state.DynamicRoutes, after: state.DynamicRoutes) -> bool:
    """Whether bindings, best paths and pulled bridges are all unchanged."""
    # Objects are compared by identity, because comparing their contents would cost more than it saves.
    if before.local is not after.local or before.served.keys() != after.served.keys():
        return False
    pulls = ({name: (pull.up, pull.epoch) for name, pull in routes.pulls.items()} for routes in (before, after))
    return next(pulls) == next(pulls) and all(
        (was := before.served[name]).advertised_routes is served.advertised_routes
        and (was.up, was.tag, was.max_hops, was.leads) == (served.up, served.tag, served.max_hops, served.leads)
        for name, served in after.served.items()
    )


# Origin, route and binding. A change without a route is a withdrawal. A change without a binding concerns the origin.
_AdvertisementChange = tuple[str, ops.AdvertisedRoute | None, ops.BindingAdvertisement | None]


def _diff_routes(
    before: Mapping[str, ops.AdvertisedRoute], after: Mapping[str, ops.AdvertisedRoute]
) -> Iterator[_AdvertisementChange]:
    for origin in sorted(before.keys() - after.keys()):
        yield origin, None, None
    for origin, advertised_route in sorted(after.items()):
        known = before.get(origin)
        known_bindings = ops.NO_ADVERTISEMENTS if known is None else known.bindings
        removed = _exclude_known(known_bindings, advertised_route.bindings)
        added = _exclude_known(advertised_route.bindings, known_bindings)
        yield from ((origin, None, advertisement) for advertisement in sorted(removed))
        if not added and (
            known is None
            or replace(known, bindings=ops.NO_ADVERTISEMENTS)
            != replace(advertised_route, bindings=ops.NO_ADVERTISEMENTS)
        ):
            yield origin, advertised_route, None
        yield from ((origin, advertised_route, advertisement) for advertisement in sorted(added))


def _exclude_known(bindings: ops.BindingAdvertisements, known: ops.BindingAdvertisements) -> ops.BindingAdvertisements:
    """Return the bindings that aren't among the known ones. If both arguments are one object, nothing is compared."""
    return ops.NO_ADVERTISEMENTS if bindings is known else bindings - known


def _send_changes(routes: state.DynamicRoutes, name: str, changes: Sequence[_AdvertisementChange]) -> state.DynamicStep:
    """Return a step that sends changes one by one, or many as a snapshot; it sends none while the link is down."""
    pull = routes.pulls[name]
    if not changes:
        return state.DynamicStep(routes)
    if not pull.up or len(changes) > MAX_CHANGES:
        pull = replace(pull, sequence=pull.sequence + 1)  # the peer notices the missing op at the next hello
        return state.DynamicStep(routes.with_pull(pull), _build_snapshot_ops(routes, pull) if pull.up else ())
    outgoing_ops = []
    for sequence, (origin, advertised_route, advertisement) in enumerate(changes, pull.sequence + 1):
        op_fields: dict[str, Any] = {"exchange": routes.exchange, "bridge": pull.bridge, "epoch": pull.epoch}
        op_fields |= {"sequence": sequence, "origin": origin, "binding": advertisement}
        if advertised_route is None:
            outgoing_ops.append(state.OutgoingOp(pull.link, ops.Unbind(**op_fields)))
        else:
            path, hops_left, outages = advertised_route.path, advertised_route.hops_left, advertised_route.outages
            bind = ops.Bind(**op_fields, path=path, hops_left=hops_left, outages=outages)
            outgoing_ops.append(state.OutgoingOp(pull.link, bind))
    return state.DynamicStep(
        routes.with_pull(replace(pull, sequence=pull.sequence + len(changes))), tuple(outgoing_ops)
    )
