"""What a write changes of a site's bindings, as it is stored, and who takes it in. Pure."""

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol, TypeVar

from sluice.codec import Format, Struct
from sluice.errors import BadBinding, BadSnapshot
from sluice.federation.matching.bindings import Bindings, BoundKeys, Destination, unpack
from sluice.federation.matching.exchanges import Exchange


class BindingsChange(Struct, frozen=True, kw_only=True):
    """One version's difference to the version before, with all that a replica needs to follow.

    `queues` are new or known anew, the `forgotten` are bound nowhere any more. `unbound` are keys with the arguments
    that they had, by exchange and queue; they go before `bound` ones come, so a key in both has new arguments.
    """

    exchanges: tuple[Exchange, ...] = ()
    queues: tuple[Destination, ...] = ()
    unbound: Mapping[str, Mapping[str, BoundKeys]] = {}
    bound: Mapping[str, Mapping[str, BoundKeys]] = {}
    forgotten: tuple[str, ...] = ()
    gone_exchanges: tuple[str, ...] = ()


CHANGE = Format(kind="bindings change", version=1, type=BindingsChange)


class Replica(Protocol):
    """Bindings as one program needs them, at one version."""

    version: int

    def apply(self, change: BindingsChange) -> None:
        """Take in the next version. Raises `BadBinding` where it isn't a change of this one: then nothing is known."""


R = TypeVar("R", bound=Replica)


def replica_of(snapshot: bytes | None, make: Callable[[Bindings], R], *, version: int | None = None) -> R:
    """Make a replica of what is stored, at `version`, or at the one that the snapshot says. Raises `BadSnapshot`.

    `make` gets the first page; there is never more than one in memory.
    """
    pages = unpack(snapshot)
    try:
        replica = make(next(pages))
        for page in pages:
            replica.apply(BindingsChange(exchanges=page.exchanges, queues=page.queues, bound=page.bound))
    except BadBinding as error:
        raise BadSnapshot(str(error)) from None
    if version is not None:
        replica.version = version
    return replica


def follow(replica: Replica, changes: Iterable[bytes]) -> None:
    """Take in stored changes, each the next version. Raises `BadSnapshot`: the replica is of no use then."""
    for stored in changes:
        try:
            replica.apply(CHANGE.unpack(stored))
        except BadBinding as error:
            raise BadSnapshot(f"change {replica.version + 1} of the bindings: {error}") from None
        replica.version += 1
