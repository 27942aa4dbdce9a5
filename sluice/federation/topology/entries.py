"""Entries of a topology: what a site can have, what that is called, and what asks for it. Pure."""

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Raw

from sluice.codec import decode, encode
from sluice.federation.declared import BindingDeclaration
from sluice.federation.links.links import Bridge, Link
from sluice.federation.links.peers import Peer
from sluice.federation.matching.exchanges import Exchange
from sluice.federation.operations import (
    AddBridge,
    AddExchange,
    AddLink,
    AddPeer,
    BindQueue,
    ChangeBridge,
    CloseBridge,
    CloseLink,
    DeleteExchange,
    DeletePeer,
    UnbindQueue,
)
from sluice.operations import Operation

Entry = Peer | Exchange | BindingDeclaration | Link | Bridge
Key = tuple[str, str]  # what an entry is, and its name: no other entry of its site has both
Entries = Mapping[Key, Entry]

PEER, EXCHANGE, BINDING, LINK, ROUTE = "peer", "exchange", "binding", "link", "route"


def key_of(entry: Entry) -> Key:
    """Return what an entry is known by."""
    match entry:
        case Peer():
            return PEER, entry.tag
        case BindingDeclaration():
            return BINDING, f"{entry.exchange} {entry.queue}" + (f" {entry.key}" if entry.key else "")
        case Exchange():
            return EXCHANGE, entry.name
        case Link():
            return LINK, entry.name
        case Bridge():
            return ROUTE, entry.name


def by_key(entries: Iterable[Entry]) -> dict[Key, Entry]:
    """Return the entries by what they are known by."""
    return {key_of(each): each for each in entries}


def creation(entry: Entry, was: Entry | None) -> Operation[Any]:
    """Return what asks for an entry, or for its change from what it was."""
    match entry:
        case Peer():
            return AddPeer(peer=entry)
        case Exchange():
            return AddExchange(name=entry.name, type=entry.type, alternate=entry.alternate)
        case BindingDeclaration():
            return BindQueue.to(entry, replaces=was is not None)
        case Link():
            return AddLink(link=entry)
        case Bridge():
            return AddBridge(bridge=entry) if was is None else ChangeBridge(bridge=entry)


def deletion(entry: Entry) -> Operation[Any]:
    """Return what takes an entry away."""
    match entry:
        case Peer():
            return DeletePeer(name=entry.tag)
        case Exchange():
            return DeleteExchange(name=entry.name)
        case BindingDeclaration():
            return UnbindQueue(exchange=entry.exchange, queue=entry.queue, key=entry.key)
        case Link():
            return CloseLink(name=entry.name)
        case Bridge():
            return CloseBridge(name=entry.name)


def differ(one: Entry, other: Entry) -> bool:
    """Compare entries as JSON, for to Python 1 and True are equal."""
    return encode(one) != encode(other)


def changed_fields(was: Entry, entry: Entry) -> str:
    """Say which fields change, from what to what."""
    before, after = (decode(encode(each), dict[str, Raw], of="an entry") for each in (was, entry))
    names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    return ", ".join(f"{name} {_text(before.get(name))} → {_text(after.get(name))}" for name in names)


def _text(value: Raw | None) -> str:
    return "unset" if value is None else bytes(value).decode()


def shown(entry: Entry) -> str:
    """Say what an entry is, beside its name."""
    match entry:
        case Peer():
            rules = {"pulls": entry.pulls, "pushes": entry.pushes, "takes from": entry.queues}
            return ", ".join(f"{may} {' '.join(what) or 'nothing'}" for may, what in rules.items())
        case Exchange():
            return str(entry.type) + (f", else {entry.alternate}" if entry.alternate else "")
        case BindingDeclaration():
            return encode(entry.arguments).decode() if entry.arguments else ""
        case Link():
            return f"to {entry.peer}"
        case Bridge():
            return f"{entry.kind} from {entry.src} to {entry.dest}" + (f" by {entry.key}" if entry.key else "")


def cost_of(entry: Entry) -> str:
    """Say what becomes of messages while the entry isn't there."""
    if isinstance(entry, Bridge) and entry.src_is_queue:
        return "what comes meanwhile waits in its queue"
    return "what is published meanwhile isn't sent"
