"""State changes of a site's links and bridges. Pure: time and jitter are arguments.

The function `apply` applies a change to the registry. Late or repeated changes have no effect.
"""

import re
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any, Concatenate, NamedTuple, ParamSpec

from msgspec import UnsetType
from msgspec.structs import replace

from sluice.codec import encode
from sluice.errors import BadRoute
from sluice.federation.links.due import is_unfinished
from sluice.federation.links.links import Address, Bridge, Link, check_bridge, check_link
from sluice.federation.links.messages import MAX_PULLS
from sluice.federation.links.registry import SERVED_MARK, BridgeRecord, LinkRecord, Registry, format_served_name
from sluice.federation.links.states import (
    AccessRefused,
    Command,
    Intent,
    LinkEvent,
    LinkUpdate,
    Unreachable,
    should_notify_peer,
    step,
)

MAX_LINKS_OF_A_PEER = 16
MAX_ROUTES_OF_A_PEER = 2_000  # one peer may pull at most this many routes from this site
MAX_PULLS_BYTES = 800 * 1024  # limit of a link's pulled bridges as JSON; a whole hello is at most 1 MiB
MAX_NAME_CHARACTERS = 128  # limit of a link's or route's name; a link's name is a message group id
NAME = re.compile(rf"[!-~]{{1,{MAX_NAME_CHARACTERS}}}")


class ChangeTime(NamedTuple):
    """The time of a change in ms since the epoch, and a random number from 0 to 1 as jitter."""

    ms: int
    jitter: float


P = ParamSpec("P")
Change = Callable[[Registry, ChangeTime], Registry]


def apply(registry: Registry, change: Change, *, now_ms: int, jitter: float) -> Registry:
    """Return the registry after a change and the change's consequences. Raises `BadRoute` if the change is invalid."""
    registry = change(registry, ChangeTime(now_ms, jitter))
    for name, record in registry.links.items():
        if not record.status.is_ending:
            continue
        for bridge_record in registry.list_bridges(name):  # a closing link closes its bridges
            registry = _update_bridge(registry, bridge_record.bridge.name, intent=Intent.CLOSED)
    return registry


def _define_timed_change(make: Callable[Concatenate[Registry, ChangeTime, P], Registry]) -> Callable[P, Change]:
    """Turn a function of registry, time and arguments into a function of the arguments only, which returns a change."""
    return lambda *args, **options: lambda registry, now: make(registry, now, *args, **options)


def _define_change(make: Callable[Concatenate[Registry, P], Registry]) -> Callable[P, Change]:
    """Turn a function of registry and arguments into a function of the arguments only, which returns a change."""
    return lambda *args, **options: lambda registry, _: make(registry, *args, **options)


# The functions below return changes of bridges' resources.


@_define_change
def record_resources(
    registry: Registry,
    /,
    bridge: str,
    *,
    error: str | None = None,
    made_for: Bridge | None = None,
    **resources: str | bool | UnsetType,
) -> Registry:
    """Record a bridge's `queue`, `mapping`, `on`, `bound` and `changed`. Fields that aren't passed keep their values.

    An empty queue or mapping means that the resource is missing. If the bridge no longer has the options of `made_for`,
    for which the resources were created, it is marked as changed.
    """
    registry = _update_bridge(
        registry, bridge, **{name: None if value == "" else value for name, value in resources.items()}
    )
    # Another invocation may have created a resource that this invocation failed to create.
    registry = _update_bridge(registry, bridge, error=error if is_unfinished(registry, bridge) else None)
    record = registry.bridges.get(bridge)
    is_outdated = record is not None and made_for is not None and made_for != record.bridge
    return _update_bridge(registry, bridge, changed=True) if is_outdated else registry


@_define_timed_change
def record_count(registry: Registry, now: ChangeTime, /, bridge: str, messages: int, **mapping: bool) -> Registry:
    """Record how many messages a closing or draining bridge's queue has, and whether the mapping is `on`."""
    record = registry.bridges.get(bridge)
    since_ms = now.ms if record is None or record.empty_since_ms is None else record.empty_since_ms
    return _update_bridge(registry, bridge, empty_since_ms=None if messages else since_ms, **mapping)


def _update_bridge(registry: Registry, bridge: str, **changes: Any) -> Registry:
    """Update fields of a bridge's record, if the bridge exists."""
    record = registry.bridges.get(bridge)
    if record is None:
        return registry
    changed = replace(record, **changes)
    is_new_end = changed.closing and not record.closing
    registry = registry.with_bridge(changed)
    return _request_hello(registry, changed.bridge) if is_new_end else registry


def _request_hello(registry: Registry, bridge: Bridge) -> Registry:
    """Record that the bridge's link has to send a hello, if the bridge pulls."""
    link = registry.links.get(bridge.link)
    return registry if bridge.src_is_local or link is None else registry.with_link(replace(link, hello_due=True))


# The functions below return changes that operators request.


@_define_change
def add_link(registry: Registry, link: Link, *, declared: bool = False) -> Registry:
    """Add a link that an operator or the deployed configuration declares."""
    existing = registry.links.get(link.name)
    if existing is not None and existing.link == link:
        return registry
    if SERVED_MARK in link.name:
        raise BadRoute(f"{link.name}: {SERVED_MARK} is for links that a peer asked for")
    # Two links between the same sites may exist side by side: one that the peer declared, and one declared here.
    check_link(link, here=registry.here, existing=[link_record.link for link_record in registry.links.values()])
    return registry.with_link(LinkRecord(link=link, declared=declared))


@_define_change
def add_bridge(registry: Registry, bridge: Bridge, *, declared: bool = False) -> Registry:
    """Add a bridge that an operator or the deployed configuration declares."""
    existing = registry.bridges.get(bridge.name)
    if existing is not None and existing.bridge == bridge and not existing.closing:
        return registry
    if SERVED_MARK in bridge.name:
        raise BadRoute(f"{bridge.name}: {SERVED_MARK} is for routes that a peer asked for")
    links = [
        link_record.link
        for link_record in registry.links.values()
        if not link_record.served and not link_record.status.is_ending
    ]
    check_bridge(bridge, links=links, existing=[bridge_record.bridge for bridge_record in registry.bridges.values()])
    registry = registry.with_bridge(BridgeRecord(bridge=bridge, declared=declared))
    return _request_hello(_check_pulls(registry, bridge.link), bridge)


@_define_change
def change_bridge(registry: Registry, bridge: Bridge) -> Registry:
    """Change a bridge's options in place. A paused bridge stays paused."""
    record = registry.bridges.get(bridge.name)
    if record is None or record.closing:
        raise BadRoute(f"{bridge.name}: no such route, or it is about to go")
    if record.served:
        raise BadRoute(f"{bridge.name}: its destination site requested it: change it there")
    if not record.bridge.can_become(bridge):
        raise BadRoute(f"{bridge.name}: source, destination, key and queue of a route can't change: add another route")
    if bridge == record.bridge:
        return registry
    check_bridge(bridge, links=[link_record.link for link_record in registry.links.values()], existing=())
    link = registry.links[bridge.link]
    if not bridge.src_is_local:  # the peer hasn't reported the changed bridge's state yet
        remote = {name: state for name, state in link.remote.items() if name != bridge.name}
        registry = registry.with_link(replace(link, remote=remote))
    registry = _check_pulls(registry.with_bridge(record.with_options(bridge)), bridge.link)
    return _request_hello(registry, bridge)


def _check_pulls(registry: Registry, link: str) -> Registry:
    """Check that the link's pulled bridges fit into a hello. Returns the registry. Raises `BadRoute` if they don't."""
    pulls = [pull.bridge for pull in registry.list_bridges(link) if not (pull.bridge.src_is_local or pull.closing)]
    if len(pulls) > MAX_PULLS:
        raise BadRoute(f"{link}: {len(pulls)} routes are pulled over this link, more than {MAX_PULLS}: add a link")
    if (size := len(encode(pulls))) > MAX_PULLS_BYTES:
        raise BadRoute(f"{link}: this link's routes have {size} bytes, more than {MAX_PULLS_BYTES}: add a link")
    return registry


@_define_change
def command_bridge(registry: Registry, name: str, command: Command) -> Registry:
    """Pause, drain or resume a bridge."""
    record = registry.bridges.get(name)
    if record is None or record.closing:
        return registry
    intent = {Command.PAUSE: Intent.PAUSED, Command.DRAIN: Intent.DRAINING}.get(command, Intent.OPEN)
    return _request_hello(_update_bridge(registry, name, intent=intent, empty_since_ms=None), record.bridge)


@_define_change
def close_bridge(registry: Registry, name: str) -> Registry:
    """Close a bridge. Its messages are forwarded first, if the link is up."""
    return _update_bridge(registry, name, intent=Intent.CLOSED)


# The functions below return changes of links.


@_define_timed_change
def update_link(registry: Registry, now: ChangeTime, name: str, update: LinkUpdate) -> Registry:
    """Apply an update to a link, and record whether a hello is due."""
    record = registry.links.get(name)
    if record is None:
        return registry
    before, endpoints = record.status, len(record.link.endpoints)
    after = step(before, update, endpoints=endpoints, now_ms=now.ms, jitter=now.jitter)
    hello_due = record.hello_due or should_notify_peer(before, after, served=record.served)
    registry = registry.with_link(replace(record, status=after, hello_due=hello_due))
    if record.status.is_ending and isinstance(update, Unreachable | AccessRefused):
        # The peer can't be reached, so the messages of closing bridges become dead letters.
        for bridge_record in registry.list_bridges(name):
            registry = _update_bridge(registry, bridge_record.bridge.name, on=False, error=update.error)
    return registry


@_define_change
def remove_link(registry: Registry, name: str) -> Registry:
    """Remove a closing link that has no bridges left."""
    record = registry.links.get(name)
    if record is None or not record.status.is_ending or registry.list_bridges(name):
        return registry
    return replace(registry, links={key: link for key, link in registry.links.items() if key != name})


@_define_timed_change
def remove_bridge(registry: Registry, now: ChangeTime, name: str) -> Registry:
    """Remove a bridge whose resources are deleted."""
    record = registry.bridges.get(name)
    if record is None:
        return registry
    link = record.bridge.link
    registry = replace(registry, bridges={key: other for key, other in registry.bridges.items() if key != name})
    for other in registry.list_readers(record.queue or ""):  # these bridges shared a mapping with the removed bridge
        registry = _update_bridge(registry, other.bridge.name, changed=True)
    if link in registry.links and not registry.links[link].link.durable and not registry.list_bridges(link):
        return update_link(link, LinkEvent.CLOSE)(registry, now)
    return registry


@_define_change
def record_hello_sent(registry: Registry, link: str) -> Registry:
    """Record that a link's hello was sent."""
    record = registry.links.get(link)
    return registry if record is None else registry.with_link(replace(record, hello_due=False))


@_define_timed_change
def accept_answer(
    registry: Registry,
    now: ChangeTime,
    link: str,
    *,
    peer: Address,
    exchanges: Mapping[str, str],
    bridges: Mapping[str, str],
    own_exchanges: Mapping[str, str],
) -> Registry:
    """Process a peer's answer to a hello: its address, exchanges, and the states of pulled bridges.

    `exchanges` and `own_exchanges` map names of exchanges to types.
    """
    record = registry.links.get(link)
    if record is None:
        return registry
    if peer.tag != record.link.peer:
        reason = f"the site there has the tag {peer.tag}, not {record.link.peer}"
        return update_link(link, AccessRefused(reason))(registry, now)
    answered = replace(record, address=peer, exchanges=dict(exchanges), remote=dict(bridges))
    registry = registry.with_link(answered)
    for bridge_record in registry.list_bridges(link):
        bridge = bridge_record.bridge
        if not bridge.dynamic or bridge.src_is_local or bridge_record.closing:
            continue
        # If the exchanges' types differ, the route fails, because bindings have another meaning at the peer.
        # A new hello tells the peer that this site pulls no messages over failed routes.
        remote_type, here, error = exchanges.get(bridge.src), own_exchanges.get(bridge.dest), None
        if remote_type is not None and here is not None and remote_type != here:
            ends = f"{bridge.src} is {remote_type} at {peer.tag}, {here} at {registry.here}"
            error = f"{ends}: a dynamic route needs one type"
        if error != bridge_record.error:
            registry = _request_hello(_update_bridge(registry, bridge.name, error=error), bridge)
    return update_link(link, LinkEvent.ANSWERED)(registry, now)


# The functions below return changes that peers request.


@_define_timed_change
def accept_hello(
    registry: Registry,
    now: ChangeTime,
    link: str,
    *,
    peer: Address,
    pulls: Sequence[Bridge] = (),
    paused: Container[str] = (),
    draining: bool = False,
) -> Registry:
    """Process a peer's hello over its link. `pulls` are the pulls that the peer's rules permit."""
    _check_hello(registry, link, peer, pulls)
    name = format_served_name(link, peer.tag)
    over = Link.to_peer(peer, name=name)
    known = registry.links.get(name)
    record = LinkRecord(link=over, served=True, address=peer)
    if known is not None and not known.status.is_ending:
        record = replace(known, link=over, address=peer)
    registry = registry.with_link(record)
    for update in (Command.RETRY, LinkEvent.ANSWERED):  # the hello proves that the peer is reachable
        registry = update_link(name, update)(registry, now)
    registry = registry.with_link(replace(registry.links[name], hello_due=False))  # an answer is sent instead
    pulled = {format_served_name(pull.name, peer.tag): pull for pull in pulls}
    for bridge_record in registry.list_bridges(name):
        if bridge_record.bridge.name not in pulled:
            registry = _update_bridge(registry, bridge_record.bridge.name, intent=Intent.CLOSED)
    for served_name, pull in pulled.items():
        bridge = replace(pull, name=served_name, link=name, src_is_local=True)
        registry = _serve_pull(registry, bridge, Intent.PAUSED if pull.name in paused else Intent.OPEN)
    if registry.links[name].status.draining != draining:
        registry = update_link(name, Command.DRAIN if draining else Command.RESUME)(registry, now)
    return registry


def _check_hello(registry: Registry, link: str, peer: Address, requested_routes: Sequence[Bridge]) -> None:
    """Check the link and the pulls of a hello. Raises `BadRoute` if they are invalid."""
    served = {
        name for name, link_record in registry.links.items() if link_record.served and link_record.link.peer == peer.tag
    }
    others = served - {format_served_name(link, peer.tag)}
    if len(others) >= MAX_LINKS_OF_A_PEER:
        raise BadRoute(f"{peer.tag}: has {len(served)} links here, as many as a peer may have")
    routes = len(requested_routes) + sum(record.bridge.link in others for record in registry.bridges.values())
    if routes > MAX_ROUTES_OF_A_PEER:
        raise BadRoute(f"{peer.tag}: pulls {routes} routes here, more than {MAX_ROUTES_OF_A_PEER}")
    wrong = [name for name in (link, *(pull.name for pull in requested_routes)) if not NAME.fullmatch(name)]
    if wrong:
        raise BadRoute(f"{wrong[0][:MAX_NAME_CHARACTERS]!r}: a name is 1 to {MAX_NAME_CHARACTERS} printable characters")
    over = Link.to_peer(peer, name=link)
    pulls = [replace(pull, link=over.name) for pull in requested_routes]
    for pull in pulls:
        if pull.src_is_local:
            raise BadRoute(f"{pull.name}: the route isn't pulled, but a hello lists it")
        check_bridge(pull, links=[over], existing=())
    if len({pull.name for pull in pulls}) < len(pulls) or len({pull.identity for pull in pulls}) < len(pulls):
        raise BadRoute("a duplicate route is asked for")


def _serve_pull(registry: Registry, bridge: Bridge, intent: Intent) -> Registry:
    """Add or update the bridge that serves a peer's pull."""
    known = registry.bridges.get(bridge.name)
    if known is None:
        return registry.with_bridge(BridgeRecord(bridge=bridge, served=True, intent=intent))
    if known.closing:
        return registry  # once this bridge is removed, a later hello creates it again
    if not known.bridge.can_become(bridge):
        return _update_bridge(registry, bridge.name, intent=Intent.CLOSED)
    becoming = known if known.bridge == bridge else known.with_options(bridge)
    return registry.with_bridge(replace(becoming, intent=intent))
