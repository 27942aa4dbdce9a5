"""The land job over many messages, and over many batches."""

import json
import logging
import resource
import statistics
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.spark.with_spark.killed import committed
from tests.spark.with_spark.land_programs import killed_when, program, table_at, told
from tests.spark.with_spark.readers import BESIDE_SPARK, by_spark

log = logging.getLogger(__name__)
MESSAGES = 1_000_000
VISIBILITY_S = 20
LONG_S = 1_200.0
BATCHES, OF_EACH = 1_000, 20
TICKS_S = 100  # of /proc: https://man7.org/linux/man-pages/man5/proc_pid_stat.5.html


def fill(queue: Any, count: int) -> None:
    for number in range(count):
        text = json.dumps({"exchange": f"e{number % 3}"})
        attributes = {"x-qpid": {"DataType": "String", "StringValue": text}}
        queue.send({"MessageBody": f"{number}", "MessageAttributes": attributes}, time.time())


@pytest.mark.timeout(3600)
@pytest.mark.slow
def test_a_million_messages_are_landed_once_over_three_kills_and_all_readers_see_them(
    job_spark: Any, sqs: Any, tmp_path: Path
) -> None:
    queue = sqs.queues["q"]
    queue.visibility_s = VISIBILITY_S
    fill(queue, MESSAGES)
    sent = set(queue.known)
    arguments = {**told(sqs, tmp_path), "--max-messages": "80000"}
    versions = tmp_path / "tables" / "messages" / "_delta_log"
    checkpoint = {"checkpoint": f"{tmp_path}/checkpoint"}
    moments: list[Callable[[], bool]] = [
        lambda: len(list(versions.glob("*.json"))) > 2,  # a batch is in the table, and perhaps not in the checkpoint
        lambda: sqs.calls["DeleteMessageBatch"] > MESSAGES // 20,  # amid receiving
        lambda: committed(checkpoint) > 6,
    ]
    for moment in moments:
        killed_when(moment, program(arguments), within_s=LONG_S)
    rest = land_the_rest(job_spark, sqs, tmp_path)
    assert not rest.interrupted
    assert queue.known == {}
    table = table_at(tmp_path, "tables/messages")
    expected = by_spark(job_spark, table, ["message_id", "exchange"])
    assert (len(expected), {row[0] for row in expected}) == (MESSAGES, sent)
    for name, read in BESIDE_SPARK.items():
        assert read(table.location, ["message_id", "exchange"]) == expected, name


def land_the_rest(
    job_spark: Any, sqs: Any, place: Path, landed: Callable[[int], None] = lambda _: None, **more: str
) -> Any:
    from sluice_jobs.land import LandArguments, land  # noqa: PLC0415  needs PySpark

    source = {
        "queueUrl": sqs.queue_url("q"),
        "endpoint": sqs.url,
        "stagingLocation": f"{place}/staging",
        "waitTimeSeconds": "1",
    }
    return land(
        job_spark,
        LandArguments(
            source=source | more,
            checkpoint=f"{place}/checkpoint",
            tables=f"{place}/tables",
            table_format="parquet",
            quarantine=f"{place}/bad",
            drain=True,
        ),
        landed,
    )


@pytest.mark.timeout(3600)
@pytest.mark.slow
def test_a_thousand_batches_cost_what_the_first_hundreds_did(job_spark: Any, sqs: Any, tmp_path: Path) -> None:
    """In CPU of the driver, Python and JVM, which others on the machine don't take from it."""
    fill(sqs.queues["q"], BATCHES * OF_EACH)
    costs: list[float] = []
    jvm = job_spark.sparkContext._gateway.proc.pid

    def landed(_: int) -> None:
        costs.append(cpu_s(jvm))

    done = land_the_rest(job_spark, sqs, tmp_path, landed, maxMessagesPerTrigger=f"{OF_EACH}", retention="30s")
    assert (done.totals.batches >= BATCHES, done.totals.landed) == (True, BATCHES * OF_EACH)
    each = [after - before for before, after in pairwise(costs)]
    early, late = statistics.mean(each[200:400]), statistics.mean(each[-200:])
    segments = list((tmp_path / "staging" / "segments").iterdir())
    log.warning("CPU s of a batch: %.3f early, %.3f late; %d segments are kept", early, late, len(segments))
    assert late < 1.25 * early
    table = table_at(tmp_path, "tables/messages")
    assert sum(file.rows for file in table.log.files()) == BATCHES * OF_EACH
    assert len(list((tmp_path / "tables" / "messages" / "_delta_log").glob("*.checkpoint.parquet"))) >= BATCHES // 50


def cpu_s(pid: int) -> float:
    """Of this process and of that one."""
    ours = resource.getrusage(resource.RUSAGE_SELF)
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return ours.ru_utime + ours.ru_stime + (int(fields[11]) + int(fields[12])) / TICKS_S
