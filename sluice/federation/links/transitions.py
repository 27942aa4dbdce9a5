"""What becomes of a site's links and bridges. Pure: time and jitter come in.

`apply` takes a change into the registry. Changes that come late or twice change nothing.
"""

import re
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any, Concatenate, NamedTuple, ParamSpec

from msgspec import UNSET
from msgspec.structs import replace

from sluice.errors import BadRoute
from sluice.federation.links.due import is_unfinished
from sluice.federation.links.links import Address, Bridge, Link, check_bridge, check_link
from sluice.federation.links.registry import SERVED_MARK, BridgeRecord, LinkRecord, Registry, served_name
from sluice.federation.links.states import (
    AccessRefused,
    Command,
    Intent,
    LinkEvent,
    LinkNews,
    Unreachable,
    is_to_be_told,
    step,
)

MAX_LINKS_OF_A_PEER = 16
MAX_NAME_CHARACTERS = 128  # of a peer's link or route: a link's is the group of what is said over it
NAME = re.compile(rf"[!-~]{{1,{MAX_NAME_CHARACTERS}}}")


class Now(NamedTuple):
    """When a change happens, and a random number from 0 to 1."""

    ms: int
    jitter: float


P = ParamSpec("P")
Change = Callable[[Registry, Now], Registry]


def apply(registry: Registry, change: Change, *, now_ms: int, jitter: float) -> Registry:
    """Return the registry after the change, with all that follows by itself. Raises `BadRoute` for what can't be."""
    registry = change(registry, Now(now_ms, jitter))
    for name, record in registry.links.items():
        if not record.is_ending:
            continue
        for each in registry.bridges_of(name):  # a link that closes takes its bridges along
            registry = _changed(registry, each.bridge.name, wanted=Intent.CLOSED)
    return registry


def _timed(make: Callable[Concatenate[Registry, Now, P], Registry]) -> Callable[P, Change]:
    """Let a change be described by all but the registry that it is of, and the time."""
    return lambda *args, **options: lambda registry, now: make(registry, now, *args, **options)


def _change(make: Callable[Concatenate[Registry, P], Registry]) -> Callable[P, Change]:
    """Let a change be described by all but the registry that it is of."""
    return lambda *args, **options: lambda registry, _: make(registry, *args, **options)


# What becomes of a bridge's things


@_change
def note_things(
    registry: Registry,
    /,
    bridge: str,
    *,
    error: str | None = None,
    made_for: Bridge | None = None,
    **things: str | bool,
) -> Registry:
    """Note what has become of a bridge's `queue`, `mapping`, `on` and `bound`; of what isn't said nothing has changed.

    A queue or mapping "" is gone. `made_for` is the bridge as it was known to who made something.
    """
    registry = _changed(registry, bridge, **{name: None if value == "" else value for name, value in things.items()})
    # Another may have done meanwhile what failed here.
    registry = _changed(registry, bridge, error=error if is_unfinished(registry, bridge) else None)
    if made_for is not None and _is_of_another(registry, made_for):
        registry = _changed(registry, bridge, changed=True)
    return registry


@_change
def note_refitted(registry: Registry, bridge: Bridge) -> Registry:
    """Note that a bridge's things are as its options were when it was `bridge`."""
    if _is_of_another(registry, bridge):
        return _changed(registry, bridge.name, changed=True)
    return _changed(registry, bridge.name, changed=UNSET, error=None)


@_timed
def note_count(registry: Registry, now: Now, bridge: str, messages: int) -> Registry:
    """Note how many messages a closing or draining bridge's queue has."""
    record = registry.bridges.get(bridge)
    since_ms = now.ms if record is None or record.empty_since_ms is None else record.empty_since_ms
    return _changed(registry, bridge, empty_since_ms=None if messages else since_ms)


def _is_of_another(registry: Registry, bridge: Bridge) -> bool:
    """Whether the bridge has been given other options since it was so: what was made of it isn't as it should be."""
    record = registry.bridges.get(bridge.name)
    return record is not None and bridge != record.bridge


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


@_change
def add_link(registry: Registry, link: Link, *, declared: bool = False) -> Registry:
    """Add an operator's link, or the configuration's."""
    existing = registry.links.get(link.name)
    if existing is not None and existing.link == link:
        return registry
    if SERVED_MARK in link.name:
        raise BadRoute(f"{link.name}: {SERVED_MARK} is for links that a peer asked for")
    # A peer's link to here and ours to it are two links between the same sites, as they should be.
    check_link(link, here=registry.here, existing=[each.link for each in registry.links.values()])
    return registry.with_link(LinkRecord(link=link, declared=declared))


@_change
def add_bridge(registry: Registry, bridge: Bridge, *, declared: bool = False) -> Registry:
    """Add an operator's bridge, or the configuration's."""
    existing = registry.bridges.get(bridge.name)
    if existing is not None and existing.bridge == bridge and not existing.closing:
        return registry
    if SERVED_MARK in bridge.name:
        raise BadRoute(f"{bridge.name}: {SERVED_MARK} is for routes that a peer asked for")
    links = [each.link for each in registry.links.values() if not each.served and not each.is_ending]
    check_bridge(bridge, links=links, existing=[each.bridge for each in registry.bridges.values()])
    return _announced(registry.with_bridge(BridgeRecord(bridge=bridge, declared=declared)), bridge)


@_change
def change_bridge(registry: Registry, bridge: Bridge) -> Registry:
    """Let a bridge that is there go on with other options; whether it is paused stays as it is."""
    record = registry.bridges.get(bridge.name)
    if record is None or record.closing:
        raise BadRoute(f"{bridge.name}: no such route, or it is about to go")
    if record.served:
        raise BadRoute(f"{bridge.name}: the site that it goes to asked for it: change it there")
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


@_change
def tell_bridge(registry: Registry, name: str, command: Command) -> Registry:
    """Pause a bridge, let it drain, or let it go on."""
    record = registry.bridges.get(name)
    if record is None or record.closing:
        return registry
    wanted = {Command.PAUSE: Intent.PAUSED, Command.DRAIN: Intent.DRAINING}.get(command, Intent.OPEN)
    return _announced(_changed(registry, name, wanted=wanted, empty_since_ms=None), record.bridge)


@_change
def close_bridge(registry: Registry, name: str) -> Registry:
    """Let a bridge go; what it holds goes over first, if the link carries."""
    return _changed(registry, name, wanted=Intent.CLOSED)


# What becomes of links


@_timed
def tell_link(registry: Registry, now: Now, name: str, news: LinkNews) -> Registry:
    """Take in news of a link."""
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


@_change
def drop_link(registry: Registry, name: str) -> Registry:
    """Forget a link that is closing, and has no bridges any more."""
    record = registry.links.get(name)
    if record is None or not record.is_ending or registry.bridges_of(name):
        return registry
    return replace(registry, links={each: link for each, link in registry.links.items() if each != name})


@_timed
def drop_bridge(registry: Registry, now: Now, name: str) -> Registry:
    """Forget a bridge of which nothing is left."""
    record = registry.bridges.get(name)
    if record is None:
        return registry
    link = record.bridge.link
    registry = replace(registry, bridges={each: other for each, other in registry.bridges.items() if each != name})
    for other in registry.bridges_reading(record.queue or ""):  # which was read as this one asked, too
        registry = _changed(registry, other.bridge.name, changed=True)
    if link in registry.links and not registry.links[link].link.durable and not registry.bridges_of(link):
        return tell_link(link, LinkEvent.CLOSE)(registry, now)
    return registry


@_change
def note_hello_sent(registry: Registry, link: str) -> Registry:
    """Note that a link's hello is on its way."""
    record = registry.links.get(link)
    return registry if record is None else registry.with_link(replace(record, hello_due=False))


@_timed
def take_answer(
    registry: Registry,
    now: Now,
    link: str,
    *,
    peer: Address,
    exchanges: Mapping[str, str],
    bridges: Mapping[str, str],
    ours: Mapping[str, str],
) -> Registry:
    """Take in a peer's answer to a hello: who it is, what exchanges it has, how its bridges for us are.

    `ours` are the exchanges here, both with their types.
    """
    record = registry.links.get(link)
    if record is None:
        return registry
    if peer.tag != record.link.peer:
        reason = f"the site there has the tag {peer.tag}, not {record.link.peer}"
        return tell_link(link, AccessRefused(reason))(registry, now)
    answered = replace(record, address=peer, exchanges=dict(exchanges), remote=dict(bridges))
    registry = registry.with_link(answered)
    for each in registry.bridges_of(link):
        bridge = each.bridge
        if not bridge.dynamic or bridge.src_is_local or each.closing:
            continue
        # Where the exchanges differ, bindings of the one mean something else at the other. The peer hears of what
        # changes: what fails isn't asked for.
        there, here, error = exchanges.get(bridge.src), ours.get(bridge.dest), None
        if there is not None and here is not None and there != here:
            ends = f"{bridge.src} is {there} at {peer.tag}, {here} at {registry.here}"
            error = f"{ends}: a dynamic route needs one type"
        if error != each.error:
            registry = _announced(_changed(registry, bridge.name, error=error), bridge)
    return tell_link(link, LinkEvent.ANSWERED)(registry, now)


# What peers ask for


@_timed
def greet(
    registry: Registry,
    now: Now,
    link: str,
    *,
    peer: Address,
    pulls: Sequence[Bridge] = (),
    paused: Container[str] = (),
    draining: bool = False,
) -> Registry:
    """Take in a peer's hello over a link of its own: who it is, as was checked, and all that it pulls and may."""
    _check_greeting(registry, link, peer, pulls)
    name = served_name(link, peer.tag)
    over = Link.to(peer, name=name)
    known = registry.links.get(name)
    record = LinkRecord(link=over, served=True, address=peer)
    if known is not None and not known.is_ending:
        record = replace(known, link=over, address=peer)
    registry = registry.with_link(record)
    for news in (Command.RETRY, LinkEvent.ANSWERED):  # the peer is there: it has sent us something
        registry = tell_link(name, news)(registry, now)
    registry = registry.with_link(replace(registry.links[name], hello_due=False))  # it gets an answer
    wanted = {
        served_name(pull.name, peer.tag): replace(
            pull, name=served_name(pull.name, peer.tag), link=name, src_is_local=True
        )
        for pull in pulls
    }
    for each in registry.bridges_of(name):
        if each.bridge.name not in wanted:
            registry = _changed(registry, each.bridge.name, wanted=Intent.CLOSED)
    for pull, bridge in zip(pulls, wanted.values(), strict=True):
        registry = _served(registry, bridge, Intent.PAUSED if pull.name in paused else Intent.OPEN)
    if registry.links[name].status.draining != draining:
        registry = tell_link(name, Command.DRAIN if draining else Command.RESUME)(registry, now)
    return registry


def _check_greeting(registry: Registry, link: str, peer: Address, asked: Sequence[Bridge]) -> None:
    """Check who asks, and for what: its own checks are its own. Raises `BadRoute`."""
    served = {name for name, each in registry.links.items() if each.served and each.link.peer == peer.tag}
    if len(served - {served_name(link, peer.tag)}) >= MAX_LINKS_OF_A_PEER:
        raise BadRoute(f"{peer.tag}: has {len(served)} links here, as many as a peer may have")
    wrong = [name for name in (link, *(pull.name for pull in asked)) if not NAME.fullmatch(name)]
    if wrong:
        raise BadRoute(f"{wrong[0][:MAX_NAME_CHARACTERS]!r}: a name is 1 to {MAX_NAME_CHARACTERS} printable characters")
    over = Link.to(peer, name=link)
    pulls = [replace(pull, link=over.name) for pull in asked]
    for pull in pulls:
        if pull.src_is_local:
            raise BadRoute(f"{pull.name}: it isn't pulled")
        check_bridge(pull, links=[over], existing=())
    if len({pull.name for pull in pulls}) < len(pulls) or len({pull.way for pull in pulls}) < len(pulls):
        raise BadRoute("a duplicate route is asked for")


def _served(registry: Registry, bridge: Bridge, wanted: Intent) -> Registry:
    """With the bridge that pushes here what the peer pulls."""
    known = registry.bridges.get(bridge.name)
    if known is None:
        return registry.with_bridge(BridgeRecord(bridge=bridge, served=True, wanted=wanted))
    if known.closing:
        return registry  # it is made anew with the next hello after it is gone
    if not known.bridge.can_become(bridge):
        return _changed(registry, bridge.name, wanted=Intent.CLOSED)
    becoming = known if known.bridge == bridge else known.becoming(bridge)
    return registry.with_bridge(replace(becoming, wanted=wanted))


@_timed
def part(registry: Registry, now: Now, link: str, peer: str) -> Registry:
    """Close what is served over a link that its peer has closed."""
    return tell_link(served_name(link, peer), LinkEvent.CLOSE)(registry, now)
