"""`sluice local`: start and stop the embedded cloud, and print the variables that programs need to reach it."""

import shlex
from dataclasses import asdict, replace
from typing import Annotated

import typer

from sluice.cli.completion import complete_local_sites
from sluice.cli.output import print_result, show_pairs
from sluice.cli.progress import show_steps
from sluice.cli.sites import LocalSiteCommand, PlainCommand, SiteCommands
from sluice.cli.terminal import print_note
from sluice.local.cloud import FOLDER, Cloud, CloudFailed, describe_lost_state, find_cloud, require_running, start_cloud
from sluice.local.deployer import Deployer
from sluice.local.harsh.behaviours import Behaviours
from sluice.local.jobs import JOBS_FOLDER, end_all
from sluice.local.sites import DEFAULT_SITE, Site, peer_accounts, peer_stages, sites_to_deploy
from sluice.operator.site_names import FIRST_SITE, HERE, BadSiteName, SiteOptions

app = SiteCommands()

SiteArguments = Annotated[
    list[str],
    typer.Argument(
        metavar="SITE",
        help=f"Sites to deploy to, written as for --site. Default: the deployed sites, or {DEFAULT_SITE}.",
        autocompletion=complete_local_sites,
    ),
]
SiteArgument = Annotated[
    str,
    typer.Argument(
        metavar="SITE",
        help="A site, written as for --site. Default: the first one.",
        autocompletion=complete_local_sites,
    ),
]
JOBS_GRACE_S = 30
PEER_ACCOUNTS, PEER_STAGES = "sluice.federation.peer_accounts", "sluice.federation.peer_stages"
KeepState = Annotated[bool, typer.Option("--keep-state", help="Restore the state that the last `down` saved.")]
Harsh = Annotated[
    bool,
    typer.Option(
        "--harsh",
        help="Imitate AWS's rare behaviour: new queues that don't exist yet, duplicates, throttling, delays."
        " docs/harsh-cloud.md lists all of it.",
    ),
]
Scale = Annotated[float, typer.Option(min=0, help="With --harsh: factor for all delays; 1 is as long as on AWS.")]
Seed = Annotated[int, typer.Option(help="With --harsh: seed of the random choices.")]


@app.command("up", cls=LocalSiteCommand)
def deploy_cloud(
    sites: SiteArguments,
    *,
    keep_state: KeepState = False,
    harsh: Harsh = False,
    scale: Scale = 1.0,
    seed: Seed = 0,
    site: SiteOptions,
) -> None:
    """Start the embedded cloud unless it runs, bootstrap it and deploy every site.

    Sites of different accounts may link to each other: `federation.peer_accounts` is set to all of them, and
    `federation.peer_stages` likewise for sites of different stages.

    `down` saves the cloud's state; the next `up` deletes it unless --keep-state is given.
    """
    behaviours = Behaviours(scale=scale, seed=seed) if harsh else None
    with show_steps(1) as progress:
        progress("starting the embedded cloud")
        cloud = find_cloud()
        if cloud is None:
            lost = describe_lost_state() if keep_state else None
            if lost is not None:
                print_note(lost)
            cloud = start_cloud(keep_state=keep_state, save_state=True, harsh=behaviours)
        if behaviours and cloud.harsh != behaviours:
            raise CloudFailed(
                "the embedded cloud already runs with other --harsh settings: stop it with `sluice local down` first"
            )
        if keep_state and not cloud.keeps_state:
            raise CloudFailed(
                "the embedded cloud already runs without saving its state: `sluice local down` will delete it"
            )
        wanted_sites = [named_site for text in sites for named_site in _resolve_sites(site, text, cloud)]
        accounts = peer_accounts((*cloud.sites, *wanted_sites))
        stages = peer_stages((*cloud.sites, *wanted_sites))
        context = ({PEER_ACCOUNTS: accounts} if accounts else {}) | ({PEER_STAGES: stages} if stages else {})
        deployer = Deployer(cloud=cloud, context=context, progress=progress, expect=progress.expect)
        try:
            cloud = deployer.deploy(*sites_to_deploy(cloud.sites, wanted_sites))
        except KeyboardInterrupt:
            print_note("stopped; the embedded cloud runs on: `sluice local up` continues, `sluice local down` stops it")
            raise
    _print_cloud(cloud)


def _resolve_sites(options: SiteOptions, site_name: str, cloud: Cloud) -> list[Site]:
    """Return the selected sites of the embedded cloud: by default, all deployed sites, or those of the given stage."""
    if site_name == HERE and options.site is None and options.region is None and options.local in {None, FIRST_SITE}:
        deployed = [deployed_site for deployed_site in cloud.sites if options.stage in {None, deployed_site.stage}]
        return deployed or [replace(DEFAULT_SITE, stage=options.stage)]
    named = replace(options, local=options.local or FIRST_SITE).resolve(site_name, find_running_cloud=lambda: cloud)
    if named.local_account is None or named.region is None:
        raise BadSiteName(f"{named} is not a site of the embedded cloud: name one as ACCOUNT/REGION")
    return [Site(named.local_account, named.region, named.stage)]


@app.command("down", cls=PlainCommand)
def stop_cloud() -> None:
    """Stop the embedded cloud, its functions and the local pipeline jobs, and save its state."""
    end_all(FOLDER / JOBS_FOLDER, grace_s=JOBS_GRACE_S)
    cloud = find_cloud()
    if cloud:
        cloud.stop()
    said = f"stopped process {cloud.pid}" if cloud else "nothing was running"
    print_result({"stopped": cloud.pid if cloud else None}, lambda: typer.echo(said))


@app.command("status", cls=PlainCommand)
def show_status() -> None:
    """Show the embedded cloud's endpoint, its deployed sites and its logs."""
    cloud = require_running(find_cloud())
    _print_cloud(cloud)


@app.command("env", cls=LocalSiteCommand)
def print_environment(site_name: SiteArgument, *, site: SiteOptions) -> None:
    """Print the environment variables with which AWS programs reach a site: `eval "$(sluice local env)"`.

    The keys are valid until the embedded cloud is stopped.
    """
    cloud = require_running(find_cloud())
    variables = cloud.environment(_resolve_sites(site, site_name, cloud)[0])
    lines = [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]
    print_result(variables, lambda: typer.echo("\n".join(lines)))


def _print_cloud(cloud: Cloud) -> None:
    cdk_logs = str(cloud.folder / "cdk*.log")
    document = {
        "endpoint": cloud.endpoint,
        "process": cloud.pid,
        "harsh": asdict(cloud.harsh) if cloud.harsh else None,
        "sites": [str(site) for site in cloud.sites],
        "server_log": str(cloud.server_log),
        "cdk_logs": cdk_logs,
    }
    pairs = [
        ("endpoint", cloud.endpoint),
        ("process", cloud.pid),
        ("harsh", f"delays times {cloud.harsh.scale:g}, seed {cloud.harsh.seed}" if cloud.harsh else "no"),
        ("sites", "\n".join(map(str, cloud.sites)) or "none yet"),
        ("logs", f"{cloud.server_log}\n{cdk_logs}"),
    ]
    print_result(document, lambda: show_pairs(pairs))
