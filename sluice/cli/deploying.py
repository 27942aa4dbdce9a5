"""Implements `sluice deploy`, `destroy` and `permissions`. Refuses changes that would lose messages before CDK runs."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial, reduce
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sluice.aws.clients import now_ms
from sluice.aws.connections import Connection, build_environment, fetch_account
from sluice.aws.deployment import STACK, NotDeployed, read_stack_outputs
from sluice.aws.rendezvous.clients import ClientUser, revoke_keys
from sluice.building.interpreters import cdk
from sluice.building.project import PROJECT, require_modules
from sluice.cli.output import is_json, print_result, show_json
from sluice.cli.progress import show_steps
from sluice.cli.sites import SiteCommands
from sluice.cli.terminal import print_note
from sluice.errors import BadConfiguration, CallFailed, DestinationFault, SluiceError
from sluice.local.assemblies import Assembly
from sluice.operator.accounts import (
    ACCOUNT_CONCURRENCY,
    RESERVES,
    AccountNotReady,
    ConcurrencyLimits,
    check_dead_letters,
    check_emr,
    check_function_urls,
    check_release,
    check_vpcs,
)
from sluice.operator.deployments import (
    RemovedQueue,
    Template,
    end_application,
    find_removed_queues,
    find_taken_names,
    is_deployed,
    read_registry,
)
from sluice.operator.functions import ControlClient
from sluice.operator.permissions import build_policy
from sluice.operator.pipelines import FUNCTION
from sluice.operator.pipelines import STACK as PIPELINE_STACK
from sluice.operator.site_names import SiteOptions
from sluice.pipeline.operations import StopJob
from sluice.splitting.sessions.state import Registry, Split
from sluice.stages import add_stage_prefix

if TYPE_CHECKING:
    from sluice.parameters import Parameters
    from sluice.parameters.splitting import SplitQueueParameters

STATE_STACK = "SluiceState-"  # The SQS names of all queues that a deployment creates begin with this prefix.
STANDARD_ERROR = 2
CONCURRENT_STACKS = "3"  # This number of stacks is deployed at the same time, unless one depends on another.

Context = Annotated[
    list[str] | None,
    typer.Option(
        "--context",
        "-c",
        metavar="NAME=VALUE",
        help="Set a parameter, as in sluice.pipeline.streaming=true; repeatable.",
    ),
]
Remove = Annotated[
    list[str] | None,
    typer.Option("--remove", metavar="QUEUE", help="Remove this queue although it holds messages; repeatable."),
]
Approve = Annotated[
    bool | None,
    typer.Option(
        "--approve/--no-approve",
        help="Ask before IAM permissions are widened.  [default: ask if standard input is a terminal]",
    ),
]

Force = Annotated[
    bool, typer.Option("--force", help="Deploy although a check of the account found that it would fail.")
]

app = SiteCommands()


class CdkFailed(SluiceError):
    """Raised if a CDK command fails. CDK itself has printed the reason on the terminal."""


class QueuesHoldMessages(BadConfiguration):
    """Raised if queues that hold messages would be removed. The error's text lists these queues and what to do."""


class QueuesAreSplit(BadConfiguration):
    """Raised if consumers would stay on temporary queues. The error's text lists the split queues and what to do."""


@app.command()
def deploy(
    *, context: Context = None, remove: Remove = None, approve: Approve = None, force: Force = False, site: SiteOptions
) -> None:
    """Deploy all stacks of this clone to a site.

    If a queue that holds messages would be removed, nothing is deployed and the queue is named: drain it first, or
    confirm with --remove. A queue that CloudFormation retains counts as removed, because nothing would read it any
    more. Before the first deployment, the account's quotas and services are checked. Concurrent executions are
    reserved for functions as far as the account's limit allows.
    """
    require_modules("deploy", "aws_cdk")
    connection = site.connect()
    with TemporaryDirectory(prefix="sluice-cdk-") as folder, show_steps(3, lines=True) as progress:
        assembly, context = Path(folder), context or []
        context = [*reserve_concurrency(connection, context), *context]
        progress("synthesizing the stacks")
        synthesize(assembly, context, is_local=site.is_local, stage=connection.stage)
        new_templates = read_templates(assembly)
        progress("checking which queues would be removed")
        check_removals(connection, new_templates, confirmed=remove or ())
        check_splits(connection, read_parameters(context).splitting.queues)
        is_first = not any(is_deployed(connection, stack) for stack in new_templates)
        if not site.is_local:
            check_account(connection, new_templates if is_first else (), context, force=force)
        if is_first and not site.is_local:
            wait_for_names(connection, new_templates, now_ms=now_ms, sleep=time.sleep)
        progress(f"deploying the changes of {len(new_templates)} stacks")
        asks = sys.stdin.isatty() if approve is None else approve
        options = ["--concurrency", CONCURRENT_STACKS, "--progress", "events"]
        options += ["--require-approval", "broadening" if asks else "never"]
        environment = build_environment(connection, os.environ)
        _run_cdk(["deploy", "--all", "--app", folder, *options], environment, to_stderr=is_json())
        if is_json():
            show_json(_build_document(connection, "deployed", new_templates))


@app.command()
def destroy(
    *,
    context: Context = None,
    remove: Remove = None,
    force: Annotated[bool, typer.Option("--force", help="Don't ask for confirmation.")] = False,
    site: SiteOptions,
) -> None:
    """Delete all stacks from a site. Tables, the bucket and users' queues stay if `keep_state` is set.

    If a queue that holds messages would be deleted, nothing is done and the queue is named: confirm with --remove.
    CloudFormation doesn't stop the pipeline's runs and application, or delete its VPC endpoints and the clients' access
    keys. This command does.
    """
    connection = site.connect()
    with TemporaryDirectory(prefix="sluice-cdk-") as folder:
        assembly = Path(folder)
        synthesize(assembly, context or [], is_local=site.is_local, stage=connection.stage)
        empty_templates: dict[str, Mapping[str, Any]] = {name: {} for name in read_templates(assembly)}
        check_removals(connection, empty_templates, confirmed=remove or (), with_retained=False)
        if not force:
            typer.confirm(f"Delete {', '.join(empty_templates)}?", abort=True)
        check_splits(connection)  # This is checked last, because the user may have confirmed minutes later.
        with suppress(NotDeployed):
            # The streaming job is stopped first. Otherwise it would be restarted while the application stops.
            application_id = read_stack_outputs(connection, PIPELINE_STACK).get("ApplicationId")
            if application_id:  # The embedded cloud has no EMR Serverless application.
                print_note(f"stopping application {application_id} and its runs, and deleting its VPC endpoints")
                ControlClient.connect(connection, FUNCTION).ask(StopJob())
                end_application(connection, application_id, now_ms=now_ms, sleep=time.sleep)
        with suppress(NotDeployed):
            # IAM refuses to delete a user that has an access key.
            name = read_stack_outputs(connection, STACK).get("ClientUserName")
            for key in revoke_keys(ClientUser(connection.client("iam"), name)) if name else ():
                print_note(f"deleted the clients' access key {key}")
        environment = build_environment(connection, os.environ)
        _run_cdk(["destroy", "--all", "--app", folder, "--force"], environment, to_stderr=is_json())
        if is_json():
            show_json(_build_document(connection, "destroyed", empty_templates))


def _build_document(connection: Connection, action: str, stacks: Iterable[str]) -> dict[str, Any]:
    return {"region": connection.region, "stage": connection.stage, action: list(stacks)}


def synthesize(assembly: Path, context: Iterable[str], *, is_local: bool, stage: str | None = None) -> None:
    """Run `cdk synth` with the folder `assembly` as output, for a stage if it isn't None. Raises `CdkFailed`."""
    at_stage = [f"sluice.stage={stage}"] if stage else []
    require_modules("deploy", "aws_cdk")
    # The embedded cloud runs functions with this machine's processor and interpreter.
    parameters = [*(["sluice.architecture=local"] if is_local else []), *at_stage, *context]
    arguments = [f"--context={parameter}" for parameter in parameters]
    _run_cdk(["synth", "--app", PROJECT.cdk_app_command, "--quiet", "--output", str(assembly), *arguments], os.environ)


def read_templates(assembly: Path) -> Mapping[str, Mapping[str, Any]]:
    """Read the CloudFormation templates of a CDK cloud assembly, by stack name."""
    stacks = Assembly(assembly).stacks
    return {
        name: json.loads((assembly / properties["templateFile"]).read_text()) for name, properties in stacks.items()
    }


def check_removals(
    connection: Connection, templates: Mapping[str, Template], *, confirmed: Collection[str], with_retained: bool = True
) -> None:
    """Raise `QueuesHoldMessages` if a queue that is not in `templates` holds messages, unless it is `confirmed`."""
    removed = [queue for queue in find_removed_queues(connection, templates) if with_retained or not queue.is_retained]
    for queue in removed:
        if not queue.message_count or queue.name in confirmed:
            print_note(f"will be removed: {_describe_queue(queue)}")
    blocking = [queue for queue in removed if queue.message_count and queue.name not in confirmed]
    if blocking:
        listed = "\n".join(f"  {_describe_queue(queue)}" for queue in blocking)
        options = " ".join(f"--remove {queue.name}" for queue in blocking)
        raise QueuesHoldMessages(
            f"nothing was changed: these queues would be removed with messages in them:\n{listed}\n"
            f"drain them first, or lose the messages with {options}"
        )


def check_splits(connection: Connection, remaining_queues: "Iterable[SplitQueueParameters]" = ()) -> None:
    """Raise `QueuesAreSplit` if a queue has sessions or drains, unless it is unchanged in `remaining_queues`."""
    registry, queues = read_registry(connection), {queue.queue_id: queue for queue in remaining_queues}
    listed = "".join(
        f"  {split.queue_id}: {split.phase} since {time.ctime(split.phase_since_ms / 1_000)}\n"
        for split in registry.splits.values()
        if not split.is_at_rest and not _has_same_queues(split, registry, queues.get(split.queue_id), connection.stage)
    )
    if listed:
        raise QueuesAreSplit(
            "nothing was changed: these queues are split, and their consumers or messages would stay on temporary "
            f"queues:\n{listed}end the sessions with `sluice split stop {' '.join(registry.sessions) or 'SESSION'}`, a "
            "drain or linger time with `sluice split release QUEUE`, and wait until `sluice split status` lists neither"
        )


def _has_same_queues(split: Split, registry: Registry, queue: "SplitQueueParameters | None", stage: str | None) -> bool:
    """Return whether the parameters in `queue` still have the consumers and queue names that the split uses."""
    if queue is None:
        return False
    from sluice.parameters.consumers import to_targets  # noqa: PLC0415 - may be missing, as above

    consumers = registry.find_consumers(split.queue_id).consumers
    names = {split.source: queue.existing_source_queue_arn}
    names |= {split.main: queue.existing_main_queue_arn} if split.static and split.main else {}
    return tuple(consumer.target for consumer in consumers) == to_targets(queue.consumers) and all(
        name == arn.rpartition(":")[2] if arn else name.startswith(add_stage_prefix(STATE_STACK, stage))
        for name, arn in names.items()
    )


def reserve_concurrency(connection: Connection, context: Sequence[str]) -> Sequence[str]:
    """Return `NAME=VALUE` parameters that reserve as many concurrent executions as the account's limit allows.

    Parameters in `context`, and numbers in cdk.json, stay as they are. Raises `AccountNotReady`, `CallFailed`.
    """
    concurrency, option_names = (
        ConcurrencyLimits.fetch(connection),
        {parameter.partition("=")[0] for parameter in context},
    )
    parameters = read_parameters(context)
    configured: dict[str, Any] = {name: reduce(getattr, name.split(".")[1:], parameters) for name in RESERVES}
    default_reserves = {
        name: number for name, number in RESERVES.items() if configured[name] is None and name not in option_names
    }
    reserved = concurrency.choose_reserves(configured, default_reserves)
    chosen = [f"{name}={number}" for name, number in reserved.items()]
    if ACCOUNT_CONCURRENCY not in option_names:
        chosen.append(f"{ACCOUNT_CONCURRENCY}={concurrency.limit}")
    if default_reserves:
        _, held_polls = read_parameters([*chosen, *context]).held_polls_range
        print_note(concurrency.describe(reserved, region=connection.region, held_polls=held_polls))
    return chosen


def check_account(
    connection: Connection, templates: Collection[str], context: Sequence[str], *, force: bool = False
) -> None:
    """Raise `AccountNotReady` if the account or region lacks what the stacks need. With `force`, print a note instead.

    `templates` are those of stacks that don't exist yet. Adopted queues are checked at each deployment.
    """
    parameters = read_parameters(context)
    pipeline = parameters.pipeline
    checks: list[Callable[[Connection], str | None]] = [
        partial(check_dead_letters, source_arn=queue.existing_source_queue_arn)
        for queue in parameters.splitting.queues
        if queue.consumers and queue.existing_source_queue_arn
    ]
    checks += [check_function_urls] if templates else []
    if add_stage_prefix(PIPELINE_STACK, connection.stage) in templates:
        checks.append(partial(check_emr, worker_vcpu=pipeline.worker_vcpu))
        checks.append(partial(check_release, release_label=pipeline.release_label))
        checks += [] if pipeline.vpc_id else [check_vpcs]
    for check in checks:
        try:
            if note := check(connection):
                print_note(note)
        except DestinationFault as error:
            print_note(f"not checked: {error}")
        except AccountNotReady as lack:
            if not force:
                raise AccountNotReady(f"nothing was changed: {lack}; deploy all the same with --force") from lack
            print_note(str(lack))


def wait_for_names(
    connection: Connection,
    templates: Mapping[str, Mapping[str, Any]],
    *,
    now_ms: Callable[[], int],
    sleep: Callable[[float], None],
) -> None:
    """Wait until SQS allows the names of recently deleted queues again, and print a note with the duration."""
    try:
        taken = find_taken_names(connection, templates, now_ms=now_ms)
    except CallFailed as error:
        print_note(f"not checked: {error}")
        return
    if taken:
        wait_s = max(taken.values())
        names = ", ".join(sorted(taken))
        print_note(f"waiting {wait_s:.0f} s: SQS gives no deleted queue's name again for a minute: {names}")
        sleep(wait_s)


def read_parameters(context: Iterable[str]) -> "Parameters":
    """Read the parameters of cdk.json, overridden by the `NAME=VALUE` texts in `context`."""
    require_modules("deploy", "pydantic")
    from sluice.parameters import Parameters  # noqa: PLC0415 - may be missing if only the command line is installed

    configured = json.loads((PROJECT.workspace / "cdk.json").read_text())["context"]
    return Parameters.from_context(configured | dict(parameter.partition("=")[::2] for parameter in context))


def _describe_queue(queue: RemovedQueue) -> str:
    kept = ", retained by CloudFormation" if queue.is_retained else ""
    return f"{queue.name} of {queue.stack_name}: about {queue.message_count} messages{kept}"


def _run_cdk(arguments: Sequence[str], environment: Mapping[str, str], *, to_stderr: bool = False) -> None:
    """Run CDK's command line; with `to_stderr`, its output goes to standard error. Raises `CdkFailed`."""
    # PATH begins with the folder of this Python interpreter, so that CDK finds the right Python and Node.
    path = os.pathsep.join([str(Path(sys.executable).parent), environment.get("PATH", "")])
    variables = {**environment, "PATH": path, "CDK_DISABLE_CLI_TELEMETRY": "true"}
    command = [str(cdk()), *arguments, "--no-notices"]
    output = STANDARD_ERROR if to_stderr else None
    try:
        done = subprocess.run(command, cwd=PROJECT.workspace, env=variables, stdout=output, check=False)  # noqa: S603 - our own arguments
    except KeyboardInterrupt:
        if arguments[0] != "synth":
            print_note("stopped; CloudFormation finishes the stacks that it has begun: then run the command again")
        raise
    if done.returncode:
        raise CdkFailed(f"cdk {arguments[0]} failed with exit code {done.returncode}")


@app.command("permissions")
def print_permissions(
    commands: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[COMMAND...]",
            help="Commands or groups: status 'split list' dlq. Default: all. 'execution role': CloudFormation's.",
        ),
    ] = None,
    *,
    site: SiteOptions,
) -> None:
    """Print the IAM policy of a user who may run these commands on a site."""
    connection = site.connect()
    policy = build_policy(
        commands or [],
        partition=connection.session.get_partition_for_region(connection.region),
        region=connection.region,
        account=fetch_account(connection),
        stage=connection.stage,
    )
    print_result(policy, lambda: typer.echo(json.dumps(policy, indent=2)))
