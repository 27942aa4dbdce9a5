"""What went in and out of each part today, in UTC, and minute by minute: from the statistics, and from CloudWatch."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from sluice.aws.clients import now_ms
from sluice.aws.deployment import STACK, read_deployment
from sluice.aws.rendezvous.statistics_store import DynamoStatisticsStore
from sluice.console.readings.shared import own_metric, series_of, today_or_last
from sluice.console.sites import Document, KnownSite
from sluice.operator.metrics import Metric, Series
from sluice.rendezvous.counts.statistics import OFFERS, Counts, total
from sluice.rendezvous.protocol.ends import OPEN, End, outcomes_of
from sluice.times import MINUTE_MS, day_of, day_start_ms

MINUTES = 60  # that are drawn
STATISTICS_EVERY_S = 5.0
MAX_NAMED = 100  # queues, routes
SPLITTER = ("MessagesRead", "MessagesUnmatched", "MessagesForwarded", "MessagesMirrored")
EXCHANGE = ("MessagesReceived", "MessagesRouted")


def statistics_of_today(site: KnownSite) -> Counts | None:
    """Read what was counted of the rendezvous today; None where that isn't known yet. Raises `CallFailed`."""

    def ask() -> Counts:
        table = read_deployment(site.connection, site.outputs(STACK)).table_name
        store = DynamoStatisticsStore(site.connection.client("dynamodb"), table, now_ms)
        return store.of_day(day_of(now_ms()))

    return site.kept("statistics", ask, every_s=STATISTICS_EVERY_S)


def offers_of(counts: Counts | None) -> Mapping[str, int] | None:
    """Count offers by how they ended."""
    if counts is None:
        return None
    return {outcome: total(counts, OFFERS, status=outcome) for outcome in outcomes_of("offer")}


def metrics_of(site: KnownSite, status: Document) -> Mapping[str, Series] | None:
    """Read today's metrics of the parts that the status has; None where they aren't known yet. Raises `CallFailed`."""
    return series_of(site, "overview", dict(_wanted(site, status)), today_or_last(MINUTES))


def _wanted(site: KnownSite, status: Document) -> Iterator[tuple[str, Metric]]:
    """Name the metrics of the parts that there are."""
    if status["rendezvous"]:
        for name in (End.OFFER_MATCHED.value, End.OFFER_WAITING.value, End.OFFER_REFUSED.value):
            yield f"rendezvous {name}", own_metric(site, name, service="broker")
        answered = End.ANSWER_DELIVERED.value
        yield f"rendezvous {answered}", own_metric(site, answered, service="proxy")
    if part := status["splitting"]:
        for queue, name in product(part["queues"][:MAX_NAMED], SPLITTER):
            metric = own_metric(site, name, service="splitter", queue=queue["queue_id"])
            yield f"splitting {name} {queue['queue_id']}", metric
    if part := status["federation"]:
        for name in EXCHANGE:
            yield f"federation {name}", own_metric(site, name, service="exchange")
        for route in part["routes"][:MAX_NAMED]:
            metric = own_metric(site, "MessagesForwarded", service="bridge", route=route["name"])
            yield f"federation MessagesForwarded {route['name']}", metric
    if part := status["pipeline"]:
        dimensions = {"QueueName": part["queue"]["url"].rsplit("/", 1)[1]}
        for name in ("NumberOfMessagesSent", "NumberOfMessagesDeleted"):
            yield f"pipeline {name}", Metric(namespace="AWS/SQS", name=name, dimensions=dimensions)


def counters_of(status: Document, offers: Mapping[str, int] | None, series: Mapping[str, Series] | None) -> Document:
    """Say of each part what went in and out today, and in each of the last minutes; null for what isn't known."""
    at_ms = now_ms()
    found: dict[str, Any] = {}
    if status["rendezvous"]:
        found["rendezvous"] = _offers(status, offers) | _drawn(
            series, ("rendezvous Offers",), ("rendezvous AnswersDelivered",), at_ms
        )
    for part, goes_in, goes_out in (
        ("splitting", ("splitting MessagesRead",), ("splitting MessagesUnmatched", "splitting MessagesForwarded")),
        ("federation", ("federation MessagesReceived",), ("federation MessagesRouted",)),
        ("pipeline", ("pipeline NumberOfMessagesSent",), ("pipeline NumberOfMessagesDeleted",)),
    ):
        if status[part]:
            today = {"in": today_of(series, goes_in, at_ms), "out": today_of(series, goes_out, at_ms)}
            found[part] = today | _drawn(series, goes_in, goes_out, at_ms)
    if status["splitting"]:
        found["splitting"]["to_main"] = today_of(series, ("splitting MessagesUnmatched",), at_ms)
        found["splitting"]["to_sessions"] = today_of(series, ("splitting MessagesForwarded",), at_ms)
        found["splitting"]["mirrored"] = today_of(series, ("splitting MessagesMirrored",), at_ms)
    if status["federation"]:
        found["federation"]["forwarded"] = today_of(series, ("federation MessagesForwarded",), at_ms)
    return found


def holds_of(status: Document) -> Mapping[str, Mapping[str, int | None]]:
    """Say of each part how much waits for it, is in flight and has died; null where a part of that isn't known yet."""
    found: dict[str, Mapping[str, int | None]] = {}
    for part, queues in _queues(status):
        letters = [held for told, held in (status["dead_letters"] or {}).items() if part in told]
        visible, in_flight = _sum(letters, "visible"), _sum(letters, "in_flight")
        found[part] = {
            "waiting": _sum(queues, "visible"),
            "in_flight": _sum(queues, "in_flight"),
            "dead": visible + in_flight if letters and visible is not None and in_flight is not None else None,
        }
    return found


def _queues(status: Document) -> Iterator[tuple[str, Sequence[Mapping[str, Any]]]]:
    """Go through the parts that there are, each with the queues that its functions, or its job, read."""
    if part := status["rendezvous"]:
        yield "rendezvous", [part["offers_queue"]]
    if part := status["federation"]:
        yield "federation", [route["queue"] for route in part["routes"] if "visible" in (route["queue"] or {})]
    if part := status["splitting"]:
        yield "splitting", [queue["source"] for queue in part["queues"]]
    if part := status["pipeline"]:
        yield "pipeline", [part["queue"]]


def _sum(queues: Sequence[Mapping[str, Any]], name: str) -> int | None:
    values = [queue[name] for queue in queues]
    return None if None in values else sum(values)


def _offers(status: Document, offers: Mapping[str, int] | None) -> dict[str, Any]:
    """Count offers that came and that were answered. What is open hasn't ended, and isn't among the statistics yet."""
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


def today_of(series: Mapping[str, Series] | None, prefixes: Sequence[str], at_ms: int) -> int | None:
    """Add up what metrics with such names have of today; None where they aren't known."""
    if series is None:
        return None
    since_ms = day_start_ms(day_of(at_ms))
    return round(sum(value for told, value in _of(series, prefixes) if told >= since_ms))


def _drawn(
    series: Mapping[str, Series] | None, goes_in: Sequence[str], goes_out: Sequence[str], at_ms: int
) -> dict[str, Any]:
    return {"minutes": {"in": minutes_of(series, goes_in, at_ms), "out": minutes_of(series, goes_out, at_ms)}}


def minutes_of(series: Mapping[str, Series] | None, prefixes: Sequence[str], at_ms: int) -> Sequence[float] | None:
    """Add up metrics minute by minute, the last minute last; None where they aren't known."""
    if series is None:
        return None
    values = [0.0] * MINUTES
    for told, value in _of(series, prefixes):
        place = MINUTES - 1 - (at_ms // MINUTE_MS - told // MINUTE_MS)
        if 0 <= place < MINUTES:
            values[place] += value
    return values


def _of(series: Mapping[str, Series], prefixes: Sequence[str]) -> Iterable[tuple[int, float]]:
    return (each for name, of_one in series.items() if name.startswith(tuple(prefixes)) for each in of_one)
