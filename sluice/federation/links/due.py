"""Derives the due actions of a site's links and bridges. Pure: time is an argument.

Due actions follow from the registry alone and are idempotent, so any invocation can continue after a crash.
"""

from collections.abc import Iterator
from enum import StrEnum

import msgspec

from sluice.federation.links.links import RouteKind
from sluice.federation.links.registry import BridgeRecord, Registry
from sluice.federation.links.states import CARRYING, Intent, LinkState

EMPTY_FOR_MS = 60_000  # SQS's counts are exact a minute after messages last changed
_UNREACHED = frozenset({LinkState.WAITING, LinkState.CONNECTING, LinkState.FAILED})
_HEARING = CARRYING | {LinkState.CONNECTING, LinkState.PAUSED}  # states of links in which hellos are sent


class Action(StrEnum):
    """An action for a link or a bridge. Each comment names the change that records the action's result."""

    SEND_HELLO = "send hello"  # `record_hello_sent`, or `update_link` after an error, records the result
    SEND_LINK_CLOSED = "send parting"  # `remove_link` records the result, unless the peer is unreachable
    MAKE_QUEUE = "make queue"  # also checks an existing queue; `record_resources` records the result
    BIND = "bind"  # `record_resources` records the result
    UNBIND = "unbind"  # `record_resources` records the result
    RECONCILE = "reconcile"  # updates the bridge function's trigger and options; `record_resources` records the result
    COUNT_QUEUE = "count queue"  # `record_count` records the result
    DEAD_LETTER_LEFTOVERS = (
        "bury leftovers"  # deletes the mapping and dead-letters messages; recorded by `record_count`
    )
    TEAR_DOWN = "tear down"  # deletes all resources; `remove_bridge` records this, or `record_count` if unfinished


class DueAction(msgspec.Struct, frozen=True):
    """An action for the link or bridge `name`. `on` is the desired state of the bridge's event source mapping."""

    action: Action
    name: str
    on: bool = False


def find_due_actions(registry: Registry, *, now_ms: int, empty_for_ms: int = EMPTY_FOR_MS) -> Iterator[DueAction]:
    """Yield all actions that are due in this state of the registry. Every action is idempotent."""
    for name, record in registry.links.items():
        if record.status.state is LinkState.CLOSING:
            if not registry.list_bridges(name):
                yield DueAction(Action.SEND_LINK_CLOSED, name)
        elif record.hello_due and record.status.state in _HEARING:
            yield DueAction(Action.SEND_HELLO, name)
    for name, bridge in registry.bridges.items():
        if bridge.closing:
            empty_since_ms = bridge.empty_since_ms
            is_empty = empty_since_ms is not None and now_ms - empty_since_ms >= empty_for_ms
            yield _find_closing_bridge_action(registry, bridge, is_empty=is_empty)
        elif bridge.bridge.src_is_local and bridge.queue is None:
            yield DueAction(Action.MAKE_QUEUE, name)
        elif bridge.bridge.src_is_local:
            yield from _find_open_bridge_actions(registry, bridge)


def is_unfinished(registry: Registry, name: str) -> bool:
    """Whether any of the bridge's local resources still has to be created."""
    record = registry.bridges.get(name)
    if record is None or record.closing or not record.bridge.src_is_local:
        return True
    return record.queue is None or any(True for _ in _find_open_bridge_actions(registry, record))


def _find_open_bridge_actions(registry: Registry, record: BridgeRecord) -> Iterator[DueAction]:
    name, link = record.bridge.name, registry.links[record.bridge.link]
    takes_in = record.intent is not Intent.DRAINING and not link.status.draining
    # Only static routes are bound here: the bindings of dynamic routes follow from the peer's advertisements.
    if record.bridge.kind is RouteKind.STATIC and record.bound != takes_in:
        yield DueAction(Action.BIND if takes_in else Action.UNBIND, name)
    on = any(registry.may_forward(reader) for reader in registry.list_readers(record.queue or ""))
    if record.mapping is None or record.on != on or record.changed:
        yield DueAction(Action.RECONCILE, name, on)
    if record.intent is Intent.DRAINING:
        yield DueAction(Action.COUNT_QUEUE, name)


def _find_closing_bridge_action(registry: Registry, record: BridgeRecord, *, is_empty: bool) -> DueAction:
    name, link = record.bridge.name, registry.links.get(record.bridge.link)
    if record.bound:
        return DueAction(Action.UNBIND, name)
    is_cut_off = link is not None and link.status.state in _UNREACHED
    # A queue isn't deleted at once: exchange functions may have cached its binding, or functions may hold its messages.
    # A mapping may exist without a record, if an invocation failed before it recorded the mapping.
    waits = record.bridge.src_is_local and (record.makes_queue or record.mapping is None)
    if is_empty or not waits:
        return DueAction(Action.TEAR_DOWN, name)
    # If the messages can't be forwarded, they become dead letters at once.
    forwards = record.on and record.makes_queue and not is_cut_off
    return DueAction(Action.COUNT_QUEUE if forwards else Action.DEAD_LETTER_LEFTOVERS, name)
