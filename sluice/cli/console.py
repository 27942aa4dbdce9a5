"""`sluice console`: what it is told. The console itself stands beside the command line, and is imported by its name."""

from importlib import import_module
from typing import Annotated

import typer

from sluice.building.project import need
from sluice.cli.completion import complete_sites
from sluice.cli.output import tell
from sluice.cli.sites import SiteTyper
from sluice.local.cloud import find
from sluice.operator.site_names import FIRST_SITE, HERE, SiteName, SiteOptions

PROGRAM, SERVER = "sluice.console.program", "sluice.console.server"
HIGHEST_PORT = 65_535

Sites = Annotated[
    list[str],
    typer.Argument(
        metavar="SITE",
        help="Sites to be shown side by side, as --site has it; with --local else all of the embedded cloud.",
        autocompletion=complete_sites,
    ),
]

app = SiteTyper()


@app.command()
def console(
    sites: Sites,
    *,
    allow_actions: Annotated[
        bool, typer.Option("--allow-actions", help="Let pages do what commands do; else they only show.")
    ] = False,
    port: Annotated[
        int, typer.Option(min=0, max=HIGHEST_PORT, help="On loopback.", show_default="any that is free")
    ] = 0,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Say the address, and open no browser.")] = False,
    site: SiteOptions,
) -> None:
    """Show sites on one live page, served on loopback with your own credentials until ctrl-C.

    Nothing is deployed for it. Only who has the address, which is another one each time, gets in.
    """
    need("console", "starlette", "uvicorn")
    program, server = import_module(PROGRAM), import_module(SERVER)
    options = server.Options(allow_actions=allow_actions, port=port)

    def tell_address(address: str) -> None:
        tell({"address": address}, f"console at {address} until ctrl-C")

    program.run(_named(site, sites), options, browser=not no_browser, tell=tell_address)


def _named(said: SiteOptions, texts: list[str]) -> list[SiteName]:
    """Find the sites that are meant: with --local alone all that are deployed to the embedded cloud."""
    if texts == [HERE] and said.site is None and said.region is None and said.local == FIRST_SITE:
        cloud = find()
        found = [each for each in cloud.sites if said.stage in {None, each.stage}] if cloud else []
        if found:
            return [SiteName(each.region, local_account=each.account, stage=each.stage) for each in found]
    return [said.named(text) for text in dict.fromkeys(texts)]
