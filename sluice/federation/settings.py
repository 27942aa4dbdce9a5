"""Settings of the functions that federate, from their environment variables: apart, so that other bundles lack them."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from sluice.errors import BadBinding
from sluice.federation.declared import Declared
from sluice.federation.links.registry import Address
from sluice.federation.router import Ingress
from sluice.settings import Variables


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeSettings:
    """Settings of the exchange function. `ingresses` are by queue name."""

    site: str
    table: str
    dead_letters_url: str
    ingresses: Mapping[str, Ingress]

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> "ExchangeSettings":
        """From the function's environment."""
        variables = Variables(environment)
        return cls(
            site=variables.text("SITE_TAG"),
            table=variables.text("FEDERATION_TABLE"),
            dead_letters_url=variables.text("DEAD_LETTERS_URL"),
            ingresses=variables.parsed("INGRESSES", _ingresses),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BridgeSettings:
    """Settings of the bridge function."""

    site: str
    table: str
    dead_letters_url: str
    ticks_queue_url: str

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> "BridgeSettings":
        """From the function's environment."""
        variables = Variables(environment)
        return cls(
            site=variables.text("SITE_TAG"),
            table=variables.text("FEDERATION_TABLE"),
            dead_letters_url=variables.text("DEAD_LETTERS_URL"),
            ticks_queue_url=variables.text("TICKS_QUEUE_URL"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteNames:
    """Which queues the site may send to and read: those that the stacks made, by their names there, and patterns.

    Of those made some are `taken`: the site reads them itself, to split them or to count.
    """

    queues: Mapping[str, str]
    patterns: tuple[str, ...]
    taken: frozenset[str] = frozenset()

    def physical(self, name: str) -> str:
        """The name that SQS knows a queue by. Raises `BadBinding` for one that the functions may not touch."""
        if name in self.queues:
            return self.queues[name]
        if name in self.queues.values() or any(fnmatchcase(name, pattern) for pattern in self.patterns):
            return name
        known = ", ".join([*sorted(self.queues), *self.patterns]) or "none"
        raise BadBinding(f"{name}: not a queue that this site may use; there are {known} (federation.queue_names)")

    def readable(self, name: str) -> str:
        """The same of a queue that a route may read. Raises `BadBinding` for others."""
        physical = self.physical(name)
        if self.shown(physical) in self.taken:
            raise BadBinding(f"{name}: the site reads it itself, a route would get a part of it")
        return physical

    def shown(self, physical: str) -> str:
        """The name that people know a queue by."""
        return next((name for name, made in self.queues.items() if made == physical), physical)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinksSettings:
    """Settings of the links function."""

    here: Address
    table: str
    dead_letters_url: str
    ticks_queue_url: str
    bridge_function: str
    bridge_dead_letters_arn: str
    fifo_bridge_dead_letters_arn: str
    peer_accounts: frozenset[str]
    counts_settle_s: int
    names: SiteNames
    declared: Declared

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> "LinksSettings":
        """From the function's environment."""
        variables = Variables(environment)
        return cls(
            here=variables.parsed("SITE", lambda text: Address(**json.loads(text))),
            table=variables.text("FEDERATION_TABLE"),
            dead_letters_url=variables.text("DEAD_LETTERS_URL"),
            ticks_queue_url=variables.text("TICKS_QUEUE_URL"),
            bridge_function=variables.text("BRIDGE_FUNCTION"),
            bridge_dead_letters_arn=variables.text("BRIDGE_DEAD_LETTERS_ARN"),
            fifo_bridge_dead_letters_arn=variables.text("FIFO_BRIDGE_DEAD_LETTERS_ARN"),
            peer_accounts=frozenset(variables.parsed("PEER_ACCOUNTS", json.loads)),
            counts_settle_s=variables.number("COUNTS_SETTLE_S"),
            names=variables.parsed("QUEUES", _names),
            declared=variables.parsed("DECLARED", Declared.parse),
        )

    @property
    def arn_prefix(self) -> str:
        """An ARN of the site's queues without the name."""
        return self.bridge_dead_letters_arn.rsplit(":", 1)[0] + ":"


def _ingresses(text: str) -> dict[str, Ingress]:
    return {name: Ingress(**fields) for name, fields in json.loads(text).items()}


def _names(text: str) -> SiteNames:
    document: dict[str, Any] = json.loads(text)
    taken = frozenset(document["taken"])
    return SiteNames(queues=document["made"], patterns=tuple(document["patterns"]), taken=taken)
