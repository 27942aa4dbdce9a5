"""The settings of the rendezvous' functions, and those of what they publish events with."""

from sluice.codec import Struct
from sluice.rendezvous.protocol.messages import Bridge, RelayPattern
from sluice.settings import Natural, Settings


class EventSettings(Struct, frozen=True, kw_only=True):
    """Where rendezvous events go. `geoip_file` is a database of countries, relative to the function's code."""

    exchange: str
    ingress_url: str
    site: str
    geoip_file: str | None = None


class TableSettings(Settings, frozen=True, kw_only=True):
    """Settings of the functions that need no more than the table: sweeper and counters."""

    table: str
    dead_letters_url: str


class BrokerSettings(TableSettings, frozen=True, kw_only=True):
    """Settings of the broker function. Without `events` none is published."""

    timeouts_queue_url: str
    bridges: tuple[Bridge, ...]
    events: EventSettings | None = None


class ProxySettings(TableSettings, frozen=True, kw_only=True):
    """Settings of the proxy function. Without `events` none is published."""

    bridges: tuple[Bridge, ...]
    allowed_relay_pattern: RelayPattern
    held_proxies_min: Natural
    held_proxies_max: Natural
    events: EventSettings | None = None
