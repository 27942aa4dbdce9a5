"""The idle month for several sets of parameters, each synthesized; stored in `rest.json`, for documents and tests."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from app import add_stacks
from benchmarks.counts import Counts
from benchmarks.pool_costs import held
from benchmarks.prices import MONTH_H, MONTH_MIN, MONTH_S, POLL_S, Used, times, together
from benchmarks.site_templates import POLLERS, Month, Numbers, SiteTemplates, run_resources
from sluice.building.project import PROJECT
from sluice.parameters import Parameters
from sluice.parameters.pipeline import PipelineParameters
from sluice.rendezvous.protocol.matching import HOLD_MS
from stacks import create_reproducible_app

Months = Mapping[str, Month]  # by set of parameters
FILE = Path(__file__).with_name("rest.json")
SCHEDULED_S = 0.1  # assumed time of a scheduled call that finds nothing to do, which no emulator can show
DAILY_JOB_S = 300  # assumed run time of a daily job's workers
POLLED: Numbers = {"standard poller": POLLERS}  # of a route's queue by its trigger, while it is empty
# The queues that peers send to, two of them FIFO, from a site's first peer on.
PEERED: Numbers = {**POLLED, "FIFO poller": 2 * POLLERS}


def read() -> Months:
    """Read the stored months."""
    found: Months = json.loads(FILE.read_text())
    return found


def keep(months: Months) -> None:
    """Write the file."""
    FILE.write_text(json.dumps(months, indent=2) + "\n")


def used_in_a_month(counts: Counts) -> Mapping[str, Used]:
    """Return the use of each item of an idle month, by the prices' names."""
    return {
        "site": together(times(counts.minute, MONTH_MIN), {"metrics": counts.metrics}),
        "standard poller": {"sqs_standard": MONTH_S / POLL_S},
        "FIFO poller": {"sqs_fifo": MONTH_S / POLL_S},
        "provisioned poller": {"poller_hours": MONTH_H},  # besides its polls
        "scheduled function": {"lambda_calls": MONTH_MIN},
        "scheduled GB": {"lambda_gb_s": MONTH_MIN * SCHEDULED_S},
        "alarm metric": {"alarm_metrics": 1},
        "composite alarm": {"composite_alarms": 1},
        "dashboard": {"dashboards": 1},
        "key": {"keys": 1},
        "endpoint": {"endpoint_hours": MONTH_H},
        "worker vCPU": {"emr_vcpu_hours": MONTH_H},
        "worker GB": {"emr_gb_hours": MONTH_H},
    }


def month_with(parameters: Mapping[str, object]) -> Month:
    """Count a month's items with parameters in addition to cdk.json's, by the keys that `-c` takes.

    Synthesizes the stacks. Raises `BadConfiguration`.
    """
    # CDK's own validation of templates takes eight seconds, and only warns.
    os.environ.setdefault("CDK_VALIDATION", "false")
    context = json.loads((PROJECT.files / "cdk.json").read_text())["context"] | parameters
    with TemporaryDirectory(prefix="sluice-cost-") as outdir:
        made = create_reproducible_app(context, outdir=outdir)
        add_stacks(made)
        made.synth()
        files = sorted(Path(outdir).glob("*.template.json"))
        site = SiteTemplates({file.name.partition(".")[0]: json.loads(file.read_text()) for file in files})
    pipeline = Parameters.from_context(context).pipeline
    return site.month(land_job=resources_of_a_run(pipeline) if pipeline.streaming else {})


def resources_of_a_run(pipeline: PipelineParameters) -> Numbers:
    """Count the resources of a running job."""
    return run_resources(
        vcpu=pipeline.worker_vcpu, memory_gb=pipeline.worker_memory_gb, endpoints=endpoint_count(pipeline)
    )


def endpoint_count(pipeline: PipelineParameters) -> int:
    """Count a pipeline's endpoints in each zone, as AWS charges them."""
    return len(pipeline.interface_endpoints) * pipeline.endpoint_subnets


def used_in_an_hour(numbers: Numbers) -> Used:
    """Return the use of a run in an hour."""
    units = {"worker vCPU": "emr_vcpu_hours", "worker GB": "emr_gb_hours", "endpoint": "endpoint_hours"}
    return {units[thing]: number for thing, number in numbers.items()}


def daily_jobs_month(pipeline: PipelineParameters) -> Used:
    """Return the use of the daily jobs: minutes of workers each, and a whole hour of endpoints, which AWS charges."""
    of_hour = used_in_an_hour(resources_of_a_run(pipeline))
    shares = {"endpoint_hours": 1.0, "emr_vcpu_hours": DAILY_JOB_S / 3600, "emr_gb_hours": DAILY_JOB_S / 3600}
    runs = sum(at is not None for at in (pipeline.statistics_at, pipeline.compaction_at)) * MONTH_H / 24
    return times({thing: number * shares[thing] for thing, number in of_hour.items()}, runs)


def held_month(parameters: Parameters) -> Used:
    """Return the use of the polls that are always held once any proxy polls."""
    number = parameters.rendezvous.held_proxies_min
    return times(held(memory_mb=parameters.rendezvous.proxy_memory_mb), number * MONTH_S / (HOLD_MS / 1000))
