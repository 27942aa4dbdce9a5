"""How late routes are, as CloudWatch has it: what SQS and the bridge function published in the last minutes."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from sluice.aws.clients import calls
from sluice.aws.metrics import NAMESPACE
from sluice.stages import staged

LOOK_BACK = timedelta(minutes=15)  # the age of a queue's oldest message comes every minute, some minutes late
PERIOD_S = 60
MAX_ROUTES = 250  # two metrics each, of the 500 that one request may ask for


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
    wanted = {
        f"f{number}": _metric(namespace, "LagMs", route=route, service="bridge") for number, route in enumerate(routes)
    }
    wanted |= {
        f"w{number}": _metric("AWS/SQS", "ApproximateAgeOfOldestMessage", QueueName=name)
        for number, route in enumerate(routes)
        if (name := queues[route])
    }
    latest = _latest(cloudwatch, wanted, datetime.fromtimestamp(now_ms / 1000, UTC))
    return {
        route: Lag(forwarded_ms=latest.get(f"f{number}"), waiting_s=latest.get(f"w{number}"))
        for number, route in enumerate(routes)
    }


def _metric(namespace: str, name: str, **dimensions: str) -> Mapping[str, Any]:
    named = [{"Name": dimension, "Value": value} for dimension, value in dimensions.items()]
    return {"Namespace": namespace, "MetricName": name, "Dimensions": named}


def _latest(cloudwatch: Any, wanted: Mapping[str, Mapping[str, Any]], now: datetime) -> dict[str, float]:
    """Give the newest value of each metric, by its id."""
    queries = [
        {"Id": id_, "MetricStat": {"Metric": metric, "Period": PERIOD_S, "Stat": "Maximum"}}
        for id_, metric in wanted.items()
    ]
    with calls("GetMetricData"):
        # 500 metrics of 15 values are less than a page, which has 100,800.
        found = cloudwatch.get_metric_data(
            MetricDataQueries=queries, StartTime=now - LOOK_BACK, EndTime=now, ScanBy="TimestampDescending"
        )
    return {each["Id"]: each["Values"][0] for each in found["MetricDataResults"] if each["Values"]}
