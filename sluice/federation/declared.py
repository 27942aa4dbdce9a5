"""What is said of exchanges, bindings, links and routes: by a deployment that declares them, and by operators. Pure.

The same objects can be made at run time; what is declared is made again where it is missing, and what is declared no
longer goes. What was never declared stays.
"""

from collections.abc import Mapping
from typing import Any

from sluice.codec import Format, Struct, convert, decode, encode
from sluice.errors import BadBinding, BadRoute, Malformed
from sluice.federation.links.links import Bridge, Link
from sluice.federation.matching.bindings import Binding
from sluice.federation.matching.exchanges import Exchange
from sluice.federation.matching.typed_values import StoredValue, of_stored, to_stored


class BindingDeclaration(Struct, frozen=True, kw_only=True):
    """A binding that is to be. `queue` is the name that people know the queue by, or SQS."""

    exchange: str
    queue: str
    key: str = ""
    arguments: Mapping[str, StoredValue] = {}

    @classmethod
    def of(cls, binding: Binding, *, queue: str | None = None) -> "BindingDeclaration":
        """Return the binding as people know it, of the queue with this name."""
        return cls(
            exchange=binding.exchange,
            queue=queue or binding.queue,
            key=binding.key,
            arguments=to_stored(binding.arguments),
        )

    def binding(self, *, queue: str | None = None) -> Binding:
        """Return the binding itself, of the queue that SQS knows by this name."""
        arguments = of_stored(self.arguments)
        return Binding(exchange=self.exchange, queue=queue or self.queue, key=self.key, arguments=arguments)


class Declared(Struct, frozen=True, kw_only=True):
    """What a deployment declares, in order."""

    exchanges: tuple[Exchange, ...] = ()
    bindings: tuple[BindingDeclaration, ...] = ()
    links: tuple[Link, ...] = ()
    routes: tuple[Bridge, ...] = ()

    @classmethod
    def parse(cls, text: str) -> "Declared":
        """From JSON, as `to_json` writes it. Raises a `BadRoute` that names the place."""
        try:
            return decode(text, cls, of="what is declared")
        except (Malformed, BadBinding) as error:
            raise BadRoute(str(error)) from None

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> "Declared":
        """From an object that was read already. Raises a `BadRoute` that names the place."""
        try:
            return convert(document, cls, of="what is declared")
        except (Malformed, BadBinding) as error:
            raise BadRoute(str(error)) from None

    def to_json(self) -> str:
        """Equal declarations give equal texts."""
        return encode(self).decode()


DECLARED = Format(kind="declared", version=1, type=Declared)
