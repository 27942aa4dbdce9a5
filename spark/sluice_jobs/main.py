"""The one entry point: `python -m sluice_jobs.main JOB …`, and StartJobRun's by way of `sluice_job.py`.

A job prints its result as one line of JSON, and ends with 0; with 2 for arguments that can't be, 1 for an error, 143
for a drain that was cut off by SIGTERM or ctrl-C, 130 for what ctrl-C ended at once.
"""

import argparse
import inspect
import json
import logging
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, TypeVar

from sluice_jobs.arguments import parse, source_options
from sluice_spark.errors import SluiceSparkError

Result = Mapping[str, Any]
Told = TypeVar("Told")
EXIT = "exit"  # of a result: the exit code, where it isn't 0
MIB = 2**20
INTERRUPTED = 128 + signal.SIGTERM


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the job, and return the exit code."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    given = parse(sys.argv[1:] if arguments is None else arguments, today=datetime.now(UTC).date())
    try:
        result = JOBS[given.job](given)
    except SluiceSparkError as error:
        sys.stderr.write(f"sluice_job: {type(error).__name__}: {error}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write(f"sluice_job: {given.job} was interrupted\n")
        return 128 + signal.SIGINT
    said = dict(result)
    code = int(said.pop(EXIT, 0))
    sys.stdout.write(json.dumps(said, default=str) + "\n")
    sys.stdout.flush()
    return code


def _land(given: argparse.Namespace) -> Result:
    from sluice_jobs.land import Landing, land  # noqa: PLC0415  needs Spark, which arguments don't

    with _session("land") as spark:
        landed = land(spark, _told(Landing, given, source=source_options(given)))
    cut_off = landed.interrupted and given.drain
    return {**asdict(landed.totals), EXIT: INTERRUPTED if cut_off else 0}


def _statistics(given: argparse.Namespace) -> Result:
    from sluice_jobs.statistics import Source, keep_hourly, statistics  # noqa: PLC0415  needs Spark

    with _session("statistics") as spark:
        source = _told(Source, given)
        if given.stream:
            return {"rows": keep_hourly(spark, source, given.output, given.checkpoint, given.trigger_seconds)}
        return asdict(statistics(spark, source, given.day, given.output))


def _compact(given: argparse.Namespace) -> Result:
    from sluice_jobs.compact import closed_days, compacted  # noqa: PLC0415  needs Spark

    days = closed_days(datetime.now(UTC).date(), given.days)
    with _session("compact") as spark:
        return compacted(spark, given.table_format, given.tables, days=days, target_bytes=given.target_mb * MIB)


def _replay(given: argparse.Namespace) -> Result:
    from sluice_jobs.replay import Replay, replay  # noqa: PLC0415  needs Spark

    with _session("replay") as spark:
        return asdict(replay(spark, _told(Replay, given)))


def _told(kind: Callable[..., Told], given: argparse.Namespace, **more: Any) -> Told:
    """Tell a job its arguments, by its fields' names."""
    names = {name for name in inspect.signature(kind).parameters if name not in more}
    return kind(**{name: getattr(given, name) for name in names}, **more)


@contextmanager
def _session(job: str) -> Iterator[Any]:
    from sluice_jobs.session import (  # noqa: PLC0415  needs Spark
        abandoned,
        interrupt_held,
        job_session,
    )

    try:
        with interrupt_held():
            spark = job_session(f"sluice {job}")
            signal.signal(signal.SIGINT, signal.default_int_handler)  # PySpark's would call Spark amid another call
        try:
            yield spark
        except Exception:
            spark.stop()
            raise
        spark.stop()
    except KeyboardInterrupt:
        abandoned()
        raise


JOBS: Mapping[str, Callable[[argparse.Namespace], Result]] = {
    "land": _land,
    "statistics": _statistics,
    "compact": _compact,
    "replay": _replay,
}

if __name__ == "__main__":
    sys.exit(main())
