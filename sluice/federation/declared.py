"""Declarations of exchanges, bindings, links and routes, by deployments or operators. Pure.

A sweep creates declared objects that are missing. It removes objects that were declared by the previous deployment and
no longer are. Objects that were never declared stay.
"""

from collections.abc import Mapping
from typing import Any

from sluice.codec import Format, Struct, convert, decode, encode
from sluice.errors import BadBinding, BadRoute, Malformed
from sluice.federation.links.links import Bridge, Link
from sluice.federation.matching.bindings import Binding
from sluice.federation.matching.exchanges import Exchange
from sluice.federation.matching.typed_values import StoredValue, from_stored, to_stored


class BindingDeclaration(Struct, frozen=True, kw_only=True):
    """A declared binding. `queue` is the queue's logical or SQS name."""

    exchange: str
    queue: str
    key: str = ""
    arguments: Mapping[str, StoredValue] = {}

    @classmethod
    def from_binding(cls, binding: Binding, *, queue: str | None = None) -> "BindingDeclaration":
        """Return a binding's declaration. `queue`, if passed, replaces the binding's queue name."""
        return cls(
            exchange=binding.exchange,
            queue=queue or binding.queue,
            key=binding.key,
            arguments=to_stored(binding.arguments),
        )

    def binding(self, *, queue: str | None = None) -> Binding:
        """Return the declared binding. `queue`, if passed, replaces the declared queue name."""
        arguments = from_stored(self.arguments)
        return Binding(exchange=self.exchange, queue=queue or self.queue, key=self.key, arguments=arguments)


class Declared(Struct, frozen=True, kw_only=True):
    """The objects that a deployment declares, in the order in which the deployment lists them."""

    exchanges: tuple[Exchange, ...] = ()
    bindings: tuple[BindingDeclaration, ...] = ()
    links: tuple[Link, ...] = ()
    routes: tuple[Bridge, ...] = ()

    @property
    def entries(self) -> tuple[Exchange | BindingDeclaration | Link | Bridge, ...]:
        """All declared objects. Each object comes after those on which it depends."""
        return (*self.exchanges, *self.bindings, *self.links, *self.routes)

    @classmethod
    def parse(cls, document: str | Mapping[str, Any]) -> "Declared":
        """Parse a declaration from JSON, as text or decoded. Raises a `BadRoute` that names the invalid place."""
        try:
            of = "what is declared"
            return decode(document, cls, of=of) if isinstance(document, str) else convert(document, cls, of=of)
        except (Malformed, BadBinding) as error:
            raise BadRoute(str(error)) from None

    def to_json(self) -> str:
        """Encode the declaration as JSON. Equal declarations have equal JSON."""
        return encode(self).decode()


DECLARED = Format(kind="declared", version=1, type=Declared)
