"""A month at rest by sets of parameters, each with a synth of its own; kept in `rest.json`, for documents and tests."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from app import add_stacks
from benchmarks.pool_costs import held
from sluice.costs.prices import MONTH_S, Used, times
from sluice.costs.rest import Month, SiteTemplates, month, streamed
from sluice.parameters import Parameters
from sluice.project import PROJECT
from sluice.rendezvous.protocol.matching import HOLD_MS
from stacks.reproducible import reproducible_app

Months = Mapping[str, Month]  # by sets of parameters
FILE = Path(__file__).with_name("rest.json")


def read() -> Months:
    """Read the months that were kept."""
    found: Months = json.loads(FILE.read_text())
    return found


def keep(months: Months) -> None:
    """Write the file."""
    FILE.write_text(json.dumps(months, indent=2) + "\n")


def month_with(parameters: Mapping[str, object], *, minute: Used, metrics: int) -> Month:
    """Say what a month uses with parameters on top of cdk.json's, by the keys that `-c` takes: synthesizes the stacks.

    Raises `BadConfiguration`.
    """
    # CDK's own validation of templates takes eight seconds, and only warns.
    os.environ.setdefault("CDK_VALIDATION", "false")
    context = json.loads((PROJECT.files / "cdk.json").read_text())["context"] | parameters
    with TemporaryDirectory(prefix="sluice-cost-") as outdir:
        made = reproducible_app(context, outdir=outdir)
        add_stacks(made)
        made.synth()
        site = SiteTemplates.read(Path(outdir))
    pipeline = Parameters.read(context).pipeline
    workers = streamed(vcpu=pipeline.worker_vcpu, memory_gb=pipeline.worker_memory_gb)
    return month(site, minute=minute, metrics=metrics, land_job=workers if pipeline.streaming else {})


def held_month(parameters: Parameters) -> Used:
    """Say what the polls take that are always held, as soon as any proxy polls."""
    number = parameters.rendezvous.held_proxies_min
    return times(held(memory_mb=parameters.rendezvous.proxy_memory_mb), number * MONTH_S / (HOLD_MS / 1000))
