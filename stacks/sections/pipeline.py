"""Section `pipeline`: the EMR Serverless application, its job runs, network and budget."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from sluice.errors import BadParameter
from sluice.pipeline.jobs import TableFormat
from sluice.pipeline.schedule import Daily
from stacks.sections.values import (
    EMAIL,
    MEMORY_MB,
    ROOT,
    Parse,
    flag,
    listed,
    matching,
    number,
    one_of,
    optional,
    parsed,
    queue_id,
    text,
)

RELEASE_LABEL = re.compile(r"emr-[a-z0-9.-]{1,59}")
ROLE_ARN = re.compile(r"arn:aws[a-z-]*:iam::\d{12}:role/[\w+=,.@/-]{1,576}")
MAX_NETWORK_PARTS = 16  # https://docs.aws.amazon.com/emr-serverless/latest/APIReference/API_NetworkConfiguration.html
# Gigabytes of memory by vCPUs: https://docs.aws.amazon.com/emr/latest/EMR-Serverless-UserGuide/app-behavior.html
WORKER_SIZES: Mapping[int, range] = {
    1: range(2, 9),
    2: range(4, 17),
    4: range(8, 31),
    8: range(16, 61, 4),
    16: range(32, 121, 8),
}
VPC_ENDPOINTS = ("sqs", "sts", "logs", "kms", "s3")


class JobPython(StrEnum):
    """The interpreters that EMR Serverless images have for jobs."""

    PYTHON_3_11 = "3.11"
    PYTHON_3_13 = "3.13"


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineParameters:
    """Section `pipeline`. Without a split queue of its queue_id there is no pipeline."""

    queue_id: str = "pipeline"  # of the split queue whose main queue the land job reads
    release_label: str = "emr-spark-8.1.0"
    python: JobPython = JobPython.PYTHON_3_11
    table_format: TableFormat = TableFormat.PARQUET
    streaming: bool = False  # whether the land job runs from the first deployment on
    trigger_s: int = 30  # from one batch to the next
    worker_vcpu: int = 1  # of the driver, and of each executor
    worker_memory_gb: int = 4
    worker_disk_gb: int = 20
    max_executors: int = 4  # of a job run
    max_vcpu: int = 16  # of all job runs together: what can be spent
    max_memory_gb: int = 64
    max_disk_gb: int = 400
    max_concurrent_runs: int = 5
    queue_timeout_minutes: int = 360  # how long a run waits for capacity
    idle_timeout_minutes: int = 15  # after which an application without runs stops
    failed_attempts_per_hour: int = 5  # of the stream, before it counts as failed
    restart_after_failure_s: int = 1_800  # when a stream that failed is tried again
    shutdown_grace_s: int = 120  # that a run has to end its batch
    batch_attempts: int = 2
    batch_timeout_minutes: int = 120
    statistics_at: str | None = "00:30"  # UTC; of the day before. None is never
    compaction_at: str | None = "01:30"
    compaction_days: int = 2
    assume_role_arns: tuple[str, ...] = ()  # that jobs may take on, for queues of other accounts
    vpc_id: str | None = None  # with subnets the workers are in that VPC
    subnet_ids: tuple[str, ...] = ()
    security_group_ids: tuple[str, ...] = ()
    route_table_ids: tuple[str, ...] = ()  # of these subnets, for S3
    vpc_endpoints: tuple[str, ...] = ()  # that are made there: of sqs, sts, logs, kms, s3
    budget_usd: int | None = None  # a month, of the whole account; None is no budget
    budget_email: str | None = None
    jobs_memory_mb: int = 256


def _time_of_day(value: object) -> str:
    Daily.parse(text(value))
    return text(value)


def _vpc_endpoint(value: object) -> str:
    if value not in VPC_ENDPOINTS:
        raise ValueError(f"{value!r} is none of {', '.join(VPC_ENDPOINTS)}")
    return text(value)


def _ids(prefix: str) -> Parse:
    return listed(matching(re.compile(rf"{prefix}-[0-9a-f]{{8,17}}"), f"an id, {prefix}-…"), most=MAX_NETWORK_PARTS)


KEY = f"{ROOT}.pipeline"
PARSERS: Mapping[str, Parse] = {
    "queue_id": queue_id,
    "release_label": matching(RELEASE_LABEL, "a release label of EMR"),
    "python": one_of(JobPython),
    "table_format": one_of(TableFormat),
    "streaming": flag,
    "trigger_s": number(1, 3_600),
    "worker_vcpu": number(1, max(WORKER_SIZES)),
    "worker_memory_gb": number(2, 120),
    "worker_disk_gb": number(20, 200),
    "max_executors": number(1, 1_000),
    "max_vcpu": number(1, 10_000),
    "max_memory_gb": number(2, 80_000),
    "max_disk_gb": number(20, 200_000),
    "max_concurrent_runs": number(1, 1_000),
    "queue_timeout_minutes": number(15, 720),
    "idle_timeout_minutes": number(1, 10_080),
    "failed_attempts_per_hour": number(1, 10),
    "restart_after_failure_s": number(0, 86_400),
    "shutdown_grace_s": number(15, 1_800),
    "batch_attempts": number(1, 10),
    "batch_timeout_minutes": number(5, 1_440),
    "statistics_at": optional(_time_of_day),
    "compaction_at": optional(_time_of_day),
    "compaction_days": number(1, 3_650),
    "assume_role_arns": listed(matching(ROLE_ARN, "the ARN of a role"), most=20),
    "vpc_id": optional(matching(re.compile(r"vpc-[0-9a-f]{8,17}"), "an id, vpc-…")),
    "subnet_ids": _ids("subnet"),
    "security_group_ids": _ids("sg"),
    "route_table_ids": _ids("rtb"),
    "vpc_endpoints": listed(_vpc_endpoint, most=len(VPC_ENDPOINTS)),
    "budget_usd": optional(number(1, 10_000_000)),
    "budget_email": optional(matching(EMAIL, "an e-mail address")),
    "jobs_memory_mb": MEMORY_MB,
}


def read(given: Mapping[str, object]) -> PipelineParameters:
    """From all that is given, by dotted key. Raises `BadParameter`."""
    parameters = PipelineParameters(**parsed(given, KEY, PARSERS))
    for name, cause in _misfits(parameters):
        raise BadParameter(f"{KEY}.{name}", cause)
    return parameters


def _misfits(given: PipelineParameters) -> Iterator[tuple[str, str]]:
    """What is right by itself and wrong beside the others."""
    sizes = WORKER_SIZES.get(given.worker_vcpu)
    if sizes is None:
        yield "worker_vcpu", f"{given.worker_vcpu} is none of {', '.join(map(str, WORKER_SIZES))}"
    elif given.worker_memory_gb not in sizes:
        yield (
            "worker_memory_gb",
            f"{given.worker_memory_gb}: workers of {given.worker_vcpu} vCPU have {sizes.start} to {sizes[-1]} GB"
            f"{f' in steps of {sizes.step}' if sizes.step > 1 else ''}",
        )
    for part in ("vcpu", "memory_gb", "disk_gb"):
        most, least = getattr(given, f"max_{part}"), 2 * getattr(given, f"worker_{part}")
        if most < least:
            yield f"max_{part}", f"{most} is less than a driver and an executor have, {least}"
    if bool(given.subnet_ids) != bool(given.security_group_ids):
        yield "subnet_ids", "subnets and security_group_ids go together"
    if given.vpc_endpoints and not (given.vpc_id and given.subnet_ids):
        yield "vpc_endpoints", "endpoints need vpc_id and subnet_ids"
    if "s3" in given.vpc_endpoints and not given.route_table_ids:
        yield "vpc_endpoints", "s3 needs route_table_ids"
    if (given.budget_usd is None) != (given.budget_email is None):
        yield "budget_usd", "a budget needs budget_usd and budget_email"
