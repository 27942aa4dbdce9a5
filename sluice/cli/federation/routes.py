"""`sluice route`: static exchange routes, and what is done with routes of all kinds."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from msgspec import UNSET
from msgspec.structs import replace

from sluice.cli.completion import complete_exchanges, complete_routes, complete_sites
from sluice.cli.federation.links import time_of
from sluice.cli.federation.route_declarations import Ends
from sluice.cli.federation.route_options import (
    DEFAULT_ACK,
    DEFAULT_TIMEOUT_S,
    Ack,
    Credit,
    DelEmptyLink,
    DestKey,
    Durable,
    ExcludesArgument,
    ExcludesOption,
    FilterFile,
    LinkOption,
    MaxHops,
    Patterns,
    Program,
    Rate,
    SrcLocal,
    TagArgument,
    TagOption,
    Timeout,
    Ttl,
    declare,
    filter_of,
    if_said,
    said_once,
    show_operational,
    tags,
    tell_closing,
    withdraw,
)
from sluice.cli.federation.sites import OpenSite, open_site
from sluice.cli.output import AsJson, Quiet, show_pairs, show_table, tell
from sluice.cli.sites import DestText, SiteText, SiteTyper, SrcText
from sluice.codec import encode
from sluice.errors import BadRoute
from sluice.federation.links.links import MAX_CREDIT, MAX_RATE, MAX_SYNC, BridgeDeclaration, ends
from sluice.federation.links.states import Command
from sluice.federation.links.watch import Mends
from sluice.federation.matching.tracing import DEFAULT_MAX_HOPS, MAX_TRACE_TAGS
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

FIFO_SUFFIX = ".fifo"


class MapFormat(StrEnum):
    """How a map is written."""

    TEXT = "text"
    SVG = "svg"
    JSON = "json"


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


@app.command()
def add(  # noqa: PLR0917 - the order of qpid-route's arguments
    dest: DestText,
    src: SrcText,
    exchange: Exchange,
    key: Key = "",
    tag: TagArgument = None,
    excludes: ExcludesArgument = None,
    *,
    tag_option: TagOption = None,
    excludes_option: ExcludesOption = None,
    dest_exchange: DestExchange = None,
    src_local: SrcLocal = False,
    durable: Durable = True,
    ack: Ack = DEFAULT_ACK,
    credit: Credit = 0,
    max_hops: MaxHops = DEFAULT_MAX_HOPS,
    dest_key: DestKey = "",
    rate: Rate = 0,
    ttl: Ttl = 0,
    patterns: Patterns = None,
    jq: Program = None,
    filter_file: FilterFile = None,
    standard: Annotated[
        bool, typer.Option("--standard", help="A bridge queue that keeps no order, knows no duplicates, is cheaper.")
    ] = False,
    existing_queue: Annotated[
        str | None, typer.Option(metavar="NAME", help="A queue at SRC to take for the bridge queue.")
    ] = None,
    link: LinkOption = None,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Let an exchange's messages with a key go from SRC to DEST, which pulls them. The link is made if need be.

    By two ways of such routes a message comes once only where FIFO queues get it twice within five minutes: take
    dynamic routes there.
    """
    if standard and existing_queue is not None:
        raise typer.BadParameter("--existing-queue is what it is: no --standard with it")
    wanted = BridgeDeclaration(
        src=exchange,
        dest=dest_exchange or exchange,
        key=key,
        tag=said_once("TAG", tag, "--tag", tag_option) or None,
        excludes=tags(said_once("EXCLUDES", excludes, "--excludes", excludes_option) or ""),
        src_is_local=src_local,
        durable=durable,
        sync=ack,
        credit=credit,
        queue=existing_queue,
        max_hops=max_hops,
        dest_key=if_said(dest_key),
        retention_s=if_said(ttl),
        rate=if_said(rate),
        filter=filter_of(patterns or (), jq, filter_file),
        fifo=existing_queue.endswith(FIFO_SUFFIX) if existing_queue is not None else not standard,
    )
    both = Ends.of(dest, src, src_local=src_local)
    declare(both, wanted, link=link, timeout_s=timeout, quiet=quiet, as_json=as_json)


@app.command()
def change(
    site: SiteText,
    name: Name,
    *,
    tag: Annotated[str | None, typer.Option(help='Appended to traces; "" is the source\'s.')] = None,
    excludes: Annotated[
        str | None, typer.Option(metavar="TAG,TAG", help="Tags that no message's trace may have.")
    ] = None,
    dest_key: Annotated[str | None, typer.Option("--dest-key", metavar="KEY", help='At DEST; "" is their own.')] = None,
    ack: Annotated[int | None, typer.Option(min=1, max=MAX_SYNC, help="Messages acknowledged at once.")] = None,
    credit: Annotated[
        int | None, typer.Option(min=0, max=MAX_CREDIT, help="Messages under way; 0 is no limit.")
    ] = None,
    max_hops: Annotated[int | None, typer.Option(min=1, max=MAX_TRACE_TAGS, help="Sites that may be passed.")] = None,
    rate: Annotated[int | None, typer.Option(min=0, max=MAX_RATE, help="Messages a second; 0 is no limit.")] = None,
    ttl: Annotated[int | None, typer.Option(metavar="SECONDS", help="Of the bridge queue; 0 is 14 days.")] = None,
    patterns: Patterns = None,
    jq: Program = None,
    filter_file: FilterFile = None,
    no_filter: Annotated[bool, typer.Option("--no-filter", help="All that the key takes goes over again.")] = False,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Give a route other options where it stands: its queue stays, and what is published meanwhile goes over once."""
    opened = open_site(site)
    shown = _own(opened.view(), name, "change it")
    said = {
        "tag": tag or None,
        "excludes": None if excludes is None else tags(excludes),
        "dest_key": None if dest_key is None else if_said(dest_key),
        "sync": ack,
        "credit": credit,
        "max_hops": max_hops,
        "rate": None if rate is None else if_said(rate),
        "retention_s": None if ttl is None else if_said(ttl),
    }
    asked = filter_of(patterns or (), jq, filter_file)
    if no_filter and asked is not UNSET:
        raise typer.BadParameter("--no-filter goes without a filter")
    changes: dict[str, Any] = {option: value for option, value in said.items() if value is not None}
    if no_filter or asked is not UNSET:
        changes["filter"] = asked
    if tag == "":
        changes["tag"] = None
    opened.client.ask(ChangeBridge(bridge=replace(shown.declared_bridge(), **changes)))
    show_operational(opened, name, timeout_s=timeout, quiet=quiet, as_json=as_json)


@app.command("del")
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
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Take a route away: the one between two sites, or any of a site's by its name, as in `route del SITE NAME`.

    What its queue holds goes over first.
    """
    if exchange is None:
        site = open_site(dest)
        name = _own(site.view(), src, "take it away").name
        site.client.ask(CloseBridge(name=name, del_empty_link=del_empty_link))
        tell_closing(site, [name], quiet=quiet, as_json=as_json)
        return
    wanted = BridgeDeclaration(src=exchange, dest=dest_exchange or exchange, key=key, src_is_local=src_local)
    both = Ends.of(dest, src, src_local=src_local)
    withdraw(both, wanted, link=link, del_empty_link=del_empty_link, quiet=quiet, as_json=as_json)


def _own(view: SiteView, name: str, what: str) -> BridgeView:
    """Find a route that is the site's own, to do `what`. Raises `BadRoute` for any other."""
    shown = view.bridge_named(name)
    if shown is None:
        raise BadRoute(f"no such route at {view.tag}: {name}")
    if shown.served:
        raise BadRoute(f"{name}: it is pulled by {name.rpartition('@')[2]}: {what} there")
    return shown


@app.command()
def flush(
    site: SiteText, *, del_empty_link: DelEmptyLink = False, quiet: Quiet = False, as_json: AsJson = False
) -> None:
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
    tell_closing(opened, [shown.name for shown in own], quiet=quiet, as_json=as_json)


@app.command("list")
def list_routes(site: SiteText, *, as_json: AsJson = False) -> None:
    """List a site's routes with their states. Those with an @ in the name are pulled by their peer."""
    opened = open_site(site)
    view = opened.view()
    tell(view.bridges, lambda: _show_routes(opened, view), as_json=as_json)


def _show_routes(opened: OpenSite, view: SiteView) -> None:
    columns = ("route", "kind", "from", "to", "key", "state", "forwarded", "error")
    show_table(columns, [_row(view, shown) for shown in view.bridges])
    if any(shown.dynamic and shown.src_is_local for shown in view.bridges):
        from sluice.cli.federation.dynamic_routes import WAY_COLUMNS, way_row  # noqa: PLC0415 - it imports from here, too

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
    as_json: AsJson = False,
) -> None:
    """Walk all links from these sites, draw who sends what to whom, and warn of what loses or doubles messages.

    A site in another account can't be asked with this one's credentials: name it, too, with its profile.
    """
    from sluice.cli.federation import topologies  # noqa: PLC0415 - only for this command

    if as_json and format_ not in {None, MapFormat.JSON}:
        raise typer.BadParameter(f"--json is --format json: not --format {format_} with it")
    walked = topologies.walk(sites)
    if svg is not None:
        topologies.write_svg(walked, svg)
    topologies.show(walked, MapFormat.JSON if as_json else format_ or MapFormat.TEXT)


@app.command()
def status(site: SiteText, name: Name, *, as_json: AsJson = False) -> None:
    """All that a site knows of a route."""
    view = open_site(site).view()
    shown = view.bridge_named(name)
    if shown is None:
        raise BadRoute(f"no such route at {view.tag}: {name}")
    tell(shown, lambda: show_pairs(_pairs(view, shown)), as_json=as_json)


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


@app.command()
def pause(site: SiteText, name: Name, *, quiet: Quiet = False, as_json: AsJson = False) -> None:
    """Hold a route: what comes is kept."""
    _tell(site, name, Command.PAUSE, quiet=quiet, as_json=as_json)


@app.command()
def resume(site: SiteText, name: Name, *, quiet: Quiet = False, as_json: AsJson = False) -> None:
    """Let a paused or draining route go on."""
    _tell(site, name, Command.RESUME, quiet=quiet, as_json=as_json)


@app.command()
def drain(site: SiteText, name: Name, *, quiet: Quiet = False, as_json: AsJson = False) -> None:
    """Take in no more, and send what is queued."""
    _tell(site, name, Command.DRAIN, quiet=quiet, as_json=as_json)


@app.command()
def retry(site: SiteText, name: Name, *, quiet: Quiet = False, as_json: AsJson = False) -> None:
    """Try a route's link now that waits or has failed."""
    _tell(site, name, Command.RETRY, quiet=quiet, as_json=as_json)


def _tell(site: str, name: str, what: Command, *, quiet: bool, as_json: bool) -> None:
    opened = open_site(site)
    opened.client.ask(TellBridge(name=name, what=what))
    document = {"site": str(opened.name), "route": name, "done": what.value}
    tell(document, f"{name}: {what.value}", as_json=as_json, quiet=quiet)


@app.command()
def redrive(site: SiteText, name: Name, *, as_json: AsJson = False) -> None:
    """Put a route's dead letters back into its queue, a thousand at most."""
    done = open_site(site).client.ask(Redrive(name=name))
    tell(done, f"{name}: {done.redriven} dead letters are back in its queue", as_json=as_json)
