"""Plots a query's metrics in a notebook with matplotlib, if it is installed.

`run = Run(); spark.streams.addListener(MetricsListener(run, staging_location=…))`, and any time `run.plot()`.
"""

import importlib
from collections import deque
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from sluice_spark.metrics.measures import QueryMetrics

KEPT = 10_000  # number of metrics kept; the oldest are forgotten first
PANELS = (
    ("messages/s", ("numRecordsInPerSecond",), 1.0),
    ("waiting, staged", ("waitingRecords", "stagedRecords"), 1.0),
    ("seconds behind", ("oldestRecordAge", "currentEmitEventTimeLag"), 1e-3),
    ("dollars/hour", ("dollarsPerHour",), 1.0),
)


class Run:
    """Collects metrics as the `emit` function of a `MetricsListener`."""

    def __init__(self) -> None:
        self._metrics: deque[QueryMetrics] = deque(maxlen=KEPT)

    def __call__(self, metrics: QueryMetrics) -> None:
        """Keep the metrics."""
        self._metrics.append(metrics)

    @property
    def rows(self) -> Sequence[dict[str, Any]]:
        """The metrics as flat rows for pandas, one for each call, oldest first."""
        return [
            {
                "at": datetime.fromtimestamp(metrics.at_ms / 1000, UTC),
                "query": metrics.query,
                "source": metrics.source,
                "state": metrics.state,
                "reason": metrics.reason,
                **metrics.values,
            }
            for metrics in list(self._metrics)
        ]

    def plot(self) -> Any:
        """Draw rates, backlog, lag and cost over time, and when receives failed; return matplotlib's figure.

        Raises ImportError without matplotlib.
        """
        pyplot = importlib.import_module("matplotlib.pyplot")
        rows = self.rows
        figure, axes = pyplot.subplots(len(PANELS), 1, sharex=True, figsize=(9, 2 * len(PANELS)))
        for panel, (title, names, scale) in zip(axes, PANELS, strict=True):
            for name in names:
                known = [(row["at"], row[name] * scale) for row in rows if name in row]
                panel.plot([at for at, _ in known], [value for _, value in known], label=name)
            for row in rows:
                if row["state"] == "failing":
                    panel.axvline(row["at"], color="tab:red", alpha=0.2)
            panel.set_ylabel(title)
            panel.legend(loc="upper left", fontsize="small")
        return figure
