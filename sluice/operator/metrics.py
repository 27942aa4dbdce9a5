"""Metrics of a site, as CloudWatch has them: any number of them in as few requests as it takes."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar

from sluice.aws.clients import calls
from sluice.aws.metrics import NAMESPACE
from sluice.stages import staged

MAX_QUERIES = 500  # metrics in a request
MAX_VALUES = 100_800  # in an answer
PERIOD_S = 60
LOOK_BACK_MS = 15 * 60_000  # the age of a queue's oldest message comes every minute, some minutes late
MAX_ROUTES = 250  # two metrics each, of the 500 that one request may ask for
K = TypeVar("K")
Series = Sequence[tuple[int, float]]  # when a period began, in ms, and its value; what had none isn't there


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric, by all that tells it from others."""

    namespace: str
    name: str
    dimensions: Mapping[str, str] = field(default_factory=dict, hash=False)
    statistic: str = "Sum"


def at_once(periods: int) -> int:
    """Say how many metrics one request answers, each with so many values."""
    return max(1, min(MAX_QUERIES, MAX_VALUES // periods))


def read_series(
    cloudwatch: Any, wanted: Mapping[K, Metric], *, since_ms: int, until_ms: int, period_s: int = PERIOD_S
) -> Mapping[K, Series]:
    """Read each metric, by the names that it is wanted by, oldest first. Raises `CallFailed`."""
    series: dict[K, list[tuple[int, float]]] = {name: [] for name in wanted}
    names = list(wanted)
    for start in range(0, len(names), MAX_QUERIES):
        asked = {f"m{place}": name for place, name in enumerate(names[start : start + MAX_QUERIES])}
        queries = [{"Id": id_, "MetricStat": _stat(wanted[name], period_s)} for id_, name in asked.items()]
        pages = cloudwatch.get_paginator("get_metric_data").paginate(
            MetricDataQueries=queries,
            StartTime=datetime.fromtimestamp(since_ms / 1000, UTC),
            EndTime=datetime.fromtimestamp(until_ms / 1000, UTC),
            ScanBy="TimestampAscending",
        )
        with calls("GetMetricData"):
            for page in pages:
                for found in page["MetricDataResults"]:
                    times = (round(each.timestamp() * 1000) for each in found["Timestamps"])
                    series[asked[found["Id"]]] += zip(times, found["Values"], strict=True)
    return series


def _stat(metric: Metric, period_s: int) -> Mapping[str, Any]:
    named = [{"Name": name, "Value": value} for name, value in metric.dimensions.items()]
    told = {"Namespace": metric.namespace, "MetricName": metric.name, "Dimensions": named}
    return {"Metric": told, "Period": period_s, "Stat": metric.statistic}


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """Of one route; None where nobody has said anything lately.

    `forwarded_ms` is how old the oldest message was that the last batches forwarded, `waiting_s` that which waits.
    """

    forwarded_ms: float | None = None
    waiting_s: float | None = None


def read_lags(
    cloudwatch: Any, queues: Mapping[str, str | None], *, now_ms: int, stage: str | None = None
) -> Mapping[str, Lag]:
    """By route. `queues` has the queue that each reads, where it is known. Raises `CallFailed`."""
    namespace = staged(NAMESPACE, stage)
    routes = list(queues)[:MAX_ROUTES]
    if not routes:
        return {}
    oldest = {"namespace": "AWS/SQS", "name": "ApproximateAgeOfOldestMessage", "statistic": "Maximum"}
    lag = partial(Metric, namespace=namespace, name="LagMs", statistic="Maximum")
    wanted = {("forwarded", route): lag(dimensions={"route": route, "service": "bridge"}) for route in routes} | {
        ("waiting", route): Metric(**oldest, dimensions={"QueueName": name})
        for route in routes
        if (name := queues[route])
    }
    series = read_series(cloudwatch, wanted, since_ms=now_ms - LOOK_BACK_MS, until_ms=now_ms)
    latest = {key: values[-1][1] for key, values in series.items() if values}
    return {
        route: Lag(forwarded_ms=latest.get(("forwarded", route)), waiting_s=latest.get(("waiting", route)))
        for route in routes
    }


def quantile(values: Sequence[float], part: float) -> float | None:
    """Give the smallest value that at least this part of all reach; None where there are none."""
    return sorted(values)[max(math.ceil(part * len(values)) - 1, 0)] if values else None
