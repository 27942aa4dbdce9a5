"""`sluice pipeline`: the jobs that land messages in tables, of a deployed site or as local processes."""

import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from sluice.aws.connections import build_program_variables
from sluice.cli.completion import complete_from
from sluice.cli.output import is_json, print_result, show_json, show_pairs, show_table
from sluice.cli.sites import SiteCommands
from sluice.cli.splitting.programs import run_in_foreground
from sluice.cli.terminal import print_note
from sluice.codec import to_document
from sluice.errors import BadConfiguration
from sluice.local.jobs import build_command, build_job_environment
from sluice.local.jobs import find_spark_python as find_python
from sluice.local.pipeline import local_landing
from sluice.operations import parse_request
from sluice.operator import pipelines
from sluice.operator.pipelines import PipelineClient, connect_pipeline, find_jobs_folder, parse_start_operation
from sluice.operator.site_names import SiteOptions
from sluice.pipeline.jobs import JOBS, LAND, STATISTICS
from sluice.pipeline.operations import DrainQueue, JobOutcome, ShowPipeline, StopJob

app = SiteCommands()

JobName = Annotated[
    str, typer.Argument(metavar="JOB", help=f"{', '.join(JOBS)}.", autocompletion=complete_from(lambda _: JOBS))
]
SparkPython = Annotated[
    str | None,
    typer.Option(
        "--spark-python",
        metavar="PATH",
        help="For local jobs: a Python with PySpark. Default: SLUICE_SPARK_PYTHON, or build/spark-*.",
    ),
]
BUSY, WAIT = "busy", "wait"  # These are values of `JobStep`, whose module takes too long to import for --help.
STEP_TEXTS: Mapping[str, str] = {
    "start": "started as {run}",
    "keep": "already running: {reason}",
    BUSY: "not started, because another run is active: {reason}; try again when it has ended",
    "stop": "ending: {reason}",
    WAIT: "waiting: {reason}",
    "rest": "nothing to do: {reason}",
}


@app.command("start")
def start_job(
    job: JobName = LAND,
    *,
    day: Annotated[
        str | None, typer.Option(metavar="YYYY-MM-DD", help="For statistics: the day.", show_default="yesterday")
    ] = None,
    days: Annotated[int | None, typer.Option(min=1, help="For compact: number of past days.")] = None,
    exchange: Annotated[str | None, typer.Option(help="For replay: the exchange to publish to.")] = None,
    since: Annotated[
        str | None, typer.Option("--from", metavar="ISO", help="For replay: messages sent at or after this time.")
    ] = None,
    until: Annotated[
        str | None, typer.Option("--to", metavar="ISO", help="For replay: messages sent before this time.")
    ] = None,
    staged: Annotated[
        bool, typer.Option("--staged", help="For replay: read the retained segments, not the tables.")
    ] = False,
    spark_python: SparkPython = None,
    site: SiteOptions,
) -> None:
    """Start a job: land runs until you stop it, other jobs run once. A job that already runs is left alone.

    A running job whose code or settings have changed is stopped first, within its grace period, and restarted. A batch
    job isn't started while a run of it with other arguments is active: the exit code is 1. Creating VPC
    endpoints takes minutes: `land` then starts by itself, while the command waits until a batch job starts.
    """
    options = {"day": day, "days": days, "exchange": exchange, "since": since, "until": until, "staged": staged or None}
    fields = {name: value for name, value in options.items() if value is not None}
    operation = parse_start_operation(job, fields)
    outcome = pipelines.start_job(_connect_pipeline(site, spark_python), operation, sleep=time.sleep, tell=print_note)
    _print_outcome(outcome)
    if job != LAND and outcome.step == WAIT:
        raise typer.Exit(1)


@app.command("stop")
def stop_job(job: JobName = LAND, *, site: SiteOptions) -> None:
    """Stop a job's runs after their current batches. Job `land` stays stopped across deployments."""
    operation: StopJob = parse_request({"op": "stop", "job": job}, StopJob)
    _print_outcome(_connect_pipeline(site).ask(operation))


@app.command("drain")
def drain_queue(*, spark_python: SparkPython = None, site: SiteOptions) -> None:
    """Land the messages that the queue holds, then stop."""
    _print_outcome(_connect_pipeline(site, spark_python).ask(DrainQueue()))


@app.command("status")
def show_status(*, site: SiteOptions) -> None:
    """Show the desired state, the active runs and how the latest runs ended."""
    pipeline = _connect_pipeline(site).ask(ShowPipeline())
    if is_json():
        show_json(to_document(pipeline))
        return
    show_pairs(
        [
            ("application", pipeline.application),
            ("land: desired", pipeline.wanted + (f" since {pipeline.since}" if pipeline.since else "")),
            ("deployed version", pipeline.digest),
        ]
    )
    clock = partial(time.strftime, "%Y-%m-%d %H:%M:%S")
    rows = [
        (run.run, run.job, run.digest, run.slot, run.state.value, started, run.detail)
        for run in pipeline.runs
        for started in [clock(time.localtime(run.started_at_ms / 1000))]
    ]
    show_table(("run", "job", "version", "slot", "state", "started", "detail"), rows)


@app.command("logs")
def show_logs(
    job: JobName = LAND,
    *,
    run: Annotated[str | None, typer.Option(help="A run's id. Default: the job's latest run.")] = None,
    lines: Annotated[int, typer.Option(min=1, help="Number of lines, from the end.")] = 100,
    site: SiteOptions,
) -> None:
    """Show the end of the driver log of a run."""
    pipeline = _connect_pipeline(site)
    runs = [run] if run else [recent.run for recent in pipeline.ask(ShowPipeline()).runs if recent.job == job]
    if not runs:
        raise BadConfiguration(f"{job} has no recent run: `sluice pipeline status` lists all runs")
    run_id = runs[0]
    text = pipeline.read_log(run_id, lines=lines)
    print_result({"run": run_id, "lines": text.splitlines()}, lambda: typer.echo(text))


@app.command("run-local", context_settings={"ignore_unknown_options": True, "allow_extra_args": True}, json=False)
def run_local(
    context: typer.Context,
    job: JobName = LAND,
    *,
    queue_url: Annotated[
        str | None,
        typer.Option(metavar="URL", help="For land. Default: SLUICE_QUEUE_URL, or with --local the site's queue."),
    ] = None,
    folder: Annotated[
        Path | None, typer.Option(help="Folder of staging, checkpoints and tables.", show_default="build/pipeline")
    ] = None,
    spark_python: SparkPython = None,
    site: SiteOptions,
) -> None:
    """Run a job on local Spark until it ends or ctrl-C. Further options are the job's own: `--drain`, `--day …`.

    The entry point and the arguments are the same as on EMR Serverless. The exit code is the job's.
    """
    python = find_python(spark_python)
    connection = site.connect()
    place = (folder or pipelines.RUN_LOCAL_FOLDER).resolve()
    sqs_endpoint = pipelines.find_endpoint(connection)
    if job == LAND:
        url = pipelines.queue_url(queue_url, connection, local=site.is_local)
        arguments = local_landing(place, queue_url=url, sqs_endpoint=sqs_endpoint).arguments()
    else:
        if job not in JOBS:
            raise BadConfiguration(f"there is no job {job}: name one of {', '.join(JOBS)}")
        places = local_landing(place, queue_url="", sqs_endpoint=sqs_endpoint).places
        output = ("--output", places.folder("statistics")) if job == STATISTICS else ()
        # The user's arguments come after these arguments, so that they take precedence.
        arguments = [job, *places.tables, *output, *(sqs_endpoint.arguments if job == "replay" else ())]
    job_command = build_command(python, [*arguments, *context.args])
    print_note("starting Spark, which takes seconds; ctrl-C ends the job after its batch, which may take a minute")
    raise typer.Exit(run_in_foreground(job_command, build_job_environment(python, build_program_variables(connection))))


def _connect_pipeline(site: SiteOptions, python: str | None = None) -> PipelineClient:
    connection = site.connect()
    return connect_pipeline(connection, folder=find_jobs_folder(connection) if site.is_local else None, python=python)


def _print_outcome(outcome: JobOutcome) -> None:
    said = f"{outcome.job}: {STEP_TEXTS[outcome.step].format(run=outcome.run, reason=outcome.reason)}"
    print_result(to_document(outcome), said)
    if outcome.step == BUSY:
        raise typer.Exit(1)
