"""Bindings: which queue gets what of an exchange, one by one and all of a site's as they are stored. Pure.

A snapshot is all of them at one version; what came after it is stored as `changes`. Who works with them makes a replica
of its own, with what it needs: the writer's is `site`, the one that messages find their way with is `routing`.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, cast

from msgspec import Meta, Raw

from sluice.codec import Format, Struct, decode, encode
from sluice.errors import BadBinding, BadSnapshot, Malformed
from sluice.federation.matching.exchanges import STANDARD_EXCHANGES, Exchange, ExchangeType
from sluice.federation.matching.headers import Conditions
from sluice.federation.matching.tracing import Crossing
from sluice.federation.matching.typed_values import Headers, StoredValue, to_stored

MAX_KEY_CHARACTERS = 256
MAX_ARGUMENTS = 64

BindingId = tuple[str, str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """A queue's claim on an exchange's messages. Known by exchange, queue and key; the arguments belong to it."""

    exchange: str
    queue: str
    key: str = ""
    arguments: Headers = field(default_factory=dict)

    @property
    def id(self) -> BindingId:
        """What no other binding of the site has."""
        return self.exchange, self.queue, self.key


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


Key = Annotated[str, Meta(max_length=MAX_KEY_CHARACTERS)]
Arguments = Annotated[Mapping[str, StoredValue], Meta(max_length=MAX_ARGUMENTS)]
BoundKeys = Mapping[Key, Arguments]


class Bindings(Struct, frozen=True, kw_only=True):
    """A site's exchanges, its bound queues, and by exchange, queue and key the arguments of its bindings."""

    version: int = 0
    exchanges: tuple[Exchange, ...] = STANDARD_EXCHANGES
    queues: tuple[Destination, ...] = ()
    bound: Mapping[str, Mapping[str, BoundKeys]] = {}

    def parts(self) -> Iterator[tuple[str, str, BoundKeys]]:
        """Go through the exchanges and queues with the keys between them."""
        return parts_of(self.bound)


class UnreadBindings(Struct, frozen=True, kw_only=True):
    """The same of a snapshot, read part by part: of many bindings there is never more than one form in memory."""

    version: int = 0
    exchanges: tuple[Exchange, ...] = STANDARD_EXCHANGES
    queues: tuple[Destination, ...] = ()
    bound: Mapping[str, Mapping[str, Raw]] = {}

    def parts(self) -> Iterator[tuple[str, str, BoundKeys]]:
        """Go through the exchanges and queues with the keys between them, once. Raises `BadSnapshot`."""
        type_ = cast("type[BoundKeys]", dict[Key, Arguments])
        for exchange, queues in self.bound.items():
            for queue, keys in queues.items():
                try:
                    yield exchange, queue, decode(keys, type_, of=f"bindings of {queue}")
                except Malformed as error:
                    raise BadSnapshot(str(error)) from None


Snapshot = Bindings | UnreadBindings


def parts_of(bound: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, str, Any]]:
    """Go through what is by exchange and queue."""
    return ((exchange, queue, keys) for exchange, queues in bound.items() for queue, keys in queues.items())


def check(binding: Binding, exchange: Exchange) -> None:
    """Check a binding to the exchange. Raises `BadBinding` where it can't be one."""
    if len(binding.key) > MAX_KEY_CHARACTERS:
        raise BadBinding(f"a key of {len(binding.key)} characters, more than {MAX_KEY_CHARACTERS}")
    if len(binding.arguments) > MAX_ARGUMENTS:
        raise BadBinding(f"{len(binding.arguments)} arguments, more than {MAX_ARGUMENTS}")
    try:
        encode((binding.key, to_stored(binding.arguments)))
    except UnicodeEncodeError as error:
        raise BadBinding(f"key and arguments are no Unicode text: {error}") from None
    if exchange.type is ExchangeType.HEADERS:
        Conditions.of(binding.arguments)


def known(name: str, among: Mapping[str, Any] | Iterable[str], *, what: str) -> None:
    """Check that something refers to what is there. Raises `BadBinding`."""
    if name not in among:
        raise BadBinding(f"no such {what}: {name}")


_FORMAT = Format(kind="bindings", version=1, type=Bindings)
_UNREAD = Format(kind="bindings", version=1, type=UnreadBindings)


def pack(bindings: Bindings) -> bytes:
    """Write the bindings for storage. Equal ones give equal bytes."""
    return _FORMAT.pack(bindings)


def unpack(snapshot: bytes | None) -> Snapshot:
    """Read what `pack` wrote; what every site begins with where there is none.

    Raises `BadSnapshot`; what is wrong within its parts is found when they are read.
    """
    if snapshot is None:
        return Bindings()
    try:
        return _UNREAD.unpack(snapshot)
    except BadBinding as error:
        raise BadSnapshot(f"{error}") from None
