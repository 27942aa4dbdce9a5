"""What a site costs in a month in which nothing comes, as somebody is told who deploys it for the first time."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from sluice.costs.counts import Counts
from sluice.costs.prices import price_list
from sluice.costs.rest import Month, SiteTemplates, month, streamed, usd_by_part
from sluice.project import PROJECT

LEAST_USD = 0.005  # what is less isn't said


def month_of(templates: Mapping[str, Mapping[str, Any]], given: Sequence[str]) -> Month:
    """Say what a month uses, from templates by their stacks' names and `given` parameters, each as -c takes it."""
    from sluice.parameters import Parameters  # noqa: PLC0415 - the project's, which a mere command line may lack

    context = json.loads((PROJECT.workspace / "cdk.json").read_text())["context"]
    pipeline = Parameters.read(context | dict(each.split("=", 1) for each in given)).pipeline
    workers = streamed(vcpu=pipeline.worker_vcpu, memory_gb=pipeline.worker_memory_gb)
    counts = Counts.read()
    land_job = workers if pipeline.streaming else {}
    return month(SiteTemplates(templates), minute=counts.minute, metrics=counts.metrics, land_job=land_job)


def in_words(month: Month) -> str:
    """Say its dollars in a line, by its parts."""
    usd, prices = usd_by_part(month), price_list()
    parts = ", ".join(f"{part} ${each:,.2f}" for part, each in usd.items() if each >= LEAST_USD)
    what = f"a month at rest costs some ${sum(usd.values()):,.2f}"
    return f"{what} ({parts}) by prices of {prices.region}, {prices.on}; docs/deploy.md has what messages cost"
