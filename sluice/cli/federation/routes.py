"""`sluice route`: static exchange routes, and what is done with routes of all kinds."""

from pathlib import Path
from typing import Annotated

import typer
from msgspec import UNSET
from msgspec.structs import replace

from sluice.cli.completion import complete_exchanges, complete_routes, complete_sites
from sluice.cli.federation import topologies
from sluice.cli.federation.dynamic_routes import WAY_COLUMNS, way_row
from sluice.cli.federation.links import add_tells
from sluice.cli.federation.route_options import (
    DelEmptyLink,
    FilterFile,
    LinkOption,
    Patterns,
    Program,
    RouteOptions,
    SrcLocal,
    declare,
    filter_of,
    show_operational,
    tell_closing,
    with_route_options,
    withdraw,
)
from sluice.cli.federation.topologies import MapFormat
from sluice.cli.output import is_json, show_pairs, show_table, tell, time_of
from sluice.cli.sites import DestText, SiteText, SiteTyper, SrcText
from sluice.codec import encode
from sluice.errors import BadRoute
from sluice.federation.links.links import BridgeDeclaration, RouteKind, ends
from sluice.federation.links.watch import Mends
from sluice.federation.operations import (
    BridgeView,
    ChangeBridge,
    CloseBridge,
    CloseLink,
    ListWays,
    Redrive,
    SiteView,
    TellBridge,
)
from sluice.operator.federated_sites import OpenSite, open_site, walk

app = SiteTyper()

Exchange = Annotated[
    str,
    typer.Argument(metavar="EXCHANGE", help="The exchange at SRC, and at DEST.", autocompletion=complete_exchanges),
]
Key = Annotated[str, typer.Argument(metavar="KEY", help="As a queue's binding at SRC has it.")]
DestExchange = Annotated[
    str | None, typer.Option(metavar="NAME", help="The exchange at DEST, where it has another name.")
]
Name = Annotated[str, typer.Argument(metavar="NAME", help="As `route list` shows it.", autocompletion=complete_routes)]


@app.command(quiet=True)
@with_route_options(RouteKind.STATIC)
def add(
    dest: DestText,
    src: SrcText,
    exchange: Exchange,
    key: Key = "",
    *,
    dest_exchange: DestExchange = None,
    options: RouteOptions,
    patterns: Patterns = None,
    jq: Program = None,
    filter_file: FilterFile = None,
    standard: Annotated[
        bool, typer.Option("--standard", help="A bridge queue that keeps no order, knows no duplicates, is cheaper.")
    ] = False,
) -> None:
    """Let an exchange's messages with a key go from SRC to DEST, which pulls them. The link is made if need be.

    By two ways of such routes a message comes once only where FIFO queues get it twice within five minutes: take
    dynamic routes there.
    """
    wanted = options.declaration(
        src=exchange,
        dest=dest_exchange or exchange,
        key=key,
        filter=filter_of(patterns or (), jq, filter_file),
        fifo=not standard,
    )
    declare(dest, src, wanted, options)


@app.command(quiet=True)
@with_route_options(None)
def change(
    site: SiteText,
    name: Name,
    *,
    options: RouteOptions,
    patterns: Patterns = None,
    jq: Program = None,
    filter_file: FilterFile = None,
    no_filter: Annotated[bool, typer.Option("--no-filter", help="All that the key takes goes over again.")] = False,
) -> None:
    """Give a route other options where it stands: its queue stays, and what is published meanwhile goes over once."""
    opened = open_site(site)
    shown = _own(opened.view(), name, "change it")
    asked = filter_of(patterns or (), jq, filter_file)
    if no_filter and asked is not UNSET:
        raise typer.BadParameter("--no-filter goes without a filter")
    changes = {**options.fields, **({"filter": asked} if no_filter or asked is not UNSET else {})}
    opened.client.ask(ChangeBridge(bridge=replace(shown.declared_bridge(), **changes)))
    show_operational(opened, name, timeout_s=options.timeout_s)


@app.command("del", quiet=True)
def delete(
    dest: DestText,
    src: Annotated[
        str,
        typer.Argument(
            metavar="SRC", help="The other site, or its tag; alone, a route's name.", autocompletion=complete_routes
        ),
    ],
    exchange: Annotated[
        str | None,
        typer.Argument(metavar="EXCHANGE", help="The exchange at SRC.", autocompletion=complete_exchanges),
    ] = None,
    key: Key = "",
    *,
    dest_exchange: DestExchange = None,
    src_local: SrcLocal = False,
    link: LinkOption = None,
    del_empty_link: DelEmptyLink = False,
) -> None:
    """Take a route away: the one between two sites, or any of a site's by its name, as in `route del SITE NAME`.

    What its queue holds goes over first.
    """
    if exchange is None:
        site = open_site(dest)
        name = _own(site.view(), src, "take it away").name
        site.client.ask(CloseBridge(name=name, del_empty_link=del_empty_link))
        tell_closing(site, [name])
        return
    wanted = BridgeDeclaration(src=exchange, dest=dest_exchange or exchange, key=key, src_is_local=src_local)
    withdraw(dest, src, wanted, link=link, del_empty_link=del_empty_link)


def _own(view: SiteView, name: str, what: str) -> BridgeView:
    """Find a route that is the site's own, to do `what`. Raises `BadRoute` for any other."""
    shown = view.bridge_named(name)
    if shown is None:
        raise BadRoute(f"no such route at {view.tag}: {name}")
    if shown.served:
        raise BadRoute(f"{name}: it is pulled by {name.rpartition('@')[2]}: {what} there")
    return shown


@app.command(quiet=True)
def flush(site: SiteText, *, del_empty_link: DelEmptyLink = False) -> None:
    """Take all routes away that the site has declared."""
    opened = open_site(site)
    own = [shown for shown in opened.view().bridges if not shown.served]
    for shown in own:
        opened.client.ask(CloseBridge(name=shown.name))
    # While a link closes, its routes still send what they hold.
    emptied = {shown.link for shown in own} if del_empty_link else set()
    for link in opened.view().links:
        if link.name in emptied:
            opened.client.ask(CloseLink(name=link.name))
    tell_closing(opened, [shown.name for shown in own])


@app.command("list")
def list_routes(site: SiteText) -> None:
    """List a site's routes with their states. Those with an @ in the name are pulled by their peer."""
    opened = open_site(site)
    view = opened.view()
    tell(view.bridges, lambda: _show_routes(opened, view))


def _show_routes(opened: OpenSite, view: SiteView) -> None:
    columns = ("route", "kind", "from", "to", "key", "state", "forwarded", "error")
    show_table(columns, [_row(view, shown) for shown in view.bridges])
    if any(shown.dynamic and shown.src_is_local for shown in view.bridges):
        show_table(WAY_COLUMNS, [way_row(way) for way in opened.client.ask(ListWays()).ways])


def _row(view: SiteView, shown: BridgeView) -> tuple[object, ...]:
    source, dest = _ends(view, shown)
    return (
        shown.name,
        shown.kind.value,
        f"{source} {shown.src}",
        f"{dest} {shown.dest}",
        shown.key,
        shown.state,
        time_of(shown.last_forward_ms),
        shown.error,
    )


def _ends(view: SiteView, shown: BridgeView) -> tuple[str, str]:
    """Tags of the source and the destination, the peer's unknown where its link has gone."""
    link = view.link_named(shown.link)
    if link is not None:
        return ends(shown, link, here=view.tag)
    return (view.tag, "?") if shown.src_is_local else ("?", view.tag)


@app.command("map")
def map_routes(
    sites: Annotated[list[str], typer.Argument(metavar="SITE", help="Where to begin.", autocompletion=complete_sites)],
    *,
    format_: Annotated[
        MapFormat | None, typer.Option("--format", help="How it is written.", show_default="text")
    ] = None,
    svg: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw it there as SVG, too.")] = None,
) -> None:
    """Walk all links from these sites, draw who sends what to whom, and warn of what loses or doubles messages.

    A site in another account can't be asked with this one's credentials: name it, too, with its profile.
    """
    if is_json() and format_ not in {None, MapFormat.JSON}:
        raise typer.BadParameter(f"--json is --format json: not --format {format_} with it")
    walked = walk(sites)
    if svg is not None:
        topologies.write_svg(walked, svg)
    topologies.show(walked, MapFormat.JSON if is_json() else format_ or MapFormat.TEXT)


@app.command()
def status(site: SiteText, name: Name) -> None:
    """All that a site knows of a route."""
    view = open_site(site).view()
    shown = view.bridge_named(name)
    if shown is None:
        raise BadRoute(f"no such route at {view.tag}: {name}")
    tell(shown, lambda: show_pairs(_pairs(view, shown)))


def _pairs(view: SiteView, shown: BridgeView) -> list[tuple[str, object]]:
    source, dest = _ends(view, shown)
    link = view.link_named(shown.link)
    return [
        ("route", shown.name),
        ("kind", f"{shown.kind}, {'pushed' if shown.src_is_local else 'pulled'}"),
        ("from", f"{source} {'queue' if shown.src_is_queue else 'exchange'} {shown.src}"),
        ("to", f"{dest} exchange {shown.dest}"),
        ("key", shown.key),
        ("key there", "messages' own" if shown.dest_key is UNSET else shown.dest_key),
        ("filter", None if shown.filter is UNSET else encode(shown.filter).decode()),
        ("state", shown.state),
        ("error", shown.error),
        ("link", shown.link if link is None else f"{shown.link}, {link.status.state}"),
        ("link's last error", None if link is None else link.status.last_error),
        ("reads", shown.reads),
        ("last forward", time_of(shown.last_forward_ms)),
        ("mended", _mended(shown.mends)),
        ("tag", shown.tag or f"{source}, the source's"),
        ("excludes", ", ".join(sorted(shown.excludes))),
        ("acknowledges", f"{shown.sync} at once"),
        ("credit", shown.credit or "no limit"),
        ("rate", "no limit" if shown.rate is UNSET else f"{shown.rate} messages a second"),
        ("max hops", shown.max_hops),
        ("declared", "by the peer" if shown.served else "in cdk.json" if shown.declared else "at run time"),
    ]


def _mended(mends: Mends) -> str | None:
    if not mends.number:
        return None
    often = "once" if mends.number == 1 else f"{mends.number} times, the last time"
    lost = f"; about {mends.lost} messages were lost with its queue" if mends.lost else ""
    return f"{often} its {mends.last}, {time_of(mends.last_ms)}{lost}"


add_tells(
    app,
    lambda name, what: TellBridge(name=name, what=what),
    thing="route",
    argument=Name,
    helps=(
        "Hold a route: what comes is kept.",
        "Let a paused or draining route go on.",
        "Take in no more, and send what is queued.",
        "Try a route's link now that waits or has failed.",
    ),
)


@app.command()
def redrive(site: SiteText, name: Name) -> None:
    """Put a route's dead letters back into its queue, a thousand at most."""
    done = open_site(site).client.ask(Redrive(name=name))
    tell(done, f"{name}: {done.redriven} dead letters are back in its queue")
