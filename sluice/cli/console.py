"""`sluice console`: its options. The console is a package of its own, imported by name only when it is used."""

from importlib import import_module
from typing import Annotated

import typer

from sluice.building.project import need
from sluice.cli.completion import complete_sites
from sluice.cli.output import print_result
from sluice.cli.sites import SiteTyper
from sluice.local.cloud import find_cloud
from sluice.operator.site_names import FIRST_SITE, HERE, SiteName, SiteOptions

PROGRAM, SERVER = "sluice.console.program", "sluice.console.server"
HIGHEST_PORT = 65_535

Sites = Annotated[
    list[str],
    typer.Argument(
        metavar="SITE",
        help="Sites to show side by side, written as for --site. With --local by default all of the embedded cloud.",
        autocompletion=complete_sites,
    ),
]

app = SiteTyper()


@app.command()
def console(
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

    Nothing is deployed for it. The address contains a new secret at each start and is needed to get in.
    """
    need("console", "starlette", "uvicorn")
    program, server = import_module(PROGRAM), import_module(SERVER)
    options = server.Options(allow_actions=allow_actions, port=port)

    def tell_address(address: str) -> None:
        print_result({"address": address}, f"console at {address} until ctrl-C")

    program.run(_resolve_sites(site, sites), options, browser=not no_browser, tell=tell_address)


def _resolve_sites(said: SiteOptions, texts: list[str]) -> list[SiteName]:
    """Return the sites that the arguments select: with only --local, all that are deployed to the embedded cloud."""
    if texts == [HERE] and said.site is None and said.region is None and said.local == FIRST_SITE:
        cloud = find_cloud()
        local_sites = [local for local in cloud.sites if said.stage in {None, local.stage}] if cloud else []
        if local_sites:
            return [SiteName(local.region, local_account=local.account, stage=local.stage) for local in local_sites]
    return [said.resolve(text) for text in dict.fromkeys(texts)]
