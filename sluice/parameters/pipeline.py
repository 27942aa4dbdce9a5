"""The parameters of the pipeline: the EMR Serverless application, its job runs and its network. No constructs here."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import model_validator

from sluice.aws_rules import find_release_fault
from sluice.parameters import values as v
from sluice.parameters.values import InconsistentParameter, Model, param
from sluice.pipeline.jobs import TableFormat

# EMR Serverless's limits: https://docs.aws.amazon.com/emr-serverless/latest/APIReference/API_NetworkConfiguration.html
MAX_SUBNETS, MAX_SECURITY_GROUPS = 16, 5
# Gigabytes of memory, by vCPUs: https://docs.aws.amazon.com/emr/latest/EMR-Serverless-UserGuide/app-behavior.html
WORKER_SIZES: Mapping[int, range] = {
    1: range(2, 9),
    2: range(4, 17),
    4: range(8, 31),
    8: range(16, 61, 4),
    16: range(32, 121, 8),
}
VpcEndpoint = Literal["sqs", "sts", "logs", "kms", "s3"]
GATEWAY: VpcEndpoint = "s3"  # S3 has a gateway endpoint in route tables; other services have interface endpoints.


class JobPython(StrEnum):
    """Python versions in the images of EMR releases with Spark 4."""

    PYTHON_3_11 = "3.11"
    PYTHON_3_13 = "3.13"


class PipelineParameters(Model):
    """The EMR Serverless application, its job runs and network. They exist only if a split queue has `queue_id`."""

    queue_id: v.QueueId = param("pipeline", "Id of the split queue whose main queue the land job reads")
    release_label: v.ReleaseLabel = param(
        "emr-spark-8.1.0",
        "EMR release, which selects the jobs' image. `architecture` selects the image's processor architecture",
    )
    python: JobPython = param(
        JobPython.PYTHON_3_11, "Python version that jobs use. The image of `release_label` must contain it"
    )
    table_format: TableFormat = param(
        TableFormat.PARQUET,
        "Format of the landed table. `parquet`: Parquet files with a Delta-compatible log, which Delta readers can "
        "read; `delta`: Delta Lake; `iceberg`: catalog `sluice`, namespace `pipeline`, stored in the bucket. Do not "
        "change it after the first start",
    )
    streaming: bool = param(False, "Whether the first deployment starts the land job as a continuous stream")
    trigger_s: int = param(
        30, "Seconds between batches of the land job. A longer interval produces fewer, larger files", ge=1, le=3_600
    )
    envelope: v.Envelopes | None = param(
        None, "Envelopes around message bodies, outermost first: see [jobs.md](jobs.md#land). Null: no envelopes"
    )
    columns: v.LandedColumns | None = param(
        None,
        "Message attributes that get a column of their own, for example `priority:int`. You can add columns later. "
        "Null: none",
    )
    worker_vcpu: Annotated[Literal[1, 2, 4, 8, 16], v.REJECT_BOOLEAN] = param(
        1, "vCPUs of the driver and of each executor"
    )
    worker_memory_gb: int = param(
        4,
        "Memory of the driver and of each executor, in GB; half is for Python and Arrow. AWS limits memory by "
        "`worker_vcpu`",
        ge=2,
        le=120,
    )
    worker_disk_gb: int = param(20, "Disk of the driver and of each executor, in GB", ge=20, le=200)
    max_executors: int = param(4, "Most executors of one job run", ge=1, le=1_000)
    max_vcpu: int = param(
        16, "Most vCPUs of all job runs together. This limits what the application can cost", ge=1, le=10_000
    )
    max_memory_gb: int = param(64, "Most memory of all job runs together, in GB", ge=2, le=80_000)
    max_disk_gb: int = param(400, "Most disk of all job runs together, in GB", ge=20, le=200_000)
    max_concurrent_runs: int = param(5, "Most job runs at once", ge=1, le=1_000)
    queue_timeout_minutes: int = param(
        360, "Minutes that a job run may wait for capacity before it fails", ge=15, le=720
    )
    idle_timeout_minutes: int = param(
        15,
        "Minutes without a job run after which the application stops, and the VPC endpoints that cost by the hour are "
        "deleted",
        ge=1,
        le=10_080,
    )
    failed_attempts_per_hour: int = param(
        5, "Failed attempts within an hour after which a stream counts as failed", ge=1, le=10
    )
    restart_after_failure_s: int = param(1_800, "Seconds after which a failed stream is started again", ge=0, le=86_400)
    shutdown_grace_s: int = param(120, "Seconds that a cancelled job run gets to finish its batch", ge=15, le=1_800)
    batch_attempts: int = param(2, "Most attempts of a daily job, a replay or a drain", ge=1, le=10)
    batch_timeout_minutes: int = param(
        120, "Minutes after which a daily job, a replay or a drain is cancelled", ge=5, le=1_440
    )
    statistics_at: v.TimeOfDay | None = param(
        "00:30", "Time of day, in UTC, at which the job that computes the previous day's statistics starts. Null: never"
    )
    compaction_at: v.TimeOfDay | None = param(
        "01:30", "Time of day, in UTC, at which the compaction job starts. Null: never"
    )
    compaction_days: int = param(
        2, "Number of most recent complete days whose partitions are compacted", ge=1, le=3_650
    )
    assume_role_arns: tuple[v.RoleArn, ...] = param(
        (),
        "ARNs of roles that jobs may assume to read queues of other accounts. List KMS keys of adopted queues in "
        "`splitting.kms_key_arns`",
        max_length=20,
    )
    zones: tuple[v.ZoneIndex, ...] = param(
        (0, 1),
        "Availability zones of the VPC that is created for the workers, as indexes into the region's list, from 0. "
        "Each job run uses one of them",
        max_length=3,
    )
    vpc_id: v.VpcId | None = param(
        None,
        "Id of an existing VPC for the workers; required with `vpc_endpoints`. Null: create one, unless `subnet_ids` "
        "are listed",
    )
    subnet_ids: tuple[v.SubnetId, ...] = param(
        (), "Ids of the existing VPC's subnets that workers run in. Empty: create a VPC", max_length=MAX_SUBNETS
    )
    security_group_ids: tuple[v.SecurityGroupId, ...] = param(
        (), "Ids of the workers' security groups; required with `subnet_ids`", max_length=MAX_SECURITY_GROUPS
    )
    route_table_ids: tuple[v.RouteTableId, ...] = param(
        (), "Ids of the route tables of `subnet_ids`; required with endpoint `s3`", max_length=MAX_SUBNETS
    )
    vpc_endpoints: tuple[VpcEndpoint, ...] = param(
        (),
        "VPC endpoints to create in the existing VPC while jobs run: any of `sqs`, `sts`, `logs`, `kms`, `s3`. "
        "Private DNS sends the whole VPC's calls to these endpoints, but only "
        "`security_group_ids` may connect",
        max_length=5,
    )
    own_way_to_sqs: bool = param(
        False, "Whether `subnet_ids` already reach SQS, through a NAT gateway or an existing endpoint"
    )
    endpoint_subnets: int = param(
        1,
        "Number of subnets, from the first, that get the endpoints with hourly cost. Each of these subnets "
        "must be in another zone",
        ge=1,
        le=MAX_SUBNETS,
    )
    jobs_memory_mb: v.Memory = param(256, "Memory of the jobs function, in MB")

    @property
    def interface_endpoints(self) -> Sequence[VpcEndpoint]:
        """The services whose VPC endpoints cost by the hour, and exist only while jobs run."""
        default_services: Sequence[VpcEndpoint] = ("sqs", "logs", "sts") if self.assume_role_arns else ("sqs", "logs")
        created = self.vpc_endpoints if self.subnet_ids else default_services
        return tuple(service for service in created if service != GATEWAY)

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        for name, cause in self._find_inconsistencies():
            raise InconsistentParameter(name, cause)
        return self

    def _find_inconsistencies(self) -> Iterator[tuple[str, str]]:
        if fault := find_release_fault(self.release_label, self.python):
            yield "release_label", f"{self.release_label}: {fault}"
        sizes = WORKER_SIZES[self.worker_vcpu]
        if self.worker_memory_gb not in sizes:
            steps = f" in steps of {sizes.step}" if sizes.step > 1 else ""
            allowed = f"workers with {self.worker_vcpu} vCPU have {sizes.start} to {sizes[-1]} GB{steps}"
            yield "worker_memory_gb", f"{self.worker_memory_gb}: {allowed}"
        for resource in ("vcpu", "memory_gb", "disk_gb"):
            most, least = getattr(self, f"max_{resource}"), 2 * getattr(self, f"worker_{resource}")
            if most < least:
                yield f"max_{resource}", f"{most} is less than one driver and one executor need, {least}"
        for name in ("zones", "subnet_ids", "security_group_ids", "route_table_ids", "vpc_endpoints"):
            for value, times in Counter(getattr(self, name)).items():
                if times > 1:
                    yield name, f"{value} is listed twice"
        yield from self._check_subnets()
        subnets = len(self.subnet_ids or self.zones)
        if self.endpoint_subnets > subnets:
            yield "endpoint_subnets", f"{self.endpoint_subnets} is more than the number of subnets, {subnets}"

    def _check_subnets(self) -> Iterator[tuple[str, str]]:
        if not self.subnet_ids:
            if not self.zones:
                yield "zones", "list at least one zone"
            for name in ("vpc_id", "security_group_ids", "route_table_ids", "vpc_endpoints", "own_way_to_sqs"):
                if getattr(self, name):
                    yield name, "can be set only together with subnet_ids"
            return
        if not self.security_group_ids:
            yield "security_group_ids", "required with subnet_ids"
        if self.vpc_endpoints and not self.vpc_id:
            yield "vpc_id", "required with vpc_endpoints"
        if "sqs" not in self.vpc_endpoints and not self.own_way_to_sqs:
            yield "vpc_endpoints", "jobs in subnet_ids can't reach SQS: list sqs here, or set own_way_to_sqs"
        if (GATEWAY in self.vpc_endpoints) != bool(self.route_table_ids):
            yield "route_table_ids", "required with s3 in vpc_endpoints, and only then"
