"""Sends counts to CloudWatch as embedded metrics: one log line for each invocation, no request."""

import os
from collections.abc import Mapping
from functools import cache

from aws_lambda_powertools.metrics import EphemeralMetrics, MetricUnit

NAMESPACE = "Sluice"  # the default namespace; a stage's functions get a prefixed one in a variable
VARIABLE = "POWERTOOLS_METRICS_NAMESPACE"


def publish(service: str, counts: Mapping[str, float], *, dimensions: Mapping[str, str] | None = None) -> None:
    """Publish an invocation's counts with the function as the dimension `service`. Without counts nothing is sent.

    Metric names are an interface: dashboards, alarms and operators' queries depend on them.
    """
    if not counts:
        return
    metrics = _create_metrics(EphemeralMetrics, service)
    for name, value in (dimensions or {}).items():
        metrics.add_dimension(name, value)
    for name, number in counts.items():
        metrics.add_metric(name, MetricUnit.Count, number)
    metrics.flush_metrics()


@cache
def _create_metrics(kind: type[EphemeralMetrics], service: str) -> EphemeralMetrics:
    """Create the metrics object once, because its creation is slow. Each flush empties the object."""
    return kind(namespace=os.environ.get(VARIABLE, NAMESPACE), service=service)
