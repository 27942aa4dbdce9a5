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

MAX_QUERIES = 500  # A request to CloudWatch has at most this number of metrics.
MAX_VALUES = 100_800  # A response of CloudWatch has at most this number of values.
PERIOD_S = 60
LOOK_BACK_MS = 15 * 60_000  # SQS publishes the age of the oldest message with a delay of some minutes.
MAX_ROUTES = 250  # Each route has two metrics, and a request to CloudWatch can have 500 metrics.
K = TypeVar("K")
# A metric's values, each with the start of its period in milliseconds since the epoch. Empty periods are left out.
Series = Sequence[tuple[int, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A CloudWatch metric with its dimensions and statistic."""

    namespace: str
    name: str
    dimensions: Mapping[str, str] = field(default_factory=dict, hash=False)
    statistic: str = "Sum"


def count_metrics_per_request(periods: int) -> int:
    """Return how many metrics fit into one request to CloudWatch, if each has this number of values."""
    return max(1, min(MAX_QUERIES, MAX_VALUES // periods))


def read_series(
    cloudwatch: Any, metrics: Mapping[K, Metric], *, since_ms: int, until_ms: int, period_s: int = PERIOD_S
) -> Mapping[K, Series]:
    """Read the values of metrics from CloudWatch, by the keys of `metrics`, oldest first. Raises `CallFailed`."""
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
class RouteLag:
    """The delay of a route's messages. Values are None if there is no recent data.

    `forwarded_ms` is the age of the oldest message in the last forwarded batches. `waiting_s` is the age of the oldest
    message in the route's queue.
    """

    forwarded_ms: float | None = None
    waiting_s: float | None = None


def read_lags(
    cloudwatch: Any, queues: Mapping[str, str | None], *, now_ms: int, stage: str | None = None
) -> Mapping[str, RouteLag]:
    """Read the lags of routes from CloudWatch. `queues` has each route's source queue if known. Raises `CallFailed`."""
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
        route: RouteLag(forwarded_ms=latest.get(("forwarded", route)), waiting_s=latest.get(("waiting", route)))
        for route in routes
    }


def quantile(values: Sequence[float], fraction: float) -> float | None:
    """Return the quantile of `values` for a fraction, such as 0.5 for the median; None if there are no values."""
    return sorted(values)[max(math.ceil(fraction * len(values)) - 1, 0)] if values else None
