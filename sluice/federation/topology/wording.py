"""What a plan says of entries: what they are, what changes, and what it costs while they aren't there. Pure."""

from msgspec import Raw

from sluice.codec import decode, encode
from sluice.federation.declared import BindingDeclaration
from sluice.federation.links.links import Bridge, Link
from sluice.federation.links.peers import Peer
from sluice.federation.matching.exchanges import Exchange
from sluice.federation.topology.states import Entry


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
