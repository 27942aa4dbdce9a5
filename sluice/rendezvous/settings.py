"""The settings of the rendezvous' functions, and those of what they publish events with."""

from collections.abc import Mapping
from dataclasses import dataclass

from sluice.rendezvous.protocol.bridges import by_fingerprint, parse_bridges
from sluice.rendezvous.protocol.messages import Bridge, RelayPattern
from sluice.settings import Variables


@dataclass(frozen=True, slots=True, kw_only=True)
class EventSettings:
    """Where rendezvous events go. `geoip_file` is a database of countries, relative to the function's code."""

    exchange: str
    ingress_url: str
    site: str
    geoip_file: str | None

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> "EventSettings | None":
        """From a function's environment; None where no exchange is named: then no event is published."""
        if not environment.get("EVENTS_EXCHANGE"):
            return None
        variables = Variables(environment)
        return cls(
            exchange=variables.text("EVENTS_EXCHANGE"),
            ingress_url=variables.text("EVENTS_INGRESS_URL"),
            site=variables.text("SITE_TAG"),
            geoip_file=environment.get("GEOIP_FILE") or None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    """Settings of the broker function."""

    table: str
    dead_letters_url: str
    timeouts_queue_url: str
    bridges: Mapping[bytes, Bridge]
    events: EventSettings | None

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> "BrokerSettings":
        """From the function's environment."""
        variables = Variables(environment)
        return cls(
            table=variables.text("RENDEZVOUS_TABLE"),
            dead_letters_url=variables.text("DEAD_LETTERS_URL"),
            timeouts_queue_url=variables.text("TIMEOUTS_QUEUE_URL"),
            bridges=by_fingerprint(variables.parsed("BRIDGES", parse_bridges)),
            events=EventSettings.read(environment),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxySettings:
    """Settings of the proxy function."""

    table: str
    dead_letters_url: str
    bridges: Mapping[bytes, Bridge]
    allowed_relay_pattern: RelayPattern
    held_min: int
    held_max: int
    events: EventSettings | None

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> "ProxySettings":
        """From the function's environment."""
        variables = Variables(environment)
        return cls(
            table=variables.text("RENDEZVOUS_TABLE"),
            dead_letters_url=variables.text("DEAD_LETTERS_URL"),
            bridges=by_fingerprint(variables.parsed("BRIDGES", parse_bridges)),
            allowed_relay_pattern=RelayPattern.parse(environment.get("ALLOWED_RELAY_PATTERN", "")),
            held_min=variables.number("HELD_PROXIES_MIN"),
            held_max=variables.number("HELD_PROXIES_MAX"),
            events=EventSettings.read(environment),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSettings:
    """Settings of the functions that need no more than the table: sweeper and counters."""

    table: str
    dead_letters_url: str

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> "TableSettings":
        """From the function's environment."""
        variables = Variables(environment)
        return cls(table=variables.text("RENDEZVOUS_TABLE"), dead_letters_url=variables.text("DEAD_LETTERS_URL"))
