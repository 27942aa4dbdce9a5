"""Reads the page *Rendezvous*: the data of `sluice rendezvous status --json`, today's statistics and latest offers."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from sluice.aws.clients import now_ms
from sluice.aws.deployment import STACK, Deployment, read_deployment
from sluice.aws.rendezvous.offers import SHARDS
from sluice.aws.rendezvous.pace import DynamoPaceStore
from sluice.console.readings.counters import count_offers, read_todays_statistics, sum_today
from sluice.console.readings.shared import read_cached_series, site_metric, try_reading
from sluice.console.sites import CallLimitedSite, Document, Query
from sluice.operator.metrics import quantile
from sluice.operator.rendezvous_status import (
    LatestOffer,
    build_status,
    format_status,
    read_shard_offers,
)
from sluice.rendezvous.counts.statistics import OFFERS, POLLS, PROXIES, Counts, sum_by_label
from sluice.rendezvous.protocol.ends import End, list_metrics
from sluice.rendezvous.protocol.matching import Pool
from sluice.rendezvous.protocol.pace import MEAN, Pace, compute_pace

LATEST_INTERVAL_S = 5.0
POLL_RATE_INTERVAL_S = 10.0
MAX_SHOWN = 50  # The page shows at most this number of offers, the latest ones.
POLL_METRICS = (*list_metrics("poll"), End.ANSWER_TOO_LATE.value)


def read(site: CallLimitedSite, _: Query) -> Document:
    """Read the page's data; unreadable data are null, with reasons in `troubles`. Raises `NotUsable`, `CallFailed`."""
    deployment = read_deployment(site.connection, site.read_outputs(STACK))
    status = format_status(build_status(site.read_rendezvous().result(), deployment, region=site.connection.region))
    troubles: dict[str, str] = {}
    counts = try_reading(troubles, "statistics", lambda: read_todays_statistics(site))
    metrics = {name: site_metric(site, name, service="proxy") for name in POLL_METRICS}
    ask = partial(read_cached_series, site, "polls", metrics, minutes=0, of_today=True)
    polls = try_reading(troubles, "metrics", ask)

    def read_pace() -> Pace:
        at_ms = now_ms()
        store = DynamoPaceStore(site.connection.client("dynamodb"), deployment.waiting_table_name)
        return compute_pace(*store.read_recent_counts(now_ms=at_ms), now_ms=at_ms)

    ask_pace = partial(site.read_cached, "pace", read_pace, every_s=POLL_RATE_INTERVAL_S, calls=2)
    pace = try_reading(troubles, "poll rates", ask_pace)
    latest = try_reading(troubles, "the last offers", lambda: _read_latest_offers(site, deployment))
    return {
        "status": status,
        "today": _count_today(counts),
        "pools": _describe_pools(status["waiting_proxies"], pace),
        "polls": None if polls is None else {name: sum_today(polls, (name,), now_ms()) for name in POLL_METRICS},
        "latest": None if latest is None else [asdict(offer) for offer in latest[:MAX_SHOWN]],
        "latency": None if latest is None else summarize_latency(latest),
        "troubles": troubles,
    }


def _count_today(counts: Counts | None) -> Document | None:
    """Count today's offers by country, by NAT type and by method, and today's polls and proxies."""
    if counts is None:
        return None
    offers = {
        label: {
            value: dict(sum_by_label(counts, OFFERS, "status", **{label: value}))
            for value, _ in sum_by_label(counts, OFFERS, label).most_common()
        }
        for label in ("cc", "nat", "rendezvous_method")
    }
    return {
        "offers": count_offers(counts),
        "by_country": offers["cc"],
        "by_nat": offers["nat"],
        "by_method": offers["rendezvous_method"],
        "polls": dict(sum_by_label(counts, POLLS, "status").most_common()),
        "proxies": {
            "by_nat": dict(sum_by_label(counts, PROXIES, "nat").most_common()),
            "addresses_by_country": dict(sum_by_label(counts, PROXIES, "cc").most_common()),
        },
    }


def _describe_pools(waiting: Mapping[str, int], pace: Pace | None) -> Sequence[Document]:
    """Describe each pool of proxies: its number of held polls, and its estimated number of proxies and poll rate."""
    pools = []
    for pool in Pool:
        rates: dict[str, Any] = dict.fromkeys(("population", "polls_per_s", "offers_per_s", "next_poll_ms"))
        if pace is not None:
            pool_rates = pace.for_pool(pool)
            rates = {"population": pool_rates.pollers, "next_poll_ms": pace.draw_next_poll_ms(pool, MEAN)}
            rates |= {"polls_per_s": pool_rates.polls_per_s, "offers_per_s": pool_rates.offers_per_s}
        pools.append({"pool": pool.value, "held": waiting[pool.value], **rates})
    return pools


def _read_latest_offers(site: CallLimitedSite, deployment: Deployment) -> Sequence[LatestOffer] | None:
    """Read the latest offers from the DynamoDB table's shards, some at a time; None until one shard has been read."""
    client = site.connection.client("dynamodb")
    known = [
        site.read_cached_in_turn(
            "latest offers",
            shard,
            partial(read_shard_offers, client, deployment.table_name, shard),
            every_s=LATEST_INTERVAL_S,
        )
        for shard in range(SHARDS)
    ]
    shards = [shard for shard in known if shard is not None]
    offers = [offer for shard in shards for offer in shard]
    return sorted(offers, key=lambda offer: -offer.sent_at_ms) if shards else None


def summarize_latency(latest: Sequence[LatestOffer]) -> Document:
    """Summarize how long the latest offers waited for their answers: median, 95th percentile and maximum."""
    took = [offer.answered_ms for offer in latest if offer.answered_ms is not None]
    return {
        "answered": len(took),
        "median_ms": quantile(took, 0.5),
        "p95_ms": quantile(took, 0.95),
        "most_ms": max(took, default=None),
    }
