"""Counts to CloudWatch as embedded metrics: one log line an invocation, no request."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from aws_lambda_powertools.metrics import EphemeralMetrics, MetricUnit

NAMESPACE = "Sluice"
HELD_BACK_MS = 20_000


@dataclass(slots=True, kw_only=True)
class HeldCounts:
    """Counts that an environment holds back where an invocation has no others: logs cost by the gigabyte.

    Those of `names` are held back for twenty seconds since there were some to publish. What an environment holds back
    that is called no more is lost.
    """

    names: frozenset[str]
    now_ms: Callable[[], int]
    _counts: Counter[str] = field(default_factory=Counter)
    _at_ms: int | None = None

    def due(self, counts: Mapping[str, int]) -> Counter[str]:
        """Add an invocation's counts; returns what is to be published now."""
        self._counts.update(counts)
        now_ms = self.now_ms()
        if counts.keys() <= self.names and self._at_ms is not None and now_ms - self._at_ms < HELD_BACK_MS:
            return Counter()
        due, self._counts, self._at_ms = self._counts, Counter(), now_ms
        return due


def publish(service: str, counts: Mapping[str, float], *, dimensions: Mapping[str, str] | None = None) -> None:
    """Send the counts of one invocation, with the function as the dimension `service`; nothing where there are none.

    Names of metrics are an interface: dashboards, alarms and operators' own queries hold on to them.
    """
    if not counts:
        return
    metrics = EphemeralMetrics(namespace=NAMESPACE, service=service)
    for name, value in (dimensions or {}).items():
        metrics.add_dimension(name, value)
    for name, number in counts.items():
        metrics.add_metric(name, MetricUnit.Count, number)
    metrics.flush_metrics()
