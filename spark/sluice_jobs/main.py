"""The entry point of all jobs: `python -m sluice_jobs.main JOB …`, and for StartJobRun `sluice_job.py`.

A job prints its result as one line of JSON. Exit codes: 0 after success, 1 after an error, 2 for invalid arguments, 143
if SIGTERM or ctrl-C cut a drain off, 130 if ctrl-C ended a job at once.
"""

import argparse
import inspect
import json
import logging
import os
import signal
import sys
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from sluice_jobs.arguments import parse, source_options
from sluice_spark.errors import SluiceSparkError
from sluice_spark.log.store import open_store

Result = Mapping[str, Any]
JobArguments = TypeVar("JobArguments")
EXIT = "exit"  # The key in a job's result for an exit code other than 0
MIB = 2**20
INTERRUPTED = 128 + signal.SIGTERM
# The environment variable for the location of an archive with packages for the driver; set on EMR Serverless.
DRIVER_PACKAGES = "SLUICE_DRIVER_PACKAGES"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the job, and return the exit code."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    options = parse(sys.argv[1:] if arguments is None else arguments, today=datetime.now(UTC).date())
    try:
        if location := os.environ.get(DRIVER_PACKAGES):
            add_driver_packages(location)
        result = run_job(options)
    except SluiceSparkError as error:
        sys.stderr.write(f"sluice_job: {type(error).__name__}: {error}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write(f"sluice_job: {options.job} was interrupted\n")
        return 128 + signal.SIGINT
    output = dict(result)
    code = int(output.pop(EXIT, 0))
    sys.stdout.write(json.dumps(output, default=str) + "\n")
    sys.stdout.flush()
    return code


def add_driver_packages(location: str) -> None:
    """Unpack an archive of Python packages into the working directory, and add it to the import path. Raises LogError.

    If Spark unpacked the archive, it would do so in every executor, too.
    """
    folder, _, name = location.rpartition("/")
    into = Path("driver").absolute()
    with tarfile.open(fileobj=pa.BufferReader(open_store(folder).read(name))) as archive:
        archive.extractall(into, filter="data")
    sys.path.append(str(into))


def run_job(options: argparse.Namespace) -> Result:
    """Run the job that the arguments name, in a new Spark session. Raises the job's errors."""
    with _run_session(options.job) as spark:
        match options.job:
            case "land":
                from sluice_jobs.land import LandArguments, land  # noqa: PLC0415  needs Spark, which arguments don't

                landed = land(spark, _build_arguments(LandArguments, options, source=source_options(options)))
                cut_off = landed.interrupted and options.drain
                return {**asdict(landed.totals), EXIT: INTERRUPTED if cut_off else 0}
            case "statistics":
                from sluice_jobs.statistics import SourceTables, statistics  # noqa: PLC0415  needs Spark

                return asdict(statistics(spark, _build_arguments(SourceTables, options), options.day, options.output))
            case "compact":
                from sluice_jobs.compact import compact_table, list_closed_days  # noqa: PLC0415  needs Spark

                days = list_closed_days(datetime.now(UTC).date(), options.days)
                target_bytes = options.target_mb * MIB
                return compact_table(spark, options.table_format, options.tables, days=days, target_bytes=target_bytes)
            case _:
                from sluice_jobs.replay import ReplayArguments, replay  # noqa: PLC0415  needs Spark

                return asdict(replay(spark, _build_arguments(ReplayArguments, options)))


def _build_arguments(class_: Callable[..., JobArguments], options: argparse.Namespace, **more: Any) -> JobArguments:
    """Build a job's arguments object: each field gets the value of the parsed option of the same name."""
    names = {name for name in inspect.signature(class_).parameters if name not in more}
    return class_(**{name: getattr(options, name) for name in names}, **more)


@contextmanager
def _run_session(job: str) -> Iterator[Any]:
    from sluice_jobs.session import (  # noqa: PLC0415  needs Spark
        defer_interrupt,
        open_job_session,
        terminate_jvm,
    )

    try:
        with defer_interrupt():
            spark = open_job_session(f"sluice {job}")
            signal.signal(
                signal.SIGINT, signal.default_int_handler
            )  # PySpark's handler would call Spark during another call.
        try:
            yield spark
        except Exception:
            spark.stop()
            raise
        spark.stop()
    except KeyboardInterrupt:
        terminate_jvm()
        raise


if __name__ == "__main__":
    sys.exit(main())
