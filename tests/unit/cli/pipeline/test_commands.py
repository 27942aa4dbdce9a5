"""`sluice pipeline` from its arguments to its output and exit code.

A fake AWS on loopback tells of the stack, serves the jobs function by the real operations, and has logs. Local jobs are
real processes; in place of a Python with PySpark stands a script that says its arguments and waits.
"""

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import parse_qs

import pytest
from msgspec import structs
from msgspec.structs import replace
from typer.testing import CliRunner, Result

from sluice.cli.program import app
from sluice.errors import BadRequest
from sluice.local.jobs import ENTRY_POINT, SPARK_PYTHON, LocalRuns, NoSpark, end_all, find_spark_python
from sluice.local.pipeline import LocalPipeline, local_settings
from sluice.operations import build_error_reply, build_reply, parse_request
from sluice.pipeline.jobs import SqsEndpoint
from sluice.pipeline.operations import DrainQueue, JobsOperation, ReconcileJobs, ShowPipeline, StartLand, StopJob
from sluice.pipeline.runs import RunState
from tests.unit.pipeline.test_jobs import Site

REGION = "eu-central-1"
QUEUE = "https://sqs.eu-central-1.amazonaws.com/123456789012/main"
WITHIN_S = 20.0


@dataclass
class FakeAws:
    """CloudFormation, Lambda and CloudWatch Logs, as far as the commands ask for them."""

    site: Site = field(default_factory=Site)
    streams: dict[str, list[str]] = field(default_factory=dict)
    outputs: dict[str, str] = field(
        default_factory=lambda: {"JobsFunctionName": "jobs", "JobLogGroupName": "group", "QueueUrl": QUEUE}
    )

    def answer(self, target: str, path: str, body: str) -> tuple[str, str]:
        """Content type and text."""
        if path.startswith("/2015-03-31/functions/jobs/"):
            return "application/json", json.dumps(self._function(json.loads(body)))
        if target.startswith("Logs_"):
            return "application/x-amz-json-1.1", json.dumps(self._logs(target.partition(".")[2], json.loads(body)))
        assert parse_qs(body)["Action"] == ["DescribeStacks"]
        members = "".join(
            f"<member><OutputKey>{key}</OutputKey><OutputValue>{value}</OutputValue></member>"
            for key, value in self.outputs.items()
        )
        stack = f"<StackName>s</StackName><StackStatus>CREATE_COMPLETE</StackStatus><Outputs>{members}</Outputs>"
        result = f"<Stacks><member>{stack}<CreationTime>2024-10-04T12:00:00Z</CreationTime></member></Stacks>"
        return "text/xml", (
            f"<DescribeStacksResponse><DescribeStacksResult>{result}</DescribeStacksResult></DescribeStacksResponse>"
        )

    def _function(self, request: dict[str, Any]) -> dict[str, Any]:
        try:
            return build_reply(self.site.reconciler.apply(parse_request(request, JobsOperation)))
        except BadRequest as error:
            return build_error_reply(error)

    def _logs(self, action: str, asked: dict[str, Any]) -> dict[str, Any]:
        assert asked["logGroupName"] == "group"
        if action == "DescribeLogStreams":
            return {"logStreams": [{"logStreamName": name} for name in self.streams]}
        return {"events": [{"message": line} for name in asked["logStreamNames"] for line in self.streams[name]]}


class Answering(Protocol):
    """An AWS: content type and text for a target, a path and a body."""

    def answer(self, target: str, path: str, body: str, /) -> tuple[str, str]: ...


@contextmanager
def serving(aws: Answering) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            kind, text = aws.answer(self.headers.get("X-Amz-Target", ""), self.path, body)
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeAws]:
    fake = FakeAws()
    with serving(fake) as endpoint:
        for name in [name for name in os.environ if name.startswith(("AWS_", "SLUICE_"))]:
            monkeypatch.delenv(name)
        for name, value in {
            "AWS_ENDPOINT_URL": endpoint,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_REGION": REGION,
            "AWS_CONFIG_FILE": os.devnull,
        }.items():
            monkeypatch.setenv(name, value)
        yield fake


def sluice(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["pipeline", *arguments])


def test_starting_twice_says_that_it_runs(aws: FakeAws) -> None:
    first, second = sluice("start"), sluice("start")
    assert (first.exit_code, second.exit_code) == (0, 0)
    assert "land: started as run-0" in first.stderr
    assert "land: already running: run-0 is SUBMITTED" in second.stderr
    assert aws.site.names() == ["land"]


def test_stop_and_drain_say_what_happens_and_to_which_run(aws: FakeAws) -> None:
    assert json.loads(sluice("start", "--json").stdout)["run"] == "run-0"
    assert "land: ending: run-0" in sluice("drain").stderr
    aws.site.runs.end_cancelled()
    assert "land: started as run-1" in sluice("drain").stderr
    assert "land: ending: run-1" in sluice("stop").stderr
    assert "land: waiting: run-1 is ending" in sluice("stop").stderr
    aws.site.runs.end_cancelled()
    assert "land: nothing to do" in sluice("stop").stderr


def test_a_batch_job_gets_its_fields(aws: FakeAws) -> None:
    assert sluice("start", "statistics", "--day", "2024-10-03").exit_code == 0
    refused = sluice("start", "replay", "--exchange", "events", "--from", "2024-10-03T00:00:00Z")
    assert (refused.exit_code, "missing required field `until`" in refused.stderr) == (1, True)
    assert aws.site.names() == ["statistics"]


def test_a_job_that_was_asked_for_another_day_isn_t_said_to_run_already(aws: FakeAws) -> None:
    assert sluice("start", "statistics", "--day", "2024-10-03").exit_code == 0
    other, same = (sluice("start", "statistics", "--day", f"2024-10-0{day}") for day in (2, 3))
    assert (other.exit_code, same.exit_code) == (1, 0)
    assert "not started, because another run is active: run-0 is SUBMITTED, which is statistics/" in other.stderr
    assert "/2024-10-03-by-hand-" in other.stderr
    assert "already running" in same.stderr
    assert aws.site.names() == ["statistics"]


def test_a_day_that_is_none_is_refused_before_anything_starts(aws: FakeAws) -> None:
    found = sluice("start", "statistics", "--day", "20-11-2026")
    assert found.exit_code == 1
    assert "'20-11-2026' is neither YYYY-MM-DD nor yesterday" in found.stderr
    assert aws.site.names() == []


def test_the_status_is_a_table_or_json(aws: FakeAws) -> None:
    sluice("start")
    aws.site.runs.end("run-0", RunState.RUNNING)
    found = json.loads(sluice("status", "--json").stdout)
    assert (found["wanted"], [run["run"] for run in found["runs"]]) == ("running", ["run-0"])
    shown = sluice("status").stdout
    assert "land: desired" in shown
    assert "run-0" in shown
    assert "RUNNING" in shown


def test_logs_are_the_end_of_the_latest_run_s(aws: FakeAws) -> None:
    sluice("start")
    aws.streams = {
        "/applications/app/jobs/run-0/SPARK_DRIVER/stdout": ["one\n", "two\n", "three\n"],
        "/applications/app/jobs/run-00/SPARK_DRIVER/stdout": ["another's"],
    }
    assert sluice("logs", "--lines", "2").stdout == "two\nthree\n"
    assert json.loads(sluice("logs", "--lines", "2", "--json").stdout) == {"run": "run-0", "lines": ["two", "three"]}
    assert sluice("logs", "--run", "run-00").stdout == "another's\n"
    none = sluice("logs", "compact")
    assert (none.exit_code, "compact has no recent run" in none.stderr) == (1, True)


def test_a_site_without_the_function_is_said_so(aws: FakeAws) -> None:
    aws.outputs = {"QueueUrl": QUEUE}
    found = sluice("status")
    assert (found.exit_code, "SluicePipeline has no output JobsFunctionName" in found.stderr) == (1, True)


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """Says its arguments and what it is told by variables; waits until it is asked to end, if DELAY says so."""
    path = tmp_path / "python"
    path.write_text(
        '#!/bin/sh\necho "$*" "[$PYSPARK_PYTHON]" "[$AWS_REGION]"\n[ -z "$DELAY" ] || exec sleep "$DELAY"\nexit 3\n'
    )
    path.chmod(0o755)
    return path


def said(log: str) -> list[str]:
    return log.splitlines()[0].split()


def test_run_local_runs_the_entry_point_with_a_session_s_queue(
    aws: FakeAws, script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLUICE_QUEUE_URL", f"{QUEUE}-session")
    place = tmp_path / "kept"
    found = sluice("run-local", "land", "--folder", str(place), "--spark-python", str(script), "--drain")
    assert found.exit_code == 3  # the program's own
    told = said(capfd.readouterr().out)
    assert told[:2] == [str(ENTRY_POINT), "land"]
    assert told[told.index("--queue-url") + 1] == f"{QUEUE}-session"
    assert told[told.index("--tables") + 1] == f"{place}/tables"
    assert told[told.index("--endpoint") + 1] == os.environ["AWS_ENDPOINT_URL"]
    assert told[-3:] == ["--drain", f"[{script}]", f"[{REGION}]"]


def test_run_local_passes_on_what_is_the_job_s(
    aws: FakeAws, script: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "kept"
    options = ["--folder", str(place), "--spark-python", str(script)]
    sluice("run-local", "statistics", *options, "--day", "2024-10-03")
    told = said(capfd.readouterr().out)
    assert told[1:6] == ["statistics", "--tables", f"{place}/tables", "--table-format", "parquet"]
    assert told[6:10] == ["--output", f"{place}/statistics", "--day", "2024-10-03"]


def test_run_local_doesn_t_take_a_deployed_site_s_own_queue_by_accident(aws: FakeAws, script: Path) -> None:
    found = sluice("run-local", "--spark-python", str(script))
    assert found.exit_code == 1
    assert "sluice split run -- sluice pipeline run-local" in found.stderr


def test_run_local_says_how_to_get_spark(aws: FakeAws) -> None:
    found = sluice("run-local", "--queue-url", QUEUE, "--spark-python", "/nowhere/python")
    assert (found.exit_code, "/nowhere/python is not an executable Python" in found.stderr) == (1, True)


def test_spark_is_what_is_given_then_the_environment_s(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SPARK_PYTHON, str(script))
    assert find_spark_python(None) == script
    with pytest.raises(NoSpark, match="/other is not an executable Python"):
        find_spark_python("/other")


@dataclass
class Here:
    """Local jobs in a folder, and who asks about them."""

    folder: Path
    script: Path
    queue: str = QUEUE
    delay: str = "60"
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000

    @property
    def asked(self) -> LocalPipeline:
        told = local_settings(
            self.folder, queue_url=self.queue, ingress_url="i", sqs_endpoint=SqsEndpoint(region=REGION)
        )
        runs = LocalRuns(folder=self.folder, given_python=str(self.script), variables={"DELAY": self.delay})
        # A process that knows nothing of signals ends at once; the grace period is for those that do.
        return LocalPipeline.create(
            runs, structs.replace(told, limits=replace(told.limits, shutdown_grace_s=5)), self.now_ms
        )

    def states(self) -> dict[str, str]:
        return {run.run: run.state.value for run in self.asked.ask(ShowPipeline()).runs}

    def until(self, run_id: str, state: str) -> None:
        deadline = time.monotonic() + WITHIN_S
        while self.states()[run_id] != state:
            assert time.monotonic() < deadline, self.states()
            threading.Event().wait(0.05)


@pytest.fixture
def here(tmp_path: Path, script: Path) -> Iterator[Here]:
    found = Here(tmp_path / "site", script)
    yield found
    found.asked.ask(StopJob())


def test_local_jobs_start_once_and_stop(here: Here) -> None:
    run_id = here.asked.ask(StartLand()).run
    assert here.asked.ask(StartLand()).step == "keep"
    assert here.states() == {run_id: "RUNNING"}
    assert here.asked.ask(StopJob()).step == "rest"
    assert here.states() == {run_id: "CANCELLED"}


def test_local_jobs_started_by_two_at_once_start_once(here: Here) -> None:
    results: list[str] = []
    threads = [threading.Thread(target=lambda: results.append(here.asked.ask(StartLand()).step)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == ["keep", "keep", "keep", "start"]
    assert len(here.states()) == 1


def test_a_changed_local_job_is_restarted(here: Here) -> None:
    first = here.asked.ask(StartLand()).run
    here.queue = f"{QUEUE}-other"
    second = here.asked.ask(StartLand()).run
    assert here.states() == {first: "CANCELLED", second: "RUNNING"}


def test_a_local_drain_takes_the_stream_s_place_and_ends(here: Here) -> None:
    first = here.asked.ask(StartLand()).run
    here.delay = ""
    drain = here.asked.ask(DrainQueue()).run
    here.until(drain, "FAILED")  # with the script's exit code
    assert here.states()[first] == "CANCELLED"
    assert here.asked.ask(ReconcileJobs())[0].step == "rest"
    assert here.asked.ask(ShowPipeline()).wanted == "stopped"
    assert said(here.asked.read_log(drain, lines=5))[-3] == "--drain"


def test_a_local_job_that_was_killed_is_seen_as_failed_and_can_be_started_again(here: Here) -> None:
    run_id = here.asked.ask(StartLand()).run
    record = json.loads((here.folder / "runs" / f"{run_id}.json").read_text())
    os.killpg(record["pid"], signal.SIGKILL)
    here.until(run_id, "FAILED")
    assert here.asked.ask(StartLand()).step == "start"


def test_local_jobs_say_which_spark_is_missing_before_anything_starts(here: Here, tmp_path: Path) -> None:
    lacking = Here(tmp_path / "lacking", Path("/nowhere/python"))
    with pytest.raises(NoSpark):
        lacking.asked.ask(StartLand())
    assert lacking.states() == {}


def test_local_jobs_end_with_the_cloud_that_they_read_from(here: Here) -> None:
    run_id = here.asked.ask(StartLand()).run
    assert [end_all(here.folder.parent, grace_s=5), end_all(here.folder.parent, grace_s=5)] == [1, 0]
    assert here.states() == {run_id: "CANCELLED"}
