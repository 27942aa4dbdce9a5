"""Bindings: which queue gets what of an exchange, one by one and all of a site's as they are stored. Pure.

A snapshot is all of them at one version, in pages; what came after it is stored as `changes`. Who works with them makes
a replica of its own, with what it needs: the writer's is `site`, the one that messages find their way by is `routing`.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from sluice.codec import Format, Struct, encode
from sluice.errors import BadBinding, BadSnapshot
from sluice.federation.matching.exchanges import STANDARD_EXCHANGES, Exchange, ExchangeType
from sluice.federation.matching.headers import Conditions
from sluice.federation.matching.tracing import Crossing
from sluice.federation.matching.typed_values import Headers, StoredValue, to_stored

MAX_KEY_CHARACTERS = 256
MAX_ARGUMENTS = 64

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


Short = Destination | str


class ShortDestinations:
    """Bound queues in little memory, of which there may be a hundred thousand.

    The URLs of a site's queues are all one text and the queue's name, as the first queue's is, and most queues have
    nothing else to be known of: of these the name is enough.
    """

    __slots__ = ("_base",)

    def __init__(self) -> None:
        self._base: str | None = None

    def short(self, destination: Destination) -> Short:
        """Make it short, where it can be."""
        if self._base is None:
            self._base = destination.url.removesuffix(destination.queue)
        return destination.queue if destination == self.whole(destination.queue) else destination

    def whole(self, short: Short) -> Destination:
        """Make what it was."""
        return Destination(queue=short, url=f"{self._base}{short}") if isinstance(short, str) else short


Key = Annotated[str, Meta(max_length=MAX_KEY_CHARACTERS)]
Arguments = Annotated[Mapping[str, StoredValue], Meta(max_length=MAX_ARGUMENTS)]
BoundKeys = Mapping[Key, Arguments]


class Bindings(Struct, frozen=True, kw_only=True):
    """A site's exchanges, its bound queues, and by exchange, queue and key the arguments of its bindings.

    Or a page of them: the first has the exchanges, and each the queues of its bindings that no page before has.
    """

    version: int = 0
    exchanges: tuple[Exchange, ...] = STANDARD_EXCHANGES
    queues: tuple[Destination, ...] = ()
    bound: Mapping[str, Mapping[str, BoundKeys]] = {}


def parts_of(bound: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, str, Any]]:
    """Go through what is by exchange and queue."""
    return ((exchange, queue, keys) for exchange, queues in bound.items() for queue, keys in queues.items())


def check(binding: Binding, type_: ExchangeType) -> None:
    """Check a binding to an exchange of the type. Raises `BadBinding` where it can't be one."""
    if len(binding.key) > MAX_KEY_CHARACTERS:
        raise BadBinding(f"a key of {len(binding.key)} characters, more than {MAX_KEY_CHARACTERS}")
    if len(binding.arguments) > MAX_ARGUMENTS:
        raise BadBinding(f"{len(binding.arguments)} arguments, more than {MAX_ARGUMENTS}")
    try:
        encode((binding.key, to_stored(binding.arguments)))
    except UnicodeEncodeError as error:
        raise BadBinding(f"key and arguments are no Unicode text: {error}") from None
    if type_ is ExchangeType.HEADERS:
        Conditions.of(binding.arguments)


def known(name: str, among: Mapping[str, Any] | Iterable[str], *, what: str) -> None:
    """Check that something refers to what is there. Raises `BadBinding`."""
    if name not in among:
        raise BadBinding(f"no such {what}: {name}")


_FORMAT = Format(kind="bindings", version=1, type=Bindings)


def pack(page: Bindings) -> bytes:
    """Write bindings for storage, or a page of them, which others may follow. Equal ones give equal bytes."""
    return _FORMAT.pack(page)


def unpack(snapshot: bytes | None) -> Iterator[Bindings]:
    """Read what `pack` wrote, page by page; what every site begins with where there is nothing.

    Who was first stored everything in one page. Raises `BadSnapshot`.
    """
    if snapshot is None:
        yield Bindings()
        return
    rest = snapshot
    while True:
        try:
            page, rest = _FORMAT.unpack_first(rest)
        except BadBinding as error:
            raise BadSnapshot(f"{error}") from None
        yield page
        if not rest:
            return
