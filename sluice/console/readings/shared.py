"""Helpers for reading the pages' data: cached CloudWatch metrics, and reads whose errors the page shows."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeVar

from sluice.aws.clients import now_ms
from sluice.aws.metrics import NAMESPACE
from sluice.console.sites import CallLimitedSite
from sluice.errors import SluiceError
from sluice.operator.metrics import Metric, Series, count_metrics_per_request, read_series
from sluice.stages import add_stage_prefix
from sluice.times import MINUTE_MS, format_day, parse_day_ms

T = TypeVar("T")


def try_reading(troubles: dict[str, str], name: str, task: Callable[[], T]) -> T | None:
    """Return a task's result. If the task fails, store the error in `troubles` under this name, and return None."""
    try:
        return task()
    except SluiceError as error:
        troubles[name] = str(error)
        return None


def site_metric(site: CallLimitedSite, name: str, **dimensions: str) -> Metric:
    """Return a CloudWatch metric that the site's functions publish, in the namespace of the site's stage."""
    return Metric(namespace=add_stage_prefix(NAMESPACE, site.connection.stage), name=name, dimensions=dimensions)


def read_cached_series(
    site: CallLimitedSite, kind: str, metrics: Mapping[str, Metric], *, minutes: int, of_today: bool = False
) -> Mapping[str, Series] | None:
    """Read metrics of the last `minutes`, from the cache if that is recent; None until all have been read once.

    `of_today` extends the period to the start of today, in UTC. Raises `CallFailed`.
    """
    names, at_ms = list(metrics), now_ms()
    since_ms = at_ms - minutes * MINUTE_MS
    if of_today:
        since_ms, minutes = min(since_ms, parse_day_ms(format_day(at_ms))), 24 * 60
    size = count_metrics_per_request(minutes + 1)
    ask = partial(
        read_series,
        site.connection.client("cloudwatch"),
        since_ms=since_ms,
        until_ms=at_ms + MINUTE_MS,
    )
    series: dict[str, Series] = {}
    for start in range(0, len(names), size):
        piece = {name: metrics[name] for name in names[start : start + size]}
        task = partial(ask, piece)
        known = site.read_cached_in_turn(f"{kind} metrics", frozenset(piece), task, every_s=site.metrics_every_s)
        series |= known or {}
    return series if len(series) == len(metrics) else None
