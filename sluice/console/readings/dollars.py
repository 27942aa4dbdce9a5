"""What a site costs a day: at rest, by its own templates, and today's messages, by what one of each kind takes."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from sluice.aws.clients import now_ms
from sluice.console.readings.counters import today_of
from sluice.console.sites import Document, KnownSite
from sluice.costs import MONTH_H, SiteTemplates, cost_table
from sluice.operator.alarms import read_template
from sluice.operator.metrics import Series
from sluice.stages import staged

STACKS = (
    "SluiceState",
    "SluiceRendezvous",
    "SluiceSplitting",
    "SluiceFederation",
    "SluicePipeline",
    "SluiceOperations",
)
TEMPLATES_EVERY_S = 3_600.0
DAY_H = 24.0
# By part and counter that say how many: what one message takes, as the benchmark of costs counted it.
KINDS = {
    "exchanged": ("federation", "MessagesReceived"),
    "bridged": ("federation", "MessagesForwarded"),
    "split": ("splitting", "MessagesRead"),
    "landed": ("pipeline", "NumberOfMessagesDeleted"),
}


def dollars_of(
    site: KnownSite, status: Document, offers: Mapping[str, int] | None, series: Mapping[str, Series] | None
) -> Document:
    """Say dollars a day at rest by part, and those of today's messages; null for what isn't known yet.

    A job of Spark's is at rest in neither: EMR Serverless bills it by itself. Raises `CallFailed`.
    """
    table, at_rest = cost_table(), _at_rest(site)
    at_ms = now_ms()
    told = {kind: (part, today_of(series, (f"{part} {counter}",), at_ms)) for kind, (part, counter) in KINDS.items()}
    told["rendezvous"] = "rendezvous", None if offers is None else sum(offers.values())
    numbers = {kind: _number(status, part, number) for kind, (part, number) in told.items()}
    usd = sum(table.message_usd[kind] * (number or 0) for kind, number in numbers.items())
    return {
        "at_rest": at_rest,
        "messages_today": None if None in numbers.values() else usd,
        "prices_of": table.region,
        "prices_on": table.on,
    }


def _number(status: Document, part: str, number: int | None) -> int | None:
    """Give how many there were: none of a part that isn't deployed; nobody knows of one that doesn't answer."""
    if part in status["absent"]:
        return 0
    return number if status[part] else None


def _at_rest(site: KnownSite) -> Mapping[str, float] | None:
    templates: dict[str, Any] = {}
    for name in STACKS:
        stack = staged(name, site.connection.stage)
        if stack not in site.stacks():
            continue  # not deployed, or in somebody's own stack
        template = site.kept(
            ("template", stack), partial(read_template, site.connection, stack), every_s=TEMPLATES_EVERY_S
        )
        if template is None:
            return None
        templates[stack] = template
    if not templates:
        return None
    month = SiteTemplates(templates).month(land_job={})
    return {part: usd * DAY_H / MONTH_H for part, usd in cost_table().usd_by_part(month).items() if usd}
