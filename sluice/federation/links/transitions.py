"""What becomes of a site's links and bridges. Pure: time and jitter come in.

`apply` takes an event into the registry. Events that come late or twice change nothing.
"""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from sluice.errors import BadRoute
from sluice.federation.links.due import is_unfinished
from sluice.federation.links.links import Address, Bridge, Link, check_bridge, check_link
from sluice.federation.links.registry import SERVED_MARK, BridgeRecord, LinkRecord, Registry, served_name
from sluice.federation.links.states import (
    AccessRefused,
    Command,
    LinkEvent,
    LinkNews,
    LinkState,
    Unreachable,
    is_to_be_told,
    step,
)

MAX_LINKS_OF_A_PEER = 16
MAX_NAME_CHARACTERS = 128  # of a peer's link or route: a link's is the group of what is said over it
NAME = re.compile(rf"[!-~]{{1,{MAX_NAME_CHARACTERS}}}")


class LinkAdded(msgspec.Struct, frozen=True):
    """An operator's, or the configuration's."""

    link: Link
    declared: bool = False


class BridgeAdded(msgspec.Struct, frozen=True):
    """An operator's, or the configuration's."""

    bridge: Bridge
    declared: bool = False


class BridgeChanged(msgspec.Struct, frozen=True):
    """A bridge that is there goes on with other options; whether it is paused stays as it is."""

    bridge: Bridge


class BridgeClosed(msgspec.Struct, frozen=True):
    """A bridge is to go; what it holds goes over first, if the link carries."""

    name: str


class BridgeTold(msgspec.Struct, frozen=True):
    """An operator pauses a bridge, lets it drain, or lets it go on."""

    name: str
    command: Command


class LinkTold(msgspec.Struct, frozen=True):
    """There is news of a link."""

    link: str
    news: LinkNews


class Greeted(msgspec.Struct, frozen=True, kw_only=True):
    """A peer's hello over a link of its own: who it is, as was checked, and all that it pulls and may."""

    link: str
    peer: Address
    pulls: tuple[Bridge, ...] = ()
    draining: bool = False


class HelloAnswered(msgspec.Struct, frozen=True, kw_only=True):
    """A peer's answer to a hello: who it is, what exchanges it has, how its bridges for us are.

    `ours` are the exchanges here, both with their types.
    """

    link: str
    peer: Address
    exchanges: Mapping[str, str]
    bridges: Mapping[str, str]
    ours: Mapping[str, str] = msgspec.field(default_factory=dict)


class Parted(msgspec.Struct, frozen=True):
    """A peer has closed its link."""

    link: str
    peer: str


class HelloSent(msgspec.Struct, frozen=True):
    """A link's hello is on its way."""

    link: str


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """What has become of a bridge's things; None leaves what is known as it is. `mapping` "" is one that is gone.

    `made_for` is the bridge as it was known to who made something.
    """

    bridge: str
    queue: str | None = None
    mapping: str | None = None
    on: bool | None = None
    bound: bool | None = None
    error: str | None = None
    made_for: Bridge | None = None


class Refitted(msgspec.Struct, frozen=True):
    """A bridge's things are as its options were when it was `bridge`."""

    bridge: Bridge


class BridgeGone(msgspec.Struct, frozen=True):
    """Nothing of the bridge is left."""

    name: str


class Counted(msgspec.Struct, frozen=True):
    """How many messages a closing or draining bridge's queue has."""

    bridge: str
    messages: int


RegistryEvent = (
    LinkAdded | BridgeAdded | BridgeChanged | BridgeClosed | BridgeTold | LinkTold | Greeted | HelloAnswered
    | Parted | HelloSent | Done | Refitted | BridgeGone | Counted
)  # fmt: skip


class _Now(NamedTuple):
    ms: int
    jitter: float


def apply(  # noqa: C901, PLR0912 - one case an event
    registry: Registry, event: RegistryEvent, *, now_ms: int, jitter: float
) -> Registry:
    """Return the registry after the event. Raises `BadRoute` for what can't be."""
    now = _Now(now_ms, jitter)
    match event:
        case LinkAdded():
            registry = _link_added(registry, event)
        case BridgeAdded():
            registry = _bridge_added(registry, event)
        case BridgeChanged():
            registry = _bridge_changed(registry, event.bridge)
        case BridgeClosed():
            registry = _changed(registry, event.name, closing=True)
        case BridgeTold():
            registry = _bridge_told(registry, event)
        case LinkTold():
            registry = _link_told(registry, event.link, event.news, now)
        case Greeted():
            registry = _greeted(registry, event, now)
        case HelloAnswered():
            registry = _hello_answered(registry, event, now)
        case Parted():
            registry = _link_told(registry, served_name(event.link, event.peer), LinkEvent.CLOSE, now)
        case HelloSent() if event.link in registry.links:
            registry = registry.with_link(replace(registry.links[event.link], hello_due=False))
        case Done():
            said = {"queue": event.queue, "mapping": event.mapping, "on": event.on, "bound": event.bound}
            changes = {name: None if value == "" else value for name, value in said.items() if value is not None}
            registry = _changed(registry, event.bridge, **changes)
            # Another may have done meanwhile what failed here.
            error = event.error if is_unfinished(registry, event.bridge) else None
            registry = _changed(registry, event.bridge, error=error)
            if event.made_for is not None and _is_of_another(registry, event.made_for):
                registry = _changed(registry, event.bridge, changed=True)
        case Refitted(bridge):
            if _is_of_another(registry, bridge):
                registry = _changed(registry, bridge.name, changed=True)
            else:
                registry = _changed(registry, bridge.name, changed=UNSET, error=None)
        case BridgeGone():
            registry = _bridge_gone(registry, event.name, now)
        case Counted() if event.bridge in registry.bridges:
            since_ms = registry.bridges[event.bridge].empty_since_ms
            empty_since_ms = None if event.messages else now_ms if since_ms is None else since_ms
            registry = _changed(registry, event.bridge, empty_since_ms=empty_since_ms)
    return _settled(registry)


def _is_of_another(registry: Registry, bridge: Bridge) -> bool:
    """Whether the bridge has been given other options since it was so: what was made of it isn't as it should be."""
    record = registry.bridges.get(bridge.name)
    return record is not None and replace(bridge, paused=record.bridge.paused) != record.bridge


def _settled(registry: Registry) -> Registry:
    """Do what follows by itself: a link that closes takes its bridges along, and goes once they are gone."""
    for name, record in registry.links.items():
        if not record.is_ending:
            continue
        bridges = registry.bridges_of(name)
        if record.status.state is LinkState.CLOSED and not bridges:
            registry = replace(registry, links={each: link for each, link in registry.links.items() if each != name})
        for each in bridges:
            registry = _changed(registry, each.bridge.name, closing=True)
    return registry


def _changed(registry: Registry, bridge: str, **changes: Any) -> Registry:
    """With these fields of the bridge's record, if it is there."""
    record = registry.bridges.get(bridge)
    if record is None:
        return registry
    changed = replace(record, **changes)
    is_new_end = changed.closing and not record.closing
    registry = registry.with_bridge(changed)
    return _announced(registry, changed.bridge) if is_new_end else registry


def _announced(registry: Registry, bridge: Bridge) -> Registry:
    """Note that the peer is to hear of a change of what is pulled."""
    link = registry.links.get(bridge.link)
    return registry if bridge.src_is_local or link is None else registry.with_link(replace(link, hello_due=True))


# What operators say


def _link_added(registry: Registry, event: LinkAdded) -> Registry:
    link = event.link
    existing = registry.links.get(link.name)
    if existing is not None and existing.link == link:
        return registry
    if SERVED_MARK in link.name:
        raise BadRoute(f"{link.name}: {SERVED_MARK} is for links that a peer asked for")
    # A peer's link to here and ours to it are two links between the same sites, as they should be.
    check_link(link, here=registry.here, existing=[each.link for each in registry.links.values()])
    return registry.with_link(LinkRecord(link=link, declared=event.declared))


def _bridge_added(registry: Registry, event: BridgeAdded) -> Registry:
    bridge = event.bridge
    existing = registry.bridges.get(bridge.name)
    if existing is not None and existing.bridge == bridge and not existing.closing:
        return registry
    if SERVED_MARK in bridge.name:
        raise BadRoute(f"{bridge.name}: {SERVED_MARK} is for routes that a peer asked for")
    links = [each.link for each in registry.links.values() if not each.served and not each.is_ending]
    check_bridge(bridge, links=links, existing=[each.bridge for each in registry.bridges.values()])
    return _announced(registry.with_bridge(BridgeRecord(bridge=bridge, declared=event.declared)), bridge)


def _bridge_changed(registry: Registry, bridge: Bridge) -> Registry:
    record = registry.bridges.get(bridge.name)
    if record is None or record.closing:
        raise BadRoute(f"{bridge.name}: no such route, or it is about to go")
    if record.served:
        raise BadRoute(f"{bridge.name}: the site that it goes to asked for it: change it there")
    bridge = replace(bridge, paused=record.bridge.paused)
    if not record.bridge.can_become(bridge):
        raise BadRoute(f"{bridge.name}: what it goes from, to and by stays, and its queue: else it is another route")
    if bridge == record.bridge:
        return registry
    check_bridge(bridge, links=[each.link for each in registry.links.values()], existing=())
    link = registry.links[bridge.link]
    if not bridge.src_is_local:  # the peer hasn't said yet how the changed one is
        remote = {name: state for name, state in link.remote.items() if name != bridge.name}
        registry = registry.with_link(replace(link, remote=remote))
    return _announced(registry.with_bridge(record.becoming(bridge)), bridge)


def _bridge_told(registry: Registry, event: BridgeTold) -> Registry:
    record = registry.bridges.get(event.name)
    if record is None:
        return registry
    bridge = replace(record.bridge, paused=event.command is Command.PAUSE)
    changed = replace(record, bridge=bridge, draining=event.command is Command.DRAIN, empty_since_ms=None)
    return _announced(registry.with_bridge(changed), bridge)


# What becomes of links


def _link_told(registry: Registry, name: str, news: LinkNews, now: _Now) -> Registry:
    record = registry.links.get(name)
    if record is None:
        return registry
    before, endpoints = record.status, len(record.link.endpoints)
    after = step(before, news, endpoints=endpoints, now_ms=now.ms, jitter=now.jitter)
    hello_due = record.hello_due or is_to_be_told(before, after, served=record.served)
    registry = registry.with_link(replace(record, status=after, hello_due=hello_due))
    if record.is_ending and isinstance(news, Unreachable | AccessRefused):
        # Its bridges wait no longer for the peer: what they hold becomes dead letters.
        for each in registry.bridges_of(name):
            registry = _changed(registry, each.bridge.name, on=False, error=news.error)
    return registry


def _bridge_gone(registry: Registry, name: str, now: _Now) -> Registry:
    record = registry.bridges.get(name)
    if record is None:
        return registry
    link = record.bridge.link
    registry = replace(registry, bridges={each: other for each, other in registry.bridges.items() if each != name})
    for other in registry.bridges_reading(record.queue or ""):  # which was read as this one asked, too
        registry = _changed(registry, other.bridge.name, changed=True)
    if link in registry.links and not registry.links[link].link.durable and not registry.bridges_of(link):
        return _link_told(registry, link, LinkEvent.CLOSE, now)
    return registry


def _hello_answered(registry: Registry, event: HelloAnswered, now: _Now) -> Registry:
    record = registry.links.get(event.link)
    if record is None:
        return registry
    if event.peer.tag != record.link.peer:
        error = f"the site there has the tag {event.peer.tag}, not {record.link.peer}"
        return _link_told(registry, event.link, AccessRefused(error), now)
    answered = replace(record, address=event.peer, exchanges=dict(event.exchanges), remote=dict(event.bridges))
    registry = _types_compared(registry.with_link(answered), event)
    return _link_told(registry, event.link, LinkEvent.ANSWERED, now)


def _types_compared(registry: Registry, event: HelloAnswered) -> Registry:
    """Fail the dynamic routes whose exchanges differ: bindings of the one mean something else at the other.

    The peer hears of what changes: what fails isn't asked for.
    """
    for each in registry.bridges_of(event.link):
        bridge = each.bridge
        if not bridge.dynamic or bridge.src_is_local or each.closing:
            continue
        there, here = event.exchanges.get(bridge.src), event.ours.get(bridge.dest)
        error = None
        if there is not None and here is not None and there != here:
            ends = f"{bridge.src} is {there} at {event.peer.tag}, {here} at {registry.here}"
            error = f"{ends}: a dynamic route needs one type"
        if error != each.error:
            registry = _announced(_changed(registry, bridge.name, error=error), bridge)
    return registry


# What peers ask for


def _greeted(registry: Registry, event: Greeted, now: _Now) -> Registry:
    _check_greeting(registry, event)
    name = served_name(event.link, event.peer.tag)
    link = Link.to(event.peer, name=name)
    known = registry.links.get(name)
    record = LinkRecord(link=link, served=True, address=event.peer)
    if known is not None and not known.is_ending:
        record = replace(known, link=link, address=event.peer)
    registry = registry.with_link(record)
    for news in (Command.RETRY, LinkEvent.ANSWERED):  # the peer is there: it has sent us something
        registry = _link_told(registry, name, news, now)
    registry = registry.with_link(replace(registry.links[name], hello_due=False))  # it gets an answer
    wanted = {
        served_name(pull.name, event.peer.tag): replace(
            pull, name=served_name(pull.name, event.peer.tag), link=name, src_is_local=True
        )
        for pull in event.pulls
    }
    for each in registry.bridges_of(name):
        if each.bridge.name not in wanted:
            registry = _changed(registry, each.bridge.name, closing=True)
    for bridge in wanted.values():
        registry = _served(registry, bridge)
    if registry.links[name].status.draining != event.draining:
        registry = _link_told(registry, name, Command.DRAIN if event.draining else Command.RESUME, now)
    return registry


def _check_greeting(registry: Registry, event: Greeted) -> None:
    """Check who asks, and for what: its own checks are its own. Raises `BadRoute`."""
    peer = event.peer
    served = {name for name, each in registry.links.items() if each.served and each.link.peer == peer.tag}
    if len(served - {served_name(event.link, peer.tag)}) >= MAX_LINKS_OF_A_PEER:
        raise BadRoute(f"{peer.tag}: has {len(served)} links here, as many as a peer may have")
    wrong = [name for name in (event.link, *(pull.name for pull in event.pulls)) if not NAME.fullmatch(name)]
    if wrong:
        raise BadRoute(f"{wrong[0][:MAX_NAME_CHARACTERS]!r}: a name is 1 to {MAX_NAME_CHARACTERS} printable characters")
    over = Link.to(peer, name=event.link)
    pulls = [replace(pull, link=over.name) for pull in event.pulls]
    for pull in pulls:
        if pull.src_is_local:
            raise BadRoute(f"{pull.name}: it isn't pulled")
        check_bridge(pull, links=[over], existing=())
    if len({pull.name for pull in pulls}) < len(pulls) or len({pull.way for pull in pulls}) < len(pulls):
        raise BadRoute("a duplicate route is asked for")


def _served(registry: Registry, bridge: Bridge) -> Registry:
    """With the bridge that pushes here what the peer pulls."""
    known = registry.bridges.get(bridge.name)
    if known is None:
        return registry.with_bridge(BridgeRecord(bridge=bridge, served=True))
    if known.bridge == bridge or known.closing:
        return registry  # one that is closing is made anew with the next hello after it is gone
    if known.bridge.can_become(bridge):
        return registry.with_bridge(known.becoming(bridge))
    return _changed(registry, bridge.name, closing=True)
