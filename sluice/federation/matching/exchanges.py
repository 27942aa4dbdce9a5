"""Exchanges, to which producers publish messages, and their types. Pure."""

import re
from collections.abc import Mapping
from enum import StrEnum

from sluice.codec import Struct
from sluice.errors import BadBinding
from sluice.federation.matching.headers import HeadersIndex
from sluice.federation.matching.indexes import BindingIndex, DirectIndex, FanoutIndex
from sluice.federation.matching.topics import TopicIndex

MAX_NAME_CHARACTERS = 127
_NAME = re.compile(rf"[A-Za-z0-9_.:-]{{1,{MAX_NAME_CHARACTERS}}}")


class ExchangeType(StrEnum):
    """The type of an exchange, which determines how bindings match messages."""

    DIRECT = "direct"
    TOPIC = "topic"
    FANOUT = "fanout"
    HEADERS = "headers"

    @property
    def follows_keys(self) -> bool:
        """Return whether an exchange of this type selects messages by their keys."""
        return self.index_class.follows_keys

    @property
    def index_class(self) -> type[BindingIndex]:
        """The class of index that finds the bindings that match a message."""
        return _INDEXES[self]


_INDEXES: Mapping[ExchangeType, type[BindingIndex]] = {
    ExchangeType.DIRECT: DirectIndex,
    ExchangeType.TOPIC: TopicIndex,
    ExchangeType.FANOUT: FanoutIndex,
    ExchangeType.HEADERS: HeadersIndex,
}


class Exchange(Struct, frozen=True, kw_only=True):
    """An exchange. Messages that match no binding go to the exchange `alternate`, if there is one."""

    name: str
    type: ExchangeType
    alternate: str | None = None

    def __post_init__(self) -> None:
        """Check the exchange's name. Raises `BadBinding`."""
        if not _NAME.fullmatch(self.name):
            raise BadBinding(f"an exchange's name is 1 to {MAX_NAME_CHARACTERS} of A-Za-z0-9_.:-, not {self.name!r}")


# Every site has these exchanges, with Qpid's names.
STANDARD_EXCHANGES = (
    Exchange(name="amq.direct", type=ExchangeType.DIRECT),
    Exchange(name="amq.topic", type=ExchangeType.TOPIC),
    Exchange(name="amq.fanout", type=ExchangeType.FANOUT),
    Exchange(name="amq.match", type=ExchangeType.HEADERS),
)


def list_alternates(exchange: str, exchanges: Mapping[str, Exchange]) -> tuple[str, ...]:
    """Return the exchange, its alternate exchange, the alternate's alternate, and so on, each once.

    Raises `BadBinding` if an alternate exchange is missing.
    """
    alternates: dict[str, None] = {}
    name: str | None = exchange
    while name is not None and name not in alternates:
        if name not in exchanges:
            raise BadBinding(f"{exchange}: no such alternate exchange: {name}")
        alternates[name] = None
        name = exchanges[name].alternate
    return tuple(alternates)
