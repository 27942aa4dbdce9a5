"""What a deployment declares of exchanges, bindings, links and routes, and how it comes to differ. Pure.

The same objects can be made at run time; what is declared is made again where it is missing, and what is declared no
longer goes. What was never declared stays.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sluice.errors import BadRoute, SluiceError
from sluice.federation.codec import bridge_of, link_of, plain_bridge
from sluice.federation.links.links import Bridge, Link
from sluice.federation.matching.bindings import Binding
from sluice.federation.matching.exchanges import Exchange, ExchangeType
from sluice.federation.matching.typed_values import of_json, to_json


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """In order."""

    exchanges: tuple[Exchange, ...] = ()
    bindings: tuple[Binding, ...] = ()
    links: tuple[Link, ...] = ()
    routes: tuple[Bridge, ...] = ()

    @classmethod
    def parse(cls, text: str) -> "Declared":
        """From JSON, as `to_json` writes it. Raises a `BadConfiguration` or ValueError that names the place."""
        return cls.of(json.loads(text))

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> "Declared":
        """See `parse`."""
        return cls(
            exchanges=tuple(_each(document, "exchanges", exchange_of)),
            bindings=tuple(_each(document, "bindings", binding_of)),
            links=tuple(_each(document, "links", link_of)),
            routes=tuple(_each(document, "routes", bridge_of)),
        )

    def to_json(self) -> str:
        """Equal declarations give equal texts."""
        return json.dumps(
            {
                "exchanges": [plain_exchange(exchange) for exchange in self.exchanges],
                "bindings": [plain_binding(binding) for binding in self.bindings],
                "links": [plain_link(link) for link in self.links],
                "routes": [plain_bridge(route) for route in self.routes],
            }
        )


def plain_exchange(exchange: Exchange) -> dict[str, Any]:
    """An exchange as a JSON object."""
    return {"name": exchange.name, "type": exchange.type.value, "alternate": exchange.alternate}


def exchange_of(document: Mapping[str, Any]) -> Exchange:
    """Raises `BadBinding`, or ValueError for what is no exchange."""
    kinds = ", ".join(ExchangeType)
    if document.get("type") not in list(ExchangeType):
        raise ValueError(f"type {document.get('type')!r} is none of {kinds}")
    name, alternate = document.get("name"), document.get("alternate")
    if not isinstance(name, str) or not isinstance(alternate, str | None):
        raise ValueError("name or alternate is no text")  # noqa: TRY004 - one type for whatever is wrong with a value
    return Exchange(name=name, type=ExchangeType(document["type"]), alternate=alternate)


def plain_binding(binding: Binding) -> dict[str, Any]:
    """A binding as a JSON object."""
    return {
        "exchange": binding.exchange,
        "queue": binding.queue,
        "key": binding.key,
        "arguments": to_json(binding.arguments),
    }


def binding_of(document: Mapping[str, Any]) -> Binding:
    """Raises ValueError or `Malformed` for what is no binding."""
    for name in ("exchange", "queue"):
        if not isinstance(document.get(name), str):
            raise ValueError(f"{name} is no text")  # noqa: TRY004 - one type for whatever is wrong with a value
    key, arguments = document.get("key", ""), document.get("arguments")
    arguments = {} if arguments is None else arguments
    if not isinstance(key, str) or not isinstance(arguments, Mapping):
        raise ValueError("key is no text, or arguments are no object")  # noqa: TRY004 - one type for whatever is wrong
    return Binding(exchange=document["exchange"], queue=document["queue"], key=key, arguments=of_json(dict(arguments)))


def plain_link(link: Link) -> dict[str, Any]:
    """A link as a JSON object."""
    return {
        "name": link.name,
        "peer": link.peer,
        "endpoints": [
            {
                "region": endpoint.region,
                "account": endpoint.account,
                "control_queue_url": endpoint.control_queue_url,
                "sqs_url": endpoint.sqs_url,
            }
            for endpoint in link.endpoints
        ],
        "role_arn": link.role_arn,
        "external_id": link.external_id,
        "durable": link.durable,
    }


def _each(document: Mapping[str, Any], section: str, parse: Any) -> Iterable[Any]:
    listed = document.get(section, [])
    if not isinstance(listed, list) or not all(isinstance(each, Mapping) for each in listed):
        raise BadRoute(f"{section} is no list of objects")
    for number, each in enumerate(listed):
        try:
            yield parse(each)
        except (ValueError, KeyError, TypeError, SluiceError) as error:
            raise BadRoute(f"{section}[{number}]: {error}") from error
