"""What is to be done next for a site's links and bridges. Pure: time comes in.

What is due follows from the registry alone, and each action may be done twice: so whoever comes by, after whatever
crash, goes on where the last one stopped.
"""

from collections.abc import Iterator
from enum import StrEnum

import msgspec

from sluice.federation.links.links import RouteKind
from sluice.federation.links.registry import BridgeRecord, Registry
from sluice.federation.links.states import CARRYING, Intent, LinkState

EMPTY_FOR_MS = 60_000  # SQS's counts are right within a minute of the last change
_UNREACHED = frozenset({LinkState.WAITING, LinkState.CONNECTING, LinkState.FAILED})
_HEARING = CARRYING | {LinkState.CONNECTING, LinkState.PAUSED}  # the peer may be told something


class Act(StrEnum):
    """What may have to be done for a link or a bridge. Each is answered with the change that its comment names."""

    SEND_HELLO = "send hello"  # `note_hello_sent`, or also `tell_link` where that fails
    SEND_PARTING = "send parting"  # `drop_link`, whether the peer was told or not
    MAKE_QUEUE = "make queue"  # or look at the existing one: `note_things`
    BIND = "bind"  # `note_things`
    UNBIND = "unbind"  # `note_things`
    MAKE_MAPPING = "make mapping"  # by which the bridge function reads the queue: `note_things`
    SWITCH_MAPPING = "switch mapping"  # `note_things`
    REFIT = "refit"  # let queue, binding and mapping be as the bridge's options have become: `note_refitted`
    COUNT_QUEUE = "count queue"  # `note_count`
    BURY_LEFTOVERS = "bury leftovers"  # delete the mapping; what is in the queue is dead: `note_count`
    TEAR_DOWN = "tear down"  # the same, and delete the queue if we made it: `drop_bridge`


class Due(msgspec.Struct, frozen=True):
    """One thing to be done for the link or the bridge `name`; `on` is what its mapping has to be."""

    act: Act
    name: str
    on: bool = False


def due(registry: Registry, *, now_ms: int, empty_for_ms: int = EMPTY_FOR_MS) -> Iterator[Due]:
    """Everything to be done in this state, all of it safe to do again."""
    for name, record in registry.links.items():
        if record.status.state is LinkState.CLOSING:
            if not registry.bridges_of(name):
                yield Due(Act.SEND_PARTING, name)
        elif record.hello_due and record.status.state in _HEARING:
            yield Due(Act.SEND_HELLO, name)
    for name, bridge in registry.bridges.items():
        if bridge.closing:
            empty_since_ms = bridge.empty_since_ms
            is_empty = empty_since_ms is not None and now_ms - empty_since_ms >= empty_for_ms
            yield _due_of_closing(registry, bridge, is_empty=is_empty)
        elif bridge.bridge.src_is_local and bridge.queue is None:
            yield Due(Act.MAKE_QUEUE, name)
        elif bridge.bridge.src_is_local:
            yield from _due_of_open(registry, bridge)


def is_unfinished(registry: Registry, name: str) -> bool:
    """Whether something is still to be made of a bridge's things here."""
    record = registry.bridges.get(name)
    if record is None or record.closing or not record.bridge.src_is_local:
        return True
    return record.queue is None or any(True for _ in _due_of_open(registry, record))


def _due_of_open(registry: Registry, record: BridgeRecord) -> Iterator[Due]:
    name, link = record.bridge.name, registry.links[record.bridge.link]
    takes_in = record.wanted is not Intent.DRAINING and not link.status.draining
    # What a dynamic route's queue is bound by, its peer says.
    if record.bridge.kind is RouteKind.STATIC and record.bound != takes_in:
        yield Due(Act.BIND if takes_in else Act.UNBIND, name)
    on = any(registry.may_flow(each) for each in registry.bridges_reading(record.queue or ""))
    if record.mapping is None:
        yield Due(Act.MAKE_MAPPING, name, on)
    elif record.on != on:
        yield Due(Act.SWITCH_MAPPING, name, on)
    if record.changed:
        yield Due(Act.REFIT, name)
    if record.wanted is Intent.DRAINING:
        yield Due(Act.COUNT_QUEUE, name)


def _due_of_closing(registry: Registry, record: BridgeRecord, *, is_empty: bool) -> Due:
    name, link = record.bridge.name, registry.links.get(record.bridge.link)
    if record.bound:
        return Due(Act.UNBIND, name)
    is_cut_off = link is not None and link.status.state in _UNREACHED
    if is_cut_off and record.makes_queue and record.on and record.mapping:
        return Due(Act.SWITCH_MAPPING, name, on=False)  # what can't be sent isn't waited for
    # Exchanges may still have the binding, and functions what they have received: with the queue it would go. And what
    # isn't known to be there may be: whoever made it has died before saying so, or is about to say so.
    waits = record.bridge.src_is_local and (record.makes_queue or record.mapping is None)
    if is_empty or not waits:
        return Due(Act.TEAR_DOWN, name)
    return Due(Act.COUNT_QUEUE if record.on and record.makes_queue else Act.BURY_LEFTOVERS, name)
