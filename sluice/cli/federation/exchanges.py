"""`sluice exchange`: a site's exchanges."""

from typing import Annotated

import typer

from sluice.cli.completion import complete_exchanges
from sluice.cli.output import show_table, tell
from sluice.cli.sites import SiteText, SiteTyper
from sluice.federation.matching.exchanges import ExchangeType
from sluice.federation.operations import AddExchange, DeleteExchange
from sluice.operator.federated_sites import open_site

app = SiteTyper()

ExchangeName = Annotated[str, typer.Argument(help="As `exchange list` shows it.", autocompletion=complete_exchanges)]


@app.command(quiet=True)
def add(
    site: SiteText,
    name: Annotated[str, typer.Argument(help="1 to 127 of A-Za-z0-9_.:-")],
    type_: Annotated[ExchangeType, typer.Argument(metavar="TYPE", help="direct, topic, fanout or headers.")],
    *,
    alternate: Annotated[
        str | None, typer.Option(metavar="EXCHANGE", help="Where what no binding matches goes.")
    ] = None,
) -> None:
    """Make an exchange; the same one once more changes nothing."""
    opened = open_site(site)
    made = opened.client.ask(AddExchange(name=name, type=type_, alternate=alternate))
    tell(made, f"{name} is a {type_.value} exchange of {opened.name}")


@app.command("del", quiet=True)
def delete(site: SiteText, name: ExchangeName) -> None:
    """Take an exchange away that nothing is bound to."""
    opened = open_site(site)
    opened.client.ask(DeleteExchange(name=name))
    document = {"site": str(opened.name), "exchange": name, "done": "deleted"}
    tell(document, f"{name} is gone from {opened.name}")


@app.command("list")
def list_exchanges(site: SiteText) -> None:
    """List a site's exchanges, with their types and alternates."""
    exchanges = open_site(site).view().exchanges
    rows = [(each.name, each.type.value, each.alternate) for each in exchanges]
    tell(exchanges, lambda: show_table(("exchange", "type", "alternate"), rows))
