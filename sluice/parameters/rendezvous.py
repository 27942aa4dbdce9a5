"""The parameters of the rendezvous. This module contains no constructs."""

from typing import Self

from pydantic import model_validator

from sluice.parameters import values as v
from sluice.parameters.values import InconsistentParameter, Model, param
from sluice.rendezvous.protocol.messages import DEFAULT_FINGERPRINT, Bridge

DEFAULT_BRIDGE = {
    "displayName": "default",
    "webSocketAddress": "wss://snowflake.torproject.net/",
    "fingerprint": DEFAULT_FINGERPRINT,
}


class RendezvousParameters(Model):
    """The offers queue, bridges, held polls, sizes of the functions, and the exchange of events."""

    offers_queue_name: v.OffersQueueName = param(
        "snowflake-broker",
        "Name of the queue that clients send offers to. Clients are configured with its URL, so do not change it later",
    )
    existing_offers_queue_arn: v.OffersQueueArn | None = param(
        None,
        "ARN of an existing queue to adopt as the offers queue. Set its retention to 300 s, its visibility timeout "
        "to 60 s, and give it a dead-letter queue. Null: create one",
    )
    bridges: v.BridgeList = param(
        (DEFAULT_BRIDGE,),
        "Bridges that clients may ask for: `{displayName, webSocketAddress, fingerprint}`. Offers for other bridges "
        "are refused",
    )
    allowed_relay_pattern: v.RelayPattern = param(
        "snowflake.torproject.net$",
        "Pattern of relay hosts; a proxy that accepts fewer is refused. The pattern must cover the hosts of `bridges`",
    )
    held_proxies_min: int = param(
        1,
        "Proxy polls to hold open on average over a day if so few polls arrive that an offer might find none waiting",
        ge=1,
        le=10_000,
    )
    held_proxies_max: int = param(
        200,
        "Most proxy polls to hold open at once. Each held poll occupies one concurrent execution of the proxy function "
        "for ten seconds. Sluice holds at most two thirds of the function's reservation; without a reservation, half "
        "of `operations.account_concurrency`",
        ge=1,
        le=10_000,
    )
    trusted_hops: v.Hops = param(
        0,
        "Number of your reverse proxies that append the sender's address to `Forwarded` ([recipe](#behind-cloudfront))."
        " The Snowflake proxy's address is this entry from the right. 0: the connection's address",
    )
    broker_max_concurrency: v.Concurrency = param(10, "Most concurrent executions of the broker function")
    proxy_max_concurrency: v.ReservedConcurrency | None = param(
        None,
        "Concurrent executions reserved for the proxy function, which is also its limit. Null: none, but `sluice "
        "deploy` [reserves what the account allows](deploy.md#new-accounts)",
    )
    client_max_concurrency: v.ReservedConcurrency | None = param(
        None,
        "Concurrent executions reserved for the client function, which is also its limit. Each offer over HTTP "
        "occupies one execution until it is answered, at most six seconds. Null: the same as for the proxy function",
    )
    broker_memory_mb: v.Memory = param(512, "Memory of the broker function, in MB")
    client_memory_mb: v.Memory = param(256, "Memory of the client function, in MB")
    proxy_memory_mb: v.Memory = param(256, "Memory of the proxy function, in MB")
    sweeper_memory_mb: v.Memory = param(256, "Memory of the sweeper function, in MB")
    counters_memory_mb: v.Memory = param(256, "Memory of the counters function, in MB")
    counters_window_s: v.Window = param(
        120, "Seconds that rendezvous events are collected before one batch is counted and published"
    )
    events_exchange: v.ExchangeName | None = param(
        "events",
        "Topic exchange that gets [events](#events) while a queue is bound to it. A missing exchange is declared. "
        "Null: no events and no counters",
    )
    geoip_file: v.CountriesFile | None = param(
        None,
        "Path in the project of a MaxMind database that maps proxy addresses to countries. Null: every country is `??`",
    )
    keep_state: bool = param(
        True,
        "Whether tables, the bucket and users' queues are kept when their stack or parameter is removed. If so, "
        "tables also have deletion protection",
    )

    @property
    def bridge_list(self) -> tuple[Bridge, ...]:
        """The Snowflake bridges in the form that functions' settings have."""
        return v.parse_bridge_list(self.bridges)

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        least, most = self.held_proxies_min, self.held_proxies_max
        if least > most:
            raise InconsistentParameter("held_proxies_min", f"{least} is more than held_proxies_max, {most}")
        return self
