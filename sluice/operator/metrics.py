"""Reads a site's metrics from CloudWatch, with as few requests as possible."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar

from sluice.aws.clients import calls
from sluice.aws.metrics import NAMESPACE
from sluice.stages import add_stage_prefix

MAX_QUERIES = 500  # CloudWatch's limit of metrics per request
MAX_VALUES = 100_800  # CloudWatch's limit of values per response
PERIOD_S = 60
LOOK_BACK_MS = 15 * 60_000  # period of a query, as SQS publishes the oldest message's age some minutes late
MAX_ROUTES = 250  # each route has two metrics, and a request at most 500
K = TypeVar("K")
# The start of each period in milliseconds since the epoch, and its value. Periods without data are left out.
Series = Sequence[tuple[int, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A CloudWatch metric with its dimensions and statistic."""

    namespace: str
    name: str
    dimensions: Mapping[str, str] = field(default_factory=dict, hash=False)
    statistic: str = "Sum"


def metrics_per_request(periods: int) -> int:
    """Return how many metrics with this number of periods fit into one request."""
    return max(1, min(MAX_QUERIES, MAX_VALUES // periods))


def read_series(
    cloudwatch: Any, metrics: Mapping[K, Metric], *, since_ms: int, until_ms: int, period_s: int = PERIOD_S
) -> Mapping[K, Series]:
    """Read metrics. Returns each metric's series under the same key, the oldest value first. Raises `CallFailed`."""
    series: dict[K, list[tuple[int, float]]] = {name: [] for name in metrics}
    names = list(metrics)
    for start in range(0, len(names), MAX_QUERIES):
        names_by_id = {f"m{place}": name for place, name in enumerate(names[start : start + MAX_QUERIES])}
        queries = []
        for id_, metric in ((id_, metrics[name]) for id_, name in names_by_id.items()):
            dimensions = [{"Name": name, "Value": value} for name, value in metric.dimensions.items()]
            identity = {"Namespace": metric.namespace, "MetricName": metric.name, "Dimensions": dimensions}
            stat = {"Metric": identity, "Period": period_s, "Stat": metric.statistic}
            queries.append({"Id": id_, "MetricStat": stat})
        pages = cloudwatch.get_paginator("get_metric_data").paginate(
            MetricDataQueries=queries,
            StartTime=datetime.fromtimestamp(since_ms / 1000, UTC),
            EndTime=datetime.fromtimestamp(until_ms / 1000, UTC),
            ScanBy="TimestampAscending",
        )
        with calls("GetMetricData"):
            for page in pages:
                for result in page["MetricDataResults"]:
                    times = (round(timestamp.timestamp() * 1000) for timestamp in result["Timestamps"])
                    series[names_by_id[result["Id"]]] += zip(times, result["Values"], strict=True)
    return series


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """A route's delay; None if there is no recent data.

    `forwarded_ms` is the age of the oldest message in the last forwarded batches, `waiting_s` that of the oldest
    message in the queue.
    """

    forwarded_ms: float | None = None
    waiting_s: float | None = None


def read_lags(
    cloudwatch: Any, queues: Mapping[str, str | None], *, now_ms: int, stage: str | None = None
) -> Mapping[str, Lag]:
    """Read the lags of routes, by route. `queues` has routes' source queues, as far as known. Raises `CallFailed`."""
    namespace = add_stage_prefix(NAMESPACE, stage)
    routes = list(queues)[:MAX_ROUTES]
    if not routes:
        return {}
    oldest = {"namespace": "AWS/SQS", "name": "ApproximateAgeOfOldestMessage", "statistic": "Maximum"}
    lag = partial(Metric, namespace=namespace, name="LagMs", statistic="Maximum")
    metrics = {("forwarded", route): lag(dimensions={"route": route, "service": "bridge"}) for route in routes} | {
        ("waiting", route): Metric(**oldest, dimensions={"QueueName": name})
        for route in routes
        if (name := queues[route])
    }
    series = read_series(cloudwatch, metrics, since_ms=now_ms - LOOK_BACK_MS, until_ms=now_ms)
    latest = {key: values[-1][1] for key, values in series.items() if values}
    return {
        route: Lag(forwarded_ms=latest.get(("forwarded", route)), waiting_s=latest.get(("waiting", route)))
        for route in routes
    }


def quantile(values: Sequence[float], fraction: float) -> float | None:
    """Return the smallest value that at least this fraction of values do not exceed; None without values."""
    return sorted(values)[max(math.ceil(fraction * len(values)) - 1, 0)] if values else None
