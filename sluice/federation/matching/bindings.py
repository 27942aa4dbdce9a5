"""Bindings: which queue gets what of an exchange. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from sluice.errors import BadBinding
from sluice.federation.matching.exchanges import Exchange, ExchangeType
from sluice.federation.matching.headers import Conditions
from sluice.federation.matching.typed_values import Headers, same

MAX_KEY_CHARACTERS = 256
MAX_ARGUMENTS = 64

BindingId = tuple[str, str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """A queue's wish for an exchange's messages. Known by exchange, queue and key; the arguments belong to it."""

    exchange: str
    queue: str
    key: str = ""
    arguments: Headers = field(default_factory=dict)

    @property
    def id(self) -> BindingId:
        """What no other binding of the site has."""
        return self.exchange, self.queue, self.key


def check(binding: Binding, exchange: Exchange) -> None:
    """Raises `BadBinding` where the binding can't be one of the exchange."""
    check_limits(binding)
    if exchange.type is ExchangeType.HEADERS:
        Conditions.of(binding.arguments)


def check_limits(binding: Binding) -> None:
    """Raises `BadBinding` where the key or the arguments are too much for any exchange."""
    if len(binding.key) > MAX_KEY_CHARACTERS:
        raise BadBinding(f"a key of {len(binding.key)} characters, more than {MAX_KEY_CHARACTERS}")
    if len(binding.arguments) > MAX_ARGUMENTS:
        raise BadBinding(f"{len(binding.arguments)} arguments, more than {MAX_ARGUMENTS}")


def is_new(binding: Binding, existing: Binding | None) -> bool:
    """Whether the binding adds to what is there: False where `existing`, which has its id, is the same.

    Raises `BadBinding` where they differ: to change the arguments, unbind first.
    """
    if existing is None:
        return True
    if not same(binding.arguments, existing.arguments):
        raise BadBinding(f"{binding.queue} is bound to {binding.exchange} by {binding.key!r} with other arguments")
    return False


def distinct(bindings: Iterable[Binding]) -> tuple[Binding, ...]:
    """The bindings, each once, in order. Raises `BadBinding` where two with one id differ."""
    found: dict[BindingId, Binding] = {}
    for binding in bindings:
        if is_new(binding, found.get(binding.id)):
            found[binding.id] = binding
    return tuple(found.values())
