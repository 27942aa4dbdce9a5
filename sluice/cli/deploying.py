"""`sluice deploy`, `sluice destroy`: CDK's command line from this clone, after a look at what would be lost."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from sluice.aws.clients import now_ms
from sluice.aws.connections import Connection, environment_of
from sluice.aws.deployment import STACK, NotDeployed, stack_outputs
from sluice.aws.rendezvous.clients import ClientUser, revoke
from sluice.building.interpreters import cdk
from sluice.building.project import PROJECT, need
from sluice.cli.output import is_json, show_json
from sluice.cli.progress import steps
from sluice.cli.sites import SiteTyper
from sluice.cli.terminal import note
from sluice.costs import SiteTemplates, cost_table, streamed
from sluice.errors import BadConfiguration, SluiceError
from sluice.local.assemblies import Assembly
from sluice.operator.deployments import Application, RemovedQueue, is_deployed, removed_queues
from sluice.operator.functions import ControlClient
from sluice.operator.pipelines import FUNCTION
from sluice.operator.pipelines import STACK as PIPELINE_STACK
from sluice.operator.site_names import SiteOptions
from sluice.pipeline.operations import StopJob

STANDARD_ERROR = 2
LEAST_USD = 0.005  # what is less isn't said
STACKS_AT_ONCE = "3"  # those that need nothing of each other

Context = Annotated[
    list[str] | None,
    typer.Option("--context", "-c", metavar="NAME=VALUE", help="A parameter, as in sluice.pipeline.streaming=true."),
]
Remove = Annotated[
    list[str] | None,
    typer.Option("--remove", metavar="QUEUE", help="Take this queue away although it holds messages; repeatable."),
]
Approve = Annotated[
    bool | None,
    typer.Option(
        "--approve/--no-approve",
        help="Ask before rights are widened.  [default: where somebody is at the terminal to answer]",
    ),
]

app = SiteTyper()


class CdkFailed(SluiceError):
    """CDK's command line has said why, on the terminal."""


class HoldsMessages(BadConfiguration):
    """Queues would go with what is in them; the text says which, and what to do."""


@app.command()
def deploy(*, context: Context = None, remove: Remove = None, approve: Approve = None, site: SiteOptions) -> None:
    """Deploy all stacks of this clone to a site.

    A queue that would go with messages in it is named, and nothing is done: read it empty first, or say --remove. One
    that CloudFormation keeps is as good as gone for who would read it, and is named too. Before a first deployment it
    says what the site costs a month.
    """
    connection = site.connect()
    with TemporaryDirectory(prefix="sluice-cdk-") as folder, steps(3, lines=True) as progress:
        assembly = Path(folder)
        progress("synthesizing the stacks")
        synth(assembly, context or [], is_local=site.is_local, stage=connection.stage)
        wanted = templates(assembly)
        progress("looking what would go")
        check_removals(connection, wanted, agreed=remove or ())
        if not site.is_local and not any(is_deployed(connection, stack) for stack in wanted):
            note(describe_idle_costs(wanted, context or []))
        progress(f"deploying what has changed of {len(wanted)} stacks")
        asks = sys.stdin.isatty() if approve is None else approve
        _cdk(
            connection,
            ["deploy", "--all", "--app", folder, "--concurrency", STACKS_AT_ONCE, "--progress", "events"],
            ["--require-approval", "broadening" if asks else "never"],
            aside=is_json(),
        )
        if is_json():
            show_json(_document(connection, "deployed", wanted))


@app.command()
def destroy(
    *,
    context: Context = None,
    remove: Remove = None,
    force: Annotated[bool, typer.Option("--force", help="Don't ask.")] = False,
    site: SiteOptions,
) -> None:
    """Delete all stacks from a site. Tables, the bucket and users' queues stay where `keep_state` says so.

    A queue that would be deleted with messages in it is named, and nothing is done, unless --remove names it. The
    pipeline's runs end, its application stops and clients' keys are deleted: CloudFormation does none of that.
    """
    connection = site.connect()
    with TemporaryDirectory(prefix="sluice-cdk-") as folder:
        assembly = Path(folder)
        synth(assembly, context or [], is_local=site.is_local, stage=connection.stage)
        nothing: dict[str, Mapping[str, Any]] = {name: {} for name in templates(assembly)}
        check_removals(connection, nothing, agreed=remove or (), also_kept=False)
        if not force:
            typer.confirm(f"Delete {', '.join(nothing)}?", abort=True)
        _end_pipeline(connection)
        _revoke_keys(connection)
        _cdk(connection, ["destroy", "--all", "--app", folder], ["--force"], aside=is_json())
        if is_json():
            show_json(_document(connection, "destroyed", nothing))


def _document(connection: Connection, done: str, stacks: Iterable[str]) -> dict[str, Any]:
    return {"region": connection.region, "stage": connection.stage, done: list(stacks)}


def synth(assembly: Path, context: Iterable[str], *, is_local: bool, stage: str | None = None) -> None:
    """Write the templates into a folder, of a stage where one is given. Raises `CdkFailed`."""
    at_stage = [f"sluice.stage={stage}"] if stage else []
    need("deploy", "aws_cdk")
    # The embedded cloud runs functions with this machine's processor and interpreter.
    given = [*(["sluice.architecture=local"] if is_local else []), *at_stage, *context]
    arguments = [f"--context={each}" for each in given]
    _run(["synth", "--app", PROJECT.app, "--quiet", "--output", str(assembly), *arguments], os.environ)


def templates(assembly: Path) -> Mapping[str, Mapping[str, Any]]:
    """Read the templates of a cloud assembly, by their stacks' names."""
    stacks = Assembly(assembly).stacks
    return {name: json.loads((assembly / each["templateFile"]).read_text()) for name, each in stacks.items()}


def check_removals(
    connection: Connection,
    wanted: Mapping[str, Mapping[str, Any]],
    *,
    agreed: Collection[str],
    also_kept: bool = True,
) -> None:
    """Raise `HoldsMessages` where queues would go with messages in them that nobody has agreed to."""
    going = [each for each in removed_queues(connection, wanted) if also_kept or not each.kept]
    for each in going:
        if not each.messages or each.name in agreed:
            note(f"goes: {_told(each)}")
    held = [each for each in going if each.messages and each.name not in agreed]
    if held:
        listed = "\n".join(f"  {_told(each)}" for each in held)
        options = " ".join(f"--remove {each.name}" for each in held)
        raise HoldsMessages(f"queues hold messages that nobody would read any more:\n{listed}\nor say {options}")


def describe_idle_costs(templates: Mapping[str, Mapping[str, Any]], context: Sequence[str]) -> str:
    """Write a line with the dollars of a month at rest, by parts.

    `templates` are by their stacks' names, `context` are parameters as -c takes them.
    """
    from sluice.parameters import Parameters  # noqa: PLC0415 - the project's, which a mere command line may lack

    configured = json.loads((PROJECT.workspace / "cdk.json").read_text())["context"]
    pipeline = Parameters.read(configured | dict(each.split("=", 1) for each in context)).pipeline
    workers = streamed(vcpu=pipeline.worker_vcpu, memory_gb=pipeline.worker_memory_gb)
    table = cost_table()
    usd = table.usd_by_part(SiteTemplates(templates).month(land_job=workers if pipeline.streaming else {}))
    parts = ", ".join(f"{part} ${each:,.2f}" for part, each in usd.items() if each >= LEAST_USD)
    what = f"a month at rest costs some ${sum(usd.values()):,.2f}"
    return f"{what} ({parts}) by prices of {table.region}, {table.on}; docs/deploy.md has what messages cost"


def _end_pipeline(connection: Connection) -> None:
    """End the stream, so that it isn't started again, all other runs, and the application."""
    with suppress(NotDeployed):
        application_id = stack_outputs(connection, PIPELINE_STACK).get("ApplicationId")
        if application_id:  # the embedded cloud has none
            note(f"application {application_id} stops, with its runs")
            ControlClient.of(connection, FUNCTION).ask(StopJob())
            Application(connection=connection, application_id=application_id).end(now_ms=now_ms, sleep=time.sleep)


def _revoke_keys(connection: Connection) -> None:
    """Delete the clients' access keys: IAM deletes no user that has one."""
    with suppress(NotDeployed):
        name = stack_outputs(connection, STACK).get("ClientUserName")
        if name:
            for key in revoke(ClientUser(connection.client("iam"), name)):
                note(f"clients' key {key} is deleted")


def _told(queue: RemovedQueue) -> str:
    kept = ", kept by CloudFormation" if queue.kept else ""
    return f"{queue.name} of {queue.stack}: about {queue.messages} messages{kept}"


def _cdk(connection: Connection, arguments: Sequence[str], options: Sequence[str], *, aside: bool) -> None:
    """Run CDK as the connection is; `aside`, what it says goes to standard error."""
    _run([*arguments, *options], environment_of(connection, os.environ), aside=aside)


def _run(arguments: Sequence[str], environment: Mapping[str, str], *, aside: bool = False) -> None:
    # The app and the command line run with the Python and the Node of this environment.
    path = os.pathsep.join([str(Path(sys.executable).parent), environment.get("PATH", "")])
    variables = {**environment, "PATH": path, "CDK_DISABLE_CLI_TELEMETRY": "true"}
    command = [str(cdk()), *arguments, "--no-notices"]
    output = STANDARD_ERROR if aside else None
    done = subprocess.run(command, cwd=PROJECT.workspace, env=variables, stdout=output, check=False)  # noqa: S603 - our own arguments
    if done.returncode:
        raise CdkFailed(f"cdk {arguments[0]} failed with exit code {done.returncode}")
