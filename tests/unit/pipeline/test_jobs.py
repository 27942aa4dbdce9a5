"""What the pipeline's jobs are, and what is done about their runs: the decisions, without AWS."""

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from sluice.errors import BadRequest, BadSetting
from sluice.operations import Operation, R, parse_request
from sluice.pipeline.catalogue import JobCatalogue
from sluice.pipeline.jobs import COMPACT, LAND, STATISTICS, Job, JobMode, StorageLocations, TableFormat, Workers
from sluice.pipeline.operations import (
    DrainQueue,
    JobOutcome,
    JobsOperation,
    ReconcileJobs,
    ShowPipeline,
    StartCompaction,
    StartLand,
    StartReplay,
    StartStatistics,
    StopJob,
)
from sluice.pipeline.reconciler import Endpoints, Reconciler
from sluice.pipeline.runs import (
    LIVE,
    Decision,
    DesiredState,
    JobStep,
    Run,
    RunName,
    RunState,
    TargetState,
    build_start_request,
    decide_step,
)
from sluice.pipeline.schedule import Daily
from sluice.pipeline.settings import JobsSettings
from sluice.times import DAY_MS

PROJECT = Path(__file__).parents[3]
VARIABLES = {
    "APPLICATION_ID": "app",
    "ROLE_ARN": "arn:aws:iam::123456789012:role/job",
    "TABLE": "table",
    "INGRESS_URL": "https://sqs/ingress",
    "PROGRAM": """{"entry_point": "s3://assets/job.py", "environment": "s3://assets/e.tgz", "driver": "s3://assets/d.tgz",
        "code": "s3://assets/c.tgz",
        "python": "3.11", "workers": {"cores": 1, "memory_gb": 4, "disk_gb": 20, "max_executors": 4},
        "places": {"root": "s3://bucket", "table_format": "parquet"}}""",
    "LANDING": """{"queue_url": "https://sqs/main", "places": {"root": "s3://bucket", "table_format": "parquet"},
        "reach": {"region": "eu-central-1"}, "trigger_s": 30}""",
    "LIMITS": """{"streaming": true, "failed_attempts_per_hour": 5, "restart_after_failure_s": 60,
        "shutdown_grace_s": 120, "batch_attempts": 2, "batch_timeout_minutes": 90, "statistics_at": "00:30",
        "compaction_at": "01:30", "compaction_days": 2, "idle_timeout_minutes": 15}""",
}


def with_format(table_format: str, **variables: str) -> dict[str, str]:
    """The variables of a site whose tables have this format."""
    given = VARIABLES | variables
    return {name: value.replace('"parquet"', f'"{table_format}"') for name, value in given.items()}


SETTINGS = JobsSettings.read(VARIABLES)
CATALOGUE = JobCatalogue(SETTINGS)
NOON_MS = 20_000 * DAY_MS + DAY_MS // 2  # of 2024-10-04
PAUSE_MS = 60_000


def run(job: Job, run_id: str, state: RunState = RunState.RUNNING, *, at_ms: int = NOON_MS) -> Run:
    return Run(run_id=run_id, name=RunName.from_job(job), state=state, created_at_ms=at_ms, ended_at_ms=at_ms)


def land(*, code: str = "s3://assets/c.tgz") -> Job:
    return JobCatalogue(replace(SETTINGS, program=replace(SETTINGS.program, code=code))).build_land_job()


def decision(job: Job | None, *runs: Run, now_ms: int = NOON_MS, name: str = LAND) -> Decision:
    return decide_step(name, job, runs, now_ms=now_ms, pause_ms=PAUSE_MS)


OLD, NEW = land(), land(code="s3://assets/new.tgz")


def test_the_land_job_is_told_where_everything_is() -> None:
    assert list(OLD.arguments) == [
        *("land", "--queue-url", "https://sqs/main", "--staging", "s3://bucket/staging"),
        *("--checkpoint", "s3://bucket/checkpoint", "--tables", "s3://bucket/tables", "--table-format", "parquet"),
        *("--quarantine", "s3://bucket/quarantine", "--trigger-seconds", "30", "--region", "eu-central-1", "--metrics"),
    ]
    assert CATALOGUE.build_drain_job("now").arguments == (*OLD.arguments, "--drain")


def test_iceberg_tables_are_a_namespace_of_a_catalog_in_their_folder() -> None:
    settings = JobsSettings.read(with_format("iceberg"))
    job = JobCatalogue(settings).build_land_job()
    assert job.arguments[job.arguments.index("--tables") + 1] == "sluice.pipeline"
    assert job.program.configuration["spark.sql.catalog.sluice.warehouse"] == "s3://bucket/tables"


@pytest.mark.parametrize("table_format", list(TableFormat))
def test_spark_s_parameters_can_be_told_apart_by_spaces(table_format: TableFormat) -> None:
    settings = JobsSettings.read(with_format(table_format))
    job = JobCatalogue(settings).build_land_job()
    words = job.spark_submit_parameters.split(" ")
    assert words[::2] == ["--conf"] * len(job.program.configuration)
    assert dict(word.split("=", 1) for word in words[1::2]) == dict(job.program.configuration)


def test_the_land_job_is_told_of_envelopes_and_columns_where_there_are_some() -> None:
    landing = SETTINGS.landing
    assert not {"--envelope", "--columns"} & set(landing.arguments())
    told = replace(landing, envelope="sns", columns="priority:int").arguments(drain=True)
    pairs = dict(pairwise(told))
    assert (pairs["--envelope"], pairs["--columns"]) == ("sns", "priority:int")


def test_half_of_a_worker_s_memory_is_for_python() -> None:
    configuration = replace(SETTINGS.program, workers=Workers(memory_gb=7)).configuration
    assert configuration["spark.driver.memory"] == configuration["spark.driver.memoryOverhead"] == "3584m"


def changed(job: Job) -> list[Job]:
    return [
        dataclasses.replace(job, program=replace(job.program, entry_point="s3://assets/other.py")),
        dataclasses.replace(job, program=replace(job.program, code="s3://assets/other.tgz")),
        dataclasses.replace(job, program=replace(job.program, environment="s3://assets/other.tgz")),
        dataclasses.replace(job, program=replace(job.program, workers=Workers(cores=2))),
        dataclasses.replace(job, arguments=(*job.arguments, "--drain")),
        dataclasses.replace(job, attempts=9),
        dataclasses.replace(job, timeout_minutes=9),
    ]


def test_every_change_of_a_job_is_another_digest() -> None:
    digests = [job.digest for job in (OLD, *changed(OLD))]
    assert len(set(digests)) == len(digests)
    assert land().digest == OLD.digest


def test_a_run_s_name_says_what_it_is_of() -> None:
    for job in (OLD, CATALOGUE.build_drain_job("2024-10-04T12:00:00.000Z")):
        assert RunName.parse(str(RunName.from_job(job))) == RunName.from_job(job)


@pytest.mark.parametrize("text", ["", "somebody's", "/", "land/", "a/b/c/d"])
def test_a_run_of_somebody_else_is_none_of_ours(text: str) -> None:
    assert RunName.parse(text) is None


def test_a_job_that_doesn_t_run_is_started() -> None:
    found = decision(OLD)
    assert (found.step, found.runs_to_cancel) == (JobStep.START, ())
    assert 1 <= len(found.token) <= 64


def test_whoever_starts_the_same_job_at_the_same_time_starts_it_once() -> None:
    ended = run(OLD, "1", RunState.CANCELLED)
    assert decision(OLD, ended).token == decision(OLD, ended, now_ms=NOON_MS + 5_000).token
    assert decision(OLD).token == decision(OLD, now_ms=NOON_MS + 5_000).token


def test_a_start_after_another_run_is_another_start() -> None:
    tokens = [
        decision(OLD).token,
        decision(OLD, now_ms=NOON_MS + DAY_MS).token,
        decision(OLD, run(OLD, "1", RunState.CANCELLED)).token,
        decision(OLD, run(OLD, "2", RunState.CANCELLED)).token,
        decision(NEW, run(OLD, "2", RunState.CANCELLED)).token,
    ]
    assert len(set(tokens)) == len(tokens)


@pytest.mark.parametrize("state", [state for state in LIVE if state is not RunState.CANCELLING])
def test_a_job_that_runs_or_soon_will_is_left_alone(state: RunState) -> None:
    found = decision(OLD, run(OLD, "1", state))
    assert (found.step, found.runs_to_cancel) == (JobStep.KEEP, ())


def test_of_two_that_were_started_the_older_goes_on() -> None:
    found = decision(OLD, run(OLD, "2", at_ms=NOON_MS + 1), run(OLD, "1"))
    assert (found.step, found.runs_to_cancel) == (JobStep.KEEP, ("2",))


def test_a_changed_job_starts_when_the_one_before_has_ended() -> None:
    assert decision(NEW, run(OLD, "1")).step is JobStep.STOP
    assert decision(NEW, run(OLD, "1")).runs_to_cancel == ("1",)
    assert decision(NEW, run(OLD, "1", RunState.CANCELLING)).step is JobStep.WAIT
    assert decision(NEW, run(OLD, "1", RunState.CANCELLED)).step is JobStep.START


def test_a_changed_job_doesn_t_wait_because_the_one_before_failed() -> None:
    assert decision(NEW, run(OLD, "1", RunState.FAILED)).step is JobStep.START


def test_a_stream_that_failed_is_started_again_after_a_pause() -> None:
    failed = run(OLD, "1", RunState.FAILED)
    waiting = decision(OLD, failed, now_ms=NOON_MS + PAUSE_MS - 1)
    assert (waiting.step, waiting.has_last_run_failed) == (JobStep.WAIT, True)
    assert decision(OLD, failed, now_ms=NOON_MS + PAUSE_MS).step is JobStep.START


def test_a_stream_that_was_cancelled_is_started_at_once() -> None:
    assert decision(OLD, run(OLD, "1", RunState.CANCELLED)).step is JobStep.START


def test_what_isn_t_wanted_is_ended_once() -> None:
    assert decision(None, run(OLD, "1")).runs_to_cancel == ("1",)
    assert decision(None, run(OLD, "1", RunState.CANCELLING)).step is JobStep.WAIT
    assert decision(None, run(OLD, "1", RunState.SUCCESS)).step is JobStep.REST


def test_a_drain_takes_the_stream_s_place() -> None:
    drain = CATALOGUE.build_drain_job("s")
    assert decision(drain, run(OLD, "1")).runs_to_cancel == ("1",)
    assert decision(drain, run(OLD, "1", RunState.CANCELLED)).step is JobStep.START
    assert decision(OLD, run(drain, "2")).runs_to_cancel == ("2",)


@pytest.mark.parametrize("state", [RunState.SUCCESS, RunState.FAILED, RunState.CANCELLED])
def test_a_slot_is_done_once_by_whichever_version(state: RunState) -> None:
    job = CATALOGUE.build_due_jobs(NOON_MS)[0]
    later = dataclasses.replace(job, attempts=9)
    found = decision(later, run(job, "1", state), name=STATISTICS)
    assert (found.step, found.has_last_run_failed) == (JobStep.REST, state is RunState.FAILED)


def test_a_batch_isn_t_begun_beside_another_of_its_job() -> None:
    today, tomorrow = (CATALOGUE.build_due_jobs(NOON_MS + days * DAY_MS)[0] for days in (0, 1))
    found = decision(tomorrow, run(today, "1"), name=STATISTICS)
    assert (found.step, found.runs_to_cancel) == (JobStep.BUSY, ())
    assert found.reason.endswith(f"which is {RunName.from_job(today)}")
    assert decision(tomorrow, run(today, "1", RunState.SUCCESS), name=STATISTICS).step is JobStep.START


def test_a_batch_that_is_asked_for_twice_runs_already() -> None:
    first, second = (CATALOGUE.build_manual_job(StartStatistics(day="2024-10-01"), slot) for slot in ("a", "b"))
    assert decision(second, run(first, "1"), name=STATISTICS).step is JobStep.KEEP
    deployed = dataclasses.replace(first, attempts=9)
    assert decision(deployed, run(first, "1"), name=STATISTICS).step is JobStep.KEEP


@pytest.mark.parametrize("day", ["20-11-2026", "20261120", "2026-11-31", "today", ""])
def test_statistics_are_of_a_day_that_there_is(day: str) -> None:
    with pytest.raises(BadRequest, match="day"):
        parse_request({"op": "start-statistics", "day": day}, JobsOperation)


@pytest.mark.parametrize(
    ("since", "until"),
    [
        ("yesterday", "2026-11-21"),
        ("2026-11-20", "now"),
        ("2026-11-21", "2026-11-21"),
        ("2026-11-21T00:00:00Z", "2026-11-20"),
    ],
)
def test_a_replay_is_of_a_span_of_time(since: str, until: str) -> None:
    with pytest.raises(BadRequest, match=r"not a time|not after"):
        parse_request({"op": "start-replay", "exchange": "e", "since": since, "until": until}, JobsOperation)


RUNS = st.lists(
    st.builds(
        lambda job, state, at_ms, number: run(job, f"r{number}", state, at_ms=at_ms),
        st.sampled_from([OLD, NEW, CATALOGUE.build_drain_job("s"), *CATALOGUE.build_due_jobs(NOON_MS)]),
        st.sampled_from(list(RunState)),
        st.integers(NOON_MS - PAUSE_MS * 2, NOON_MS),
        st.integers(0, 1_000),
    ),
    max_size=6,
    unique_by=lambda each: each.run_id,
)
WANTED = st.sampled_from([None, OLD, NEW, CATALOGUE.build_drain_job("s")])


@given(runs=RUNS, wanted=WANTED)
def test_nothing_is_ever_started_beside_a_live_run_of_the_job(runs: list[Run], wanted: Job | None) -> None:
    found = decision(wanted, *runs)
    live = {each.run_id for each in runs if each.name.job == LAND and each.state in LIVE}
    assert found.step is not JobStep.START or not live
    assert set(found.runs_to_cancel) <= live


@given(runs=RUNS, wanted=WANTED)
def test_it_always_settles(runs: list[Run], wanted: Job | None) -> None:
    """Whatever is there: when what is cancelled ends, in a few looks the one run that is wanted is the only one."""
    cloud, now_ms = FakeRuns({each.run_id: each for each in runs}), NOON_MS + 10 * PAUSE_MS
    for _ in range(4):
        found = decide_step(LAND, wanted, cloud.list_runs(now_ms=now_ms), now_ms=now_ms, pause_ms=PAUSE_MS)
        for run_id in found.runs_to_cancel:
            cloud.cancel(run_id, grace_s=0)
        if found.step is JobStep.START and wanted is not None:
            cloud.start(wanted, token=found.token)
        cloud.end_cancelled()
    live = [each for each in cloud.found.values() if each.is_live and each.name.job == LAND]
    assert len(live) <= 1
    if wanted is None:
        assert not live
    elif wanted.mode is JobMode.STREAMING:
        assert [each.name for each in live] == [RunName.from_job(wanted)]
    assert found.step in {JobStep.KEEP, JobStep.REST}


def test_the_order_in_which_runs_are_listed_doesn_t_matter() -> None:
    runs = [run(OLD, "1"), run(OLD, "2", at_ms=NOON_MS + 1), run(NEW, "3"), run(OLD, "4", RunState.FAILED)]
    assert decision(OLD, *runs) == decision(OLD, *reversed(runs))


def test_start_job_run_is_asked_for_a_stream_with_a_retry_policy() -> None:
    asked = build_start_request(OLD, application_id="app", role_arn="role", token="t")
    assert (asked["mode"], asked["retryPolicy"]) == ("STREAMING", {"maxFailedAttemptsPerHour": 5})
    assert asked["executionTimeoutMinutes"] == 0
    assert asked["tags"] == {"sluice:job": "land", "sluice:digest": OLD.digest}
    batch = build_start_request(CATALOGUE.build_drain_job("s"), application_id="app", role_arn="role", token="t")
    assert (batch["mode"], batch["retryPolicy"], batch["executionTimeoutMinutes"]) == ("BATCH", {"maxAttempts": 2}, 90)


@pytest.mark.parametrize(
    ("text", "at_ms", "day"),
    [
        ("00:30", NOON_MS, "2024-10-04"),
        ("12:00", NOON_MS, "2024-10-04"),
        ("12:01", NOON_MS, "2024-10-03"),
        ("23:59", NOON_MS, "2024-10-03"),
        ("00:00", 0, "1970-01-01"),
    ],
)
def test_a_daily_job_was_last_due_today_or_yesterday(text: str, at_ms: int, day: str) -> None:
    assert Daily.parse(text).find_last_due_day(at_ms).isoformat() == day


def test_statistics_are_of_the_day_before_they_are_due() -> None:
    statistics, compact = CATALOGUE.build_due_jobs(NOON_MS)
    assert (statistics.slot, compact.slot) == ("2024-10-03", "2024-10-04")
    assert statistics.arguments[statistics.arguments.index("--day") + 1] == "2024-10-03"


def test_a_replay_goes_to_the_site_s_ingress() -> None:
    fields: dict[str, Any] = {"exchange": "events", "since": "2024-10-04T00:00:00Z", "until": "2024-10-05T00:00:00Z"}
    told = ["--exchange", "events", "--from", fields["since"], "--to", fields["until"], "--region", "eu-central-1"]
    from_tables = CATALOGUE.build_manual_job(StartReplay(**fields), "s").arguments
    assert list(from_tables) == [
        *("replay", *StorageLocations(root="s3://bucket").tables, "--queue-url", "https://sqs/ingress"),
        *told,
    ]
    staged = CATALOGUE.build_manual_job(StartReplay(**fields, staged=True), "s").arguments
    assert list(staged) == ["replay", "--staging", "s3://bucket/staging", "--queue-url", "https://sqs/ingress", *told]


PARSE = """
import json, sys
from datetime import date
from sluice_jobs.arguments import parse
for arguments in json.load(sys.stdin):
    parse(arguments, today=date(2026, 11, 21))
"""


@pytest.mark.parametrize("table_format", list(TableFormat))
def test_the_entry_point_takes_what_every_job_is_told(table_format: TableFormat) -> None:
    queue = "https://sqs.eu-central-1.amazonaws.com/123456789012/q"
    landing = VARIABLES["LANDING"].replace("https://sqs/main", queue)
    variables = with_format(table_format, LANDING=landing, INGRESS_URL=queue)
    catalogue = JobCatalogue(JobsSettings.read(variables))
    replay: dict[str, Any] = {"exchange": "events", "since": "2024-10-04T00:00:00Z", "until": "2024-10-05T00:00:00Z"}
    jobs = [
        *(catalogue.build_land_job(), catalogue.build_drain_job("s"), *catalogue.build_due_jobs(NOON_MS)),
        catalogue.build_manual_job(StartReplay(**replay), "s"),
        catalogue.build_manual_job(StartReplay(**replay, staged=True), "s"),
        *(catalogue.build_manual_job(StartStatistics(), "s"), catalogue.build_manual_job(StartCompaction(days=7), "s")),
    ]
    done = subprocess.run(
        [sys.executable, "-c", PARSE],
        input=json.dumps([list(job.arguments) for job in jobs]),
        env={"PYTHONPATH": f"{PROJECT / 'spark'}{os.pathsep}{PROJECT}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_a_table_format_that_there_isn_t_is_named_with_its_variable() -> None:
    with pytest.raises(BadSetting, match="environment variable PROGRAM: Invalid enum value 'orc'"):
        JobsSettings.read(with_format("orc"))


@pytest.mark.parametrize(("name", "value"), [("LIMITS", "[]"), ("LIMITS", "{}"), ("PROGRAM", "nope"), ("TABLE", "")])
def test_a_bad_setting_is_named(name: str, value: str) -> None:
    with pytest.raises(BadSetting, match=name):
        JobsSettings.read({**VARIABLES, name: value})


@dataclass
class FakeRuns:
    """An application whose runs end when the test says so."""

    found: dict[str, Run] = field(default_factory=dict)
    started: list[str] = field(default_factory=list)
    tokens: dict[str, str] = field(default_factory=dict)
    graces: list[int] = field(default_factory=list)

    def list_runs(self, *, now_ms: int) -> Sequence[Run]:
        return list(self.found.values())

    def start(self, job: Job, *, token: str) -> str:
        run_id = self.tokens.setdefault(token, f"run-{len(self.tokens)}")
        if run_id not in self.found:
            self.started.append(str(RunName.from_job(job)))
            self.found[run_id] = run(job, run_id, RunState.SUBMITTED, at_ms=NOON_MS + len(self.tokens))
        return run_id

    def cancel(self, run_id: str, *, grace_s: int) -> None:
        self.graces.append(grace_s)
        self.found[run_id] = replace(self.found[run_id], state=RunState.CANCELLING)

    def end_cancelled(self) -> None:
        for run_id, each in self.found.items():
            if each.state is RunState.CANCELLING:
                self.found[run_id] = replace(each, state=RunState.CANCELLED)

    def end(self, run_id: str, state: RunState) -> None:
        self.found[run_id] = replace(self.found[run_id], state=state)


@dataclass
class FakeDesiredStates:
    state: DesiredState | None = None

    def load(self) -> DesiredState | None:
        return self.state

    def save(self, state: DesiredState) -> None:
        self.state = state


@dataclass
class Site:
    """The pipeline of one deployment, whose clock is the test's."""

    runs: FakeRuns = field(default_factory=FakeRuns)
    desired: FakeDesiredStates = field(default_factory=FakeDesiredStates)
    settings: JobsSettings = SETTINGS
    at_ms: int = NOON_MS
    endpoints: Endpoints | None = None

    @property
    def reconciler(self) -> Reconciler:
        return Reconciler(
            catalogue=JobCatalogue(self.settings),
            runs=self.runs,
            desired=self.desired,
            now_ms=lambda: self.at_ms,
            endpoints=self.endpoints,
        )

    def ask(self, operation: Operation[R]) -> R:
        return cast("R", self.reconciler.apply(cast("JobsOperation", operation)))

    def names(self) -> list[str]:
        return [name.partition("/")[0] for name in self.runs.started]

    def deploy(self, code: str) -> None:
        self.settings = replace(self.settings, program=replace(self.settings.program, code=code))


@pytest.fixture
def site() -> Site:
    return Site()


def stream_is_down(outcomes: Sequence[JobOutcome]) -> bool:
    return any(outcome.stream_is_down for outcome in outcomes)


def test_the_first_look_after_a_deployment_starts_what_is_to_run(site: Site) -> None:
    site.ask(ReconcileJobs())
    assert site.names() == [LAND, STATISTICS, COMPACT]
    site.ask(ReconcileJobs())
    assert len(site.names()) == 3


def test_looking_at_the_same_time_twice_starts_once(site: Site) -> None:
    other = Site(runs=FakeRuns(tokens=site.runs.tokens))
    site.ask(ReconcileJobs())
    other.ask(ReconcileJobs())
    assert len(site.runs.tokens) == 3


def test_a_changed_job_is_restarted_with_its_grace_period(site: Site) -> None:
    site.ask(ReconcileJobs())
    site.deploy("s3://assets/new.tgz")
    outcomes = site.reconciler.reconcile()
    assert stream_is_down(outcomes)
    assert site.runs.graces == [120]
    site.ask(ReconcileJobs())
    assert site.names().count(LAND) == 1
    site.runs.end_cancelled()
    assert not stream_is_down(site.reconciler.reconcile())
    assert site.names().count(LAND) == 2


def test_a_stream_that_was_stopped_stays_so_over_deployments(site: Site) -> None:
    site.ask(ReconcileJobs())
    assert site.ask(StopJob()).step == "stop"
    site.runs.end_cancelled()
    site.deploy("s3://assets/new.tgz")
    assert not stream_is_down(site.reconciler.reconcile())
    assert site.ask(ShowPipeline()).wanted == "stopped"
    assert site.names().count(LAND) == 1
    assert site.ask(StartLand()).step == "start"


def test_starting_twice_is_safe(site: Site) -> None:
    first, second = site.ask(StartLand()), site.ask(StartLand())
    assert (first.step, second.step) == ("start", "keep")
    assert site.names() == [LAND]


def test_an_operator_needn_t_wait_for_a_failed_stream_s_pause(site: Site) -> None:
    run_id = site.ask(StartLand()).run
    site.runs.end(run_id, RunState.FAILED)
    assert stream_is_down(site.reconciler.reconcile())
    assert site.ask(StartLand()).step == "start"


def test_a_drain_ends_the_stream_lands_what_is_there_and_stops(site: Site) -> None:
    site.ask(ReconcileJobs())
    assert site.ask(DrainQueue()).step == "stop"
    site.runs.end_cancelled()
    drain = site.ask(ReconcileJobs())[0]
    assert drain.step == "start"
    assert site.ask(DrainQueue()).step == "keep"
    site.runs.end(drain.run, RunState.SUCCESS)
    site.ask(ReconcileJobs())
    assert site.ask(ShowPipeline()).wanted == TargetState.STOPPED
    site.runs.found.clear()  # it is no longer listed
    assert site.ask(ReconcileJobs())[0].step == "rest"


def test_a_second_drain_is_another_one(site: Site) -> None:
    for _ in range(2):
        drain = site.ask(DrainQueue())
        assert drain.step == "start"
        site.runs.end(drain.run, RunState.SUCCESS)
        site.ask(ReconcileJobs())
        site.at_ms += 1_000


def test_where_streaming_isn_t_wanted_nothing_starts_until_somebody_says_so() -> None:
    site = Site(settings=replace(SETTINGS, limits=replace(SETTINGS.limits, streaming=False)))
    site.ask(ReconcileJobs())
    assert site.names() == []
    site.ask(StartLand())
    assert site.names() == [LAND]
    site.ask(ReconcileJobs())
    assert site.names() == [LAND, STATISTICS, COMPACT]


def test_a_batch_by_hand_is_a_run_of_its_own(site: Site) -> None:
    started = site.ask(StartStatistics(day="2024-01-01"))
    assert started.step == "start"
    site.runs.end(started.run, RunState.SUCCESS)
    site.at_ms += 1
    assert site.ask(StartStatistics(day="2024-01-01")).step == "start"


@pytest.mark.parametrize(
    ("asked", "cause"),
    [
        ({"op": "dance"}, "no such operation: 'dance'; there are reconcile, start-land"),
        ({}, "no such operation: None"),
        ({"op": "start-land", "day": "2024-01-01"}, "unknown field `day`"),
        ({"op": "start-statistics", "days": 2}, "unknown field `days`"),
        ({"op": "start-replay", "exchange": "events", "since": "2024-01-01"}, "missing required field `until`"),
        ({"op": "start-compact", "days": 0}, r"Expected `int` >= 1 - at `\$.days`"),
        ({"op": "stop", "job": "dance"}, "Invalid enum value 'dance'"),
    ],
)
def test_what_can_t_be_asked_is_refused(asked: Mapping[str, object], cause: str) -> None:
    with pytest.raises(BadRequest, match=cause):
        parse_request(asked, JobsOperation)
