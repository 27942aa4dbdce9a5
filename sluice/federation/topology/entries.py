"""Defines the entries of a topology: their keys, their descriptions, and the operations that change them. Pure."""

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Raw

from sluice.codec import decode, encode
from sluice.federation import operations
from sluice.federation.declared import BindingDeclaration
from sluice.federation.links.links import Bridge, Link
from sluice.federation.links.peers import Peer
from sluice.federation.matching.exchanges import Exchange
from sluice.operations import Operation

Entry = Peer | Exchange | BindingDeclaration | Link | Bridge
Key = tuple[str, str]  # kind and name of an entry, unique within a site
Entries = Mapping[Key, Entry]

PEER, EXCHANGE, BINDING, LINK, ROUTE = "peer", "exchange", "binding", "link", "route"


def get_entry_key(entry: Entry) -> Key:
    """Return the key of an entry, which is its kind and its name."""
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


def index_by_key(entries: Iterable[Entry]) -> dict[Key, Entry]:
    """Return the entries in a dictionary, by their keys."""
    return {get_entry_key(entry): entry for entry in entries}


def make_add_operation(entry: Entry, old_entry: Entry | None) -> Operation[Any]:
    """Return the operation that creates an entry or, if there is an old entry `old_entry`, changes the old one."""
    match entry:
        case Peer():
            return operations.AddPeer(peer=entry)
        case Exchange():
            return operations.AddExchange(name=entry.name, type=entry.type, alternate=entry.alternate)
        case BindingDeclaration():
            return operations.BindQueue.from_declaration(entry, replaces=old_entry is not None)
        case Link():
            return operations.AddLink(link=entry)
        case Bridge():
            return operations.AddBridge(bridge=entry) if old_entry is None else operations.ChangeBridge(bridge=entry)


def make_delete_operation(entry: Entry) -> operations.FederationOperation:
    """Return the operation that deletes an entry."""
    match entry:
        case Peer():
            return operations.DeletePeer(name=entry.tag)
        case Exchange():
            return operations.DeleteExchange(name=entry.name)
        case BindingDeclaration():
            return operations.UnbindQueue(exchange=entry.exchange, queue=entry.queue, key=entry.key)
        case Link():
            return operations.CloseLink(name=entry.name)
        case Bridge():
            return operations.CloseBridge(name=entry.name)


def differ(entry: Entry, other_entry: Entry) -> bool:
    """Return whether entries differ as JSON: in Python, 1 and True are equal."""
    return encode(entry) != encode(other_entry)


def describe_changes(old_entry: Entry, entry: Entry) -> str:
    """Describe the fields that change, with their old and new values."""
    before, after = (decode(encode(version), dict[str, Raw], of="an entry") for version in (old_entry, entry))
    names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    texts = [tuple(bytes(fields.get(name, b"unset")).decode() for fields in (before, after)) for name in names]
    return ", ".join(f"{name} {old} → {new}" for name, (old, new) in zip(names, texts, strict=True))


def describe_entry(entry: Entry) -> str:
    """Describe the fields of an entry, without its name."""
    match entry:
        case Peer():
            rules = {"pulls": entry.pulls, "pushes": entry.pushes, "takes from": entry.queues}
            leads = [f"leads to {' '.join(entry.leads)}"] if entry.leads else []
            return ", ".join([*(f"{may} {' '.join(what) or 'nothing'}" for may, what in rules.items()), *leads])
        case Exchange():
            return str(entry.type) + (f", else {entry.alternate}" if entry.alternate else "")
        case BindingDeclaration():
            return encode(entry.arguments).decode() if entry.arguments else ""
        case Link():
            return f"to {entry.peer}"
        case Bridge():
            return f"{entry.kind} from {entry.src} to {entry.dest}" + (f" by {entry.key}" if entry.key else "")
