"""What readings of several pages share: metrics, as many at once as one request answers, and what is tried."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple, TypeVar

from sluice.aws.clients import now_ms
from sluice.aws.metrics import NAMESPACE
from sluice.console.sites import KnownSite
from sluice.errors import SluiceError
from sluice.operator.metrics import Metric, Series, at_once, read_series
from sluice.stages import staged
from sluice.times import MINUTE_MS, day_of, day_start_ms

T = TypeVar("T")


def tried(troubles: dict[str, str], what: str, task: Callable[[], T]) -> T | None:
    """Give what a task says; None where it fails: the reason is noted under `what`, and all else is read."""
    try:
        return task()
    except SluiceError as error:
        troubles[what] = str(error)
        return None


class Window(NamedTuple):
    """The time that is asked for: since when, by what is now, and how many minutes that may be."""

    since_ms: Callable[[int], int]
    minutes: int


def last(minutes: int) -> Window:
    """Give the last minutes."""
    return Window(lambda at_ms: at_ms - minutes * MINUTE_MS, minutes)


def today_or_last(minutes: int) -> Window:
    """Give today, in UTC, and never less than the last minutes."""
    return Window(lambda at_ms: min(day_start_ms(day_of(at_ms)), at_ms - minutes * MINUTE_MS), 24 * 60)


def own_metric(site: KnownSite, name: str, **dimensions: str) -> Metric:
    """Name a metric that the site's functions publish."""
    return Metric(namespace=staged(NAMESPACE, site.connection.stage), name=name, dimensions=dimensions)


def series_of(site: KnownSite, kind: str, wanted: Mapping[str, Metric], window: Window) -> Mapping[str, Series] | None:
    """Read metrics, by the names that they are wanted by; None until all are known. Raises `CallFailed`."""
    size, names = at_once(window.minutes + 1), list(wanted)
    found: dict[str, Series] = {}
    for start in range(0, len(names), size):
        piece = {name: wanted[name] for name in names[start : start + size]}
        ask = partial(_read, site, piece, window)
        known = site.kept_in_turn(f"{kind} metrics", frozenset(piece), ask, every_s=site.metrics_every_s)
        found |= known or {}
    return found if len(found) == len(wanted) else None


def _read(site: KnownSite, wanted: Mapping[str, Metric], window: Window) -> Mapping[str, Series]:
    at_ms = now_ms()
    client = site.connection.client("cloudwatch")
    return read_series(client, wanted, since_ms=window.since_ms(at_ms), until_ms=at_ms + MINUTE_MS)
