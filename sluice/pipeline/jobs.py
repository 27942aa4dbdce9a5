"""What each job is: its arguments, its Spark configuration, its limits, the digest of all of it. Pure.

The arguments are the entry point's, and the same wherever it runs: on EMR Serverless or in a local process.
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


class Mode(StrEnum):
    """How EMR Serverless runs a job."""

    STREAMING = "STREAMING"  # until it is cancelled, restarted where it fails
    BATCH = "BATCH"


class TableFormat(StrEnum):
    """What tables are made of."""

    PARQUET = "parquet"
    ICEBERG = "iceberg"
    DELTA = "delta"


ICEBERG_CATALOG, ICEBERG_NAMESPACE = "sluice", "pipeline"


class Places(msgspec.Struct, frozen=True, kw_only=True):
    """Where the jobs keep what they keep, below one folder: `s3://bucket`, or an absolute path. No slash at its end."""

    root: str
    table_format: TableFormat = TableFormat.PARQUET

    @property
    def warehouse(self) -> str:
        """The folder of all tables."""
        return f"{self.root}/tables"

    @property
    def tables(self) -> Sequence[str]:
        """As every job is told: the folder, or for Iceberg a namespace of the catalog that keeps them there."""
        iceberg = self.table_format is TableFormat.ICEBERG
        place = f"{ICEBERG_CATALOG}.{ICEBERG_NAMESPACE}" if iceberg else self.warehouse
        return ("--tables", place, "--table-format", self.table_format.value)

    def folder(self, name: str) -> str:
        """`staging`, `checkpoint`, `quarantine` or `statistics`."""
        return f"{self.root}/{name}"


class Reach(msgspec.Struct, frozen=True, kw_only=True):
    """How a job reaches SQS; without an endpoint it is AWS's own."""

    region: str
    endpoint: str | None = None

    @property
    def arguments(self) -> Sequence[str]:
        """For the jobs that call SQS."""
        endpoint = ("--endpoint", self.endpoint) if self.endpoint else ()
        return ("--region", self.region, *endpoint)


class Landing(msgspec.Struct, frozen=True, kw_only=True):
    """What the land job is told, drained or not. `metrics` is their namespace, where not the source's own.

    `columns` are of attributes, `name:type,…`; `envelope` is what bodies are in.
    """

    queue_url: str
    places: Places
    reach: Reach
    trigger_s: int
    connections: int | None = None  # receives at once; None is the source's default
    metrics: str | UnsetType = UNSET
    envelope: str | None = None
    columns: str | None = None

    def arguments(self, *, drain: bool = False) -> Sequence[str]:
        """With `drain` it ends when the queue is empty."""
        return (
            *(LAND, "--queue-url", self.queue_url),
            *("--staging", self.places.folder("staging")),
            *("--checkpoint", self.places.folder("checkpoint")),
            *self.places.tables,
            *("--quarantine", self.places.folder("quarantine")),
            *("--trigger-seconds", str(self.trigger_s)),
            *(("--max-connections", str(self.connections)) if self.connections else ()),
            *self.reach.arguments,
            *(("--envelope", self.envelope) if self.envelope else ()),
            *(("--columns", self.columns) if self.columns else ()),
            *(["--metrics"] if self.metrics is UNSET else ["--metrics", self.metrics]),
            *(["--drain"] if drain else []),
        )


def statistics_arguments(places: Places, *, day: str) -> Sequence[str]:
    """`day` is YYYY-MM-DD, or `yesterday`, in UTC."""
    return (STATISTICS, *places.tables, "--day", day, "--output", places.folder("statistics"))


def compact_arguments(places: Places, *, days: int) -> Sequence[str]:
    """Tell the job to compact the partitions of the last `days` closed days."""
    return (COMPACT, *places.tables, "--days", str(days))


class Replay(msgspec.Struct, frozen=True, kw_only=True):
    """What is sent again, and where: to the exchange behind an ingress queue. Times are ISO 8601.

    It comes from tables, or with `staged` from segments that are still kept.
    """

    queue_url: str
    exchange: str
    since: str
    until: str
    staged: bool = False

    def arguments(self, places: Places, reach: Reach) -> Sequence[str]:
        """Tell the job where to read and where to send."""
        source = ("--staging", places.folder("staging")) if self.staged else places.tables
        target = ("--queue-url", self.queue_url, "--exchange", self.exchange)
        return (REPLAY, *source, *target, "--from", self.since, "--to", self.until, *reach.arguments)


class Workers(msgspec.Struct, frozen=True, kw_only=True):
    """The size of the driver and of each executor. Half of the memory is the JVM's, half Python's and Arrow's."""

    cores: int = 1
    memory_gb: int = 4
    disk_gb: int = 20
    max_executors: int = 4


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """What is submitted, by its addresses in S3; these name the content, so that new content is a new program."""

    entry_point: str
    environment: str  # third-party packages, an archive
    code: str  # our package, an archive
    python: str = "3.11"
    workers: Workers = Workers()
    places: Places

    @property
    def configuration(self) -> Mapping[str, str]:
        """Spark's properties."""
        # The image's own interpreter, named in full: the archive's wheels are compiled for it, and which of its
        # Pythons an image takes by default changes from release to release.
        python, path = f"/usr/bin/python{self.python}", "./environment:./code"
        properties = {
            "spark.archives": f"{self.environment}#environment,{self.code}#code",
            "spark.emr-serverless.driverEnv.PYSPARK_DRIVER_PYTHON": python,
            "spark.emr-serverless.driverEnv.PYSPARK_PYTHON": python,
            "spark.emr-serverless.driverEnv.PYTHONPATH": path,
            "spark.executorEnv.PYSPARK_PYTHON": python,
            "spark.executorEnv.PYTHONPATH": path,
            "spark.dynamicAllocation.enabled": "true",
            "spark.executor.instances": "1",
            "spark.dynamicAllocation.maxExecutors": str(self.workers.max_executors),
        }
        heap = f"{self.workers.memory_gb * 1024 // 2}m"
        for role in ("driver", "executor"):
            properties[f"spark.{role}.cores"] = str(self.workers.cores)
            properties[f"spark.{role}.memory"] = properties[f"spark.{role}.memoryOverhead"] = heap
            properties[f"spark.emr-serverless.{role}.disk"] = f"{self.workers.disk_gb}g"
        match self.places.table_format:
            case TableFormat.ICEBERG:
                # https://docs.aws.amazon.com/emr/latest/EMR-Serverless-UserGuide/using-iceberg.html; the catalog is
                # the folder itself, so that no metastore is needed.
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
    """One job as it should run. `slot` says which one of a batch job's runs it is; a stream has none.

    `attempts` are a stream's failed ones in an hour, or a batch's in all. `timeout_minutes` 0 is none.
    """

    name: str
    mode: Mode
    program: Program
    arguments: Sequence[str]
    attempts: int
    timeout_minutes: int
    slot: str = ""

    @cached_property
    def digest(self) -> str:
        """Of code, arguments, configuration and limits: equal for equal jobs."""
        program = [self.program.entry_point, sorted(self.program.configuration.items())]
        content = [self.mode, program, list(self.arguments), self.attempts, self.timeout_minutes]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:DIGEST_CHARACTERS]

    @property
    def spark_submit_parameters(self) -> str:
        """As StartJobRun takes them; no value has a space."""
        return " ".join(f"--conf {name}={value}" for name, value in self.program.configuration.items())
