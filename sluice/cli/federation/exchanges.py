"""`sluice exchange`: a site's exchanges."""

from typing import Annotated

import typer

from sluice.cli.federation.sites import AsJson, Quiet, SiteText, open_site
from sluice.cli.output import note, show_json, show_table
from sluice.cli.sites import SiteTyper
from sluice.federation.matching.exchanges import ExchangeType
from sluice.federation.operations import AddExchange, DeleteExchange

app = SiteTyper(no_args_is_help=True, help="Exchanges: what messages are published to.")


@app.command()
def add(
    site: SiteText,
    name: Annotated[str, typer.Argument(help="1 to 127 of A-Za-z0-9_.:-")],
    type_: Annotated[ExchangeType, typer.Argument(metavar="TYPE", help="direct, topic, fanout or headers.")],
    *,
    alternate: Annotated[
        str | None, typer.Option(metavar="EXCHANGE", help="Where what no binding matches goes.")
    ] = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Make an exchange; the same one once more changes nothing."""
    made = open_site(site).client.ask(AddExchange(name=name, type=type_, alternate=alternate))
    if as_json:
        show_json(made)
    elif not quiet:
        note(f"{name} is a {type_.value} exchange of {site}")


@app.command("del")
def delete(site: SiteText, name: str, *, quiet: Quiet = False) -> None:
    """Take an exchange away that nothing is bound to."""
    open_site(site).client.ask(DeleteExchange(name=name))
    if not quiet:
        note(f"{name} is gone from {site}")


@app.command("list")
def list_exchanges(site: SiteText, *, as_json: AsJson = False) -> None:
    """List a site's exchanges, with their types and alternates."""
    exchanges = open_site(site).view().exchanges
    if as_json:
        show_json(exchanges)
    else:
        show_table(("exchange", "type", "alternate"), [(e.name, e.type.value, e.alternate) for e in exchanges])
