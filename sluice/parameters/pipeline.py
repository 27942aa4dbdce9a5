"""The parameters of the pipeline: the EMR Serverless application, its runs, its network. No construct is here."""

from collections import Counter
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import model_validator

from sluice.parameters import values as v
from sluice.parameters.values import InconsistentParameter, Model, of
from sluice.pipeline.jobs import TableFormat

# https://docs.aws.amazon.com/emr-serverless/latest/APIReference/API_NetworkConfiguration.html
SUBNETS_MOST, SECURITY_GROUPS_MOST = 16, 5
# Gigabytes of memory by vCPUs: https://docs.aws.amazon.com/emr/latest/EMR-Serverless-UserGuide/app-behavior.html
WORKER_SIZES: Mapping[int, range] = {
    1: range(2, 9),
    2: range(4, 17),
    4: range(8, 31),
    8: range(16, 61, 4),
    16: range(32, 121, 8),
}
VpcEndpoint = Literal["sqs", "sts", "logs", "kms", "s3"]
GATEWAY: VpcEndpoint = "s3"  # a route; the others are addresses in subnets


class JobPython(StrEnum):
    """The interpreters that EMR Serverless images have for jobs."""

    PYTHON_3_11 = "3.11"
    PYTHON_3_13 = "3.13"


class PipelineParameters(Model):
    """The EMR Serverless application, its job runs and network: where a split queue has its queue_id."""

    queue_id: v.QueueId = of("pipeline", "of the split queue whose main queue the land job reads")
    release_label: v.ReleaseLabel = of("emr-spark-8.1.0", "the image; its architecture is the one of the functions")
    python: JobPython = of(JobPython.PYTHON_3_11, "which of the image's Pythons")
    table_format: TableFormat = of(
        TableFormat.PARQUET,
        "`parquet` (with a log as Delta Lake's, read by everything that reads Delta), `delta`, `iceberg` (catalog "
        "`sluice`, namespace `pipeline`, kept in the bucket). Choose before the first start",
    )
    streaming: bool = of(False, "whether the land job runs from the first deployment on")
    resting: bool = of(
        False,
        "no endpoint that costs leads anywhere, and no job runs. What is queued waits, two weeks at most",
    )
    trigger_s: int = of(30, "from one batch of the land job to the next: longer makes larger files", ge=1, le=3_600)
    envelope: v.Envelopes | None = of(None, "what bodies are in, from the outermost in: [jobs.md](jobs.md#land)")
    columns: v.LandedColumns | None = of(
        None, "attributes that get a column of their own, as `priority:int`; others may follow later"
    )
    worker_vcpu: Annotated[Literal[1, 2, 4, 8, 16], v.NO_FLAG] = of(1, "of the driver, and of each executor")
    worker_memory_gb: int = of(4, "the same; half of it is Python's and Arrow's", ge=2, le=120)
    worker_disk_gb: int = of(20, "the same", ge=20, le=200)
    max_executors: int = of(4, "of a job run", ge=1, le=1_000)
    max_vcpu: int = of(16, "of all job runs together: what can be spent", ge=1, le=10_000)
    max_memory_gb: int = of(64, "the same", ge=2, le=80_000)
    max_disk_gb: int = of(400, "the same", ge=20, le=200_000)
    max_concurrent_runs: int = of(5, "of the application", ge=1, le=1_000)
    queue_timeout_minutes: int = of(360, "how long a run waits for capacity", ge=15, le=720)
    idle_timeout_minutes: int = of(15, "after which an application without runs stops", ge=1, le=10_080)
    failed_attempts_per_hour: int = of(5, "of the stream, before it counts as failed", ge=1, le=10)
    restart_after_failure_s: int = of(1_800, "when a stream that failed is tried again", ge=0, le=86_400)
    shutdown_grace_s: int = of(120, "what a run has to end its batch", ge=15, le=1_800)
    batch_attempts: int = of(2, "of the daily jobs, of replays and drains", ge=1, le=10)
    batch_timeout_minutes: int = of(120, "the same", ge=5, le=1_440)
    statistics_at: v.TimeOfDay | None = of("00:30", "UTC; of the day before. Null is never")
    compaction_at: v.TimeOfDay | None = of("01:30", "UTC. Null is never")
    compaction_days: int = of(2, "the last closed days whose partitions are compacted", ge=1, le=3_650)
    assume_role_arns: tuple[v.RoleArn, ...] = of(
        (),
        "roles that jobs may take on, for queues of other accounts. Keys of adopted queues: `splitting.kms_key_arns`",
        max_length=20,
    )
    zones: tuple[v.ZonePlace, ...] = of(
        (0, 1),
        "of the VPC that is made for workers, by their place in the region's list, from 0 on. A run is in one of them",
        max_length=3,
    )
    vpc_id: v.VpcId | None = of(None, "a VPC of yours in its place, whose endpoints of AWS are listed here, or exist")
    subnet_ids: tuple[v.SubnetId, ...] = of((), "where workers are in it", max_length=SUBNETS_MOST)
    security_group_ids: tuple[v.SecurityGroupId, ...] = of((), "which they have", max_length=SECURITY_GROUPS_MOST)
    route_table_ids: tuple[v.RouteTableId, ...] = of((), "of these subnets, for `s3`", max_length=SUBNETS_MOST)
    vpc_endpoints: tuple[VpcEndpoint, ...] = of(
        (),
        "those to make there, of `sqs sts logs kms s3`. All of the VPC calls them; `security_group_ids` alone get in",
        max_length=5,
    )
    own_way_to_sqs: bool = of(
        False, "these subnets lead to SQS by themselves: by a NAT gateway, or an endpoint that is there"
    )
    endpoint_subnets: int = of(
        1,
        "endpoints that cost by the hour are in the first so many of the subnets, each of another zone",
        ge=1,
        le=SUBNETS_MOST,
    )
    jobs_memory_mb: v.Memory = of(256, "of the function")

    @model_validator(mode="after")
    def _fits(self) -> Self:
        for name, cause in self._misfits():
            raise InconsistentParameter(name, cause)
        return self

    def _misfits(self) -> Iterator[tuple[str, str]]:
        sizes = WORKER_SIZES[self.worker_vcpu]
        if self.worker_memory_gb not in sizes:
            steps = f" in steps of {sizes.step}" if sizes.step > 1 else ""
            of_size = f"workers of {self.worker_vcpu} vCPU have {sizes.start} to {sizes[-1]} GB{steps}"
            yield "worker_memory_gb", f"{self.worker_memory_gb}: {of_size}"
        for part in ("vcpu", "memory_gb", "disk_gb"):
            most, least = getattr(self, f"max_{part}"), 2 * getattr(self, f"worker_{part}")
            if most < least:
                yield f"max_{part}", f"{most} is less than a driver and an executor have, {least}"
        if self.resting and self.streaming:
            yield "resting", "streaming is true"
        for name in ("zones", "subnet_ids", "security_group_ids", "route_table_ids", "vpc_endpoints"):
            for value, times in Counter(getattr(self, name)).items():
                if times > 1:
                    yield name, f"{value} is listed twice"
        yield from self._misfits_of_own_subnets() if self.subnet_ids else self._misfits_of_made_subnets()
        subnets = len(self.subnet_ids or self.zones)
        if self.endpoint_subnets > subnets:
            yield "endpoint_subnets", f"{self.endpoint_subnets} is more than there are subnets, {subnets}"

    def _misfits_of_own_subnets(self) -> Iterator[tuple[str, str]]:
        if not self.security_group_ids:
            yield "security_group_ids", "subnet_ids need them"
        if self.vpc_endpoints and not self.vpc_id:
            yield "vpc_id", "vpc_endpoints need it"
        if "sqs" not in self.vpc_endpoints and not self.own_way_to_sqs:
            yield "vpc_endpoints", "jobs in subnet_ids don't reach SQS: list sqs here, or say own_way_to_sqs"
        if (GATEWAY in self.vpc_endpoints) != bool(self.route_table_ids):
            yield "route_table_ids", "they go together with s3 in vpc_endpoints"

    def _misfits_of_made_subnets(self) -> Iterator[tuple[str, str]]:
        if not self.zones:
            yield "zones", "workers are in one at least"
        for name in ("vpc_id", "security_group_ids", "route_table_ids", "vpc_endpoints", "own_way_to_sqs"):
            if getattr(self, name):
                yield name, "it is about subnet_ids, of which there are none"
