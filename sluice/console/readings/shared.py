"""Helpers for the readings: cached metrics, read in full requests, and reads whose errors are reported."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple, TypeVar

from sluice.aws.clients import now_ms
from sluice.aws.metrics import NAMESPACE
from sluice.console.sites import BudgetedSite
from sluice.errors import SluiceError
from sluice.operator.metrics import Metric, Series, metrics_per_request, read_series
from sluice.stages import add_stage_prefix
from sluice.times import MINUTE_MS, day_start_ms, format_day

T = TypeVar("T")


def try_reading(troubles: dict[str, str], name: str, task: Callable[[], T]) -> T | None:
    """Return a task's result; if it fails, store its error in `troubles` under this name and return None."""
    try:
        return task()
    except SluiceError as error:
        troubles[name] = str(error)
        return None


class Window(NamedTuple):
    """A period of metrics: its start, computed from the current time, and its maximum length in minutes."""

    since_ms: Callable[[int], int]
    minutes: int


def last_minutes(minutes: int) -> Window:
    """Give the last minutes."""
    return Window(lambda at_ms: at_ms - minutes * MINUTE_MS, minutes)


def today_or_last(minutes: int) -> Window:
    """Give today, in UTC, and never less than the last minutes."""
    return Window(lambda at_ms: min(day_start_ms(format_day(at_ms)), at_ms - minutes * MINUTE_MS), 24 * 60)


def own_metric(site: BudgetedSite, name: str, **dimensions: str) -> Metric:
    """Name a metric that the site's functions publish."""
    return Metric(namespace=add_stage_prefix(NAMESPACE, site.connection.stage), name=name, dimensions=dimensions)


def read_cached_series(
    site: BudgetedSite, kind: str, metrics: Mapping[str, Metric], window: Window
) -> Mapping[str, Series] | None:
    """Read metrics by name, from the cache if they are recent; None until all are known. Raises `CallFailed`."""
    size, names, at_ms = metrics_per_request(window.minutes + 1), list(metrics), now_ms()
    ask = partial(
        read_series,
        site.connection.client("cloudwatch"),
        since_ms=window.since_ms(at_ms),
        until_ms=at_ms + MINUTE_MS,
    )
    series: dict[str, Series] = {}
    for start in range(0, len(names), size):
        piece = {name: metrics[name] for name in names[start : start + size]}
        task = partial(ask, piece)
        known = site.read_cached_in_turn(f"{kind} metrics", frozenset(piece), task, every_s=site.metrics_every_s)
        series |= known or {}
    return series if len(series) == len(metrics) else None
