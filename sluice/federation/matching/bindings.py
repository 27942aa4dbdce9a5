"""Bindings: which queue gets what of an exchange; all of a site's as they are stored, and as they change. Pure.

A snapshot is all of them at one version, in pages; what came after it is stored as changes. Whoever works with them
makes a replica of its own, with what it needs: the writer's, and the one that messages find
their way by, are in `replicas`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import msgspec

from sluice.codec import Format, Struct, encode
from sluice.errors import BadBinding, BadSnapshot
from sluice.federation.matching.exchanges import STANDARD_EXCHANGES, Exchange, ExchangeType
from sluice.federation.matching.indexes import MAX_ARGUMENTS, MAX_KEY_CHARACTERS, BoundKeys
from sluice.federation.matching.tracing import Crossing
from sluice.federation.matching.typed_values import Headers, to_stored

BindingId = tuple[str, str, str]
MAX_CHANGE_BYTES = 380 * 1024  # of a change as it is stored: an item has 400 KB, keys and all


class Binding(msgspec.Struct, frozen=True, kw_only=True):
    """A queue's claim on an exchange's messages. Known by exchange, queue and key; the arguments belong to it."""

    exchange: str
    queue: str
    key: str = ""
    arguments: Headers = msgspec.field(default_factory=dict)

    @property
    def id(self) -> BindingId:
        """What no other binding of the site has."""
        return self.exchange, self.queue, self.key

    def check(self, type_: ExchangeType) -> None:
        """Check the binding to an exchange of the type. Raises `BadBinding` where it can't be one."""
        if len(self.key) > MAX_KEY_CHARACTERS:
            raise BadBinding(f"a key of {len(self.key)} characters, more than {MAX_KEY_CHARACTERS}")
        if len(self.arguments) > MAX_ARGUMENTS:
            raise BadBinding(f"{len(self.arguments)} arguments, more than {MAX_ARGUMENTS}")
        try:
            encode((self.key, to_stored(self.arguments)))
        except UnicodeEncodeError as error:
            raise BadBinding(f"key and arguments are no Unicode text: {error}") from None
        type_.index_class.check(self.arguments)


class Destination(Struct, frozen=True, kw_only=True):
    """A queue that can be bound. `crossing` where it is a bridge's; `feeds_route` where a queue route reads it."""

    queue: str
    url: str
    crossing: Crossing | None = None
    feeds_route: bool = False

    @property
    def is_fifo(self) -> bool:
        """Whether SQS keeps its messages in order."""
        return self.url.endswith(".fifo")

    @property
    def goes_on(self) -> bool:
        """Whether the queue's messages go to a peer, and so need their metadata whole."""
        return self.crossing is not None or self.feeds_route


class Bindings(Struct, frozen=True, kw_only=True):
    """A site's exchanges, its bound queues, and by exchange, queue and key the arguments of its bindings.

    Or a page of them: the first has the exchanges, and each the queues of its bindings that no page before has.
    """

    version: int = 0
    exchanges: tuple[Exchange, ...] = STANDARD_EXCHANGES
    queues: tuple[Destination, ...] = ()
    bound: Mapping[str, Mapping[str, BoundKeys]] = {}


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


_PAGE = Format(kind="bindings", version=1, type=Bindings)
CHANGE = Format(kind="bindings change", version=1, type=BindingsChange)


def parts_of(bound: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, str, Any]]:
    """Go through what is by exchange and queue."""
    return ((exchange, queue, keys) for exchange, queues in bound.items() for queue, keys in queues.items())


def pack(page: Bindings) -> bytes:
    """Write bindings for storage, or a page of them, which others may follow. Equal ones give equal bytes."""
    return _PAGE.pack(page)


def _unpack(snapshot: bytes | None) -> Iterator[Bindings]:
    """Read what `pack` wrote, page by page; what every site begins with where there is nothing."""
    if snapshot is None:
        yield Bindings()
        return
    page, rest = _PAGE.unpack_first(snapshot)
    yield page
    while rest:
        page, rest = _PAGE.unpack_first(rest)
        yield page


class News(msgspec.Struct, frozen=True, kw_only=True):
    """What has come in the bindings' log after a version. `changes` lead to `version`, one by one.

    They begin at the version that was asked for; or, where that is too long ago, or none was, at `base`, the version
    of `snapshot`, which is None for a site where there never was one.
    """

    version: int
    changes: Sequence[bytes] = ()
    base: int | None = None
    snapshot: bytes | None = None


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
    pages = _unpack(snapshot)
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
