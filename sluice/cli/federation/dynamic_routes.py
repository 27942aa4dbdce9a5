"""`sluice dynamic`: routes that follow what the destination's exchange is bound for."""

from typing import Annotated

import typer

from sluice.cli.completion import complete_exchanges
from sluice.cli.federation.route_options import (
    DelEmptyLink,
    LinkOption,
    RouteOptions,
    declare,
    with_route_options,
    withdraw,
)
from sluice.cli.output import show_table, tell
from sluice.cli.sites import DestText, SiteText, SiteTyper, SrcText
from sluice.federation.links.links import BridgeDeclaration, RouteKind
from sluice.federation.operations import ListWays, WayView
from sluice.operator.federated_sites import open_site

app = SiteTyper()

WAY_COLUMNS = ("exchange", "wanted by", "way", "state", "bindings", "keys")
SHOWN_KEYS = 5  # as many as fit a line

Exchange = Annotated[
    str, typer.Argument(help="The exchange, of one name at both sites.", autocompletion=complete_exchanges)
]


@app.command(quiet=True)
@with_route_options(RouteKind.DYNAMIC)
def add(
    dest: DestText,
    src: SrcText,
    exchange: Exchange,
    *,
    options: RouteOptions,
    standard: Annotated[bool, typer.Option("--standard", help="A bridge queue that keeps no order.")] = False,
) -> None:
    """Let DEST have from SRC what DEST's exchange is bound for, now and from now on. The link is made if need be."""
    wanted = options.declaration(src=exchange, dest=exchange, dynamic=True, fifo=not standard)
    declare(dest, src, wanted, options)


@app.command("del", quiet=True)
def delete(
    dest: DestText,
    src: SrcText,
    exchange: Exchange,
    *,
    link: LinkOption = None,
    del_empty_link: DelEmptyLink = False,
) -> None:
    """Take a dynamic route away. What its queue holds goes over first."""
    wanted = BridgeDeclaration(src=exchange, dest=exchange, dynamic=True)
    withdraw(dest, src, wanted, link=link, del_empty_link=del_empty_link)


@app.command()
def ways(site: SiteText) -> None:
    """Who wants what of a site, by which way: the active ones, and those that stand by."""
    found = open_site(site).client.ask(ListWays()).ways
    tell(found, lambda: show_table(WAY_COLUMNS, map(way_row, found)))


def way_row(way: WayView) -> tuple[object, ...]:
    """Who wants what, by which way."""
    more = ", …" if way.wants > SHOWN_KEYS else ""
    return (
        way.exchange,
        way.origin,
        " → ".join(way.path),
        "active" if way.active else "standby",
        str(way.wants),
        ", ".join(way.keys[:SHOWN_KEYS]) + more,
    )
