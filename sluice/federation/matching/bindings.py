"""Bindings: which queue gets what of an exchange; all of a site's as they are stored, and as they change. Pure.

A snapshot is all of them at one version, in pages; what came after it is stored as changes. Whoever works with them
makes a replica of its own, with what it needs: the writer's is `site`, the one that messages find their way by is
`routing`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from typing import Any, Protocol, TypeVar

import msgspec

from sluice.codec import Format, Struct, encode
from sluice.errors import BadBinding, BadSnapshot
from sluice.federation.matching.exchanges import STANDARD_EXCHANGES, Exchange, ExchangeType, way
from sluice.federation.matching.indexes import MAX_ARGUMENTS, MAX_KEY_CHARACTERS, BoundKeys
from sluice.federation.matching.tracing import Crossing
from sluice.federation.matching.typed_values import Headers, to_stored

BindingId = tuple[str, str, str]


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


class QueueTable(MutableMapping[str, Destination]):
    """Bound queues by name, in little memory: there may be a hundred thousand.

    The URLs of a site's queues are all one text and the queue's name, as the first queue's is, and most queues have
    nothing else to be known of: of these the name is enough.
    """

    __slots__ = ("_base", "_short")

    def __init__(self) -> None:
        self._base: str | None = None
        self._short: dict[str, Destination | str] = {}

    def __getitem__(self, queue: str) -> Destination:
        short = self._short[queue]
        return Destination(queue=short, url=f"{self._base}{short}") if isinstance(short, str) else short

    def __setitem__(self, queue: str, destination: Destination) -> None:
        if self._base is None:
            self._base = destination.url.removesuffix(queue)
        is_plain = destination == Destination(queue=queue, url=f"{self._base}{queue}")
        self._short[queue] = queue if is_plain else destination

    def __delitem__(self, queue: str) -> None:
        del self._short[queue]

    def __iter__(self) -> Iterator[str]:
        return iter(self._short)

    def __len__(self) -> int:
        return len(self._short)

    def name(self, queue: str) -> str:
        """Give the one text in memory that is the queue's name. Raises `BadBinding` for one that isn't there."""
        short = self._short.get(queue)
        if short is None:
            raise BadBinding(f"no such queue: {queue}")
        return short if isinstance(short, str) else short.queue


class BindingsReplica:
    """What every replica knows that has queues: a `Replica`, changed in place. Subclasses know what is bound."""

    __slots__ = ("_exchanges", "_queues", "version")

    def __init__(self, bindings: Bindings) -> None:
        """Take bindings in. Raises `BadBinding` where something refers to what isn't there."""
        self.version = bindings.version
        self._exchanges: dict[str, Exchange] = {}
        self._queues = QueueTable()
        self.apply(BindingsChange(exchanges=bindings.exchanges, queues=bindings.queues, bound=bindings.bound))

    def exchange(self, name: str) -> Exchange:
        """Find the exchange of this name. Raises `BadBinding` where there is none."""
        if name not in self._exchanges:
            raise BadBinding(f"no such exchange: {name}")
        return self._exchanges[name]

    def apply(self, change: BindingsChange) -> None:
        """Take in the next version, as `Replica` says."""
        self._exchanges.update((exchange.name, exchange) for exchange in change.exchanges)
        for exchange in change.exchanges:
            way(exchange.name, self._exchanges)
        for destination in change.queues:
            self._queues[destination.queue] = destination
        for name, queue, keys in parts_of(change.unbound):
            self._unbind(self.exchange(name), self._queues.name(queue), keys)
        for name, queue, keys in parts_of(change.bound):
            self._bind(self.exchange(name), self._queues.name(queue), keys)
        for queue in change.forgotten:
            self._queues.pop(queue, None)
        for name in change.gone_exchanges:
            self._exchanges.pop(name, None)

    def _bind(self, exchange: Exchange, queue: str, keys: BoundKeys) -> None:
        """Note bindings. Raises `BadBinding` for arguments that can't be."""
        raise NotImplementedError

    def _unbind(self, exchange: Exchange, queue: str, keys: BoundKeys) -> None:
        """Forget bindings. Raises `BadBinding` where one isn't there."""
        raise NotImplementedError
