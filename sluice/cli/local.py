"""`sluice local`: the embedded cloud, up and down, and what a program needs to reach it."""

import shlex
from dataclasses import asdict, replace
from typing import Annotated

import typer

from sluice.cli.completion import complete_local_sites
from sluice.cli.output import show_pairs, tell
from sluice.cli.progress import steps
from sluice.cli.sites import CloudCommand, PlainCommand, SiteTyper
from sluice.cli.terminal import note
from sluice.local.cloud import FOLDER, Cloud, CloudFailed, find, not_kept, start
from sluice.local.deployer import Deployer
from sluice.local.harsh.behaviours import Behaviours
from sluice.local.jobs import JOBS_FOLDER, end_all
from sluice.local.sites import DEFAULT_SITE, Site, peer_accounts, peer_stages, to_deploy
from sluice.operator.site_names import FIRST_SITE, HERE, BadSiteName, SiteOptions

app = SiteTyper()

SiteArguments = Annotated[
    list[str],
    typer.Argument(
        metavar="SITE",
        help=f"Where to deploy, as --site has it; else where it is deployed already, else {DEFAULT_SITE}.",
        autocompletion=complete_local_sites,
    ),
]
SiteArgument = Annotated[
    str,
    typer.Argument(
        metavar="SITE",
        help="As --site has it; else the first.",
        autocompletion=complete_local_sites,
    ),
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


@app.command(cls=CloudCommand)
def up(
    sites: SiteArguments,
    *,
    keep_state: KeepState = False,
    harsh: Harsh = False,
    scale: Scale = 1.0,
    seed: Seed = 0,
    site: SiteOptions,
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
        wanted_sites = [found for each in sites for found in _sites(site, each, cloud)]
        accounts = peer_accounts((*cloud.sites, *wanted_sites))
        stages = peer_stages((*cloud.sites, *wanted_sites))
        context = ({PEER_ACCOUNTS: accounts} if accounts else {}) | ({PEER_STAGES: stages} if stages else {})
        deployer = Deployer(cloud=cloud, context=context, progress=progress, expect=progress.expect)
        cloud = deployer.deploy(*to_deploy(cloud.sites, wanted_sites))
    tell(_document(cloud), lambda: _show(cloud))


def _sites(said: SiteOptions, text: str, cloud: Cloud) -> list[Site]:
    """Find what is meant. Where nothing names a site it is all that are deployed, of the stage that is said."""
    if text == HERE and said.site is None and said.region is None and said.local in {None, FIRST_SITE}:
        found = [each for each in cloud.sites if said.stage in {None, each.stage}]
        return found or [replace(DEFAULT_SITE, stage=said.stage)]
    named = replace(said, local=said.local or FIRST_SITE).named(text, running=lambda: cloud)
    if named.local_account is None or named.region is None:
        raise BadSiteName(f"{named} is no site of the embedded cloud")
    return [Site(named.local_account, named.region, named.stage)]


def _started(*, keep_state: bool, harsh: Behaviours | None) -> Cloud:
    """Start a cloud that can be kept: who wants that says so only when it is to come back."""
    lost = not_kept() if keep_state else None
    if lost is not None:
        note(lost)
    return start(keep_state=keep_state, save_state=True, harsh=harsh)


@app.command(cls=PlainCommand)
def down() -> None:
    """Stop the cloud, the functions that it runs, and the pipeline's jobs that read from it."""
    end_all(FOLDER / JOBS_FOLDER, grace_s=JOBS_GRACE_S)
    cloud = find()
    if cloud:
        cloud.stop()
    said = f"stopped process {cloud.pid}" if cloud else "nothing was running"
    tell({"stopped": cloud.pid if cloud else None}, lambda: typer.echo(said))


@app.command(cls=PlainCommand)
def status() -> None:
    """Where the cloud is, what is deployed to it, and where its logs are."""
    cloud = _running()
    tell(_document(cloud), lambda: _show(cloud))


@app.command(cls=CloudCommand)
def env(which: SiteArgument, *, site: SiteOptions) -> None:
    """Print the variables that lead AWS programs to a site: `eval "$(sluice local env)"`."""
    cloud = _running()
    variables = cloud.environment(_sites(site, which, cloud)[0])
    lines = [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]
    tell(variables, lambda: typer.echo("\n".join(lines)))


def _running() -> Cloud:
    cloud = find()
    if not cloud:
        raise CloudFailed("no embedded cloud runs here: start it with `sluice local up`")
    return cloud


def _document(cloud: Cloud) -> dict[str, object]:
    return {
        "endpoint": cloud.endpoint,
        "process": cloud.pid,
        "harsh": asdict(cloud.harsh) if cloud.harsh else None,
        "sites": [str(site) for site in cloud.sites],
        "server_log": str(cloud.server_log),
        "cdk_logs": str(cloud.folder / "cdk*.log"),
    }


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
