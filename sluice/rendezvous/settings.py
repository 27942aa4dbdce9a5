"""Settings of the rendezvous functions, and of the events that they publish."""

from sluice.codec import Struct
from sluice.rendezvous.protocol.messages import Bridge, RelayPattern
from sluice.settings import Natural, Settings


class EventSettings(Struct, frozen=True, kw_only=True):
    """Settings of a site's rendezvous events. `geoip_file` is a database of countries, relative to the bundle."""

    site: str
    geoip_file: str | None = None


class CountersSettings(Settings, frozen=True, kw_only=True):
    """Settings of the counters function: the exchange and the site of published events.

    `federation_table` has the exchange's bindings.
    """

    table: str
    exchange: str
    ingress_url: str
    site: str
    federation_table: str


class RendezvousSettings(Settings, frozen=True, kw_only=True):
    """Settings that broker, client, proxy and sweeper have. Without `events` no event is published.

    `waiting_table` has the offers and polls that wait, and no point-in-time recovery. New queues are named after the
    `stage`.
    """

    table: str
    dead_letters_url: str
    waiting_table: str
    events: EventSettings | None = None
    stage: str | None = None


class BrokerSettings(RendezvousSettings, frozen=True, kw_only=True):
    """Settings of the functions that take offers: the broker and the client function."""

    bridges: tuple[Bridge, ...]


class ProxySettings(RendezvousSettings, frozen=True, kw_only=True):
    """Settings of the proxy function, behind `trusted_hops` reverse proxies. It deletes answered offers' messages."""

    offers_url: str
    allowed_relay_pattern: RelayPattern
    held_proxies_min: Natural
    held_proxies_max: Natural
    trusted_hops: Natural = 0
