"""Page *Rendezvous*: `sluice rendezvous status --json`, and beside it who came today, who waits, and the keys."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from sluice.aws.clients import now_ms
from sluice.aws.deployment import STACK, Deployment, read_deployment
from sluice.aws.rendezvous.clients import AccessKey, ClientUser
from sluice.aws.rendezvous.offers import SHARDS
from sluice.aws.rendezvous.pace import DynamoPaceStore
from sluice.console.readings.counters import offers_of, statistics_of_today, today_of
from sluice.console.readings.shared import own_metric, series_of, today_or_last, tried
from sluice.console.sites import Document, KnownSite, Query
from sluice.operator.metrics import quantile
from sluice.operator.rendezvous_status import LatestOffer, document, newest_first, offers_of_shard, status_of
from sluice.rendezvous.counts.statistics import ADDRESSES, OFFERS, POLLS, PROXIES, Counts, by_label
from sluice.rendezvous.protocol.ends import End, metrics_of
from sluice.rendezvous.protocol.matching import Pool
from sluice.rendezvous.protocol.pace import Pace, pace_of

LATEST_EVERY_S = 5.0
PACE_EVERY_S = 10.0
KEYS_EVERY_S = 60.0
KEYS_CALLS = 3  # the list, and of two keys when they were used
MAX_SHOWN = 50  # of the last offers
KEY_TAIL = 4  # characters of a key's id that tell it from the other
POLL_METRICS = (*metrics_of("poll"), End.ANSWER_TOO_LATE.value)


def read(site: KnownSite, _: Query) -> Document:
    """Read all of it. What can't be read says why in `troubles`. Raises `NotUsable`, `CallFailed`."""
    deployment = read_deployment(site.connection, site.outputs(STACK))
    status = document(status_of(site.rendezvous().result(), deployment, region=site.connection.region))
    troubles: dict[str, str] = {}
    counts = tried(troubles, "statistics", lambda: statistics_of_today(site))
    wanted = {name: own_metric(site, name, service="proxy") for name in POLL_METRICS}
    polls = tried(troubles, "metrics", lambda: series_of(site, "polls", wanted, today_or_last(0)))
    pace = tried(troubles, "how many poll", lambda: _pace(site, deployment))
    user = ClientUser(site.connection.client("iam"), deployment.client_user_name)
    ask = partial(site.kept, "keys", user.access_keys, every_s=KEYS_EVERY_S, calls=KEYS_CALLS)
    keys = tried(troubles, "credentials", ask)
    latest = tried(troubles, "the last offers", lambda: _latest(site, deployment))
    return {
        "status": status,
        "today": _today(counts),
        "pools": _pools(status["waiting_proxies"], pace),
        "polls": None if polls is None else {name: today_of(polls, (name,), now_ms()) for name in POLL_METRICS},
        "latest": None if latest is None else [asdict(each) for each in latest[:MAX_SHOWN]],
        "latency": None if latest is None else latency_of(latest),
        "keys": None if keys is None else [_key(each) for each in keys],
        "troubles": troubles,
    }


def _today(counts: Counts | None) -> Document | None:
    """Count today's offers and polls; what is told apart by several labels stands under each."""
    if counts is None:
        return None
    offers = {
        label: {
            value: dict(by_label(counts, OFFERS, "status", **{label: value}))
            for value, _ in by_label(counts, OFFERS, label).most_common()
        }
        for label in ("cc", "nat", "rendezvous_method")
    }
    return {
        "offers": offers_of(counts),
        "by_country": offers["cc"],
        "by_nat": offers["nat"],
        "by_method": offers["rendezvous_method"],
        "polls": dict(by_label(counts, POLLS, "status").most_common()),
        "proxies": {
            "by_nat": dict(by_label(counts, PROXIES, "nat").most_common()),
            "addresses_by_country": dict(by_label(counts, ADDRESSES, "cc").most_common()),
        },
    }


def _pace(site: KnownSite, deployment: Deployment) -> Pace | None:
    def ask() -> Pace:
        at_ms = now_ms()
        store = DynamoPaceStore(site.connection.client("dynamodb"), deployment.waiting_table_name)
        return pace_of(*store.lately(now_ms=at_ms), now_ms=at_ms)

    return site.kept("pace", ask, every_s=PACE_EVERY_S, calls=2)


def _pools(waiting: Mapping[str, int], pace: Pace | None) -> Sequence[Document]:
    """Say of each pool how many polls are held now, and how many proxies there are by the last minutes' counts."""
    pools = []
    for pool in Pool:
        of_pool = None if pace is None else pace.of(pool)
        told: dict[str, Any] = {"population": None, "polls_per_s": None, "offers_per_s": None, "next_poll_ms": None}
        if pace is not None and of_pool is not None:
            told = {
                "population": of_pool.pollers,
                "polls_per_s": of_pool.polls_per_s,
                "offers_per_s": of_pool.offers_per_s,
                "next_poll_ms": pace.next_poll_ms(pool),
            }
        pools.append({"pool": pool.value, "held": waiting[pool.value], **told})
    return pools


def _latest(site: KnownSite, deployment: Deployment) -> Sequence[LatestOffer] | None:
    """Read the shards by turns; None until one is known."""
    client = site.connection.client("dynamodb")
    known = [
        site.kept_in_turn(
            "latest offers",
            shard,
            partial(offers_of_shard, client, deployment.table_name, shard),
            every_s=LATEST_EVERY_S,
        )
        for shard in range(SHARDS)
    ]
    shards = [each for each in known if each is not None]
    return newest_first(shards) if shards else None


def _key(key: AccessKey) -> Document:
    return {
        "id": f"…{key.id[-KEY_TAIL:]}",
        "active": key.active,
        "created_ms": round(key.created_at.timestamp() * 1000),
        "used": key.used,
    }


def latency_of(latest: Sequence[LatestOffer]) -> Document:
    """Say how long the latest offers waited for their answer."""
    took = [offer.answered_ms for offer in latest if offer.answered_ms is not None]
    return {
        "answered": len(took),
        "median_ms": quantile(took, 0.5),
        "p95_ms": quantile(took, 0.95),
        "most_ms": max(took, default=None),
    }
