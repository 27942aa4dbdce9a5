"""`sluice local`: the embedded cloud, up and down, and what a program needs to reach it."""

import shlex
from dataclasses import replace
from typing import Annotated

import typer

from sluice.cli.output import note, show_pairs
from sluice.cli.progress import steps
from sluice.cli.sites import Stage
from sluice.local.cloud import FOLDER, Cloud, CloudFailed, find, not_kept, start
from sluice.local.deployer import Deployer
from sluice.local.harsh.behaviours import Behaviours
from sluice.local.jobs import JOBS_FOLDER, end_all
from sluice.local.sites import DEFAULT_SITE, Site, peer_accounts, peer_stages, to_deploy

app = typer.Typer(no_args_is_help=True, help="The embedded cloud: AWS on loopback, with our stacks deployed to it.")

SiteArguments = Annotated[
    list[Site] | None,
    typer.Argument(
        parser=Site.parse,
        metavar="[ACCOUNT/REGION[:STAGE]]...",
        help=f"Where to deploy.  [default: where it is deployed already, else {DEFAULT_SITE}]",
    ),
]
SiteArgument = Annotated[
    Site | None, typer.Argument(parser=Site.parse, metavar="[ACCOUNT/REGION]", help="The first site, if not given.")
]
JOBS_GRACE_S = 30
PEER_ACCOUNTS, PEER_STAGES = "sluice.federation.peer_accounts", "sluice.federation.peer_stages"
KeepState = Annotated[bool, typer.Option("--keep-state", help="Come back with what was there at the last `down`.")]
Harsh = Annotated[
    bool,
    typer.Option(
        "--harsh",
        help="Do what AWS may do and rarely does: new queues that aren't there yet, duplicates, throttling, delays."
        " Everything of it is in docs/harsh-cloud.md.",
    ),
]
Scale = Annotated[float, typer.Option(min=0, help="With --harsh: of all its delays; 1 is AWS's own.")]
Seed = Annotated[int, typer.Option(help="With --harsh: of what it draws.")]


@app.command()
def up(
    sites: SiteArguments = None,
    *,
    keep_state: KeepState = False,
    harsh: Harsh = False,
    scale: Scale = 1.0,
    seed: Seed = 0,
    stage: Stage = None,
) -> None:
    """Start the cloud unless it runs, bootstrap it and deploy every site.

    Sites of several accounts let each other in: they are each other's `federation.peer_accounts`. So do sites of
    several stages, one of which may be none: they are each other's `federation.peer_stages`.

    What the cloud has is saved by `down`, and goes with the next `up` unless that says --keep-state.
    """
    wanted = Behaviours(scale=scale, seed=seed) if harsh else None
    with steps(1) as progress:
        progress("starting the embedded cloud")
        cloud = find() or _started(keep_state=keep_state, harsh=wanted)
        if wanted and cloud.harsh != wanted:
            raise CloudFailed("the cloud that runs here was started otherwise: `sluice local down` first")
        if keep_state and not cloud.keeps_state:
            raise CloudFailed(
                "the cloud that runs here can't keep its state: what it has goes with `sluice local down`"
            )
        wanted_sites = sites or [each for each in cloud.sites if stage in {None, each.stage}] or [DEFAULT_SITE]
        if stage:
            wanted_sites = [site if site.stage else replace(site, stage=stage) for site in wanted_sites]
        accounts = peer_accounts((*cloud.sites, *wanted_sites))
        stages = peer_stages((*cloud.sites, *wanted_sites))
        context = ({PEER_ACCOUNTS: accounts} if accounts else {}) | ({PEER_STAGES: stages} if stages else {})
        deployer = Deployer(cloud=cloud, context=context, progress=progress, expect=progress.expect)
        cloud = deployer.deploy(*to_deploy(cloud.sites, wanted_sites))
    _show(cloud)


def _started(*, keep_state: bool, harsh: Behaviours | None) -> Cloud:
    """Start a cloud that can be kept: who wants that says so only when it is to come back."""
    lost = not_kept() if keep_state else None
    if lost is not None:
        note(lost)
    return start(keep_state=keep_state, save_state=True, harsh=harsh)


@app.command()
def down() -> None:
    """Stop the cloud, the functions that it runs, and the pipeline's jobs that read from it."""
    end_all(FOLDER / JOBS_FOLDER, grace_s=JOBS_GRACE_S)
    cloud = find()
    if cloud:
        cloud.stop()
    typer.echo(f"stopped process {cloud.pid}" if cloud else "nothing was running")


@app.command()
def status() -> None:
    """Where the cloud is, what is deployed to it, and where its logs are."""
    _show(_running())


@app.command()
def env(site: SiteArgument = None) -> None:
    """Print the variables that lead AWS programs to a site: `eval "$(sluice local env)"`."""
    cloud = _running()
    for name, value in cloud.environment(site or (*cloud.sites, DEFAULT_SITE)[0]).items():
        typer.echo(f"export {name}={shlex.quote(value)}")


def _running() -> Cloud:
    cloud = find()
    if not cloud:
        raise CloudFailed("no embedded cloud runs here: start it with `sluice local up`")
    return cloud


def _show(cloud: Cloud) -> None:
    show_pairs(
        [
            ("endpoint", cloud.endpoint),
            ("process", cloud.pid),
            ("harsh", f"delays by {cloud.harsh.scale:g}, seed {cloud.harsh.seed}" if cloud.harsh else "no"),
            ("sites", "\n".join(map(str, cloud.sites)) or "none yet"),
            ("logs", f"{cloud.server_log}\n{cloud.folder / 'cdk*.log'}"),
        ]
    )
