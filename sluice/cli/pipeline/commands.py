"""`sluice pipeline`: the jobs that land messages in tables, of a deployed site or as local processes."""

import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from sluice.aws.connections import program_variables
from sluice.cli.completion import offered
from sluice.cli.output import is_json, show_json, show_pairs, show_table, tell
from sluice.cli.sites import SiteTyper
from sluice.cli.splitting.programs import run_in_foreground
from sluice.codec import plain
from sluice.errors import BadConfiguration
from sluice.local.jobs import command, environment
from sluice.local.jobs import spark_python as find_python
from sluice.local.pipeline import landing
from sluice.operations import request_of
from sluice.operator import pipelines
from sluice.operator.pipelines import AskedPipeline, pipeline_of, site_folder, start_operation
from sluice.operator.site_names import SiteOptions
from sluice.pipeline.jobs import JOBS, LAND, STATISTICS
from sluice.pipeline.operations import DrainQueue, JobOutcome, ShowPipeline, StopJob

app = SiteTyper()

JobName = Annotated[
    str, typer.Argument(metavar="JOB", help=f"{', '.join(JOBS)}.", autocompletion=offered(lambda _: JOBS))
]
SparkPython = Annotated[
    str | None,
    typer.Option(
        "--spark-python",
        metavar="PATH",
        help="For local jobs: a Python that has PySpark, else SLUICE_SPARK_PYTHON or build/spark-*.",
    ),
]
BUSY = "busy"  # of JobStep, whose module is loaded only where something is asked
WORDS: Mapping[str, str] = {
    "start": "started as {run}",
    "keep": "runs already: {reason}",
    BUSY: "not started, as another one runs: {reason}; ask again when it has ended",
    "stop": "ending: {reason}",
    "wait": "waits: {reason}",
    "rest": "nothing to do: {reason}",
}


@app.command()
def start(
    job: JobName = LAND,
    *,
    day: Annotated[str | None, typer.Option(metavar="YYYY-MM-DD", help="Of statistics; yesterday if not said.")] = None,
    days: Annotated[int | None, typer.Option(min=1, help="Of compact: how many closed days.")] = None,
    exchange: Annotated[str | None, typer.Option(help="Of replay: where messages go.")] = None,
    since: Annotated[str | None, typer.Option("--from", metavar="ISO", help="Of replay: sent at or after.")] = None,
    until: Annotated[str | None, typer.Option("--to", metavar="ISO", help="Of replay: sent before.")] = None,
    staged: Annotated[
        bool, typer.Option("--staged", help="Of replay: from segments that are still kept, not from tables.")
    ] = False,
    spark_python: SparkPython = None,
    site: SiteOptions,
) -> None:
    """Start a job: land runs until it is stopped, the others once. A job that runs is left alone.

    A job that was changed meanwhile is ended first, within its grace period, and then started. One of the others isn't
    started beside a run of its own that was asked for something else: the exit code is 1.
    """
    given = {"day": day, "days": days, "exchange": exchange, "since": since, "until": until, "staged": staged or None}
    fields = {name: value for name, value in given.items() if value is not None}
    operation = start_operation(job, fields)
    _say(_pipeline(site, spark_python).ask(operation))


@app.command()
def stop(job: JobName = LAND, *, site: SiteOptions) -> None:
    """End a job's runs, each after its batch. land stays stopped, over deployments too, until it is started."""
    operation: StopJob = request_of({"op": "stop", "job": job}, StopJob)
    _say(_pipeline(site).ask(operation))


@app.command()
def drain(*, spark_python: SparkPython = None, site: SiteOptions) -> None:
    """Land what the queue holds, then stop."""
    _say(_pipeline(site, spark_python).ask(DrainQueue()))


@app.command()
def status(*, site: SiteOptions) -> None:
    """Show what should run, what does, and how the latest runs ended."""
    found = _pipeline(site).ask(ShowPipeline())
    if is_json():
        show_json(plain(found))
        return
    show_pairs(
        [
            ("application", found.application),
            ("land should be", found.wanted + (f" since {found.since}" if found.since else "")),
            ("as deployed", found.digest),
        ]
    )
    clock = partial(time.strftime, "%Y-%m-%d %H:%M:%S")
    rows = [
        (each.run, each.job, each.digest, each.slot, each.state.value, started, each.detail)
        for each in found.runs
        for started in [clock(time.localtime(each.started_at_ms / 1000))]
    ]
    show_table(("run", "job", "version", "which", "state", "started", ""), rows)


@app.command()
def logs(
    job: JobName = LAND,
    *,
    run: Annotated[str | None, typer.Option(help="A run, else the job's latest.")] = None,
    lines: Annotated[int, typer.Option(min=1, help="How many, from the end.")] = 100,
    site: SiteOptions,
) -> None:
    """Show what a run's driver says."""
    asked = _pipeline(site)
    wanted = run or _latest(asked, job)
    text = asked.text(wanted, lines=lines)
    tell({"run": wanted, "lines": text.splitlines()}, lambda: typer.echo(text))


@app.command("run-local", context_settings={"ignore_unknown_options": True, "allow_extra_args": True}, json=False)
def run_local(
    context: typer.Context,
    job: JobName = LAND,
    *,
    queue_url: Annotated[
        str | None, typer.Option(metavar="URL", help="Of land: else SLUICE_QUEUE_URL, or with --local the site's.")
    ] = None,
    folder: Annotated[
        Path | None, typer.Option(help="Where staging, checkpoint and tables are.", show_default="build/pipeline")
    ] = None,
    spark_python: SparkPython = None,
    site: SiteOptions,
) -> None:
    """Run a job here, on local Spark, until it ends or ctrl-C. What follows is the job's: `--drain`, `--day …`.

    The entry point is the one that EMR Serverless runs, with the same arguments. The exit code is the job's.
    """
    python = find_python(spark_python)
    connection = site.connect()
    place = (folder or pipelines.RUN_LOCAL_FOLDER).resolve()
    reach = pipelines.reach_of(connection)
    if job == LAND:
        url = pipelines.queue_url(queue_url, connection, local=site.is_local)
        arguments = landing(place, queue_url=url, reach=reach).arguments()
    else:
        arguments = _elsewhere(job, landing(place, queue_url="", reach=reach))
    job_command = command(python, [*arguments, *context.args])
    raise typer.Exit(run_in_foreground(job_command, environment(python, program_variables(connection))))


def _elsewhere(job: str, told: Any) -> list[str]:
    """List the arguments that a batch job's run has by itself; the user's come after them, and win."""
    if job not in JOBS:
        raise BadConfiguration(f"no such job: {job}; there are {', '.join(JOBS)}")
    reach = told.reach.arguments if job == "replay" else ()
    output = ("--output", told.places.folder("statistics")) if job == STATISTICS else ()
    return [job, *told.places.tables, *output, *reach]


def _pipeline(site: SiteOptions, python: str | None = None) -> AskedPipeline:
    connection = site.connect()
    return pipeline_of(connection, folder=site_folder(connection) if site.is_local else None, python=python)


def _latest(asked: AskedPipeline, job: str) -> str:
    runs = [each.run for each in asked.ask(ShowPipeline()).runs if each.job == job]
    if not runs:
        raise BadConfiguration(f"{job} hasn't run lately: `sluice pipeline status`")
    return runs[0]


def _say(outcome: JobOutcome) -> None:
    said = f"{outcome.job}: {WORDS[outcome.step].format(run=outcome.run, reason=outcome.reason)}"
    tell(plain(outcome), said)
    if outcome.step == BUSY:
        raise typer.Exit(1)
