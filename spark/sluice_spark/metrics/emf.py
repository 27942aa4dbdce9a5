"""Metrics as CloudWatch's embedded metric format: one JSON line on a log stream that CloudWatch Logs has is a metric.

https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/CloudWatch_Embedded_Metric_Format_Specification.html
"""

from collections.abc import Callable, Mapping

import orjson

from sluice_spark.metrics.measures import UNITS, QueryMetrics

NAMESPACE = "Sluice/Spark"


def emf_lines(
    namespace: str = NAMESPACE,
    dimensions: Mapping[str, str] | None = None,
    write: Callable[[str], object] | None = None,
) -> Callable[[QueryMetrics], None]:
    """Make what `MetricsListener` calls: it writes one line for each source, to stdout unless `write` is given.

    Dimensions: Query (its name, or its id where it has none) and Source (its number in the query), beside `dimensions`.
    """
    given = dict(dimensions or {})

    def emit(metrics: QueryMetrics) -> None:
        own = {"Query": metrics.query, "Source": str(metrics.source)}
        said = {"State": metrics.state, "Reason": metrics.reason} if metrics.state else {}
        text = line(metrics.values, {**given, **own}, namespace=namespace, at_ms=metrics.at_ms, said=said)
        write(text) if write else print(text, flush=True)  # noqa: T201  a log stream is where it goes

    return emit


def line(
    values: Mapping[str, float],
    dimensions: Mapping[str, str],
    *,
    namespace: str,
    at_ms: int,
    said: Mapping[str, str] | None = None,
) -> str:
    """One EMF document, without a line end. Every value has a unit in UNITS; what is `said` is no metric."""
    listed = [{"Name": name, "Unit": UNITS[name]} for name in values]
    directive = {"Namespace": namespace, "Dimensions": [sorted(dimensions)], "Metrics": listed}
    document = {"_aws": {"Timestamp": at_ms, "CloudWatchMetrics": [directive]}, **dimensions, **(said or {}), **values}
    return orjson.dumps(document).decode()
