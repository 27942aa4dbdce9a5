"""What is to be done next for a site's links and bridges. Pure: time comes in.

What is due follows from the registry alone, and each action may be done twice: so whoever comes by, after whatever
crash, goes on where the last one stopped.
"""

from collections.abc import Iterator

import msgspec

from sluice.federation.links.links import RouteKind
from sluice.federation.links.registry import BridgeRecord, Registry
from sluice.federation.links.states import CARRYING, LinkState

EMPTY_FOR_MS = 60_000  # SQS's counts are right within a minute of the last change
_UNREACHED = frozenset({LinkState.WAITING, LinkState.CONNECTING, LinkState.FAILED})
_HEARING = CARRYING | {LinkState.CONNECTING, LinkState.PAUSED}  # the peer may be told something


class SendHello(msgspec.Struct, frozen=True):
    """Say hello over the link. Answer with `HelloSent`, or with `LinkTold` where that fails."""

    link: str


class SendParting(msgspec.Struct, frozen=True):
    """Tell the peer that the link is closed. Answer with `LinkTold` of TORN_DOWN, told or not."""

    link: str


class MakeQueue(msgspec.Struct, frozen=True):
    """Make the bridge's queue, or look at the existing one. Answer with `Done`."""

    bridge: str


class SetBinding(msgspec.Struct, frozen=True):
    """Bind the bridge's queue, or unbind it. Answer with `Done`."""

    bridge: str
    bound: bool


class MakeMapping(msgspec.Struct, frozen=True):
    """Let the bridge function read the queue. Answer with `Done`."""

    bridge: str
    on: bool


class SwitchMapping(msgspec.Struct, frozen=True):
    """Enable or disable the mapping. Answer with `Done`."""

    bridge: str
    on: bool


class Refit(msgspec.Struct, frozen=True):
    """Let the bridge's queue, binding and mapping be as its options have become. Answer with `Refitted`."""

    bridge: str


class CountQueue(msgspec.Struct, frozen=True):
    """Count what is in the bridge's queue. Answer with `Counted`."""

    bridge: str


class BuryLeftovers(msgspec.Struct, frozen=True):
    """Delete the mapping; what is in the queue is dead. Answer with `Counted`."""

    bridge: str


class TearDown(msgspec.Struct, frozen=True):
    """Delete the mapping, and the queue if we made it; what is still in that is dead. Answer with `BridgeGone`."""

    bridge: str


BridgeAction = MakeQueue | SetBinding | MakeMapping | SwitchMapping | Refit | CountQueue | BuryLeftovers | TearDown
DueAction = SendHello | SendParting | BridgeAction


def due(registry: Registry, *, now_ms: int, empty_for_ms: int = EMPTY_FOR_MS) -> Iterator[DueAction]:
    """Everything to be done in this state, all of it safe to do again."""
    for name, record in registry.links.items():
        if record.status.state is LinkState.CLOSING:
            if not registry.bridges_of(name):
                yield SendParting(name)
        elif record.hello_due and record.status.state in _HEARING:
            yield SendHello(name)
    for name, bridge in registry.bridges.items():
        if bridge.closing:
            empty_since_ms = bridge.empty_since_ms
            is_empty = empty_since_ms is not None and now_ms - empty_since_ms >= empty_for_ms
            yield _due_of_closing(registry, bridge, is_empty=is_empty)
        elif bridge.bridge.src_is_local and bridge.queue is None:
            yield MakeQueue(name)
        elif bridge.bridge.src_is_local:
            yield from _due_of_open(registry, bridge)


def is_unfinished(registry: Registry, name: str) -> bool:
    """Whether something is still to be made of a bridge's things here."""
    record = registry.bridges.get(name)
    if record is None or record.closing or not record.bridge.src_is_local:
        return True
    return record.queue is None or any(True for _ in _due_of_open(registry, record))


def _due_of_open(registry: Registry, record: BridgeRecord) -> Iterator[DueAction]:
    name, link = record.bridge.name, registry.links[record.bridge.link]
    takes_in = not (record.draining or link.status.draining)
    # What a dynamic route's queue is bound by, its peer says.
    if record.bridge.kind is RouteKind.STATIC and record.bound != takes_in:
        yield SetBinding(name, takes_in)
    on = any(registry.may_flow(each) for each in registry.bridges_reading(record.queue or ""))
    if record.mapping is None:
        yield MakeMapping(name, on)
    elif record.on != on:
        yield SwitchMapping(name, on)
    if record.changed:
        yield Refit(name)
    if record.draining and not record.bridge.paused:
        yield CountQueue(name)


def _due_of_closing(registry: Registry, record: BridgeRecord, *, is_empty: bool) -> DueAction:
    name, link = record.bridge.name, registry.links.get(record.bridge.link)
    if record.bound:
        return SetBinding(name, bound=False)
    is_cut_off = link is not None and link.status.state in _UNREACHED
    if is_cut_off and record.makes_queue and record.on and record.mapping:
        return SwitchMapping(name, on=False)  # what can't be sent isn't waited for
    # Exchanges may still have the binding, and functions what they have received: with the queue it would go. And what
    # isn't known to be there may be: whoever made it has died before saying so, or is about to say so.
    waits = record.bridge.src_is_local and (record.makes_queue or record.mapping is None)
    if is_empty or not waits:
        return TearDown(name)
    return CountQueue(name) if record.on and record.makes_queue else BuryLeftovers(name)
