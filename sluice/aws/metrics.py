"""Counts to CloudWatch as embedded metrics: one log line an invocation, no request."""

import os
from collections.abc import Mapping
from functools import cache

from aws_lambda_powertools.metrics import EphemeralMetrics, MetricUnit

NAMESPACE = "Sluice"  # at a stage after its name
VARIABLE = "POWERTOOLS_METRICS_NAMESPACE"


def publish(service: str, counts: Mapping[str, float], *, dimensions: Mapping[str, str] | None = None) -> None:
    """Send the counts of one invocation, with the function as the dimension `service`; nothing where there are none.

    Names of metrics are an interface: dashboards, alarms and operators' own queries hold on to them.
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
    """Made once, which takes as long as all that is done with it; it is empty again when it is flushed."""
    return kind(namespace=os.environ.get(VARIABLE, NAMESPACE), service=service)
