"""Counts the AWS use of each kind of message with short runs of the other benchmarks, and of an idle site.

Requests and units are counted on the embedded cloud, or on an in-memory SQS. Values that no emulator can show are
assumed here or in `benchmarks.pool_costs`: the duration of warm functions, and the size of Lambda's logs. Results are
stored in `counts.json`, so that documents and tests need no new count.
"""

import json
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime
from pathlib import Path

from benchmarks import federation, splitting
from benchmarks.counting_cloud import start_counting, unit_log
from benchmarks.federation import OVER_ROUTES, OverRoute
from benchmarks.polling import CAPPED, PROVISIONED, batches
from benchmarks.pool_costs import BROKER_S, DELETE_S, METRICS_KB, QUICK_S
from benchmarks.prices import Used, times, together
from benchmarks.simulated import Load, Steady, Unanswered, steady, unanswered
from benchmarks.spark_source import Measured, memory_sqs, runs, spark_python
from benchmarks.units import READ, WRITE, Units, read_units
from benchmarks.ways import FUNCTIONS
from sluice.local.cloud import BUILD, start_cloud
from sluice.local.deployer import Deployer
from sluice.local.requests import BY_CALL
from sluice.local.sites import DEFAULT_SITE
from sluice.parameters import Parameters
from tests.site_access import SiteAccess
from tests.sqs_requests import SqsRequest, read_requests

BATCH_S = 0.05  # assumed time in which a warm function sends ten messages
PROXY_CALLS = 2  # a poll and an answer
RATE = 100  # messages a second
TEN = 10  # messages per SQS request, and per batch without a window
UNANSWERED = "unanswered_http"
REST_S = 190.0  # only the last minutes are counted: the first calls create missing resources
REST_MINUTES = 2
LANDED_BYTES = 1024
FILE = Path(__file__).with_name("counts.json")
Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """The results: `messages` by kind of message, and `minute` for the scheduled calls of an idle minute.

    `metrics` are published while idle. `land_msgs_per_s` is the rate of a land job with a driver and one executor.
    """

    on: date
    messages: Mapping[str, Used]
    minute: Used
    metrics: int
    land_msgs_per_s: float

    @classmethod
    def read(cls) -> "Counts":
        """Read the stored counts."""
        found = json.loads(FILE.read_text())
        return cls(**{**found, "on": date.fromisoformat(found["on"])})

    def keep(self) -> None:
        """Write the counts to the file."""
        FILE.write_text(json.dumps(asdict(self) | {"on": self.on.isoformat()}, indent=2) + "\n")


def count(parameters: Parameters, *, progress: Progress) -> Counts:
    """Count everything, in about eight minutes. Builds Spark's environment if it is missing."""
    progress("rendezvous")
    rendezvous = _met(steady(Load), parameters)
    without_proxy = _unanswered(unanswered(), parameters)
    landed, land_msgs_per_s = _landed(parameters, progress=progress)
    over_routes = _over_routes(parameters, progress=progress)
    minute, metrics = _at_rest(progress=progress)
    return Counts(
        on=datetime.now(tz=UTC).date(),
        messages={
            "rendezvous": rendezvous,
            UNANSWERED: without_proxy,
            **over_routes,
            **count_profiles(parameters),
            "landed": landed,
        },
        minute=minute,
        metrics=metrics,
        land_msgs_per_s=round(land_msgs_per_s),
    )


def count_profiles(parameters: Parameters) -> Mapping[str, Used]:
    """Count a message through the splitter and through an exchange: in full batches of each profile, and alone.

    At light load a message is alone in its batch, whatever the profile. At `RATE` a model of Lambda's pollers computes
    the sizes of batches. `split` is in full batches of the default profile; the same for an exchange is counted over
    routes. Each of three sessions gets a tenth of the messages.
    """

    def in_batches(batch: float, sends: float, memory_mb: int) -> Used:
        polled = math.ceil(batch / TEN) / batch
        return {
            "sqs_standard": sends + 2 * polled,  # a receive and a delete
            "lambda_calls": 1 / batch,
            "lambda_gb_s": polled * BATCH_S * memory_mb / 1024,
            "logs_gb": _logged_gb(1 / batch),
        }

    def split(batch: int) -> Used:
        sends = splitting.measure(splitting.FEW, tenants=splitting.FEW_TENANTS, batch=batch).sends_per_message
        return in_batches(batch, sends, parameters.splitting.splitter_memory_mb)

    def exchanged(batch: float) -> Used:
        return in_batches(batch, math.ceil(batch / TEN) / batch, parameters.federation.exchange_memory_mb)

    capped, provisioned = (batches(polling, rate=RATE, call_s=BATCH_S).size for polling in (CAPPED, PROVISIONED))
    return {
        "exchanged_at_rate": exchanged(capped),
        "exchanged_provisioned": {**exchanged(provisioned), "poller_hours": PROVISIONED.pollers / RATE / 3_600},
        "exchanged_throughput": exchanged(parameters.federation.batch_size),
        "exchanged_alone": exchanged(1),
        "split": split(TEN),
        "split_throughput": split(parameters.splitting.batch_size),
        "split_alone": split(1),
    }


def _landed(parameters: Parameters, *, progress: Progress) -> tuple[Used, float]:
    """Count the landing of a full queue with a driver and an executor, and an endpoint between them and SQS."""
    progress("messages into tables")
    with memory_sqs() as url:
        found = runs(spark_python(), url, module="benchmarks.pipeline_runs")
    job = Measured.of(next(run for run in found["runs"] if run["way"] == "land"))
    hours = 2 / job.msgs_per_s / 3_600
    used = {
        "sqs_standard": job.requests_per_message,
        "emr_vcpu_hours": hours * parameters.pipeline.worker_vcpu,
        "emr_gb_hours": hours * parameters.pipeline.worker_memory_gb,
        "endpoint_gb": LANDED_BYTES / 1e9,
    }
    return used, job.msgs_per_s


def _over_routes(parameters: Parameters, *, progress: Progress) -> Mapping[str, Used]:
    """Count messages over routes between two sites, sent as fast as they are forwarded."""
    cloud = start_cloud(BUILD / "bench-cost-routes", ends_with_us=True)
    try:
        over, _, _ = federation.sent_over_routes(cloud, progress=progress)
    finally:
        cloud.stop()
    memory_mb = {"exchange": parameters.federation.exchange_memory_mb, "bridge": parameters.federation.bridge_memory_mb}
    return {
        name + ("_fifo" if kind == "fifo" else ""): _hop(over[kind], function, kind, memory_mb=memory_mb[function])
        for name, function in (("exchanged", "exchange"), ("bridged", "bridge"))
        for kind in over
    }


def _hop(over: OverRoute, function: str, kind: str, *, memory_mb: int) -> Used:
    """Return the use of a message at one hop, with one function call for each receive."""
    hops = [hop for name, hop in zip(FUNCTIONS, over.hops, strict=True) if name == function]
    calls = sum(hop["ReceiveMessage"] for hop in hops) / len(hops) / OVER_ROUTES
    return {
        "sqs_fifo" if kind == "fifo" else "sqs_standard": over.per_hop(function),
        "lambda_calls": calls,
        "lambda_gb_s": calls * BATCH_S * memory_mb / 1024,
        "logs_gb": _logged_gb(calls),
    }


def _at_rest(*, progress: Progress) -> tuple[Used, int]:
    """Count the use of an idle site's schedules per minute, and the metrics that they publish."""
    cloud = start_counting(BUILD / "bench-cost")
    try:
        cloud = Deployer(cloud=cloud, progress=progress).deploy(DEFAULT_SITE)
        progress("a site at rest")
        time.sleep(REST_S)
        until_ms = time.time() * 1000
        since_ms = until_ms - REST_MINUTES * 60_000
        requests = [each for each in read_requests(cloud.request_log) if since_ms <= each.at_ms < until_ms]
        units = [each for each in read_units(unit_log(cloud)) if since_ms <= each.at_ms < until_ms]
        lines = _lines(SiteAccess(cloud, DEFAULT_SITE), since_ms=since_ms, until_ms=until_ms)
    finally:
        cloud.stop()
    asked = together(
        _requests(each for each in requests if each.by == BY_CALL),
        _units(units),
        {"logs_gb": sum(len(line) for line in lines) / 1e9},
    )
    return times(asked, 1 / REST_MINUTES), len(_metrics(lines))


def _requests(requests: Iterable[SqsRequest]) -> Used:
    named = [each.queue for each in requests]
    fifo = sum(name.endswith(".fifo") for name in named)
    return {"sqs_standard": len(named) - fifo, "sqs_fifo": fifo}


def _units(units: Iterable[Units]) -> Used:
    found = {WRITE: 0.0, READ: 0.0}
    for each in units:
        found[each.kind] += each.units
    return {"dynamodb_writes": found[WRITE], "dynamodb_reads": found[READ]}


def _lines(site: SiteAccess, *, since_ms: float, until_ms: float) -> Sequence[str]:
    """Read all log lines of functions and Lambda in that period."""
    logs = site.connection.client("logs")
    groups = [each["logGroupName"] for each in logs.describe_log_groups()["logGroups"]]
    pages = (
        logs.filter_log_events(logGroupName=group, startTime=int(since_ms), endTime=int(until_ms)) for group in groups
    )
    return [event["message"] for page in pages for event in page["events"]]


def _metrics(lines: Iterable[str]) -> set[tuple[str, ...]]:
    """Find the embedded metrics: AWS charges each combination of name and dimensions."""
    found = set()
    for line in lines:
        if '"CloudWatchMetrics"' in line:
            record = json.loads(line)
            for group in record["_aws"]["CloudWatchMetrics"]:
                for dimensions in group["Dimensions"]:
                    of = [str(record[name]) for name in dimensions]
                    found |= {(group["Namespace"], metric["Name"], *of) for metric in group["Metrics"]}
    return found


def _met(found: Steady, parameters: Parameters) -> Used:
    """Return the use of a rendezvous: its offer, the poll that takes it and the answer, without holding a poll."""
    rendezvous = parameters.rendezvous
    return {
        "sqs_standard": found.sqs,
        "dynamodb_writes": found.writes,
        "dynamodb_reads": found.reads,
        "lambda_calls": found.broker_calls + PROXY_CALLS,
        "lambda_gb_s": (
            found.broker_calls * BROKER_S * rendezvous.broker_memory_mb
            + (PROXY_CALLS * QUICK_S + DELETE_S) * rendezvous.proxy_memory_mb
        )
        / 1024,
        "logs_gb": _logged_gb(found.broker_calls) + PROXY_CALLS * METRICS_KB / 1e6,
    }


def _unanswered(found: Unanswered, parameters: Parameters) -> Used:
    """Return the use of an offer over HTTP without a proxy, which occupies the client function while it waits."""
    return {
        "sqs_standard": found.sqs,
        "dynamodb_writes": found.writes,
        "dynamodb_reads": found.reads,
        "lambda_calls": 1,
        "lambda_gb_s": found.held_s * parameters.rendezvous.client_memory_mb / 1024,
        "logs_gb": METRICS_KB / 1e6,
    }


def _logged_gb(calls: float) -> float:
    """Return the size of a line of metrics for each call. Frequently called functions have no log lines of Lambda."""
    return calls * METRICS_KB / 1e6
