"""Bindings: which queue gets what of an exchange, one by one and all of a site's as they are stored. Pure.

What a message's way is found with is compiled from them, in `routing`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated

from msgspec import Meta

from sluice.codec import Format, Struct, encode
from sluice.errors import BadBinding, BadSnapshot
from sluice.federation.matching.exchanges import STANDARD_EXCHANGES, Exchange, ExchangeType, way
from sluice.federation.matching.headers import Conditions, match_of
from sluice.federation.matching.tracing import Crossing
from sluice.federation.matching.typed_values import Headers, StoredValue, of_stored, same, to_stored

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

    def __iter__(self) -> Iterator[Binding]:
        """Go through every binding."""
        for exchange in self.bound:
            yield from self.of(exchange)

    def of(self, exchange: str) -> Iterator[Binding]:
        """Go through one exchange's bindings; none where there is no such exchange."""
        for queue, keys in self.bound.get(exchange, {}).items():
            for key, arguments in keys.items():
                yield Binding(exchange=exchange, queue=queue, key=key, arguments=of_stored(arguments))

    @property
    def count(self) -> int:
        """How many bindings there are."""
        return sum(len(keys) for queues in self.bound.values() for keys in queues.values())

    def exchange(self, name: str) -> Exchange:
        """Find the exchange of this name. Raises `BadBinding` where there is none."""
        for each in self.exchanges:
            if each.name == name:
                return each
        raise BadBinding(f"no such exchange: {name}")

    def destination(self, queue: str) -> Destination | None:
        """Find the bound queue of this name."""
        return next((each for each in self.queues if each.queue == queue), None)

    def keys(self, exchange: str, queue: str) -> BoundKeys:
        """Find the keys by which a queue is bound to an exchange, with the arguments."""
        return self.bound.get(exchange, {}).get(queue, {})

    def lacks(self, binding: Binding) -> bool:
        """Whether the binding is to be added: not where it is there already.

        Raises `BadBinding` where it can't be one of its exchange, or is there with other arguments: unbind it first.
        """
        check(binding, self.exchange(binding.exchange))
        existing = self.keys(binding.exchange, binding.queue).get(binding.key)
        if existing is None:
            return True
        if not same(binding.arguments, of_stored(existing)):
            raise BadBinding(f"{binding.queue} is bound to {binding.exchange} by {binding.key!r} with other arguments")
        return False


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


_FORMAT = Format(kind="bindings", version=1, type=Bindings)


def pack(bindings: Bindings) -> bytes:
    """Write the bindings for storage. Equal ones give equal bytes."""
    return _FORMAT.pack(bindings)


def unpack(snapshot: bytes | None) -> Bindings:
    """Read what `pack` wrote; what every site begins with where there is none.

    Raises `BadSnapshot`, also where something refers to what isn't there: compiling meets no surprise.
    """
    if snapshot is None:
        return Bindings()
    try:
        bindings = _FORMAT.unpack(snapshot)
        _check_references(bindings)
    except BadBinding as error:
        raise BadSnapshot(f"{error}") from None
    return bindings


def _check_references(bindings: Bindings) -> None:
    """Look each exchange and queue up once, not once a binding."""
    exchanges = {each.name: each for each in bindings.exchanges}
    queues = {each.queue for each in bindings.queues}
    for name in exchanges:
        way(name, exchanges)
    for name, by_queue in bindings.bound.items():
        if missing := by_queue.keys() - queues:
            raise BadBinding(f"no such queue: {min(missing)}")
        if bindings.exchange(name).type is ExchangeType.HEADERS:
            for keys in by_queue.values():
                for arguments in keys.values():
                    match_of(of_stored(arguments))
