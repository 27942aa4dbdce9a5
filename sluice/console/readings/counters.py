"""Counts each capability's incoming and outgoing messages, today (in UTC) and by minute, with CloudWatch's metrics."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from sluice.aws.clients import now_ms
from sluice.aws.deployment import STACK, read_deployment
from sluice.aws.rendezvous.statistics_store import DynamoStatisticsStore
from sluice.console.readings.shared import read_cached_series, site_metric
from sluice.console.sites import CallLimitedSite, Document
from sluice.operator.metrics import Metric, Series
from sluice.rendezvous.counts.statistics import OFFERS, Counts, total
from sluice.rendezvous.protocol.ends import OPEN, End, list_outcomes
from sluice.times import MINUTE_MS, format_day, parse_day_ms

CHARTED_MINUTES = 60  # The charts cover this number of minutes up to now.
STATISTICS_INTERVAL_S = 5.0
MAX_METRICS = 100  # Messages are counted for at most this number of queues, and of routes.
SPLITTER_METRICS = ("MessagesRead", "MessagesUnmatched", "MessagesForwarded", "MessagesMirrored")
EXCHANGE_METRICS = ("MessagesReceived", "MessagesRouted")


def read_todays_statistics(site: CallLimitedSite) -> Counts | None:
    """Read today's statistics of the rendezvous; None if they haven't been read yet. Raises `CallFailed`."""

    def read_statistics() -> Counts:
        table = read_deployment(site.connection, site.read_outputs(STACK)).table_name
        store = DynamoStatisticsStore(site.connection.client("dynamodb"), table, now_ms)
        return store.read_day(format_day(now_ms()))

    return site.read_cached("statistics", read_statistics, every_s=STATISTICS_INTERVAL_S)


def count_offers(counts: Counts | None) -> Mapping[str, int] | None:
    """Count offers by outcome, from the day's statistics."""
    if counts is None:
        return None
    return {outcome: total(counts, OFFERS, status=outcome) for outcome in list_outcomes("offer")}


def read_part_metrics(site: CallLimitedSite, status: Document) -> Mapping[str, Series] | None:
    """Read today's metrics of the deployed parts; None if they haven't been read yet. Raises `CallFailed`."""
    metrics = dict(_iter_part_metrics(site, status))
    return read_cached_series(site, "overview", metrics, minutes=CHARTED_MINUTES, of_today=True)


def _iter_part_metrics(site: CallLimitedSite, status: Document) -> Iterator[tuple[str, Metric]]:
    """Yield the metrics of the deployed parts. Each key begins with the part's name, such as `federation`."""
    if status["rendezvous"]:
        for name in (End.OFFER_MATCHED.value, End.OFFER_WAITING.value, End.OFFER_REFUSED.value):
            yield f"rendezvous {name}", site_metric(site, name, service="broker")
        answered = End.ANSWER_DELIVERED.value
        yield f"rendezvous {answered}", site_metric(site, answered, service="proxy")
    if part := status["splitting"]:
        for queue, name in product(part["queues"][:MAX_METRICS], SPLITTER_METRICS):
            metric = site_metric(site, name, service="splitter", queue=queue["queue_id"])
            yield f"splitting {name} {queue['queue_id']}", metric
    if part := status["federation"]:
        for name in EXCHANGE_METRICS:
            yield f"federation {name}", site_metric(site, name, service="exchange")
        for route in part["routes"][:MAX_METRICS]:
            metric = site_metric(site, "MessagesForwarded", service="bridge", route=route["name"])
            yield f"federation MessagesForwarded {route['name']}", metric
    if part := status["pipeline"]:
        for name in ("NumberOfMessagesSent", "NumberOfMessagesDeleted"):
            yield f"pipeline {name}", build_queue_metric(part["queue"]["url"], name)


def build_queue_metric(url: str, name: str) -> Metric:
    """Return a metric that SQS itself publishes for a queue, such as `NumberOfMessagesSent`."""
    return Metric(namespace="AWS/SQS", name=name, dimensions={"QueueName": url.rsplit("/", 1)[1]})


def build_counters(status: Document, offers: Mapping[str, int] | None, series: Mapping[str, Series] | None) -> Document:
    """Count each part's incoming and outgoing messages, today and by minute. Unknown counts are null."""
    at_ms = now_ms()
    counters: dict[str, Any] = {}
    if status["rendezvous"]:
        counters["rendezvous"] = _build_offer_counters(status, offers) | _count_by_minute(
            series, ("rendezvous Offers",), ("rendezvous AnswersDelivered",), at_ms
        )
    for part, in_prefixes, out_prefixes in (
        ("splitting", ("splitting MessagesRead",), ("splitting MessagesUnmatched", "splitting MessagesForwarded")),
        ("federation", ("federation MessagesReceived",), ("federation MessagesRouted",)),
        ("pipeline", ("pipeline NumberOfMessagesSent",), ("pipeline NumberOfMessagesDeleted",)),
    ):
        if status[part]:
            today = {"in": sum_today(series, in_prefixes, at_ms), "out": sum_today(series, out_prefixes, at_ms)}
            counters[part] = today | _count_by_minute(series, in_prefixes, out_prefixes, at_ms)
    if status["splitting"]:
        counters["splitting"]["to_main"] = sum_today(series, ("splitting MessagesUnmatched",), at_ms)
        counters["splitting"]["to_sessions"] = sum_today(series, ("splitting MessagesForwarded",), at_ms)
        counters["splitting"]["mirrored"] = sum_today(series, ("splitting MessagesMirrored",), at_ms)
    if status["federation"]:
        counters["federation"]["forwarded"] = sum_today(series, ("federation MessagesForwarded",), at_ms)
    return counters


def sum_depths(status: Document) -> Mapping[str, Mapping[str, int | None]]:
    """Sum each part's waiting, in-flight and dead messages. A sum is null if a queue has not been read yet."""
    depths: dict[str, Mapping[str, int | None]] = {}
    for part, queues in _iter_queues(status):
        dead_letter_depths = [
            depth for description, depth in (status["dead_letters"] or {}).items() if part in description
        ]
        visible, in_flight = _sum_values(dead_letter_depths, "visible"), _sum_values(dead_letter_depths, "in_flight")
        depths[part] = {
            "waiting": _sum_values(queues, "visible"),
            "in_flight": _sum_values(queues, "in_flight"),
            "dead": visible + in_flight
            if dead_letter_depths and visible is not None and in_flight is not None
            else None,
        }
    return depths


def _iter_queues(status: Document) -> Iterator[tuple[str, Sequence[Mapping[str, Any]]]]:
    """Yield each deployed part with the queues that its functions or its Spark job read."""
    if part := status["rendezvous"]:
        yield "rendezvous", [part["offers_queue"]]
    if part := status["federation"]:
        yield "federation", [route["queue"] for route in part["routes"] if "visible" in (route["queue"] or {})]
    if part := status["splitting"]:
        yield "splitting", [queue["source"] for queue in part["queues"]]
    if part := status["pipeline"]:
        yield "pipeline", [part["queue"]]


def _sum_values(queues: Sequence[Mapping[str, Any]], name: str) -> int | None:
    values = [queue[name] for queue in queues]
    return None if None in values else sum(values)


def _build_offer_counters(status: Document, offers: Mapping[str, int] | None) -> dict[str, Any]:
    """Count received and answered offers. Unanswered offers are added, because statistics only count finished ones."""
    if offers is None:
        return {"in": None, "out": None, "denied": None, "timed_out": None, "open": None}
    is_open = status["rendezvous"]["recent_offers"].get(OPEN, 0)
    return {
        "in": sum(offers.values()) + is_open,
        "out": offers[End.OFFER_MATCHED.event],
        "denied": offers[End.OFFER_DENIED.event],
        "timed_out": offers[End.OFFER_TIMED_OUT.event],
        "open": is_open,
    }


def sum_today(series: Mapping[str, Series] | None, prefixes: Sequence[str], at_ms: int) -> int | None:
    """Sum today's values of the metrics whose keys begin with one of `prefixes`; None if the values are unknown."""
    if series is None:
        return None
    since_ms = parse_day_ms(format_day(at_ms))
    return round(sum(value for point_ms, value in _iter_matching_points(series, prefixes) if point_ms >= since_ms))


def _count_by_minute(
    series: Mapping[str, Series] | None, in_prefixes: Sequence[str], out_prefixes: Sequence[str], at_ms: int
) -> dict[str, Any]:
    return {
        "minutes": {"in": sum_by_minute(series, in_prefixes, at_ms), "out": sum_by_minute(series, out_prefixes, at_ms)}
    }


def sum_by_minute(series: Mapping[str, Series] | None, prefixes: Sequence[str], at_ms: int) -> Sequence[float] | None:
    """Sum the metrics whose keys begin with one of `prefixes`, by minute, oldest first; None if unknown."""
    if series is None:
        return None
    values = [0.0] * CHARTED_MINUTES
    for point_ms, value in _iter_matching_points(series, prefixes):
        index = CHARTED_MINUTES - 1 - (at_ms // MINUTE_MS - point_ms // MINUTE_MS)
        if 0 <= index < CHARTED_MINUTES:
            values[index] += value
    return values


def _iter_matching_points(series: Mapping[str, Series], prefixes: Sequence[str]) -> Iterable[tuple[int, float]]:
    return (point for name, points in series.items() if name.startswith(tuple(prefixes)) for point in points)
