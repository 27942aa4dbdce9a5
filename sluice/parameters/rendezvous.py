"""The parameters of the rendezvous. No construct is here."""

from typing import Self

from pydantic import model_validator

from sluice.parameters import values as v
from sluice.parameters.values import InconsistentParameter, Model, of
from sluice.rendezvous.protocol.messages import DEFAULT_FINGERPRINT, Bridge

DEFAULT_BRIDGE = {
    "displayName": "default",
    "webSocketAddress": "wss://snowflake.torproject.net/",
    "fingerprint": DEFAULT_FINGERPRINT,
}


class RendezvousParameters(Model):
    """The offers queue, the bridges, how many proxies are held, where events go."""

    offers_queue_name: v.OffersQueueName = of(
        "snowflake-broker", "clients know the queue by its URL, so its name is fixed"
    )
    existing_offers_queue_arn: v.OffersQueueArn | None = of(
        None,
        "adopt a queue of yours instead of making one; its retention should be 300 s, its visibility timeout 60 s, "
        "and it needs a dead-letter queue",
    )
    bridges: v.BridgeList = of((DEFAULT_BRIDGE,), "offers for others are refused")
    allowed_relay_pattern: v.RelayPattern = of(
        "snowflake.torproject.net$",
        "proxies whose own pattern doesn't cover it are refused; must cover the bridges' hosts",
    )
    held_proxies_min: int = of(
        1, "polls held at rest, on the average of a day, where too few come for offers to wait for one", ge=1, le=10_000
    )
    held_proxies_max: int = of(
        200, "and held at most; each holds a function's environment for ten seconds", ge=1, le=10_000
    )
    trusted_proxy: bool = of(
        False,
        "something of yours is in front of the broker's URL and writes `Forwarded` or `X-Forwarded-For` anew: "
        "a proxy's address is the first public one there",
    )
    broker_max_concurrency: v.Concurrency = of(10, "brokers side by side")
    proxy_max_concurrency: v.ReservedConcurrency | None = of(
        300,
        "proxy functions side by side. So many of the account's are reserved, and a flood takes no other function's; "
        "AWS wants 100 left to those. Null: neither",
    )
    broker_memory_mb: v.Memory = of(512, "of the function")
    proxy_memory_mb: v.Memory = of(256, "of the function")
    sweeper_memory_mb: v.Memory = of(256, "of the function")
    counters_memory_mb: v.Memory = of(256, "of the function")
    counters_window_s: v.Window = of(120, "how long events may wait to be counted, and published, together")
    events_exchange: v.ExchangeName | None = of(
        "events",
        "the topic exchange that [events](#events) are published to where a queue is bound, declared where it isn't "
        "yet; null: no events, no counters",
    )
    geoip_file: v.CountriesFile | None = of(
        None, "a MaxMind database in the project; without one every country is `??`"
    )
    keep_state: bool = of(
        True, "tables, bucket and users' queues are kept when their stack or parameter goes, tables protected"
    )

    @property
    def bridge_list(self) -> tuple[Bridge, ...]:
        """The bridges, as functions know them."""
        return v.bridges_of(self.bridges)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        least, most = self.held_proxies_min, self.held_proxies_max
        if least > most:
            raise InconsistentParameter("held_proxies_min", f"{least} is over held_proxies_max {most}")
        reserved = self.proxy_max_concurrency
        if reserved is not None and reserved < most:
            raise InconsistentParameter("proxy_max_concurrency", f"{reserved} is under held_proxies_max {most}")
        return self
