"""Implements `sluice dynamic`: routes that follow the bindings of the destination's exchange."""

from typing import Annotated

import typer

from sluice.cli.completion import complete_exchanges
from sluice.cli.federation.route_options import (
    DelEmptyLink,
    LinkOption,
    RouteOptions,
    add_and_show_route,
    remove_route,
    with_route_options,
)
from sluice.cli.output import print_result, show_table
from sluice.cli.sites import DestText, SiteCommands, SiteText, SrcText
from sluice.federation.links.links import BridgeDeclaration, RouteKind
from sluice.federation.operations import ListPaths, PathView
from sluice.operator.federated_sites import open_site

app = SiteCommands()

PATH_COLUMNS = ("exchange", "origin", "path", "state", "bindings", "keys")
SHOWN_KEYS = 5  # A row of the table shows at most this number of binding keys.

Exchange = Annotated[
    str, typer.Argument(help="The exchange, with the same name at both sites.", autocompletion=complete_exchanges)
]


@app.command(quiet=True)
@with_route_options(RouteKind.DYNAMIC)
def add(
    dest: DestText,
    src: SrcText,
    exchange: Exchange,
    *,
    options: RouteOptions,
    standard: Annotated[bool, typer.Option("--standard", help="Use a standard bridge queue, without order.")] = False,
) -> None:
    """Forward SRC's messages that match the current bindings of DEST's exchange. Creates the link if needed."""
    declaration = options.build_declaration(src=exchange, dest=exchange, dynamic=True, fifo=not standard)
    add_and_show_route(dest, src, declaration, options)


@app.command("del", quiet=True)
def delete(
    dest: DestText, src: SrcText, exchange: Exchange, *, link: LinkOption = None, del_empty_link: DelEmptyLink = False
) -> None:
    """Delete a dynamic route. Messages in its queue are forwarded first."""
    declaration = BridgeDeclaration(src=exchange, dest=exchange, dynamic=True)
    remove_route(dest, src, declaration, link=link, del_empty_link=del_empty_link)


@app.command("paths")
def list_dynamic_paths(site: SiteText) -> None:
    """List the binding advertisements that a site received, with the path of each, active or on standby."""
    paths = open_site(site).client.ask(ListPaths()).paths
    print_result(paths, lambda: show_table(PATH_COLUMNS, map(build_path_row, paths)))


def build_path_row(path: PathView) -> tuple[object, ...]:
    """Return the table row of one advertised path."""
    more = ", …" if path.bindings > SHOWN_KEYS else ""
    return (
        path.exchange,
        path.origin,
        " → ".join(path.path),
        "active" if path.active else "standby",
        str(path.bindings),
        ", ".join(path.keys[:SHOWN_KEYS]) + more,
    )
