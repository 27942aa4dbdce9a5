"""Implements `sluice exchange`: creates, deletes and lists a site's exchanges."""

from typing import Annotated

import typer

from sluice.cli.completion import complete_exchanges
from sluice.cli.output import print_result, show_table
from sluice.cli.sites import SiteCommands, SiteText
from sluice.federation.matching.exchanges import ExchangeType
from sluice.federation.operations import AddExchange, DeleteExchange
from sluice.operator.federated_sites import open_site

app = SiteCommands()

ExchangeName = Annotated[str, typer.Argument(help="Name of the exchange.", autocompletion=complete_exchanges)]


@app.command(quiet=True)
def add(
    site: SiteText,
    name: Annotated[str, typer.Argument(help="Its name: 1 to 127 characters of A-Za-z0-9_.:-")],
    type_: Annotated[ExchangeType, typer.Argument(metavar="TYPE", help=f"Its type: {', '.join(ExchangeType)}.")],
    *,
    alternate: Annotated[
        str | None, typer.Option(metavar="EXCHANGE", help="Exchange that gets messages that no binding matches.")
    ] = None,
) -> None:
    """Create an exchange; creating the same one again changes nothing."""
    opened = open_site(site)
    made = opened.client.ask(AddExchange(name=name, type=type_, alternate=alternate))
    print_result(made, f"{name} is a {type_.value} exchange of {opened.name}")


@app.command("del", quiet=True)
def delete(site: SiteText, name: ExchangeName) -> None:
    """Delete an exchange that has no bindings."""
    opened = open_site(site)
    opened.client.ask(DeleteExchange(name=name))
    document = {"site": str(opened.name), "exchange": name, "done": "deleted"}
    print_result(document, f"{name} was deleted from {opened.name}")


@app.command("list")
def list_exchanges(site: SiteText) -> None:
    """List a site's exchanges, with their types and alternates."""
    exchanges = open_site(site).view().exchanges
    rows = [(exchange.name, exchange.type.value, exchange.alternate) for exchange in exchanges]
    print_result(exchanges, lambda: show_table(("exchange", "type", "alternate"), rows))
