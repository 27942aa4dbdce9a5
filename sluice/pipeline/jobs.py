"""Definitions of jobs: arguments, Spark configuration, limits, and a digest of all these. Pure.

Jobs get the same arguments on EMR Serverless and in a local process.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

import msgspec
from msgspec import UNSET, UnsetType

LAND, STATISTICS, COMPACT, REPLAY = "land", "statistics", "compact", "replay"
JOBS = (LAND, STATISTICS, COMPACT, REPLAY)
DIGEST_CHARACTERS = 16


class JobMode(StrEnum):
    """How EMR Serverless runs a job."""

    STREAMING = "STREAMING"  # The job runs until it is cancelled, and is restarted if it fails.
    BATCH = "BATCH"


class TableFormat(StrEnum):
    """The format of the pipeline's tables."""

    PARQUET = "parquet"
    ICEBERG = "iceberg"
    DELTA = "delta"


ICEBERG_CATALOG, ICEBERG_NAMESPACE = "sluice", "pipeline"


class StorageLocations(msgspec.Struct, frozen=True, kw_only=True):
    """Storage locations of the jobs, below `root`: `s3://bucket` or an absolute path, without a trailing slash."""

    root: str
    table_format: TableFormat = TableFormat.PARQUET

    @property
    def warehouse(self) -> str:
        """The location of the folder of all tables."""
        return f"{self.root}/tables"

    @property
    def tables(self) -> Sequence[str]:
        """Job arguments for the tables' format and location: a folder, or for Iceberg a namespace of its catalog."""
        iceberg = self.table_format is TableFormat.ICEBERG
        place = f"{ICEBERG_CATALOG}.{ICEBERG_NAMESPACE}" if iceberg else self.warehouse
        return ("--tables", place, "--table-format", self.table_format.value)

    def folder(self, name: str) -> str:
        """Return the location of `staging`, `checkpoint`, `quarantine` or `statistics`."""
        return f"{self.root}/{name}"


class SqsEndpoint(msgspec.Struct, frozen=True, kw_only=True):
    """The region and endpoint of a job's calls to SQS. Endpoint None is AWS's own endpoint."""

    region: str
    endpoint: str | None = None

    @property
    def arguments(self) -> Sequence[str]:
        """The arguments for jobs that call SQS."""
        endpoint = ("--endpoint", self.endpoint) if self.endpoint else ()
        return ("--region", self.region, *endpoint)


class Landing(msgspec.Struct, frozen=True, kw_only=True, rename={"sqs_endpoint": "reach"}):
    """Settings of the land job. `metrics` is the metrics' namespace, by default the Spark source's.

    `columns` lists message attributes to land as columns, as `name:type,…`. `envelope` names the envelopes of bodies.
    """

    queue_url: str
    places: StorageLocations
    sqs_endpoint: SqsEndpoint
    trigger_s: int
    connections: int | None = None  # number of concurrent receives; None is the source's default
    metrics: str | UnsetType = UNSET
    envelope: str | None = None
    columns: str | None = None

    def arguments(self, *, drain: bool = False) -> Sequence[str]:
        """Return the land job's arguments. With `drain` the job ends when the queue is empty."""
        return (
            *(LAND, "--queue-url", self.queue_url),
            *("--staging", self.places.folder("staging")),
            *("--checkpoint", self.places.folder("checkpoint")),
            *self.places.tables,
            *("--quarantine", self.places.folder("quarantine")),
            *("--trigger-seconds", str(self.trigger_s)),
            *(("--max-connections", str(self.connections)) if self.connections else ()),
            *self.sqs_endpoint.arguments,
            *(("--envelope", self.envelope) if self.envelope else ()),
            *(("--columns", self.columns) if self.columns else ()),
            *(["--metrics"] if self.metrics is UNSET else ["--metrics", self.metrics]),
            *(["--drain"] if drain else []),
        )


def statistics_arguments(places: StorageLocations, *, day: str) -> Sequence[str]:
    """Return the statistics job's arguments. `day` is YYYY-MM-DD or `yesterday`, in UTC."""
    return (STATISTICS, *places.tables, "--day", day, "--output", places.folder("statistics"))


def compact_arguments(places: StorageLocations, *, days: int) -> Sequence[str]:
    """Return the compaction job's arguments, for the partitions of the last `days` closed days."""
    return (COMPACT, *places.tables, "--days", str(days))


class Replay(msgspec.Struct, frozen=True, kw_only=True):
    """A request to replay messages to the exchange of an ingress queue. Times are ISO 8601.

    Messages are read from tables, or with `staged` from retained segments.
    """

    queue_url: str
    exchange: str
    since: str
    until: str
    staged: bool = False

    def arguments(self, places: StorageLocations, sqs_endpoint: SqsEndpoint) -> Sequence[str]:
        """Return the replay job's arguments."""
        source = ("--staging", places.folder("staging")) if self.staged else places.tables
        target = ("--queue-url", self.queue_url, "--exchange", self.exchange)
        return (REPLAY, *source, *target, "--from", self.since, "--to", self.until, *sqs_endpoint.arguments)


class Workers(msgspec.Struct, frozen=True, kw_only=True):
    """The size of Spark's driver and of each executor. The JVM gets half of the memory, Python and Arrow the rest."""

    cores: int = 1
    memory_gb: int = 4
    disk_gb: int = 20
    max_executors: int = 4


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """The locations of a job's program in S3. They contain hashes of the content, so new content is a new program."""

    entry_point: str
    environment: str  # archive of third-party packages
    driver: str  # archive of packages that only drivers have
    code: str  # archive of our packages
    python: str = "3.11"
    workers: Workers = Workers()
    places: StorageLocations

    @property
    def configuration(self) -> Mapping[str, str]:
        """The Spark properties of the program."""
        # The image's Python for which the archive's wheels are compiled. Images differ in their default Python.
        python, path = f"/usr/bin/python{self.python}", "./environment:./code"
        properties = {
            "spark.archives": f"{self.environment}#environment,{self.code}#code",
            "spark.emr-serverless.driverEnv.PYSPARK_DRIVER_PYTHON": python,
            "spark.emr-serverless.driverEnv.PYSPARK_PYTHON": python,
            "spark.emr-serverless.driverEnv.PYTHONPATH": path,
            "spark.emr-serverless.driverEnv.SLUICE_DRIVER_PACKAGES": self.driver,
            "spark.executorEnv.PYSPARK_PYTHON": python,
            "spark.executorEnv.PYTHONPATH": path,
            "spark.dynamicAllocation.enabled": "true",
            # Without these settings a run begins with three executors, even if the maximum is lower, each at a cost:
            # https://docs.aws.amazon.com/emr/latest/EMR-Serverless-UserGuide/jobs-spark.html#spark-defaults
            "spark.dynamicAllocation.minExecutors": "1",
            "spark.dynamicAllocation.initialExecutors": "1",
            "spark.dynamicAllocation.maxExecutors": str(self.workers.max_executors),
        }
        heap = f"{self.workers.memory_gb * 1024 // 2}m"
        for role in ("driver", "executor"):
            properties[f"spark.{role}.cores"] = str(self.workers.cores)
            properties[f"spark.{role}.memory"] = properties[f"spark.{role}.memoryOverhead"] = heap
            properties[f"spark.emr-serverless.{role}.disk"] = f"{self.workers.disk_gb}g"
        match self.places.table_format:
            case TableFormat.ICEBERG:
                # The catalog is the folder itself, which needs no metastore:
                # https://docs.aws.amazon.com/emr/latest/EMR-Serverless-UserGuide/using-iceberg.html
                catalog = f"spark.sql.catalog.{ICEBERG_CATALOG}"
                properties |= {
                    "spark.jars": "/usr/share/aws/iceberg/lib/iceberg-spark3-runtime.jar",
                    "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
                    catalog: "org.apache.iceberg.spark.SparkCatalog",
                    f"{catalog}.type": "hadoop",
                    f"{catalog}.warehouse": self.places.warehouse,
                }
            case TableFormat.DELTA:
                # https://docs.aws.amazon.com/emr/latest/EMR-Serverless-UserGuide/using-delta-lake.html
                properties |= {
                    "spark.jars": "/usr/share/aws/delta/lib/delta-spark.jar,/usr/share/aws/delta/lib/delta-storage.jar",
                    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
                    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
                }
        return properties


@dataclass(frozen=True, kw_only=True)
class Job:
    """The definition of a job that should run. `slot` identifies a batch job's run; a stream has no slot.

    `attempts` limits a stream's failed attempts per hour, or all attempts of a batch job. `timeout_minutes` 0 is none.
    """

    name: str
    mode: JobMode
    program: Program
    arguments: Sequence[str]
    attempts: int
    timeout_minutes: int
    slot: str = ""

    @cached_property
    def digest(self) -> str:
        """A digest of code, arguments, configuration and limits. Equal jobs have equal digests."""
        program = [self.program.entry_point, sorted(self.program.configuration.items())]
        content = [self.mode, program, list(self.arguments), self.attempts, self.timeout_minutes]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:DIGEST_CHARACTERS]

    @property
    def spark_submit_parameters(self) -> str:
        """The Spark properties as text for StartJobRun. No value contains a space."""
        return " ".join(f"--conf {name}={value}" for name, value in self.program.configuration.items())
