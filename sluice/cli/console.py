"""Defines the command `sluice console`. The package `sluice.console` is imported by its name when the command runs."""

from importlib import import_module
from typing import Annotated

import typer

from sluice.building.project import require_modules
from sluice.cli.completion import complete_sites
from sluice.cli.output import print_result
from sluice.cli.sites import SiteCommands
from sluice.local.cloud import find_cloud
from sluice.operator.site_names import FIRST_SITE, HERE, SiteName, SiteOptions

HIGHEST_PORT = 65_535

Sites = Annotated[
    list[str],
    typer.Argument(
        metavar="SITE",
        help="Sites to show side by side, written as for --site. Default with --local: all of the embedded cloud.",
        autocompletion=complete_sites,
    ),
]

app = SiteCommands()


@app.command("console")
def serve_console(
    sites: Sites,
    *,
    allow_actions: Annotated[
        bool, typer.Option("--allow-actions", help="Let pages change the site. Without it they are read-only.")
    ] = False,
    port: Annotated[
        int, typer.Option(min=0, max=HIGHEST_PORT, help="Port on loopback.", show_default="any free port")
    ] = 0,
    no_browser: Annotated[
        bool, typer.Option("--no-browser", help="Print the address without opening a browser.")
    ] = False,
    site: SiteOptions,
) -> None:
    """Show sites on one live page, served on loopback with your own credentials until ctrl-C.

    The console deploys nothing. Its address contains a secret, new at each start, without which it refuses requests.
    """
    require_modules("console", "starlette", "uvicorn")
    server = import_module("sluice.console.server")
    options = server.ServerOptions(allow_actions=allow_actions, port=port)

    def print_address(address: str) -> None:
        print_result({"address": address}, f"console at {address} until ctrl-C")

    shown = [site.resolve(text) for text in dict.fromkeys(sites)]
    if sites == [HERE] and site.site is None and site.region is None and site.local == FIRST_SITE:
        # `--local` without further names selects all sites that are deployed to the embedded cloud.
        cloud = find_cloud()
        local_sites = [local for local in cloud.sites if site.stage in {None, local.stage}] if cloud else []
        names = [SiteName(local.region, local_account=local.account, stage=local.stage) for local in local_sites]
        shown = names or shown
    server.run_console(shown, options, browser=not no_browser, show_address=print_address)
