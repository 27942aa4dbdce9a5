"""The settings of the rendezvous' functions, and those of what they tell of events with."""

from sluice.codec import Struct
from sluice.rendezvous.protocol.messages import Bridge, RelayPattern
from sluice.settings import Natural, Settings


class EventSettings(Struct, frozen=True, kw_only=True):
    """What rendezvous events say of their site. `geoip_file` is a database of countries, relative to the code."""

    site: str
    geoip_file: str | None = None


class TableSettings(Settings, frozen=True, kw_only=True):
    """What all of the rendezvous' functions have in common."""

    table: str
    dead_letters_url: str


class CountersSettings(TableSettings, frozen=True, kw_only=True):
    """Settings of the counters function: where events are published, as their site's, if a binding wants them.

    `federation_table` has the exchange's bindings.
    """

    exchange: str
    ingress_url: str
    site: str
    federation_table: str


class MeetingSettings(TableSettings, frozen=True, kw_only=True):
    """What broker, proxy and sweeper have in common. Without `events` none is told of.

    `waiting_table` has who waits for whom, and is never recovered. Queues that are made have names of the `stage`.
    """

    waiting_table: str
    events: EventSettings | None = None
    stage: str | None = None


class BrokerSettings(MeetingSettings, frozen=True, kw_only=True):
    """Settings of the broker function."""

    bridges: tuple[Bridge, ...]


class ProxySettings(MeetingSettings, frozen=True, kw_only=True):
    """Settings of the proxy function.

    `trusts_forwarded`: something trusted is in front and writes where a request came from.
    """

    bridges: tuple[Bridge, ...]
    allowed_relay_pattern: RelayPattern
    held_proxies_min: Natural
    held_proxies_max: Natural
    trusts_forwarded: bool = False
