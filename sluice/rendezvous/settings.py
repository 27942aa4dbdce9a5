"""Settings of the rendezvous functions, and of the events that they publish."""

from sluice.codec import Struct
from sluice.rendezvous.protocol.messages import Bridge, RelayPattern
from sluice.settings import Natural, Settings


class EventSettings(Struct, frozen=True, kw_only=True):
    """Settings of a site's rendezvous events. `geoip_file` is the path of a countries database in the bundle."""

    site: str
    geoip_file: str | None = None


class CountersSettings(Settings, frozen=True, kw_only=True):
    """Settings of the counters function, among them the exchange and the site of published events.

    `federation_table` is the table with the exchange's bindings.
    """

    table: str
    exchange: str
    ingress_url: str
    site: str
    federation_table: str


class RendezvousSettings(Settings, frozen=True, kw_only=True):
    """Settings that broker, client, proxy and sweeper functions share. Without `events`, no events are published.

    `waiting_table` is the table of waiting offers and held polls, without point-in-time recovery. `stage` is the prefix
    of new queues' names.
    """

    table: str
    dead_letters_url: str
    waiting_table: str
    events: EventSettings | None = None
    stage: str | None = None


class BrokerSettings(RendezvousSettings, frozen=True, kw_only=True):
    """Settings of the broker and client functions, which receive offers."""

    bridges: tuple[Bridge, ...]


class ProxySettings(RendezvousSettings, frozen=True, kw_only=True):
    """Settings of the proxy function, which is behind this many trusted reverse proxies (`trusted_hops`)."""

    offers_url: str
    allowed_relay_pattern: RelayPattern
    held_proxies_min: Natural
    held_proxies_max: Natural
    trusted_hops: Natural = 0
