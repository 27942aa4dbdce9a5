"""Metrics of a site over time, as CloudWatch has them: any number of them in as few requests as it takes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from sluice.aws.clients import calls

MAX_QUERIES = 500  # metrics in a request
MAX_VALUES = 100_800  # in an answer
PERIOD_S = 60
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
    cloudwatch: Any, wanted: Mapping[str, Metric], *, since_ms: int, until_ms: int, period_s: int = PERIOD_S
) -> Mapping[str, Series]:
    """Read each metric, by the names that it is wanted by, oldest first. Raises `CallFailed`."""
    series: dict[str, list[tuple[int, float]]] = {name: [] for name in wanted}
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
