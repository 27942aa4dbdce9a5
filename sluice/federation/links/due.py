"""Derives the due actions of a site's links and bridges. Pure: time is an argument.

Due actions follow from the registry alone and are idempotent, so any invocation can continue after a crash.
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


class Action(StrEnum):
    """An action for a link or a bridge; the comment names the change that records its result."""

    SEND_HELLO = "send hello"  # `record_hello_sent`, or also `update_link` where that fails
    SEND_PARTING = "send parting"  # `remove_link`, whether or not the peer was reached
    MAKE_QUEUE = "make queue"  # or check that the existing one is there: `record_resources`
    BIND = "bind"  # `record_resources`
    UNBIND = "unbind"  # `record_resources`
    MAKE_MAPPING = "make mapping"  # by which the bridge function reads the queue: `record_resources`
    SWITCH_MAPPING = "switch mapping"  # `record_resources`
    REFIT = "refit"  # apply changed options to queue, binding and mapping: `record_refit`
    COUNT_QUEUE = "count queue"  # `record_count`
    BURY_LEFTOVERS = "bury leftovers"  # delete the mapping; what is in the queue is dead: `record_count`
    TEAR_DOWN = "tear down"  # the same, and delete the queue if we made it: `remove_bridge`


class DueAction(msgspec.Struct, frozen=True):
    """An action for the link or bridge `name`; `on` is the desired state of its mapping."""

    act: Action
    name: str
    on: bool = False


def find_due_actions(registry: Registry, *, now_ms: int, empty_for_ms: int = EMPTY_FOR_MS) -> Iterator[DueAction]:
    """Yield all due actions in this state; all are idempotent."""
    for name, record in registry.links.items():
        if record.status.state is LinkState.CLOSING:
            if not registry.list_bridges(name):
                yield DueAction(Action.SEND_PARTING, name)
        elif record.hello_due and record.status.state in _HEARING:
            yield DueAction(Action.SEND_HELLO, name)
    for name, bridge in registry.bridges.items():
        if bridge.closing:
            empty_since_ms = bridge.empty_since_ms
            is_empty = empty_since_ms is not None and now_ms - empty_since_ms >= empty_for_ms
            yield _find_due_of_closing_bridge(registry, bridge, is_empty=is_empty)
        elif bridge.bridge.src_is_local and bridge.queue is None:
            yield DueAction(Action.MAKE_QUEUE, name)
        elif bridge.bridge.src_is_local:
            yield from _find_due_of_open_bridge(registry, bridge)


def is_unfinished(registry: Registry, name: str) -> bool:
    """Whether any of the bridge's local resources still has to be created."""
    record = registry.bridges.get(name)
    if record is None or record.closing or not record.bridge.src_is_local:
        return True
    return record.queue is None or any(True for _ in _find_due_of_open_bridge(registry, record))


def _find_due_of_open_bridge(registry: Registry, record: BridgeRecord) -> Iterator[DueAction]:
    name, link = record.bridge.name, registry.links[record.bridge.link]
    takes_in = record.wanted is not Intent.DRAINING and not link.status.draining
    # What a dynamic route's queue is bound by, its peer says.
    if record.bridge.kind is RouteKind.STATIC and record.bound != takes_in:
        yield DueAction(Action.BIND if takes_in else Action.UNBIND, name)
    on = any(registry.may_flow(reader) for reader in registry.bridges_reading(record.queue or ""))
    if record.mapping is None:
        yield DueAction(Action.MAKE_MAPPING, name, on)
    elif record.on != on:
        yield DueAction(Action.SWITCH_MAPPING, name, on)
    if record.changed:
        yield DueAction(Action.REFIT, name)
    if record.wanted is Intent.DRAINING:
        yield DueAction(Action.COUNT_QUEUE, name)


def _find_due_of_closing_bridge(registry: Registry, record: BridgeRecord, *, is_empty: bool) -> DueAction:
    name, link = record.bridge.name, registry.links.get(record.bridge.link)
    if record.bound:
        return DueAction(Action.UNBIND, name)
    is_cut_off = link is not None and link.status.state in _UNREACHED
    if is_cut_off and record.makes_queue and record.on and record.mapping:
        return DueAction(Action.SWITCH_MAPPING, name, on=False)  # what can't be sent isn't waited for
    # Exchanges may still have the binding, and functions what they have received: with the queue it would go. And what
    # isn't known to be there may be: whoever made it has died before saying so, or is about to say so.
    waits = record.bridge.src_is_local and (record.makes_queue or record.mapping is None)
    if is_empty or not waits:
        return DueAction(Action.TEAR_DOWN, name)
    return DueAction(Action.COUNT_QUEUE if record.on and record.makes_queue else Action.BURY_LEFTOVERS, name)
